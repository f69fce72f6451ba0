"""The test oracle: the ES rules written from the published formulas in plain numpy and the standard library.

It shares no line with the library (and imports none of it); it is slow, and every float32 operation is written out so
that its order is plain to see.
"""

import hashlib
import math
from statistics import NormalDist

import numpy as np

F32 = np.float32
U64 = 2**64


def make_table() -> np.ndarray:
    """float32(normal_quantile((u + 0.5) / 65536) / s), s the population standard deviation of the 65,536 quantiles."""
    quantiles = [NormalDist().inv_cdf((u + 0.5) / 65536) for u in range(65536)]
    mean = math.fsum(quantiles) / 65536
    deviation = math.sqrt(math.fsum((q - mean) ** 2 for q in quantiles) / 65536)
    return np.array([q / deviation for q in quantiles]).astype(F32)


TABLE = make_table()


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % U64
    return x ^ (x >> 31)


def noise(seed: int, name: str, size: int, start: int = 0) -> np.ndarray:
    """eps of flat indices start .. start + size - 1."""
    key = mix(seed ^ int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))

    def eps(i):
        word = mix((key + ((i >> 2) + 1) * 0x9E3779B97F4A7C15) % U64)
        return TABLE[(word >> (16 * (i & 3))) & 0xFFFF]

    return np.array([eps(i) for i in range(start, start + size)], F32)


def lowrank_noise(seed: int, name: str, shape: tuple[int, int], rank: int) -> np.ndarray:
    """eps = (1 / sqrt r) * sum_k A[:, k] B[:, k]^T, k in order."""
    rows, cols = shape
    a = noise(seed, name + "/A", rows * rank).reshape(rows, rank)
    b = noise(seed, name + "/B", cols * rank).reshape(cols, rank)
    total = np.multiply.outer(a[:, 0], b[:, 0])
    for k in range(1, rank):
        total = total + np.multiply.outer(a[:, k], b[:, k])
    return F32(1 / math.sqrt(rank)) * total


def direction_noise(seed: int, name: str, shape: tuple[int, ...], rank: int | None) -> np.ndarray | None:
    """The noise of one tensor: full if `rank` is None; low rank leaves tensors alone that are not 2-D (None)."""
    if rank is None:
        return noise(seed, name, math.prod(shape)).reshape(shape)
    return lowrank_noise(seed, name, shape, rank) if len(shape) == 2 else None


def sigma_at(kind: str, start: float, end: float, steps: int, t: int) -> float:
    if t == 0 or kind == "constant":
        return start
    if t == steps - 1:
        return end
    if kind == "linear":
        return start + (end - start) * (t / (steps - 1))
    return end + (start - end) * (1 + math.cos(math.pi * (t / (steps - 1)))) / 2


def zscore(rewards: list[float]) -> list[float]:
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (std + 1e-8) for r in rewards]


class Model:
    """A dict of float32 arrays under ES: base, delta, and the live weights."""

    def __init__(self, base: dict[str, np.ndarray], rank: int | None):
        self.base, self.rank = base, rank
        self.delta = {name: np.zeros_like(array) for name, array in base.items()}

    def live(self) -> dict[str, np.ndarray]:
        return {name: self.base[name] + self.delta[name] for name in self.base}

    def perturbed(self, seed: int, sigma: float) -> dict[str, np.ndarray]:
        weights = self.live()
        for name, array in weights.items():
            eps = direction_noise(seed, name, array.shape, self.rank)
            if eps is not None:
                weights[name] = array + F32(sigma) * eps
        return weights

    def step(self, seeds: list[int], rewards: list[float], alpha: float) -> list[F32]:
        """theta <- theta + alpha / G * sum_i z_i * eps_i; returns the coefficients."""
        coefficients = [F32(alpha * z / len(seeds)) for z in zscore(rewards)]
        for name, delta in self.delta.items():
            acc = np.zeros_like(delta)
            for seed, c in zip(seeds, coefficients, strict=True):
                eps = direction_noise(seed, name, delta.shape, self.rank)
                if eps is not None:
                    acc = acc + c * eps
            self.delta[name] = delta + acc
        return coefficients
