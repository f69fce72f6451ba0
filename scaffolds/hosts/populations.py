"""Populations that hosts have saved: EoH of both generations, LLM4AD and MCTS-AHD.

A host writes one file per generation, a list of heuristics, not always sorted, and not at once: what a killed run left
last may be cut. Hosts that maximise store scores; here everything is an objective, which is minimised.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.scaffolds.hosts.client import HostError

_NAME = re.compile(r"(?:population_generation|pop)_(\d+)\.json")
_APART = 60.0  # seconds between two files that no copying of a folder explains
# Where a host keeps them, seen from the folder that a user may name; EoH given output_dir="./results" makes another.
_FOLDERS = ("", "pops", "results/pops", "results/results/pops", "population")


def read_population(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The heuristics of one file as {"description", "code", "objective"}, best first; those without one are left out.

    Raises
    ------
    HostError
        The file is missing, cut, not a population, or holds no heuristic with an objective.
    """
    path = Path(path)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HostError(f"Expected a population file, but there is no {path}.") from None
    except OSError as error:
        raise HostError(f"Expected a population file, but {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise HostError(
            f"Expected a list of heuristics as JSON, but {path} is broken or cut ({error}); "
            f"remove it to go on from the generation before."
        ) from None
    if isinstance(stored, dict):  # pops_best: the best one only
        stored = [stored]
    if not isinstance(stored, list):
        raise HostError(f"Expected a list of heuristics, but {path} holds a {type(stored).__name__}.")
    found = [_individual(entry, f"number {n} in {path}") for n, entry in enumerate(stored, 1)]
    population = [entry for entry in found if entry is not None]
    if not population:
        what = f"none of the {len(stored)} in {path} has" if stored else f"{path} is an empty list"
        raise HostError(f"Expected heuristics with objectives, but {what}{' one' if stored else ''}.")
    return sorted(population, key=lambda entry: entry["objective"])


def _individual(entry: Any, where: str) -> dict[str, Any] | None:
    """One heuristic; None if it has no objective, as failed ones have in hosts' files."""
    if not isinstance(entry, dict):
        raise HostError(f"Expected a heuristic, but {where} is a {type(entry).__name__}.")
    code = entry.get("code", entry.get("function"))
    if not ("objective" in entry or "score" in entry) or not ("code" in entry or "function" in entry):
        keys = ", ".join(map(str, entry)) or "nothing"
        raise HostError(f"Expected code and objective, or function and score, but {where} has {keys}.")
    maximised = "objective" not in entry
    value = entry["score" if maximised else "objective"]
    # A failure is None, infinite, or in MCTS-AHD a word; 0 is a score like any other.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not code:
        return None
    try:
        objective = -float(value) if maximised else float(value)
    except OverflowError:
        return None
    if not math.isfinite(objective):
        return None
    if not isinstance(code, str):
        raise HostError(f"Expected a program as text, but that of {where} is a {type(code).__name__}.")
    description = entry.get("algorithm") or entry.get("thought") or ""
    return {"description": str(description), "code": code, "objective": objective + 0.0}  # + 0.0: no negative zero


def read_seeds(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The heuristics that a script begins with, as the host reads them.

    Raises
    ------
    HostError
        The file is missing, no JSON, or not a list of heuristics with code.
    """
    try:
        seeds = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HostError(f"Expected heuristics as JSON in the script's seed file {path}, but: {error}.") from None
    if not isinstance(seeds, list) or not seeds:
        raise HostError(f"Expected a list of heuristics in the script's seed file {path}, got {str(seeds)[:80]}.")
    for place, seed in enumerate(seeds, start=1):
        if not isinstance(seed, dict) or not isinstance(seed.get("code"), str):
            raise HostError(f"Expected heuristics with code, but number {place} in {path} is {str(seed)[:80]}.")
    return seeds


def last_population(folder: str | os.PathLike[str]) -> tuple[int, Path]:
    """The last generation's number and file; `folder` is a host's results folder, one around or inside it, or a file.

    Raises
    ------
    HostError
        There is no such folder, or there are no populations in it.
    """
    folder = Path(folder)
    if folder.is_file():
        named = _NAME.fullmatch(folder.name)
        if named is None:
            raise HostError(f"Expected a file population_generation_<k>.json or pop_<k>.json, got {folder}.")
        return int(named.group(1)), folder
    if not folder.is_dir():
        raise HostError(f"Expected the results folder of a host (--continue), but there is no {folder}.")
    for place in _FOLDERS:
        files = _numbered(folder / place)
        if files:
            return _last(files)
    # LLM4AD makes a folder per run in its log folder, named after the time: the last one has the last name.
    runs = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and _numbered(entry / "population")]
    if len(runs) == 1:
        return _last(_numbered(runs[0] / "population"))
    if runs:
        names = ", ".join(run.name for run in runs[-3:])
        raise HostError(f"Expected the results of one run (--continue), but {folder} holds {len(runs)}: {names}.")
    raise HostError(
        f"Expected population_generation_<k>.json or pop_<k>.json in {folder}, its results/pops or its population "
        f"folder (--continue), but there is none."
    )


def _last(files: Sequence[tuple[int, Path]]) -> tuple[int, Path]:
    """The last generation; refused where a longer run wrote it into the same folder before the run of today."""
    number, last = max(files)
    newest, written = max(files, key=lambda one: one[1].stat().st_mtime)
    if written.stat().st_mtime - last.stat().st_mtime > _APART:
        raise HostError(
            f"Expected the populations of one run in {last.parent}, but generation {newest} was written after "
            f"generation {number}: name the file to go on from, as --continue {written}."
        )
    return number, last


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """The population files in a folder, with their numbers."""
    try:
        names = [(entry, _NAME.fullmatch(entry.name)) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostError(f"Expected a folder of populations, but {folder} cannot be read: {error.strerror}.") from None
    return [(int(named.group(1)), path) for path, named in names if named]


def check_objectives(stored: Sequence[float], fresh: Sequence[float | None], path: str | os.PathLike[str]) -> None:
    """Refuse a population that another problem has scored: its objectives must come out again.

    Parameters
    ----------
    stored : the objectives in the file, as `read_population` returns them
    fresh : the objectives of the same programs, evaluated now; None for one that failed

    Raises
    ------
    HostError
        Some differ by more than rounding; the message shows the first.
    """
    pairs = list(zip(stored, fresh, strict=True))
    differ = [n for n, (old, new) in enumerate(pairs) if new is None or not _same(old, new)]
    if not differ:
        return
    old, new = pairs[differ[0]]
    got = "it fails now" if new is None else f"it has {new:.10g} now"
    raise HostError(
        f"Expected the objectives in {path} to come out again, but {len(differ)} of {len(pairs)} do not: number "
        f"{differ[0] + 1} was stored with {old:.10g} and {got}. Is this the same problem, with the same instances? "
        f"(--trust-objectives takes them as they are, as is needed where chance or the clock decides them.)"
    )


def _same(old: float, new: float) -> bool:
    return math.isclose(old, new, rel_tol=1e-4, abs_tol=1e-5)
