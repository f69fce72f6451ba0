"""Bin packing: greedy samples and an ant colony guided by pairwise affinities, first and best fit.

All kernels are compiled, run without the GIL and draw their random numbers from an explicit key. An affinity matrix
says how much item j, being in the bin, speaks for item i: row j, column i. The sums over the items in a bin run in
ascending item number in float64, as the published evaluator's do, so that equal and nearly equal items are decided
the same way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

DECAY = 0.95  # what is left of the pheromone after an iteration
_LEAST, _MOST, _OFFSET = 1e-6, 1e6, 1e-5
_NONE = np.int64(1 << 62)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_U1, _U11, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (1, 11, 27, 30, 31, 32))

_compiled = njit(cache=True, nogil=True, error_model="numpy")


def sample(affinity: np.ndarray, sizes: np.ndarray, capacity: int, key: int, samples: int = 200) -> np.ndarray:
    """Best of some greedy packings that differ in the first item of each bin, which is drawn at random.

    Parameters
    ----------
    affinity : float64 array, shape (n, n), positive (`normalised`)
    sizes : int64 array, shape (n,), from 1 to `capacity`
    key : of the random numbers, any integer

    Returns
    -------
    int64 array, shape (n,)
        The bin of every item; bins are numbered from 0 without a gap.
    """
    order, ascending = _by_size(sizes)
    return _sample(affinity, ascending, order, capacity, np.uint64(key & 0xFFFFFFFFFFFFFFFF), samples)


def colony(
    affinity: np.ndarray, sizes: np.ndarray, capacity: int, key: int, iterations: int = 15, ants: int = 20
) -> np.ndarray:
    """Best packing of an ant colony; parameters and result as in `sample`."""
    order, ascending = _by_size(sizes)
    key = np.uint64(key & 0xFFFFFFFFFFFFFFFF)
    return _colony(affinity, ascending, order, capacity, key, iterations, ants)


def _by_size(sizes):
    """Items by ascending size, and their sizes."""
    order = np.argsort(sizes, kind="stable")
    return order, sizes[order]


@_compiled
def normalised(heuristic):
    """A float64 matrix (n, n) clipped to [1e-6, 1e6], divided by its largest entry, and floored at 1e-6 again."""
    largest = _LEAST
    for value in heuristic.flat:
        if value > largest:
            largest = value
    largest = min(largest, _MOST)
    n = heuristic.shape[0]
    result = np.empty((n, n))
    for j in range(n):
        for i in range(n):
            result[j, i] = max(min(max(heuristic[j, i], _LEAST), _MOST) / largest, _LEAST)
    return result


@_compiled
def _word(key, counter):
    """Random 64-bit word number `counter` of the stream `key`."""
    x = key + (counter + _U1) * _GOLDEN
    x = (x ^ (x >> _U30)) * _MIX_1
    x = (x ^ (x >> _U27)) * _MIX_2
    return x ^ (x >> _U31)


@_compiled
def _arranged(affinity, order):
    """The matrix with rows and columns in this order of the items, and sort keys of all entries plus the offset.

    A key is a float32 read as an integer. Rounding keeps the order but for new ties, positive floats are ordered as
    their bits are, and a largest 32-bit integer is found eight at a time, which no largest float64 is.
    """
    n = order.size
    result = np.empty((n, n))
    keys = np.empty((n, n), np.float32)
    for j in range(n):
        row, target, key = affinity[order[j]], result[j], keys[j]
        for i in range(n):
            value = row[order[i]]
            target[i] = value
            key[i] = np.float32(value + _OFFSET)
    return result, keys.view(np.int32)


@_compiled
def _prefix(ascending, room):
    """How many sizes are at most `room`."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] <= room:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _partner(row, keys, free, numbers):
    """Index of the free entry with the largest value plus the offset, of equal ones that of the lowest number."""
    largest = np.int32(0)
    for i in range(keys.size):
        largest = max(largest, np.int32(keys[i] & free[i]))
    first, last = np.int32(keys.size), np.int32(-1)
    for i in range(keys.size):
        same = np.int32(keys[i] & free[i]) == largest
        first = min(first, np.int32(i) if same else np.int32(2147483647))
        last = max(last, np.int32(i) if same else np.int32(-1))
    if first == last:
        return np.int64(first)
    place, best = np.int64(first), 0.0
    for i in range(first, last + 1):
        if np.int32(keys[i] & free[i]) == largest:
            value = row[i] + _OFFSET
            if value > best or (value == best and numbers[i] < numbers[place]):
                place, best = i, value
    return place


