"""Bin packing: what an instance is, in every setting that packs bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class BppInstance:
    """Items to be packed into as few bins as possible.

    Attributes
    ----------
    index : its number in the set
    sizes : int64 array, shape (n,), each from 1 to `capacity`
    capacity : of every bin
    name : of an instance that was read from a file
    """

    index: int
    sizes: np.ndarray
    capacity: int
    name: str = ""

    def __len__(self) -> int:
        return len(self.sizes)
