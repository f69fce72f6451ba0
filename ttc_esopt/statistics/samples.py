"""Everything that is said of one setting: two sides, one value per run, lower is better.

Which test decides is fixed here, before any data: where every run has a partner with the same seed, the paired test
(Wilcoxon from six pairs on, the exact sign-flip test below), else the permutation test; always two-sided. The t-tests
stand beside it for comparison with the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ttc_esopt.statistics.effects import Shift, a12, a12_word, shift_of_pairs, shift_of_runs
from ttc_esopt.statistics.exact import ExactTest, paired, permutation
from ttc_esopt.statistics.means import MeanTest, Summary, student, welch

ALPHA = 0.05
FEW = 5  # runs on a side below which nothing is claimed
HEADLINE = 10  # runs on a side for a claim that much hangs on


@dataclass(frozen=True)
class TwoSamples:
    """Baseline against candidate in one setting.

    Attributes
    ----------
    baseline, candidate : Summary
        Mean, sd and n.
    best : tuple of float
        The lowest value of the baseline and of the candidate.
    student, welch : MeanTest or None
        None where t is not defined.
    pairs : ExactTest or None
        The test of the runs with equal seeds; None where there are none.
    permutation : ExactTest
        The test that knows of no pairs.
    all_paired : bool
        Every run has a partner, so that `pairs` decides.
    shift : Shift
        Hodges-Lehmann, of the pairs where they decide.
    a12 : float
        Chance that a candidate run beats a baseline run.
    """

    baseline: Summary
    candidate: Summary
    best: tuple[float, float]
    student: MeanTest | None
    welch: MeanTest | None
    pairs: ExactTest | None
    permutation: ExactTest
    all_paired: bool
    shift: Shift
    a12: float

    @property
    def difference(self) -> float:
        """Mean of the candidate less mean of the baseline; negative: the candidate is better."""
        return self.candidate.mean - self.baseline.mean

    @property
    def percent(self) -> float | None:
        """The difference in percent of |baseline mean|; None where that is 0."""
        return 100 * self.difference / abs(self.baseline.mean) if self.baseline.mean else None

    @property
    def primary(self) -> ExactTest:
        """The test that decides."""
        return self.pairs if self.all_paired and self.pairs else self.permutation

    def warnings(self) -> list[str]:
        """What these numbers of runs cannot say, one sentence each."""
        n = (self.baseline.n, self.candidate.n)
        few = too_few(*n)
        found = [few] if few else []
        test = self.primary
        if test.equal:
            found.append(f"{test.equal} of {test.n} pairs are equal and say nothing")
        if test.smallest >= ALPHA and test.equal < test.n:
            what = (
                f"{test.n - test.equal} pair{'s'[: test.n - test.equal != 1]}"
                if self.all_paired
                else f"{n[0]} and {n[1]} runs"
            )
            found.append(f"the {test.name} test of {what} cannot go below p = {test.smallest:.3g}: it can show nothing")
        if min(n) < 2:
            found.append("one run on a side has no spread: t is not defined")
        elif self.student is None:
            found.append("no spread on either side: t is not defined")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON: numbers, texts, None."""
        return {
            "difference": self.difference, "percent": self.percent,
            "student": asdict(self.student) if self.student else None,
            "welch": asdict(self.welch) if self.welch else None,
            "pairs": asdict(self.pairs) if self.pairs else None,
            "permutation": asdict(self.permutation),
            "decides": self.primary.name,
            "p": self.primary.p_two_sided,
            "shift": asdict(self.shift) | {"paired": self.all_paired},
            "a12": self.a12, "a12_word": a12_word(self.a12),
        }  # fmt: skip


def too_few(baseline: int, candidate: int) -> str | None:
    """A sentence where so many runs on the sides cannot carry a claim; None where they may."""
    if min(baseline, candidate) >= FEW:
        return None
    return (
        f"{baseline} and {candidate} runs are too few to claim anything: at least {FEW} on each side, "
        f"{HEADLINE} for a headline"
    )


def two_samples(
    baseline: Sequence[float], candidate: Sequence[float], pairs: Sequence[tuple[int, int]] = ()
) -> TwoSamples:
    """All statistics of one setting.

    Parameters
    ----------
    baseline, candidate : one finite value per run, lower is better
    pairs : places (in baseline, in candidate) of runs with the same seed

    Raises
    ------
    ConfigurationError
        A side is empty or holds a number that is not finite.
    """
    left, right = [baseline[i] for i, _ in pairs], [candidate[j] for _, j in pairs]
    of_baseline, of_candidate = Summary.of(baseline), Summary.of(candidate)
    whole = len(pairs) == len(baseline) == len(candidate)
    return TwoSamples(
        of_baseline, of_candidate, (float(min(baseline)), float(min(candidate))),
        student(of_baseline, of_candidate), welch(of_baseline, of_candidate),
        paired(left, right) if pairs else None, permutation(baseline, candidate), whole,
        shift_of_pairs(left, right) if whole else shift_of_runs(baseline, candidate),
        a12(baseline, candidate),
    )  # fmt: skip
