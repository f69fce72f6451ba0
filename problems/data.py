"""Published instance sets that no seed rebuilds, from a folder laid out as published (`--data`, TTC_ESOPT_DATA)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files.arrays import load_array


def published(folder: Path | None, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """One set from the folder; None where there is no folder or the folder lacks the file.

    Parameters
    ----------
    folder : the folder of published sets
    name : path of the file below it
    shape : what the array must be

    Raises
    ------
    DataError
        The file is no such array.
    """
    path = folder / name if folder else None
    if path is None or not path.is_file():
        return None
    array = load_array(path)
    if array.shape != shape or not np.isfinite(array).all():
        raise DataError(f"{path}: expected finite numbers of shape {shape}, got shape {array.shape} (--data).")
    return array
