"""Noise version 1 on any torch device and in any float type: the bits of the compiled kernels of `ttc_esopt.es.noise`.

The kernels work on numpy views of float32 and bfloat16 tensors on the CPU. For everything else (CUDA, float16) these
functions do the same float32 arithmetic in the same order with torch operations. Products and sums are separate
operations, so nothing is fused; 64-bit unsigned arithmetic is done in int64, which wraps alike, with logical shifts
made of an arithmetic shift and a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from ttc_esopt.es import noise

CHUNK = 1 << 22  # values at a time: bounds the int64 scratch memory


def _signed(x: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    return x - (1 << 64) if x >= 1 << 63 else x


GOLDEN, MIX_1, MIX_2 = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@lru_cache(maxsize=8)
def _table(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(noise.table().copy()).to(device)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def values(seed: int, name: str, start: int, count: int, device: torch.device) -> torch.Tensor:
    """eps of flat indices start .. start + count - 1, float32[count]."""
    first, last = start >> 2, (start + count - 1) >> 2
    counter = torch.arange(first + 1, last + 2, dtype=torch.int64, device=device) * GOLDEN
    words = _mix(counter + _signed(noise.tensor_key(seed, name)))
    quarters = torch.arange(0, 64, 16, dtype=torch.int64, device=device)
    index = ((words[:, None] >> quarters) & 0xFFFF).reshape(-1)[start & 3 :][:count]
    return _table(torch.device(device))[index]


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))


def _float32(x: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(np.float32(x), device=device)


def perturb(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    seed: int,
    name: str,
    sigma: float,
    out: torch.Tensor,
    start: int = 0,
) -> None:
    """out = round((base + delta) + float32(sigma) * eps); `delta` (float32) None stands for zeros."""
    base, out, scale = base.view(-1), out.view(-1), _float32(sigma, out.device)
    for part in _chunks(out.numel()):
        value = base[part].float()
        if delta is not None:
            value = value + delta.view(-1)[part]
        out[part] = value + values(seed, name, start + part.start, part.stop - part.start, out.device) * scale


def apply(base: torch.Tensor, delta: torch.Tensor, out: torch.Tensor) -> None:
    """out = round(base + delta)."""
    base, delta, out = base.view(-1), delta.view(-1), out.view(-1)
    for part in _chunks(out.numel()):
        out[part] = base[part].float() + delta[part]


def accumulate(
    delta: torch.Tensor, seeds: Sequence[int], coefficients: Sequence[float], name: str, start: int = 0
) -> None:
    """Full noise: acc = 0; acc = acc + c_i * eps_i in order; delta = delta + acc."""
    delta = delta.view(-1)
    for part in _chunks(delta.numel()):
        acc = torch.zeros_like(delta[part])
        for seed, c in zip(seeds, coefficients, strict=True):
            eps = values(seed, name, start + part.start, part.stop - part.start, delta.device)
            acc = acc + eps * _float32(c, delta.device)
        delta[part] += acc


def accumulate_lowrank(
    delta: torch.Tensor,
    seeds: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    rank: int,
    row: int = 0,
    column: int = 0,
) -> None:
    """As `accumulate` with low-rank noise; `delta` is the block of the 2-D tensor that begins at (`row`, `column`)."""
    scale = _float32(noise.lowrank_scale(rank), delta.device)
    acc = torch.zeros_like(delta)
    for seed, c in zip(seeds, coefficients, strict=True):
        factors = noise.factors(seed, name, tuple(delta.shape), rank, row, column)
        left, right = (torch.from_numpy(factor).to(delta.device) for factor in factors)
        eps = left[:, :1] * right[:, 0]
        for k in range(1, rank):
            eps = eps + left[:, k : k + 1] * right[:, k]
        acc = acc + (eps * scale) * _float32(c, delta.device)
    delta += acc
