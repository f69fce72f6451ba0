"""The bin-packing kernels against plain renderings of the same rules."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.solvers.bin_packing import colony, fit_decreasing, groups, normalised, sample
from ttc_esopt.solvers.bounds import martello_toth_l2

MASK = (1 << 64) - 1


def word(key, counter):
    x = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def published_sample(affinity, sizes, capacity, key):
    """The published rule in numpy; only which item is drawn, the rule leaves open."""
    n = len(sizes)
    pool = np.argsort(sizes, kind="stable").tolist()
    bins, free, inside = np.full(n, -1), np.ones(n, bool), np.zeros(n, bool)
    used, room = 0, 0
    for step in range(n):
        fits = free & (sizes <= room)
        if fits.any():
            item = int((((affinity[inside].sum(0) / inside.sum()) + 1e-5) * fits).argmax())
        else:
            used, room = used + 1, capacity
            inside[:] = False
            item = pool[((word(key, step) >> 32) * (n - step)) >> 32]
        place = pool.index(item)
        pool[place] = pool[-1]
        pool.pop()
        free[item], inside[item] = False, True
        room -= sizes[item]
        bins[item] = used - 1
    return bins


def packs(bins, sizes, capacity):
    """Whether no bin is too full and the bins are numbered without a gap."""
    filled = np.bincount(bins, weights=sizes)
    return bool(np.all(filled > 0) and np.all(filled <= capacity))


@st.composite
def packings(draw, most=14):
    capacity = draw(st.integers(1, 40))
    sizes = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=most))
    return np.array(sizes), capacity


@settings(max_examples=150, deadline=None)
@given(packings(30), st.integers(0, 2**32), st.sampled_from([1, 3, 1000, 10**9]))
def test_a_sample_takes_the_item_that_the_published_rule_takes(instance, seed, levels):
    sizes, capacity = instance
    n = len(sizes)
    # Few levels give ties, many give entries that differ in the last bits only.
    random = np.random.default_rng(seed)
    affinity = normalised(random.integers(1, levels + 1, (n, n)) / levels * random.choice([1.0, 1e-5]))
    expected = published_sample(affinity, sizes, capacity, word(seed, 0))
    assert sample(affinity, sizes, capacity, seed, 1).tolist() == expected.tolist()


def test_nearly_equal_entries_are_told_apart_and_equal_sums_are_not():
    sizes = np.full(40, 3)
    for seed in range(20):
        random = np.random.default_rng(seed)
        affinity = normalised(0.5 + random.integers(0, 4, (40, 40)) * 2.0**-52)
        expected = published_sample(affinity, sizes, 20, word(seed, 0))
        assert sample(affinity, sizes, 20, seed, 1).tolist() == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(packings(), st.integers(-(2**70), 2**70))
def test_all_searches_pack(instance, key):
    sizes, capacity = instance
    affinity = np.random.default_rng(1).random((len(sizes), len(sizes))) + 1e-6
    least = martello_toth_l2(sizes, capacity)
    for search in (
        lambda: sample(affinity, sizes, capacity, key, 5),
        lambda: colony(affinity, sizes, capacity, key, 2, 3),
    ):
        bins = search()
        assert bins.dtype == np.int64 and packs(bins, sizes, capacity) and bins.max() + 1 >= least
        assert np.array_equal(bins, search())


def test_more_samples_are_never_worse_and_the_key_matters():
    random = np.random.default_rng(2)
    sizes = random.integers(20, 101, 120)
    affinity = random.random((120, 120))
    used = [sample(affinity, sizes, 150, 5, samples).max() for samples in (1, 10, 200)]
    assert used == sorted(used, reverse=True)
    assert not np.array_equal(sample(affinity, sizes, 150, 5, 1), sample(affinity, sizes, 150, 6, 1))
    assert not np.array_equal(colony(affinity, sizes, 150, 5, 1, 1), colony(affinity, sizes, 150, 6, 1, 1))


def test_the_colony_learns_which_items_belong_together():
    sizes = np.tile([70, 80], 25)  # with equal affinities only the pheromone can tell which pairs fill a bin
    alone = [colony(np.ones((50, 50)), sizes, 150, key, 1, 20).max() + 1 for key in range(10)]
    after = [colony(np.ones((50, 50)), sizes, 150, key, 60, 20).max() + 1 for key in range(10)]
    assert np.mean(after) < np.mean(alone)


def test_affinities_are_clipped_scaled_and_floored():
    given_matrix = np.array([[-math.inf, 0.0, 2.0], [4.0, 1e-9, 1e300], [5e5, 1e6, 1.0]])
    expected = np.clip(given_matrix, 1e-6, 1e6)
    expected = np.maximum(expected / expected.max(), 1e-6)
    assert np.array_equal(normalised(given_matrix), expected)
    assert np.array_equal(
        normalised(given_matrix[:2, :2]), np.maximum(np.clip(given_matrix[:2, :2], 1e-6, 1e6) / 4, 1e-6)
    )


@settings(max_examples=200, deadline=None)
@given(packings(), st.booleans())
def test_first_and_best_fit_decreasing(instance, best):
    sizes, capacity = instance
    rooms, expected = [], {}
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = [b for b, room in enumerate(rooms) if room >= sizes[item]]
        if not fitting:
            rooms.append(capacity)
            fitting = [len(rooms) - 1]
        chosen = min(fitting, key=lambda b: (rooms[b], b)) if best else fitting[0]
        rooms[chosen] -= sizes[item]
        expected[item] = chosen
    bins = fit_decreasing(sizes, capacity, best=best)
    assert bins.tolist() == [expected[i] for i in range(len(sizes))] and packs(bins, sizes, capacity)


def test_groups_lists_the_items_of_every_bin():
    assert groups(np.array([1, 0, 1, 2])) == [[1], [0, 2], [3]]
