"""A checkpoint from the blocks that vLLM's ranks hold, shard by shard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from ttc_esopt.engines.base import expect_size
from ttc_esopt.engines.export import INDEX, bytes_of, write_beside
from ttc_esopt.engines.views import files
from ttc_esopt.es.shard import matrix

Stored = dict[str, tuple[int, Callable[[], torch.Tensor]]]  # bytes of each tensor, and what reads it


def gathered(blocks: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors by checkpoint name, in the order of their names, one in memory at a time.

    Parameters
    ----------
    blocks : files that `EsWorker.es_save` wrote, of all ranks
    """
    for name, (_, read) in sorted(_whole(blocks).items()):
        yield name, read()


def _whole(blocks: list[Path]) -> Stored:
    """The tensors that the ranks' blocks come to."""
    from safetensors import safe_open

    places: dict[str, list[tuple[Any, str, list]]] = {}
    for stored in [safe_open(file, framework="pt") for file in blocks]:
        for key, told in stored.metadata().items():
            name, *place = json.loads(told)
            places.setdefault(name, []).append((stored, key, place))

    def joined(parts: list[tuple[Any, str, list]]) -> torch.Tensor:
        whole: torch.Tensor | None = None
        for stored, key, (row, rows, column, columns, seen, shape) in parts:
            block = stored.get_tensor(key)
            if whole is None:
                whole = torch.empty(shape, dtype=block.dtype)
            whole.view(matrix(tuple(seen)))[row : row + rows, column : column + columns] = block
        return whole

    return {
        name: (sum(bytes_of(stored.get_slice(key)) for stored, key, _ in parts), lambda parts=parts: joined(parts))
        for name, parts in places.items()
    }


def export(
    blocks: list[Path], source: Path, folder: Path, tied: Collection[str], shard_size: str, tokenizer: object
) -> None:
    """Write the tensors of `blocks`, and all else that the source folder holds, as a Hugging Face folder.

    The source's copies of `tied` tensors are left out: they are those of another name. One shard is in memory at a
    time.
    """
    from huggingface_hub import split_state_dict_into_shards_factory
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = _whole(blocks)
    for file in files(source):  # what the engine holds no copy of, for instance unused heads
        stored = safe_open(file, framework="pt")
        for name in set(stored.keys()) - set(tensors) - set(tied):
            tensors[name] = bytes_of(stored.get_slice(name)), lambda name=name, stored=stored: stored.get_tensor(name)
    split = split_state_dict_into_shards_factory(
        {name: tensors[name][0] for name in sorted(tensors)}, get_storage_size=int,
        filename_pattern="model{suffix}.safetensors", max_shard_size=expect_size(shard_size),
    )  # fmt: skip
    for file, names in split.filename_to_tensors.items():
        save_file({name: tensors[name][1]() for name in names}, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for file in (source / "config.json", *source.glob("*.py")):  # what a model writes beside its weights
        shutil.copyfile(file, folder / file.name)
    write_beside(tokenizer, source, folder)
