"""Scaffold `eoh`: a population evolved by the operators e1, e2, m1 and m2 of Evolution of Heuristics (EoH).

Each generation calls every operator once, in order: e1 and e2 with `offspring` children of two parents, m1 and m2 as
batches of directions of one parent. After every call the best `population` candidates with distinct objectives
survive. Departures from EoH: m1 and m2 have the size of an ES batch, not of the population; by default one parent
serves the whole batch, since rewards of different parents do not compare (`--no-common-parent` draws one for each
child).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ttc_esopt.problems.base import Problem
from ttc_esopt.scaffolds.base import Call, Draft, Individual, distinct_best, select_parents
from ttc_esopt.scaffolds.prompts import build_prefill, build_prompt
from ttc_esopt.scaffolds.replies import Parsed, parse_reply
from ttc_esopt.settings import Settings

PARENTS = {"i1": 0, "e1": 2, "e2": 2, "m1": 1, "m2": 1}


class EoH:
    """See the module; satisfies `ttc_esopt.scaffolds.base.Scaffold`."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem = problem
        self.settings = settings
        self.prefill = build_prefill(problem) if settings.prefill else ""

    def plan(self) -> list[Call]:
        """Seeds and i1 first, then generations until the budget is used.

        A batch of directions that the budget cuts short is an ordinary call without perturbation or step.
        """
        s = self.settings
        calls: list[Call] = []

        def add(generation: int, operator: str, count: int, es: bool = False) -> None:
            if count > 0:
                calls.append(Call(len(calls), generation, operator, count, es))

        seeds = len(self.problem.seeds) if s.init in ("both", "seeds") else 0
        news = s.init_candidates if s.init in ("both", "model") else 0
        left = s.budget
        if not s.budget_excludes_init:
            seeds = min(seeds, left)
            news = min(news, left - seeds)
            left -= seeds + news
        add(0, "seed", seeds)
        add(0, "i1", news)
        batch = s.directions * s.replies_per_direction
        generation = 0
        while left > 0:
            generation += 1
            for operator in s.list_of("operators"):
                is_es = operator in s.list_of("es_operators")
                count = min(batch if is_es else s.offspring, left)
                add(generation, operator, count, es=is_es and count == batch)
                left -= count
        return calls

    def drafts(self, call: Call, population: Sequence[Individual], rng: Random) -> list[Draft]:
        """Requests of one call; with an empty population every operator asks for a fresh design, as i1 does."""
        operator = call.operator if population else "i1"
        shared = None
        if self.settings.common_parent and PARENTS[operator] == 1:
            shared = select_parents(population, 1, rng)
        drafts = []
        for _ in range(call.count):
            if PARENTS[operator] == 0:
                parents: tuple[Individual, ...] = ()
            else:
                parents = shared or select_parents(population, PARENTS[operator], rng, self.settings.distinct_parents)
            prompt = build_prompt(self.problem, operator, parents, self.settings.prefill)
            drafts.append(Draft(prompt, self.prefill, parents))
        return drafts

    def survive(self, population: Sequence[Individual], children: Sequence[Individual]) -> list[Individual]:
        """The best of both with distinct objectives."""
        return distinct_best([*population, *children], self.settings.population)

    def parse(self, reply: str, prefill: str, truncated: bool) -> Parsed:
        """Our own parser."""
        kind = "class" if self.problem.kind == "class" else "function"
        return parse_reply(reply, self.problem.function, kind=kind, prefill=prefill, truncated=truncated)
