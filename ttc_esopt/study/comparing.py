"""What a study says: its comparisons as one family, comparison.json, and the closing table."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ttc_esopt.comparable import WITHIN
from ttc_esopt.compare import Comparison, Setting, compare, family_notes
from ttc_esopt.errors import DataError, TtcEsoptError
from ttc_esopt.instances import problem_of, reported_size
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.rundata import as_number, read_run
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.statistics import ALPHA, FEW, holm
from ttc_esopt.study.plan import State, state_of
from ttc_esopt.study.recipe import Arm, Cell, Recipe

FILE = "comparison.json"


@dataclass(frozen=True)
class ArmComparison:
    """An arm against another, on all problems of the study.

    Attributes
    ----------
    arm, against : str
        The candidate and the baseline.
    comparison : Comparison or None
        p_holm is corrected for all settings of all comparisons of the study.
    trouble : str or None
        Why there is no comparison.
    """

    arm: str
    against: str
    comparison: Comparison | None
    trouble: str | None = None


def compared(recipe: Recipe, out: Path | str) -> list[ArmComparison]:
    """Every arm against those that the recipe says, from the run folders in `out`.

    Returns
    -------
    list of ArmComparison
        In the recipe's order. What cannot be compared has `trouble` and is no part of the family.
    """
    cells = recipe.cells(Path(out))
    states = {cell.folder: state_of(cell.folder) for cell in cells}
    found = []
    for arm, against in recipe.pairs():
        sides = [[cell for cell in cells if cell.arm == one.name] for one in (against, arm)]
        try:
            found.append(ArmComparison(arm.name, against.name, _compare(recipe, arm, against, sides, states)))
        except TtcEsoptError as error:
            found.append(ArmComparison(arm.name, against.name, None, str(error)))
    return _corrected(found)


def _compare(
    recipe: Recipe, arm: Arm, against: Arm, sides: Sequence[Sequence[Cell]], states: Mapping[Path, State]
) -> Comparison:
    cells = [cell for side in sides for cell in side]
    missing = [cell.title for cell in cells if states[cell.folder].run is None]
    if missing:
        listed = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise DataError(f"{len(missing)} of {len(cells)} runs have not begun or cannot be read: {listed}.")
    ignore, equal = {*recipe.ignore, *arm.ignore}, recipe.tokens_like(arm) == recipe.tokens_like(against)
    if equal:  # these differ by intention; how far apart the tokens are is told below
        ignore |= {"method", "budget"}
    budget_in = "tokens" if equal or any(states[cell.folder].at_limit for cell in cells) else "candidates"
    folders = ([cell.folder for cell in side] for side in sides)
    result = compare(*folders, ignore=sorted(ignore), budget_in=budget_in, whole=False)
    return replace(result, notes=result.notes + _apart(result)) if equal else result


def _apart(result: Comparison) -> list[str]:
    """Where sides of equal tokens are not so equal: a run stops after the batch that passes its limit."""
    notes = []
    for one in result.settings:
        spent = one.baseline.tokens, one.candidate.tokens
        if abs(spent[0] - spent[1]) > WITHIN["tokens"] * max(spent):
            notes.append(
                f"{one.key.text()}: the baseline wrote {spent[0]:.0f} tokens a run, the candidate {spent[1]:.0f}, more "
                f"than {100 * WITHIN['tokens']:.0f} % apart (smaller batches or longer runs come closer)"
            )
    return notes


def _corrected(found: Sequence[ArmComparison]) -> list[ArmComparison]:
    """Holm's correction over all settings of all comparisons, in place of that within each."""
    family = settings_of_all(found)
    adjusted = iter(holm([one.statistics.primary.p_two_sided for one in family]))
    result = []
    for one in found:
        if one.comparison is not None:
            settings = [replace(setting, p_holm=next(adjusted)) for setting in one.comparison.settings]
            one = replace(one, comparison=replace(one.comparison, settings=settings))
        result.append(one)
    return result


def settings_of_all(comparisons: Sequence[ArmComparison]) -> list[Setting]:
    """The study's family: every setting of every comparison, in order."""
    return [setting for one in comparisons if one.comparison for setting in one.comparison.settings]


def left_out(recipe: Recipe, out: Path) -> list[str]:
    """A note where the folder has runs that the recipe does not name (any more): what was looked at and dropped."""
    wanted = {cell.folder for cell in recipe.cells(out)}
    found = sorted(file.parent for file in out.glob("*/*/seed-*/run.toml") if file.parent not in wanted)
    if not found:
        return []
    listed = ", ".join(str(folder.relative_to(out)) for folder in found[:5]) + (" ..." if len(found) > 5 else "")
    many = f"{len(found)} runs in this folder are" if len(found) > 1 else "1 run in this folder is"
    return [f"{many} not in the recipe and in no comparison ({listed}): left out afterwards, p values mean nothing"]


def study_notes(comparisons: Sequence[ArmComparison], left: Sequence[str] = ()) -> list[str]:
    """What the study as a whole cannot say; `left` is what `left_out` says."""
    family = settings_of_all(comparisons)
    notes = [*left, *family_notes(family)]
    few = [one for one in family if one.verdict == "too few runs"]
    if family and len(few) == len(family):
        most = max(min(one.statistics.baseline.n, one.statistics.candidate.n) for one in family)
        runs = f"{most} run{'s' * (most != 1)} a side at most"
        notes.insert(0, f"nothing can be claimed from this study: {runs}, {FEW} are the least")
    return notes


