"""CVRPLIB files: capacitated vehicle routing with one depot, in coordinates or an explicit matrix."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np

from ttc_esopt.problems.files.text import shown
from ttc_esopt.problems.files.tsp import Parts, best_known, dimension, geometry, take_apart

_TRUCKS = re.compile(r"(?:\bno\.?|\bnumber) of (?:trucks|vehicles)\s*[:=]?\s*(\d{1,6})\b", re.IGNORECASE)
_IN_NAME = re.compile(r"-k(\d{1,6})\b")


@dataclass(frozen=True, eq=False)
class CvrpFile:
    """One capacitated routing instance as its file states it; row 0 is the depot, the others keep the file's order.

    Attributes
    ----------
    name : from NAME, else the file's stem
    points : float64 array, shape (n + 1, 2), in the file's units; None where the file gives a matrix
    distances : float64 array, shape (n + 1, n + 1), in the file's metric, symmetric, zero on the diagonal
    demands : int64 array, shape (n + 1,), 0 at the depot
    capacity : of one vehicle
    metric : EDGE_WEIGHT_TYPE
    best_known : cost of the best known solution where the file's comment says it
    vehicles : number of vehicles where the file's comment or name says it
    ids : int64 array, shape (n + 1,), the file's node numbers in the order of the rows
    """

    name: str
    points: np.ndarray | None
    distances: np.ndarray
    demands: np.ndarray
    capacity: int
    metric: str
    best_known: float | None = None
    vehicles: int | None = None
    ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.ids is None:
            object.__setattr__(self, "ids", np.arange(1, len(self.demands) + 1))


def read_vrp(path: str | os.PathLike) -> CvrpFile:
    """A CVRPLIB instance.

    Raises
    ------
    DataError
        The file is no such instance; the message names the line, what was expected and what was found.
    """
    parts = take_apart(path)
    text = parts.text
    if "TYPE" in parts.keys:
        line, kind = parts.keys["TYPE"]
        if kind.upper().split()[:1] != ["CVRP"]:
            raise text.fault(line, "TYPE : CVRP", shown(kind))
    n = dimension(parts, least=2)
    line, value = parts.value("CAPACITY", "100")
    capacity = text.integer(value, line, "a CAPACITY", 1)
    demand = _demands(parts, n, capacity)
    depot, depot_line = _depot(parts)
    metric, ids, points, distances = geometry(parts, n)
    start = parts.sections["DEMAND_SECTION"][0]
    if ids is None:  # a matrix: its rows are the nodes in ascending order
        ids = np.array(sorted(demand), dtype=np.int64)
        if ids[0] > 1 or ids[-1] - ids[0] != n - 1:
            raise text.fault(start, f"nodes numbered 1 to {n}", f"{ids[0]} to {ids[-1]}")
    missing = next((node for node in ids.tolist() if node not in demand), None)
    if missing is not None:
        raise text.fault(start, "a demand of every node", f"none of node {missing}")
    if depot not in demand:
        raise text.fault(depot_line, "a node as depot", f"node {depot}, which is none")
    row = int(np.flatnonzero(ids == depot)[0])
    order = np.concatenate([[row], np.delete(np.arange(n), row)])
    ids = ids[order]
    amounts = np.array([demand[node][0] for node in ids.tolist()], dtype=np.int64)
    if amounts[0]:
        raise text.fault(demand[depot][1], f"no demand at the depot (node {depot})", str(amounts[0]))
    return CvrpFile(
        name=parts.name,
        points=None if points is None else points[order],
        distances=np.ascontiguousarray(distances[np.ix_(order, order)]),
        demands=amounts,
        capacity=capacity,
        metric=metric,
        best_known=best_known(parts),
        vehicles=_vehicles(parts),
        ids=ids,
    )


def _demands(parts: Parts, n: int, capacity: int) -> dict[int, tuple[int, int]]:
    """Node -> (demand, line); n nodes."""
    text = parts.text
    start, rows = parts.section("DEMAND_SECTION")
    found: dict[int, tuple[int, int]] = {}
    for line, tokens in rows:
        if len(tokens) != 2:
            raise text.fault(line, "a node number and its demand", f"{len(tokens)} words")
        node = text.integer(tokens[0], line, "a node number", 0)
        if node in found:
            raise text.fault(line, "every node once", f"node {node} again")
        if len(found) == n:
            raise text.fault(line, f"{n} demands (DIMENSION)", f"one more, of node {node}")
        amount = text.integer(tokens[1], line, "a demand", 0)
        if amount > capacity:
            raise text.fault(line, f"a demand within the capacity {capacity}", str(amount))
        found[node] = (amount, line)
    if len(found) < n:
        raise text.fault(rows[-1][0] if rows else start, f"{n} demands (DIMENSION)", f"{len(found)}, then no more")
    return found


def _depot(parts: Parts) -> tuple[int, int]:
    """The depot's node number and its line."""
    text = parts.text
    start, rows = parts.section("DEPOT_SECTION")
    found: list[tuple[int, int]] = []
    for line, token in ((line, token) for line, tokens in rows for token in tokens):
        node = text.integer(token, line, "a node number or -1", -1)
        if node == -1:
            break
        found.append((node, line))
    if not found:
        raise text.fault(start, "one depot", "none")
    if len(found) > 1:
        raise text.fault(found[1][1], "one depot", f"another one, {found[1][0]}")
    return found[0]


def _vehicles(parts: Parts) -> int | None:
    line, value = parts.keys.get("VEHICLES", (0, ""))
    if value:
        return parts.text.integer(value, line, "a number of VEHICLES", 1)
    found = _TRUCKS.search(parts.keys.get("COMMENT", (0, ""))[1]) or _IN_NAME.search(parts.name)
    return int(found[1]) if found else None
