"""Published instance sets that no seed rebuilds, from a folder laid out as published (`--data`, TTC_ESOPT_DATA)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ttc_esopt.errors import DataError


def published(folder: Path | None, name: str, shape: tuple[int, ...], key: str | None = None) -> np.ndarray | None:
    """One set from the folder; None where there is no folder or the folder lacks the file.

    Parameters
    ----------
    folder : the folder of published sets
    name : path of the file below it
    shape : what the array must be
    key : name of the array in an .npz file

    Raises
    ------
    DataError
        The file is no such array.
    """
    path = folder / name if folder else None
    if path is None or not path.is_file():
        return None
    try:
        found = np.load(path, allow_pickle=False)
        array = found if isinstance(found, np.ndarray) else found[key]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: expected a numpy file of instances: {error} (--data).") from None
    if array.shape != shape or not np.isfinite(array).all():
        raise DataError(f"{path}: expected finite numbers of shape {shape}, got shape {array.shape} (--data).")
    return array
