"""How large a difference is: the Hodges-Lehmann shift with its exact interval, and Vargha and Delaney's A12.

Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963): the median of all differences between the sides, or
for pairs the median of the pairwise means of the differences; the interval inverts the Mann-Whitney or Wilcoxon test.
Vargha and Delaney, Journal of Educational and Behavioral Statistics 25 (2000): the chance that a candidate run beats a
baseline run, ties counting half.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ttc_esopt.statistics.exact import _differences

_EXACT_PAIRS = 100  # above, and above as many runs on a side, counts are taken from the normal law
_WORDS = ((0.71, "large"), (0.64, "medium"), (0.56, "small"), (0.0, "negligible"))


@dataclass(frozen=True)
class Shift:
    """Hodges-Lehmann shift, in the unit of the objective; negative: the candidate is lower.

    Attributes
    ----------
    estimate, low, high : float
        The shift and its interval.
    confidence : float
        What the interval has (at least the level asked for, where n allows it; else what the widest one has).
    """

    estimate: float
    low: float
    high: float
    confidence: float


def shift_of_pairs(baseline: Sequence[float], candidate: Sequence[float], level: float = 0.95) -> Shift:
    """Median of the Walsh averages of the paired differences (candidate - baseline); interval by Wilcoxon's law.

    Raises
    ------
    ConfigurationError
        The lengths differ, or there is no pair.
    """
    d = _differences(baseline, candidate)
    first, second = np.triu_indices(d.size)
    averages = np.sort((d[first] + d[second]) / 2)
    if d.size > _EXACT_PAIRS:
        n = d.size
        return _normal(averages, n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24), level)
    return _interval(averages, _signed_rank_law(d.size), level)


def shift_of_runs(baseline: Sequence[float], candidate: Sequence[float], level: float = 0.95) -> Shift:
    """Median of all candidate - baseline differences; interval by the Mann-Whitney law."""
    low, high = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    differences = np.sort(np.subtract.outer(low, high).ravel())
    n, m = low.size, high.size
    if max(n, m) > _EXACT_PAIRS:
        return _normal(differences, n * m / 2, math.sqrt(n * m * (n + m + 1) / 12), level)
    return _interval(differences, _mann_whitney_law(n, m), level)


def a12(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Chance that a candidate run is lower (better) than a baseline run, ties counting half: 0 .. 1, 0.5 no effect."""
    u = stats.mannwhitneyu(baseline, candidate, method="asymptotic").statistic
    return float(u / (len(baseline) * len(candidate)))


def a12_word(value: float) -> str:
    """Vargha and Delaney's word for an A12: negligible, small (from 0.56), medium (0.64), large (0.71)."""
    return next(word for edge, word in _WORDS if round(max(value, 1 - value), 12) >= edge)


def _interval(ordered: np.ndarray, law: np.ndarray, level: float) -> Shift:
    """The shortest interval between order statistics that has the level, or the widest one there is."""
    tail = np.cumsum(law)  # P(T <= k)
    cut = max(0, int(np.searchsorted(tail, (1 - level) / 2 + 1e-12, side="right")) - 1)
    confidence = max(0.0, 1 - 2 * float(tail[cut]))
    return Shift(float(np.median(ordered)), float(ordered[cut]), float(ordered[-1 - cut]), confidence)


def _normal(ordered: np.ndarray, mean: float, sd: float, level: float) -> Shift:
    cut = max(0, math.floor(mean - sd * stats.norm.ppf((1 + level) / 2)))
    return Shift(float(np.median(ordered)), float(ordered[cut]), float(ordered[-1 - cut]), level)


@functools.lru_cache
def _signed_rank_law(n: int) -> np.ndarray:
    """P(T = k), k = 0 .. n (n + 1) / 2: T is a sum of the ranks 1 .. n, each in it with chance 1/2."""
    law = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(law.size + rank)
        longer[: law.size] += law / 2
        longer[rank:] += law / 2
        law = longer
    return law


@functools.lru_cache
def _mann_whitney_law(n: int, m: int) -> np.ndarray:
    """P(U = k), k = 0 .. n m.

    The largest of all n + m values is on the first side with chance n / (n + m), where it beats all m of the second;
    what is left is the same question for n - 1 and m, or n and m - 1.
    """
    row = [np.ones(1) for _ in range(m + 1)]  # no value on the first side
    for i in range(1, n + 1):
        following = [np.ones(1)]
        for j in range(1, m + 1):
            law = np.zeros(i * j + 1)
            law[j:] += i / (i + j) * row[j]
            law[: i * (j - 1) + 1] += j / (i + j) * following[j - 1]
            following.append(law)
        row = following
    return row[m]
