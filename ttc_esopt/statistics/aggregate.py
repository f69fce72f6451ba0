"""One figure across problems: the interquartile mean of relative gains, with a stratified bootstrap interval.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021): the mean of the
middle half of all scores, runs drawn anew with replacement within each problem. Scores here are gains against the
baseline's mean in percent, so that problems with different units can be put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ttc_esopt.errors import ConfigurationError

_SEED = 20_260_817


@dataclass(frozen=True)
class Sides:
    """The values of one setting on both sides; lower is better.

    Attributes
    ----------
    baseline, candidate : sequence of float
        One value per run.
    paired : bool
        Values at the same place have the same seed and are drawn together.
    """

    baseline: Sequence[float]
    candidate: Sequence[float]
    paired: bool = False


@dataclass(frozen=True)
class Aggregate:
    """Interquartile mean of gains in percent (positive: the candidate is better) and its percentile interval."""

    iqm: float
    low: float
    high: float
    confidence: float
    settings: int
    resamples: int


def iqm(values: Sequence[float] | np.ndarray, axis: int | None = None) -> np.ndarray:
    """Interquartile mean: a quarter of the values is cut off at each end (rounded down), the rest averaged."""
    return stats.trim_mean(np.asarray(values, dtype=float), 0.25, axis=axis)


def gains(baseline: np.ndarray, candidate: np.ndarray, paired: bool, scale: float) -> np.ndarray:
    """Gains in percent of `scale`, shape (..., runs); positive where the candidate is lower.

    A run's gain is against its partner where there are pairs, else against the baseline's mean.
    """
    return 100 * ((baseline if paired else baseline.mean(axis=-1, keepdims=True)) - candidate) / scale


def aggregate(
    settings: Sequence[Sides], level: float = 0.95, resamples: int = 10_000, seed: int = _SEED
) -> Aggregate | None:
    """Interquartile mean of the gains of all runs of all settings.

    Parameters
    ----------
    settings : one per problem (and size, method, budget); those whose baseline mean is 0 have no relative gain and
        are left out
    level : of the interval, 0 .. 1
    resamples, seed : of the bootstrap

    Returns
    -------
    Aggregate or None
        None where nothing is left.

    Raises
    ------
    ConfigurationError
        The sides of a paired setting differ in length.
    """
    draw = np.random.default_rng(seed)
    whole, drawn = [], []
    for one in settings:
        baseline, candidate = np.asarray(one.baseline, dtype=float), np.asarray(one.candidate, dtype=float)
        if one.paired and baseline.size != candidate.size:
            raise ConfigurationError(f"Expected pairs, got {baseline.size} baseline and {candidate.size} values.")
        scale = abs(float(baseline.mean()))  # not drawn anew, so that no draw divides by almost nothing
        if scale == 0:
            continue
        of_candidate = draw.integers(candidate.size, size=(resamples, candidate.size))
        of_baseline = of_candidate if one.paired else draw.integers(baseline.size, size=(resamples, baseline.size))
        whole.append(gains(baseline, candidate, one.paired, scale))
        drawn.append(gains(baseline[of_baseline], candidate[of_candidate], one.paired, scale))
    if not whole:
        return None
    edges = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(iqm(np.concatenate(drawn, axis=1), axis=1), edges)
    return Aggregate(float(iqm(np.concatenate(whole))), float(low), float(high), level, len(whole), resamples)
