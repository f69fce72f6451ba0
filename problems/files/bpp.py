"""Bin-packing files: one instance as in BPPLIB, or several as in the OR-Library (binpack1 to binpack8)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from ttc_esopt.problems.files.text import LARGEST_NUMBER, TextFile, Tokens, shown

MOST_DECIMALS = 9


@dataclass(frozen=True, eq=False)
class BppFile:
    """One bin-packing instance as its file states it.

    Attributes
    ----------
    name : as in the file, else the file's stem
    sizes : int64 array, shape (n,), from 1 to the capacity
    capacity : of one bin; sizes and capacity with decimals are both scaled by one power of ten, exactly
    best_known : smallest known number of bins where the file says it
    """

    name: str
    sizes: np.ndarray
    capacity: int
    best_known: float | None = None


def read_bpp(path: str | os.PathLike) -> list[BppFile]:
    """All bin-packing instances of a file: n, capacity and n sizes, or the layout of the OR-Library.

    Raises
    ------
    DataError
        The file is no such file; the message names the line, what was expected and what was found.
    """
    text = TextFile(path)
    if several(text):
        return _several(text)
    tokens = Tokens(text)
    n = tokens.integer("the number of items", 1)
    instance = _instance(tokens, text.path.stem, tokens.take("the capacity"), n, None)
    tokens.finish(f"{n} sizes")
    return [instance]


def several(text: TextFile) -> bool:
    """Whether a file has the layout of the OR-Library: a number of problems, a name, then a line of three numbers."""
    words = [content.split() for _, content in text.lines[:3]]
    if [len(line) for line in words] != [1, 1, 3]:
        return False
    count = sum(len(content.split()) for _, content in text.lines)
    return words[0][0] != str(count - 2)  # else n, a capacity and n sizes, the first three of them on one line


def _several(text: TextFile) -> list[BppFile]:
    tokens = Tokens(text)
    count = tokens.integer("the number of problems", 1)
    found = []
    for _ in range(count):
        name, _ = tokens.take("the name of a problem")
        capacity = tokens.take("the capacity")
        n = tokens.integer("the number of items", 1)
        best = tokens.integer("the best known number of bins", 0)
        found.append(_instance(tokens, name, capacity, n, float(best) if best else None))
    tokens.finish(f"{count} problems")
    return found


def _instance(tokens: Tokens, name: str, capacity: tuple[str, int], n: int, best: float | None) -> BppFile:
    text = tokens.text
    room = _exact(text, *capacity, "the capacity")
    sizes = []
    for token, line in tokens.some(n, "sizes"):
        size = _exact(text, token, line, "a size")
        if size > room:
            raise text.fault(line, f"a size within the capacity {capacity[0]}", shown(token))
        sizes.append(size)
    decimals = max(_decimals(number) for number in [room, *sizes])
    scale = 10**decimals
    if room * scale > LARGEST_NUMBER:
        raise text.fault(capacity[1], f"a capacity below 1e15 in units of 1e-{decimals}", shown(capacity[0]))
    return BppFile(name, np.array([int(size * scale) for size in sizes], dtype=np.int64), int(room * scale), best)


def _exact(text: TextFile, token: str, line: int, what: str) -> Decimal:
    if text.number(token, line, what) <= 0:
        raise text.fault(line, f"{what} above 0", shown(token))
    value = Decimal(token)
    if _decimals(value) > MOST_DECIMALS:
        raise text.fault(line, f"{what} with at most {MOST_DECIMALS} decimals", shown(token))
    return value


def _decimals(value: Decimal) -> int:
    return max(0, -int(value.normalize().as_tuple().exponent))
