"""The page and the chart of a probe. No text that a model wrote goes into either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ttc_esopt.charts import COLOURS, GREY, Chart, Curve, Key, standalone
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.probe.display import advice_rows, lines, rows
from ttc_esopt.probe.findings import LEAST_VALID, Findings
from ttc_esopt.probe.plan import Plan
from ttc_esopt.report.page import code_style, template
from ttc_esopt.report.page import write_page as write_file
from ttc_esopt.report.run_charts import Drawing
from ttc_esopt.statistics import Anova


def write_page(plan: Plan, found: Findings, out: Path) -> None:
    """Write probe.html and probe.svg into the folder."""
    drawings = _drawings(found)
    write_atomically(out / "probe.svg", standalone(drawings[0].chart, drawings[0].title))  # the one that decides
    s = plan.settings
    page = template("probe.html.j2").render(
        title="probe",
        name=f"Probe of {s.model} on {s.problem}",
        about=f"One prompt of operator {plan.operator}; at each sigma {s.directions} directions x "
        f"{s.replies_per_direction} replies; noise {s.noise}, rewards {s.reward}, seed {s.seed}.",
        verdict=found.verdict,
        heads=rows(found)[0],
        rows=rows(found)[1:],
        advice=advice_rows(found),
        lines=lines(found)[:-1],
        charts=[one.for_page() for one in drawings],
        code_style=code_style(),
    )
    write_file(page, out / "probe.html")


def _drawings(found: Findings) -> list[Drawing]:
    unit, label = _unit(found.rungs[-1].sigma)
    x = [rung.sigma / unit for rung in found.rungs]
    valid, reward, grey = COLOURS[0], COLOURS[1], GREY
    shown = [
        _curve(x, [rung.validity for rung in found.rungs], valid, "valid or not", 0),
        _curve(x, [rung.reward for rung in found.rungs], reward, "reward", 1),
    ]
    icc = Chart(
        "icc", label, "intraclass correlation", curves=[curve for curve in shown if curve],
        levels=[found.detectable], y_limits=(0, None), markers=True,
    )  # fmt: skip
    shares = Chart(
        "valid", label, "valid replies",
        curves=[
            Curve(
                x, [rung.valid for rung in found.rungs], [rung.valid_low for rung in found.rungs],
                [rung.valid_high for rung in found.rungs], colour=valid,
            )
        ],
        levels=[LEAST_VALID * found.rungs[0].valid], y_limits=(0, 1), percent=True, markers=True,
    )  # fmt: skip
    between = Chart(
        "between", label, "variance of mean rewards",
        curves=[
            Curve(x, [rung.reward.variance_of_means for rung in found.rungs], colour=reward),
            Curve(x, [rung.reward.chance_variance for rung in found.rungs], colour=grey, dash=1),
        ],
        y_limits=(0, None), markers=True,
    )  # fmt: skip
    drawings = [
        Drawing(
            "Do directions differ?", icc,
            "Intraclass correlation with its 95 % interval: share of a reply's variance that belongs to its "
            f"direction. Dashed: {found.detectable:.2f}, which so many replies find in four of five probes.",
            [Key("valid or not", valid, 0), Key("reward", reward, 1)],
        ),
        Drawing(
            "Between directions and by chance", between,
            "Variance of the directions' mean rewards, and what replies of one direction make of it by chance.",
            [Key("between directions", reward, 0), Key("by chance", grey, 1)],
        ),
        Drawing(
            "Valid replies", shares,
            "Share of valid replies with its 90 % interval; dashed: half of the share at sigma 0.",
        ),
    ]  # fmt: skip
    far = [(place, rung.divergence) for place, rung in zip(x, found.rungs, strict=True) if rung.divergence is not None]
    if far:
        most = [rung.divergence_most for rung in found.rungs if rung.divergence is not None]
        places, values = zip(*far, strict=True)
        chart = Chart(
            "kl", label, "KL, nats per token", curves=[Curve(places, values, values, most, colour=valid)],
            levels=[found.max_kl], y_limits=(0, None), markers=True,
        )  # fmt: skip
        drawings.append(
            Drawing(
                "Distance to the unperturbed model", chart,
                f"KL per token: mean of the directions, and up to the largest. Dashed: {found.max_kl:g}, the cap.",
            )  # fmt: skip
        )
    return [one for one in drawings if one.chart]  # without a difference between replies there is no correlation


def _curve(x: Sequence[float], found: Sequence[Anova], colour: str, name: str, dash: int) -> Curve:
    kept = [(place, one) for place, one in zip(x, found, strict=True) if one.icc is not None]
    return Curve(
        [place for place, _ in kept], [one.icc for _, one in kept], [one.icc_low for _, one in kept],
        [one.icc_high for _, one in kept], colour=colour, dash=dash, name=name,
    )  # fmt: skip


def _unit(largest: float) -> tuple[float, str]:
    """A power of ten of which the largest sigma holds 10 to 100, so that ticks are whole numbers."""
    exponent = math.floor(math.log10(largest)) - 1
    return 10.0**exponent, f"sigma, in 1e{exponent}"


