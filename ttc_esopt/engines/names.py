"""Under which names and in which parts a checkpoint holds the tensors of a transformers model.

transformers renames tensors when it loads them, and makes one stack of all experts of a layer where the checkpoint has
them one by one. Noise goes by the checkpoint's names and indices, so every tensor of the state dict is taken apart into
what the file holds: views of the same storage. What undoes the conversion is what transformers itself writes a
checkpoint with; it works here on tensors without values, so nothing is copied, and only the places are kept.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride, offset within the tensor's storage

_KNOWN: WeakKeyDictionary[nn.Module, dict[str, dict[str, Place]]] = WeakKeyDictionary()


def stored(name: str, tensor: torch.Tensor, model: nn.Module) -> dict[str, torch.Tensor]:
    """The checkpoint tensors that a tensor of the model's state dict holds, by name: views of it, or the tensor itself.

    A tensor whose values the checkpoint has in another order keeps its own name.
    """
    places = layout(model).get(name)
    if places is None:
        return {name: tensor}
    if len(places) == 1 and next(iter(places.values()))[:2] == (tuple(tensor.shape), tensor.stride()):
        return {next(iter(places)): tensor}
    held, start = tensor.detach(), tensor.storage_offset()
    return {key: held.as_strided(size, stride, start + offset) for key, (size, stride, offset) in places.items()}


def stored_name(model: nn.Module, name: str) -> str:
    """The checkpoint's name of a tensor; the model's own one where the checkpoint has it in several parts."""
    places = layout(model).get(name, {})
    return next(iter(places)) if len(places) == 1 else name


def layout(model: nn.Module) -> dict[str, dict[str, Place]]:
    """Name in the state dict to names and places in the checkpoint, of the tensors for which they differ."""
    if model not in _KNOWN:
        _KNOWN[model] = _layout(model)
    return _KNOWN[model]


class _WithoutCopies(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001
        return args[0] if func is torch.Tensor.contiguous else func(*args, **(kwargs or {}))


def _layout(model: nn.Module) -> dict[str, dict[str, Place]]:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before release 5 names are those of the checkpoint
        return {}
    used = getattr(model, "_weight_conversions", None)  # those that loading this checkpoint needed
    if not (get_model_conversion_mapping(model, add_legacy=False) if used is None else used):
        return {}
    empty, owner = {}, {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in owner:  # a tied tensor comes again under other names
            owner[id(tensor)] = name
            empty[name] = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    owner = {tensor.untyped_storage()._cdata: name for name, tensor in empty.items()}
    try:
        with _WithoutCopies():
            converted = revert_weight_conversion(model, dict(empty))
    except (ValueError, KeyError, RuntimeError, AttributeError):  # quantized, or no way back is known
        return {}
    found: dict[str, dict[str, Place]] = {}
    for key, tensor in converted.items():
        name = owner.get(tensor.untyped_storage()._cdata)
        if name is not None:
            found.setdefault(name, {})[key] = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    whole = {
        name: places
        for name, places in found.items()
        if sum(torch.Size(size).numel() for size, _, _ in places.values()) == empty[name].numel()
    }
    return {
        name: places
        for name, places in whole.items()
        if places != {name: (tuple(empty[name].shape), empty[name].stride(), 0)}
    }
