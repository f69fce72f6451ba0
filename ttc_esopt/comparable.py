"""Run folders as a comparison sees them: one value per run, what may be put together, and what is refused.

Two runs belong to one setting if problem, set, size, method, model, budget, data and evaluator are the same; within a
side all other settings must agree too, since a mean over different arms or temperatures is a mean of nothing. What
differs between the sides is what is compared.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.rundata import RunData, as_number, as_table, ended_at_limit, read_run
from ttc_esopt.settings import FIELDS, check_types

IGNORABLE = {
    "budget": "unequal budgets",
    "data": "other instance sets, another protocol, other values of the baseline heuristics",
    "evaluator": "another version of ttc-esopt, other limits of time or memory",
    "method": "other scaffolds or hosts",
    "model": "other models, or other weights under one name",
    "settings": "runs of one side that differ in more than the seed",
    "unfinished": "runs that have not ended, taken as they are",
    "failed": "runs without a valid value, left out",
}
WITHIN = {"candidates": 0.02, "tokens": 0.05}  # how far apart the sides' mean budgets may be
# settings that change where or how fast a run works, not what it looks for
FREE = {
    "seed", "threads", "batch_size", "workers", "device", "engine", "dtype", "data", "sandbox", "max_minutes",
    "max_tokens_total", "diagnostics", "cap_kl", "cap_distance", "delta",
    "replicas", "work_unit", "ray_address", "evaluate_on",
}  # fmt: skip
# settings that the key of a setting holds in one form or another
_IN_KEY = {
    "problem", "problem_args", "mode", "instances", "protocol", "scaffold", "model", "eval_timeout", "memory_mb",
}  # fmt: skip


def _never(word: str) -> Any:
    return field(metadata={"word": word, "ignore": None})


def _unless(ignored: str, word: str) -> Any:
    return field(metadata={"word": word, "ignore": ignored})


@dataclass(frozen=True)
class Key:
    """What two runs must share to be compared; an ignored part is None."""

    problem: str | None = _never("problem")
    split: str | None = _never("set")
    size: int | None = _never("size")
    method: str | None = _unless("method", "method")
    budget: str | None = _unless("budget", "budget")
    model: str | None = _unless("model", "model")
    protocol: str | None = _unless("data", "protocol")
    sets: str | None = _unless("data", "instances")
    evaluator: str | None = _unless("evaluator", "evaluator")

    def apart(self, other: Key) -> list[str]:
        """Names of the parts that differ."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name)]

    @property
    def where(self) -> str:
        """For people: problem, set, size."""
        return " ".join(str(part) for part in (self.problem, self.split, self.size) if part is not None)

    def text(self) -> str:
        """For people: problem, set, size, method, budget."""
        return ", ".join([self.where, *(part for part in (self.method, self.budget) if part is not None)])


@dataclass(frozen=True)
class Run:
    """One run: its value and what it was made with.

    Attributes
    ----------
    path : Path
        The folder.
    key : Key
        What it may be compared with.
    value : float or None
        The objective (minimised) of the best heuristic, chosen on val and reported on the key's split.
    trouble : str or None
        Why there is no value.
    unfinished : str or None
        Why the run is not finished.
    seed : int
        Of the search.
    settings : dict
        All of run.toml.
    candidates, tokens, replies, valid : int
        Lines, tokens written, replies of the model, valid ones among them.
    known : dict
        (baseline heuristic, split) -> objective, which shows whether data and evaluator are the same.
    versions : dict
        Package -> version.
    digest : str
        Of samples.jsonl.
    notes : tuple of str
        What is to be known about the value.
    """

    path: Path
    key: Key
    value: float | None
    trouble: str | None
    unfinished: str | None
    seed: int
    settings: dict[str, Any]
    model: str
    candidates: int
    tokens: int
    replies: int
    valid: int
    known: dict[tuple[str, str], float]
    versions: dict[str, str]
    digest: str
    notes: tuple[str, ...] = ()


