"""Noise version 1: standard normal values that are a pure function of (direction seed, tensor name, flat index).

All integers are unsigned 64-bit and wrap; `i` is the flat index in the unsharded, unpadded, row-major tensor:

    mix(x):  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;  return x ^ (x >> 31)
    key      = mix(seed ^ blake2b(name, digest_size=8) as a little-endian integer)
    word(j)  = mix(key + (j + 1) * 0x9E3779B97F4A7C15)
    index(i) = (word(i >> 2) >> (16 * (i & 3))) & 0xFFFF
    eps(i)   = TABLE[index(i)]
    TABLE[u] = float32(normal_quantile((u + 0.5) / 65536) / s),  s the population standard deviation of those values

Rademacher noise has the table TABLE[u] = +1 for u >= 32768, else -1. Both tables are antisymmetric.

A direction is an integer s >= 0, or its mirror ~s = -s - 1 < 0, whose noise is eps(~s) = -eps(s) exactly; of low-rank
noise the factor A changes its sign.

There is no stream and no state: any slice of any tensor may be made anywhere, in any order, with the same bits. A shard
passes the flat index of its first element as `start`; where it holds `columns` of each row of the `stride` columns of
the whole, its element i is the flat index start + i // columns * stride + i % columns (columns 0: start + i). Low-rank
noise of a 2-D tensor (rows, cols) is `eps = (1 / sqrt(rank)) * sum_k A[:, k] B[:, k]^T`, where A (rows, rank) and B
(cols, rank) are the noise of the names `name/A` and `name/B`; products and sums are float32, k in order.

Rounding to 16 bits is to nearest even, or `stochastic`: upwards in magnitude with the probability that keeps the mean,
by a dither that every element has for good, index(i) of seed 0 and the name `name/dither`. Live weights thus stay a
function of base and delta alone, and what a type holds exactly is never moved. To bfloat16: the dither is added to the
float32 pattern, whose upper 16 bits are kept (NaN is quietened, as in rounding to nearest). To float16: `torch_noise`.

Arithmetic is float32 in the order written in each function, without fused multiply-add. `delta` is float32 always. The
functions release the GIL and use one thread; arrays must be C-contiguous. bfloat16 weights come as uint16 bit patterns.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttc_esopt.errors import TtcEsoptError
from ttc_esopt.es.kind import VALUES
from ttc_esopt.es.kind import NoiseKind as NoiseKind

VERSION = 1
TABLE_SHA256 = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"
MASK = (1 << 64) - 1
ROUNDINGS = ("nearest", "stochastic")


def mix(x: int) -> int:
    """The 64-bit finaliser of the definition above, for a Python integer (taken modulo 2^64)."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def name_hash(name: str) -> int:
    """64-bit blake2b of the UTF-8 name, read as a little-endian integer."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def tensor_key(direction: int, name: str) -> int:
    """The key of one tensor under a direction, the same for its mirror (-2^64 <= direction < 2^64, else ValueError)."""
    seed = ~int(direction) if direction < 0 else int(direction)
    if seed > MASK:
        raise ValueError(f"Expected a direction seed in 0 .. 2^64 - 1, or the mirror of one, got {direction}.")
    return mix(seed ^ name_hash(name))


def dither_key(name: str) -> int:
    """The key of the dither by which a tensor's elements are rounded stochastically."""
    return tensor_key(0, f"{name}/dither")


def signed(direction: int, scale: float) -> np.float32:
    """The factor before a direction's table values: float32(scale), of a mirror with the other sign."""
    return np.float32(-scale if direction < 0 else scale)


def _kernels():
    """The numba kernels, imported at first use: parsing options and replies must not wait for numba."""
    from ttc_esopt.es import kernels

    return kernels


@lru_cache(maxsize=len(VALUES))
def table(values: str = "normal") -> NDArray[np.float32]:
    """The 65,536 values that noise takes, float32, read-only, unit variance, antisymmetric.

    Of "normal" noise they are the normal quantiles, the largest 4.325; of "rademacher" noise -1 and +1.

    Raises
    ------
    TtcEsoptError
        If this platform's mathematics library yields other bits: its noise would not be that of other machines.
    """
    if values == "rademacher":
        made = np.repeat(np.float32([-1, 1]), 32768)
        made.flags.writeable = False
        return made
    if values != "normal":
        raise ValueError(f"Expected noise values {' or '.join(VALUES)}, got {values}.")
    from scipy.special import ndtri  # here, because most commands never make noise

    quantiles = ndtri((np.arange(65536) + 0.5) / 65536)
    mean = math.fsum(quantiles) / 65536
    deviation = math.sqrt(math.fsum((quantiles - mean) ** 2) / 65536)
    made = (quantiles / deviation).astype(np.float32)
    digest = hashlib.sha256(made.astype("<f4").tobytes()).hexdigest()
    if digest != TABLE_SHA256:
        raise TtcEsoptError(
            f"Expected noise table {VERSION} to have SHA-256 {TABLE_SHA256[:16]}..., got {digest[:16]}...: "
            "this platform computes normal quantiles differently, so its noise would not match other machines."
        )
    made.flags.writeable = False
    return made


