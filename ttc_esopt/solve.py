"""One file in, one solution out: a search for this very instance, then the solution that its best heuristic gives.

Everything that is reported is computed anew from the file by checkers that know nothing of the solvers. Only the
corrected protocol is used here.

from ttc_esopt.solve import solve
result = solve("berlin52.tsp", out="berlin52", model="smollm2-135m", arm="esopt", budget=120)
print(result.value, result.file, result.gaps)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ttc_esopt import problems, strong_solvers
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.instances import evaluator, joined, problem_of, read_files, split_files
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.problems import files
from ttc_esopt.problems.base import own_code
from ttc_esopt.problems.files import solutions
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import Result, settings_of, work
from ttc_esopt.settings import Settings
from ttc_esopt.solvers import bounds

Say = Callable[[str], None]
_LARGEST_FOR_ANTS = 500  # nodes; beyond, a colony takes too long to be run for every candidate


@dataclass(frozen=True)
class Kind:
    """What there is to know of one kind of instance file.

    Attributes
    ----------
    what : word for the value of a solution
    suffix : of the solution file
    problems : settings that fit, the first is the choice
    read : path -> list of records
    check, write : record, solution -> value; path, record, solution -> None
    bound : record -> value that no solution can beat
    bound_name : what the bound is called
    strong : record, seconds, seed -> strong_solvers.Answer
    maximise : whether larger values are better
    """

    what: str
    suffix: str
    problems: tuple[str, ...]
    read: Callable[[Path], list[Any]]
    check: Callable[[Any, Any], float]
    write: Callable[[Path, Any, Any], None]
    bound: Callable[[Any], float]
    bound_name: str
    strong: Callable[[Any, float, int], Any]
    maximise: bool = False


KINDS = {
    "tsp": Kind(
        "length", ".tour", ("tsp_aco", "tsp_construct"), lambda path: [files.read_tsp(path)],
        solutions.check_tsp, solutions.write_tour, lambda r: bounds.held_karp(r.distances), "Held-Karp 1-tree bound",
        strong_solvers.tsp,
    ),
    "vrp": Kind(
        "cost", ".sol", ("cvrp_aco",), lambda path: [files.read_vrp(path)],
        solutions.check_cvrp, solutions.write_routes,
        lambda r: bounds.cvrp_weak(r.distances, r.demands, r.capacity), "a weak bound",
        strong_solvers.cvrp,
    ),
    "bpp": Kind(
        "bins", ".sol", ("bpp_aco",), files.read_bpp,
        solutions.check_bpp, solutions.write_bins, lambda r: bounds.martello_toth_l2(r.sizes, r.capacity), "L2 bound",
        strong_solvers.bpp,
    ),
    "kp": Kind(
        "value", ".sol", ("kp_construct",), files.read_kp,
        solutions.check_kp, solutions.write_items, lambda r: bounds.dantzig(r.weights, r.values, r.capacity),
        "LP bound", strong_solvers.kp, maximise=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """A value to compare with, and how far the solution is from it in percent (positive: worse)."""

    name: str
    value: float
    percent: float | None


@dataclass(frozen=True)
class Solved:
    """What `solve` ends with.

    Attributes
    ----------
    value : of the solution, in the file's own metric, checked
    what : length, cost, bins or value
    gaps : best known, bound, strong solver, classical methods: those that there are
    notes : what could not be compared, and why
    solution : tour, routes, bins or items
    file : the solution in its community's format
    run : of the search
    """

    value: float
    what: str
    gaps: list[Gap]
    notes: list[str]
    solution: Any
    file: Path
    run: Result


def solve(
    file: Path | str,
    *,
    out: Path | str | None = None,
    index: int | None = None,
    best_known: float | None = None,
    strong_seconds: float = 10.0,
    report: bool = True,
    say: Say = print,
    **given: Any,
) -> Solved:
    """Search a heuristic for the instance of a file, and solve it with the best one.

    Parameters
    ----------
    file : TSPLIB, CVRPLIB, bin-packing or knapsack file
    out : folder of the run; None: as `folder_for` says. A search that stopped there goes on
    index : which instance, from 1, of a file that holds several
    best_known : value to compare with; None: what the file says, or a solution file next to it
    strong_seconds : for a strong solver where its package is installed; 0: none
    given : settings of the search; `problem` overrides the setting that fits the file

    Raises
    ------
    ConfigurationError, DataError, EvaluationError
        The file, the settings or the search do not do.
    """
    task = _task(file, index)
    kind, record, path = task.kind, task.record, task.path
    folder = Path(out) if out is not None else folder_for(file, index)
    if folder.resolve() in (Path.cwd(), path.resolve().parent):
        raise ConfigurationError(f"Expected a folder of its own for the results, got {folder} (--out).")
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file, expected a folder or nothing (--out).")
    if not 0 <= strong_seconds < math.inf:
        raise ConfigurationError(f"Expected seconds of at least 0, got {strong_seconds} (--strong-seconds).")
    known = best_known if best_known is not None else solutions.published_best(path, record)
    if known is not None and not math.isfinite(known):
        raise ConfigurationError(f"Expected a finite number, got {known} (--best-known).")
    run = _search(task, folder, report, say, given)
    opened = RunFolder.open(folder)
    if not (folder / "best.py").is_file():
        raise DataError(f"No valid heuristic was found; see failure and detail in {opened.samples.path}.")
    solution = _solution(opened)
    value = kind.check(record, solution)
    target = folder / f"{path.stem}{kind.suffix}"
    kind.write(target, record, solution)
    gaps, notes = _compare(kind, record, value, known, strong_seconds, opened.settings.seed)
    gaps += _classical(kind, run, value)
    facts = {"instance": record.name, kind.what: value, "gaps": [asdict(gap) for gap in gaps], "notes": notes}
    write_atomically(folder / "solution.json", json.dumps(facts, indent=2) + "\n")
    return Solved(value, kind.what, gaps, notes, solution, target, run)


def folder_for(file: Path | str, index: int | None = None) -> Path:
    """Where a search for a file goes by default: the file's stem, the index if one is given, and `-solve`."""
    stem = Path(file).stem
    return Path(f"{stem}-solve" if index is None else f"{stem}-{index}-solve")


