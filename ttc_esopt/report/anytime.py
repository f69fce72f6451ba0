"""Anytime curves: the best objective so far against candidates, tokens or seconds, of one run or as a band over runs.

A curve is a step function: a value holds until the next x. It begins with the first valid candidate and ends with the
last candidate, found or not. Candidates of one call (an operator in a generation) are all there at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from ttc_esopt.report.costs import PHASES, seconds_of
from ttc_esopt.rundata import RunData, as_number

AXES = ("candidates", "tokens", "seconds")
INTERVAL_FROM = 5  # runs from which an interval of the mean says more than the range


@dataclass(frozen=True)
class Anytime:
    """The mean of several runs and a band around it.

    Attributes
    ----------
    x : array of shape (m,)
        Candidates, written tokens or seconds; ends where the shortest run does. Empty where no x is shared.
    mean, low, high : arrays of shape (m,)
        Best objective so far.
    n : int
        Runs.
    kind : str
        `range` (lowest to highest) below five runs, else `95 %`: Student's interval of the mean. (A bootstrap of so
        few runs covers less than it says: 84 % with five, 89 % with ten, of normal values.)
    """

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int
    kind: str


def spent(run: RunData, axis: str) -> NDArray[np.float64] | None:
    """What had been spent when each candidate was there, one number a line of samples.jsonl.

    Parameters
    ----------
    axis : one of `AXES`; tokens are those written, seconds those of timings.jsonl (generating, evaluating, stepping)

    Returns
    -------
    array that never falls, or None where the run has no clock readings
    """
    _check(axis)
    if axis == "candidates":
        return np.arange(1.0, len(run.samples) + 1)
    if axis == "tokens":
        return np.cumsum([max(0.0, as_number(line.get("tokens")) or 0.0) for line in run.samples], dtype=float)
    at: dict[object, float] = {}
    total = 0.0
    for line in run.timings:
        total += sum(seconds_of(line, phase) for phase in PHASES)
        if isinstance(line.get("order"), int):
            at[line["order"]] = total
    if not total:
        return None
    found = np.zeros(len(run.samples))
    before = 0.0
    for place, line in enumerate(run.samples):  # a candidate without a reading was there with the one before it
        before = found[place] = max(before, at.get(line["order"], before))
    calls = [(line.get("generation"), line.get("operator")) for line in run.samples]
    for place in range(len(calls) - 2, -1, -1):
        if calls[place] == calls[place + 1]:
            found[place] = found[place + 1]
    return found


def trajectory(run: RunData, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Step function of the best objective so far.

    Parameters
    ----------
    axis : one of `AXES`

    Returns
    -------
    x, best : arrays of equal length; x rises, best falls but for its last value, which repeats the one before at the
        run's end. Both are empty where no candidate is valid or the run has no clock readings.

    Raises
    ------
    ValueError
        If there is no such axis.
    """
    x = spent(run, axis)
    places, values = [], []
    for place, line in enumerate(run.samples if x is not None else []):
        if line["objective"] is not None and (not values or line["objective"] < values[-1]):
            if values and x[place] == x[places[-1]]:
                places.pop(), values.pop()
            places.append(place)
            values.append(line["objective"])
    if not values:
        return np.empty(0), np.empty(0)
    if x[-1] > x[places[-1]]:
        places.append(len(x) - 1)
        values.append(values[-1])
    return x[places], np.asarray(values, dtype=float)


def common(runs: Sequence[RunData], axis: str) -> tuple[float, float] | None:
    """From where to where all runs have a value; None where there is no such stretch."""
    lines = [trajectory(run, axis)[0] for run in runs]
    if not lines or not all(len(x) for x in lines):
        return None
    start, end = max(x[0] for x in lines), min(x[-1] for x in lines)
    return (float(start), float(end)) if start <= end else None


def band(runs: Sequence[RunData], axis: str, points: int = 200) -> Anytime:
    """Mean and band of several runs where all of them have a value.

    Parameters
    ----------
    axis : one of `AXES`
    points : places of x at most, evenly spread

    Raises
    ------
    ValueError
        If there is no such axis.
    """
    kind = "95 %" if len(runs) >= INTERVAL_FROM else "range"
    limits = common(runs, axis)
    if limits is None:
        return Anytime(*[np.empty(0)] * 4, len(runs), kind)
    x = np.linspace(*limits, points)
    x = np.unique(np.round(x)) if axis == "candidates" else np.unique(x)
    values = np.stack([_at(*trajectory(run, axis), x) for run in runs])
    if kind == "range":
        low, high = values.min(axis=0), values.max(axis=0)
    else:
        half = t.ppf(0.975, len(runs) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(runs))
        low, high = values.mean(axis=0) - half, values.mean(axis=0) + half
    return Anytime(x, values.mean(axis=0), low, high, len(runs), kind)


def area(run: RunData, axis: str, start: float, end: float) -> float | None:
    """Mean of the best objective so far from `start` to `end`: the area under the curve, per unit of the axis.

    Lower is better. For a fair table all runs are measured over one stretch, such as `common` gives.

    Returns
    -------
    float, or None where the run does not cover the stretch
    """
    x, best = trajectory(run, axis)
    if not len(x) or start < x[0] or end > x[-1] or end < start:
        return None
    if start == end:
        return float(_at(x, best, np.asarray([start]))[0])
    edges = np.concatenate([[start], x[(x > start) & (x < end)], [end]])
    return float(np.sum(_at(x, best, edges[:-1]) * np.diff(edges)) / (end - start))


def _at(x: NDArray, best: NDArray, places: NDArray) -> NDArray:
    return best[np.searchsorted(x, places, side="right") - 1]


def _check(axis: str) -> None:
    if axis not in AXES:
        raise ValueError(f"Expected one of {', '.join(AXES)}, got {axis!r}.")
