"""Charts as SVG: inline for a page, whose text colour the axes follow, or standing alone on white.

No text from a run goes into an inline chart: its legend is HTML beside it. matplotlib is imported inside the functions;
it is an extra (`report`). The inline SVG is stripped to what an HTML page needs: no prolog, no metadata, no namespaces,
text as text, and ids of its own, so that several charts can share a page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttc_esopt.errors import ConfigurationError

COLOURS = ("#2f7fd6", "#e0792b", "#2f9e62", "#c2497f", "#8567d1", "#8a7a33", "#2a9fa8", "#cc4b43")
GREY = "#8a94a0"
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.6), (7, 2, 1.2, 2), (3, 1.5), (9, 3))  # in line widths
MOST_DOTS = 3000  # in one cloud; more are thinned evenly, the outermost kept
SIZE = (5.3, 3.1)  # inches: as wide as the space of a chart on a phone, so that text keeps its size there
_INK = "#123456"  # stands for the page's text colour until the SVG is written


def _rc(ink: str, font: float) -> dict[str, Any]:
    return {
        "svg.fonttype": "none", "font.size": font, "axes.edgecolor": ink, "axes.labelcolor": ink, "text.color": ink,
        "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False, "axes.spines.right": False,
        "axes.linewidth": 0.8, "axes.grid": True, "grid.color": ink, "grid.alpha": 0.13, "grid.linewidth": 0.7,
        "axes.formatter.useoffset": False, "axes.axisbelow": True, "text.parse_math": False,
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"],
    }  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One line in a chart, and what belongs to it.

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
    boxes : sequence of (x, lowest, lower quartile, median, upper quartile, highest)
        Distributions.
    steps : bool
        Whether the value holds until the next x (best so far) instead of being joined by slopes.
    colour : str or None
        None: the chart's colour of its place.
    dash : int
        Index into `DASHES`.
    name : str
        For the legend of a chart that stands alone.
    """

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: Sequence[tuple[float, float]] = ()
    hollow: Sequence[tuple[float, float]] = ()
    boxes: Sequence[tuple[float, float, float, float, float, float]] = ()
    steps: bool = False
    colour: str | None = None
    dash: int = 0
    name: str = ""

    def __bool__(self) -> bool:
        return bool(len(self.x) or len(self.dots) or len(self.boxes))


@dataclass(frozen=True)
class Layer:
    """Rectangles of one colour: (left, right, bottom, top) each."""

    rectangles: Sequence[tuple[float, float, float, float]]
    colour: str


@dataclass(frozen=True)
class Key:
    """An entry of a legend; `dash` None: an area instead of a line."""

    label: str
    colour: str
    dash: int | None = 0


@dataclass(frozen=True)
class Chart:
    """What to draw; `name` makes the ids of its SVG unique on the page."""

    name: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = ()
    layers: Sequence[Layer] = ()
    levels: Sequence[float] = ()  # dashed horizontal lines
    y_limits: tuple[float | None, float | None] = (None, None)
    percent: bool = False
    markers: bool = False
    log_y: bool = False
    size: tuple[float, float] = SIZE

    def __bool__(self) -> bool:
        return any(self.curves) or any(layer.rectangles for layer in self.layers)


def require_matplotlib() -> Any:
    """The matplotlib package. Raises ConfigurationError with the command that installs it."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("A report needs matplotlib: pip install 'ttc-esopt[report]'.") from None
    return matplotlib


def dash_array(dash: int, width: float = 1.8) -> str:
    """The SVG `stroke-dasharray` of a line style; `none` for a solid line."""
    return " ".join(f"{part * width:g}" for part in DASHES[dash % len(DASHES)]) or "none"


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element for an HTML page."""
    return _inline(_svg(chart, _INK, legend=False, title=""), chart.name)


def standalone(chart: Chart, title: str = "") -> str:
    """The chart as an SVG file: white, black ink, with a legend."""
    return _shorter(_svg(chart, "#000000", legend=True, title=title))


def _svg(chart: Chart, ink: str, legend: bool, title: str) -> str:
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure  # no pyplot: no global state, no display
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    with matplotlib.rc_context({**_rc(ink, 10), "svg.hashsalt": chart.name}):
        figure = Figure(figsize=chart.size, facecolor="white")
        axes = figure.subplots()
        for layer in chart.layers:
            _draw_layer(axes, layer)
        for index, curve in enumerate(chart.curves):
            _draw_curve(axes, curve, curve.colour or COLOURS[index % len(COLOURS)], chart.markers)
        for level in chart.levels:
            axes.axhline(level, color=ink, alpha=0.65, linewidth=1, linestyle=(0, (5, 4)))
        axes.autoscale_view()
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_ylim(*chart.y_limits)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if chart.log_y:
            axes.set_yscale("log")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6))
        if chart.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if title:
            axes.set_title(title, fontsize=10)
        if legend and any(curve.name for curve in chart.curves):
            axes.legend(frameon=False, fontsize=9, handlelength=3.2)
        _place(figure, axes, title)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=not legend, metadata={"Date": None})
    return buffer.getvalue()


