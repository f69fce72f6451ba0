"""The part of the vLLM engine that runs inside vLLM's workers, one per tensor-parallel rank.

vLLM adds this class to its worker's bases (`worker_extension_cls`): every name begins with `es_`, since a name that the
worker has already is an error there. Arguments and results are numbers, strings, lists and dicts, so that they pass
between processes without pickling. Weights are written in place, into the storage that captured CUDA graphs read.

On a CPU vLLM packs the weights of linear layers away, and what stays visible is empty: noise would reach embeddings
and norms only. Importing this module turns that off, which must happen before the model is loaded, and does, because
the worker imports its extension first.
"""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ttc_esopt.engines.measures import sums
from ttc_esopt.engines.scopes import refuse_derived, resolve_scope
from ttc_esopt.engines.views import compare, header, views_of
from ttc_esopt.engines.vllm_experts import keep_experts_live, refuse_packed
from ttc_esopt.engines.weights import Weights
from ttc_esopt.engines.wide import narrowed, show
from ttc_esopt.errors import EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

UNPERTURBED = "base"  # the adapter of zeros
SAVED = 2 << 30  # bytes of a file of blocks

Steps = Sequence[tuple[Sequence[int], Sequence[float]]]


def keep_weights_live() -> bool:
    """Turn off the packing of linear weights and of experts on CPUs; whether experts can be moved."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return True
    import vllm._custom_ops as ops

    if not hasattr(ops, "_supports_onednn"):
        raise EngineError(
            "This release of vLLM packs CPU weights in a way that is not known: use --engine transformers."
        )
    ops._supports_onednn = False
    return keep_experts_live()


EXPERTS_LIVE = True
with contextlib.suppress(ImportError):  # not inside vLLM: the functions below can be looked at all the same
    EXPERTS_LIVE = keep_weights_live()


class EsWorker:
    """Methods for `collective_rpc`."""

    def es_attach(
        self, folder: str, kind: str, scope: str, rounding: str = "nearest", placement: str = "device"
    ) -> dict:
        """Take the loaded model apart into checkpoint tensors; numbers for the record.

        Parameters
        ----------
        folder : the checkpoint
        kind, scope, rounding, placement : see `ttc_esopt.engines.weights.Weights`
        """
        self.es_rank = _rank()
        adapt_everywhere(self.get_model())
        refuse_derived(self.get_model())
        refuse_packed(self.get_model(), EXPERTS_LIVE)
        self.es_shapes = header(Path(folder))
        views = views_of(self.get_model(), self.es_shapes, self.es_rank)
        compare(views.pieces, Path(folder))
        self.es_pieces, self.es_wide = narrowed(views.pieces, self.model_config.dtype, Path(folder))
        with torch.inference_mode():
            show(self.es_wide)
        self.es_noise, self.es_rounding, self.es_placement = NoiseKind.parse(kind), rounding, placement
        self.es_weights = self.es_made(self.es_noise, resolve_scope(self.es_noise, scope))
        if self.es_noise.kind == "lowrank":
            layers = dict(self.get_model().named_modules())
            for name in self.es_weights.names:
                if not views.pieces[name].adapts:
                    raise EngineError(
                        f"vLLM gives the layer {views.pieces[name].module} no adapter: a direction would miss it, and "
                        "a step would move it (--noise full)."
                    )
                refuse_fused(layers, views.pieces[name].module)
        manager = getattr(getattr(self, "model_runner", None), "lora_manager", None)
        if manager is not None:
            if not hasattr(manager, "_load_adapter"):
                raise EngineError("This release of vLLM loads adapters in a way that is not known (--noise full).")
            manager._load_adapter = self.es_adapter
            bare_heads(self.get_model())
        counted = [(name, piece) for name, piece in views.pieces.items() if piece.shard.counted]
        moving = set(self.es_weights.names)
        return {
            "scope": self.es_weights.scope,
            "parameters": sum(piece.shard.size for _, piece in counted),
            "moving_parameters": sum(piece.shard.size for name, piece in counted if name in moving),
            "unused": views.unused,
            "tied": views.tied,
        }

    def es_made(self, kind: NoiseKind, scope: str) -> Weights:
        """The weights as tensors of the checkpoint."""
        pieces = self.es_pieces
        live = {name: piece.tensor for name, piece in pieces.items()}
        names = [n for n, p in pieces.items() if (p.linear if scope == "linear" else p.tensor.is_floating_point())]
        shards = {name: piece.shard for name, piece in pieces.items()}
        return Weights(live, names, kind, scope, shards, self.es_rounding, self.es_placement)

    def es_adapter(self, request: Any) -> Any:
        """An adapter made of a direction's factors; takes the place of vLLM's loader of adapter files.

        `request.lora_path` is "es:DIRECTION:SIGMA" (sigma in hexadecimal), or "es:base" for an adapter of zeros.
        """
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.lora_weights import LoRALayerWeights

        manager = self.model_runner.lora_manager
        rank, dtype = self.es_noise.rank, manager.lora_config.lora_dtype
        layers = {}
        for key in self.es_weights.names:
            piece = self.es_pieces[key]
            if piece.module in layers:  # another block of the same tensor
                continue
            name = piece.shard.name or key
            a, b = adapter_factors(name, piece.shard.shape, self.es_noise, request.lora_path)
            layers[piece.module] = LoRALayerWeights(piece.module, rank, rank, a.to(dtype), b.to(dtype))
        adapter = LoRAModel(request.lora_int_id, rank, layers)
        adapter.is_3d_lora_weight = False
        return adapter

    @contextlib.contextmanager
    def es_writing(self) -> Iterator[None]:
        """Live weights are written inside; after it the model has them."""
        with torch.inference_mode():
            try:
                yield
            finally:
                show(self.es_wide)

    def es_perturb(self, direction: int, sigma: float) -> None:
        with self.es_writing():
            self.es_weights.perturb(direction, sigma)

    def es_beginning(self) -> None:
        """The weights as they were at the beginning, until `es_restore`."""
        with self.es_writing():
            self.es_weights.to_base()

    def es_restore(self) -> None:
        with self.es_writing():
            self.es_weights.restore()

    def es_step(self, directions: list[int], coefficients: list[float]) -> None:
        with self.es_writing():
            self.es_weights.step(directions, coefficients)

    def es_rewind(self, steps: Steps) -> None:
        with self.es_writing():
            self.es_weights.rewind(steps)

    def es_adopt(self, kind: str, scope: str, steps: Steps) -> None:
        """Steps of another run, and a new beginning."""
        other = NoiseKind.parse(kind)
        with self.es_writing():
            self.es_made(other, resolve_scope(other, scope)).rewind(steps)
        self.es_weights = self.es_made(self.es_noise, self.es_weights.scope)

    def es_measure(self, steps: Steps, sigma: float) -> dict[str, float]:
        """See `ttc_esopt.engines.measures.sums`."""
        with torch.inference_mode():
            return sums(self.es_weights, steps, sigma)

    def es_moved(self) -> bool:
        return self.es_weights.touched

    def es_fingerprint(self) -> str:
        """The part of the fingerprint that this rank counts, hexadecimal."""
        return self.es_weights.fingerprint()

    def es_sha256(self) -> str:
        """Over all tensors of the checkpoint; empty where not all are held in one piece."""
        return "" if any(piece.shard.name for piece in self.es_pieces.values()) else self.es_weights.sha256()

    def es_save(self, folder: str) -> None:
        """Write the blocks that this rank counts to safetensors files of its own, with their places as metadata."""
        from safetensors.torch import save_file

        held = {name: piece for name, piece in self.es_pieces.items() if piece.shard.counted}
        places = {
            key: json.dumps([s.name or key, s.row, s.rows, s.column, s.columns, s.shape, self.es_shapes[s.name or key]])
            for key, s in ((key, piece.shard) for key, piece in held.items())
        }
        parts: list[list[str]] = [[]]  # of some size, as each is on the host for a while
        size = 0
        for name, piece in held.items():
            size += piece.tensor.nbytes
            if size > SAVED and parts[-1]:
                parts.append([])
                size = piece.tensor.nbytes
            parts[-1].append(name)
        for number, names in enumerate(parts):
            blocks = {}
            for name in names:  # parts of a fused layer share storage, turned ones have gaps: the format allows neither
                live, shard = held[name].tensor.detach(), held[name].shard
                copy = torch.empty(live.shape, dtype=live.dtype, device="cpu").copy_(live)
                blocks[name] = copy.view(shard.rows, shard.columns)
            told = {name: places[name] for name in names}
            save_file(blocks, Path(folder) / f"rank{self.es_rank}-{number}.safetensors", metadata=told)

    def es_peak(self) -> dict[str, float]:
        """Largest memory of this worker so far, MiB."""
        found = {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
        if torch.cuda.is_available():
            found["gpu_peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
        return found


def bare_heads(model: torch.nn.Module) -> None:
    """Let logits be computed without adapters, which ours do not have there.

    vLLM looks up one adapter for each request there, where it is given all tokens of a prompt whose laws are asked for.
    """
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if hasattr(base, "_get_logits"):
            module._get_logits = lambda states, head, *further, base=base, **given: base._get_logits(
                states, getattr(head, "base_layer", head), *further, **given
            )


def refuse_fused(layers: Mapping[str, nn.Module], name: str) -> None:
    """Raise an EngineError where vLLM wants an adapter in parts for a layer that is one tensor in the checkpoint.

    So it is with `gate_up_proj` of GLM-4. A part of such a layer has a name that no module has.
    """
    wrap = layers.get(name)
    parts = len(getattr(wrap, "lora_a_stacked", ()))
    if parts > 1 and "VariableSlice" not in type(wrap).__name__:  # which takes either
        raise EngineError(
            f"Expected the layer {name} to take one adapter, as the checkpoint has one tensor for it, but vLLM has one "
            f"for each of {parts} parts (--noise full, or --engine transformers)."
        )


def adapt_everywhere(model: nn.Module) -> None:
    """Let every name of a layer lead to the one with its adapter.

    vLLM wraps a layer under one of its names; what calls it by another (the gate of a shared expert) would do without.
    """
    wraps = {
        id(module.base_layer): module
        for module in model.modules()
        if hasattr(module, "lora_a_stacked") and isinstance(getattr(module, "base_layer", None), nn.Module)
    }
    for name, module in list(model.named_modules(remove_duplicate=False)):
        parent, _, last = name.rpartition(".")
        if id(module) in wraps and last != "base_layer":
            setattr(model.get_submodule(parent), last, wraps[id(module)])


def adapter_factors(name: str, shape: Sequence[int], kind: NoiseKind, path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(lora_A (rank, in), lora_B (out, rank)) of one layer, float32: their product B A is sigma * eps."""
    _, _, told = path.partition(":")
    if told == UNPERTURBED:
        return torch.zeros(kind.rank, shape[1]), torch.zeros(shape[0], kind.rank)
    direction, sigma = told.split(":")
    left, right = noise.factors(int(direction), name, (shape[0], shape[1]), kind.rank, values=kind.values)
    scale = float.fromhex(sigma) * float(noise.lowrank_scale(kind.rank))
    return torch.from_numpy(right).T.contiguous(), torch.from_numpy(left) * scale


def _rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank()
