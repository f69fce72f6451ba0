"""The weights of a model under evolution strategies: base, delta and live.

`base` holds the loaded values in the live dtype, `delta` is float32, `live` is what the forward pass reads. Live is
always rewritten from the other two, never corrected by subtraction, so that restoring is exact to the bit. Base is
copied when live is first overwritten and delta is allocated at the first step: a frozen run pays for neither.

Where the two lie is a matter of memory and time, never of bits (`PLACEMENTS`): on the live tensors' device; on the
host (pinned where the device is CUDA), from where blocks of rows travel to the device whenever live is rewritten; or
base on the host and delta nowhere, its blocks summed anew from the steps taken so far, in the same order.

Names are those of the checkpoint (`names`); a tied tensor is one tensor under its first name (the embedding's).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from ttc_esopt.engines import arrays
from ttc_esopt.engines.adapters import (
    FLOATS,
    Adapters,
    Grown,
    Lora,
    lora_rank,
    size_of,
    working_device,
)
from ttc_esopt.engines.names import stored
from ttc_esopt.engines.scopes import linear_modules, packed_modules, refuse_derived, resolve_scope
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard

PLACEMENTS = ("device", "host", "replay")  # where base and delta lie; replay: delta nowhere
BLOCK = 1 << 22  # values that travel, or are summed anew, at a time: bounds what the device needs beside live

Step = tuple[Sequence[int], Sequence[float]]  # directions, coefficients


class Weights:
    """Live tensors of a model, and how directions and steps change them.

    Parameters
    ----------
    live : dict
        Tensors by checkpoint name, or the parts of them that are held here; they are changed in place. They may be
        views that step over other values, or are transposed: in order, their elements are those of the checkpoint.
    names : list of str
        Those that move.
    kind : NoiseKind
    scope : str
        As resolved, for the record.
    shards : dict, optional
        Which part of its checkpoint tensor each one is; none is named that is held whole.
    rounding : str
        Of live: "nearest" or "stochastic" (`arrays`).
    placement : str
        One of `PLACEMENTS`.
    grown : Grown, optional
        Packed layers, which low-rank steps move beside the tensors.

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
        rounding: str = "nearest",
        placement: str = "device",
        grown: Grown | None = None,
    ) -> None:
        if placement not in PLACEMENTS:
            raise ConfigurationError(f"Expected delta on {', '.join(PLACEMENTS)}, got {placement!r} (--delta).")
        self.kind, self.scope, self.rounding, self.placement = kind, scope, rounding, placement
        self.live, self.names, self.shards = dict(live), list(names), dict(shards or {})
        self.grown = grown
        for name in self.names:
            _check(name, self.live[name])
        if not self.names and not (grown and grown.modules):
            raise EngineError(f"The model has no tensor that noise of scope {scope} could move.")
        self.base: dict[str, torch.Tensor] = {}
        self.delta: dict[str, torch.Tensor] = {}  # stays empty under replay
        self._steps: list[Step] = []  # under replay, and for packed layers
        self._prints: dict[str, int] = {}
        self.lora: Lora | None = None
        self._counted = False  # of the factors, at the beginning

    @property
    def touched(self) -> bool:
        """Whether live has been written since it was loaded."""
        return bool(self.base or self._steps)

    @property
    def packed(self) -> list[str]:
        """Names of packed weights that low-rank steps move."""
        return list(self.grown.modules) if self.grown else []

    @property
    def moving(self) -> int:
        """Weights that move, packed ones included."""
        shapes = [self._place(name)[0] for name in (*self.names, *self.packed)]
        return sum(math.prod(shape) for shape in shapes)

    @property
    def frozen(self) -> list[str]:
        """Names of floating-point tensors that do not move."""
        moving = set(self.names)
        return [name for name, tensor in self.live.items() if tensor.is_floating_point() and name not in moving]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        kind: NoiseKind,
        scope: str,
        rounding: str = "nearest",
        placement: str = "device",
        adapters: Adapters | None = None,
    ) -> Weights:
        """Those of a transformers model; `scope` as in `resolve_scope`, `adapters` as `adapters_of` makes them.

        Raises
        ------
        EngineError
            As above; or the model keeps copies made of its weights, or full noise is to move quantized ones.
        """
        scope = resolve_scope(kind, scope)
        refuse_derived(model)
        live: dict[str, torch.Tensor] = {}
        known: set[int] = set()
        parameters = {id(p) for p in model.parameters()}
        weights: set[str] = set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) in known:  # a tied tensor comes again under other names
                continue
            known.add(id(tensor))
            held = stored(name, tensor, model)
            live |= held
            # integer buffers (position tables, counters) are no weights; an integer parameter is a packed one
            if tensor.is_floating_point() or id(tensor) in parameters:
                weights |= held.keys()
        packed = packed_modules(model)
        if packed and kind.kind == "full" and lora_rank(scope) is None:
            raise EngineError(
                f"The model is quantized ({next(iter(packed))} and {len(packed) - 1} more layers hold packed values), "
                "which full noise cannot move; low-rank noise can: --noise lowrank:1."
            )
        if packed and kind.kind == "lowrank" and not isinstance(adapters, Grown):
            raise EngineError(
                f"{next(iter(packed))} holds packed values, which low-rank steps move by factors of their own; this "
                "model has none, or those of scope lora (--scope)."
            )
        apart = [name for name in linear_modules(model) if name not in live and name not in packed]
        if apart and scope != "all":
            raise EngineError(
                f"The checkpoint holds {apart[0]} in several parts, which noise of scope {scope} does not move: "
                "--noise full --scope all."
            )
        if isinstance(adapters, Lora):
            live |= adapters.tensors()
        if lora_rank(scope) is not None:
            if not isinstance(adapters, Lora):
                raise EngineError(f"Expected factors for scope {scope}.")
            names = list(adapters.tensors())
        elif scope == "linear":
            names = [name for name in linear_modules(model) if name in live and name not in packed]
        else:
            names = [name for name in live if name in weights]
        grown = adapters if isinstance(adapters, Grown) else None
        made = cls(live, names, kind, scope, rounding=rounding, placement=placement, grown=grown)
        if isinstance(adapters, Lora):
            made.lora, made._counted = adapters, adapters.counted
        return made

    def perturb(self, direction: int, sigma: float) -> None:
        """Full noise: live = round((base + delta) + sigma * eps) for every tensor in scope."""
        for name in self.names:
            self._keep_base(name)
            for part, shard in self.blocks(name):
                base, delta = self._base(name, part), self.moved(name, part, shard)
                with self._live(name, part) as live:
                    arrays.perturb(
                        base, delta, direction, name, sigma, live, shard, kind=self.kind, rounding=self.rounding
                    )

    def restore(self) -> None:
        """live = round(base + delta), bit for bit what it was before `perturb`."""
        if self.grown:
            self.grown.show()
        for name in self.base:
            for part, shard in self.blocks(name):
                self._write_live(name, part, shard, self.moved(name, part, shard))

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """delta += sum of c_i * eps_i (float32, in order); live = round(base + delta)."""
        self._move([(directions, coefficients)])

    def rewind(self, steps: Sequence[Step]) -> None:
        """The weights after these steps alone."""
        self.delta.clear()
        self._steps.clear()
        if self.grown:
            self.grown.clear()
        if steps:
            self._move(steps)
            return
        if self.lora:
            self.lora.counted = self._counted
        self.to_base()
        self._prints = {name: value for name, value in self._prints.items() if name not in self.base}

    def to_base(self) -> None:
        """live = base until `restore`."""
        if self.grown:
            self.grown.show(beginning=True)
        for name, base in self.base.items():
            self.live[name].detach().copy_(base)

    def _move(self, steps: Sequence[Step]) -> None:
        """Take these steps, one after the other, and write live once."""
        for directions, coefficients in steps:
            if len(directions) != len(coefficients):
                raise EngineError(
                    f"Expected one coefficient per direction, got {len(coefficients)} for {len(directions)}."
                )
        if self.placement == "replay" or self.grown:
            self._steps += [(tuple(directions), tuple(coefficients)) for directions, coefficients in steps]
        for directions, coefficients in steps if self.grown else ():
            self.grown.extend(self.kind, directions, coefficients)
        if self.lora and lora_rank(self.scope):
            self.lora.counted = True
        for name in self.names:
            live = self.live[name].detach()
            self._keep_base(name)
            if self.placement != "replay" and name not in self.delta:
                self.delta[name] = self._beside(live, torch.float32).zero_()
            for part, shard in self.blocks(name):
                delta = self.moved(name, part, shard)
                if self.placement != "replay":
                    for directions, coefficients in steps:
                        arrays.accumulate(delta, self.kind, directions, coefficients, name, shard)
                    kept = self.delta[name].view(-1)[part]
                    if kept.data_ptr() != delta.data_ptr():
                        kept.copy_(delta)
                self._write_live(name, part, shard, delta)
            self._prints.pop(name, None)

    # -- what lies where ---------------------------------------------------------------------------------------------

    def blocks(self, name: str) -> Iterator[tuple[slice, Shard]]:
        """Parts of a tensor that are worked on at a time: their flat elements, and which of the checkpoint's they are.

        All of it where base and delta lie beside live, or where live's rows are not the block's; else some rows.
        """
        whole = self.shards.get(name) or Shard.whole(self._place(name)[0])
        at_once = self.placement == "device" or not self._by_rows(name, whole)
        rows = whole.rows if at_once else max(1, BLOCK // max(1, whole.columns))
        for row in range(0, whole.rows, rows):
            count = min(rows, whole.rows - row)
            part = slice(row * whole.columns, (row + count) * whole.columns)
            yield part, replace(whole, row=whole.row + row, rows=count)

    def moved(self, name: str, part: slice, shard: Shard) -> torch.Tensor | None:
        """Delta of one block, flat, float32, on the device of live; None before the first step."""
        device = self._place(name)[1]
        if self.placement != "replay" and name in self.live:
            delta = self.delta.get(name)
            return None if delta is None else delta.view(-1)[part].to(device, non_blocking=True)
        return self.made(name, shard, self._steps) if self._steps else None

    def made(self, name: str, shard: Shard, steps: Sequence[Step]) -> torch.Tensor:
        """What these steps add to one block, flat, float32, on the device of live."""
        delta = torch.zeros(shard.size, dtype=torch.float32, device=self._place(name)[1])
        for directions, coefficients in steps:
            arrays.accumulate(delta, self.kind, directions, coefficients, name, shard)
        return delta

    def held(self) -> dict[str, dict[str, int]]:
        """Bytes by device of ``live``, ``base`` and ``delta``; blocks on their way (`BLOCK`) come on top."""
        found: dict[str, dict[str, int]] = {}
        live = self.live | (self.grown.tensors() if self.grown else {})
        for word, tensors in (("live", live), ("base", self.base), ("delta", self.delta)):
            sizes = found.setdefault(word, {})
            for tensor in tensors.values():
                device = str(tensor.device)
                sizes[device] = sizes.get(device, 0) + tensor.numel() * tensor.element_size()
        return found

    def _place(self, name: str) -> tuple[tuple[int, ...], torch.device]:
        """Shape and device of a tensor, or of the matrix that packed values stand for."""
        if name in self.live:
            return tuple(self.live[name].shape), self.live[name].device
        module = self.grown.modules[name]
        return size_of(module), working_device(module)

    def _keep_base(self, name: str) -> None:
        if name not in self.base:
            live = self.live[name].detach()
            self.base[name] = self._beside(live, live.dtype).copy_(live)

    def _beside(self, live: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Room for base or delta."""
        if self.placement == "device":
            return torch.empty(live.shape, dtype=dtype, device=live.device)
        return torch.empty(live.shape, dtype=dtype, pin_memory=live.device.type == "cuda")

    def _base(self, name: str, part: slice) -> torch.Tensor:
        return self.base[name].view(-1)[part].to(self.live[name].device, non_blocking=True)

    def _by_rows(self, name: str, whole: Shard) -> bool:
        """Whether some rows of the checkpoint's are a part of live."""
        live = self.live.get(name)
        return live is None or live.is_contiguous() or live.shape[0] == whole.rows

    @contextlib.contextmanager
    def _live(self, name: str, part: slice) -> Iterator[torch.Tensor]:
        """Where the new values of a part go, flat: live itself, or what is copied there afterwards."""
        live = self.live[name].detach()
        if live.is_contiguous():
            yield live.view(-1)[part]
            return
        width = live.numel() // live.shape[0]
        rows = live[part.start // width : part.stop // width]
        beside = torch.empty(rows.shape, dtype=live.dtype, device=live.device)
        yield beside.view(-1)
        rows.copy_(beside)

    def _write_live(self, name: str, part: slice, shard: Shard, delta: torch.Tensor | None) -> None:
        base = self._base(name, part)
        with self._live(name, part) as live:
            arrays.apply(base, delta, live, name, shard, self.rounding)

    # -- what it is --------------------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """16 hexadecimal digits over all tensors; those outside the scope, and unchanged ones, are read only once.

        Factors count once a step has moved them: before, the model is the one that was loaded.
        """
        counted = self.counted()
        for name, tensor in counted.items():
            if name not in self._prints:
                self._prints[name] = arrays.fingerprint(tensor, name, self.shards.get(name))
        total = sum(self._prints[name] for name in counted) + (self.grown.fingerprint() if self.grown else 0)
        return f"{total & noise.MASK:016x}"

    def sha256(self) -> str:
        """64 hexadecimal digits over name, dtype, shape and bytes of all tensors, sorted by name."""
        return sha256_of((self.counted() | (self.grown.tensors() if self.grown else {})).items())

    def counted(self) -> dict[str, torch.Tensor]:
        """The tensors that the model consists of."""
        if self.lora is None or self.lora.counted:
            return self.live
        own = self.lora.tensors()
        return {name: tensor for name, tensor in self.live.items() if name not in own}


def sha256_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """64 hexadecimal digits over name, dtype, shape and bytes of tensors, in the order of their names.

    Parameters
    ----------
    tensors : pairs of name and tensor
        Sorted here where they are a collection; an iterator, which may hold one at a time, must be in order.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors if isinstance(tensors, Iterator) else sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
        digest.update(arrays.raw_bytes(tensor))
    return digest.hexdigest()


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "meta" or tensor.numel() == 0:
        raise EngineError(f"The tensor {name} holds no values (packed or offloaded elsewhere): it cannot be perturbed.")
    if tensor.dtype not in FLOATS:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise EngineError(f"The tensor {name} has type {kind} (quantized or packed): it cannot be perturbed.")
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise EngineError(f"The tensor {name} stores one value for several elements: it cannot be perturbed.")
