"""Which checkpoint tensors a serving engine's stacks of experts hold.

vLLM keeps the experts of a layer in two parameters, gate and up under each other: `w13_weight` (experts, 2 I, H) and
`w2_weight` (experts, H, I), of which a tensor-parallel rank has a part of the intermediate size I, perhaps padded.
Checkpoints have every expert's matrices by themselves (`experts.3.gate_proj.weight`, or w1, w3, w2), or stacks of them
(`experts.gate_up_proj`, as they are or transposed). As in `views`, modules are looked at by name and attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ttc_esopt.errors import EngineError
from ttc_esopt.es.shard import Shard

Block = tuple[torch.Tensor, Shard]

GATES, UPS, DOWNS, BOTH = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"), ("gate_up_proj", "w13")
_ONE = re.compile(r"^(?P<stack>.+?\.experts)\.(?P<number>\d+)\.(?P<layer>\w+)\.(?P<leaf>weight|bias)$")
_ALL = re.compile(r"^(?P<stack>.+?\.experts)\.(?P<layer>\w+?)(?P<leaf>_weight|_bias|\.weight|\.bias|)$")


@dataclass(frozen=True)
class Slot:
    """The place of a checkpoint tensor in a stack: of one expert (None: all), the first or second half of w13 or w2.

    `half` is 0 or 1 of w13 (gate, up), None: all of it, or of w2.
    """

    expert: int | None
    half: int | None
    down: bool


def is_stack(module: nn.Module) -> bool:
    """Whether a module holds experts in one tensor."""
    return isinstance(getattr(module, "w13_weight", None), torch.Tensor)


def stacks(model: nn.Module) -> dict[str, str]:
    """Name of the experts of a layer ("model.layers.0.mlp.experts") to that of the module with their tensors."""
    found = {}
    for name, module in model.named_modules():
        if is_stack(module):
            name = name.replace(".base_layer", "")
            found[name.removesuffix(".routed_experts")] = name
    return found


def is_router(owners: Mapping[str, Any], found: Mapping[str, str], layer: str, rows: int) -> bool:
    """Whether a layer chooses among the experts beside it, which low-rank noise does not move (`scopes`)."""
    stack = found.get(f"{layer.rpartition('.')[0]}.experts")
    return stack is not None and owners[f"{stack}.w13_weight"][1].w13_weight.shape[0] == rows


def located(found: Mapping[str, str], owners: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Slot, str] | None:
    """(parameter, place, layer) of a checkpoint tensor that is an expert's or a stack; None for others."""
    for name in names:
        for pattern in (_ONE, _ALL):
            told = pattern.match(name)
            if not told or told["stack"] not in found:
                continue
            layer, number = told["layer"], told.groupdict().get("number")
            down = layer in DOWNS
            if not down and layer not in GATES + UPS + BOTH:
                continue
            half = None if down or layer in BOTH else int(layer in UPS)
            leaf = "bias" if told["leaf"].endswith("bias") else "weight"
            key = f"{found[told['stack']]}.{'w2' if down else 'w13'}_{leaf}"
            if key in owners:
                slot = Slot(None if number is None else int(number), half, down)
                return key, slot, name.removesuffix(f".{leaf}")
    return None


def blocks(
    owner: nn.Module, parameter: torch.Tensor, slot: Slot, shape: tuple[int, ...], rank: int
) -> list[Block] | None:
    """The parts of a stack that hold (a part of) a checkpoint tensor of this shape; None if that is not clear.

    There are no parts of what comes after the sum over ranks, biases of w2, on ranks after the first: vLLM holds zeros
    there, which must stay zero. That is `padding`.

    Parameters
    ----------
    rank : int
        Of this process among those that share the model; replicas are counted on the first.

    Raises
    ------
    EngineError
        Experts are spread over processes, or there are copies of some; or biases of w2 would be added on each rank.
    """
    place = Sizes.of(owner)
    if slot.expert is not None and slot.expert >= parameter.shape[0]:
        return None
    if slot.down and parameter.dim() == 2 and place.rank:
        if parameter.any():
            raise EngineError(
                f"Expected zeros for the biases of down projections on rank {place.rank}, as ranks are summed, got "
                "other values: noise would count once for each rank (--tensor-parallel 1)."
            )
        return [] if shape == (parameter.shape[0], place.hidden)[slot.expert is not None :] else None
    if slot.expert is not None:
        one = _expert(place, parameter[slot.expert], slot, shape, rank)
        return [one] if one else None
    return _stack(place, parameter, slot, shape, rank) or None


def padding(owner: nn.Module, key: str, parameter: torch.Tensor) -> int:
    """Values of a stack that stand for nothing."""
    place = Sizes.of(owner)
    if key.endswith("w2_bias") and place.rank:
        return parameter.numel()
    rows = place.hidden if key.rpartition(".")[2].startswith("w2") else place.halves * place.inner
    columns = 1
    if parameter.dim() == 3:
        columns = place.inner if key.endswith("w2_weight") else place.hidden
    return parameter.numel() - parameter.shape[0] * rows * columns


