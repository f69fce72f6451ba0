"""The weights of a model under evolution strategies: base, delta and live.

`base` holds the loaded values in the live dtype, `delta` is float32, `live` is what the forward pass reads. Live is
always rewritten from the other two, never corrected by subtraction, so that restoring is exact to the bit. Base is
copied when live is first overwritten and delta is allocated at the first step: a frozen run pays for neither.

Names are those of the model's state dict, which for ordinary models are those of the checkpoint; a tied tensor is one
tensor under its first name (the embedding's).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ttc_esopt.engines import arrays
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def resolve_scope(kind: NoiseKind, scope: str) -> str:
    """Which tensors move: "all" or "linear"; "auto" is all for full noise and linear for low-rank noise.

    Raises
    ------
    ConfigurationError
        Unknown scope, or low-rank noise with scope all (it is defined for matrices only).
    """
    if scope not in ("auto", "all", "linear"):
        raise ConfigurationError(f"Expected scope auto, all or linear, got {scope!r} (--scope).")
    if scope == "auto":
        return "all" if kind.kind == "full" else "linear"
    if kind.kind == "lowrank" and scope == "all":
        raise ConfigurationError("Expected scope linear for low-rank noise, got all (--scope, --noise).")
    return scope


def linear_modules(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of the body by weight name: neither the output head nor a layer tied to the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    shared = {id(module.weight) for module in (head, embedding) if hasattr(module, "weight")}
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and id(module.weight) not in shared
    }


class Weights:
    """Live tensors of a model, and how directions and steps change them.

    Parameters
    ----------
    live : dict
        Tensors by checkpoint name, or the parts of them that are held here; they are changed in place.
    names : list of str
        Those that move.
    kind : NoiseKind
    scope : str
        As resolved, for the record.
    shards : dict, optional
        Which part of its checkpoint tensor each one is; none is named that is held whole.

    Raises
    ------
    EngineError
        A tensor in scope cannot be perturbed (packed, quantized, empty); named in the message.
    """

    def __init__(
        self,
        live: Mapping[str, torch.Tensor],
        names: Sequence[str],
        kind: NoiseKind,
        scope: str,
        shards: Mapping[str, Shard] | None = None,
    ) -> None:
        self.kind, self.scope = kind, scope
        self.live, self.names, self.shards = dict(live), list(names), dict(shards or {})
        for name in self.names:
            _check(name, self.live[name])
        if not self.names:
            raise EngineError(f"The model has no tensor that noise of scope {scope} could move.")
        self.base: dict[str, torch.Tensor] = {}
        self.delta: dict[str, torch.Tensor] = {}
        self._prints: dict[str, int] = {}

    @classmethod
    def of(cls, model: nn.Module, kind: NoiseKind, scope: str) -> Weights:
        """Those of a transformers model; `scope` as in `resolve_scope`."""
        scope = resolve_scope(kind, scope)
        live: dict[str, torch.Tensor] = {}
        known: set[int] = set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in known:  # a tied tensor comes again under other names
                known.add(id(tensor))
                live[name] = tensor
        parameters = {id(p) for p in model.parameters()}
        if scope == "linear":
            names = [name for name in linear_modules(model) if name in live]
        else:  # integer buffers (position tables, counters) are no weights; an integer parameter is a packed one
            names = [n for n, t in live.items() if t.is_floating_point() or id(t) in parameters]
        return cls(live, names, kind, scope)

    def _keep_base(self, name: str) -> torch.Tensor:
        if name not in self.base:
            self.base[name] = self.live[name].detach().clone()
        return self.base[name]

    def perturb(self, direction: int, sigma: float) -> None:
        """Full noise: live = round((base + delta) + sigma * eps) for every tensor in scope."""
        for name in self.names:
            base, delta, live = self._keep_base(name), self.delta.get(name), self.live[name].detach()
            arrays.perturb(base, delta, direction, name, sigma, live, self.shards.get(name))

    def restore(self) -> None:
        """live = round(base + delta), bit for bit what it was before `perturb`."""
        for name in self.base:
            self._write_live(name)

    def _write_live(self, name: str) -> None:
        arrays.apply(self.base[name], self.delta.get(name), self.live[name].detach())

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """delta += sum of c_i * eps_i (float32, in order); live = round(base + delta)."""
        if len(directions) != len(coefficients):
            raise EngineError(f"Expected one coefficient per direction, got {len(coefficients)} for {len(directions)}.")
        for name in self.names:
            self._keep_base(name)
            live = self.live[name].detach()
            delta = self.delta.get(name)
            if delta is None:
                delta = self.delta[name] = torch.zeros(live.shape, dtype=torch.float32, device=live.device)
            self.accumulate(name, delta, directions, coefficients)
            self._write_live(name)
            self._prints.pop(name, None)

    def accumulate(
        self, name: str, delta: torch.Tensor, directions: Sequence[int], coefficients: Sequence[float]
    ) -> None:
        """delta += sum of c_i * eps_i for one tensor; the live weights stay as they are."""
        arrays.accumulate(delta, self.kind, directions, coefficients, name, self.shards.get(name))

    def rewind(self, steps: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
        """The weights after these steps alone."""
        self.delta.clear()
        for name in self.base:
            self._write_live(name)
            self._prints.pop(name, None)
        for directions, coefficients in steps:
            self.step(directions, coefficients)

    def to_base(self) -> None:
        """live = base until `restore`."""
        for name, base in self.base.items():
            self.live[name].detach().copy_(base)

    def fingerprint(self) -> str:
        """16 hexadecimal digits over all tensors; those outside the scope, and unchanged ones, are read only once."""
        for name, tensor in self.live.items():
            if name not in self._prints:
                self._prints[name] = arrays.fingerprint(tensor, name, self.shards.get(name))
        return f"{sum(self._prints.values()) & noise.MASK:016x}"

    def sha256(self) -> str:
        """64 hexadecimal digits over name, dtype, shape and bytes of all tensors, sorted by name."""
        digest = hashlib.sha256()
        for name in sorted(self.live):
            tensor = self.live[name]
            digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
            digest.update(arrays.raw_bytes(tensor))
        return digest.hexdigest()


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "meta" or tensor.numel() == 0:
        raise EngineError(f"The tensor {name} holds no values (packed or offloaded elsewhere): it cannot be perturbed.")
    if tensor.dtype not in FLOATS:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise EngineError(f"The tensor {name} has type {kind} (quantized or packed): it cannot be perturbed.")
    if not tensor.is_contiguous():
        raise EngineError(f"The tensor {name} is not stored row by row: it cannot be perturbed.")