# on disk


def write_comparison(recipe: Recipe, out: Path, comparisons: Sequence[ArmComparison]) -> Path:
    """`comparison.json`: runs, comparisons and notes; the same folders give the same bytes."""
    path = out / FILE
    document = as_document(recipe, out, comparisons)
    write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def as_document(recipe: Recipe, out: Path, comparisons: Sequence[ArmComparison]) -> dict[str, Any]:
    """The study for JSON; folders are relative to the study's."""
    family = {"size": len(settings_of_all(comparisons)), "correction": "holm", "alpha": ALPHA}
    rows = []
    for one in comparisons:
        found = one.comparison.as_dict() | {"family": family} if one.comparison else None
        rows.append({"arm": one.arm, "against": one.against, "trouble": one.trouble, "comparison": found})
    document = {
        "study": recipe.name, "about": recipe.about, "hardware": recipe.hardware,
        "recipe": hashlib.sha256(recipe.text.encode()).hexdigest(), "baseline": recipe.baseline,
        "seeds": list(recipe.seeds), "problems": recipe.problems, "settings": recipe.settings,
        "problem_settings": recipe.problem_settings, "arms": {name: asdict(arm) for name, arm in recipe.arms.items()},
        "runs": [_run(cell) for cell in recipe.cells(out)], "family": family, "comparisons": rows,
        "notes": study_notes(comparisons, left_out(recipe, out)),
    }  # fmt: skip
    return _relative(document, f"{out}/")


def _run(cell: Cell) -> dict[str, Any]:
    """How a run ended; its values (minimised) by set: on train the best found there, else of the one chosen on val."""
    state = state_of(cell.folder)
    row: dict[str, Any] = {
        "problem": cell.problem, "arm": cell.arm, "seed": cell.seed, "folder": str(cell.folder), "state": state.word,
        "trouble": state.trouble,
    }  # fmt: skip
    if state.run is None:
        return row
    run, data = state.run, read_run(cell.folder)
    sizes: dict[str, int | None] = {}
    with contextlib.suppress(TtcEsoptError):  # the file of a problem of the user's may have moved
        settings = RunFolder.open(cell.folder).settings
        problem = problem_of(settings)
        sizes = {split: reported_size(problem, settings, split) for split in ("train", "val", "test")}
    own = data.best.get("own_sets")
    own = own if isinstance(own, list) else []
    lowest = min((line["objective"] for line in data.samples if line["objective"] is not None), default=None)
    by_set = {"train": lowest} | {split: as_number(data.best.get(split)) for split in ("val", "test")}
    values = {split: {"size": sizes.get(split), "objective": value} for split, value in by_set.items()}
    return row | {
        "trouble": state.trouble or run.trouble, "value": run.value, "value_of": run.key.split, "values": values,
        "candidates": run.candidates, "tokens": run.tokens, "replies": run.replies, "valid": run.valid,
        "steps": sum(1 for step in data.steps if step.get("taken")), "own_sets": [str(name) for name in own if name],
        "fingerprint": data.document.get("result", {}).get("fingerprint"), "versions": run.versions,
    }  # fmt: skip


def _relative(value: Any, folder: str) -> Any:
    """Texts without the folder that the study happens to lie in."""
    if isinstance(value, str):
        return re.sub(rf"(?<![\w./-]){re.escape(folder)}", "", value)
    if isinstance(value, dict):
        return {name: _relative(one, folder) for name, one in value.items()}
    return [_relative(one, folder) for one in value] if isinstance(value, list | tuple) else value


# for people


def closing_rows(comparisons: Sequence[ArmComparison]) -> list[tuple[str, ...]]:
    """Rows of the closing table, with a heading."""
    rows = [("problem", "arm", "against", "mean", "mean of that", "difference", "p (Holm)", "verdict")]
    for one in comparisons:
        if one.comparison is None:
            rows.append(("–", one.arm, one.against, "–", "–", "–", "–", "not compared"))
            continue
        for setting in one.comparison.settings:
            of = setting.statistics
            rows.append(
                (setting.key.where, one.arm, one.against, f"{of.candidate.mean:.6g}", f"{of.baseline.mean:.6g}",
                 setting.difference, f"{setting.p_holm:.4f}", setting.verdict)
            )  # fmt: skip
    return rows


def closing_lines(comparisons: Sequence[ArmComparison], left: Sequence[str] = ()) -> list[str]:
    """What stands under the closing table: troubles and notes, each once, with what it is about."""
    lines = [f"{one.arm} against {one.against} is not compared: {one.trouble}" for one in comparisons if one.trouble]
    family = settings_of_all(comparisons)
    if not family:
        return lines
    rows = f"the {len(family)} rows" if len(family) > 1 else "the one row"
    lines.insert(0, f"lower is better; p is two-sided, corrected over {rows} of the study")
    said: dict[str, list[str]] = {}
    for one in comparisons:
        if one.comparison:
            of = f"{one.arm} against {one.against}"
            notes = [note for setting in one.comparison.settings for note in setting.notes] + one.comparison.notes
            for note in dict.fromkeys(notes):
                said.setdefault(note, []).append(of)
    lines += [f"note: {note}" for note in study_notes(comparisons, left)]
    compared_ones = sum(one.comparison is not None for one in comparisons)
    for note, about in said.items():
        lines.append(f"note: {note}" + ("" if len(about) == compared_ones else f" ({'; '.join(about)})"))
    return lines
