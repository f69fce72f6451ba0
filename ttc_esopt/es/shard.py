"""The part of a checkpoint tensor that a process holds: whole, a slice of its rows, or a slice of its columns.

Noise and fingerprints are functions of the checkpoint tensor's name and of flat indices in the whole tensor. Tensor
parallelism, fused layers and padded vocabularies change what is held where, never what an element's noise is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """A block of a tensor seen as a matrix: rows are its first dimension, columns all others together (1 for vectors).

    Parameters
    ----------
    shape : tuple of int
        Of the whole tensor in the checkpoint, unpadded.
    row, rows : int
        First row held here, and how many.
    column, columns : int
        First column held here, and how many.
    counted : bool
        Whether this copy enters sums over all processes: of replicas, one does.
    name : str
        Of the checkpoint tensor, where a process holds several blocks of it and each goes by a key of its own.

    Raises
    ------
    ValueError
        If the block does not lie within the tensor.
    """

    shape: tuple[int, ...]
    row: int
    rows: int
    column: int
    columns: int
    counted: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        height, width = matrix(self.shape)
        inside = 0 <= self.row <= self.row + self.rows <= height and self.column >= 0
        if not (inside and self.column + self.columns <= width):
            raise ValueError(f"Expected a block within {height} x {width}, got {self}.")

    @classmethod
    def whole(cls, shape: Sequence[int], counted: bool = True) -> Shard:
        """All of a tensor of this shape."""
        height, width = matrix(tuple(shape))
        return cls(tuple(shape), 0, height, 0, width, counted)

    @property
    def start(self) -> int:
        """Flat index, in the whole tensor, of the first element held here."""
        return self.row * self.stride + self.column

    @property
    def stride(self) -> int:
        """Columns of the whole tensor: element i held here is element start + i // columns * stride + i % columns."""
        return matrix(self.shape)[1]

    @property
    def flat(self) -> bool:
        """Whether what is held is one run of flat indices."""
        return self.columns == self.stride or self.rows == 1

    @property
    def size(self) -> int:
        """Elements held here."""
        return self.rows * self.columns


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of a tensor seen as a matrix; a scalar is 1 x 1, a vector of n is n x 1."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
