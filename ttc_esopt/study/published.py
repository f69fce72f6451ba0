"""Published figures with ours beside them, as a Markdown table."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from ttc_esopt.errors import DataError
from ttc_esopt.rundata import as_number, as_table
from ttc_esopt.study.recipe import Published, Recipe

_NOT_RUN = "not run here"


def published_table(recipe: Recipe, results: Path | None = None) -> str:
    """The recipe's published figures beside ours, in Markdown.

    Parameters
    ----------
    recipe : of `read_recipe`
    results : a study's folder, or its comparison.json; None, or no such file: nothing was run

    Ours are means over finished runs, in the published direction: on train of the best found there, on val and test of
    the heuristic chosen on val.

    Raises
    ------
    DataError
        comparison.json is damaged.
    """
    rows, lines = published_rows(recipe, _results(results))
    table = [f"| {' | '.join(cells)} |" for cells in rows]
    table.insert(1, f"|{'---|' * len(rows[0])}")
    return "\n".join([*table, "", *(f"{line}  " for line in lines)]).rstrip() + "\n"


def published_rows(recipe: Recipe, document: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows of the table, with a heading, and what stands under it; `document` is a comparison.json, or empty."""
    rows = [("problem", "set", "size", "arm", "published", "ours")]
    sources = list(dict.fromkeys(one.source for one in recipe.published if one.source))
    for one in recipe.published:
        number = f" [{sources.index(one.source) + 1}]" if one.source else ""
        size = "" if one.size is None else str(one.size)
        rows.append((one.problem, one.split, size, one.arm, _theirs(one) + number, _ours(one, document)))
    lines = [f"[{i}] {' '.join(source.split())}" for i, source in enumerate(sources, 1)]
    if any(one.maximised for one in recipe.published):
        lines.append("Where larger values are better, both columns show scores.")
    if document and _stored(document) != _made_with(recipe):
        lines.append("Ours were made with other settings than this recipe has.")
    return rows, lines


def _theirs(one: Published) -> str:
    more = [f"{word} {value:.9g}" for word, value in (("sd", one.sd), ("best", one.best)) if value is not None]
    more.append(f"n = {one.n}" if one.n is not None else "n unknown")
    return f"{one.mean:.9g} ({', '.join(more)})"


def _ours(one: Published, document: dict[str, Any]) -> str:
    values = []
    for run in document.get("runs", []):
        if (run.get("problem"), run.get("arm"), run.get("state")) != (one.problem, one.arm, "finished"):
            continue
        found = as_table(as_table(run.get("values")).get(one.split))
        value = as_number(found.get("objective"))
        if value is not None and one.size in (None, found.get("size")):
            values.append(-value if one.maximised else value)
    return f"{fmean(values):.6g} (n = {len(values)})" if values else _NOT_RUN


def _made_with(recipe: Recipe) -> dict[str, Any]:
    return {
        "settings": recipe.settings, "problem_settings": recipe.problem_settings,
        "arms": {name: arm.settings for name, arm in recipe.arms.items()},
    }  # fmt: skip


def _stored(document: dict[str, Any]) -> dict[str, Any]:
    arms = {name: as_table(arm).get("settings") for name, arm in as_table(document.get("arms")).items()}
    return {"settings": document.get("settings"), "problem_settings": document.get("problem_settings"), "arms": arms}


def _results(results: Path | None) -> dict[str, Any]:
    if results is None:
        return {}
    path = Path(results) / "comparison.json" if Path(results).is_dir() else Path(results)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if not isinstance(document, dict) or not all(isinstance(run, dict) for run in document.get("runs", [])):
        raise DataError(f"{path} is no comparison of a study.")
    return document
