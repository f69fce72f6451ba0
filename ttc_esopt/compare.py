"""`compare`: does the candidate beat the baseline, over runs, settings and problems, and can so many runs say so?

from ttc_esopt.compare import compare
result = compare(["runs/a1", "runs/a2"], ["runs/b1", "runs/b2"])
print(result.settings[0].statistics.student.p, result.as_dict())

Values are objectives (minimised) of each run's best heuristic, chosen on val and reported on test; on train where a run
has no test set. What may be compared with what is decided in `ttc_esopt.comparable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ttc_esopt.comparable import FREE, IGNORABLE, WITHIN, Key, Run, open_sides
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.statistics import (
    ALPHA,
    FEW,
    Aggregate,
    MeanTest,
    Sides,
    Summary,
    Tally,
    TwoSamples,
    aggregate,
    holm,
    mean_at_k,
    pass_at_k,
    student,
    tally,
    too_few,
    two_samples,
    welch,
)


@dataclass(frozen=True)
class Side:
    """The runs of one side in one setting.

    Attributes
    ----------
    runs : list of str
        Folders.
    seeds : list of int
    values : list of float
        Objectives, minimised.
    candidates, tokens : float
        Mean number of candidates and of written tokens a run.
    mean_at_k : float or None
        Share of valid replies, averaged over runs; None where the model wrote nothing.
    pass_at_k : dict
        k -> chance that one of k replies is valid, averaged over runs; None where a run has fewer replies.
    """

    runs: list[str]
    seeds: list[int]
    values: list[float]
    candidates: float
    tokens: float
    mean_at_k: float | None
    pass_at_k: dict[int, float | None]

    @classmethod
    def of(cls, runs: Sequence[Run], ks: Sequence[int]) -> Side:
        wrote = all(run.replies for run in runs)
        return cls(
            [str(run.path) for run in runs], [run.seed for run in runs],
            [run.value for run in runs if run.value is not None],
            fmean(run.candidates for run in runs), fmean(run.tokens for run in runs),
            fmean(mean_at_k(run.replies, run.valid) for run in runs) if wrote else None,
            {
                k: fmean(pass_at_k(run.replies, run.valid, k) for run in runs)
                if all(run.replies >= k for run in runs)
                else None
                for k in ks
            },
        )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One problem, set, size, method, model and budget.

    Attributes
    ----------
    key : Key
        Which.
    baseline, candidate : Side
    statistics : TwoSamples
    p_holm : float or None
        Two-sided p of the test that decides, corrected for all settings.
    notes : list of str
        What these runs cannot say.
    """

    key: Key
    baseline: Side
    candidate: Side
    statistics: TwoSamples
    p_holm: float
    notes: list[str]

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not shown` (no difference at 0.05), or `too few runs`."""
        if min(len(self.baseline.values), len(self.candidate.values)) < FEW:
            return "too few runs"
        if self.p_holm >= ALPHA:
            return "not shown"
        return "better" if self.statistics.primary.p < 0.5 else "worse"

    @property
    def difference(self) -> str:
        """For people: candidate less baseline, and percent of the baseline where that means something."""
        of = self.statistics
        return f"{of.difference:+.4g}" + ("" if of.percent is None else f" ({of.percent:+.2f} %)")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        of = self.statistics
        sides = {}
        for name, side, summary, best in (
            ("baseline", self.baseline, of.baseline, of.best[0]),
            ("candidate", self.candidate, of.candidate, of.best[1]),
        ):
            passed = {str(k): value for k, value in side.pass_at_k.items()}
            sides[name] = {**asdict(summary), "best": best, **asdict(side), "pass_at_k": passed}
        return {
            **asdict(self.key), **sides, **of.as_dict(), "p_holm": self.p_holm, "verdict": self.verdict,
            "notes": self.notes,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All settings, and what is said of them together.

    Attributes
    ----------
    settings : list of Setting
        The family: Holm's correction is over all of them.
    differences : dict
        Setting -> (values of the baseline, values of the candidate): what is compared.
    tally : Tally
        Settings in which the candidate's mean is better, tied, worse.
    aggregate : Aggregate or None
        Interquartile mean of the gains in percent across settings; None for a single one.
    notes : list of str
        What was ignored or left out, and what cannot be claimed.
    ignored : list of str
        What was asked to be ignored.
    budget_in : str
        `candidates` or `tokens`.
    """

    settings: list[Setting]
    differences: dict[str, tuple[list, list]]
    tally: Tally
    aggregate: Aggregate | None
    notes: list[str]
    ignored: list[str]
    budget_in: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON: objectives are minimised, `difference` is candidate less baseline."""
        return {
            "settings": [one.as_dict() for one in self.settings],
            "family": {"size": len(self.settings), "correction": "holm", "alpha": ALPHA},
            "differences": {name: {"baseline": a, "candidate": b} for name, (a, b) in self.differences.items()},
            "tally": asdict(self.tally) | {"of": self.tally.of},
            "aggregate": asdict(self.aggregate) if self.aggregate else None,
            "budget_in": self.budget_in, "ignored": self.ignored, "notes": self.notes,
        }  # fmt: skip


def compare(
    baseline: Sequence[Path | str],
    candidate: Sequence[Path | str],
    *,
    ignore: Collection[str] = (),
    budget_in: str = "candidates",
    ks: Sequence[int] = (1, 10),
    whole: bool = True,
) -> Comparison:
    """Compare finished runs.

    Parameters
    ----------
    baseline, candidate : folders of runs; they are sorted into settings by themselves
    ignore : what may differ all the same, words of `ttc_esopt.comparable.IGNORABLE`
    budget_in : `candidates` (equal settings) or `tokens` (mean tokens written within 5 %)
    ks : of Pass@k
    whole : these settings are the whole family; else what Holm's correction puts out of reach is for the caller to say

    Raises
    ------
    ConfigurationError
        The runs do not compare, or an argument is none of those allowed.
    """
    for word in ignore:
        if word not in IGNORABLE:
            raise ConfigurationError(f"Expected one of {', '.join(IGNORABLE)}, got {word!r} (--ignore).")
    if budget_in not in WITHIN:
        raise ConfigurationError(f"Expected one of {', '.join(WITHIN)}, got {budget_in!r} (--budget-in).")
    if any(k < 1 for k in ks):
        raise ConfigurationError(f"Expected k >= 1, got {min(ks)} (--k).")
    matched, notes = open_sides([Path(p) for p in baseline], [Path(p) for p in candidate], ignore, budget_in)
    lefts, rights = ([run for row in matched for run in row[side]] for side in (1, 2))
    drafts = []
    for key, left, right in matched:
        pairs, said = _pairs(left, right)
        sides = Side.of(left, ks), Side.of(right, ks)
        of = two_samples(sides[0].values, sides[1].values, pairs)
        drafts.append((key, *sides, of, pairs, [*of.warnings(), *said, *_of_value(key)]))
    corrected = holm([draft[3].primary.p_two_sided for draft in drafts])
    settings = [Setting(key, a, b, of, p, said) for (key, a, b, of, _, said), p in zip(drafts, corrected, strict=True)]
    together = None
    if len(settings) > 1:
        together = aggregate([_sides(a, b, of, pairs) for _, a, b, of, pairs, _ in drafts])
    differences = _differing_settings(lefts, rights)
    notes += family_notes(settings) if whole else []
    if any(run.settings["init_from"] for run in (*lefts, *rights)):
        notes.append("runs that start from a tuned model: what that model's own run spent is counted nowhere")
    if not differences:
        notes.append("both sides have the same settings: only the seeds differ")
    for package, (a, b) in _differing_versions(lefts, rights).items():
        notes.append(f"{package}: {', '.join(map(str, a))} in the baseline, {', '.join(map(str, b))} in the candidate")
    means = [(one.statistics.baseline.mean, one.statistics.candidate.mean) for one in settings]
    return Comparison(settings, differences, tally(means), together, notes, sorted(ignore), budget_in)


def _differing_settings(left: Sequence[Run], right: Sequence[Run]) -> dict[str, tuple[list, list]]:
    """Settings that differ between the sides, with their values: what is compared."""
    return _differing(left, right, lambda run: {k: v for k, v in run.settings.items() if k not in FREE})


def _differing_versions(left: Sequence[Run], right: Sequence[Run]) -> dict[str, tuple[list, list]]:
    """Packages whose versions differ between the sides."""
    return _differing(left, right, lambda run: run.versions)


def _differing(
    left: Sequence[Run], right: Sequence[Run], of: Callable[[Run], dict[str, Any]]
) -> dict[str, tuple[list, list]]:  # fmt: skip
    names = dict.fromkeys(name for run in (*left, *right) for name in of(run))
    found = {}
    for name in names:
        values = tuple(sorted({of(run).get(name) for run in side}, key=str) for side in (left, right))
        if values[0] != values[1]:
            found[name] = values
    return found


def _pairs(left: Sequence[Run], right: Sequence[Run]) -> tuple[list[tuple[int, int]], list[str]]:
    """Places of runs with equal seeds, and what is to be said about them."""
    seeds = [[run.seed for run in side] for side in (left, right)]
    twice = sorted({seed for side in seeds for seed in side if side.count(seed) > 1})
    if twice:
        listed = ", ".join(map(str, twice[:5]))
        return [], [f"seed {listed} stands for several runs of a side, so that runs cannot be paired by seed"]
    pairs = [(i, seeds[1].index(seed)) for i, seed in enumerate(seeds[0]) if seed in seeds[1]]
    if pairs and not len(pairs) == len(left) == len(right):
        return pairs, [f"only {len(pairs)} seeds are on both sides: the test that knows of no pairs decides"]
    return pairs, []


def _of_value(key: Key) -> list[str]:
    if key.split == "train":
        return ["there is no test set: values are those of the search set, which flatter"]
    return ["values are those of the instance files that were searched on"] if key.split == "files" else []


def _sides(a: Side, b: Side, of: TwoSamples, pairs: Sequence[tuple[int, int]]) -> Sides:
    if of.all_paired:
        return Sides([a.values[i] for i, _ in pairs], [b.values[j] for _, j in pairs], True)
    return Sides(a.values, b.values)


def family_notes(settings: Sequence[Setting]) -> list[str]:
    """What Holm's correction puts out of reach."""
    smallest = [one.statistics.primary.smallest for one in settings]
    count = len(settings)
    if count > 1 and min(smallest) < ALPHA <= count * min(smallest):
        return [
            f"Holm's correction over {count} settings asks for p < {ALPHA / count:.3g} in at least one; these numbers "
            f"of runs cannot go below {min(smallest):.3g}: nothing can be shown"
        ]
    return []


@dataclass(frozen=True)
class SummaryComparison:
    """Two sides of which only mean, sd and n are known.

    Attributes
    ----------
    baseline, candidate : Summary
        As given.
    maximise : bool
        Larger values are better.
    student, welch : MeanTest or None
        One-sided p: the candidate is better. None where t is not defined.
    """

    baseline: Summary
    candidate: Summary
    maximise: bool
    student: MeanTest | None
    welch: MeanTest | None

    def notes(self) -> list[str]:
        """What these figures cannot say."""
        few = too_few(self.baseline.n, self.candidate.n)
        return [few] if few else []

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "difference": self.candidate.mean - self.baseline.mean, "notes": self.notes()}


def compare_summaries(baseline: Summary, candidate: Summary, maximise: bool = False) -> SummaryComparison:
    """The t-tests of published figures; with `maximise`, t is positive where the candidate is better."""
    sides = (baseline.negated(), candidate.negated()) if maximise else (baseline, candidate)
    tests = [student(*sides), welch(*sides)]
    if maximise:
        tests = [test and replace(test, statistic=-test.statistic) for test in tests]
    return SummaryComparison(baseline, candidate, maximise, *tests)
