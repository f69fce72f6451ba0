"""Which parameter of a serving engine's model a checkpoint tensor went into, by the names that the model itself gives.

vLLM's models say how they rename and fuse what they load (`packed_modules_mapping`, `hf_to_vllm_mapper`); stacks of
experts are `experts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ttc_esopt.engines import experts

Rename = Callable[[str], str | None]


@dataclass(frozen=True)
class Part:
    """One of the checkpoint tensors that a parameter is fused of."""

    index: int
    of: int


def packed_layers(model: nn.Module) -> dict[str, list[str]]:
    """Fused layer name to the names of its parts, of the model and of models inside it."""
    packed: dict[str, list[str]] = {}
    for module in model.modules():
        for fused, parts in (getattr(module, "packed_modules_mapping", None) or {}).items():
            packed.setdefault(fused, list(parts))
    for module in model.modules():
        told: dict[str, list[str]] = {}
        stacked = getattr(getattr(module, "hf_to_vllm_mapper", None), "orig_to_new_stacked", None) or {}
        for part, (fused, _) in stacked.items():  # in the order of the parts
            told.setdefault(fused.rpartition(".")[2], []).append(part.rpartition(".")[2])
        for fused, parts in told.items():
            packed.setdefault(fused, list(dict.fromkeys(parts)))
    return packed


def locate(
    rules: Sequence[tuple[str, Rename]],
    owners: Mapping[str, Any],
    packed: Mapping[str, Sequence[str]],
    stacks: Mapping[str, str],
    name: str,
) -> tuple[str, Part | experts.Slot | None, str] | None:
    """(parameter, which part of it, layer) of a checkpoint tensor; None if the model has none."""
    candidates = list(_renamed(rules, name))
    for candidate in candidates:
        layer, _, leaf = candidate.rpartition(".")
        if candidate in owners:
            return candidate, None, layer
        parent, _, last = layer.rpartition(".")
        for fused, parts in packed.items():
            if last in parts:
                key = f"{parent}.{fused}.{leaf}".removeprefix(".")
                if key in owners:
                    return key, Part(list(parts).index(last), len(parts)), layer
    return experts.located(stacks, owners, candidates)


def renamings(model: nn.Module) -> list[tuple[str, Rename]]:
    """Renaming rules of the model and of models in it, each with where it is: a function of the name from there on."""
    found = []
    for prefix, module in model.named_modules():
        mapper = getattr(module, "hf_to_vllm_mapper", None)
        if getattr(mapper, "orig_to_new_stacked", None):  # fused layers are found by `packed_layers`
            mapper = replace(mapper, orig_to_new_stacked={})
        mapper = mapper.get_rename_mapper() if hasattr(mapper, "get_rename_mapper") else mapper
        rename = getattr(mapper, "map_name", None) or getattr(mapper, "_map_name", None)
        if rename is not None:
            found.append((f"{prefix}." if prefix else "", rename))
    return found


def _renamed(rules: Sequence[tuple[str, Rename]], name: str) -> Iterable[str]:
    """The name as the engine's model may have it: as it is, and by its renaming rules."""
    yield name
    for prefix, rename in rules:
        inner = name.removeprefix(prefix)
        if len(inner) + len(prefix) == len(name) and (new := rename(inner)) and new != inner:
            yield prefix + new
