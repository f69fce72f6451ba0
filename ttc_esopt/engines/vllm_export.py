"""A checkpoint from the blocks that vLLM's ranks hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from ttc_esopt.engines.base import expect_size
from ttc_esopt.engines.views import files


def gathered(blocks: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors by checkpoint name, in the order of their names, one in memory at a time.

    Parameters
    ----------
    blocks : files that `EsWorker.es_save` wrote, one per rank
    """
    from safetensors import safe_open

    opened = [safe_open(file, framework="pt") for file in blocks]
    places: dict[str, list[tuple]] = {}
    for stored in opened:
        for key, told in stored.metadata().items():
            name, *place = json.loads(told)
            places.setdefault(name, []).append((stored, key, place))
    for name in sorted(places):
        whole: torch.Tensor | None = None
        for stored, key, (row, rows, column, columns, shape) in places[name]:
            block = stored.get_tensor(key)
            if whole is None:
                whole = torch.empty(shape, dtype=block.dtype)
            matrix = whole.view(shape[0], -1) if shape else whole.view(1, 1)
            matrix[row : row + rows, column : column + columns] = block
        yield name, whole


def export(blocks: list[Path], source: Path, folder: Path, tied: Collection[str], shard_size: str) -> None:
    """Write the tensors of `blocks`, and all else that the source folder holds, as a Hugging Face folder.

    The source's copies of `tied` tensors are left out: they are those of another name.
    """
    from huggingface_hub import save_torch_state_dict
    from safetensors import safe_open

    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(gathered(blocks))
    for file in files(source):  # what the engine holds no copy of, for instance unused heads
        with safe_open(file, framework="pt") as stored:
            missing = set(stored.keys()) - set(tensors) - set(tied)
            tensors |= {name: stored.get_tensor(name) for name in missing}
    save_torch_state_dict(tensors, folder, max_shard_size=expect_size(shard_size), metadata={"format": "pt"})
    for file in source.iterdir():
        weights = file.suffix in (".safetensors", ".bin", ".pt", ".gguf") or file.name.endswith(".index.json")
        if file.is_file() and not weights:
            shutil.copy(file, folder / file.name)
