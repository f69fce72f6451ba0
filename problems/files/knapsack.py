"""Knapsack files in the layouts that are in use.

plain       n and capacity, then n lines `value weight`, then perhaps a line of n zeros and ones: a solution
numbered    n, then n lines `number value weight`, then the capacity
OR-Library  number of problems; for each `n m optimum`, n values, m times n weights, m capacities (m = 1 only)
Pisinger    for each problem its name (knapPI...), lines `n 50`, `c 995`, `z 8373`, n lines `number,value,weight,x`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ttc_esopt.problems.files.text import TextFile, Tokens, shown


@dataclass(frozen=True, eq=False)
class KpFile:
    """One 0/1 knapsack instance as its file states it.

    Attributes
    ----------
    name : as in the file, else the file's stem
    weights, values : arrays, shape (n,), int64 where all numbers of the instance are whole, else float64
    capacity : int or float alike
    best_known : largest known value where the file says it
    """

    name: str
    weights: np.ndarray
    values: np.ndarray
    capacity: int | float
    best_known: float | None = None


def read_kp(path: str | os.PathLike) -> list[KpFile]:
    """All knapsack instances of a file.

    Raises
    ------
    DataError
        The file has none of the layouts above; the message names the line, what was expected and what was found.
    """
    text = TextFile(path)
    layout = layout_of(text)
    if layout is None:
        line, content = text.lines[0]
        raise text.fault(line, "'n capacity', a number of problems or knapPI...", shown(content))
    return _LAYOUTS[layout](text)


def layout_of(text: TextFile) -> str | None:
    """Which layout a file has, judged by the first lines (and the last one); None: none of them."""
    words = [content.split() for _, content in text.lines[:2]]
    if text.lines[0][1].startswith("knapPI"):
        return "pisinger"
    if len(words[0]) == 2:
        return "plain"
    if len(words) == 2 and len(words[0]) == 1 and len(words[1]) == 3:
        last = text.lines[-1][1].split()
        middle = {len(content.split()) for _, content in text.lines[1:-1]}
        numbered = len(text.lines) > 2 and words[1][0] == "1" and middle == {3} and len(last) == 1
        return "numbered" if numbered and words[0][0] == str(len(text.lines) - 2) else "or-library"
    return None


def _plain(text: TextFile) -> list[KpFile]:
    tokens = Tokens(text, text.lines[:1])
    n = tokens.integer("a number of items", 1)
    capacity = _capacity(tokens)
    rows = text.lines[1 : n + 1]
    items = [_row(text, line, content.split(), "a value and a weight", (2,)) for line, content in rows]
    if len(rows) < n:
        raise text.ended(f"{n} lines of a value and a weight, {len(rows)} of them found")
    left = text.lines[n + 1 :]
    taken = [token for _, content in left for token in content.split()]
    if taken and not (len(taken) == n and set(taken) <= {"0", "1"}):
        raise text.fault(left[0][0], f"nothing after {n} items, or {n} zeros and ones", shown(left[0][1]))
    chosen = [item for item, flag in zip(items, taken, strict=False) if flag == "1"]
    feasible = chosen and sum(weight for _, weight in chosen) <= capacity
    best = float(sum(value for value, _ in chosen)) if feasible else None
    return [_instance(text.path.stem, items, capacity, best)]


def _numbered(text: TextFile) -> list[KpFile]:
    what = "a number, a value and a weight"
    items = [_row(text, line, content.split(), what, (3,)) for line, content in text.lines[1:-1]]
    return [_instance(text.path.stem, items, _capacity(Tokens(text, text.lines[-1:])), None)]


def _or_library(text: TextFile) -> list[KpFile]:
    tokens = Tokens(text)
    count = tokens.integer("a number of problems", 1)
    found = []
    for k in range(count):
        n = tokens.integer("a number of items", 1)
        token, line = tokens.take("a number of constraints")
        if text.integer(token, line, "a number of constraints", 1) != 1:
            raise text.fault(line, "one constraint (a plain knapsack)", f"{shown(token)} of them")
        best = tokens.number("the optimum, or 0")
        values = [_amount(text, token, line, "a value") for token, line in tokens.some(n, "values")]
        weights = [_amount(text, token, line, "a weight") for token, line in tokens.some(n, "weights")]
        name = text.path.stem if count == 1 else f"{text.path.stem}-{k + 1}"
        items = list(zip(values, weights, strict=True))
        found.append(_instance(name, items, _capacity(tokens), best if best > 0 else None))
    tokens.finish(f"{count} problems")
    return found


def _pisinger(text: TextFile) -> list[KpFile]:
    found: list[KpFile] = []
    lines = iter(text.lines)
    for line, name in lines:
        if set(name) == {"-"}:
            continue
        if not name.startswith("knapPI"):
            raise text.fault(line, "the name of a problem (knapPI...)", shown(name))
        head: dict[str, tuple[str, int]] = {}
        row = None
        for line, content in lines:
            words = content.split()
            if "," in content or len(words) != 2:
                row = (line, content)
                break
            head[words[0]] = (words[1], line)
        for key in ("n", "c"):
            if key not in head:
                raise text.fault(line, f"a line '{key} 50' below {name}", shown(row[1]) if row else "no more")
        n = text.integer(*head["n"], "a number of items", 1)
        if n > len(text.lines):
            raise text.fault(head["n"][1], f"at most {len(text.lines)} items, by the lines of the file", str(n))
        best = text.number(*head["z"], "the optimum z") if "z" in head else None
        items = []
        while len(items) < n:
            if row is None:
                raise text.ended(f"{n} items of {name}, {len(items)} of them found")
            words = [word.strip() for word in row[1].split(",")]
            items.append(_row(text, row[0], words, "number,value,weight,x", (3, 4)))
            row = next(lines, None) if len(items) < n else None
        found.append(_instance(name, items, _capacity(Tokens(text, [(head["c"][1], head["c"][0])])), best))
    return found


_LAYOUTS = {"plain": _plain, "numbered": _numbered, "or-library": _or_library, "pisinger": _pisinger}


def _row(text: TextFile, line: int, words: list[str], what: str, sizes: tuple[int, ...]) -> tuple[float, float]:
    """(value, weight) of a line of two words, or of the second and third of more."""
    if len(words) not in sizes:
        raise text.fault(line, what, shown(" ".join(words)))
    first = 0 if len(words) == 2 else 1
    return _amount(text, words[first], line, "a value"), _amount(text, words[first + 1], line, "a weight")


def _amount(text: TextFile, token: str, line: int, what: str) -> float:
    value = text.number(token, line, what)
    if value < 0:
        raise text.fault(line, f"{what} of at least 0", shown(token))
    return value


def _capacity(tokens: Tokens) -> float:
    token, line = tokens.take("the capacity")
    capacity = tokens.text.number(token, line, "the capacity")
    if capacity <= 0:
        raise tokens.text.fault(line, "a capacity above 0", shown(token))
    return capacity


def _instance(name: str, items: Sequence[tuple[float, float]], capacity: float, best: float | None) -> KpFile:
    values, weights = np.array(items, dtype=np.float64).T.copy()
    if capacity.is_integer() and all(x.is_integer() for item in items for x in item):
        return KpFile(name, weights.astype(np.int64), values.astype(np.int64), int(capacity), best)
    return KpFile(name, weights, values, capacity, best)
