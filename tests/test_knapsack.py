"""Filling a knapsack: the loop and the check of its result against direct renderings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.solvers.knapsack import BadPick, fault, pack

numbers = st.integers(0, 20)
items = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


def by_deletion(weights, values, capacity, pick):
    """The protocol as it is written down, on shrinking arrays."""
    left, order = np.arange(len(weights)), []
    while weights.size and capacity + 1e-12 >= weights.min():
        place = pick(capacity, weights.copy(), values.copy())
        capacity -= weights[place]
        order.append(left[place])
        weights, values, left = (np.delete(a, place) for a in (weights, values, left))
    return order


def first_that_fits(capacity, weights, values):
    return int(np.flatnonzero(weights <= capacity + 1e-12)[0])


@given(items, st.integers(0, 60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_loop_is_the_protocol(pairs, capacity, floats):
    weights, values = np.array(pairs, dtype=np.float64).T.copy()
    if floats:
        weights, capacity = weights / 7, capacity / 7
    expected = by_deletion(weights, values, capacity, first_that_fits)
    picked = pack(first_that_fits, weights, capacity, weights, values)
    assert picked.tolist() == expected
    assert fault(weights, float(capacity), picked) == ""
    if not floats:
        whole = weights.astype(np.int64)
        assert pack(first_that_fits, whole, capacity, weights, values).tolist() == expected
        assert fault(whole, capacity, picked) == ""


def test_weights_may_exceed_what_is_left_by_rounding_only():
    tenths = np.full(10, 0.1)
    assert len(pack(lambda *_: 0, tenths, 1.0, tenths, tenths)) == 10
    two = np.array([0.05, 0.1])
    with pytest.raises(BadPick, match="weight 0.1, 0.0999"):
        pack(lambda *_: 1, two, 0.0999, two, two)
    large = np.array([10**15 + 1, 1])
    with pytest.raises(BadPick):
        pack(lambda *_: 0, large, 10**15, large / 1.0, large / 1.0, float(large.max()))