def open_run(path: Path, budget_in: str = "candidates") -> Run:
    """Read one run folder.

    Raises
    ------
    ConfigurationError
        It is no folder of a run, or its files are damaged.
    """
    if not path.is_dir():
        what = "a file" if path.is_file() else "nothing of that name"
        raise ConfigurationError(f"Expected folders of runs, {path} is {what} (--baseline, --candidate).")
    if (path / "study.toml").is_file():
        raise ConfigurationError(f"{path} is a study, expected runs: {path}/<problem>/<arm>/seed-*.")
    data = read_run(path)
    damage = [note for note in data.notes if not note.endswith("is missing.")]
    if damage or not data.settings:
        raise ConfigurationError(f"{path} cannot be compared: {damage[0] if damage else 'run.toml is missing.'}")
    settings = {name: data.settings.get(name, one.default) for name, one in FIELDS.items()}
    try:
        check_types(settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}/run.toml is damaged: {error}") from None
    tokens = int(sum(as_number(line.get("tokens")) or 0 for line in data.samples))
    split, value, trouble, notes = _value(data)
    versions = {str(k): str(v) for k, v in as_table(data.document.get("versions")).items()}
    try:
        digest = hashlib.sha256((path / "samples.jsonl").read_bytes()).hexdigest()
    except OSError:
        digest = ""
    return Run(
        path, _key(data, settings, split, versions, budget_in), value, trouble,
        _unfinished(data, settings, tokens, budget_in), settings["seed"], settings, _short(settings["model"]),
        len(data.samples), tokens, len(data.written), sum(line["objective"] is not None for line in data.written),
        _known(data), versions, digest, notes,
    )  # fmt: skip


def _value(data: RunData) -> tuple[str, float | None, str | None, tuple[str, ...]]:
    """Split, value, why there is none, and notes: on test, or on train where the run has no test set."""
    test, train = as_number(data.best.get("test")), as_number(data.best.get("objective"))
    if test is not None:
        chosen = data.best.get("chosen_on")
        note = (f"{data.path}: the best was chosen on {chosen}: none was valid on val",) if chosen != "val" else ()
        return "test", test, None, note
    if any(split == "test" for _, split in _known(data)):
        return "test", None, "its best heuristic is invalid on the test set", ()
    return "train", train, "it has no valid heuristic" if train is None else None, ()


def _known(data: RunData) -> dict[tuple[str, str], float]:
    rows = data.best.get("rows")
    named = [row for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict)]
    return {
        (str(row.get("name")), split): value
        for row in named
        for split in ("train", "val", "test")
        if row.get("name") != "best found" and (value := as_number(row.get(split))) is not None
    }


def _unfinished(data: RunData, settings: dict[str, Any], tokens: int, budget_in: str) -> str | None:
    result = as_table(data.document.get("result"))
    limit = settings["max_tokens_total"]
    valid = any(line["objective"] is not None for line in data.samples)
    if budget_in == "tokens" and ended_at_limit(limit, tokens, valid, data.best):
        return None  # the limit is this run's budget
    if not result:
        return f"{len(data.samples)} candidates, and no result in run.toml"
    return f"it was stopped ({result['stopped']})" if result.get("stopped") else None


def _key(data: RunData, s: dict[str, Any], split: str, versions: dict[str, str], budget_in: str) -> Key:
    arguments = [part for part in (s["mode"], s["problem_args"]) if part]
    host = as_table(as_table(data.document.get("run")).get("host")).get("name")
    size = data.best.get("size")
    sets = [Path(file).name for file in s["instances"].split(os.pathsep) if file] or data.best.get("own_sets") or []
    excluded = " and the initial population" if s["budget_excludes_init"] else ""
    began = as_table(data.document.get("model"))
    model = began.get("base_fingerprint") or began.get("fingerprint")  # a tuned start is compared, it is no other model
    return Key(
        problem=_short(s["problem"]) + (f" ({', '.join(arguments)})" if arguments else ""),
        split="files" if s["instances"] else split,
        size=size if isinstance(size, int) and not s["instances"] else None,
        method=str(host or s["scaffold"]),
        budget=f"{s['budget']} candidates{excluded}" if budget_in == "candidates" else None,
        model=f"{_short(s['model'])} {model or ''}".strip(),
        protocol=s["protocol"],
        sets=", ".join(map(str, sets)) if isinstance(sets, list) else str(sets),
        evaluator=f"ttc-esopt {versions.get('ttc-esopt', '?')}, {s['memory_mb']} MiB, "
        + (f"{s['eval_timeout']:g} s" if s["eval_timeout"] else "the problem's time limit"),
    )


