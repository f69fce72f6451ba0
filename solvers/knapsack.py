"""Filling a knapsack one item at a time: the loop, in Python and compiled, and the check of its result.

The loop is the published protocol: as long as any remaining item fits, the heuristic names one by its place among the
remaining items, which keep their order. Instances of files are counted in their own numbers, integers exactly, while
the heuristic sees them scaled; `scale` is what its weights and capacity were divided by.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import float64, int64, njit, types

TOLERANCE = 1e-12  # by how much a weight may exceed what is left, times the scale; integers have none

_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_INTEGERS = types.Array(types.int64, 1, "C", readonly=True)


class BadPick(Exception):
    """The picked item does not exist or does not fit."""


def tolerance(weights: np.ndarray, capacity: float | int, scale: float = 1.0) -> float | int:
    """By how much a weight may exceed what is left: 0 for integers, else 1e-12 of the scale or a smaller capacity."""
    return 0 if weights.dtype.kind == "i" else TOLERANCE * min(scale, float(capacity))


def pack(
    choose: Callable[[float, np.ndarray, np.ndarray], int],
    weights: np.ndarray,
    capacity: float | int,
    seen_weights: np.ndarray,
    seen_values: np.ndarray,
    scale: float = 1.0,
) -> np.ndarray:
    """Fill a knapsack by asking for the next item as long as any fits.

    Parameters
    ----------
    choose : called with the remaining capacity and the weights and values of the remaining items (float64 arrays, the
        callee's to keep); returns a place in them as an exact int
    weights : float64 or int64 array, shape (n,), what counts
    capacity : what counts
    seen_weights, seen_values : float64 arrays, shape (n,), what is shown
    scale : what is shown of the capacity is the capacity divided by this

    Returns
    -------
    int64 array, the items in the order in which they were picked

    Raises
    ------
    BadPick
        The picked item does not exist or does not fit.
    """
    left = len(weights)
    items = np.arange(left)
    rows = [weights.copy(), seen_weights.copy(), seen_values.copy(), items]
    counted, seen_weights, seen_values, _ = rows
    slack = tolerance(weights, capacity, scale)
    remaining = capacity
    picked = []
    while left and counted[:left].min() <= remaining + slack:
        place = choose(remaining / scale, seen_weights[:left].copy(), seen_values[:left].copy())
        if not 0 <= place < left:
            raise BadPick(f"pick {len(picked)} is no item from 0 to {left - 1}")
        weight = counted[place].item()
        if weight > remaining + slack:
            raise BadPick(f"pick {len(picked)} is an item of weight {weight:g}, {remaining:g} is left")
        remaining -= weight
        picked.append(items[place])
        for row in rows:
            row[place : left - 1] = row[place + 1 : left]
        left -= 1
    return np.array(picked, dtype=np.int64)


@njit(nogil=True)  # compiled anew for every heuristic, so there is nothing to cache
def pack_compiled(choose, weights, capacity, seen_weights, seen_values, scale, slack):
    """`pack` for a compiled `choose`; raises ValueError for a bad pick."""
    n = len(weights)
    counted, seen_w, seen_v, items = weights.copy(), seen_weights.copy(), seen_values.copy(), np.arange(n)
    picked = np.empty(n, np.int64)
    remaining = capacity
    left = n
    while left > 0:
        lightest = counted[0]
        for i in range(1, left):
            lightest = min(lightest, counted[i])
        if lightest > remaining + slack:
            break
        place = np.int64(choose(remaining / scale, seen_w[:left].copy(), seen_v[:left].copy()))
        if place < 0 or place >= left or counted[place] > remaining + slack:
            raise ValueError("no item that fits")
        remaining -= counted[place]
        picked[n - left] = items[place]
        left -= 1
        for i in range(place, left):
            counted[i] = counted[i + 1]
            seen_w[i] = seen_w[i + 1]
            seen_v[i] = seen_v[i + 1]
            items[i] = items[i + 1]
    return picked[: n - left].copy()


def _check(weights, capacity, picked, slack):
    """0: a full knapsack; 1: no such item; 2: an item twice; 3: too heavy; 4: another item fits."""
    n = len(weights)
    free = np.ones(n, np.bool_)
    remaining = capacity
    for k in range(len(picked)):
        item = picked[k]
        if item < 0 or item >= n:
            return 1
        if not free[item]:
            return 2
        if weights[item] > remaining + slack:
            return 3
        free[item] = False
        remaining -= weights[item]
    for item in range(n):
        if free[item] and weights[item] <= remaining + slack:
            return 4
    return 0


_check_floats = njit(int64(_FLOATS, float64, _INTEGERS, float64), cache=True, nogil=True)(_check)
_check_integers = njit(int64(_INTEGERS, int64, _INTEGERS, int64), cache=True, nogil=True)(_check)
_FAULTS = ("", "an item that does not exist", "an item twice", "more than the capacity", "an item left that fits")


def fault(weights: np.ndarray, capacity: float | int, picked: np.ndarray, scale: float = 1.0) -> str:
    """What is wrong with a filled knapsack, empty if nothing.

    Parameters
    ----------
    weights : float64 or int64 array, shape (n,)
    capacity : what the weights may sum up to
    picked : int64 array, one dimension, the items in the order in which they were picked
    scale : as for `pack`
    """
    check = _check_integers if weights.dtype.kind == "i" else _check_floats
    return _FAULTS[check(weights, capacity, picked, tolerance(weights, capacity, scale))]
