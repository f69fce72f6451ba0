"""Analysis of variance against scipy, and its intervals and false positives in simulations."""

import numpy as np
import pytest
from scipy import stats

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.statistics import anova, bootstrap_icc, detectable_icc, share_interval

ROUNDS = 2000


def normal(rng, icc, groups=10, size=10):
    return rng.normal(0, np.sqrt(icc), (groups, 1)) + rng.normal(0, np.sqrt(1 - icc), (groups, size))


def binary(rng, share, icc, groups=10, size=10):
    """0/1 values whose intraclass correlation is exactly `icc`: the shares of groups are beta distributed."""
    scale = (1 - icc) / icc if icc else None
    shares = rng.beta(share * scale, (1 - share) * scale, groups) if icc else np.full(groups, share)
    return (rng.random((groups, size)) < shares[:, None]).astype(float)


def test_f_and_p_are_scipys():
    rng = np.random.default_rng(0)
    for groups, size in ((2, 2), (3, 7), (10, 10)):
        table = normal(rng, 0.3, groups, size)
        found, known = anova(table), stats.f_oneway(*table)
        assert found.f == pytest.approx(known.statistic) and found.p == pytest.approx(known.pvalue)
        assert (found.groups, found.size, found.mean) == (groups, size, pytest.approx(table.mean()))


def test_a_worked_example():
    # Shrout and Fleiss (1979), table 2: six targets, four judges; ICC(1,1) = 0.166, interval -0.133 to 0.723
    table = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    found = anova(table)
    assert found.mean_square_between == pytest.approx(11.24, abs=0.01)
    assert found.mean_square_within == pytest.approx(6.26, abs=0.01)
    assert found.icc == pytest.approx(0.166, abs=0.001)
    assert found.icc_low == 0 and found.icc_high == pytest.approx(0.723, abs=0.001)
    assert found.between == pytest.approx((11.2417 - 6.2639) / 4, abs=1e-3)
    assert found.within == pytest.approx(6.2639, abs=1e-3)
    assert found.variance_of_means == pytest.approx(np.var(np.mean(table, axis=1), ddof=1))


def test_components_add_up_to_what_was_put_in():
    rng = np.random.default_rng(1)
    found = [anova(3 * normal(rng, 0.2)) for _ in range(500)]
    assert np.mean([one.within for one in found]) == pytest.approx(9 * 0.8, rel=0.02)
    assert np.mean([(one.mean_square_between - one.mean_square_within) / 10 for one in found]) == pytest.approx(
        9 * 0.2, rel=0.1
    )


@pytest.mark.parametrize("icc", [0.0, 0.1, 0.4])
def test_the_interval_covers_normal_values_in_95_of_100(icc):
    rng = np.random.default_rng(2)
    found = [anova(normal(rng, icc)) for _ in range(ROUNDS)]
    covered = np.mean([one.icc_low <= icc <= one.icc_high for one in found])
    # a lower end cut to 0 covers 0 whatever lies below, so that only one tail is left there
    assert covered == pytest.approx(0.975 if icc == 0 else 0.95, abs=0.015)
    false = np.mean([one.p < 0.05 for one in found])
    if icc == 0:
        assert false == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("share", "icc", "least"), [(0.5, 0.1, 0.92), (0.5, 0.25, 0.92), (0.1, 0.1, 0.88), (0.1, 0.25, 0.75)]
)
def test_the_interval_covers_0_1_values_about_as_often(share, icc, least):
    rng = np.random.default_rng(3)
    found = [anova(binary(rng, share, icc)) for _ in range(ROUNDS)]
    covered = np.mean([one.icc is not None and one.icc_low <= icc <= one.icc_high for one in found])
    assert least < covered < 0.99


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_groups_that_are_alike_are_found_to_differ_in_5_of_100(share):
    rng = np.random.default_rng(4)
    found = [anova(binary(rng, share, 0.0)) for _ in range(ROUNDS)]
    assert np.mean([one.p is not None and one.p < 0.05 for one in found]) < 0.07


def test_the_detectable_correlation_is_found_in_four_of_five():
    rng = np.random.default_rng(5)
    icc = detectable_icc(10, 10)
    assert np.mean([anova(normal(rng, icc)).p < 0.05 for _ in range(ROUNDS)]) == pytest.approx(0.8, abs=0.03)
    assert np.mean([anova(binary(rng, 0.5, icc)).p < 0.05 for _ in range(ROUNDS)]) == pytest.approx(0.8, abs=0.06)
    assert detectable_icc(10, 20) < icc < detectable_icc(5, 10)


def test_the_bootstrap_agrees_where_there_are_many_groups():
    table = normal(np.random.default_rng(6), 0.3, 200, 10)
    found, (low, high) = anova(table), bootstrap_icc(table)
    assert low == pytest.approx(found.icc_low, abs=0.03) and high == pytest.approx(found.icc_high, abs=0.03)
    assert low < 0.3 < high


def test_the_interval_of_a_share_allows_for_groups():
    rng = np.random.default_rng(7)
    covered = []
    for icc in (0.0, 0.2):
        rounds = [share_interval(binary(rng, 0.4, icc)) for _ in range(ROUNDS)]
        covered.append(np.mean([low <= 0.4 <= high for low, high in rounds]))
    assert covered[0] > 0.94 and covered[1] > 0.88  # groups of unknown correlation: a little below
    plain = np.repeat([[1.0, 0.0]], 50, axis=0)
    low, high = share_interval(plain)
    known = stats.binomtest(50, 100).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(known.low), pytest.approx(known.high))


def test_values_that_do_not_differ():
    found = anova(np.full((3, 4), 0.1))
    assert (found.f, found.p, found.icc, found.between, found.within) == (None, None, None, 0.0, 0.0)
    assert bootstrap_icc(np.ones((3, 4))) == (None, None)
    apart = anova(np.repeat([[0.1], [0.7], [0.3]], 4, axis=1))
    assert (apart.f, apart.p, apart.icc, apart.icc_low, apart.icc_high) == (None, 0.0, 1.0, 1.0, 1.0)
    assert share_interval(np.ones((3, 4)))[1] == 1.0


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]], [1.0, 2.0], [[1.0, float("nan")], [1.0, 2.0]]])
def test_too_few_or_broken_values_are_refused(values):
    with pytest.raises(ConfigurationError, match="Expected"):
        anova(values)
