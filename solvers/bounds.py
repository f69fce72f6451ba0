"""Bounds that no solution can beat: Held-Karp for tours, L2 for bins, Dantzig for knapsacks, a weak one for routing.

Each of them is valid in exact arithmetic, and rounding errors are taken off where they can occur, so that a solution
beyond a bound is wrong. Where all data are whole numbers the bound is rounded to the next possible value.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numba import njit

_GRAIN = 1024.0  # node prices are multiples of 1 / 1024, so that sums with whole distances are exact
_EXACT = 2.0**52


def held_karp(distances: np.ndarray, iterations: int | None = None) -> int | float:
    """A lower bound of the length of every tour: the best 1-tree under node prices from subgradient ascent.

    Parameters
    ----------
    distances : float64 array, shape (n, n), symmetric
    iterations : number of 1-trees (each costs n^2 steps); None: grows with n, at most about 1.5e9 steps in all

    Returns
    -------
    float, or an int, rounded up, where all distances are whole
    """
    matrix = np.ascontiguousarray(distances, dtype=np.float64)
    n = len(matrix)
    whole = bool((matrix == np.floor(matrix)).all())
    if n < 3:
        bound = float(matrix[0, 1] + matrix[1, 0]) if n == 2 else 0.0
        return int(bound) if whole else bound
    if iterations is None:
        iterations = min(int(28 * n**0.62) + 10, max(50, 1_500_000_000 // (n * n)))
    bound, largest = _ascent(matrix, max(2, iterations), _GRAIN if whole else 0.0)
    exact = whole and (largest + 1) * 4 * n * _GRAIN < _EXACT
    bound -= 0.0 if exact else 1e-15 * n * n * (largest + 1e-300)
    return math.ceil(bound) if whole else max(bound, 0.0)


@njit(cache=True, nogil=True)
def _ascent(matrix, iterations, grain):
    """Best value of a 1-tree minus twice the prices, and the largest number that took part.

    The step falls from one to nothing over the iterations, as proposed by Volgenant and Jonker, which needs no upper
    bound; node 0 is the special node.
    """
    n = matrix.shape[0]
    price = np.zeros(n)
    before = np.zeros(n)
    degree = np.empty(n, np.int64)
    near = np.empty(n)
    parent = np.empty(n, np.int64)
    rest = np.empty(n, np.int64)
    best = -np.inf
    largest = matrix.max()
    first_step = 0.0
    m = iterations
    for k in range(m):
        # Minimum spanning tree of nodes 1 to n - 1 (Prim).
        for i in range(n):
            degree[i] = 0
            near[i] = np.inf
            parent[i] = -1
        length = 0.0
        node = 1
        count = n - 2
        for i in range(count):
            rest[i] = i + 2
        while count > 0:
            at = -1
            closest = np.inf
            for j in range(count):
                i = rest[j]
                d = matrix[node, i] + price[node] + price[i]
                if d < near[i]:
                    near[i] = d
                    parent[i] = node
                if near[i] < closest:
                    closest = near[i]
                    at = j
            if at < 0:  # infinite distances
                return best, largest
            node = rest[at]
            count -= 1
            rest[at] = rest[count]
            length += closest
            degree[node] += 1
            degree[parent[node]] += 1
        # The two cheapest edges of node 0.
        low = np.inf
        second = np.inf
        a = -1
        b = -1
        for i in range(1, n):
            d = matrix[0, i] + price[0] + price[i]
            if d < low:
                second, b = low, a
                low, a = d, i
            elif d < second:
                second, b = d, i
        length += low + second
        degree[0] = 2
        degree[a] += 1
        degree[b] += 1
        total = 0.0
        excess = 0
        for i in range(n):
            total += price[i]
            excess += abs(degree[i] - 2)
        value = length - 2.0 * total
        if value > best:
            best = value
        if excess == 0:  # the 1-tree is a tour: nothing can be better
            break
        if k == 0:
            first_step = value / (2.0 * n)
        left = (m - 1.0 - k) / (m - 1.0)
        step = first_step * left * left
        for i in range(n):
            slope = degree[i] - 2.0
            price[i] += step * (0.7 * slope + 0.3 * before[i])
            before[i] = slope
            if grain > 0.0:
                price[i] = np.floor(price[i] * grain + 0.5) / grain
            largest = max(largest, abs(price[i]))
    return best, largest


def martello_toth_l2(sizes: np.ndarray, capacity: int) -> int:
    """A lower bound of the number of bins: Martello and Toth's L2, the best over all thresholds.

    Parameters
    ----------
    sizes : integer array, shape (n,), from 1 to the capacity
    capacity : of one bin
    """
    ordered = sorted((int(size) for size in sizes), reverse=True)
    capacity = int(capacity)
    sums = [0, *accumulate(ordered)]
    big = sum(1 for size in ordered if 2 * size > capacity)  # no two of them share a bin
    best = max(big, -(-sums[-1] // capacity))
    alone, small_end = big, big
    for threshold in sorted({size for size in ordered if 2 * size <= capacity}, reverse=True):
        while alone and ordered[alone - 1] <= capacity - threshold:
            alone -= 1  # ordered[:alone] leave no room for items of this size
        while small_end < len(ordered) and ordered[small_end] >= threshold:
            small_end += 1
        room = (big - alone) * capacity - (sums[big] - sums[alone])
        overflow = sums[small_end] - sums[big] - room
        best = max(best, big + max(0, -(-overflow // capacity)))
    return best


def dantzig(weights: np.ndarray, values: np.ndarray, capacity: float) -> int | float:
    """An upper bound of the value that fits into a knapsack: items may be cut (those that cannot fit are left out).

    Parameters
    ----------
    weights, values : arrays, shape (n,), at least 0
    capacity : at least 0

    Returns
    -------
    float, or an int, rounded down, where weights and values are integers
    """
    weights, values = np.asarray(weights), np.asarray(values)
    whole = weights.dtype.kind in "iu" and values.dtype.kind in "iu"
    items = [(w, v) for w, v in zip(weights.tolist(), values.tolist(), strict=True) if w <= capacity]
    ratio = (lambda item: Fraction(item[1], item[0])) if whole else (lambda item: item[1] / item[0])
    total = sum(v for w, v in items if w <= 0)
    left = capacity
    for weight, value in sorted((item for item in items if item[0] > 0), key=ratio, reverse=True):
        if weight > left:
            total += Fraction(value * int(left), weight) if whole else value * (left / weight)
            break
        total += value
        left -= weight
    # Sums and ratios of n rounded numbers are off by less than that.
    return math.floor(total) if whole else float(total) * (1 + 4e-16 * (len(items) + 8))


def cvrp_weak(distances: np.ndarray, demands: np.ndarray, capacity: float) -> int | float:
    """A weak lower bound of the cost of every set of routes, often a third below the best.

    The largest of: there and back to the farthest customer; the demands times their distances, twice, over the
    capacity; the two cheapest edges of every node, halved, with as many vehicles as the demands need; the minimum
    spanning tree. Distances need not obey the triangle inequality.

    Parameters
    ----------
    distances : float64 array, shape (n + 1, n + 1), symmetric, row 0 the depot
    demands : array, shape (n + 1,)
    capacity : of one vehicle

    Returns
    -------
    float, or an int, rounded up, where all distances are whole
    """
    matrix = np.ascontiguousarray(distances, dtype=np.float64)
    demands = np.asarray(demands, dtype=np.float64)
    n = len(matrix) - 1
    if n < 1:
        return 0
    whole = bool((matrix == np.floor(matrix)).all())
    away, tree = _from_depot(matrix)
    vehicles = max(1, math.ceil(demands.sum() / capacity - 1e-9))
    others = matrix.copy()
    np.fill_diagonal(others, np.inf)
    inner = others[1:, 1:]
    nearest = np.sort(np.column_stack([inner, others[1:, :1], others[1:, :1]]), axis=1)[:, :2].sum()  # depot: twice
    ends = 2 * np.sort(others[0, 1:])[: min(vehicles, n)].sum()
    candidates = (2 * away.max(), 2 * float(demands @ away) / capacity, (nearest + ends) / 2, tree)
    bound = max(candidates) * (1 - 1e-15 * (n + 8))
    return math.ceil(bound - 1e-6) if whole else bound


@njit(cache=True, nogil=True)
def _from_depot(matrix):
    """Shortest distances from row 0, by detours where they are shorter, and the length of the minimum spanning tree."""
    n = matrix.shape[0]
    away = np.full(n, np.inf)
    near = np.full(n, np.inf)
    length = 0.0
    for tree in range(2):
        done = np.zeros(n, np.bool_)
        key = near if tree else away
        key[0] = 0.0
        for _ in range(n):
            node = -1
            for i in range(n):
                if not done[i] and (node < 0 or key[i] < key[node]):
                    node = i
            done[node] = True
            if tree:
                length += key[node]
            for i in range(n):
                d = matrix[node, i] if tree else matrix[node, i] + key[node]
                if not done[i] and d < key[i]:
                    key[i] = d
    return away, length
