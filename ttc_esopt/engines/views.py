"""Which checkpoint tensors a serving engine's parameters hold: fused layers, shards, padded vocabularies.

A serving engine renames, fuses and cuts the tensors of a checkpoint. Noise and fingerprints go by the checkpoint's own
names and indices, so each parameter is taken apart into pieces: (checkpoint name, whole shape, block held here). What
is needed is read from the model's modules as vLLM builds them (`packed_modules_mapping`, `hf_to_vllm_mapper`,
`output_partition_sizes`, `num_kv_head_replicas`, `shard_indices`), by name and not by import: there is no table per
model, and worker-shaped modules of any tensor-parallel degree can be looked at without the engine.

Nothing is believed that can be checked: a piece must have the size that the checkpoint's header says, every tensor of
the header must be found or is listed as left out, every parameter must be covered to its last element, and a sample of
rows is compared with the file (`compare`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ttc_esopt.engines import experts
from ttc_esopt.engines.export import weight_files
from ttc_esopt.engines.locate import Part, locate, packed_layers, renamings
from ttc_esopt.errors import EngineError
from ttc_esopt.es.shard import Shard

Shapes = Mapping[str, tuple[int, ...]]
Owned = tuple[torch.Tensor, nn.Module, bool]


@dataclass(frozen=True)
class Piece:
    """Where a checkpoint tensor, or its part that this process holds, lies.

    Attributes
    ----------
    tensor : torch.Tensor
        A view of the parameter's storage: writing to it changes the model. In order, its elements are the block's.
    shard : Shard
        Which block of the checkpoint tensor it is.
    linear : bool
        Whether it is the weight of a linear layer of the body, which low-rank noise moves.
    module : str
        The layer, by the engine's name with the fused part's own one ("...self_attn.q_proj").
    adapts : bool
        Whether the layer takes adapters.
    """

    tensor: torch.Tensor
    shard: Shard
    linear: bool
    module: str
    adapts: bool = False


@dataclass
class Views:
    """All pieces of a model.

    Attributes
    ----------
    pieces : dict of checkpoint name to Piece
        A tensor of which several blocks are held has a piece for each, under its name and a number (`Shard.name`).
    unused : list of str
        Tensors of the checkpoint that the model holds no copy of, for instance unused prediction heads.
    tied : list of str
        Tensors of the checkpoint that are another one in the model, whose name the piece has.
    """

    pieces: dict[str, Piece] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)


def views_of(model: nn.Module, checkpoint: Shapes, rank: int = 0) -> Views:
    """Take a model apart into pieces.

    Parameters
    ----------
    model : nn.Module
        As the engine built it, on this tensor-parallel rank.
    checkpoint : mapping of str to tuple of int
        Names and shapes of the checkpoint's tensors: see `header`.
    rank : int
        Of this process among those that share the model.

    Raises
    ------
    EngineError
        A parameter is empty, holds other values than a checkpoint tensor, or is not covered; named in the message.
    """
    owners = _owners(model)
    packed = packed_layers(model)
    stacks = experts.stacks(model)
    found = Views()
    covered: dict[int, int] = {}
    taken: set[int] = set()
    sizes: dict[int, tuple[str, int]] = {}
    rules = renamings(model)
    places = {name: locate(rules, owners, packed, stacks, name) for name in sorted(checkpoint)}
    found.unused = [name for name, place in places.items() if place is None]
    turned = any(_is_turned(owners[place[0]][1], checkpoint[name]) for name, place in places.items() if place)
    order = {key: i for i, key in enumerate(owners)}  # of tied tensors the model's first one gives the name
    for name, place in sorted(places.items(), key=lambda one: order[one[1][0]] if one[1] else -1):
        if place is None:
            continue
        key, part, module_name = place
        parameter, owner, adapts = owners[key]
        shape = checkpoint[name]
        if parameter.numel() == 0:
            raise EngineError(f"The parameter {key} holds no values (packed or offloaded): {name} cannot be perturbed.")
        whole = parameter.data_ptr()
        if part is None and whole in taken:
            found.tied.append(name)
            continue
        taken.add(whole)
        linear = len(shape) == 2 and key.endswith(".weight") and _is(owner, "LinearBase", "Linear")
        linear = linear and not _is(owner, "VocabParallelEmbedding")
        linear = linear and not experts.is_router(owners, stacks, module_name, shape[0])
        if linear and turned:  # no linear layers to transformers either
            blocks, linear = _turned(_blocks(owner, rank, key, parameter, part, name, (shape[1], shape[0]))), False
        else:
            blocks = _blocks(owner, rank, key, parameter, part, name, tuple(shape), _sections(model, key))
        covered.setdefault(whole, 0)
        for i, (local, shard) in enumerate(blocks):
            if len(blocks) > 1:
                shard = replace(shard, name=name)
            found.pieces[f"{name}#{i}" if shard.name else name] = Piece(
                local, shard, linear, module_name, adapts
            )  # fmt: skip
            covered[whole] += local.numel()
        sizes[whole] = key, parameter.numel() - _padding(owner, key, parameter)
    _check_covered(owners, covered, sizes)
    return found


def header(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in a folder's safetensors files.

    Raises EngineError if there is none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files(folder):
        with file.open("rb") as stream:
            text = stream.read(int.from_bytes(stream.read(8), "little"))
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                shapes[name] = tuple(entry["shape"])
    return shapes


def files(folder: Path) -> list[Path]:
    """The safetensors files that make up a checkpoint."""
    found = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    if not found:
        raise EngineError(f"Expected safetensors files in {folder}, found none: names and shapes are read from them.")
    return found


def compare(pieces: Mapping[str, Piece], folder: Path, rows: int = 4) -> None:
    """Compare a sample of rows of every piece with the checkpoint's own values.

    Raises
    ------
    EngineError
        A piece holds something else: the engine stores this tensor in an order that is not known here.
    """
    from safetensors import safe_open

    for file in files(folder):
        with safe_open(file, framework="pt") as stored:
            held = set(stored.keys())
            for key, piece in pieces.items():
                name = piece.shard.name or key
                if name in held and not _same(piece, stored.get_slice(name), rows):
                    raise EngineError(
                        f"The tensor {name} is stored in another order than in the checkpoint: noise by checkpoint "
                        "index cannot be laid over it (--engine transformers)."
                    )


def _same(piece: Piece, source: Any, rows: int) -> bool:
    shard = piece.shard
    if len(shard.shape) < 2:
        whole = source[:] if shard.shape else source[...]
        return torch.equal(
            whole.reshape(-1)[shard.row : shard.row + shard.rows].to(piece.tensor.dtype), piece.tensor.reshape(-1).cpu()
        )
    shape = source.get_shape()
    per = shard.shape[0] // shape[0]  # a stack of matrices may be seen as one matrix
    local = piece.tensor.reshape(shard.rows, shard.columns)
    for row in sorted({round(i * (shard.rows - 1) / max(1, rows - 1)) for i in range(rows)}):
        at = shard.row + row
        inside = source[at : at + 1] if per == 1 else source[at // per : at // per + 1, at % per : at % per + 1]
        values = inside.reshape(-1)[shard.column : shard.column + shard.columns]
        if not torch.equal(values.to(piece.tensor.dtype), local[row].cpu()):
            return False
    return True


# how the parts find each other


def _owners(model: nn.Module) -> dict[str, Owned]:
    """Parameters by name, without the `.base_layer` of adapters; their modules; whether these take adapters."""
    owners: dict[str, Owned] = {}
    for prefix, module in model.named_modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            if "lora_a_stacked" in name or "lora_b_stacked" in name or tensor is None:
                continue
            key = f"{prefix}.{name}".replace(".base_layer.", ".").removeprefix(".")
            adapts = ".base_layer." in f"{prefix}.{name}"
            owners[key] = tensor.data if isinstance(tensor, nn.Parameter) else tensor, module, adapts
    return owners


# which block


def _blocks(
    owner: nn.Module,
    process: int,
    key: str,
    parameter: torch.Tensor,
    part: Part | experts.Slot | None,
    name: str,
    shape: tuple[int, ...],
    sections: Sequence[int] = (),
) -> list[tuple[torch.Tensor, Shard]]:
    """The pieces of `parameter` that hold (a part of) the checkpoint tensor `name` of this shape."""
    rank, degree = getattr(owner, "tp_rank", 0), getattr(owner, "tp_size", 1)
    height, width = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
    unlike = EngineError(
        f"Expected the parameter {key} to hold the checkpoint tensor {name} of shape {tuple(shape)}, got shape "
        f"{tuple(parameter.shape)} (packed, quantized, or of a layout that is not known): it cannot be perturbed."
    )

    def rows(offset: int, count: int, first: int, counted: bool = True) -> tuple[torch.Tensor, Shard]:
        if parameter.dim() and tuple(parameter.shape[1:]) != shape[1:]:
            raise unlike
        if offset + count > parameter.shape[0] or first + count > height:
            raise unlike
        return parameter.narrow(0, offset, count), Shard(shape, first, count, 0, width, counted)

    if isinstance(part, experts.Slot):
        found = experts.blocks(owner, parameter, part, shape, process)
        if found is None:
            raise unlike
        return found
    if _is(owner, "VocabParallelEmbedding"):
        indices = owner.shard_indices
        if shape[0] != owner.org_vocab_size:
            raise unlike
        first, last = indices.org_vocab_start_index, indices.org_vocab_end_index
        return [rows(0, last - first, first)]
    if _is(owner, "RowParallelLinear") and len(shape) == 2 and degree > 1:
        count = parameter.shape[1]
        if parameter.shape[0] != height or count * degree != width:
            raise unlike
        return [(parameter, Shard(shape, 0, height, rank * count, count))]
    if _is(owner, "ColumnParallelLinear", "ReplicatedLinear") and (degree > 1 or part is not None):
        degree = 1 if _is(owner, "ReplicatedLinear") else degree
        cut = degree > 1 and len(owner.output_partition_sizes) == 1 and sum(sections) == height
        sizes = [size // degree for size in sections] if cut else list(owner.output_partition_sizes)
        copies = [1] + [getattr(owner, "num_kv_head_replicas", 1)] * (len(sizes) - 1)
        whole = [size * degree // share for size, share in zip(sizes, copies, strict=True)]
        chosen = _chosen(whole, part, height)
        if not chosen:
            raise unlike
        if degree == 1:
            return [rows(sum(sizes[: chosen[0]]), height, 0, process == 0)]
        return [
            rows(
                sum(sizes[:i]), sizes[i], sum(whole[chosen[0] : i]) + rank // copies[i] * sizes[i],
                rank % copies[i] == 0,
            )
            for i in chosen
        ]  # fmt: skip
    if tuple(parameter.shape) == shape:
        return [(parameter, Shard.whole(shape, process == 0))]
    if shape and parameter.dim() == len(shape) and 0 < parameter.shape[0] < height and height % parameter.shape[0] == 0:
        return [rows(0, parameter.shape[0], process * parameter.shape[0])]  # cut by a loader of its own: see `compare`
    raise unlike


def _sections(model: nn.Module, key: str) -> list[int]:
    """Rows for queries, keys and values of the convolution in a gated delta-net, each of which is cut by itself."""
    mixer, _, layer = key.rpartition(".")[0].rpartition(".")
    if layer != "conv1d":
        return []
    sizes = [getattr(model.get_submodule(mixer), word, 0) for word in ("key_dim", "key_dim", "value_dim")]
    return sizes if all(isinstance(size, int) and size > 0 for size in sizes) else []


def _is_turned(owner: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the checkpoint has a layer's weight with inputs first, as GPT-2 has; not known of square ones."""
    sizes = getattr(owner, "input_size", None), getattr(owner, "output_size", None)
    return tuple(shape) == sizes and sizes[0] != sizes[1] and _is(owner, "LinearBase")