def _flat(array: NDArray, dtype: type, what: str, size: int | None = None) -> NDArray:
    """A 1-D view of `array`, after the checks the kernels rely on (they do not check bounds)."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise TypeError(f"Expected {what} to be a {np.dtype(dtype)} array, got {getattr(array, 'dtype', type(array))}.")
    if not array.flags.c_contiguous:
        raise ValueError(f"Expected {what} to be C-contiguous, got strides {array.strides} for shape {array.shape}.")
    if size is not None and array.size != size:
        raise ValueError(f"Expected {what} to hold {size} values, got {array.size}.")
    return array.reshape(-1)


class _Run(NamedTuple):
    """The flat indices of the elements of an array, as kernels take them: rows that are `stride` apart."""

    start: np.uint64
    stride: np.uint64
    shape: tuple[int, int]

    @classmethod
    def of(cls, size: int, start: int, columns: int, stride: int) -> "_Run":
        if start < 0:
            raise ValueError(f"Expected start >= 0, got {start}.")
        if columns == 0:
            return cls(np.uint64(start), np.uint64(size), (1, size))
        if not 0 < columns <= stride or size % columns:
            raise ValueError(f"Expected whole rows of columns <= stride, got {size} values, {columns} and {stride}.")
        return cls(np.uint64(start), np.uint64(stride), (size // columns, columns))

    def rows(self, flat: NDArray | None) -> NDArray:
        """A flat array as (rows, columns); None as rows of nothing."""
        return np.empty((self.shape[0], 0), np.float32) if flat is None else flat.reshape(self.shape)


def _stochastic(rounding: str) -> bool:
    if rounding not in ROUNDINGS:
        raise ValueError(f"Expected rounding {' or '.join(ROUNDINGS)}, got {rounding}.")
    return rounding == "stochastic"


def _scales(directions: Sequence[int], coefficients: Sequence[float]) -> NDArray[np.float32]:
    if len(directions) != len(coefficients):
        raise ValueError(f"Expected one coefficient per direction, got {len(directions)} and {len(coefficients)}.")
    return np.array([signed(s, c) for s, c in zip(directions, coefficients, strict=True)], np.float32)


def fill(
    out: NDArray[np.float32],
    direction: int,
    name: str,
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
) -> None:
    """Write eps of the flat indices of `out` (float32, any shape; see the module's text) in tensor `name` into it."""
    flat = _flat(out, np.float32, "out")
    run, key = _Run.of(flat.size, start, columns, stride), np.uint64(tensor_key(direction, name))
    _kernels().fill(table(values), key, run.start, run.stride, signed(direction, 1), run.rows(flat))


def factors(
    direction: int,
    name: str,
    shape: tuple[int, int],
    rank: int,
    row: int = 0,
    column: int = 0,
    values: str = "normal",
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The low-rank factors A (rows, rank) and B (cols, rank) of a block of `shape` (rows, cols), float32.

    The block begins at (`row`, `column`) of the 2-D tensor `name`. Of a mirrored direction A has the other sign.
    """
    rows, cols = shape
    left, right = np.empty((rows, rank), np.float32), np.empty((cols, rank), np.float32)
    fill(left, direction, f"{name}/A", row * rank, values=values)
    fill(right, max(direction, ~direction), f"{name}/B", column * rank, values=values)
    return left, right


def lowrank_scale(rank: int) -> np.float32:
    """The factor before the sum over k: float32(1 / sqrt(rank))."""
    return np.float32(1 / math.sqrt(rank))


def perturb(
    base: NDArray[np.float32],
    delta: NDArray[np.float32] | None,
    direction: int,
    name: str,
    sigma: float,
    out: NDArray[np.float32],
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
) -> None:
    """Full noise: out = (base + delta) + float32(sigma) * eps, float32 arrays of one size (`out` may be `base`).

    `delta` None stands for zeros; `start`, `columns`, `stride` as in the module's text.
    """
    out = _flat(out, np.float32, "out")
    base = _flat(base, np.float32, "base", out.size)
    delta = None if delta is None else _flat(delta, np.float32, "delta", out.size)
    run, key = _Run.of(out.size, start, columns, stride), np.uint64(tensor_key(direction, name))
    _kernels().perturb(
        table(values), key, run.start, run.stride, signed(direction, sigma), run.rows(base), run.rows(delta),
        run.rows(out),
    )  # fmt: skip


def perturb_bf16(
    base: NDArray[np.uint16],
    delta: NDArray[np.float32] | None,
    direction: int,
    name: str,
    sigma: float,
    out: NDArray[np.uint16],
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
    rounding: str = "nearest",
) -> None:
    """As `perturb` for bfloat16 bit patterns: widened to float32, and rounded once at the end."""
    out = _flat(out, np.uint16, "out")
    base = _flat(base, np.uint16, "base", out.size)
    delta = None if delta is None else _flat(delta, np.float32, "delta", out.size)
    run, key = _Run.of(out.size, start, columns, stride), np.uint64(tensor_key(direction, name))
    _kernels().perturb_bf16(
        table(values), key, run.start, run.stride, signed(direction, sigma), run.rows(base), run.rows(delta),
        run.rows(out), _stochastic(rounding), np.uint64(dither_key(name)),
    )  # fmt: skip


def apply(base: NDArray[np.float32], delta: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out = base + delta, float32 arrays of one size."""
    out = _flat(out, np.float32, "out")
    _kernels().apply(_flat(base, np.float32, "base", out.size), _flat(delta, np.float32, "delta", out.size), out)


def apply_bf16(
    base: NDArray[np.uint16],
    delta: NDArray[np.float32],
    out: NDArray[np.uint16],
    name: str = "",
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    rounding: str = "nearest",
) -> None:
    """out = bfloat16(base + delta), sum in float32; `base` and `out` are bit patterns.

    `name`, `start`, `columns` and `stride` say which dither an element has; rounding to nearest does not ask.
    """
    out = _flat(out, np.uint16, "out")
    base, delta = _flat(base, np.uint16, "base", out.size), _flat(delta, np.float32, "delta", out.size)
    run = _Run.of(out.size, start, columns, stride)
    _kernels().apply_bf16(
        run.start, run.stride, run.rows(base), run.rows(delta), run.rows(out), _stochastic(rounding),
        np.uint64(dither_key(name)),
    )  # fmt: skip


def accumulate(
    delta: NDArray[np.float32],
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    start: int = 0,
    *,
    columns: int = 0,
    stride: int = 0,
    values: str = "normal",
) -> None:
    """Full noise: acc = 0; acc = acc + c_i * eps_i for the directions in order; delta = delta + acc (in place)."""
    scales, flat = _scales(directions, coefficients), _flat(delta, np.float32, "delta")
    keys = np.array([tensor_key(direction, name) for direction in directions], np.uint64)
    run = _Run.of(flat.size, start, columns, stride)
    _kernels().accumulate(table(values), keys, scales, run.start, run.stride, run.rows(flat))


def accumulate_lowrank(
    delta: NDArray[np.float32],
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    rank: int,
    row: int = 0,
    column: int = 0,
    values: str = "normal",
) -> None:
    """As `accumulate` with low-rank noise; `delta` is the block of the 2-D tensor that begins at (`row`, `column`)."""
    if delta.ndim != 2:
        raise ValueError(f"Expected a 2-D tensor for low-rank noise, got shape {delta.shape} for {name}.")
    _scales(directions, coefficients)
    _flat(delta, np.float32, "delta")
    rows, cols = delta.shape
    left = np.empty((len(directions), rows, rank), np.float32)
    right = np.empty((len(directions), rank, cols), np.float32)
    for i, direction in enumerate(directions):
        left[i], b = factors(direction, name, delta.shape, rank, row, column, values)
        right[i] = b.T
    _kernels().accumulate_lowrank(left, right, lowrank_scale(rank), np.array(coefficients, np.float32), delta)


def fill_lowrank(out: NDArray[np.float32], direction: int, name: str, rank: int, values: str = "normal") -> None:
    """Write the low-rank eps of a whole 2-D tensor (rows, cols) into `out`."""
    out[...] = 0
    accumulate_lowrank(out, (direction,), (1.0,), name, rank, values=values)


def tensor_fingerprint(
    bits: NDArray[np.uint32] | NDArray[np.uint16], name: str, start: int = 0, *, columns: int = 0, stride: int = 0
) -> int:
    """The 64-bit fingerprint of one tensor, or of the shard that `start`, `columns` and `stride` describe.

    The definition, over flat indices i and the element's bits, zero-extended to 64 bits:

        key = mix(blake2b_8(name));  fingerprint = sum_i mix(mix(key + (i + 1) * 0x9E3779B97F4A7C15) ^ bits_i)  mod 2^64

    Sums of shards, and of all tensors of a model, add up modulo 2^64 in any order to the fingerprint of the whole.
    """
    dtype = np.uint16 if isinstance(bits, np.ndarray) and bits.dtype == np.uint16 else np.uint32
    flat, key = _flat(bits, dtype, "bits"), np.uint64(tensor_key(0, name))
    run = _Run.of(flat.size, start, columns, stride)
    return int(_kernels().fingerprint(key, run.start, run.stride, run.rows(flat)))
