"""Charts about runs: the course of the search over all of them, and what each did on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from ttc_esopt.charts import COLOURS, DASHES, GREY, Chart, Curve, Key, Layer, dash_array, draw
from ttc_esopt.report.anytime import AXES, spent, trajectory
from ttc_esopt.report.diagnostics import Update, updates
from ttc_esopt.rundata import RunData, is_new, references, show_objective, show_share, thirds

UNITS = {"candidates": "candidates", "tokens": "tokens written", "seconds": "seconds"}
OUTCOMES = (("invalid", GREY), ("valid, known objective", "#e0a72b"), ("valid, new objective", "#2f9e62"))
MOST_BARS = 40  # of failures over time
MOST_KINDS = 6  # of failures with a colour of their own


@dataclass
class Drawing:
    """A chart with title and caption; the caption is also its text alternative."""

    title: str
    chart: Chart
    caption: str
    legend: Sequence[Key] = field(default_factory=tuple)

    def for_page(self, prefix: str = "") -> dict[str, Any]:
        """What the template needs; `prefix` makes the chart's name unique on a page of many runs."""
        chart = replace(self.chart, name=prefix + self.chart.name)
        return {
            "title": self.title, "name": chart.name, "svg": draw(chart), "caption": self.caption,
            "legend": legend(self.legend),
        }  # fmt: skip


