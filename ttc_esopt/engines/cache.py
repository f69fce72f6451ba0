"""Key-value cache that is written in place and loses finished rows cheaply."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

BLOCK = 256  # positions by which a layer grows


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` over buffers with room to spare: a new token is written, not concatenated.

    Shapes: `keys` and `values` are views (b, heads, length, head size) of the buffers (b, heads, capacity, head size).
    """

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.length = 0
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        if self._keys is None or end > self._keys.shape[-2]:
            self._keys = self._grown(self._keys, key_states, end)
            self._values = self._grown(self._values, value_states, end)
            self.is_initialized, self.device = True, key_states.device
        self._keys[:, :, self.length : end] = key_states
        self._values[:, :, self.length : end] = value_states
        self.length = end
        return self._view()

    def _grown(self, old: torch.Tensor | None, states: torch.Tensor, end: int) -> torch.Tensor:
        rows, heads, _, size = states.shape
        new = states.new_empty(rows, heads, (end // BLOCK + 1) * BLOCK, size)
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = self._keys[:, :, : self.length], self._values[:, :, : self.length]
        return self.keys, self.values

    def get_seq_length(self, *_: object) -> int:
        return self.length

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order. Moving only rows from beyond the new end into holes copies just those."""
        if self._keys is None:
            return
        rows = indices.tolist()
        if len(rows) <= self._keys.shape[0] and all(row == i or row >= len(rows) for i, row in enumerate(rows)):
            for i, row in enumerate(rows):
                if row != i:
                    self._keys[i].copy_(self._keys[row])
                    self._values[i].copy_(self._values[row])
            self._keys, self._values = self._keys[: len(rows)], self._values[: len(rows)]
        else:
            self._keys, self._values = self._keys[indices], self._values[indices]
        self._view()


def new_cache(config) -> Cache:
    """A cache for a model's layers: growing ones for full attention, transformers' own for windowed and others."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select(cache: Cache, indices: torch.Tensor) -> None:
    """Keep these rows of every layer, in this order; a row may come several times."""
    for layer in cache.layers:
        if hasattr(layer, "recurrent_states"):  # of a gated delta-net and the like: it has no other way to choose rows
            layer.reorder_cache(indices)
        else:
            layer.batch_select_indices(indices)


def packed(finished: list[bool]) -> list[int]:
    """Row indices after the finished rows are dropped: holes are filled from the end, so few rows move.

    >>> packed([False, True, False, False])
    [0, 3, 2]
    """
    left = finished.count(False)
    movers = [i for i in range(left, len(finished)) if not finished[i]]
    return [movers.pop() if finished[i] else i for i in range(left)]