def _turned(blocks: list[tuple[torch.Tensor, Shard]]) -> list[tuple[torch.Tensor, Shard]]:
    """Blocks of a matrix as blocks of its transpose."""
    return [
        (tensor.T, Shard(shard.shape[::-1], shard.column, shard.columns, shard.row, shard.rows, shard.counted))
        for tensor, shard in blocks
    ]


def _chosen(whole: list[int], part: Part | None, height: int) -> list[int]:
    """Which layers of a fused parameter a checkpoint tensor of `height` rows consists of; none if that is not clear.

    Each part is one layer, or all are one tensor, or, as q, k and v of a gated delta-net are one tensor beside z, the
    first layers or the last.
    """
    if part is not None and part.of == len(whole):
        return [part.index] if whole[part.index] == height else []
    for last in range(1, len(whole) + 1):
        chosen = list(range(last)) if part is None or part.index == 0 else list(range(len(whole) - last, len(whole)))
        if sum(whole[i] for i in chosen) == height and (part is None or part.index in (0, part.of - 1)):
            return chosen
    return []


def _is(module: nn.Module, *names: str) -> bool:
    return any(base.__name__ in names for base in type(module).__mro__)


def _padding(owner: nn.Module, key: str, parameter: torch.Tensor) -> int:
    """Elements of a vocabulary that stand for no token, or of experts that stand for nothing."""
    if experts.is_stack(owner):
        return experts.padding(owner, key, parameter)
    if not _is(owner, "VocabParallelEmbedding"):
        return 0
    indices = owner.shard_indices
    held = indices.org_vocab_end_index - indices.org_vocab_start_index
    return parameter.numel() // parameter.shape[0] * (parameter.shape[0] - held)


def _check_covered(
    owners: Mapping[str, Owned],
    covered: Mapping[int, int],
    sizes: Mapping[int, tuple[str, int]],
) -> None:
    for pointer, (key, size) in sizes.items():
        if covered[pointer] != size:
            raise EngineError(
                f"The checkpoint covers {covered[pointer]} of {size} values of {key}: noise would reach a part only."
            )
    for key, (tensor, owner, _) in owners.items():
        parameter = isinstance(getattr(owner, key.rpartition(".")[2], None), nn.Parameter)
        weight = tensor.is_floating_point() and tensor.numel() > 0 and (parameter or key.endswith(("weight", "bias")))
        if weight and tensor.data_ptr() not in covered:
            raise EngineError(f"No tensor of the checkpoint was found for the parameter {key}.")