def problem_for(kind: Kind, record: Any) -> str:
    """The problem that fits a file."""
    large = kind is KINDS["tsp"] and len(record.distances) > _LARGEST_FOR_ANTS
    return kind.problems[1 if large else 0]


def planned(file: Path | str, index: int | None = None, **given: Any) -> tuple[str, Settings]:
    """What a search for a file would be: the instance's name and the settings, all checked; nothing is written.

    Raises
    ------
    ConfigurationError, DataError
        The file or the settings do not do.
    """
    task = _task(file, index)
    return task.record.name, _checked(task, task.path, given)


@dataclass(frozen=True)
class _Task:
    """The instance that is to be solved: its file, whether that holds others too, and a text of this one alone."""

    path: Path
    kind: Kind
    record: Any
    several: bool
    text: str


def _task(file: Path | str, index: int | None) -> _Task:
    path = Path(file)
    if path.suffix.lower() in (".npy", ".npz"):
        raise ConfigurationError(f"Expected a file of one instance, got {path}; for sets: evaluate --instances.")
    kind = KINDS[files.detect(path)]
    records = kind.read(path)
    if index is None and len(records) > 1:
        raise ConfigurationError(f"{path} holds {len(records)} instances: choose one (--index 1 to {len(records)}).")
    if index is not None and not 1 <= index <= len(records):
        raise ConfigurationError(f"Expected an index from 1 to {len(records)}, got {index} (--index).")
    record = records[(index or 1) - 1]
    several = len(records) > 1
    return _Task(path, kind, record, several, _alone(kind, record) if several else _text(path))


