"""What the problems share whose programs rate pairs: accepted names, the matrix of ratings, random streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.base import NonFinite, WrongShape

MOST_NODES = 2800  # or items, whose matrix fits into one answer of a child
_NAMES = ("heuristics", "heuristics_v1", "heuristics_v2", "heuristics_v3")
_RETURNED = 32 << 20  # bytes that one child returns, if one instance has no more


def find_heuristic(namespace: dict[str, Any]) -> Any:
    """The program's function, in the published order: `heuristics`, then `heuristics_v1` to `heuristics_v3`, then any
    other `heuristics_v*` by name; None if there is none."""
    others = sorted(name for name in namespace if isinstance(name, str) and name.startswith("heuristics_v"))
    for name in (*_NAMES, *others):
        if callable(namespace.get(name)):
            return namespace[name]
    return None


def as_matrix(returned: Any, n: int) -> np.ndarray:
    """What a program returned, as a float64 array (n, n) that may hold NaN and infinities (in the child).

    Raises
    ------
    WrongShape
        It is no array of real numbers (nor nested lists of them), or of another shape.
    """
    kind = f"an array of shape {returned.shape}" if isinstance(returned, np.ndarray) else type(returned).__name__
    fault = f"expected a matrix ({n}, {n}), got {kind}"
    try:
        found = np.asarray(returned)
        if found.dtype.kind not in "biufO":
            raise WrongShape(f"expected a matrix of real numbers, got {found.dtype}")
        matrix = found.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise WrongShape(fault) from None
    if matrix.shape != (n, n):
        raise WrongShape(fault)
    return np.ascontiguousarray(matrix)


def check_matrix(output: np.ndarray, n: int, largest: float = np.inf) -> None:
    """Raise WrongShape or NonFinite unless the array is float64 (n, n), finite and below `largest` in size."""
    if output.dtype != np.float64 or output.shape != (n, n):
        raise WrongShape(f"expected a float64 matrix ({n}, {n}), got {output.dtype} of shape {output.shape}")
    if not np.isfinite(output).all() or not (np.abs(output) <= largest).all():
        raise NonFinite("the matrix holds NaN or infinity")


def stream_of(instance: Any, seed: int) -> int:
    """Number of the random stream of an instance, numbered as published."""
    return (1234 + 10_000_000 * seed + 1000 * len(instance) + instance.index) % 2**64


def at_once(instances: Sequence[Any]) -> int:
    """On how many instances one child may work, so that what it returns stays small."""
    largest = max((len(instance) + 1 for instance in instances), default=1)
    return max(1, _RETURNED // (8 * largest**2))


def ones_on_diagonal(instance: Any) -> np.ndarray:
    """The distances that a program sees, as published: a fresh float64 matrix with ones on the diagonal."""
    matrix = instance.matrix()
    np.fill_diagonal(matrix, 1.0)
    return matrix


def check_nodes(path: str | Path, nodes: int, least: int) -> None:
    """Raise DataError where a file has too few nodes, or too many for a matrix to travel between processes."""
    if not least <= nodes <= MOST_NODES:
        raise DataError(f"{path}: expected {least} to {MOST_NODES} nodes, got {nodes}.")


def own_stream(size: int) -> np.random.RandomState:
    """The stream of our own test sets, drawn where the published ones are not at hand: seed 987654321 + size."""
    return np.random.RandomState(987654321 + size)