@dataclass(frozen=True)
class Sizes:
    """Without padding: hidden size, intermediate size held here, rank and degree of its cut, halves of w13."""

    hidden: int
    inner: int
    rank: int
    degree: int
    halves: int
    room: int  # rows of each half, padding included
    transposed: bool  # whether stacked checkpoint tensors have inputs first
    mixed: bool  # whether gate and up alternate in w13

    @classmethod
    def of(cls, owner: nn.Module) -> Sizes:
        config = getattr(owner, "moe_config", None)
        experts, hidden, room = owner.w2_weight.shape
        halves = owner.w13_weight.shape[1] // room
        everyone = getattr(owner, "global_num_experts", experts)
        if everyone != experts or getattr(config, "num_logical_experts", experts) not in (None, experts):
            raise EngineError(
                f"This process holds {experts} of {everyone} experts, or copies of some. Experts that are spread "
                "are not known here, a process must hold a part of each (--engine-args without enable_expert_parallel)."
            )
        activation = str(getattr(getattr(owner, "activation", None), "name", "")).upper()
        return cls(
            hidden=getattr(config, "hidden_dim_unpadded", None) or hidden,
            inner=getattr(config, "intermediate_size_per_partition_unpadded", None) or room,
            rank=getattr(config, "tp_rank", getattr(owner, "tp_rank", 0)),
            degree=getattr(config, "tp_size", getattr(owner, "tp_size", 1)),
            halves=halves,
            room=room,
            transposed=bool(getattr(owner, "is_fused_checkpoint_transposed", False)) or activation == "SWIGLUOAI",
            mixed=activation == "SWIGLUOAI",
        )


def _expert(
    place: Sizes, held: torch.Tensor, slot: Slot, shape: tuple[int, ...], process: int
) -> Block | None:
    """The part of one expert's matrix or bias; `held` is all that the parameter has of the expert."""
    inner, hidden, whole = place.inner, place.hidden, place.inner * place.degree
    if place.mixed or (slot.half is None and not slot.down) or (slot.half == 1 and place.halves == 1):
        return None
    if slot.down:
        if shape == (hidden,):
            return held[:hidden], Shard.whole(shape, process == 0)
        if shape != (hidden, whole):
            return None
        return held[:hidden, :inner], Shard(shape, 0, hidden, place.rank * inner, inner)
    if shape not in ((whole, hidden), (whole,)):
        return None
    rows = held.narrow(0, slot.half * place.room, inner)
    width = shape[1] if len(shape) == 2 else 1
    return rows[:, :width] if len(shape) == 2 else rows, Shard(shape, place.rank * inner, inner, 0, width)


def _stack(place: Sizes, held: torch.Tensor, slot: Slot, shape: tuple[int, ...], process: int) -> list[Block]:
    """The parts of a stack of all experts; each expert's by itself where they are not one run of values."""
    experts, inner, whole = held.shape[0], place.inner, place.inner * place.degree
    if not slot.down and slot.half is not None and place.halves != 1:
        return []
    height = place.hidden if slot.down else place.halves * whole
    width = whole if slot.down else place.hidden
    if len(shape) == 2:  # biases
        if shape != (experts, height):
            return []
        if slot.down:
            return [(held[:, : place.hidden], Shard.whole(shape, process == 0))]
        return [(held[:, a : a + n], Shard(shape, 0, experts, b, n)) for a, b, n in _runs(place)]
    if shape != ((experts, width, height) if place.transposed else (experts, height, width)):
        return []
    if place.degree == 1 and held.numel() == experts * height * width:
        return [(held.transpose(1, 2) if place.transposed else held, Shard.whole(shape))]
    found: list[Block] = []
    # an expert's rows are rows of the checkpoint tensor seen as a matrix of (experts * rows) x columns
    flat = (experts * shape[1], shape[2])
    for e in range(experts):
        one = held[e].T if place.transposed else held[e]
        first = e * shape[1]
        for a, b, n in [(0, place.rank * inner, inner)] if slot.down else _runs(place):
            if slot.down == place.transposed:  # what is cut are rows
                found.append((one[a : a + n, : shape[2]], Shard(flat, first + b, n, 0, shape[2])))
            else:
                found.append((one[: shape[1], a : a + n], Shard(flat, first, shape[1], b, n)))
    return found


def _runs(place: Sizes) -> Iterator[tuple[int, int, int]]:
    """(first row here, first row in the checkpoint, rows) of the halves of w13."""
    if place.mixed:
        yield 0, place.halves * place.rank * place.inner, place.halves * place.inner
        return
    for half in range(place.halves):
        yield half * place.room, (half * place.degree + place.rank) * place.inner, place.inner
