"""Noise version 1: standard normal values that are a pure function of (direction seed, tensor name, flat index).

All integers are unsigned 64-bit and wrap; `i` is the flat index in the unsharded, unpadded, row-major tensor:

    mix(x):  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;  return x ^ (x >> 31)
    key      = mix(seed ^ blake2b(name, digest_size=8) as a little-endian integer)
    word(j)  = mix(key + (j + 1) * 0x9E3779B97F4A7C15)
    eps(i)   = TABLE[(word(i >> 2) >> (16 * (i & 3))) & 0xFFFF]
    TABLE[u] = float32(normal_quantile((u + 0.5) / 65536) / s),  s the population standard deviation of those values

There is no stream and no state: any slice of any tensor may be made anywhere, in any order, with the same bits. A
shard passes the flat index of its first element as `start`. Low-rank noise of a 2-D tensor (rows, cols) is `eps = (1 /
sqrt(rank)) * sum_k A[:, k] B[:, k]^T`, where A (rows, rank) and B (cols, rank) are the noise of the names `name/A` and
`name/B`; products and sums are float32, k in order.

Arithmetic is float32 in the order written in each function, without fused multiply-add. `delta` is float32 always. The
functions release the GIL and use one thread; arrays must be C-contiguous. bfloat16 weights come as uint16 bit patterns.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ttc_esopt.errors import ConfigurationError, TtcEsoptError

VERSION = 1
TABLE_SHA256 = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"
MASK = (1 << 64) - 1
_EMPTY = np.empty(0, np.float32)


@dataclass(frozen=True)
class NoiseKind:
    """How directions perturb: `full` (every element its own value) or `lowrank` (2-D tensors, rank `rank`).

    Raises
    ------
    ConfigurationError
        If `kind` is unknown or `rank` is no integer >= 1.
    """

    kind: str = "lowrank"
    rank: int = 1

    def __post_init__(self):
        if self.kind not in ("full", "lowrank"):
            raise ConfigurationError(f"Expected noise full or lowrank[:RANK], got {self.kind} (--noise).")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ConfigurationError(f"Expected a noise rank >= 1, got {self.rank} (--noise lowrank:RANK).")
        if self.kind == "full" and self.rank != 1:
            raise ConfigurationError(f"Expected no rank for full noise, got {self.rank} (--noise).")

    @classmethod
    def parse(cls, text: str) -> "NoiseKind":
        """Read `full`, `lowrank` or `lowrank:R`; raises ConfigurationError for anything else."""
        kind, colon, rank = text.strip().partition(":")
        if not colon:
            return cls(kind)
        if kind != "lowrank" or not (rank.isascii() and rank.isdigit()):
            raise ConfigurationError(f"Expected noise full or lowrank[:RANK], got {text} (--noise).")
        return cls(kind, int(rank))

    def __str__(self):
        return "full" if self.kind == "full" else f"lowrank:{self.rank}"


def mix(x: int) -> int:
    """The 64-bit finaliser of the definition above, for a Python integer (taken modulo 2^64)."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def name_hash(name: str) -> int:
    """64-bit blake2b of the UTF-8 name, read as a little-endian integer."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def tensor_key(seed: int, name: str) -> int:
    """The key of one tensor under one direction seed (0 <= seed < 2^64, else ValueError)."""
    if not 0 <= seed <= MASK:
        raise ValueError(f"Expected a direction seed in 0 .. 2^64 - 1, got {seed}.")
    return mix(int(seed) ^ name_hash(name))


def _kernels():
    """The numba kernels, imported at first use: parsing options and replies must not wait for numba."""
    from ttc_esopt.es import kernels

    return kernels


@lru_cache(maxsize=1)
def table() -> NDArray[np.float32]:
    """The 65,536 normal quantiles, float32, read-only, unit variance, symmetric about 0; largest value 4.325.

    Raises
    ------
    TtcEsoptError
        If this platform's mathematics library yields other bits: its noise would not be that of other machines.
    """
    from scipy.special import ndtri  # here, because most commands never make noise

    quantiles = ndtri((np.arange(65536) + 0.5) / 65536)
    mean = math.fsum(quantiles) / 65536
    deviation = math.sqrt(math.fsum((quantiles - mean) ** 2) / 65536)
    values = (quantiles / deviation).astype(np.float32)
    digest = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
    if digest != TABLE_SHA256:
        raise TtcEsoptError(
            f"Expected noise table {VERSION} to have SHA-256 {TABLE_SHA256[:16]}..., got {digest[:16]}...: "
            "this platform computes normal quantiles differently, so its noise would not match other machines."
        )
    values.flags.writeable = False
    return values


def _flat(array: NDArray, dtype: type, what: str, size: int | None = None) -> NDArray:
    """A 1-D view of `array`, after the checks the kernels rely on (they do not check bounds)."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise TypeError(f"Expected {what} to be a {np.dtype(dtype)} array, got {getattr(array, 'dtype', type(array))}.")
    if not array.flags.c_contiguous:
        raise ValueError(f"Expected {what} to be C-contiguous, got strides {array.strides} for shape {array.shape}.")
    if size is not None and array.size != size:
        raise ValueError(f"Expected {what} to hold {size} values, got {array.size}.")
    return array.reshape(-1)


def _start(start: int) -> np.uint64:
    if start < 0:
        raise ValueError(f"Expected start >= 0, got {start}.")
    return np.uint64(start)


def _pairs(seeds: Sequence[int], coefficients: Sequence[float]) -> NDArray[np.float32]:
    if len(seeds) != len(coefficients):
        raise ValueError(f"Expected one coefficient per direction, got {len(seeds)} and {len(coefficients)}.")
    return np.array(coefficients, np.float32)


