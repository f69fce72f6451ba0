"""Tests of two means from their summary figures: Student's t with equal variances (the paper's) and Welch's.

The paper tests its 20 repeats with a one-sided two-sample t-test that assumes equal variances (arXiv 2608.17310).
That assumption has no ground where one side perturbs weights and the other does not, so Welch's test stands beside it.
Both need roughly normal means; neither uses that runs with equal seeds belong together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ttc_esopt.errors import ConfigurationError


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation (n - 1 below the line) and number of values of one side.

    Attributes
    ----------
    mean : float
        In the unit of the objective.
    sd : float or None
        In the same unit; None for a single value.
    n : int
        Values.

    Raises
    ------
    ConfigurationError
        The mean is not finite, sd is negative or missing where n > 1, or n < 1.
    """

    mean: float
    sd: float | None
    n: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise ConfigurationError(f"Expected a finite mean, got {self.mean} (--summary).")
        if self.n < 1:
            raise ConfigurationError(f"Expected n >= 1, got {self.n} (--summary).")
        if self.n > 1 and not (self.sd is not None and 0 <= self.sd < math.inf):
            raise ConfigurationError(f"Expected a standard deviation >= 0, got {self.sd} (--summary).")

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """The summary of one value per run."""
        array = np.asarray(values, dtype=float)
        if not array.size:
            raise ConfigurationError("Expected at least one value on each side, got none.")
        return cls(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None, int(array.size))

    @classmethod
    def parse(cls, text: str) -> Summary:
        """`MEAN,SD,N` as the command line takes it."""
        parts = text.split(",")
        try:
            mean, sd, n = float(parts[0]), float(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            parts = []
        if len(parts) != 3:
            raise ConfigurationError(f"Expected MEAN,SD,N such as 6.55,0.07,20, got {text} (--summary).")
        return cls(mean, sd, n)

    def negated(self) -> Summary:
        """The same of the negated values: what is maximised becomes what is minimised."""
        return Summary(-self.mean, self.sd, self.n)


@dataclass(frozen=True)
class MeanTest:
    """A t-test of two means.

    Attributes
    ----------
    name : str
        `student` or `welch`.
    statistic : float
        t, negative where the candidate's mean is lower (better).
    df : float
        Degrees of freedom.
    p : float
        One-sided: the candidate's mean is lower.
    p_two_sided : float
        The means differ.
    """

    name: str
    statistic: float
    df: float
    p: float
    p_two_sided: float


def student(baseline: Summary, candidate: Summary) -> MeanTest | None:
    """Student's two-sample t-test with equal variances, n1 + n2 - 2 degrees of freedom; see `_test`."""
    return _test("student", baseline, candidate)


def welch(baseline: Summary, candidate: Summary) -> MeanTest | None:
    """Welch's two-sample t-test, Welch-Satterthwaite degrees of freedom; see `_test`."""
    return _test("welch", baseline, candidate)


def _test(name: str, baseline: Summary, candidate: Summary) -> MeanTest | None:
    """None where t is not defined: a side with fewer than two values, or both standard deviations 0."""
    if baseline.n < 2 or candidate.n < 2 or not (baseline.sd or candidate.sd):
        return None
    a, b = candidate.sd**2 / candidate.n, baseline.sd**2 / baseline.n
    if not a + b > 0:  # so small that their squares vanish
        return None
    equal = name == "student"
    df = candidate.n + baseline.n - 2
    if not equal:
        df = (a + b) ** 2 / (a**2 / (candidate.n - 1) + b**2 / (baseline.n - 1))
    found = [
        stats.ttest_ind_from_stats(
            candidate.mean, candidate.sd, candidate.n, baseline.mean, baseline.sd, baseline.n,
            equal_var=equal, alternative=alternative,
        )
        for alternative in ("less", "two-sided")
    ]  # fmt: skip
    return MeanTest(name, float(found[0].statistic), float(df), float(found[0].pvalue), float(found[1].pvalue))
