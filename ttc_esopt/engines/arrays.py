"""Noise version 1 on torch tensors: which code does the arithmetic of one tensor, wherever it lies.

float32 and bfloat16 tensors on the CPU are numpy views for the compiled kernels of `ttc_esopt.es.noise`; CUDA tensors
have Triton kernels where Triton is installed (`triton_noise`); everything else (float16 on the CPU, CUDA without
Triton) goes through torch operations (`torch_noise`). The bits are the same. Tensors are contiguous, of any shape, and
of one call on one device; `shard` says which part of the checkpoint tensor `name` they are, None: all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch

from ttc_esopt.engines import torch_noise
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard

FULL = NoiseKind("full")


def perturb(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    direction: int,
    name: str,
    sigma: float,
    live: torch.Tensor,
    shard: Shard | None = None,
    kind: NoiseKind = FULL,
    rounding: str = "nearest",
) -> None:
    """Full noise: live = round((base + delta) + sigma * eps).

    Parameters
    ----------
    base, live : of one dtype: float32, bfloat16 or float16
    delta : float32; None stands for zeros
    direction : a seed, or ~seed for its mirror
    rounding : "nearest", or "stochastic" (see `ttc_esopt.es.noise`; no effect on float32)

    Raises
    ------
    ValueError
        Of low-rank noise the weights are not rewritten.
    """
    if kind.kind != "full":
        raise ValueError(f"Expected full noise to rewrite weights with, got {kind}.")
    name = _named(name, shard)
    where = {**_where(shard), "values": kind.values}
    if not _by_numpy(live):
        code = torch_noise if live.device.type == "cpu" else _on_device()
        code.perturb(base, delta, direction, name, sigma, live, **where, rounding=rounding)
    elif live.dtype == torch.float32:
        noise.perturb(bits(base), bits(delta), direction, name, sigma, bits(live), **where)
    else:
        noise.perturb_bf16(bits(base), bits(delta), direction, name, sigma, bits(live), **where, rounding=rounding)


def apply(
    base: torch.Tensor,
    delta: torch.Tensor | None,
    live: torch.Tensor,
    name: str = "",
    shard: Shard | None = None,
    rounding: str = "nearest",
) -> None:
    """live = round(base + delta); `name` and `shard` matter to stochastic rounding alone."""
    name = _named(name, shard)
    if delta is None:
        live.copy_(base.view(live.shape))
    elif not _by_numpy(live):
        code = torch_noise if live.device.type == "cpu" else _on_device()
        code.apply(base, delta, live, name, **_where(shard), rounding=rounding)
    elif live.dtype == torch.float32:
        noise.apply(bits(base), bits(delta), bits(live))
    else:
        noise.apply_bf16(bits(base), bits(delta), bits(live), name, **_where(shard), rounding=rounding)


def accumulate(
    delta: torch.Tensor,
    kind: NoiseKind,
    directions: Sequence[int],
    coefficients: Sequence[float],
    name: str,
    shard: Shard | None = None,
) -> None:
    """acc = 0; acc = acc + c_i * eps_i for the directions in order; delta = delta + acc (float32, in place)."""
    name, shard = _named(name, shard), shard or Shard.whole(delta.shape)
    on_cpu = delta.device.type == "cpu"
    code, array = (noise, delta.numpy()) if on_cpu else (_on_device(), delta)
    if kind.kind == "full":
        code.accumulate(array, directions, coefficients, name, **_where(shard), values=kind.values)
        return
    matrix = array.reshape(shard.rows, shard.columns)
    code.accumulate_lowrank(matrix, directions, coefficients, name, kind.rank, shard.row, shard.column, kind.values)


def fingerprint(tensor: torch.Tensor, name: str, shard: Shard | None = None) -> int:
    """The part of the model's fingerprint that comes from here: 0 for a copy that is counted elsewhere."""
    if shard is not None and not shard.counted:
        return 0
    name = _named(name, shard)
    if tensor.device.type == "cuda" and _on_device() is not torch_noise and tensor.element_size() in (2, 4):
        return _on_device().fingerprint(tensor.contiguous(), name, **_where(shard))
    return noise.tensor_fingerprint(_patterns(tensor), name, **_where(shard))


def _named(key: str, shard: Shard | None) -> str:
    """The checkpoint tensor's name, which noise goes by."""
    return shard.name or key if shard is not None else key


def bits(tensor: torch.Tensor | None) -> np.ndarray | None:
    """The numpy view that a kernel takes: float32 values, or uint16 bit patterns of bfloat16; None stays None."""
    if tensor is None:
        return None
    return (tensor if tensor.dtype == torch.float32 else tensor.view(torch.uint16)).numpy()


def raw_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, row by row, on the CPU."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _where(shard: Shard | None) -> dict[str, int]:
    """Flat indices of what is held, as the functions of `noise` take them; one run needs no columns."""
    if shard is None or shard.flat:
        return {"start": 0 if shard is None else shard.start, "columns": 0, "stride": 0}
    return {"start": shard.start, "columns": shard.columns, "stride": shard.stride}


def _by_numpy(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


@cache
def _on_device() -> ModuleType:
    """The code for tensors that do not lie on the CPU."""
    if not (torch.cuda.is_available() and find_spec("triton")):
        return torch_noise
    from ttc_esopt.engines import triton_noise

    return triton_noise


def _patterns(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns as uint32 or uint16 (single bytes widened, 8-byte values as two uint32), flat, on the CPU."""
    array = raw_bytes(tensor)
    if tensor.element_size() == 1:
        return array.astype(np.uint16)
    return array.view(np.uint16 if tensor.element_size() == 2 else np.uint32)
