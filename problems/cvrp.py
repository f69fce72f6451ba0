"""Capacitated vehicle-routing instances: what heuristics see of them, and what lengths are measured in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.tsp import distances, scaled_unit, unit

if TYPE_CHECKING:
    from ttc_esopt.problems.files.vrp import CvrpFile


@dataclass(frozen=True, eq=False)
class CvrpInstance:
    """One instance with n customers; row 0 of every array is the depot.

    Attributes
    ----------
    index : place in its set, part of what seeds random numbers
    points : float64 (n + 1, 2) in the unit square, or None where there are no coordinates of a plane
    demands : float64 (n + 1,), 0 for the depot, none above the capacity
    capacity : of each vehicle; there is no limit to their number
    seen : float64 (n + 1, n + 1), the distances that heuristics get; None: Euclidean ones between the points
    lengths : float64 (n + 1, n + 1), symmetric, what routes are measured in; None: the distances that heuristics get
    name : of the file's instance, else empty
    """

    index: int
    points: np.ndarray | None
    demands: np.ndarray
    capacity: float
    seen: np.ndarray | None = None
    lengths: np.ndarray | None = None
    name: str = ""

    def __len__(self) -> int:
        return len(self.demands) - 1

    def matrix(self) -> np.ndarray:
        """Distances that heuristics see: a fresh float64 array (n + 1, n + 1), zero on the diagonal."""
        return distances(self.points, self.seen)

    def metric(self) -> np.ndarray:
        """Distances that routes are measured in: float64 (n + 1, n + 1), zero on the diagonal."""
        return self.matrix() if self.lengths is None else self.lengths

    def coordinates(self) -> np.ndarray:
        """Coordinates that heuristics get, made from the distances where there are none: fresh float64 (n + 1, 2)."""
        return planar_embedding(self.matrix()) if self.points is None else self.points.copy()


def cvrp_instance(record: CvrpFile, index: int = 0) -> CvrpInstance:
    """The instance of a file: heuristics see the unit square, lengths are the file's own.

    Raises
    ------
    DataError
        There is no customer, or one demands more than a vehicle holds.
    """
    from ttc_esopt.problems.files import PLANAR

    demands = np.asarray(record.demands, dtype=np.float64)
    if len(demands) < 2:
        raise DataError(f"{record.name}: expected at least one customer, got none.")
    check_demands(demands, record.capacity, record.name)
    lengths = distances(None, record.distances)
    planar = record.points is not None and record.metric in PLANAR
    points, seen = (unit(record.points), None) if planar else (None, scaled_unit(lengths))
    return CvrpInstance(index, points, demands, float(record.capacity), seen, lengths, record.name)


def check_demands(demands: np.ndarray, capacity: float, name: object) -> None:
    """Raise DataError where a demand is above the capacity."""
    if demands.max() > capacity:
        raise DataError(f"{name}: expected demands up to the capacity {capacity:g}, got {demands.max():g}.")


def planar_embedding(matrix: np.ndarray) -> np.ndarray:
    """Points in the unit square whose distances resemble a matrix (n, n): classical scaling, float64 (n, 2)."""
    squares = matrix**2
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-(centred + centred.T) / 4)
    points = np.zeros((len(matrix), 2))
    kept = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    points[:, 2 - kept.shape[1] :] = kept
    return unit(points)


def route_length(matrix: np.ndarray, routes: list[list[int]]) -> float:
    """Length of all routes, each from the depot (0) through its customers and back, by a matrix (n + 1, n + 1)."""
    stops = [0]
    for route in routes:
        stops += [*route, 0]
    return float(matrix[stops[:-1], stops[1:]].sum())


def nearest_neighbour_routes(matrix: np.ndarray, demands: np.ndarray, capacity: float) -> list[list[int]]:
    """Routes that always go on to the nearest customer that still fits, and home where none does."""
    left = np.ones(len(matrix), dtype=bool)
    left[0] = False
    routes: list[list[int]] = []
    while left.any():
        node, room, route = 0, capacity, []
        while len(fitting := np.flatnonzero(left & (demands <= room))):
            node = int(fitting[np.argmin(matrix[node, fitting])])
            left[node] = False
            room -= demands[node]
            route.append(node)
        routes.append(route)
    return routes
