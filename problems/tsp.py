"""Travelling-salesman instances: what heuristics see of them, and what lengths are measured in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.solvers.tsp_construct import distance_matrix

if TYPE_CHECKING:
    from ttc_esopt.problems.files.tsp import TspFile


@dataclass(frozen=True, eq=False)
class TspInstance:
    """One instance.

    Attributes
    ----------
    index : place in its set, part of what seeds random numbers
    points : float64 (n, 2) in the unit square, or None where there are no coordinates of a plane
    seen : float64 (n, n), the distances that heuristics get; None: Euclidean ones between the points
    lengths : float64 (n, n), what the lengths of tours are measured in; None: the distances that heuristics get
    name : of the file's instance, else empty
    """

    index: int
    points: np.ndarray | None
    seen: np.ndarray | None = None
    lengths: np.ndarray | None = None
    name: str = ""

    def __len__(self) -> int:
        return len(self.seen if self.points is None else self.points)

    def matrix(self) -> np.ndarray:
        """Distances that heuristics see: a fresh float64 array (n, n), zero on the diagonal."""
        return distances(self.points, self.seen)

    def metric(self) -> np.ndarray:
        """Distances that lengths are measured in: float64 (n, n), zero on the diagonal."""
        return self.matrix() if self.lengths is None else self.lengths


def distances(points: np.ndarray | None, seen: np.ndarray | None) -> np.ndarray:
    """A fresh matrix (n, n) with a zero diagonal: `seen` (n, n), or if None Euclidean between `points` (n, 2)."""
    if seen is None:
        return distance_matrix(points)
    matrix = np.array(seen, dtype=np.float64)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def unit(points: np.ndarray) -> np.ndarray:
    """Coordinates moved and scaled by one factor so that they just fit into the unit square.

    Parameters
    ----------
    points : float64 array, shape (n, 2)

    Returns
    -------
    float64 array, shape (n, 2), smallest coordinates 0, largest extent 1 (0 where all points coincide)
    """
    points = np.asarray(points, dtype=np.float64)
    moved = points - points.min(axis=0)
    extent = moved.max()
    return moved / extent if extent > 0 else moved


def scaled_unit(matrix: np.ndarray) -> np.ndarray:
    """A file's matrix divided by its largest entry, with a zero diagonal."""
    matrix = distances(None, matrix)
    largest = matrix.max(initial=0.0)
    return matrix / largest if largest > 0 else matrix


def tsp_instance(record: TspFile, index: int = 0) -> TspInstance:
    """The instance of a file: heuristics see the unit square, lengths are the file's own.

    Raises
    ------
    DataError
        Fewer than three nodes.
    """
    from ttc_esopt.problems.files import PLANAR

    if len(record.distances) < 3:
        raise DataError(f"{record.name}: expected at least 3 nodes, got {len(record.distances)}.")
    lengths = distances(None, record.distances)
    if record.points is not None and record.metric in PLANAR:
        return TspInstance(index, unit(record.points), None, lengths, record.name)
    return TspInstance(index, None, scaled_unit(lengths), lengths, record.name)


def tour_length(matrix: np.ndarray, tour: np.ndarray) -> float:
    """Length of the closed tour (n,) by a matrix (n, n)."""
    return float(matrix[tour, np.roll(tour, -1)].sum())


def nearest_neighbour(matrix: np.ndarray) -> np.ndarray:
    """The nearest-neighbour tour from node 0: int64 (n,)."""
    matrix = np.array(matrix, dtype=np.float64)
    tour = np.zeros(len(matrix), dtype=np.int64)
    for i in range(1, len(matrix)):
        matrix[:, tour[i - 1]] = np.inf
        tour[i] = np.argmin(matrix[tour[i - 1]])
    return tour