@_compiled
def _sum(affinity, inside, held, low, high, sums):
    """Write the sums over the items in the bin for the places from `low` to `high` and return them."""
    result, row = sums[low:high], affinity[inside[0], low:high]
    if held == 1:
        for i in range(row.size):
            result[i] = row[i]
        return result
    more = affinity[inside[1], low:high]
    for i in range(row.size):
        result[i] = row[i] + more[i]
    for k in range(2, held):
        row = affinity[inside[k], low:high]
        for i in range(row.size):
            result[i] += row[i]
    return result


@_compiled
def _favourite(sums, held, free, numbers):
    """As `_partner`, for the means that belong to these sums.

    Different sums may have equal means plus offset, but only if they are very near: the offset is ten times the least
    mean, so that it takes no more than five bits from it.
    """
    bits = sums.view(np.int64)
    largest = np.int64(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & free[i])
    near = largest - 64
    first, last = np.int64(bits.size), np.int64(-1)
    for i in range(bits.size):
        same = (bits[i] & free[i]) >= near
        first = min(first, i if same else _NONE)
        last = max(last, i if same else np.int64(-1))
    place, best = first, 0.0
    for i in range(first, last + 1):
        if (bits[i] & free[i]) >= near:
            value = sums[i] / held + _OFFSET
            if value > best or (value == best and numbers[i] < numbers[place]):
                place, best = i, value
    return place


@_compiled
def _drawn(sums, held, free, word):
    """Index of a free entry drawn in proportion to the means that belong to these sums, which are overwritten."""
    total, last = 0.0, 0
    for i in range(sums.size):
        if free[i]:
            total += sums[i] / held + _OFFSET
            last = i
        sums[i] = total
    mark = np.float64(word >> _U11) * 2.0**-53 * total
    for i in range(last):
        if sums[i] > mark:
            return i
    return last


@_compiled
def _pack(affinity, keys, ascending, numbers, capacity, key, draws, bins):
    """Fill bins one after the other; writes the bin of every item and returns how many bins there are.

    Places are ranks of items by size: the items that fit a bin are among a prefix of them.

    affinity, keys : (n, n) by place;  ascending : sizes by place;  numbers : items by place
    draws : whether items are drawn in proportion to their affinities, or the best one is taken
    """
    n = ascending.size
    free = np.full(n, -1, np.int32)  # by place: all bits set, 0 once packed
    pool = np.arange(n)  # unpacked places, in no order
    where = np.arange(n)  # of each place in the pool
    inside = np.empty(n, np.int64)  # places in the bin, in ascending order of the items
    sums = np.empty(n)
    low, used, room, held = 0, 0, 0, 0
    for step in range(n):
        left = n - step
        word = _word(key, np.uint64(step))
        while free[low] == 0:
            low += 1
        if held == 0 or ascending[low] > room:
            used += 1
            room, held = capacity, 0
            place = pool[np.int64(((word >> _U32) * np.uint64(left)) >> _U32)]
        else:
            high = _prefix(ascending, room)
            if draws:
                place = low + _drawn(_sum(affinity, inside, held, low, high, sums), held, free[low:high], word)
            elif held == 1:
                j = inside[0]
                place = low + _partner(affinity[j, low:high], keys[j, low:high], free[low:high], numbers[low:high])
            else:
                totals = _sum(affinity, inside, held, low, high, sums)
                place = low + _favourite(totals, held, free[low:high], numbers[low:high])
        moved = pool[left - 1]
        pool[where[place]] = moved
        where[moved] = where[place]
        room -= ascending[place]
        free[place] = 0
        bins[numbers[place]] = used - 1
        k = held
        while k > 0 and numbers[inside[k - 1]] > numbers[place]:
            inside[k] = inside[k - 1]
            k -= 1
        inside[k] = place
        held += 1
    return used


