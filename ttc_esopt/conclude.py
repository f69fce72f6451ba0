"""The end of a run: the best heuristic is chosen on val, reported on test, and the run is summed up.

The search set decides what survives, so its best value flatters; choosing among the last population on `val` and
reporting `test` once is what the numbers in best.json mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ttc_esopt import problems
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.instances import evaluator, own_sets, reported_size
from ttc_esopt.problems.base import Problem
from ttc_esopt.rundata import is_new, thirds
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.scaffolds.base import Individual
from ttc_esopt.search import State
from ttc_esopt.settings import Settings


@dataclass(frozen=True)
class Row:
    """One line of the closing table; objectives on the three splits, None where invalid."""

    name: str
    train: float | None
    val: float | None
    test: float | None


@dataclass(frozen=True)
class Conclusion:
    """What a run ends with.

    Attributes
    ----------
    rows : list of Row
        Baselines, the best seed heuristic, the best found.
    valid_first, valid_last : float or None
        Share of valid replies in the first and last third of what the model wrote.
    own : int
        Valid candidates that the model wrote and whose objective no earlier candidate had.
    own_is_best : bool
        The chosen heuristic is one of them.
    alarms : list of str
        Impossible scores on val or test, one line each.
    """

    rows: list[Row]
    valid_first: float | None
    valid_last: float | None
    own: int
    own_is_best: bool
    alarms: list[str] = field(default_factory=list)


def conclude(folder: RunFolder, problem: Problem, state: State) -> Conclusion:
    """Evaluate, choose, write best.py and best.json, and sum up.

    All figures here are of programs run in plain Python, also where the search had them compiled.
    """
    settings = folder.settings
    heads: list[tuple[str, str]] = [(name, code) for name, code in problem.baselines.items()]
    seeds = [seed.code for seed in problem.seeds]
    finalists: list[Individual] = list(state.population)
    alarms: list[str] = []
    with evaluator(problem, settings, compile="never") as search:
        on_train = [o.objective for o in search.evaluate([code for _, code in heads] + seeds)]
        valid = [i for i in range(len(heads), len(on_train)) if on_train[i] is not None]
        if valid:
            best_seed = min(valid, key=lambda i: on_train[i])
            on_train[len(heads)] = on_train[best_seed]
            heads.append(("best seed heuristic", seeds[best_seed - len(heads)]))
        codes = [code for _, code in heads]
        val = _objectives(problem, settings, "val", codes + [one.code for one in finalists], alarms)
        chosen = _choose(finalists, val[len(heads) :])
        train = on_train[: len(heads)]
        if chosen is not None:
            codes.append(finalists[chosen].code)
            train.append(search.evaluate(codes[-1:])[0].objective)
        held_out = val[: len(heads)] + ([val[len(heads) + chosen]] if chosen is not None else [])
        test = _objectives(problem, settings, "test", codes, alarms)
        names = [name for name, _ in heads] + ["best found"]
        rows = [Row(*row) for row in zip(names, train, held_out, test, strict=False)]
        rows[:0] = _references(problem, settings, search)
    written = [line for line in state.lines if line["reply"] is not None]
    first, last = thirds(written)
    own = {line["order"] for line in written if is_new(line)}
    if chosen is not None:
        best = finalists[chosen]
        scores: dict[str, Any] = {
            "order": best.order, "operator": state.lines[best.order]["operator"], "description": best.description,
            "objective": rows[-1].train, "val": rows[-1].val, "test": rows[-1].test,
            "size": reported_size(problem, settings, "train"), "own_sets": own_sets(problem, settings),
            "chosen_on": "val" if rows[-1].val is not None else "train",
            "reference": {row.name: row.train for row in rows[:-1]},
            "rows": [{"name": row.name, "train": row.train, "val": row.val, "test": row.test} for row in rows],
        }  # fmt: skip
        folder.write_best(best.code, scores)
    own_is_best = chosen is not None and finalists[chosen].order in own
    return Conclusion(rows, first, last, len(own), own_is_best, alarms)


def _choose(finalists: list[Individual], val: list[float | None]) -> int | None:
    """Index of the best on val; where none is valid there, of the best on train."""
    if not finalists:
        return None
    valid = [i for i, objective in enumerate(val) if objective is not None]
    return min(valid, key=lambda i: val[i]) if valid else 0


def _objectives(
    problem: Problem, settings: Settings, split: str, codes: list[str], alarms: list[str]
) -> list[float | None]:
    size = reported_size(problem, settings, split)
    if size is None:
        return [None] * len(codes)
    with evaluator(problem, settings, split, size, compile="never") as held_out:
        outcomes = held_out.evaluate(codes)
    alarms += [f"{split} {size}: {outcome.detail}" for outcome in outcomes if outcome.alarm]
    return [outcome.objective for outcome in outcomes]


def _references(problem: Problem, settings: Settings, search: Evaluator) -> list[Row]:
    """Classical methods that are no programs."""
    sets = {"train": search.instances}
    for split in ("val", "test"):
        size = reported_size(problem, settings, split)
        sets[split] = [] if size is None else problem.instances(split, size)
    means = {split: problems.mean_references(problem, instances) for split, instances in sets.items()}
    return [Row(name, *(means[split].get(name) for split in sets)) for name in means["train"]]
