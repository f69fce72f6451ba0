"""The end of a run: the best heuristic is chosen on val, reported on test, and the run is summed up.

The search set decides what survives, so its best value flatters; choosing among the last population on `val` and
reporting `test` once is what the numbers in best.json mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ttc_esopt.evaluation import Evaluator
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
    """

    rows: list[Row]
    valid_first: float | None
    valid_last: float | None
    own: int
    own_is_best: bool


def evaluator(problem: Problem, settings: Settings, split: str = "train", size: int | None = None) -> Evaluator:
    """An evaluator with the run's limits; on other splits the time limit is the problem's."""
    return Evaluator(
        problem, split=split, size=size, seed=settings.seed, workers=settings.workers or None,
        timeout=(settings.eval_timeout or None) if split == "train" else None, memory_mb=settings.memory_mb,
    )  # fmt: skip


def conclude(folder: RunFolder, problem: Problem, state: State, search: Evaluator) -> Conclusion:
    """Evaluate, choose, write best.py and best.json, and sum up."""
    settings = folder.settings
    size = problem.splits["train"][0]
    heads: list[tuple[str, str]] = [(name, code) for name, code in problem.baselines.items()]
    seeds = [seed.code for seed in problem.seeds]
    on_train = search.evaluate([code for _, code in heads] + seeds)
    best_seed = min(
        (i for i, outcome in enumerate(on_train[len(heads) :]) if outcome.valid),
        key=lambda i: on_train[len(heads) + i].objective,
        default=None,
    )
    if best_seed is not None:
        heads.append(("best seed heuristic", seeds[best_seed]))
    finalists: list[Individual] = list(state.population)
    codes = [code for _, code in heads] + [one.code for one in finalists]
    train = [o.objective for o in search.evaluate([code for _, code in heads])] + [one.objective for one in finalists]
    val = _objectives(problem, settings, "val", size, codes)
    chosen = _choose(finalists, val[len(heads) :])
    tested = [code for _, code in heads] + ([finalists[chosen].code] if chosen is not None else [])
    test = _objectives(problem, settings, "test", size, tested)
    rows = [Row(name, train[i], val[i], test[i]) for i, (name, _) in enumerate(heads)]
    written = [line for line in state.lines if line["reply"] is not None]
    first, last = thirds(written)
    own = {line["order"] for line in written if is_new(line)}
    if chosen is not None:
        best = finalists[chosen]
        rows.append(Row("best found", best.objective, val[len(heads) + chosen], test[-1]))
        scores: dict[str, Any] = {
            "order": best.order, "operator": state.lines[best.order]["operator"], "description": best.description,
            "objective": best.objective, "val": rows[-1].val, "test": rows[-1].test, "size": size,
            "chosen_on": "val" if rows[-1].val is not None else "train",
            "reference": {row.name: row.train for row in rows[:-1]},
            "rows": [{"name": row.name, "train": row.train, "val": row.val, "test": row.test} for row in rows],
        }  # fmt: skip
        folder.write_best(best.code, scores)
    own_is_best = chosen is not None and finalists[chosen].order in own
    return Conclusion(rows, first, last, len(own), own_is_best)


def _choose(finalists: list[Individual], val: list[float | None]) -> int | None:
    """Index of the best on val; where none is valid there, of the best on train."""
    if not finalists:
        return None
    valid = [i for i, objective in enumerate(val) if objective is not None]
    return min(valid, key=lambda i: val[i]) if valid else 0


def _objectives(problem: Problem, settings: Settings, split: str, size: int, codes: list[str]) -> list[float | None]:
    if split not in problem.splits:
        return [None] * len(codes)
    size = size if size in problem.splits[split] else problem.splits[split][0]
    with evaluator(problem, settings, split, size) as held_out:
        return [outcome.objective for outcome in held_out.evaluate(codes)]