def _short(name: str) -> str:
    """A file's or folder's own name, so that runs of different machines compare."""
    file, colon, rest = name.partition(".py:")
    return f"{Path(file).name}{colon}{rest}" if Path(name).is_absolute() else name


# both sides


def open_sides(
    baseline: Sequence[Path], candidate: Sequence[Path], ignore: Collection[str], budget_in: str
) -> tuple[list[tuple[Key, list[Run], list[Run]]], list[str]]:
    """Settings with the runs of both sides, in order, and notes.

    Raises
    ------
    ConfigurationError
        Something does not match and is not in `ignore`; the message names runs, what differs, and the flag.
    """
    notes: list[str] = []
    sides = []
    for name, paths in (("baseline", baseline), ("candidate", candidate)):
        if not paths:
            raise ConfigurationError(f"Expected at least one run folder (--{name}).")
        runs = [open_run(Path(path), budget_in) for path in paths]
        sides.append((name, _usable(name, runs, ignore, notes)))
    _no_run_twice([run for _, runs in sides for run in runs], [len(runs) for _, runs in sides])
    ignored = [name for name, one in Key.__dataclass_fields__.items() if one.metadata["ignore"] in ignore]
    groups: list[dict[Key, list[Run]]] = []
    for name, runs in sides:
        found: dict[Key, list[Run]] = {}
        for run in runs:
            found.setdefault(replace(run.key, **dict.fromkeys(ignored)), []).append(run)
        for key, group in found.items():
            if "settings" not in ignore:
                _of_one_kind(name, key, group, ignore, budget_in)
        groups.append(found)
    _matched(groups[0], groups[1])
    settings = [(key, group, groups[1][key]) for key, group in sorted(groups[0].items(), key=lambda item: str(item[0]))]
    for key, left, right in settings:
        if "budget" not in ignore:
            _equal_budgets(key, left, right, budget_in)
        if "data" not in ignore:
            _same_data(key, left, right)
    return settings, notes


def _usable(name: str, runs: list[Run], ignore: Collection[str], notes: list[str]) -> list[Run]:
    for run in runs:
        if run.unfinished and "unfinished" not in ignore:
            raise ConfigurationError(
                f"{run.path} is not finished: {run.unfinished}; go on with it (`ttc-esopt resume`; exec and "
                "serve: --continue), or take it as it is (--ignore unfinished)."
            )
        if run.unfinished:
            notes.append(f"{run.path} is not finished: {run.unfinished}")
        if run.trouble and "failed" not in ignore:
            raise ConfigurationError(
                f"{run.path} has no value: {run.trouble}; leaving it out flatters its side (--ignore failed does so)."
            )
        notes += run.notes
    kept = [run for run in runs if run.value is not None]
    if len(kept) < len(runs):
        notes.append(f"{len(runs) - len(kept)} of {len(runs)} {name} runs have no value and are left out")
    if not kept:
        raise ConfigurationError(f"No run with a value is left (--{name}).")
    return kept


def _no_run_twice(runs: Sequence[Run], counts: Sequence[int]) -> None:
    """A run counted twice would make n a lie; a copy on the other side would be its own partner."""
    places: dict[Path, Run] = {}
    contents: dict[tuple[bool, str], Run] = {}
    for number, run in enumerate(runs):
        if run.path.resolve() in places:
            raise ConfigurationError(f"{run.path} is given twice (--baseline, --candidate).")
        places[run.path.resolve()] = run
        key = (number < counts[0], run.digest)
        if run.replies and key in contents:
            raise ConfigurationError(f"{run.path} holds the same candidates as {contents[key].path}: leave one out.")
        contents[key] = run


