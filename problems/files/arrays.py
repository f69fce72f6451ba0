"""Sets of instances as numpy arrays, in the layout in which the published sets come (.npy, .npz)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files.text import shown_path

LARGEST_SET = 2**30  # bytes of an unpacked array
LAYOUTS = {
    "tsp": "(B, N, 2): coordinates",
    "kp": "(B, N, 2): weight, value",
    "vrp": "(B, N + 1, 3): demand, x, y, the depot first",
    "bpp": "demands (B, N): sizes",
}


def read_array(path: str | os.PathLike, kind: str) -> np.ndarray:
    """A set of instances of one kind; pickled objects are never loaded.

    Parameters
    ----------
    path : .npy file, or .npz file (for bpp with the key `demands`, else with one array)
    kind : tsp, kp, vrp or bpp

    Returns
    -------
    float64 array; tsp (B, N, 2) coordinates, kp (B, N, 2) weight and value, vrp (B, N + 1, 3) demand, x, y with the
    depot in row 0; bpp int64 (B, N) sizes

    Raises
    ------
    DataError
        The file is no such array, or holds numbers that no instance can have.
    """
    place = shown_path(path)
    array = load_array(path)
    expected = f"an array {LAYOUTS[kind]}"
    columns = {"tsp": 2, "kp": 2, "vrp": 3}.get(kind)
    good = array.ndim == 2 if columns is None else array.ndim == 3 and array.shape[2] == columns
    if not good or 0 in array.shape:
        raise DataError(f"{place}: expected {expected}, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise DataError(f"{place}: expected finite numbers, got NaN or infinity.")
    if kind == "bpp":
        if not (array == np.floor(array)).all() or array.min() < 1 or array.max() > 1e15:
            raise DataError(f"{place}: expected sizes that are whole numbers from 1, got others.")
        return array.astype(np.int64)
    array = array.astype(np.float64)
    if kind == "kp" and array.min() < 0:
        raise DataError(f"{place}: expected weights and values of at least 0, got {array.min():g}.")
    if kind == "vrp":
        demands = array[..., 0]
        if demands.min() < 0 or (demands != np.floor(demands)).any():
            raise DataError(f"{place}: expected demands that are whole numbers from 0, got others.")
        if demands[:, 0].any():
            raise DataError(f"{place}: expected no demand at the depot (row 0), got {demands[:, 0].max():g}.")
    return array


def load_array(path: str | os.PathLike) -> np.ndarray:
    """The one array of an .npy or .npz file (of several, `demands`), numbers only.

    Raises
    ------
    DataError
        There is no such file or array.
    """
    place = shown_path(path)
    path = Path(path)
    expected = "a numpy file (.npy, .npz) of numbers"
    if not path.is_file():
        raise DataError(f"{place}: expected {expected}, got {'a folder' if path.is_dir() else 'no such file'}.")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                large = max((entry.file_size for entry in archive.infolist()), default=0)
            if large > LARGEST_SET:
                raise DataError(f"{place}: expected an array of at most {LARGEST_SET} bytes, got {large}.")
            with np.load(path, allow_pickle=False) as archive:
                keys = list(archive)
                if "demands" not in keys and len(keys) != 1:
                    raise DataError(f"{place}: expected one array, or one named demands, got {keys!r:.60}.")
                array = archive["demands" if "demands" in keys else keys[0]]
        else:
            # A mapped file is held against its size before anything is allocated.
            array = np.load(path, allow_pickle=False, mmap_mode="r")
            if array.nbytes > LARGEST_SET:
                raise DataError(f"{place}: expected an array of at most {LARGEST_SET} bytes, got {array.nbytes}.")
            array = np.array(array)
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise about a dozen kinds for a broken file
        raise DataError(f"{place}: expected {expected}, got a broken one ({type(error).__name__}).") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        raise DataError(f"{place}: expected {expected}, got {getattr(array, 'dtype', type(array).__name__)!s:.60}.")
    return array