def fill(out: NDArray[np.float32], seed: int, name: str, start: int = 0) -> None:
    """Write eps of flat indices start .. start + out.size - 1 of tensor `name` into `out` (float32, any shape)."""
    _kernels().fill(table(), np.uint64(tensor_key(seed, name)), _start(start), _flat(out, np.float32, "out"))


def factors(
    seed: int, name: str, shape: tuple[int, int], rank: int, row: int = 0, column: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The low-rank factors A (rows, rank) and B (cols, rank) of a block of `shape` (rows, cols), float32.

    The block begins at (`row`, `column`) of the 2-D tensor `name`.
    """
    rows, cols = shape
    left, right = np.empty((rows, rank), np.float32), np.empty((cols, rank), np.float32)
    fill(left, seed, f"{name}/A", row * rank)
    fill(right, seed, f"{name}/B", column * rank)
    return left, right


def lowrank_scale(rank: int) -> np.float32:
    """The factor before the sum over k: float32(1 / sqrt(rank))."""
    return np.float32(1 / math.sqrt(rank))


def perturb(
    base: NDArray[np.float32],
    delta: NDArray[np.float32] | None,
    seed: int,
    name: str,
    sigma: float,
    out: NDArray[np.float32],
    start: int = 0,
) -> None:
    """Full noise: out = (base + delta) + float32(sigma) * eps, float32 arrays of one size (`out` may be `base`).

    `delta` None stands for zeros.
    """
    out = _flat(out, np.float32, "out")
    base = _flat(base, np.float32, "base", out.size)
    head = table(), np.uint64(tensor_key(seed, name)), _start(start), np.float32(sigma), base
    if delta is None:
        _kernels().perturb(*head, out)
    else:
        _kernels().perturb_delta(*head, _flat(delta, np.float32, "delta", out.size), out)


def perturb_bf16(
    base: NDArray[np.uint16],
    delta: NDArray[np.float32] | None,
    seed: int,
    name: str,
    sigma: float,
    out: NDArray[np.uint16],
    start: int = 0,
) -> None:
    """As `perturb` for bfloat16 bit patterns: widened to float32, and rounded once to nearest even at the end."""
    out = _flat(out, np.uint16, "out")
    base = _flat(base, np.uint16, "base", out.size)
    delta = _EMPTY if delta is None else _flat(delta, np.float32, "delta", out.size)
    key = np.uint64(tensor_key(seed, name))
    _kernels().perturb_bf16(table(), key, _start(start), np.float32(sigma), base, delta, out)


def apply(base: NDArray[np.float32], delta: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out = base + delta, float32 arrays of one size."""
    out = _flat(out, np.float32, "out")
    _kernels().apply(_flat(base, np.float32, "base", out.size), _flat(delta, np.float32, "delta", out.size), out)


def apply_bf16(base: NDArray[np.uint16], delta: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """out = bfloat16(base + delta), sum in float32, rounded to nearest even; `base` and `out` are bit patterns."""
    out = _flat(out, np.uint16, "out")
    _kernels().apply_bf16(_flat(base, np.uint16, "base", out.size), _flat(delta, np.float32, "delta", out.size), out)


def accumulate(
    delta: NDArray[np.float32], seeds: Sequence[int], coefficients: Sequence[float], name: str, start: int = 0
) -> None:
    """Full noise: acc = 0; acc = acc + c_i * eps_i for the directions in order; delta = delta + acc (in place)."""
    values = _pairs(seeds, coefficients)
    keys = np.array([tensor_key(seed, name) for seed in seeds], np.uint64)
    _kernels().accumulate(table(), keys, values, _start(start), _flat(delta, np.float32, "delta"))


def accumulate_lowrank(
    delta: NDArray[np.float32],
    seeds: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    rank: int,
    row: int = 0,
    column: int = 0,
) -> None:
    """As `accumulate` with low-rank noise; `delta` is the block of the 2-D tensor that begins at (`row`, `column`)."""
    if delta.ndim != 2:
        raise ValueError(f"Expected a 2-D tensor for low-rank noise, got shape {delta.shape} for {name}.")
    values = _pairs(seeds, coefficients)
    _flat(delta, np.float32, "delta")
    rows, cols = delta.shape
    left = np.empty((len(seeds), rows, rank), np.float32)
    right = np.empty((len(seeds), rank, cols), np.float32)
    for i, seed in enumerate(seeds):
        left[i], b = factors(seed, name, delta.shape, rank, row, column)
        right[i] = b.T
    _kernels().accumulate_lowrank(left, right, lowrank_scale(rank), values, delta)


def fill_lowrank(out: NDArray[np.float32], seed: int, name: str, rank: int) -> None:
    """Write the low-rank eps of a whole 2-D tensor (rows, cols) into `out`."""
    out[...] = 0
    accumulate_lowrank(out, (seed,), (1.0,), name, rank)


def tensor_fingerprint(bits: NDArray[np.uint32] | NDArray[np.uint16], name: str, start: int = 0) -> int:
    """The 64-bit fingerprint of one tensor (or of a shard that begins at flat index `start`).

    The definition, over flat indices i and the element's bits, zero-extended to 64 bits:

        key = mix(blake2b_8(name));  fingerprint = sum_i mix(mix(key + (i + 1) * 0x9E3779B97F4A7C15) ^ bits_i)  mod 2^64

    Sums of shards, and of all tensors of a model, add up modulo 2^64 in any order to the fingerprint of the whole.
    """
    dtype = np.uint16 if isinstance(bits, np.ndarray) and bits.dtype == np.uint16 else np.uint32
    key = np.uint64(tensor_key(0, name))
    return int(_kernels().fingerprint(key, _start(start), _flat(bits, dtype, "bits")))
