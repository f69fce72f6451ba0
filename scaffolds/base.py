"""What a scaffold is to the search loop: a plan of operator calls, prompts for each call, and survival.

The loop (`ttc_esopt.search`) owns engine, evaluation, ES and the run folder; a scaffold only decides what is asked of
the model and which candidates are kept. Everything here is a pure function of the settings and of the candidates so
far, which is what lets a killed run go on to the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ttc_esopt.scaffolds.replies import Parsed


@dataclass(frozen=True)
class Call:
    """One operator call of the plan.

    Attributes
    ----------
    index : int
        Position in the plan.
    generation : int
        0 for the initial population.
    operator : str
        seed, i1, e1, e2, m1 or m2.
    count : int
        Candidates that it makes.
    es : bool
        The call is a batch of directions, followed by one ES step.
    """

    index: int
    generation: int
    operator: str
    count: int
    es: bool = False


@dataclass(frozen=True)
class Individual:
    """A valid candidate as the population keeps it; `order` is its line in samples.jsonl (0-based)."""

    order: int
    description: str
    code: str
    objective: float


@dataclass(frozen=True)
class Draft:
    """One request before it has a direction: the prompt, the start of the reply, and the parents it shows."""

    prompt: str
    prefill: str
    parents: tuple[Individual, ...]


class Scaffold(Protocol):
    """The three decisions of a scaffold, and how its replies are read."""

    def plan(self) -> list[Call]:
        """All operator calls of the run, in order."""
        ...

    def drafts(self, call: Call, population: Sequence[Individual], rng: Random) -> list[Draft]:
        """`call.count` requests; `population` is sorted, best first."""
        ...

    def survive(self, population: Sequence[Individual], children: Sequence[Individual]) -> list[Individual]:
        """The population after a call, sorted, best first."""
        ...

    def parse(self, reply: str, prefill: str, truncated: bool) -> Parsed:
        """The program in a reply."""
        ...


def distinct_best(pool: Sequence[Individual], size: int) -> list[Individual]:
    """The best `size` individuals, only the first of each objective (to 5 decimals, as EoH counts them)."""
    kept: dict[float, Individual] = {}
    for individual in pool:
        kept.setdefault(round(individual.objective, 5), individual)
    return sorted(kept.values(), key=lambda individual: (individual.objective, individual.order))[:size]


def select_parents(
    population: Sequence[Individual], count: int, rng: Random, distinct: bool = True
) -> tuple[Individual, ...]:
    """Parents drawn by rank with weight 1 / (rank + 1 + N), rank 0 being the best, as EoH does.

    With `distinct`, no individual twice as long as the population allows it.
    """
    size = len(population)
    remaining = list(range(size))
    chosen: list[Individual] = []
    while len(chosen) < count:
        rank = rng.choices(remaining, weights=[1 / (rank + 1 + size) for rank in remaining])[0]
        chosen.append(population[rank])
        if distinct:
            remaining.remove(rank)
            remaining = remaining or list(range(size))
    return tuple(chosen)
