"""Building a travelling-salesman tour one node at a time: distances, candidate lists, the loop and the tour's length.

The loop is the published protocol: start at node 0, offer the nearest unvisited nodes, append the last node unasked.
It exists twice: in plain numpy around a Python function, where nearly all of the time goes into that function, and
compiled around a compiled one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import float64, njit, types

OFFERED = 50  # most nodes that are offered at once
_MATRIX = types.Array(types.float64, 2, "C", readonly=True)
_TOUR = types.Array(types.int64, 1, "C", readonly=True)


class BadChoice(Exception):
    """The chosen node is visited already or does not exist."""


def distance_matrix(points: np.ndarray) -> np.ndarray:
    """Euclidean distances between all points.

    Parameters
    ----------
    points : float64 array, shape (n, 2)

    Returns
    -------
    float64 array, shape (n, n), zero on the diagonal
    """
    return _distances(np.ascontiguousarray(points, dtype=np.float64))


@njit(float64[:, ::1](_MATRIX), cache=True, nogil=True)
def _distances(points):
    n = len(points)
    matrix = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            x = points[i, 0] - points[j, 0]
            y = points[i, 1] - points[j, 1]
            matrix[i, j] = np.sqrt(x * x + y * y)  # as np.linalg.norm, to the bit
    return matrix


def nearest_first(matrix: np.ndarray) -> np.ndarray:
    """For every node all other nodes, nearest first.

    Parameters
    ----------
    matrix : float64 array, shape (n, n), zero on the diagonal

    Returns
    -------
    int64 array, shape (n, n - 1)
    """
    order = np.argsort(matrix, axis=1)  # numpy's own sort: the order of equals is part of the published values
    nodes = np.arange(len(matrix))
    if np.array_equal(order[:, 0], nodes):
        return order[:, 1:].astype(np.int64)
    others = order[order != nodes[:, None]]  # two nodes in one place: the node itself need not come first
    return others.reshape(len(matrix), -1).astype(np.int64)


def construct(choose: Callable[[int, np.ndarray], int], order: np.ndarray) -> np.ndarray:
    """Build a tour from node 0 by asking for the next node until one is left.

    Parameters
    ----------
    choose : called with the current node and the unvisited nodes (int64 array, nearest first, at most `OFFERED`, the
        callee's to keep); returns an unvisited node as an exact int
    order : int64 array, shape (n, n - 1), from `nearest_first`

    Returns
    -------
    int64 array, shape (n,)

    Raises
    ------
    BadChoice
        The chosen node is visited already or does not exist.
    """
    n = len(order)
    free = np.ones(n, dtype=bool)
    tour = np.empty(n, dtype=np.int64)
    node = tour[0] = 0
    free[0] = False
    for i in range(1, n - 1):
        near = order[node]
        node = choose(node, near[free[near]][:OFFERED])
        if not 0 <= node < n:
            raise BadChoice(f"choice {i} is no node from 0 to {n - 1}")
        if not free[node]:
            raise BadChoice(f"choice {i} is node {node}, which was visited before")
        free[node] = False
        tour[i] = node
    if n > 1:
        tour[n - 1] = np.flatnonzero(free)[0]
    return tour


@njit(nogil=True)  # compiled anew for every heuristic, so there is nothing to cache
def construct_compiled(choose, matrix, order):
    """`construct` for a compiled `choose(node, 0, unvisited, matrix)`; ValueError for a bad choice."""
    n = len(order)
    free = np.ones(n, np.bool_)
    tour = np.empty(n, np.int64)
    unvisited = np.empty(min(n, OFFERED), np.int64)  # filled anew for every call: a heuristic may spoil it
    node = 0
    tour[0] = 0
    free[0] = False
    for i in range(1, n - 1):
        count = 0
        for k in range(n - 1):
            other = order[node, k]
            if free[other]:
                unvisited[count] = other
                count += 1
                if count == OFFERED:
                    break
        node = np.int64(choose(node, 0, unvisited[:count], matrix))
        if node < 0 or node >= n or not free[node]:
            raise ValueError("no unvisited node")
        free[node] = False
        tour[i] = node
    if n > 1:
        for k in range(n):
            if free[k]:
                tour[n - 1] = k
    return tour


@njit(types.boolean(_TOUR), cache=True, nogil=True)
def _is_tour(tour):
    n = len(tour)
    free = np.ones(n, np.bool_)
    for k in range(n):
        node = tour[k]
        if node < 0 or node >= n or not free[node]:
            return False
        free[node] = False
    return n == 0 or tour[0] == 0


def is_tour(tour: np.ndarray) -> bool:
    """Whether an int64 array (n,) visits every node from 0 to n - 1 once, node 0 first."""
    return bool(_is_tour(np.ascontiguousarray(tour)))


@njit(float64(_MATRIX, _TOUR), cache=True, nogil=True)
def _length_between_points(points, tour):
    total = 0.0
    for k in range(len(tour)):
        a, b = tour[k], tour[(k + 1) % len(tour)]
        x = points[a, 0] - points[b, 0]
        y = points[a, 1] - points[b, 1]
        total += np.sqrt(x * x + y * y)
    return total


def tour_length(points: np.ndarray, tour: np.ndarray) -> float:
    """Length of the closed tour through `points` (n, 2) in the order `tour` (integers from 0 to n - 1)."""
    points = np.ascontiguousarray(points, dtype=np.float64)
    return _length_between_points(points, np.ascontiguousarray(tour, dtype=np.int64))


@njit(types.UniTuple(float64, 2)(_MATRIX), cache=True, nogil=True)
def _half_sums(matrix):
    n = len(matrix)
    least = most = 0.0
    for i in range(n):
        short, shorter = np.inf, np.inf
        long, longer = -np.inf, -np.inf
        for j in range(n):
            if j == i:
                continue
            d = min(matrix[i, j], matrix[j, i])
            if d < shorter:
                short, shorter = shorter, d
            elif d < short:
                short = d
            d = max(matrix[i, j], matrix[j, i])
            if d > longer:
                long, longer = longer, d
            elif d > long:
                long = d
        if n > 2:
            least += (short + shorter) / 2
            most += (long + longer) / 2
        else:  # the one other node is both neighbours
            least += shorter
            most += longer
    return least, most


def length_bounds(matrix: np.ndarray) -> tuple[float, float]:
    """Least and largest length that a closed tour can have, by the two shortest and the two longest edges of each node.

    Parameters
    ----------
    matrix : float64 array, shape (n, n), distances, none negative

    Returns
    -------
    (lower, upper), a hair apart from the exact sums so that rounding puts no tour outside of them
    """
    if len(matrix) < 2:
        return 0.0, 0.0
    least, most = _half_sums(np.ascontiguousarray(matrix, dtype=np.float64))
    return least * (1 - 1e-9), most * (1 + 1e-9)
