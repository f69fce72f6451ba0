"""Charts of a report as inline SVG: no text from a run goes into them, axes follow the page's text colour.

matplotlib is imported inside the functions; it is an extra (`report`). The SVG is stripped to what an HTML page needs:
no prolog, no metadata, no namespaces, text as text, and ids of its own, so that several charts can share a page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.errors import ConfigurationError

COLOURS = ("#2f7fd6", "#e0792b", "#2f9e62", "#c2497f", "#8567d1", "#8a7a33", "#2a9fa8", "#cc4b43")
_INK = "#123456"  # stands for the page's text colour until the SVG is written
_RC = {
    "svg.fonttype": "none", "font.size": 10, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "text.color": _INK,
    "xtick.color": _INK, "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "axes.grid": True, "grid.color": _INK, "grid.alpha": 0.13, "grid.linewidth": 0.7,
    "axes.formatter.useoffset": False, "axes.axisbelow": True,
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One run's line in a chart.

    Attributes
    ----------
    x, y : sequences of float
        The line.
    low, high : sequences of float
        A band around it, as long as `x`, or empty.
    dots : sequence of (x, y)
        Single values.
    hollow : sequence of (x, y)
        Single values drawn as rings (steps that were not taken).
    steps : bool
        Whether the value holds until the next x (best so far) instead of being joined by slopes.
    """

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: Sequence[tuple[float, float]] = ()
    hollow: Sequence[tuple[float, float]] = ()
    steps: bool = False


@dataclass(frozen=True)
class Chart:
    """What to draw; `name` makes the ids of its SVG unique on the page."""

    name: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = ()
    levels: Sequence[float] = ()  # dashed horizontal lines
    y_limits: tuple[float | None, float | None] = (None, None)
    percent: bool = False
    markers: bool = False
    colours: Sequence[str] = field(default=COLOURS)


def require_matplotlib() -> Any:
    """The matplotlib package. Raises ConfigurationError with the command that installs it."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("A report needs matplotlib: pip install 'ttc-esopt[report]'.") from None
    return matplotlib


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element for an HTML page."""
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure  # no pyplot: no global state, no display
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    with matplotlib.rc_context({**_RC, "svg.hashsalt": chart.name}):
        figure = Figure(figsize=(5.3, 3.1), layout="constrained")
        axes = figure.subplots()
        for curve, colour in zip(chart.curves, _cycle(chart.colours, len(chart.curves)), strict=True):
            _draw_curve(axes, curve, colour, chart.markers)
        for level in chart.levels:
            axes.axhline(level, color=_INK, alpha=0.65, linewidth=1, linestyle=(0, (5, 4)))
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_ylim(*chart.y_limits)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if chart.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), chart.name)


def _draw_curve(axes: Any, curve: Curve, colour: str, markers: bool) -> None:
    if len(curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    if len(curve.dots):
        axes.scatter(*zip(*curve.dots, strict=True), s=9, color=colour, alpha=0.4, linewidths=0)
    axes.plot(
        curve.x, curve.y, color=colour, linewidth=1.8, drawstyle="steps-post" if curve.steps else "default",
        marker="o" if markers or len(curve.x) == 1 else None, markersize=4,
    )  # fmt: skip
    if len(curve.hollow):
        axes.scatter(*zip(*curve.hollow, strict=True), s=95, facecolors="none", edgecolors=colour, linewidths=1.2)


def _cycle(colours: Sequence[str], count: int) -> list[str]:
    return [colours[index % len(colours)] for index in range(count)]


def _inline(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', svg, count=1
    )
    return svg.replace(_INK, "currentColor").strip()