@_compiled
def _sample(affinity, ascending, order, capacity, key, samples):
    n = ascending.size
    arranged, keys = _arranged(affinity, order)
    bins, best = np.empty(n, np.int64), np.empty(n, np.int64)
    fewest = n + 1
    for s in range(samples):
        used = _pack(arranged, keys, ascending, order, capacity, _word(key, np.uint64(s)), False, bins)
        if used < fewest:
            fewest = used
            best, bins = bins, best
    return best


@_compiled
def _colony(heuristic, ascending, order, capacity, key, iterations, ants):
    n = ascending.size
    arranged, keys = _arranged(heuristic, order)  # the keys are of no use when items are drawn
    best = np.arange(n)
    paths, fitness = np.empty((ants, n), np.int64), np.empty(ants)
    fewest = n + 1
    pheromone = np.ones((n, n))
    for iteration in range(iterations):
        affinity = pheromone * arranged
        for a in range(ants):
            stream = _word(key, np.uint64(iteration * ants + a))
            used = _pack(affinity, keys, ascending, order, capacity, stream, True, paths[a])
            if used < fewest:
                fewest = used
                best = paths[a].copy()
            fitness[a] = _fullness(paths[a], used, order, ascending, capacity)
        for j in range(n):
            for i in range(n):
                pheromone[j, i] *= DECAY
        for a in range(ants):
            _deposit(pheromone, paths[a], order, fitness[a] / ants)
    return best


@_compiled
def _fullness(bins, used, order, ascending, capacity):
    """Mean over the bins of the squared share that is filled."""
    filled = np.zeros(used, np.int64)
    for place in range(order.size):
        filled[bins[order[place]]] += ascending[place]
    total = 0.0
    for b in range(used):
        total += (filled[b] / capacity) ** 2
    return total / used


@_compiled
def _deposit(pheromone, bins, order, amount):
    """Add `amount` for every pair of items in one bin, an item with itself included; the pheromone is by place."""
    last = np.full(order.size, -1, np.int64)  # of every bin the place seen last
    before = np.empty(order.size, np.int64)  # of every place the one seen before in its bin
    for place in range(order.size):
        b = bins[order[place]]
        other = before[place] = last[b]
        last[b] = place
        pheromone[place, place] += amount
        while other >= 0:
            pheromone[place, other] += amount
            pheromone[other, place] += amount
            other = before[other]


def fit_decreasing(sizes: np.ndarray, capacity: int, *, best: bool) -> np.ndarray:
    """First-fit decreasing, or best-fit decreasing: the fullest bin that has room, of equal ones the first.

    Parameters
    ----------
    sizes : int64 array, shape (n,), from 1 to `capacity`

    Returns
    -------
    int64 array, shape (n,), the bin of every item
    """
    return _fit(sizes, capacity, np.argsort(-sizes, kind="stable"), best)


@_compiled
def _fit(sizes, capacity, order, best):
    n = sizes.size
    room = np.empty(n, np.int64)
    bins = np.empty(n, np.int64)
    used = 0
    for item in order:
        chosen = -1
        for b in range(used):
            if room[b] >= sizes[item] and (chosen < 0 or room[b] < room[chosen]):
                chosen = b
                if not best:
                    break
        if chosen < 0:
            chosen = used
            room[used] = capacity
            used += 1
        room[chosen] -= sizes[item]
        bins[item] = chosen
    return bins


def groups(bins: np.ndarray) -> list[list[int]]:
    """Lists of items, ascending, from the bin of every item."""
    result: list[list[int]] = [[] for _ in range(int(bins.max()) + 1)]
    for item, b in enumerate(bins.tolist()):
        result[b].append(item)
    return result
