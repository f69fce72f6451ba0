"""Noise version 1 on torch tensors: which code does the arithmetic of one tensor, wherever it lies.

float32 and bfloat16 tensors on the CPU are numpy views for the compiled kernels of `ttc_esopt.es.noise`; everything
else (CUDA, float16) goes through torch operations with the same bits (`torch_noise`). Tensors are contiguous; `shard`
says which part of the checkpoint tensor `name` they are, None: all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ttc_esopt.engines import torch_noise
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard


def perturb(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    direction: int,
    name: str,
    sigma: float,
    live: torch.Tensor,
    shard: Shard | None = None,
) -> None:
    """Full noise: live = round((base + delta) + sigma * eps); `delta` (float32) None stands for zeros."""
    for start, part in _runs(shard):
        b, d, out = base.view(-1)[part], None if delta is None else delta.view(-1)[part], live.view(-1)[part]
        if not _by_kernel(live):
            torch_noise.perturb(b, d, direction, name, sigma, out, start)
            continue
        kernel = noise.perturb if live.dtype == torch.float32 else noise.perturb_bf16
        kernel(bits(b), bits(d), direction, name, sigma, bits(out), start)


def apply(base: torch.Tensor, delta: torch.Tensor | None, live: torch.Tensor) -> None:
    """live = round(base + delta)."""
    if delta is None:
        live.copy_(base)
    elif not _by_kernel(live):
        torch_noise.apply(base, delta, live)
    elif live.dtype == torch.float32:
        noise.apply(bits(base), bits(delta), bits(live))
    else:
        noise.apply_bf16(bits(base), bits(delta), bits(live))


def accumulate(
    delta: torch.Tensor,
    kind: NoiseKind,
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    shard: Shard | None = None,
) -> None:
    """acc = 0; acc = acc + c_i * eps_i for the directions in order; delta = delta + acc (float32, in place)."""
    where, flat = (noise, delta.view(-1).numpy()) if delta.device.type == "cpu" else (torch_noise, delta.view(-1))
    if kind.kind == "full":
        for start, part in _runs(shard):
            where.accumulate(flat[part], directions, coefficients, name, start)
        return
    shard = shard or Shard.whole(delta.shape)
    where.accumulate_lowrank(
        flat.reshape(shard.rows, shard.columns), directions, coefficients, name, kind.rank, shard.row, shard.column
    )


def fingerprint(tensor: torch.Tensor, name: str, shard: Shard | None = None) -> int:
    """The part of the model's fingerprint that comes from here: 0 for a copy that is counted elsewhere."""
    if shard is not None and not shard.counted:
        return 0
    flat = _patterns(tensor)
    return sum(noise.tensor_fingerprint(flat[part], name, start) for start, part in _runs(shard)) & noise.MASK


def bits(tensor: torch.Tensor | None) -> np.ndarray | None:
    """The numpy view that a kernel takes: float32 values, or uint16 bit patterns of bfloat16; None stays None."""
    if tensor is None:
        return None
    return (tensor if tensor.dtype == torch.float32 else tensor.view(torch.uint16)).numpy()


def raw_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, row by row, on the CPU."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _runs(shard: Shard | None) -> Iterator[tuple[int, slice]]:
    """(flat index in the whole tensor, slice of what is held) of every run of consecutive elements."""
    if shard is None or shard.flat:
        yield (0 if shard is None else shard.start), slice(None)
        return
    for row in range(shard.rows):
        yield shard.start + row * shard.stride, slice(row * shard.columns, (row + 1) * shard.columns)


def _by_kernel(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


def _patterns(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns as uint32 or uint16 (single bytes widened, 8-byte values as two uint32), flat, on the CPU."""
    array = raw_bytes(tensor)
    if tensor.element_size() == 1:
        return array.astype(np.uint16)
    return array.view(np.uint16 if tensor.element_size() == 2 else np.uint32)