def _place(figure: Any, axes: Any, title: str) -> None:
    """Margins that hold the labels; a layout engine would draw everything twice."""
    labels = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks())
    widest = max((len(label) for label in labels if "$" not in label), default=4)
    width, height = (72 * inches for inches in figure.get_size_inches())
    left = 27 + 6.4 * widest if axes.get_yscale() != "log" else 62
    figure.subplots_adjust(left / width, 38 / height, 1 - 12 / width, 1 - (26 if title else 9) / height)


def _draw_curve(axes: Any, curve: Curve, colour: str, markers: bool) -> None:
    if len(curve.low):
        step = "post" if curve.steps else None
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0, step=step)
    if len(curve.dots):
        _strokes(axes, [[dot, dot] for dot in _thinned(curve.dots)], colour, 3.0, 0.4)
    if len(curve.boxes):
        _draw_boxes(axes, curve.boxes, colour)
    if len(curve.x):
        axes.plot(
            curve.x, curve.y, color=colour, linewidth=1.8, drawstyle="steps-post" if curve.steps else "default",
            marker="o" if (markers and len(curve.x) <= 60) or len(curve.x) == 1 else None, markersize=4,
            linestyle=(0, DASHES[curve.dash % len(DASHES)]) if curve.dash % len(DASHES) else "-",
            label=curve.name or None,
        )  # fmt: skip
    if len(curve.hollow):
        axes.scatter(*zip(*curve.hollow, strict=True), s=95, facecolors="none", edgecolors=colour, linewidths=1.2)


def _draw_boxes(axes: Any, boxes: Sequence[tuple], colour: str) -> None:
    """Whiskers from lowest to highest, a bar between the quartiles, a tick at the median."""
    wide = max(1.5, min(9.0, 220 / len(boxes)))
    _strokes(axes, [[(x, low), (x, high)] for x, low, _, _, _, high in boxes], colour, 0.9, 0.8, "butt")
    _strokes(axes, [[(x, lower), (x, upper)] for x, _, lower, _, upper, _ in boxes], colour, wide, 0.3, "butt")
    gaps = [b[0] - a[0] for a, b in zip(boxes, boxes[1:], strict=False) if b[0] > a[0]]
    half = 0.3 * min(gaps, default=1.0)
    medians = [[(x - half, middle), (x + half, middle)] for x, _, _, middle, _, _ in boxes]
    _strokes(axes, medians, colour, 2.0, 1, "butt")


def _draw_layer(axes: Any, layer: Layer) -> None:
    from matplotlib.patches import PathPatch

    corners = [[(a, b), (c, b), (c, d), (a, d), (a, b)] for a, c, b, d in layer.rectangles if d > b]
    if corners:
        axes.add_artist(PathPatch(_compound(corners), facecolor=layer.colour, edgecolor="none", linewidth=0))
        axes.update_datalim([point for corner in corners for point in corner])


def _strokes(axes: Any, lines: Sequence, colour: str, width: float, alpha: float, cap: str = "round") -> None:
    """Many separate lines as one element of the SVG; a line between equal points is a dot."""
    from matplotlib.patches import PathPatch

    patch = PathPatch(
        _compound(lines), fill=False, edgecolor=colour, linewidth=width, alpha=alpha, capstyle=cap, snap=False
    )
    axes.add_artist(patch)
    axes.update_datalim([point for line in lines for point in line])


def _compound(lines: Sequence) -> Any:
    import numpy as np
    from matplotlib.path import Path

    codes = [code for line in lines for code in (Path.MOVETO, *[Path.LINETO] * (len(line) - 1))]
    path = Path(np.asarray([point for line in lines for point in line], float), codes)
    path.should_simplify = False  # it would take the dots for nothing
    return path


def _thinned(dots: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most `MOST_DOTS`, evenly, with the lowest and the highest."""
    if len(dots) <= MOST_DOTS:
        return dots
    kept = set(range(0, len(dots), -(-len(dots) // MOST_DOTS)))
    kept |= {pick(range(len(dots)), key=lambda i: dots[i][1]) for pick in (min, max)}
    return [dots[i] for i in sorted(kept)]


def _inline(svg: str, name: str) -> str:
    svg = _shorter(svg[svg.index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', svg, count=1
    )
    return svg.replace(_INK, "currentColor").strip()


def _shorter(svg: str) -> str:
    """Coordinates to a hundredth of a point."""
    numbers = re.compile(r"-?\d+\.\d{3,}")
    return re.sub(
        r'(?<=[\s])(?:d|x|y|points)="[^"]*"',
        lambda found: re.sub(r"\s*\n\s*", " ", numbers.sub(lambda n: f"{float(n[0]):.2f}", found[0])),
        svg,
    )
