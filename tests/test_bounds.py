"""Bounds: never beyond the best solution, and close to it where that is known."""

import itertools
import math

import numpy as np
import pytest
from benchmark_files import A_N32_K5, TSP, U120, written
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.problems.files import read_bpp, read_tsp, read_vrp
from ttc_esopt.solvers.bounds import cvrp_weak, dantzig, held_karp, martello_toth_l2


def shortest(matrix):
    n = len(matrix)
    return min(
        sum(matrix[a, b] for a, b in zip((0, *p), (*p, 0), strict=True)) for p in itertools.permutations(range(1, n))
    )


def partitions(items):
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for k, group in enumerate(rest):
            yield [*rest[:k], [items[0], *group], *rest[k + 1 :]]


@pytest.mark.parametrize("name", TSP)
def test_held_karp_nearly_reaches_published_optima(tmp_path, name):
    text, optimum = TSP[name]
    bound = held_karp(read_tsp(written(tmp_path, name, text)).distances)
    assert type(bound) is int and 0.99 * optimum <= bound <= optimum


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 7), seed=st.integers(0, 10**6), top=st.sampled_from([1, 5, 1000, 0]))
def test_held_karp_is_a_lower_bound(n, seed, top):
    stream = np.random.default_rng(seed)
    matrix = stream.integers(0, top, (n, n), endpoint=True).astype(float) if top else stream.random((n, n))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    best = shortest(matrix)
    bound = held_karp(matrix, 50)
    assert bound <= best * (1 + 1e-12)
    assert isinstance(bound, int) == (top > 0 or n == 1)


def test_l2_of_published_sets(tmp_path):
    for record in read_bpp(written(tmp_path, "u", U120)):
        assert martello_toth_l2(record.sizes, record.capacity) == record.best_known


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_l2_is_a_lower_bound_and_at_least_the_simple_one(sizes):
    best = min(len(p) for p in partitions(list(range(len(sizes)))) if all(sum(sizes[i] for i in g) <= 12 for g in p))
    assert -(-sum(sizes) // 12) <= martello_toth_l2(np.array(sizes), 12) <= best


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(1, 40), data=st.data())
def test_l2_is_the_bound_of_martello_and_toth(capacity, data):
    sizes = np.array(data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=12)))
    bound = 0
    for least in range(capacity // 2 + 1):
        full = sizes[sizes > capacity - least]
        large = sizes[(sizes <= capacity - least) & (2 * sizes > capacity)]
        small = sizes[(2 * sizes <= capacity) & (sizes >= least)]
        more = math.ceil((small.sum() - (len(large) * capacity - large.sum())) / capacity)
        bound = max(bound, len(full) + len(large) + max(0, more))
    assert martello_toth_l2(sizes, capacity) == bound


def test_l2_sees_what_sums_do_not():
    assert martello_toth_l2(np.array([6, 6, 6]), 10) == 3
    assert martello_toth_l2(np.array([7, 7, 4, 4, 4]), 10) == 4
    assert martello_toth_l2(np.array([8, 8, 7, 1]), 14) == 3


@settings(max_examples=80, deadline=None)
@given(
    items=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7),
    capacity=st.integers(0, 20),
    whole=st.booleans(),
)
def test_dantzig_is_an_upper_bound(items, capacity, whole):
    array = np.array(items, dtype=np.int64).reshape(-1, 2)
    if not whole:
        array, capacity = array / 7, capacity / 7
    weights, values = array.T
    chosen = itertools.product([False, True], repeat=len(array))
    best = max(values[list(c)].sum() for c in chosen if weights[list(c)].sum() <= capacity)
    bound = dantzig(weights, values, capacity)
    assert bound >= best and isinstance(bound, int) == whole


def test_dantzig_by_hand():
    assert dantzig(np.array([2.0, 1.0]), np.array([4.0, 1.0]), 2.5) == pytest.approx(4.5)
    assert dantzig(np.array([0.0, 0.0]), np.array([4.0, 0.0]), 0.0) == pytest.approx(4)
    assert dantzig(np.array([4, 5, 6]), np.array([8, 9, 6]), 7) == 13  # 8 and three fifths of 9
    assert dantzig(np.array([50, 5]), np.array([800, 9]), 7) == 9  # what cannot fit does not count


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 4), seed=st.integers(0, 10**6), whole=st.booleans())
def test_the_routing_bound_is_a_lower_bound_without_the_triangle_inequality(n, seed, whole):
    stream = np.random.default_rng(seed)
    matrix = stream.integers(0, 50, (n + 1, n + 1)).astype(float) if whole else stream.random((n + 1, n + 1))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    demands = np.array([0, *stream.integers(1, 10, n)])
    routes = [p for p in partitions(list(range(1, n + 1))) if all(demands[g].sum() <= 12 for g in p)]
    best = min(sum(shortest(matrix[np.ix_([0, *g], [0, *g])]) for g in p) for p in routes)
    assert 0 <= cvrp_weak(matrix, demands, 12) <= best * (1 + 1e-12)


def test_the_routing_bound_of_a_published_file(tmp_path):
    record = read_vrp(written(tmp_path, "a.vrp", A_N32_K5))
    assert 450 <= cvrp_weak(record.distances, record.demands, record.capacity) <= 784