def _checked(task: _Task, source: Path, given: dict[str, Any]) -> Settings:
    """Settings of a search on the file `source`; raises ConfigurationError unless its problem gives solutions."""
    fitting = task.kind.problems
    chosen = given.get("problem") or problem_for(task.kind, task.record)
    if chosen in problems.names() and chosen not in fitting:
        raise ConfigurationError(f"Expected a problem that fits {task.path}: {' or '.join(fitting)}, got {chosen}.")
    settings = settings_of({**given, "problem": chosen, "instances": joined([source]), "protocol": "corrected"})
    problem = problem_of(settings)
    if not callable(getattr(problem, "solution", None)):
        raise ConfigurationError(f"Problem {problem.name} has no solution(): it can only be evaluated (--problem).")
    count = len(read_files(problem, split_files(settings.instances)))
    if count != 1 and not (task.several and source == task.path):
        raise ConfigurationError(f"Expected one instance in {source}, {problem.name} reads {count} (--problem).")
    return settings


def _search(task: _Task, folder: Path, report: bool, say: Say, given: dict[str, Any]) -> Result:
    """A new search, or an earlier one for the same instance that goes on."""
    # The run has a copy of its own, so that it can go on after the user's file has changed, and says what it solved.
    source = folder / f"instance{task.path.suffix}"
    if (folder / "run.toml").is_file():
        opened = RunFolder.open(folder)
        if opened.document["model"]:  # else it never began, and what kept it from that may be its settings
            same = source.is_file() and source.read_bytes() == task.text.encode()
            if not same or opened.settings.instances != str(source.resolve()):
                raise ConfigurationError(f"{folder} holds another run: choose another folder (--out).")
            limits = {name: given[name] for name in ("max_tokens_total", "max_minutes") if name in given}
            if limits:
                opened.change_limits(limits)
            say(f"{folder} holds a search for this instance: it goes on with its own settings")
            return work(opened, report, say)
    _checked(task, task.path, given)  # before anything is written
    write_atomically(source, task.text)
    settings = _checked(task, source, given)
    command = f"ttc_esopt.solve.solve({str(task.path)!r}, out={str(folder)!r}, **{given})"
    return work(RunFolder.create(folder, settings, command), report, say)


def _solution(folder: RunFolder) -> Any:
    """What the best heuristic of a run gives, run once more in plain Python."""
    problem = problem_of(folder.settings)
    with evaluator(problem, folder.settings, compile="never") as plain, own_code(f"{problem.name}.solution()"):
        return plain.solutions((folder.path / "best.py").read_text(encoding="utf-8"))[0]


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _alone(kind: Kind, record: Any) -> str:
    if kind is KINDS["bpp"]:
        return "\n".join(map(str, [len(record.sizes), record.capacity, *record.sizes])) + "\n"
    rows = (f"{value} {weight}" for value, weight in zip(record.values, record.weights, strict=True))
    return "\n".join([f"{len(record.weights)} {record.capacity}", *rows]) + "\n"


def _compare(
    kind: Kind, record: Any, value: float, known: float | None, seconds: float, seed: int
) -> tuple[list[Gap], list[str]]:
    def gap(name: str, other: float) -> Gap:
        return _gap(kind, value, name, other)

    gaps, notes = [], []
    if known is None:
        notes.append("no best-known value in the file (--best-known)")
    else:
        gaps.append(gap("best known", known))
    gaps.append(gap(kind.bound_name, kind.bound(record)))
    if seconds > 0:
        answer = kind.strong(record, seconds, seed)
        if answer.solution is None:
            notes.append(f"no strong solver: {answer.reason}")
        else:
            name = f"{answer.solver}{' (proven optimal)' if answer.optimal else f', {seconds:g} s'}"
            gaps.append(gap(name, kind.check(record, answer.solution)))
    return gaps, notes


def _classical(kind: Kind, run: Result, value: float) -> list[Gap]:
    """The problem's baselines and classical methods, which a tiny search may well not beat."""
    sign = -1.0 if kind.maximise else 1.0
    rows = [row for row in run.conclusion.rows[:-1] if row.train is not None and row.name != "best seed heuristic"]
    return [_gap(kind, value, row.name.replace("_", " "), sign * row.train) for row in rows]


def _gap(kind: Kind, value: float, name: str, other: float) -> Gap:
    sign = -1.0 if kind.maximise else 1.0
    percent = sign * 100 * (value - other) / abs(other) + 0.0 if other else None  # the sum takes a minus from a zero
    return Gap(name, other, percent)
