"""The page about a study: what it can claim, anytime curves of its arms, and every run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.charts import Chart, Curve, require_matplotlib
from ttc_esopt.report import tables
from ttc_esopt.report.anytime import AXES
from ttc_esopt.report.costs import ledger
from ttc_esopt.report.figures import anytime_drawing, area_rows
from ttc_esopt.report.grid import Grid, read_grid
from ttc_esopt.report.page import code_style, highlighted, template, write_page
from ttc_esopt.report.run_charts import Drawing, legend, moving_share, share_window, small
from ttc_esopt.rundata import (
    RunData,
    as_number,
    best_line,
    duration,
    is_new,
    plain,
    show_objective,
    show_share,
    thirds,
)

MOST_DETAILS = 60  # runs with charts of their own


def write_study_report(study_dir: Path | str, out: Path | str, comparisons: Sequence[Any] | None = None) -> Path:
    """Write the report of a study and return its path.

    Parameters
    ----------
    study_dir : the study's folder, with study.toml
    out : the HTML file; replaced in one step
    comparisons : as `ttc_esopt.study.compared` gives them; made here if None

    Raises
    ------
    ConfigurationError
        matplotlib is not installed, the folder holds no study, or the file cannot be written.
    """
    require_matplotlib()
    from ttc_esopt.study import compared
    from ttc_esopt.study.comparing import left_out, study_notes

    grid = read_grid(Path(study_dir))
    if comparisons is None:
        comparisons = compared(grid.recipe, grid.folder)
    recipe = grid.recipe
    published, sources = _published(grid, comparisons)
    page = template("study.html.j2").render(
        title=recipe.name,
        name=recipe.name,
        about=recipe.about,
        hardware=recipe.hardware,
        headline=_headline(grid),
        notes=study_notes(comparisons, left_out(recipe, grid.folder)),
        comparisons=[_comparison(one) for one in comparisons],
        published=published,
        sources=sources,
        problems=[_problem(grid, problem) for problem in recipe.problems],
        legend=legend(list(grid.keys.values())),
        areas=area_rows(grid),
        arms=list(recipe.arms),
        validity=_validity(grid),
        failures=_failures(grid),
        runs=[_row(grid, i) for i in range(len(grid.cells))],
        details=[_detail(grid, i) for i, run in enumerate(grid.runs) if run is not None],
        recipe_text=recipe.text,
        versions=_versions(grid),
        repeat=f"ttc-esopt study {shlex.quote(str(grid.folder / 'study.toml'))} --out NEW",
        placed=recipe.has_paths,
        path=str(grid.folder),
        code_style=code_style(),
    )
    return write_page(page, Path(out))


def _headline(grid: Grid) -> list[tuple[str, str]]:
    recipe, runs = grid.recipe, [run for run in grid.runs if run is not None]
    totals = [ledger(run).total for run in runs]
    seconds = sum(total.elapsed for total in totals)
    words = Counter(state.word for state in grid.states)
    return [
        ("Runs finished", f"{words['finished']} of {len(grid.cells)}"),
        ("Problems", ", ".join(recipe.problems)),
        ("Arms", ", ".join(recipe.arms)),
        ("Seeds", plain(list(recipe.seeds))),
        ("Baseline", recipe.baseline or "–"),
        ("Candidates", f"{sum(total.candidates for total in totals):,}"),
        ("Tokens written", f"{sum(total.written for total in totals):,}"),
        ("Time of all runs together", duration(seconds) if seconds else "–"),
    ]


# what can be claimed


def _comparison(one: Any) -> dict[str, Any]:
    """Rows and notes of one arm against another."""
    rows: list[list[str]] = []
    notes: list[str] = []
    if one.comparison is not None:
        rows = [_setting(setting) for setting in one.comparison.settings]
        for setting in one.comparison.settings:
            notes += [f"{setting.key.text()}: {note}" for note in setting.notes]
        notes += one.comparison.notes
    claimed = any(row[-1] in ("better", "worse") for row in rows)
    aggregate = one.comparison.aggregate if one.comparison else None
    return {
        "arm": one.arm,
        "against": one.against,
        "trouble": one.trouble,
        "rows": rows,
        "notes": list(dict.fromkeys(notes)),
        "claimed": claimed,
        "gain": f"Gain across {aggregate.settings} settings, interquartile mean: {aggregate.iqm:+.2f} % "
        f"[{aggregate.low:+.2f}, {aggregate.high:+.2f}] at {100 * aggregate.confidence:.0f} %."
        if aggregate
        else None,
    }


def _setting(setting: Any) -> list[str]:
    of = setting.statistics
    test, shift = of.primary, of.shift

    def side(summary: Any) -> str:
        return f"{summary.mean:.6g} ± {'–' if summary.sd is None else f'{summary.sd:.3g}'}"

    return [
        setting.key.where, f"{of.baseline.n}, {of.candidate.n}", side(of.baseline), f"{of.best[0]:.6g}",
        side(of.candidate), f"{of.best[1]:.6g}", setting.difference,
        f"{shift.estimate:+.4g} [{shift.low:+.4g}, {shift.high:+.4g}] at {100 * shift.confidence:.1f} %",
        f"{of.a12:.2f}", test.name, _p(test.p_two_sided), _p(setting.p_holm), setting.verdict,
    ]  # fmt: skip


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.1e}"


def _published(grid: Grid, comparisons: Sequence[Any]) -> tuple[Sequence[Sequence[str]], list[str]]:
    """The table of published figures beside ours: rows with a heading, and what stands under it."""
    if not grid.recipe.published:
        return [], []
    from ttc_esopt.study.comparing import as_document
    from ttc_esopt.study.published import published_rows

    return published_rows(grid.recipe, as_document(grid.recipe, grid.folder, comparisons))


# arms


def _problem(grid: Grid, problem: str) -> dict[str, Any]:
    """Anytime curves and valid share of all arms on one problem."""
    drawings = [anytime_drawing(grid, problem, axis) for axis in AXES] + [_valid_drawing(grid, problem)]
    return {"name": problem, "charts": [one.for_page() for one in drawings if one.chart]}


def _valid_drawing(grid: Grid, problem: str) -> Drawing:
    """Share of valid replies, averaged over the runs of each arm as far as all of them have come."""
    keys = grid.keys
    replies = [len(run.written) for arm in keys for run in grid.of(problem, arm) if run.written]
    window = share_window(max(replies, default=0))
    curves, used = [], []
    for arm, key in keys.items():
        runs = [run for run in grid.of(problem, arm) if len(run.written) >= window]
        if not runs:
            continue
        shortest = min(len(run.written) for run in runs)
        shares = [
            moving_share([line["objective"] is not None for line in run.written], window)[window - 1 : shortest]
            for run in runs
        ]
        x = np.arange(window, shortest + 1)
        mean, low, high = np.mean(shares, axis=0), np.min(shares, axis=0), np.max(shares, axis=0)
        curves.append(Curve(x, mean, low, high, colour=key.colour, dash=key.dash or 0, name=arm))
        used.append(key)
    chart = Chart(f"{problem}-valid", "replies", "valid share", curves, y_limits=(-0.03, 1.03), percent=True)
    caption = f"Share of valid replies among the last {window}: mean over runs, band from the lowest to the highest."
    return Drawing(f"{problem}: valid share", chart, caption, used)


def _validity(grid: Grid) -> list[list[str]]:
    """Problem, arm, runs, replies, valid share, in the first and last third, new, tokens a run."""
    rows = []
    for problem in grid.recipe.problems:
        for arm in grid.recipe.arms:
            runs = grid.of(problem, arm)
            written = [line for run in runs for line in run.written]
            valid = sum(line["objective"] is not None for line in written)
            parts = [both for run in runs if (both := thirds(run.written))[0] is not None]
            first, last = ((sum(x) / len(x)) if (x := [both[i] for both in parts]) else None for i in (0, 1))
            totals = [ledger(run).total for run in runs]
            seconds = [total.elapsed for total in totals if total.elapsed]
            rows.append(
                [
                    problem, arm, f"{len(runs)} of {grid.wanted(problem, arm)}", f"{len(written):,}",
                    show_share(valid / len(written) if written else None), show_share(first), show_share(last),
                    f"{sum(map(is_new, written)):,}",
                    f"{sum(total.written for total in totals) / len(runs):,.0f}" if runs else "–",
                    duration(sum(seconds) / len(seconds)) if seconds else "–",
                ]
            )  # fmt: skip
    return rows


def _failures(grid: Grid) -> dict[str, Any]:
    """Kinds of failure in percent of the replies, a row for each problem and arm."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    replies: Counter[tuple[str, str]] = Counter()
    for problem in grid.recipe.problems:
        for arm in grid.recipe.arms:
            written = [line for run in grid.of(problem, arm) for line in run.written]
            replies[problem, arm] = len(written)
            counts[problem, arm] = Counter(str(line["failure"]) for line in written if line.get("failure"))
    kinds = [kind for kind, _ in sum(counts.values(), Counter()).most_common(12)]
    rows = [
        [problem, arm, *(f"{100 * count[kind] / replies[problem, arm]:.1f}" for kind in kinds)]
        for (problem, arm), count in counts.items()
        if replies[problem, arm]
    ]
    return {"kinds": kinds, "rows": rows}


