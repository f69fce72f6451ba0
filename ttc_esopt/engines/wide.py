"""Tensors that a serving engine holds in float32 beside a model of 16 bits: the decay rates of a gated delta-net.

transformers holds them in the model's type, unless the class of the model says otherwise, and so does the history: base
and live values of 16 bits, rounded once. They are kept here, and shown to the engine in its type after each writing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ttc_esopt.engines.views import Piece
from ttc_esopt.errors import EngineError

Pair = tuple[torch.Tensor, torch.Tensor]  # of 16 bits, and the engine's own


def narrowed(pieces: Mapping[str, Piece], dtype: torch.dtype, folder: Path) -> tuple[dict[str, Piece], list[Pair]]:
    """The pieces as transformers would hold them in a model of `dtype`, and which of them have to be shown.

    Raises
    ------
    EngineError
        The engine holds in 16 bits what transformers keeps in float32: what a step rounds away would differ.
    """
    made, pairs = dict(pieces), []
    floats = {name: piece for name, piece in pieces.items() if piece.tensor.is_floating_point()}
    kept = kept_wide(folder, dtype) if floats and dtype != torch.float32 else None
    for key, piece in floats.items():
        name, held = piece.shard.name or key, piece.tensor.dtype
        stays = kept is not None and kept.search(name) is not None
        if stays and held != torch.float32:
            raise EngineError(
                f"Expected the tensor {name} in float32, as transformers keeps it in a model of {_short(dtype)}, got "
                f"{_short(held)} from vLLM: the same steps would lead to other weights there (another --dtype, float32 "
                "for sure, or --engine transformers)."
            )
        if held == torch.float32 != dtype and not stays:
            made[key] = replace(piece, tensor=piece.tensor.detach().to(dtype))
            pairs.append((made[key].tensor, piece.tensor.detach()))
    return made, pairs


def show(pairs: Sequence[Pair]) -> None:
    """Write what is kept in 16 bits into the engine's tensors."""
    for narrow, wide in pairs:
        wide.copy_(narrow)


def kept_wide(folder: Path, dtype: torch.dtype) -> re.Pattern | None:
    """What the names of tensors hold that transformers keeps in float32 in a model of 16 bits; None: there are none.

    There are none either where transformers has no class for the model: nothing of it can differ from what is held here
    then, and should a later release hold something else, the fingerprint before the first step says so.

    Raises EngineError where transformers has a class and cannot make it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (ValueError, KeyError):  # a type or a configuration that it does not know
        return None
    except Exception as error:  # whatever a model's own code raises
        raise EngineError(
            f"Expected a model of {folder} from transformers, to learn which tensors it keeps in float32, got "
            f"{type(error).__name__}: {str(error).strip()[:300]} (--dtype float32 asks for none)."
        ) from error
    words = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        words |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return re.compile("|".join(word.replace("*", ".*") for word in sorted(words))) if words else None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
