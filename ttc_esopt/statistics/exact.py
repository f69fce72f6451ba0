"""Tests that assume no distribution: sign-flip and Wilcoxon for pairs, permutation for separate runs.

Pairs are runs with equal seeds. If the arm makes no difference, each pair's difference is as likely to have the other
sign (Fisher's sign-flip test; Wilcoxon's signed ranks, Biometrics Bulletin 1, 1945), and without pairs every
assignment of the runs to the two sides is equally likely. With few runs there are few assignments, so there is a
smallest p that no data can go below; each result carries it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ttc_esopt.errors import ConfigurationError

WILCOXON_FROM = 6  # pairs; with five, the two-sided Wilcoxon test cannot go below 0.0625
RESAMPLES = 20_000  # up to so many assignments all are counted, beyond them so many are drawn
_SEED = 20_260_817  # of the drawn ones, so that the same runs give the same p


@dataclass(frozen=True)
class ExactTest:
    """A test that counts assignments.

    Attributes
    ----------
    name : str
        `sign-flip`, `wilcoxon` or `permutation`.
    n : int
        Pairs; without pairs, runs on both sides together.
    equal : int
        Pairs without a difference, which say nothing and are left out.
    p : float
        One-sided: the candidate is lower.
    p_two_sided : float
        They differ.
    smallest : float
        The least two-sided p that so many runs (pairs with a difference) can give.
    """

    name: str
    n: int
    equal: int
    p: float
    p_two_sided: float
    smallest: float


def paired(baseline: Sequence[float], candidate: Sequence[float]) -> ExactTest:
    """Wilcoxon's signed-rank test for six or more pairs with a difference, else the exact sign-flip test.

    Parameters
    ----------
    baseline, candidate : values of equal length, one pair per seed

    Raises
    ------
    ConfigurationError
        The lengths differ, or there is no pair.
    """
    differences = _differences(baseline, candidate)
    return (wilcoxon if np.count_nonzero(differences) >= WILCOXON_FROM else sign_flip)(baseline, candidate)


def sign_flip(baseline: Sequence[float], candidate: Sequence[float]) -> ExactTest:
    """Sign-flip test of the mean difference; exact up to 14 pairs, else 20,000 drawn assignments. See `paired`."""
    differences = _differences(baseline, candidate)
    kept = differences[differences != 0]
    if not kept.size:
        return ExactTest("sign-flip", differences.size, differences.size, 1.0, 1.0, 1.0)
    if kept.size == 1:  # scipy wants two
        p, both = (0.5 if kept[0] < 0 else 1.0), 1.0
    else:
        p, both = _counted((kept,), lambda x, axis: x.mean(axis=axis), "samples")
    smallest = _smallest(2**kept.size)
    return ExactTest("sign-flip", differences.size, differences.size - kept.size, p, both, smallest)


def wilcoxon(baseline: Sequence[float], candidate: Sequence[float]) -> ExactTest:
    """Wilcoxon's signed-rank test of the pairs with a difference, by scipy: exact for small numbers. See `paired`."""
    differences = _differences(baseline, candidate)
    kept = differences[differences != 0]
    if not kept.size:
        return ExactTest("wilcoxon", differences.size, differences.size, 1.0, 1.0, 1.0)
    p, both = (float(stats.wilcoxon(kept, alternative=side).pvalue) for side in ("less", "two-sided"))
    return ExactTest(
        "wilcoxon", differences.size, differences.size - kept.size, p, both, min(1.0, 2.0 ** (1 - kept.size))
    )


def permutation(baseline: Sequence[float], candidate: Sequence[float]) -> ExactTest:
    """Permutation test of the difference of means, for runs that are no pairs.

    Exact up to 20,000 assignments (8 runs on each side), else as many drawn ones.

    Raises
    ------
    ConfigurationError
        A side is empty.
    """
    low, high = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    if not (low.size and high.size):
        raise ConfigurationError("Expected at least one run on each side, got none.")
    total = low.size + high.size
    smallest = _smallest(math.comb(total, low.size))
    if min(low.size, high.size) == 1:
        p, both = _single(low, high)
    else:
        p, both = _counted((low, high), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), "independent")
    return ExactTest("permutation", total, 0, p, both, smallest)


def _single(low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """A side of one run, which scipy refuses: the difference grows with that run, so its rank is what counts."""
    pool = np.concatenate([low, high])
    if low.size == 1:
        tails = (np.mean(pool <= low[0]), np.mean(pool >= low[0]))
    else:
        tails = (np.mean(pool >= high[0]), np.mean(pool <= high[0]))
    return float(tails[0]), min(1.0, 2 * float(min(tails)))


def _smallest(assignments: int) -> float:
    return min(1.0, 2 / assignments if assignments <= RESAMPLES else 2 / (RESAMPLES + 1))


def _counted(data: tuple[np.ndarray, ...], statistic: Callable[..., Any], kind: str) -> tuple[float, float]:
    """One-sided (lower) and two-sided p; the two-sided one is twice the smaller tail, at most 1.

    scipy goes through the assignments; the tails are counted here, both from one pass, and with a tolerance for the
    last bits of sums in another order, which scipy takes relative to the statistic and so loses where that is near 0.
    """
    found = stats.permutation_test(
        data, statistic, permutation_type=kind, vectorized=True, n_resamples=RESAMPLES, alternative="less",
        batch=2_000, random_state=np.random.default_rng(_SEED),
    )  # fmt: skip
    law, slack = found.null_distribution, 1e-12 * max(float(np.abs(one).max()) for one in data)
    sizes = [one.size for one in data]
    assignments = math.comb(sum(sizes), sizes[0]) if kind == "independent" else 2 ** sizes[0]
    drawn = int(assignments > RESAMPLES)  # the assignment at hand counts as one of them
    tails = [
        (np.count_nonzero(sign * law <= sign * found.statistic + slack) + drawn) / (law.size + drawn)
        for sign in (1, -1)
    ]
    return float(tails[0]), min(1.0, 2 * float(min(tails)))


def _differences(baseline: Sequence[float], candidate: Sequence[float]) -> np.ndarray:
    low, high = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    if low.shape != high.shape or not low.size:
        raise ConfigurationError(f"Expected pairs, got {high.size} baseline and {low.size} candidate values.")
    return low - high
