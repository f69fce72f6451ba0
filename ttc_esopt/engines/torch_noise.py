"""Noise version 1 on any torch device and in any float type: the bits of the compiled kernels of `ttc_esopt.es.noise`.

The kernels work on numpy views of float32 and bfloat16 tensors on the CPU. For everything else (float16, CUDA without
Triton) these functions do the same float32 arithmetic in the same order with torch operations. Products and sums are
separate operations, so nothing is fused; 64-bit unsigned arithmetic is done in int64, which wraps alike, with logical
shifts made of an arithmetic shift and a mask.

Stochastic rounding to float16: below 2^-14, where the type's grain no longer shrinks, 2^-14 is added to |x| first;
then the upper 13 bits of the element's dither are added to the float32 pattern, whose lower 13 bits are cleared, and
2^-14 is taken away again. The result is a float16 exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from ttc_esopt.es import noise

CHUNK = 1 << 22  # values at a time: bounds the int64 scratch memory
SMALLEST_NORMAL = 2.0**-14  # of float16


def as_int64(x: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    return x - (1 << 64) if x >= 1 << 63 else x


GOLDEN, MIX_1, MIX_2 = (as_int64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@lru_cache(maxsize=16)
def table(values: str, device: torch.device) -> torch.Tensor:
    """The noise table on a device, float32[65536]."""
    return torch.from_numpy(noise.table(values).copy()).to(device)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def _indices(key: int, part: slice, start: int, columns: int, stride: int, device: torch.device) -> torch.Tensor:
    """The 16-bit indices of elements part.start .. part.stop - 1, int64."""
    key = as_int64(key)
    if columns in (0, stride):
        first, last = (start + part.start) >> 2, (start + part.stop - 1) >> 2
        counter = torch.arange(first + 1, last + 2, dtype=torch.int64, device=device) * GOLDEN
        quarters = torch.arange(0, 64, 16, dtype=torch.int64, device=device)
        index = (_mix(counter + key)[:, None] >> quarters) & 0xFFFF
        return index.reshape(-1)[(start + part.start) & 3 :][: part.stop - part.start]
    i = torch.arange(part.start, part.stop, dtype=torch.int64, device=device)
    i = start + torch.div(i, columns, rounding_mode="floor") * stride + i % columns
    return (_mix(((i >> 2) + 1) * GOLDEN + key) >> ((i & 3) << 4)) & 0xFFFF


def values(seed: int, name: str, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Normal eps of flat indices start .. start + count - 1, float32[count]."""
    device = torch.device(device)
    index = _indices(noise.tensor_key(seed, name), slice(0, count), start, 0, 0, device)
    return table("normal", device)[index] * _float32(noise.signed(seed, 1), device)


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))


def _float32(x: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(np.float32(x), device=device)


def perturb(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    direction: int,
    name: str,
    sigma: float,
    out: torch.Tensor,
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
    rounding: str = "nearest",
) -> None:
    """out = round((base + delta) + float32(sigma) * eps); `delta` (float32) None stands for zeros."""
    base, out, device = base.view(-1), out.view(-1), out.device
    scale, key = _float32(noise.signed(direction, sigma), device), noise.tensor_key(direction, name)
    for part in _chunks(out.numel()):
        value = base[part].float()
        if delta is not None:
            value = value + delta.view(-1)[part]
        eps = table(values, device)[_indices(key, part, start, columns, stride, device)]
        _write(out, part, value + eps * scale, name, start, columns, stride, rounding)


def apply(
    base: torch.Tensor,
    delta: torch.Tensor,
    out: torch.Tensor,
    name: str = "",
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    rounding: str = "nearest",
) -> None:
    """out = round(base + delta)."""
    base, delta, out = base.view(-1), delta.view(-1), out.view(-1)
    for part in _chunks(out.numel()):
        _write(out, part, base[part].float() + delta[part], name, start, columns, stride, rounding)


def _write(
    out: torch.Tensor, part: slice, value: torch.Tensor, name: str, start: int, columns: int, stride: int, rounding: str
) -> None:
    """out[part] = value, rounded to the type of `out`."""
    if rounding == "stochastic" and out.dtype != torch.float32:
        dither = _indices(noise.dither_key(name), part, start, columns, stride, out.device)
        value = dithered(value, dither, out.dtype)
    out[part] = value


def dithered(value: torch.Tensor, dither: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 values rounded stochastically to bfloat16 or float16 (still float32); `dither` in 0 .. 65535."""
    dither = dither.to(torch.int32)
    if dtype == torch.bfloat16:
        rounded = ((value.view(torch.int32) + dither) & -0x10000).view(torch.float32)
    else:
        size = value.abs()
        shift = torch.where(size < SMALLEST_NORMAL, SMALLEST_NORMAL, 0.0).float()
        cut = (((size + shift).view(torch.int32) + (dither >> 3)) & -0x2000).view(torch.float32)
        rounded = torch.copysign(cut - shift, value)
    return torch.where(torch.isnan(value), value, rounded)


def accumulate(
    delta: torch.Tensor,
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
) -> None:
    """Full noise: acc = 0; acc = acc + c_i * eps_i in order; delta = delta + acc."""
    delta, device = delta.view(-1), delta.device
    for part in _chunks(delta.numel()):
        acc = torch.zeros_like(delta[part])
        for direction, c in zip(directions, coefficients, strict=True):
            key = noise.tensor_key(direction, name)
            eps = table(values, device)[_indices(key, part, start, columns, stride, device)]
            acc = acc + eps * _float32(noise.signed(direction, c), device)
        delta[part] += acc


def accumulate_lowrank(
    delta: torch.Tensor,
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    rank: int,
    row: int = 0,
    column: int = 0,
    values: str = "normal",
) -> None:
    """As `accumulate` with low-rank noise; `delta` is the block of the 2-D tensor that begins at (`row`, `column`)."""
    scale = _float32(noise.lowrank_scale(rank), delta.device)
    acc = torch.zeros_like(delta)
    for direction, c in zip(directions, coefficients, strict=True):
        factors = noise.factors(direction, name, tuple(delta.shape), rank, row, column, values)
        left, right = (torch.from_numpy(factor).to(delta.device) for factor in factors)
        eps = left[:, :1] * right[:, 0]
        for k in range(1, rank):
            eps = eps + left[:, k : k + 1] * right[:, k]
        acc = acc + (eps * scale) * _float32(c, delta.device)
    delta += acc
