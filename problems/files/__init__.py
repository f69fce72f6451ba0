"""Readers of the instance files of the field; `detect` says what a file holds."""

from __future__ import annotations

import os
from pathlib import Path

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files import knapsack
from ttc_esopt.problems.files.arrays import load_array, read_array
from ttc_esopt.problems.files.bpp import BppFile, read_bpp, several
from ttc_esopt.problems.files.knapsack import KpFile, read_kp
from ttc_esopt.problems.files.text import TextFile, shown, shown_path
from ttc_esopt.problems.files.tsp import PLANAR, TspFile, read_tsp, take_apart
from ttc_esopt.problems.files.vrp import CvrpFile, read_vrp

__all__ = [
    "PLANAR", "BppFile", "CvrpFile", "KpFile", "TspFile", "detect", "read_array", "read_bpp",
    "read_kp", "read_tsp", "read_vrp",
]  # fmt: skip

_SUFFIXES = {".tsp": "tsp", ".vrp": "vrp", ".bpp": "bpp", ".kp": "kp", ".knap": "kp"}
_TYPES = {"TSP": "tsp", "CVRP": "vrp"}


def detect(path: str | os.PathLike) -> str:
    """What an instance file holds, by its content and, where that is ambiguous, by its suffix.

    Returns
    -------
    tsp, vrp, bpp or kp

    Raises
    ------
    DataError
        It cannot be read, or it is none of them.
    """
    suffix = _SUFFIXES.get(Path(path).suffix.lower())
    if Path(path).suffix.lower() in (".npy", ".npz"):
        return _array_kind(path)
    text = TextFile(path)
    first, content = text.lines[0]
    if content[0].isalpha() and not content.startswith("knapPI"):
        return _tsplib_kind(path, suffix)
    kind = _number_kind(text) or suffix
    if kind is None:
        raise text.fault(first, "a TSPLIB, CVRPLIB, bin-packing or knapsack file", shown(content))
    return kind


def _array_kind(path: str | os.PathLike) -> str:
    array = load_array(path)
    if array.ndim == 3 and array.shape[2] == 3:
        return "vrp"
    if array.ndim == 2:
        return "bpp"
    raise DataError(
        f"{shown_path(path)}: expected an array that tells what it holds, got shape {array.shape}, which may be tsp or "
        "kp: name the problem."
    )


def _tsplib_kind(path: str | os.PathLike, suffix: str | None) -> str:
    parts = take_apart(path)
    if "TYPE" in parts.keys:
        line, value = parts.keys["TYPE"]
        kind = _TYPES.get((value.upper().split() or [""])[0])
        if kind is None:
            raise parts.text.fault(line, f"TYPE : {' or '.join(_TYPES)}", shown(value))
        return kind
    if "DEMAND_SECTION" in parts.sections or "CAPACITY" in parts.keys:
        return "vrp"
    if parts.sections.keys() & {"NODE_COORD_SECTION", "EDGE_WEIGHT_SECTION"}:
        return "tsp"
    if suffix is None:
        raise parts.text.ended("TYPE, NODE_COORD_SECTION or EDGE_WEIGHT_SECTION")
    return suffix


def _number_kind(text: TextFile) -> str | None:
    if several(text):
        return "bpp"
    words = [content.split() for _, content in text.lines[:2]]
    layout = knapsack.layout_of(text)
    if layout == "plain":  # `n capacity` may also head a bin-packing file
        return None if len(words) < 2 else "kp" if len(words[1]) == 2 else "bpp"
    if layout is not None:
        return "kp"
    return "bpp" if len(words) == 2 and len(words[0]) == len(words[1]) == 1 else None
