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

Pair = tuple[torch.Tensor, torch.Tensor]  # of 16 bits, and the engine's own


def narrowed(pieces: Mapping[str, Piece], dtype: torch.dtype, folder: Path) -> tuple[dict[str, Piece], list[Pair]]:
    """The pieces as transformers would hold them in a model of `dtype`, and which of them have to be shown."""
    made, pairs = dict(pieces), []
    wide = {name: piece for name, piece in pieces.items() if piece.tensor.dtype == torch.float32 != dtype}
    kept = kept_wide(folder, dtype) if wide else None
    for name, piece in wide.items():
        if kept is None or not kept.search(piece.shard.name or name):
            made[name] = replace(piece, tensor=piece.tensor.detach().to(dtype))
            pairs.append((made[name].tensor, piece.tensor.detach()))
    return made, pairs


def show(pairs: Sequence[Pair]) -> None:
    """Write what is kept in 16 bits into the engine's tensors."""
    for narrow, wide in pairs:
        wide.copy_(narrow)


def kept_wide(folder: Path, dtype: torch.dtype) -> re.Pattern | None:
    """What the names of tensors hold that transformers keeps in float32 in a model of 16 bits; None: there are none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    words = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        words |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return re.compile("|".join(word.replace("*", ".*") for word in sorted(words))) if words else None
