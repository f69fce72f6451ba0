"""Reward shaping: z-scores and centred ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt.errors import RewardError
from ttc_esopt.es.shaping import centred_ranks, zscore

REWARDS = st.floats(-1e6, 1e6)
BATCHES = st.lists(REWARDS, min_size=2, max_size=40)
SHAPINGS = pytest.mark.parametrize("shaping", [zscore, centred_ranks])


@SHAPINGS
@given(value=st.floats(allow_nan=False, allow_infinity=False), n=st.integers(0, 40))
def test_equal_rewards_give_exactly_zero(shaping, value, n):
    weights = shaping([value] * n)
    assert weights.shape == (n,) and weights.dtype == np.float64 and not weights.any()


@given(BATCHES)
def test_zscore_is_the_formula_with_population_deviation(rewards):
    if len(set(rewards)) == 1:
        return
    mean, std = np.mean(rewards), np.std(rewards)
    tolerance = 1e-12 * (abs(mean) + std) / (std + 1e-8) + 1e-9
    assert np.allclose(zscore(rewards), (np.array(rewards) - mean) / (std + 1e-8), rtol=1e-6, atol=tolerance)


def test_known_values():
    assert zscore([1.0, 3.0]).tolist() == [-1 / (1 + 1e-8), 1 / (1 + 1e-8)]
    assert centred_ranks([10, -5, 3]).tolist() == [0.5, -0.5, 0.0]
    assert centred_ranks([2, 1, 2, 3]).tolist() == pytest.approx([0, -0.5, 0, 0.5])
    assert centred_ranks([0, 0, 1, 1]).tolist() == pytest.approx([-1 / 3, -1 / 3, 1 / 3, 1 / 3])


@SHAPINGS
@given(rewards=BATCHES, data=st.data())
def test_the_weight_of_a_direction_does_not_depend_on_its_place(shaping, rewards, data):
    order = data.draw(st.permutations(range(len(rewards))))
    assert shaping([rewards[i] for i in order]).tolist() == shaping(rewards)[list(order)].tolist()


@SHAPINGS
@given(rewards=BATCHES)
def test_weights_keep_the_order_of_rewards_and_sum_to_zero(shaping, rewards):
    weights = shaping(rewards)
    order = np.argsort(rewards, kind="stable")
    assert np.all(np.diff(weights[order]) >= 0)
    assert abs(math.fsum(weights)) < 1e-5


@given(BATCHES)
def test_ranks_lie_between_minus_and_plus_one_half_and_only_order_matters(rewards):
    ranks = centred_ranks(rewards)
    assert np.all(np.abs(ranks) <= 0.5)
    assert np.array_equal(ranks, centred_ranks(np.unique(rewards, return_inverse=True)[1]))


@SHAPINGS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error_that_names_its_candidate(shaping, bad):
    with pytest.raises(RewardError, match="candidate 17"):
        shaping([1.0, bad, 2.0], names=["candidate 16", "candidate 17", "candidate 18"])
    with pytest.raises(RewardError, match="direction 1"):
        shaping([1.0, bad, 2.0])


def test_rewards_near_the_largest_float_still_give_finite_weights():
    assert zscore([1.7e308, -1.7e308, 1.7e308, 1.7e308]).tolist() == pytest.approx([3**-0.5, -(3**0.5)] + [3**-0.5] * 2)
    assert np.all(np.isfinite(zscore([1.7e308, 1e308, 5.0])))


@SHAPINGS
def test_shapes_that_do_not_fit_are_errors(shaping):
    with pytest.raises(ValueError, match="1-D"):
        shaping([[1.0, 2.0]])
    with pytest.raises(ValueError, match="one name per reward"):
        shaping([1.0, 2.0], names=["a"])
