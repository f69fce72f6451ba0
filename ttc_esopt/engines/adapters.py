"""Low-rank terms beside linear layers: the factors of scope `lora`, and what moves where weights are packed.

Every row of every forward pass gets y += A (B^T x) on top of what the layer gives. Two things are kept in that form:

- scope `lora`: A (rows, R) and B (cols, R) are tensors of the model like others, under the names ``<weight>/lora_A``
  and ``<weight>/lora_B``, moved by full noise while the base stays. A begins as zeros, so that nothing changes, B as
  eps / sqrt(R) of direction 0, so that noise of radius sigma on A changes each weight by sigma (root mean square).
- quantized bases: their values are packed and cannot move. A step's directions are low-rank, so they are kept as
  columns of a growing A and B: r columns per direction, two bytes x r (rows + cols) each in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from ttc_esopt.engines import arrays
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LORA_RANK = 8  # of --scope lora


def lora_rank(scope: str) -> int | None:
    """R of a scope `lora:R` (`lora` alone: 8), None for other scopes; raises ConfigurationError for an odd R."""
    word, colon, text = scope.partition(":")
    if word != "lora":
        return None
    if not colon:
        return LORA_RANK
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1024):
        raise ConfigurationError(f"Expected scope lora:R with R in 1 .. 1024, got {scope!r} (--scope).")
    return int(text)


def size_of(module: nn.Module) -> tuple[int, int] | None:
    """(rows, cols) of a layer's weight matrix, packed or not; None if it is no linear layer."""
    for words in (("out_features", "in_features"), ("outfeatures", "infeatures")):
        sizes = tuple(getattr(module, word, None) for word in words)
        if all(isinstance(size, int) for size in sizes):
            return sizes
    return None


def is_packed(module: nn.Module) -> bool:
    """Whether a linear layer holds its weights in another form than a matrix of float32, bfloat16 or float16."""
    size = size_of(module)
    if size is None:
        return False
    weight = getattr(module, "weight", None)
    if type(module) is nn.Linear and weight.dtype in FLOATS:  # empty ones are refused by name
        return False
    plain = isinstance(weight, torch.Tensor) and weight.dtype in FLOATS and tuple(weight.shape) == size
    return not plain and any(True for _ in tensors_of(module))


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers of the module itself."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def working_device(module: nn.Module) -> torch.device:
    """Where the layer works."""
    return next(iter([*tensors_of(module), *module.parameters()])).device


class Adapters:
    """Hooks that add A (B^T x) to the output of layers, for all rows alike.

    Parameters
    ----------
    modules : dict of str to nn.Module
        Layers by weight name.
    dtype : torch.dtype
        Of the factors: that of the model's activations.
    """

    def __init__(self, modules: Mapping[str, nn.Module], dtype: torch.dtype) -> None:
        self.modules, self.dtype, self.active = dict(modules), dtype, True
        self.factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # A (rows, r), B (cols, r)
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in self.modules.items()]

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def shape(self, name: str) -> tuple[int, int]:
        """(rows, cols) of the weight."""
        return size_of(self.modules[name])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The factors by name."""
        return {
            f"{name}/lora_{word}": factor
            for name, pair in self.factors.items()
            for word, factor in zip("AB", pair, strict=True)
        }

    def _hook(self, name: str):
        def add(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            if not self.active or name not in self.factors:
                return output
            a, b = self.factors[name]
            return output + (inputs[0] @ b) @ a.T

        return add


class Lora(Adapters):
    """The factors of scope `lora:rank`, as they are before the first step."""

    def __init__(self, modules: Mapping[str, nn.Module], dtype: torch.dtype, rank: int) -> None:
        super().__init__(modules, dtype)
        self.rank, self.counted = rank, False  # whether the factors, having moved, are a part of the model
        for name, module in self.modules.items():
            rows, columns = self.shape(name)
            values = np.empty((columns, rank), np.float32)
            noise.fill(values, 0, f"{name}/lora_B")
            b = torch.from_numpy(values / np.float32(math.sqrt(rank))).to(working_device(module), dtype)
            self.factors[name] = torch.zeros(rows, rank, dtype=dtype, device=b.device), b

    def merge(self, live: Mapping[str, torch.Tensor]) -> None:
        """live = round(live + A B^T) for every layer, summed in float32."""
        for name, (a, b) in self.factors.items():
            live[name].copy_(live[name].float() + a.float() @ b.float().T)


class Grown(Adapters):
    """Steps of low-rank noise on packed layers, kept as factors.

    What was taken up from another run (`keep`) is not taken back by `clear`.
    """

    def __init__(self, modules: Mapping[str, nn.Module], dtype: torch.dtype) -> None:
        super().__init__(modules, dtype)
        self._kept = 0  # columns
        self._all: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def columns(self) -> int:
        """How many, of every layer."""
        return next((pair[0].shape[1] for pair in self._all.values()), 0)

    def extend(self, kind: NoiseKind, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """Add the columns of one step of low-rank noise, the coefficients in A."""
        scale = noise.lowrank_scale(kind.rank)
        for name, module in self.modules.items():
            lefts, rights = [], []
            for direction, c in zip(directions, coefficients, strict=True):
                left, right = noise.factors(direction, name, self.shape(name), kind.rank, values=kind.values)
                lefts.append(left * (np.float32(c) * scale))
                rights.append(right)
            fresh = []
            for i, parts in enumerate((lefts, rights)):
                new = torch.from_numpy(np.concatenate(parts, axis=1)).to(working_device(module), self.dtype)
                fresh.append(torch.cat([self._all[name][i], new], dim=1) if name in self._all else new)
            self._all[name] = (fresh[0], fresh[1])
        self.show()

    def keep(self) -> None:
        """Regard what there is as the beginning."""
        self._kept = self.columns

    def clear(self) -> None:
        """The beginning again."""
        kept = self._kept
        self._all = {name: (a[:, :kept], b[:, :kept]) for name, (a, b) in self._all.items()} if kept else {}
        self.show()

    def show(self, beginning: bool = False) -> None:
        """Let the layers work with all columns, or with those of the beginning."""
        count = self._kept if beginning else self.columns
        self.factors = {name: (a[:, :count], b[:, :count]) for name, (a, b) in self._all.items()} if count else {}

    def fingerprint(self) -> int:
        """Sum over the factors of all columns; 0 if there are none."""
        named = {f"{name}/{word}": pair[i] for name, pair in self._all.items() for i, word in enumerate("AB")}
        return sum(arrays.fingerprint(tensor, name) for name, tensor in named.items() if tensor.numel()) & noise.MASK

    def tensors(self) -> dict[str, torch.Tensor]:
        """The factors by name, all columns."""
        return {f"{name}/{word}": pair[i] for name, pair in self._all.items() for i, word in enumerate("AB")}
