"""Several comparisons at once: Holm's correction and the tally of wins, ties and losses.

Holm, Scandinavian Journal of Statistics 6 (1979). The tally is the paper's "28 better, 1 tie, 7 worse of 36".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy import stats

TIE_DECIMALS = 5  # values that agree in so many count as one, as they do in a search


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values in the given order; None (not tested) stays None and is not counted."""
    tested = sorted((value, i) for i, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    least = 0.0
    for rank, (value, i) in enumerate(tested):
        least = max(least, min(1.0, value * (len(tested) - rank)))
        adjusted[i] = least
    return adjusted


@dataclass(frozen=True)
class Tally:
    """Settings in which the candidate's mean is better, tied or worse.

    Attributes
    ----------
    better, tie, worse : int
        Settings.
    p : float or None
        Two-sided sign test of better against worse, as if settings were independent; None without any.
    """

    better: int
    tie: int
    worse: int
    p: float | None

    @property
    def of(self) -> int:
        """Settings in all."""
        return self.better + self.tie + self.worse


def tally(means: Iterable[tuple[float, float]]) -> Tally:
    """Count (baseline, candidate) means, lower is better; ties are means that agree to 5 decimals."""
    signs = [round(candidate - baseline, TIE_DECIMALS) for baseline, candidate in means]
    better, worse = sum(sign < 0 for sign in signs), sum(sign > 0 for sign in signs)
    p = float(stats.binomtest(better, better + worse).pvalue) if better + worse else None
    return Tally(better, len(signs) - better - worse, worse, p)
