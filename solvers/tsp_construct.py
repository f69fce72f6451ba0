"""Building a travelling-salesman tour one node at a time: distances, candidate lists, the loop and the tour's length.

The loop is the published protocol: start at node 0, offer the nearest unvisited nodes, append the last node unasked.
It is plain numpy, since nearly all of the time goes into the heuristic that it calls.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


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
    return np.linalg.norm(points[:, None] - points, axis=2)


def nearest_first(matrix: np.ndarray) -> np.ndarray:
    """For every node all other nodes, nearest first.

    Parameters
    ----------
    matrix : float64 array, shape (n, n)

    Returns
    -------
    int64 array, shape (n, n - 1)
    """
    return np.argsort(matrix, axis=1)[:, 1:].astype(np.int64)  # the first one of each row is the node itself


def tour_length(points: np.ndarray, tour: np.ndarray) -> float:
    """Length of the closed tour through `points` (n, 2) in the order `tour` (integers, n)."""
    ordered = points[tour]
    return float(np.linalg.norm(ordered - np.roll(ordered, -1, axis=0), axis=1).sum())


def construct(
    choose: Callable[[int, np.ndarray], int], order: np.ndarray, *, start: int = 0, offered: int = 50
) -> np.ndarray:
    """Build a tour by asking for the next node until one is left.

    Parameters
    ----------
    choose : called with the current node and the unvisited nodes (int64 array, nearest first, at most `offered`, the
        callee's to keep); returns an unvisited node as an exact int
    order : int64 array, shape (n, n - 1), from `nearest_first`
    start : first node of the tour
    offered : most nodes that are offered at once

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
    node = tour[0] = start
    free[start] = False
    for i in range(1, n - 1):
        near = order[node]
        node = choose(node, near[free[near]][:offered])
        if not 0 <= node < n:
            raise BadChoice(f"choice {i} is no node from 0 to {n - 1}")
        if not free[node]:
            raise BadChoice(f"choice {i} is node {node}, which was visited before")
        free[node] = False
        tour[i] = node
    if n > 1:
        tour[n - 1] = np.flatnonzero(free)[0]
    return tour
