"""Noise version 1 on CUDA tensors, compiled by Triton: the functions of `torch_noise`, one pass over memory each.

Rewriting weights with torch operations writes many temporary tensors of 64-bit integers; here a tensor is read once
and written once. The bits are those of `ttc_esopt.es.noise`: products and sums are float32 in the same order, never
fused (`enable_fp_fusion=False`), integers are unsigned and wrap.

A program works on QUADS words of one row, four values each: word j holds flat indices 4 j .. 4 j + 3, so that a row
that begins or ends within a word masks the rest of it. 16-bit weights come as integers and are widened and rounded by
their bits. With TRITON_INTERPRET=1 in the environment before Triton is imported, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ttc_esopt.engines.torch_noise import as_int64, table
from ttc_esopt.es import noise

QUADS = 256  # words of a program: 1,024 values
TILE = (8, 128)  # rows and columns of a program of low-rank noise
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_jit = triton.jit(do_not_specialize=["key", "dither", "start"])


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _index(key, word):
    """The four 16-bit indices of each word, (QUADS, 4)."""
    mixed = _mix(key.to(tl.uint64) + (word + 1) * 0x9E3779B97F4A7C15)
    return ((mixed[:, None] >> (tl.arange(0, 4) * 16).to(tl.uint64)[None, :]) & 0xFFFF).to(tl.int32)


@triton.jit
def _eps(table, key, word, SIGNS: tl.constexpr):
    index = _index(key, word)
    return tl.where(index >= 32768, 1.0, -1.0) if SIGNS else tl.load(table + index)


@triton.jit
def _place(start, columns, stride, QUADS: tl.constexpr):
    """Of this program: its words, the elements of the array that they stand for, and which of these there are."""
    blocks = tl.cdiv(columns + 3, 4 * QUADS)
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks
    first = start + row * stride
    word = (first >> 2) + (program % blocks) * QUADS + tl.arange(0, QUADS)
    column = word[:, None] * 4 + tl.arange(0, 4)[None, :] - first
    return word.to(tl.uint64), row * columns + column, (column >= 0) & (column < columns)


@triton.jit
def _load(pointer, element, there, FORMAT: tl.constexpr):
    """Weights as float32."""
    value = tl.load(pointer + element, mask=there, other=0)
    if FORMAT == 1:
        value = (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif FORMAT == 2:
        value = value.to(tl.float16, bitcast=True).to(tl.float32)
    return value


@triton.jit
def _store(pointer, element, there, value, dither, word, FORMAT: tl.constexpr, STOCHASTIC: tl.constexpr):
    """Round float32 values to the format of the weights, and write them."""
    x = value.to(tl.uint32, bitcast=True)
    if FORMAT == 1:
        even = x + (0x7FFF + ((x >> 16) & 1))
        rounded = x + _index(dither, word).to(tl.uint32) if STOCHASTIC else even
        kept = tl.where((x & 0x7FFFFFFF) > 0x7F800000, x | 0x400000, rounded)
        tl.store(pointer + element, (kept >> 16).to(tl.uint16).to(tl.int16, bitcast=True), mask=there)
    elif FORMAT == 2:
        if STOCHASTIC:
            size = tl.abs(value)
            shift = tl.where(size < 0.00006103515625, 0.00006103515625, 0.0)
            grown = (size + shift).to(tl.uint32, bitcast=True) + (_index(dither, word) >> 3).to(tl.uint32)
            cut = (grown & 0xFFFFE000).to(tl.float32, bitcast=True) - shift
            signed = (cut.to(tl.uint32, bitcast=True) | (x & 0x80000000)).to(tl.float32, bitcast=True)
            value = tl.where(value != value, value, signed)
        tl.store(pointer + element, value.to(tl.float16).to(tl.int16, bitcast=True), mask=there)
    else:
        tl.store(pointer + element, value, mask=there)


@_jit
def _perturb(
    table, base, delta, out, key, dither, sigma, start, columns, stride,
    MOVED: tl.constexpr, NUDGED: tl.constexpr, SIGNS: tl.constexpr, STOCHASTIC: tl.constexpr, FORMAT: tl.constexpr,
    QUADS: tl.constexpr,
):  # fmt: skip
    word, element, there = _place(start, columns, stride, QUADS)
    value = _load(base, element, there, FORMAT)
    if MOVED:
        value = value + tl.load(delta + element, mask=there, other=0.0)
    if NUDGED:
        value = value + _eps(table, key, word, SIGNS) * sigma
    _store(out, element, there, value, dither, word, FORMAT, STOCHASTIC)


@triton.jit(do_not_specialize=["start", "directions"])
def _accumulate(
    table, delta, keys, scales, directions, start, columns, stride, SIGNS: tl.constexpr, QUADS: tl.constexpr
):
    word, element, there = _place(start, columns, stride, QUADS)
    acc = tl.zeros((QUADS, 4), tl.float32)
    for g in range(directions):
        acc = acc + _eps(table, tl.load(keys + g), word, SIGNS) * tl.load(scales + g)
    tl.store(delta + element, tl.load(delta + element, mask=there, other=0.0) + acc, mask=there)


@triton.jit(do_not_specialize=["directions"])
def _accumulate_lowrank(
    delta, left, right, scales, directions, scale, rows, columns, RANK: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    blocks = tl.cdiv(columns, N)
    i = (tl.program_id(0) // blocks).to(tl.int64) * M + tl.arange(0, M)
    j = (tl.program_id(0) % blocks).to(tl.int64) * N + tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float32)
    a = left + i * RANK
    b = right + j
    for g in range(directions):
        eps = tl.load(a, mask=i < rows, other=0.0)[:, None] * tl.load(b, mask=j < columns, other=0.0)[None, :]
        for k in tl.static_range(1, RANK):
            more = tl.load(b + k * columns, mask=j < columns, other=0.0)
            eps = eps + tl.load(a + k, mask=i < rows, other=0.0)[:, None] * more[None, :]
        acc = acc + (eps * scale) * tl.load(scales + g)
        a += rows * RANK  # step by step: a product with g may not fit 32 bits
        b += columns * RANK
    there = (i < rows)[:, None] & (j < columns)[None, :]
    place = delta + i[:, None] * columns + j[None, :]
    tl.store(place, tl.load(place, mask=there, other=0.0) + acc, mask=there)


@_jit
def _fingerprint(bits, sums, key, dither, start, columns, stride, NARROW: tl.constexpr, QUADS: tl.constexpr):
    word, element, there = _place(start, columns, stride, QUADS)
    raw = tl.load(bits + element, mask=there, other=0)
    value = (raw.to(tl.uint16, bitcast=True) if NARROW else raw.to(tl.uint32, bitcast=True)).to(tl.uint64)
    flat = word[:, None] * 4 + tl.arange(0, 4)[None, :].to(tl.uint64)
    mixed = _mix(_mix(key.to(tl.uint64) + (flat + 1) * 0x9E3779B97F4A7C15) ^ value)
    mixed = tl.where(there, mixed.to(tl.int64, bitcast=True), 0)
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(mixed, 1), 0))


def _run(kernel: Any, programs: int, tensor: torch.Tensor, *given: Any, **constants: Any) -> None:
    with torch.cuda.device_of(tensor):
        kernel[(programs,)](*given, **constants, enable_fp_fusion=False)


def _rows(size: int, columns: int, stride: int) -> tuple[int, int, int]:
    """(programs, columns, stride) of a pass over `size` elements."""
    columns, stride = columns or size, stride or size
    return size // columns * triton.cdiv(columns + 3, 4 * QUADS), columns, stride


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor if tensor.dtype == torch.float32 else tensor.view(torch.int16)).view(-1)


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
    factor = float(noise.signed(direction, sigma))
    _write(base, delta, (direction, factor, values), name, out, start, columns, stride, rounding)


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
    _write(base, delta, None, name, out, start, columns, stride, rounding)


def _write(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    nudge: tuple[int, float, str] | None,
    name: str,
    out: torch.Tensor,
    start: int,
    columns: int,
    stride: int,
    rounding: str,
) -> None:
    if not out.numel():
        return
    direction, factor, values = nudge or (0, 0.0, "normal")
    programs, columns, stride = _rows(out.numel(), columns, stride)
    moved = out if delta is None else delta.view(-1)  # something to point at
    _run(
        _perturb, programs, out, table(values, out.device), _raw(base), moved, _raw(out),
        as_int64(noise.tensor_key(direction, name)), as_int64(noise.dither_key(name)), factor, start, columns, stride,
        MOVED=delta is not None, NUDGED=nudge is not None, SIGNS=values == "rademacher",
        STOCHASTIC=rounding == "stochastic", FORMAT=FORMATS[out.dtype], QUADS=QUADS,
    )  # fmt: skip


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
    if not delta.numel():
        return
    device, delta = delta.device, delta.view(-1)
    scales = [noise.signed(one, c) for one, c in zip(directions, coefficients, strict=True)]
    keys = torch.tensor([as_int64(noise.tensor_key(one, name)) for one in directions], dtype=torch.int64, device=device)
    factors = torch.from_numpy(np.array(scales, np.float32)).to(device)
    programs, columns, stride = _rows(delta.numel(), columns, stride)
    _run(
        _accumulate, programs, delta, table(values, device), delta, keys, factors, len(scales), start, columns,
        stride, SIGNS=values == "rademacher", QUADS=QUADS,
    )  # fmt: skip


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
    rows, columns = delta.shape
    if not directions:
        return
    pairs = [noise.factors(one, name, (rows, columns), rank, row, column, values) for one in directions]
    left = torch.from_numpy(np.stack([a for a, _ in pairs])).to(delta.device)
    right = torch.from_numpy(np.ascontiguousarray(np.stack([b.T for _, b in pairs]))).to(delta.device)
    scales = torch.from_numpy(np.array(coefficients, np.float32)).to(delta.device)
    programs = triton.cdiv(rows, TILE[0]) * triton.cdiv(columns, TILE[1])
    _run(
        _accumulate_lowrank, programs, delta, delta, left, right, scales, len(pairs),
        float(noise.lowrank_scale(rank)), rows, columns, RANK=rank, M=TILE[0], N=TILE[1],
    )  # fmt: skip


def fingerprint(tensor: torch.Tensor, name: str, start: int = 0, *, columns: int = 0, stride: int = 0) -> int:
    """The fingerprint of a tensor of 2- or 4-byte values, or of a part of one: see `noise.tensor_fingerprint`."""
    if not tensor.numel():
        return 0
    narrow = tensor.element_size() == 2
    bits = tensor.detach().view(-1).view(torch.int16 if narrow else torch.int32)
    programs, columns, stride = _rows(bits.numel(), columns, stride)
    sums = torch.empty(programs, dtype=torch.int64, device=bits.device)
    _run(
        _fingerprint, programs, bits, bits, sums, as_int64(noise.tensor_key(0, name)), 0, start, columns, stride,
        NARROW=narrow, QUADS=QUADS,
    )  # fmt: skip
    return int(sums.sum()) & noise.MASK
