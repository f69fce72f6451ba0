"""Which tensors of a model move: its linear layers, packed ones among them, and what is refused."""

from __future__ import annotations

import torch
from torch import nn

from ttc_esopt.engines.adapters import Adapters, Grown, Lora, is_packed, lora_rank
from ttc_esopt.engines.names import stored_name
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es.noise import NoiseKind


def resolve_scope(kind: NoiseKind, scope: str) -> str:
    """Which tensors move: "all", "linear" or "lora:R"; "auto" is all for full noise and linear for low-rank noise.

    Raises
    ------
    ConfigurationError
        Unknown scope, or low-rank noise with scope all or lora (it is defined for the matrices of linear layers only).
    """
    rank = lora_rank(scope)
    if scope not in ("auto", "all", "linear") and rank is None:
        raise ConfigurationError(f"Expected scope auto, all, linear or lora[:R], got {scope!r} (--scope).")
    if scope == "auto":
        return "all" if kind.kind == "full" else "linear"
    if kind.kind == "lowrank" and scope != "linear":
        raise ConfigurationError(f"Expected scope linear for low-rank noise, got {scope} (--scope, --noise).")
    return f"lora:{rank}" if rank else scope


def linear_modules(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of the body by weight name.

    Neither the output head, nor a layer tied to the embedding, nor the router of a stack of experts: releases differ in
    whether that is a linear layer.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    shared = {id(module.weight) for module in (head, embedding) if hasattr(module, "weight")}
    return {
        stored_name(model, f"{name}.weight"): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and id(module.weight) not in shared
        and not _is_router(model, name, module)
    }


def _is_router(model: nn.Module, name: str, module: nn.Linear) -> bool:
    """Whether a layer chooses among the experts beside it, of which there is a stack."""
    stack = getattr(model.get_submodule(name.rpartition(".")[0]), "experts", None)
    held = stack.parameters(recurse=False) if isinstance(stack, nn.Module) else ()
    return any(tensor.dim() == 3 and tensor.shape[0] == module.out_features for tensor in held)


def packed_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Linear layers of the body whose weights are quantized or packed, by the name of the weight."""
    head = model.get_output_embeddings()
    return {
        stored_name(model, f"{name}.weight"): module
        for name, module in model.named_modules()
        if module is not head and is_packed(module)
    }


def adapters_of(model: nn.Module, kind: NoiseKind, scope: str, dtype: torch.dtype) -> Adapters | None:
    """The factors that move beside a model's weights: those of scope `lora`, or of low-rank steps on packed layers."""
    rank, packed = lora_rank(resolve_scope(kind, scope)), packed_modules(model)
    if rank is not None:
        return Lora(linear_modules(model) | packed, dtype, rank)
    return Grown(packed, dtype) if packed and kind.kind == "lowrank" else None


def refuse_derived(model: nn.Module) -> None:
    """Raise EngineError for a module that keeps a copy made of a weight, which would stay behind when that moves.

    Such are the absorbed projections of multi-head latent attention.
    """
    for name, module in model.named_modules():
        for word in ("W_UK_T", "W_UK", "W_UV"):
            if isinstance(getattr(module, word, None), torch.Tensor):
                raise EngineError(
                    f"{name} keeps {word}, a copy made of another weight, which would not move with it: this model "
                    "cannot be perturbed here."
                )
