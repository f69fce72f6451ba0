"""Statistics of comparisons: tests, effect sizes, corrections and aggregates, on plain numbers; lower is better."""

from ttc_esopt.statistics.aggregate import Aggregate, Sides, aggregate, iqm
from ttc_esopt.statistics.effects import Shift, a12, a12_word, shift_of_pairs, shift_of_runs
from ttc_esopt.statistics.exact import ExactTest, paired, permutation, sign_flip, wilcoxon
from ttc_esopt.statistics.families import Tally, holm, tally
from ttc_esopt.statistics.means import MeanTest, Summary, student, welch
from ttc_esopt.statistics.replies import mean_at_k, pass_at_k
from ttc_esopt.statistics.samples import ALPHA, FEW, HEADLINE, TwoSamples, too_few, two_samples
from ttc_esopt.statistics.variance import Anova, anova, bootstrap_icc, detectable_icc, share_interval

__all__ = [
    "ALPHA", "FEW", "HEADLINE", "Aggregate", "Anova", "ExactTest", "MeanTest", "Shift", "Sides", "Summary", "Tally",
    "TwoSamples", "a12", "a12_word", "aggregate", "anova", "bootstrap_icc", "detectable_icc", "holm", "iqm",
    "mean_at_k", "paired", "pass_at_k", "permutation", "share_interval", "shift_of_pairs", "shift_of_runs",
    "sign_flip", "student", "tally", "too_few", "two_samples", "welch", "wilcoxon",
]  # fmt: skip
