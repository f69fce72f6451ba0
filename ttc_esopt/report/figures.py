"""Anytime curves of a study: for its page, and as files for a paper (`figures/*.svg`, `figures/anytime.csv`)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from ttc_esopt.charts import Chart, Curve, require_matplotlib, standalone
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.report.anytime import AXES, Anytime, area, band, common, trajectory
from ttc_esopt.report.grid import Grid, read_grid
from ttc_esopt.report.run_charts import UNITS, Drawing
from ttc_esopt.rundata import RunData, show_objective

HEAD = ("problem", "axis", "arm", "runs", "band", "x", "mean", "low", "high")


@dataclass(frozen=True)
class ArmCurve:
    """The band of one arm on one problem against one axis; `left_out` runs have no curve there."""

    arm: str
    curve: Anytime
    left_out: int


def with_curve(runs: Iterable[RunData], axis: str) -> list[RunData]:
    """Runs that have a valid candidate and, for seconds, clock readings."""
    return [run for run in runs if len(trajectory(run, axis)[0])]


def arm_curves(grid: Grid, problem: str, axis: str) -> list[ArmCurve]:
    """One band for each arm that has a curve."""
    found = []
    for arm in grid.recipe.arms:
        runs = with_curve(grid.of(problem, arm), axis)
        if runs:
            found.append(ArmCurve(arm, band(runs, axis), grid.wanted(problem, arm) - len(runs)))
    return [one for one in found if len(one.curve.x)]


def anytime_drawing(grid: Grid, problem: str, axis: str) -> Drawing:
    """The anytime curves of all arms on one problem against one axis."""
    keys = grid.keys
    found = arm_curves(grid, problem, axis)
    curves = [
        Curve(
            one.curve.x, one.curve.mean, one.curve.low, one.curve.high, steps=True, colour=keys[one.arm].colour,
            dash=keys[one.arm].dash or 0, name=f"{one.arm} (n = {one.curve.n})",
        )
        for one in found
    ]  # fmt: skip
    ends = [f"{one.arm} {show_objective(float(one.curve.mean[-1]))} (n = {one.curve.n})" for one in found]
    kinds = sorted({one.curve.kind for one in found})
    words = {"range": "from the lowest to the highest run", "95 %": "Student's 95 % interval of the mean"}
    caption = f"Mean of the best objective so far, lower is better; at the end of each curve: {', '.join(ends)}. "
    caption += f"Band: {' or '.join(words[kind] for kind in kinds)}. A curve ends where its shortest run does."
    left_out = [f"{one.left_out} of {one.arm}" for one in found if one.left_out]
    caption += f" Runs without a curve so far: {', '.join(left_out)}." if left_out else ""
    chart = Chart(f"{problem}-{axis}", UNITS[axis], "best objective", curves, y_limits=_limits(found))
    return Drawing(f"{problem}: against {axis}", chart, caption, [keys[one.arm] for one in found])


def _limits(found: Sequence[ArmCurve]) -> tuple[float | None, float | None]:
    """Cut off a first value that would press everything else flat."""
    if not found:
        return None, None
    low = min(float(one.curve.low.min()) for one in found)
    top = max(float(one.curve.high.max()) for one in found)
    soon = max(float(one.curve.high[len(one.curve.x) // 10]) for one in found)
    pad = 0.06 * (soon - low) or 0.02 * abs(low) or 0.1
    return low - pad, (soon + 6 * pad if top > soon + 20 * pad else top + pad)


def area_rows(grid: Grid) -> list[list[str]]:
    """Problem, axis, stretch, and mean area (with sd and n) of each arm over that stretch."""
    rows = []
    for problem in grid.recipe.problems:
        for axis in AXES:
            sides = {arm: with_curve(grid.of(problem, arm), axis) for arm in grid.recipe.arms}
            stretch = common([run for runs in sides.values() for run in runs], axis)
            if stretch is None:
                continue
            cells = []
            for runs in sides.values():
                values = [value for run in runs if (value := area(run, axis, *stretch)) is not None]
                spread = f" ± {stdev(values):.3g}" if len(values) > 1 else ""
                cells.append(f"{show_objective(fmean(values))}{spread} ({len(values)})" if values else "–")
            rows.append([problem, axis, f"{stretch[0]:,.0f} to {stretch[1]:,.0f}", *cells])
    return rows


def write_figures(study_dir: Path | str) -> list[Path]:
    """Write `figures/*.svg` and `figures/anytime.csv` into a study's folder and return their paths.

    Parameters
    ----------
    study_dir : the study's folder, with study.toml; runs that have not begun are left out

    Raises
    ------
    ConfigurationError
        matplotlib is not installed, or the folder holds no study.
    DataError
        A file cannot be written.
    """
    require_matplotlib()
    grid = read_grid(Path(study_dir))
    folder = grid.folder / "figures"
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEAD)
    paths = []
    for problem in grid.recipe.problems:
        for axis in AXES:
            for one in arm_curves(grid, problem, axis):
                of = one.curve
                for point in zip(of.x, of.mean, of.low, of.high, strict=True):
                    table.writerow([problem, axis, one.arm, of.n, of.kind, *(f"{value:.10g}" for value in point)])
            drawing = anytime_drawing(grid, problem, axis)
            if drawing.chart:
                chart = replace(drawing.chart, size=(5.0, 3.2))
                paths.append(folder / f"{problem}-{axis}.svg")
                write_atomically(paths[-1], standalone(chart, problem))
    paths.append(folder / "anytime.csv")
    write_atomically(paths[-1], text.getvalue())
    return paths