# runs


def _row(grid: Grid, index: int) -> list[str]:
    cell, run = grid.cells[index], grid.runs[index]
    word, trouble = grid.states[index].word, grid.states[index].trouble
    where = str(cell.folder.relative_to(grid.folder))
    state = f"{word}: {trouble}" if trouble else word
    if run is None:
        return [cell.problem, cell.arm, str(cell.seed), state, *["–"] * 7, where]
    total = ledger(run).total
    written, valid = len(run.written), sum(line["objective"] is not None for line in run.written)
    lowest = min((line["objective"] for line in run.samples if line["objective"] is not None), default=None)
    return [
        cell.problem, cell.arm, str(cell.seed), state, f"{len(run.samples):,}", f"{total.written:,}",
        duration(total.elapsed) if total.elapsed else "–", show_share(valid / written if written else None),
        str(sum(bool(step.get("taken")) for step in run.steps)), show_objective(lowest),
        show_objective(as_number(run.best.get("test"))), where,
    ]  # fmt: skip


def _detail(grid: Grid, index: int) -> dict[str, Any]:
    cell, run = grid.cells[index], grid.runs[index]
    line = best_line(run) or {}
    shown = sum(one is not None for one in grid.runs[:index]) < MOST_DETAILS
    return {
        "title": f"{cell.problem}, {cell.arm}, seed {cell.seed}",
        "notes": run.notes,
        "charts": [one.for_page(f"c{index}-") for one in small(run)] if shown else [],
        "facts": _facts(run),
        "description": str(line.get("description") or ""),
        "code": highlighted(run.best_code or str(line.get("code") or "")) if shown else "",
        "repeat": tables.repeating_command(run),
    }


def _facts(run: RunData) -> list[tuple[str, str]]:
    rows = dict(tables.headline(run))
    names = ("Chosen heuristic, train", "Chosen heuristic, val", "Chosen heuristic, test", "Best seed heuristic")
    names += ("Valid share, first third → last third", "New valid candidates of the model", "ES steps taken")
    return [(name, rows[name]) for name in names if name in rows]


def _versions(grid: Grid) -> list[list[str]]:
    """Package, and the versions that the runs were made with."""
    found: dict[str, Counter[str]] = {}
    for run in grid.runs:
        versions = run.document.get("versions") if run is not None else None
        for name, version in (versions if isinstance(versions, dict) else {}).items():
            found.setdefault(str(name), Counter())[plain(version)] += 1
    return [[name, ", ".join(counts)] for name, counts in found.items()]
