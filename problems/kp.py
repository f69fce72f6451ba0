"""Knapsack instances: what heuristics see of them, and the numbers in which they are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttc_esopt.errors import DataError

if TYPE_CHECKING:
    from ttc_esopt.problems.files.knapsack import KpFile

_LARGEST_SUM = 1e15  # up to here float64 holds every integer


@dataclass(frozen=True, eq=False)
class KpInstance:
    """One knapsack and its items.

    Attributes
    ----------
    weights, values : float64 arrays, shape (n,), what heuristics see
    capacity : what heuristics see
    exact : (weights, values, capacity) in a file's own numbers, int64 arrays and an int or float64 arrays and a float;
        None: those that heuristics see
    name : of an instance that was read from a file
    """

    weights: np.ndarray
    values: np.ndarray
    capacity: float
    exact: tuple[np.ndarray, np.ndarray, int | float] | None = None
    name: str = ""

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def counted(self) -> tuple[np.ndarray, np.ndarray, int | float]:
        """Weights, values and capacity that decide what fits and what it is worth."""
        return self.exact or (self.weights, self.values, self.capacity)

    @property
    def scale(self) -> float:
        """What the counted weights and capacity were divided by to be shown."""
        return _largest(self.exact[0]) if self.exact else 1.0


def kp_instance(record: KpFile) -> KpInstance:
    """The instance of a file: heuristics see weights and capacity divided by the largest weight, values by the largest.

    Raises
    ------
    DataError
        The numbers are so large that sums of them would not be exact.
    """
    weights, values, capacity = record.weights, record.values, record.capacity
    if max(weights.sum(dtype=np.float64), values.sum(dtype=np.float64), capacity) > _LARGEST_SUM:
        raise DataError(f"{record.name}: expected weights and values that sum up to less than {_LARGEST_SUM:g}.")
    scale = _largest(weights)
    counted = (weights, values, capacity)
    return KpInstance(weights / scale, values / _largest(values), capacity / scale, counted, record.name)


def _largest(numbers: np.ndarray) -> float:
    return float(numbers.max(initial=0)) or 1.0  # all zero: nothing to be scaled