def legend(keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Entries of a legend in HTML."""
    return [
        {"label": key.label, "colour": key.colour, "dash": None if key.dash is None else dash_array(key.dash, 2.5)}
        for key in keys
    ]


def run_keys(runs: Sequence[RunData]) -> list[Key]:
    """A colour and a line style for each run, so that they can be told apart without colours too."""
    return [Key(run.label, COLOURS[i % len(COLOURS)], i % len(DASHES)) for i, run in enumerate(runs)]


def course(runs: Sequence[RunData]) -> list[Drawing]:
    """Charts in which runs are overlaid; those without data are left out."""
    dashes = [key.dash for key in run_keys(runs)]
    single = len(runs) == 1
    steps = [updates(run.steps) for run in runs]
    found = [best_chart(runs, axis, single) for axis in AXES]
    found += [valid_chart(runs, single), *_radius_charts(runs, steps, single)]
    found += [_reward_chart(runs, steps, single), *_update_charts(runs, steps, single)]
    for one in found:
        curves = list(one.chart.curves)
        curves[: len(runs)] = [replace(curve, dash=dash) for curve, dash in zip(curves, dashes, strict=False)]
        one.chart = replace(one.chart, curves=curves)
    return [one for one in found if one.chart]


def best_chart(runs: Sequence[RunData], axis: str, single: bool) -> Drawing:
    """Best objective so far against one axis."""
    curves, words = [], []
    for run in runs:
        x, y = trajectory(run, axis)
        dots = []
        if single and len(x):
            pairs = zip(spent(run, axis), run.samples, strict=True)
            dots = [(at, line["objective"]) for at, line in pairs if line["objective"] is not None]
        curves.append(Curve(x, y, dots=dots, steps=True))
        if len(y):
            ends = f"from {show_objective(y[0])} to {show_objective(y[-1])}"
            words.append(f"{_of(run, single)}{ends} over {x[-1]:,.0f} {UNITS[axis]}")
    levels = sorted({value for run in runs for value in references(run).values()})
    drawn = [value for curve in curves for value in (*curve.y[:1], *curve.y[-1:])] + levels
    low, high = (min(drawn), max(drawn)) if drawn else (0.0, 1.0)
    pad = 0.08 * (high - low) or 0.02 * abs(high) or 0.1
    names = sorted({f"{name} {show_objective(value)}" for run in runs for name, value in references(run).items()})
    caption = f"Best objective so far, lower is better: {'; '.join(words)}."
    caption += f" Dashed level: {', '.join(names)}." if names else ""
    caption += " Dots: valid candidates within the range shown." if single else ""
    limits = (low - pad, high + 4 * pad if single else high + pad)
    title = "Best objective" + ("" if axis == "candidates" else f" against {axis}")
    chart = Chart(f"best-{axis}", UNITS[axis], "objective", curves, levels=levels, y_limits=limits)
    return Drawing(title, chart, caption)


def valid_chart(runs: Sequence[RunData], single: bool) -> Drawing:
    """Moving share of valid replies."""
    window = share_window(max((len(run.written) for run in runs), default=0))
    curves, words = [], []
    for run in runs:
        flags = [line["objective"] is not None for line in run.written]
        y = moving_share(flags, window)
        start = min(window, len(flags)) - 1 if flags else 0
        curves.append(Curve([line["order"] for line in run.written][start:], y[start:]))
        first, last = thirds(run.written)
        if first is not None:
            words.append(f"{_of(run, single)}{show_share(first)} in the first third, {show_share(last)} in the last")
    caption = (
        f"Share of valid replies among the last {window}: {'; '.join(words) or 'too few replies to compare thirds'}."
    )
    chart = Chart("valid", "candidates", "valid share", curves, y_limits=(-0.03, 1.03), percent=True)
    return Drawing("Valid share", chart, caption)


def share_window(replies: int) -> int:
    """Replies over which a moving share is taken, for a run of so many."""
    return max(5, replies // 8)


def moving_share(flags: Sequence[bool], window: int) -> list[float]:
    """Share of true values among the last `window`, or fewer at the beginning."""
    total = np.concatenate([[0], np.cumsum(flags)])
    return [(total[i + 1] - total[max(0, i + 1 - window)]) / min(window, i + 1) for i in range(len(flags))]


def _radius_charts(runs: Sequence[RunData], steps: Sequence[list[Update]], single: bool) -> list[Drawing]:
    """Sigma and alpha: in one chart for one run, apart for several."""
    sigmas, alphas, words = [], [], []
    for run, found in zip(runs, steps, strict=True):
        points = [one for one in found if one.sigma is not None]
        x, y = [one.t for one in points], [one.sigma for one in points]
        sigmas.append(Curve(x, y, hollow=[(one.t, one.sigma) for one in points if not one.taken]))
        pairs = [(one.t, one.alpha) for one in found if one.alpha is not None]
        alphas.append(Curve([t for t, _ in pairs], [alpha for _, alpha in pairs]))
        if y:
            words.append(f"{_of(run, single)}from {y[0]:.3g} to {y[-1]:.3g} in {len(y)} steps")
    caption = f"Perturbation radius at each step: {'; '.join(words)}. Rings: steps that were not taken."
    if single:
        both = [*sigmas, *(replace(curve, colour=COLOURS[1], dash=2) for curve in alphas)]
        chart = Chart("sigma", "step", "sigma, alpha", both, markers=True)
        return [Drawing("Sigma and alpha", chart, f"{caption} Dotted: alpha, the size of the step.")]
    return [
        Drawing("Sigma", Chart("sigma", "step", "sigma", sigmas, markers=True), caption),
        Drawing("Alpha", Chart("alpha", "step", "alpha", alphas, markers=True), "Step size alpha of each step."),
    ]


def _reward_chart(runs: Sequence[RunData], steps: Sequence[list[Update]], single: bool) -> Drawing:
    curves, words = [], []
    for run, found in zip(runs, steps, strict=True):
        rows = [(one.t, one.rewards) for one in found if one.rewards]
        quartiles = [np.quantile(rewards, (0, 0.25, 0.5, 0.75, 1)).tolist() for _, rewards in rows]
        means = [sum(rewards) / len(rewards) for _, rewards in rows]
        x = [at for at, _ in rows]
        if single:
            boxes = [(at, *five) for at, five in zip(x, quartiles, strict=True)]
            dots = [
                (at + 0.16 * ((7 * i) % 5 - 2) / 2, reward) for at, rewards in rows for i, reward in enumerate(rewards)
            ]
            curves.append(Curve(x, means, boxes=boxes, dots=dots))
        else:
            curves.append(Curve(x, means, [five[1] for five in quartiles], [five[3] for five in quartiles]))
        if rows:
            words.append(f"{_of(run, single)}mean {means[0]:.3g} at the first step, {means[-1]:.3g} at the last")
    how = (
        "line the mean, whiskers from lowest to highest, bar between the quartiles, tick the median, dots every reward"
        if single
        else "line the mean, band between the quartiles"
    )
    chart = Chart("rewards", "step", "reward", curves)
    return Drawing("Reward spread", chart, f"Rewards of each step: {how}; {'; '.join(words)}.")


def _update_charts(runs: Sequence[RunData], steps: Sequence[list[Update]], single: bool) -> list[Drawing]:
    sizes, distances, words = [], [], []
    for run, found in zip(runs, steps, strict=True):
        moved = [one for one in found if one.taken]
        sizes.append(Curve([one.t for one in moved if one.sigma], [one.ratio for one in moved if one.sigma]))
        if moved:
            distances.append(Curve([one.t for one in found], [one.distance for one in found], steps=True))
            words.append(f"{_of(run, single)}{found[-1].distance:.3g}")
        else:
            distances.append(Curve([], []))
    expected = "Expected from the recorded seeds and weights z, not measured on the model."
    wide = _wide([y for curve in sizes for y in curve.y])
    from_zero = (0.0, None)  # else a constant value would be drawn as noise
    charts = (
        Chart(
            "update-size", "step", "RMS of the update / sigma", sizes, markers=True, log_y=wide,
            y_limits=(None, None) if wide else from_zero,
        ),
        Chart("distance", "step", "RMS distance", distances, y_limits=from_zero),
    )  # fmt: skip
    return [
        Drawing(
            "Size of the updates", charts[0],
            f"Root mean square of each taken update in units of that step's sigma. {expected}",
        ),
        Drawing(
            "Distance from the start", charts[1],
            "Root mean square distance of the weights from those that the run began with, after each step; at the end "
            f"{'; '.join(words)}. {expected}",
        ),
    ]  # fmt: skip


def _wide(values: Sequence[float]) -> bool:
    """Whether a linear axis would press most of the values flat (the last sigma of a schedule is close to 0)."""
    return bool(values) and min(values) > 0 and max(values) > 50 * min(values)


# one run on its own


def own(run: RunData) -> list[Drawing]:
    """What became of the batches of one run, and how candidates failed over time."""
    return [one for one in (outcomes_chart(run), failures_chart(run)) if one.chart]


def outcomes_chart(run: RunData) -> Drawing:
    """Share of invalid, known and new candidates in each call of an operator."""
    layers: list[list[tuple[float, float, float, float]]] = [[], [], []]
    for _, group in groupby(run.written, key=lambda line: (line.get("generation"), str(line.get("operator")))):
        lines = list(group)
        new = sum(is_new(line) for line in lines)
        valid = sum(line["objective"] is not None for line in lines)
        _stack(layers, lines, (len(lines) - valid, valid - new, new))
    total = len(run.written) or 1
    valid, new = sum(line["objective"] is not None for line in run.written), sum(is_new(line) for line in run.written)
    shares = [f"{100 * count / total:.0f} % {name}" for count, (name, _) in zip(
        (total - valid, valid - new, new), OUTCOMES, strict=True)]  # fmt: skip
    chart = Chart(
        "outcomes", "candidates", "share of the batch", y_limits=(0, 1), percent=True,
        layers=[Layer(rectangles, colour) for rectangles, (_, colour) in zip(layers, OUTCOMES, strict=True)],
    )  # fmt: skip
    caption = f"What became of each batch, one bar per call of an operator: in all {', '.join(shares)}."
    return Drawing("Outcomes by batch", chart, caption, [Key(name, colour, None) for name, colour in OUTCOMES])


def failures_chart(run: RunData) -> Drawing:
    """Kinds of failure over time, as shares of the replies."""
    counts = Counter(str(line["failure"]) for line in run.written if line.get("failure"))
    named = [kind for kind, _ in counts.most_common(MOST_KINDS)]
    keys = [Key(kind, COLOURS[(i + 1) % len(COLOURS)], None) for i, kind in enumerate(named)]
    if len(counts) > len(named):
        keys.append(Key("other kinds", GREY, None))
    layers: list[list[tuple[float, float, float, float]]] = [[] for _ in keys]
    size = max(1, -(-len(run.written) // min(MOST_BARS, max(1, len(run.written) // 5))))
    for at in range(0, len(run.written) if counts else 0, size):
        lines = run.written[at : at + size]
        kinds = Counter(str(line["failure"]) for line in lines if line.get("failure"))
        heights = [kinds[kind] for kind in named]
        heights += [sum(kinds.values()) - sum(heights)] * (len(keys) > len(named))
        _stack(layers, lines, heights)
    chart = Chart(
        "failures", "candidates", "share of the replies", y_limits=(0, 1), percent=True,
        layers=[Layer(rectangles, key.colour) for rectangles, key in zip(layers, keys, strict=True)],
    )  # fmt: skip
    caption = f"Kinds of failure among each {size} replies, stacked; what is left blank is valid."
    return Drawing("Failures over time", chart, caption, keys)


def _stack(layers: list[list], lines: Sequence[dict], heights: Sequence[int]) -> None:
    left, right, bottom = lines[0]["order"] - 0.5, lines[-1]["order"] + 0.5, 0.0
    gap = 0.04 * (right - left)
    for layer, height in zip(layers, heights, strict=True):
        top = bottom + height / len(lines)
        if height:
            layer.append((left + gap, right - gap, bottom, top))
        bottom = top


def small(run: RunData) -> list[Drawing]:
    """Two small charts about a run among many."""
    size = (5.3, 2.4)
    best = best_chart([run], "candidates", True)
    rewards = _reward_chart([run], [updates(run.steps)], True)
    found = [best, rewards if rewards.chart else valid_chart([run], True)]
    return [replace(one, chart=replace(one.chart, size=size)) for one in found if one.chart]


def _of(run: RunData, single: bool) -> str:
    return "" if single else f"{run.label}: "
