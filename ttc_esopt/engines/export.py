"""A model as a Hugging Face folder: shards of a bounded size, and whatever the source folder has that no step touched.

A model class may leave tensors of its checkpoint out (heads for several tokens at once, a vision tower beside the
language model). They are copied from the source, so that what read the source can read the export.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from ttc_esopt.engines.base import SHARD_SIZE, expect_size

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# small files that neither model nor tokenizer writes
BESIDE = (
    "generation_config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "LICENSE", "LICENSE.txt", "NOTICE",
)  # fmt: skip


def stored_names(folder: Path) -> dict[str, Path]:
    """Names of the tensors of a checkpoint (safetensors, or torch files), with the file of each."""
    found: dict[str, Path] = {}
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(file, framework="pt") as stored:
                found |= dict.fromkeys(stored.keys(), file)
        else:
            found |= dict.fromkeys(torch.load(file, map_location="meta", weights_only=True, mmap=True), file)
    return found


def weight_files(folder: Path) -> list[Path]:
    """Those that hold the checkpoint: as transformers picks them."""
    for single, index in ((SINGLE, INDEX), ("pytorch_model.bin", "pytorch_model.bin.index.json")):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            names = json.loads((folder / index).read_text())["weight_map"].values()
            return [folder / name for name in sorted(set(names))]
    return []


def unloaded(model: torch.nn.Module, names: Collection[str], unexpected: Collection[str]) -> list[str]:
    """Of the tensors of a checkpoint those that the model class left out.

    Parameters
    ----------
    names : those of the checkpoint
    unexpected : those that loading reported
    """
    silent = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    own = model.state_dict().keys()
    return sorted(
        name
        for name in names
        if name not in own and (name in unexpected or any(pattern.search(name) for pattern in silent))
    )


def write(
    model: torch.nn.Module, tokenizer: object, folder: Path, source: Path | None, left_out: Collection[str],
    shard_size: str = SHARD_SIZE,
) -> None:  # fmt: skip
    """Write model (in its dtype) and tokenizer; of `source`, the tensors `left_out` and the small files as they are."""
    model.save_pretrained(folder, max_shard_size=expect_size(shard_size))
    write_beside(tokenizer, source, folder)
    if source is None:
        return
    extra = [name for name in left_out if name not in stored_names(folder)]
    if extra:
        _append(folder, source, extra, expect_size(shard_size))


def write_beside(tokenizer: object, source: Path | None, folder: Path) -> None:
    """Write the tokenizer, and the small files that neither it nor a model writes as they are in `source`."""
    tokenizer.save_pretrained(folder)
    for name in BESIDE if source is not None else ():
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def _append(folder: Path, source: Path, names: Collection[str], most: int) -> None:
    """Add tensors of the source to a checkpoint, in files of their own, and number all files anew."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    held = stored_names(folder)
    if not held:
        raise ValueError(f"{folder} holds no checkpoint.")
    files: dict[str, list[str]] = {}
    for name, file in held.items():
        files.setdefault(file.name, []).append(name)
    for number, tensors in enumerate(_parts(source, names, most)):
        file = f"extra-{number}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files[file] = list(tensors)
    total, weight_map = 0, {}
    for number, (old, inside) in enumerate(sorted(files.items(), key=lambda one: one[0].startswith("extra-")), 1):
        new = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (folder / old).rename(folder / f"{new}.new")  # names of old and new files may overlap
        weight_map |= dict.fromkeys(inside, new)
    for file in folder.glob("*.safetensors.new"):
        file.rename(file.with_suffix(""))
    for file in sorted(set(weight_map.values())):
        with safe_open(folder / file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                total += bytes_of(stored.get_slice(name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _parts(source: Path, names: Collection[str], most: int) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of these names in dictionaries of at most `most` bytes each (or one tensor)."""
    places, part, size = stored_names(source), {}, 0
    for name in names:
        tensor = _tensor(places[name], name)
        one = tensor.numel() * tensor.element_size()
        if part and size + one > most:
            yield part
            part, size = {}, 0
        part[name], size = tensor, size + one
    yield part


def _tensor(file: Path, name: str) -> torch.Tensor:
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, framework="pt") as stored:
            return stored.get_tensor(name)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=True)[name].contiguous()


def bytes_of(stored: Any) -> int:
    """Size of a tensor that `safe_open(...).get_slice` gives."""
    bits = re.search(r"\d+", stored.get_dtype())
    return math.prod(stored.get_shape()) * (max(1, int(bits[0]) // 8) if bits else 1)