def _of_one_kind(name: str, key: Key, runs: Sequence[Run], ignore: Collection[str], budget_in: str) -> None:
    """Within a side only seeds differ."""
    free = FREE | _IN_KEY
    if budget_in == "candidates" or "budget" in ignore:
        free = free | {"budget", "budget_excludes_init"}
    for setting in (name for name in FIELDS if name not in free):
        values: dict[Any, Path] = {}
        for run in runs:
            value = run.settings[setting]
            values.setdefault(bool(value) if setting == "init_from" else value, run.path)  # seeds may have their own
        if len(values) > 1:
            listed = ", ".join(f"{value} ({path})" for value, path in values.items())
            raise ConfigurationError(
                f"The {name} runs of {key.text()} differ in {setting}: {listed}; compare them apart "
                "(--ignore settings)."
            )


def _matched(baseline: dict[Key, list[Run]], candidate: dict[Key, list[Run]]) -> None:
    """Every setting is there on both sides."""
    for mine, other, name in ((baseline, candidate, "baseline"), (candidate, baseline, "candidate")):
        for key in mine:
            if key in other:
                continue
            near = min(other, key=lambda one: (len(key.apart(one)), str(one)))
            parts = ["problem"] if key.problem != near.problem else key.apart(near)
            said = "; ".join(
                f"{Key.__dataclass_fields__[part].metadata['word']} {getattr(key, part) or 'none'} "
                f"against {getattr(near, part) or 'none'}"
                for part in parts
            )
            words = {Key.__dataclass_fields__[part].metadata["ignore"] for part in parts}
            if None in words:
                hint = "these are never compared: leave the runs out that have no counterpart"
            else:
                hint = f"give runs that match, or --ignore {','.join(sorted(words))}"
            raise ConfigurationError(
                f"{mine[key][0].path} ({name}, {key.text()}) has no counterpart; closest is {other[near][0].path}: "
                f"{said}; {hint}."
            )


def _equal_budgets(key: Key, left: Sequence[Run], right: Sequence[Run], budget_in: str) -> None:
    spent = [fmean(getattr(run, budget_in) for run in side) for side in (left, right)]
    if abs(spent[0] - spent[1]) > WITHIN[budget_in] * max(spent):
        raise ConfigurationError(
            f"{key.text()}: the baseline spent {spent[0]:.6g} {budget_in} a run, the candidate {spent[1]:.6g}, "
            f"expected them within {100 * WITHIN[budget_in]:.0f} %; give equal runs, or --ignore budget."
        )


def _same_data(key: Key, left: Sequence[Run], right: Sequence[Run]) -> None:
    """Baseline heuristics have the same values where data and evaluator are the same.

    A seed may enter an evaluation, so runs of equal seeds are held against each other; where there are none, values
    that are constant within both sides.
    """
    for place in sorted({place for run in left for place in run.known}):
        mine, other = (
            {run.seed: (run.known[place], run.path) for run in side if place in run.known} for side in (left, right)
        )
        pairs = [(mine[seed], other[seed]) for seed in mine.keys() & other.keys()]
        if not pairs and min(len(mine), len(other)) > 1 and _constant(mine.values()) and _constant(other.values()):
            pairs = [(next(iter(mine.values())), next(iter(other.values())))]
        for (a, path_a), (b, path_b) in pairs:
            if not _close(a, b):
                raise ConfigurationError(
                    f"{key.text()}: {place[0]} has {a:.6g} on {place[1]} in {path_a}, {b:.6g} in {path_b}: other "
                    "instances or another evaluator; repeat the runs, or --ignore data."
                )


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)  # sums differ in the last bits between machines


def _constant(values: Iterable[tuple[float, Path]]) -> bool:
    numbers = [value for value, _ in values]
    return all(_close(number, numbers[0]) for number in numbers)
