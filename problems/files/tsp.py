"""TSPLIB files: keys, sections, metrics and explicit matrices; `read_tsp` for symmetric travelling-salesman files.

The metrics follow the definitions of TSPLIB95, so that the published optimal lengths come out exactly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ttc_esopt.problems.files.text import TextFile, shown

MOST_NODES = 20_000  # all distances are kept in one matrix
PLANAR = ("EUC_2D", "CEIL_2D", "ATT")  # metrics that are a rounded Euclidean distance of the coordinates
_PI = 3.141592  # as TSPLIB has it
_EARTH = 6378.388
_KEYS = {
    "NAME", "TYPE", "COMMENT", "DIMENSION", "CAPACITY", "EDGE_WEIGHT_TYPE", "EDGE_WEIGHT_FORMAT", "EDGE_DATA_FORMAT",
    "NODE_COORD_TYPE", "DISPLAY_DATA_TYPE", "VEHICLES", "DISTANCE", "SERVICE_TIME", "OPTIMUM", "BEST_KNOWN",
}  # fmt: skip
_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:\s*:\s*(.*)|\s+(.*))?", re.DOTALL)
_BEST = re.compile(
    r"\b(?:optimal|optimum|best)\b(?:[\s-]+(?:known|value|solution|cost|length|tour|objective))*\s*[:=]?\s*"
    r"(\d{1,15}(?:\.\d{1,9})?)(?![\w.]*\w)",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class TspFile:
    """One travelling-salesman instance as its file states it.

    Attributes
    ----------
    name : from NAME, else the file's stem
    points : float64 array, shape (n, 2), coordinates in the file's units (GEO: latitude and longitude in
        degrees.minutes); None where the file gives a matrix
    distances : float64 array, shape (n, n), in the file's metric, symmetric, zero on the diagonal
    metric : EDGE_WEIGHT_TYPE
    best_known : length of the best known tour where the file's comment says it
    ids : int64 array, shape (n,), the file's node numbers in the order of the rows
    """

    name: str
    points: np.ndarray | None
    distances: np.ndarray
    metric: str
    best_known: float | None = None
    ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.ids is None:
            object.__setattr__(self, "ids", np.arange(1, len(self.distances) + 1))


@dataclass
class Parts:
    """A TSPLIB file taken apart: key -> (line, value) and section -> (line, rows of (line, tokens))."""

    text: TextFile
    keys: dict[str, tuple[int, str]] = field(default_factory=dict)
    sections: dict[str, tuple[int, list[tuple[int, list[str]]]]] = field(default_factory=dict)

    def value(self, key: str, example: str) -> tuple[int, str]:
        """Line and value of a key that must be there."""
        found = self.keys.get(key)
        if found is None:
            raise self.text.ended(f"a line '{key} : {example}'")
        return found

    def section(self, name: str) -> tuple[int, list[tuple[int, list[str]]]]:
        """Line and rows of a section that must be there."""
        found = self.sections.get(name)
        if found is None:
            raise self.text.ended(f"a {name}")
        return found

    @property
    def name(self) -> str:
        """The instance's name: NAME, or the file's stem."""
        return self.keys.get("NAME", (0, ""))[1] or self.text.path.stem


def read_tsp(path: str | os.PathLike) -> TspFile:
    """A symmetric TSPLIB instance: EUC_2D, CEIL_2D, ATT, GEO, MAN_2D, MAX_2D or EXPLICIT in any matrix format.

    Raises
    ------
    DataError
        The file is no such instance; the message names the line, what was expected and what was found.
    """
    parts = take_apart(path)
    if "TYPE" in parts.keys:
        line, kind = parts.keys["TYPE"]
        if kind.upper().split()[:1] != ["TSP"]:
            raise parts.text.fault(line, "TYPE : TSP (symmetric)", shown(kind))
    n = dimension(parts, least=1)
    metric, ids, points, distances = geometry(parts, n)
    return TspFile(parts.name, points, distances, metric, best_known(parts), ids)


def take_apart(path: str | os.PathLike) -> Parts:
    """Keys and sections of a TSPLIB file, in any order, up to EOF or the end of the file.

    Raises
    ------
    DataError
        A line is neither, or a key or section comes twice.
    """
    text = TextFile(path)
    parts = Parts(text)
    rows: list[tuple[int, list[str]]] | None = None
    for line, content in text.lines:
        if not content[0].isalpha():
            if rows is None:
                raise text.fault(line, "a line 'KEY : value' or a section", shown(content))
            rows.append((line, content.split()))
            continue
        head = _HEAD.fullmatch(content)
        key = head[1].upper() if head else ""
        if key == "EOF":
            break
        if key.endswith("_SECTION"):
            if key in parts.sections:
                raise text.fault(line, f"one {key}", "a second one")
            rows = []
            parts.sections[key] = (line, rows)
            rest = (head[2] or head[3] or "").split()
            if rest:
                rows.append((line, rest))
        elif head and (head[2] is not None or key in _KEYS):
            value = (head[2] or head[3] or "").strip()
            if key == "COMMENT" and key in parts.keys:
                first, so_far = parts.keys[key]
                parts.keys[key] = (first, f"{so_far} {value}")
            elif key in parts.keys:
                raise text.fault(line, f"one {key}", "a second one")
            else:
                parts.keys[key] = (line, value)
        else:
            raise text.fault(line, "a line 'KEY : value', a section or numbers", shown(content))
    return parts


def dimension(parts: Parts, least: int) -> int:
    """DIMENSION, refused where the distances would not fit into memory."""
    line, value = parts.value("DIMENSION", "48")
    n = parts.text.integer(value, line, "a DIMENSION", least)
    if n > MOST_NODES:
        raise parts.text.fault(line, f"a DIMENSION of at most {MOST_NODES} (all distances are kept)", shown(value))
    return n


def best_known(parts: Parts) -> float | None:
    """The best known value that a file states in its comment or under OPTIMUM or BEST_KNOWN."""
    for key in ("OPTIMUM", "BEST_KNOWN"):
        if key in parts.keys:
            return parts.text.number(parts.keys[key][1], parts.keys[key][0], f"a number as {key}")
    found = _BEST.search(parts.keys.get("COMMENT", (0, ""))[1])
    return float(found[1]) if found else None


def geometry(parts: Parts, n: int) -> tuple[str, np.ndarray | None, np.ndarray | None, np.ndarray]:
    """What a file says about places.

    Returns
    -------
    (metric, int64 node numbers (n,) or None where the file numbers none, float64 coordinates (n, 2) or None, float64
    distances (n, n))
    """
    line, value = parts.value("EDGE_WEIGHT_TYPE", "EUC_2D")
    metric = value.upper()
    if metric == "EXPLICIT":
        return metric, None, None, _explicit(parts, n)
    if metric not in _METRICS:
        known = ", ".join([*_METRICS, "EXPLICIT"])
        raise parts.text.fault(line, f"an EDGE_WEIGHT_TYPE of {known}", shown(value))
    ids, points = _coordinates(parts, n)
    return metric, ids, points, _matrix(points, _METRICS[metric])


def _coordinates(parts: Parts, n: int) -> tuple[np.ndarray, np.ndarray]:
    text = parts.text
    start, rows = parts.section("NODE_COORD_SECTION")
    ids: dict[int, int] = {}
    points = []
    for line, tokens in rows:
        if len(tokens) != 3:
            raise text.fault(line, "a node number and two coordinates", f"{len(tokens)} words")
        if len(ids) == n:
            raise text.fault(line, f"{n} nodes (DIMENSION)", f"one more, {shown(tokens[0])}")
        node = text.integer(tokens[0], line, "a node number", 0)
        if node in ids:
            raise text.fault(line, "every node once", f"node {node} again")
        ids[node] = line
        points.append(text.numbers(tokens[1:], line, "a coordinate"))
    if len(ids) < n:
        line = rows[-1][0] if rows else start
        raise text.fault(line, f"{n} nodes (DIMENSION)", f"{len(ids)}, then no more")
    return np.array(list(ids), dtype=np.int64), np.array(points, dtype=np.float64)


def _explicit(parts: Parts, n: int) -> np.ndarray:
    text = parts.text
    line, value = parts.value("EDGE_WEIGHT_FORMAT", "FULL_MATRIX")
    layout = _SAME_LAYOUT.get(value.upper(), value.upper())
    if layout not in _LAYOUTS:
        known = ", ".join([*_LAYOUTS, *_SAME_LAYOUT])
        raise text.fault(line, f"an EDGE_WEIGHT_FORMAT of {known}", shown(value))
    start, rows = parts.section("EDGE_WEIGHT_SECTION")
    # Some files (E-n13-k4 was published so) announce lower rows but list the upper ones; where each row has a line of
    # its own, the lengths of the lines, n-1, n-2 ... 1, give it away.
    if layout == "LOWER_ROW" and n > 2 and [len(tokens) for _, tokens in rows] == list(range(n - 1, 0, -1)):
        layout = "UPPER_ROW"
    count, places = _LAYOUTS[layout]
    wanted = count(n)
    flat: list[float] = []
    for line, tokens in rows:
        flat.extend(text.numbers(tokens, line, "a distance"))
        if len(flat) > wanted:
            raise text.fault(line, f"{wanted} distances ({layout} of DIMENSION {n})", "more")
        if min(flat[len(flat) - len(tokens) :]) < 0:
            raise text.fault(line, "distances of at least 0", shown(next(t for t in tokens if t.startswith("-"))))
    if len(flat) < wanted:
        line = rows[-1][0] if rows else start
        raise text.fault(line, f"{wanted} distances ({layout} of DIMENSION {n})", f"{len(flat)}, then no more")
    matrix = np.zeros((n, n))
    matrix[places(n)] = flat
    if layout == "FULL_MATRIX":
        np.fill_diagonal(matrix, 0)  # some files have a large number there
        unequal = np.argwhere(matrix != matrix.T)
        if len(unequal):
            i, j = unequal[0]
            raise text.fault(start, "a symmetric matrix", f"{matrix[i, j]:g} and {matrix[j, i]:g} for {i + 1}, {j + 1}")
    else:
        np.fill_diagonal(matrix, 0)
        matrix += matrix.T
    return matrix


_LAYOUTS: dict[str, tuple[Callable[[int], int], Callable[[int], tuple]]] = {
    "FULL_MATRIX": (lambda n: n * n, lambda n: tuple(a.ravel() for a in np.indices((n, n)))),
    "UPPER_ROW": (lambda n: n * (n - 1) // 2, lambda n: np.triu_indices(n, 1)),
    "LOWER_ROW": (lambda n: n * (n - 1) // 2, lambda n: np.tril_indices(n, -1)),
    "UPPER_DIAG_ROW": (lambda n: n * (n + 1) // 2, lambda n: np.triu_indices(n)),
    "LOWER_DIAG_ROW": (lambda n: n * (n + 1) // 2, lambda n: np.tril_indices(n)),
}
_SAME_LAYOUT = {
    "UPPER_COL": "LOWER_ROW",
    "LOWER_COL": "UPPER_ROW",
    "UPPER_DIAG_COL": "LOWER_DIAG_ROW",
    "LOWER_DIAG_COL": "UPPER_DIAG_ROW",
}


def _matrix(points: np.ndarray, rows: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    n = len(points)
    matrix = np.empty((n, n))
    block = max(1, 2**20 // n)  # bounds the memory of the intermediate results
    for first in range(0, n, block):
        matrix[first : first + block] = rows(points[first : first + block, None], points[None])
    np.fill_diagonal(matrix, 0)
    return matrix


def _euclid(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    difference = a - b
    return np.sqrt(difference[..., 0] ** 2 + difference[..., 1] ** 2)


def _nint(x: np.ndarray) -> np.ndarray:
    return np.floor(x + 0.5)


def _att(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    difference = a - b
    exact = np.sqrt((difference[..., 0] ** 2 + difference[..., 1] ** 2) / 10.0)
    rounded = _nint(exact)
    return rounded + (rounded < exact)


def _geo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    latitude_a, longitude_a, latitude_b, longitude_b = (
        _radians(angle) for angle in (a[..., 0], a[..., 1], b[..., 0], b[..., 1])
    )
    q1 = np.cos(longitude_a - longitude_b)
    q2 = np.cos(latitude_a - latitude_b)
    q3 = np.cos(latitude_a + latitude_b)
    cosine = np.clip(0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3), -1.0, 1.0)
    return np.floor(_EARTH * np.arccos(cosine) + 1.0)


def _radians(angle: np.ndarray) -> np.ndarray:
    """Degrees and minutes written as degrees.minutes; the degrees are cut off, not rounded."""
    degrees = np.trunc(angle)
    return _PI * (degrees + 5.0 * (angle - degrees) / 3.0) / 180.0


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "EUC_2D": lambda a, b: _nint(_euclid(a, b)),
    "CEIL_2D": lambda a, b: np.ceil(_euclid(a, b)),
    "ATT": _att,
    "GEO": _geo,
    "MAN_2D": lambda a, b: _nint(np.abs(a - b).sum(axis=-1)),
    "MAX_2D": lambda a, b: _nint(np.abs(a - b)).max(axis=-1),
}
