"""Statistics: scipy as the oracle, published figures, properties, and families without an effect."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.statistics import (
    Sides,
    Summary,
    a12,
    a12_word,
    aggregate,
    holm,
    iqm,
    mean_at_k,
    paired,
    pass_at_k,
    permutation,
    shift_of_pairs,
    shift_of_runs,
    sign_flip,
    student,
    tally,
    two_samples,
    welch,
    wilcoxon,
)

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 3))
LISTS = st.lists(NUMBERS, min_size=2, max_size=7)


def drawn(seed, *sizes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in sizes]


# means


def test_the_published_tests_follow_from_their_summary_figures():
    tsp = student(Summary(6.5517, 0.0729, 20), Summary(6.5007, 0.0868, 20))
    assert round(tsp.p, 4) == 0.0257 and tsp.df == 38
    kp = student(Summary(40.1562, 0.0024, 20).negated(), Summary(40.1578, 0.0017, 20).negated())
    assert round(kp.p, 4) == 0.0099


@pytest.mark.parametrize(("name", "equal"), [("student", True), ("welch", False)])
def test_t_tests_are_those_of_scipy_on_the_values(name, equal):
    b, c = drawn(1, 7, 5)
    found = {"student": student, "welch": welch}[name](Summary.of(b), Summary.of(c))
    less = stats.ttest_ind(c, b, equal_var=equal, alternative="less")
    assert found.p == pytest.approx(less.pvalue, rel=1e-9)
    assert found.statistic == pytest.approx(less.statistic, rel=1e-9) and found.df == pytest.approx(less.df, rel=1e-9)
    assert found.p_two_sided == pytest.approx(stats.ttest_ind(c, b, equal_var=equal).pvalue, rel=1e-9)


@pytest.mark.parametrize("sides", [([1.0], [2.0, 3.0]), ([1.0, 1.0], [2.0, 2.0])])
def test_t_is_not_made_up_where_it_is_not_defined(sides):
    b, c = map(Summary.of, sides)
    assert student(b, c) is None and welch(b, c) is None


@pytest.mark.parametrize("text", ["1,2", "1,2,3,4", "a,1,3", "1,1,3.5", "1,-1,3", "nan,1,3", "1,1,0", "inf,1,3", ""])
def test_wrong_summary_figures_name_the_flag(text):
    with pytest.raises(ConfigurationError, match="--summary"):
        Summary.parse(text)


# exact tests


def test_known_p_values_of_pairs():
    b, c = [2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.5, 3.2, 4.9, 5.7]  # every pair better
    found = sign_flip(b, c)
    assert (found.p, found.p_two_sided, found.smallest) == (1 / 32, 1 / 16, 1 / 16)
    six = wilcoxon([*b, 7.0], [*c, 6.4])
    assert (six.p, six.p_two_sided, six.smallest) == (1 / 64, 1 / 32, 1 / 32)
    assert paired(b, c).name == "sign-flip" and paired([*b, 7.0], [*c, 6.4]).name == "wilcoxon"


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
@settings(deadline=None)
def test_sign_flips_are_counted_by_hand(differences):
    d = np.array([x for x in differences if x])
    found = sign_flip([0.0] * len(differences), [float(x) for x in differences])
    sums = [float(np.dot(s, d)) for s in itertools.product((1, -1), repeat=len(d))]
    assert found.p == pytest.approx(np.mean([x <= d.sum() for x in sums]))
    assert found.equal == len(differences) - len(d)
    assert found.p_two_sided >= found.smallest - 1e-12


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=4))
@settings(deadline=None)
def test_permutations_are_counted_by_hand(b, c):
    found, pool = permutation(b, c), b + c
    picks = [[pool[i] for i in pick] for pick in itertools.combinations(range(len(pool)), len(c))]
    assert found.p == pytest.approx(np.mean([sum(pick) <= sum(c) for pick in picks]))
    assert found.p_two_sided >= found.smallest - 1e-12


def test_wilcoxon_is_scipys():
    b, c = drawn(2, 12, 12)
    found = wilcoxon(b, c)
    assert (
        found.p_two_sided == stats.wilcoxon(c, b).pvalue and found.p == stats.wilcoxon(c, b, alternative="less").pvalue
    )


def test_pairs_without_a_difference_say_nothing():
    found = paired([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 3.5])
    assert (found.n, found.equal, found.p, found.p_two_sided, found.smallest) == (4, 3, 0.5, 1.0, 1.0)
    same = paired([1.0] * 8, [1.0] * 8)
    assert (same.equal, same.p, same.p_two_sided) == (8, 1.0, 1.0)


def test_many_runs_are_sampled_the_same_way_each_time():
    b, c = drawn(3, 15, 15)
    assert permutation(b, c) == permutation(b, c)
    assert permutation(b, c).p_two_sided == pytest.approx(stats.ttest_ind(c, b).pvalue, abs=0.02)


@given(LISTS, LISTS)
@settings(deadline=None, max_examples=50)
def test_changing_sides_turns_better_into_worse(b, c):
    one, other = permutation(b, c), permutation(c, b)
    assert one.p_two_sided == pytest.approx(other.p_two_sided)
    assert one.p + other.p >= 1 - 1e-9
    assert a12(b, c) == pytest.approx(1 - a12(c, b))
    there, back = shift_of_runs(b, c), shift_of_runs(c, b)
    assert (there.estimate, there.low, there.high) == pytest.approx((-back.estimate, -back.high, -back.low))


def test_pairs_must_be_pairs():
    with pytest.raises(ConfigurationError, match="Expected pairs, got 2 baseline and 1 candidate"):
        paired([1.0, 2.0], [1.0])


# effects


def test_a12_counts_wins_and_half_of_the_ties():
    assert a12([3.0, 4.0], [1.0, 2.0]) == 1.0 and a12([1.0], [1.0]) == 0.5
    assert a12([1.0, 2.0], [2.0, 3.0]) == pytest.approx(0.125)
    assert [a12_word(x) for x in (0.5, 0.56, 0.36, 0.8)] == ["negligible", "small", "medium", "large"]


def test_the_shift_of_runs_is_the_median_difference_and_inverts_the_mann_whitney_test():
    b, c = drawn(4, 8, 9)
    found = shift_of_runs(b, c)
    assert found.estimate == pytest.approx(np.median(np.subtract.outer(c, b)))
    assert found.confidence >= 0.95
    for edge in (found.low, found.high):
        inside, outside = (edge + sign * 1e-6 * math.copysign(1, found.estimate - edge) for sign in (1, -1))
        assert stats.mannwhitneyu(c - inside, b, method="exact").pvalue > 0.05
        assert stats.mannwhitneyu(c - outside, b, method="exact").pvalue <= 0.05


def test_the_shift_of_pairs_inverts_the_wilcoxon_test():
    b, c = drawn(5, 10, 10)
    found, d = shift_of_pairs(b, c), c - b
    walsh = [(d[i] + d[j]) / 2 for i in range(10) for j in range(i, 10)]
    assert found.estimate == pytest.approx(np.median(walsh))
    for edge in (found.low, found.high):
        inside, outside = (edge + sign * 1e-6 * math.copysign(1, found.estimate - edge) for sign in (1, -1))
        assert stats.wilcoxon(d - inside).pvalue > 0.05 >= stats.wilcoxon(d - outside).pvalue


def test_intervals_of_few_runs_say_how_little_they_hold():
    assert shift_of_pairs([0.0] * 5, [1.0, 2, 3, 4, 5]).confidence == 1 - 2 / 32
    assert shift_of_runs([0.0, 1, 2], [3.0, 4, 5]).confidence == pytest.approx(1 - 2 / 20)
    assert shift_of_runs([0.0], [1.0]).confidence == 0.0


def test_large_samples_use_the_normal_law_and_agree_with_the_exact_one():
    b, c = drawn(6, 100, 101)
    large, small = shift_of_runs(b, c), shift_of_runs(b, c[:100])
    assert large.high - large.low == pytest.approx(small.high - small.low, rel=0.1)
    pairs = shift_of_pairs(np.zeros(101), c)
    assert pairs.low < pairs.estimate < pairs.high and pairs.confidence == 0.95


@pytest.mark.parametrize("n", [6, 10])
def test_intervals_hold_the_true_shift_as_often_as_they_say(n):
    rng = np.random.default_rng(7)
    inside = {"runs": 0, "pairs": 0}
    said = {}
    for _ in range(600):
        b, c = rng.normal(size=n), rng.normal(loc=0.5, size=n)
        for kind, found in (("runs", shift_of_runs(b, c)), ("pairs", shift_of_pairs(b, c))):
            inside[kind] += found.low <= 0.5 <= found.high
            said[kind] = found.confidence
    for kind, count in inside.items():
        assert count / 600 == pytest.approx(said[kind], abs=0.03)


# families


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == pytest.approx([1.0, None, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_never_lowers_a_p(p):
    found = holm(p)
    assert all(a >= b for a, b in zip(found, p, strict=True)) and max(found) <= 1
    ordered = [x for _, x in sorted(zip(p, found, strict=True))]
    assert ordered == sorted(ordered)


def test_the_tally_counts_as_the_paper_does():
    means = [(2.0, 1.0)] * 28 + [(1.0, 1.000001)] + [(1.0, 2.0)] * 7
    found = tally(means)
    assert (found.better, found.tie, found.worse, found.of) == (28, 1, 7, 36)
    assert found.p == stats.binomtest(28, 35).pvalue
    assert tally([(1.0, 1.0)]).p is None


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert iqm([100.0, 1, 2, 3, 4, 50, 6, -100]) == pytest.approx(3.75)
    assert iqm([1.0, 3.0]) == 2.0


def test_gains_are_in_percent_of_the_baseline_and_positive_where_the_candidate_is_lower():
    found = aggregate([Sides([10.0, 10, 10], [9.0, 9, 9]), Sides([-100.0] * 3, [-110.0] * 3)])
    assert (found.iqm, found.low, found.high) == pytest.approx((10, 10, 10))
    assert aggregate([Sides([0.0, 0.0], [1.0, 1.0])]) is None
    with pytest.raises(ConfigurationError, match="pairs"):
        aggregate([Sides([1.0, 2.0], [1.0], True)])


def test_pairs_make_the_bootstrap_interval_narrower_and_its_seed_is_fixed():
    rng = np.random.default_rng(8)
    base = [rng.normal(100, 10, size=8) for _ in range(3)]
    settings_ = [(b, b - 1 + rng.normal(0, 0.1, size=8)) for b in base]
    tied = aggregate([Sides(b, c, True) for b, c in settings_])
    free = aggregate([Sides(b, c) for b, c in settings_])
    assert tied.high - tied.low < free.high - free.low
    assert tied == aggregate([Sides(b, c, True) for b, c in settings_])


# replies


@given(st.integers(1, 12), st.data())
def test_pass_at_k_counts_sets_of_replies(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))
    assert mean_at_k(n, c) == pytest.approx(pass_at_k(n, c, 1))


def test_pass_at_k_of_many_replies_does_not_overflow():
    assert 0 < pass_at_k(100_000, 10, 5_000) < 1
    with pytest.raises(ConfigurationError, match="--k"):
        pass_at_k(5, 2, 6)
    with pytest.raises(ConfigurationError, match="0 to n"):
        mean_at_k(5, 6)


# all together


def test_too_few_runs_are_told():
    five = two_samples([1.0, 2, 3, 4, 5], [0.5, 1.5, 2.4, 3.3, 4.2], [(i, i) for i in range(5)])
    assert five.primary.name == "sign-flip"
    assert [w for w in five.warnings() if "of 5 pairs cannot go below p = 0.0625" in w]
    three = two_samples([1.0, 2, 3], [4.0, 5, 6])
    assert three.primary.name == "permutation" and three.primary.p_two_sided == pytest.approx(0.1)
    assert "too few to claim anything" in three.warnings()[0] and "cannot go below p = 0.1" in three.warnings()[1]
    ten = two_samples(*drawn(9, 10, 10), [(i, i) for i in range(10)])
    assert ten.primary.name == "wilcoxon" and ten.warnings() == []
    assert "t is not defined" in " ".join(two_samples([1.0] * 6, [1.0] * 6).warnings())


@pytest.mark.parametrize("runs", [5, 7, 10])
def test_families_of_pairs_without_an_effect_are_reported_as_such_in_95_of_100(runs):
    assert reported(runs, lambda b, c: paired(b, c).p_two_sided, shared=True) <= 0.05 + 0.033


@pytest.mark.parametrize("runs", [4, 5])
def test_families_of_separate_runs_without_an_effect_are_reported_as_such_in_95_of_100(runs):
    assert reported(runs, lambda b, c: permutation(b, c).p_two_sided, shared=False) <= 0.05 + 0.033


def reported(runs, test, shared, families=400, size=4):
    """Share of families in which Holm lets at least one setting pass, though nothing is there."""
    rng, found = np.random.default_rng(runs), 0
    for _ in range(families):
        common = rng.normal(size=(size, runs)) if shared else 0  # what equal seeds have in common
        b, c = (common + rng.standard_t(5, size=(size, runs)) for _ in range(2))
        found += min(holm([test(b[i], c[i]) for i in range(size)])) < 0.05
    return found / families


def test_single_settings_without_an_effect_are_significant_in_about_5_of_100():
    rng = np.random.default_rng(11)
    rounds, counts = 1500, dict.fromkeys(("student", "welch", "wilcoxon"), 0)
    for _ in range(rounds):
        b, c = rng.normal(size=(2, 8))
        counts["student"] += student(Summary.of(b), Summary.of(c)).p < 0.05
        counts["welch"] += welch(Summary.of(b), Summary.of(c)).p < 0.05
        counts["wilcoxon"] += wilcoxon(b, c).p_two_sided < 0.05
    for count in counts.values():
        assert 0.03 < count / rounds < 0.07


def test_a_real_effect_is_found():
    rng = np.random.default_rng(12)
    found = 0
    for _ in range(100):
        b = rng.normal(size=10)
        c = b - 1 + rng.normal(0, 0.5, size=10)
        found += paired(b, c).p_two_sided < 0.05
    assert found > 95
