"""Solutions as files, and checkers that compute everything anew from the instance record alone.

    .tour   TSPLIB: NAME, COMMENT, TYPE : TOUR, DIMENSION, TOUR_SECTION with the file's node numbers, -1, EOF
    .sol    CVRPLIB: `Route #1: 3 5 7` with customers numbered from 1 (the depot is left out), then `Cost 784`
    bins    `Bin #1: 4 17 30` with items numbered from 1, then `Bins 48`
    items   `Items: 1 4 7` with items numbered from 1, then `Value 295` and `Weight 269`

In Python, nodes, items and bins count from 0 and customers from 1 (row 0 of a routing instance is the depot).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files.bpp import BppFile
from ttc_esopt.problems.files.knapsack import KpFile
from ttc_esopt.problems.files.text import TextFile, shown, shown_path
from ttc_esopt.problems.files.tsp import TspFile, take_apart
from ttc_esopt.problems.files.vrp import CvrpFile

_GROUP = re.compile(r"(route|bin)\s*#?\s*\d{1,9}\s*:\s*(.*)", re.IGNORECASE)
_TOTAL = re.compile(r"(cost|bins|value|weight)\s*:?\s*(\S+)", re.IGNORECASE)
_ITEMS = re.compile(r"items\s*:\s*(.*)", re.IGNORECASE)


# Checkers


def check_tsp(record: TspFile, tour: Sequence[int] | np.ndarray) -> int | float:
    """Length of a tour in the file's metric, an int where all distances are whole.

    Raises
    ------
    DataError
        The tour does not visit every node (0 to n - 1) exactly once; the message names the first that is wrong.
    """
    n = len(record.distances)
    order = _whole(record.name, "tour", tour)
    _each_once(record.name, "node", order, range(n))
    return _total(record.distances, zip(order, order[1:] + order[:1], strict=True))


def check_cvrp(record: CvrpFile, routes: Iterable[Sequence[int] | np.ndarray]) -> int | float:
    """Cost of routes in the file's metric, an int where all distances are whole; the number of vehicles is free.

    Raises
    ------
    DataError
        The routes do not visit every customer (1 to n) exactly once, or one of them exceeds the capacity.
    """
    routes = [_whole(record.name, f"route {k}", route) for k, route in enumerate(routes, 1)]
    _each_once(record.name, "customer", [c for route in routes for c in route], range(1, len(record.demands)))
    _within(record.name, "route", routes, record.demands.tolist(), record.capacity)
    steps = ((a, b) for route in routes for a, b in zip([0, *route], [*route, 0], strict=True))
    return _total(record.distances, steps)


def check_bpp(record: BppFile, bins: Iterable[Sequence[int] | np.ndarray]) -> int:
    """Number of bins that hold something.

    Raises
    ------
    DataError
        The bins do not hold every item (0 to n - 1) exactly once, or one of them exceeds the capacity.
    """
    bins = [_whole(record.name, f"bin {k}", items) for k, items in enumerate(bins, 1)]
    _each_once(record.name, "item", [item for items in bins for item in items], range(len(record.sizes)))
    _within(record.name, "bin", bins, record.sizes.tolist(), record.capacity)
    return sum(1 for items in bins if items)


def check_kp(record: KpFile, items: Sequence[int] | np.ndarray) -> int | float:
    """Value of the chosen items, an int where the values are whole.

    Raises
    ------
    DataError
        An item is none of 0 to n - 1 or comes twice, or the weight exceeds the capacity.
    """
    chosen = _whole(record.name, "choice of items", items)
    _each_once(record.name, "item", chosen, range(len(record.weights)), complete=False)
    weight = kp_weight(record, chosen)
    # Weights with decimals are sums of rounded binary numbers.
    if weight > record.capacity and not (isinstance(weight, float) and weight <= record.capacity * (1 + 1e-12)):
        raise _broken(record.name, f"expected items of weight at most {record.capacity}, got {weight}")
    return _sum(record.values, chosen)


def kp_weight(record: KpFile, items: Sequence[int]) -> int | float:
    """Weight of the chosen items."""
    return _sum(record.weights, items)


# Writers


def write_tour(path: str | os.PathLike, record: TspFile, tour: Sequence[int] | np.ndarray) -> None:
    """Write a checked tour as a TSPLIB .tour file."""
    length = check_tsp(record, tour)
    head = [f"NAME : {record.name}", f"COMMENT : Length {length}", "TYPE : TOUR", f"DIMENSION : {len(record.ids)}"]
    nodes = [str(record.ids[node]) for node in np.asarray(tour)]
    _write(path, [*head, "TOUR_SECTION", *nodes, "-1", "EOF"])


def write_routes(path: str | os.PathLike, record: CvrpFile, routes: Iterable[Sequence[int] | np.ndarray]) -> None:
    """Write checked routes as a CVRPLIB .sol file; empty ones are left out."""
    routes = [list(map(int, route)) for route in routes if len(route)]
    cost = check_cvrp(record, routes)
    _write(path, [*(f"Route #{k}: {_joined(route)}" for k, route in enumerate(routes, 1)), f"Cost {cost}"])


def write_bins(path: str | os.PathLike, record: BppFile, bins: Iterable[Sequence[int] | np.ndarray]) -> None:
    """Write checked bins; empty ones are left out."""
    bins = [[int(item) + 1 for item in items] for items in bins if len(items)]
    count = check_bpp(record, [[item - 1 for item in items] for items in bins])
    _write(path, [*(f"Bin #{k}: {_joined(items)}" for k, items in enumerate(bins, 1)), f"Bins {count}"])


def write_items(path: str | os.PathLike, record: KpFile, items: Sequence[int] | np.ndarray) -> None:
    """Write a checked choice of items."""
    value = check_kp(record, items)
    chosen = sorted(int(item) for item in items)
    numbers = _joined(item + 1 for item in chosen)
    _write(path, [f"Items: {numbers}".rstrip(), f"Value {value}", f"Weight {kp_weight(record, chosen)}"])


# Readers


def read_tour(path: str | os.PathLike, record: TspFile) -> np.ndarray:
    """The tour of a TSPLIB tour file (its first one), checked; int64 array (n,) of rows of the record.

    Raises
    ------
    DataError
        The file is no such tour; the message names the line, or the node that is missing.
    """
    parts = take_apart(path)
    text = parts.text
    if "TYPE" in parts.keys and parts.keys["TYPE"][1].upper() != "TOUR":
        raise text.fault(parts.keys["TYPE"][0], "TYPE : TOUR", shown(parts.keys["TYPE"][1]))
    rows = {node: row for row, node in enumerate(record.ids.tolist())}
    tour: dict[int, None] = {}
    start, lines = parts.section("TOUR_SECTION")
    for line, token in ((line, token) for line, tokens in lines for token in tokens):
        node = text.integer(token, line, "a node number or -1", -1)
        if node == -1:
            break
        if node not in rows:
            raise text.fault(line, f"a node of {shown(record.name)}", f"{node}")
        if rows[node] in tour:
            raise text.fault(line, "every node once", f"node {node} again")
        tour[rows[node]] = None
    if len(tour) < len(rows):
        raise text.fault(lines[-1][0] if lines else start, f"{len(rows)} nodes", f"{len(tour)}")
    return np.array(list(tour), dtype=np.int64)


def read_routes(path: str | os.PathLike, record: CvrpFile | None = None) -> tuple[list[list[int]], float | None]:
    """Routes and stated cost of a CVRPLIB .sol file, checked where a record is given.

    Raises
    ------
    DataError
        The file is no such solution, or not one of the record.
    """
    text = TextFile(path)
    routes, totals = _groups(text, "route", "Route #1: 3 5 7")
    if record is not None:
        _check_stated(text, "cost", totals, check_cvrp(record, routes))
    return routes, totals["cost"][0] if "cost" in totals else None


def read_bins(path: str | os.PathLike, record: BppFile | None = None) -> list[list[int]]:
    """Bins of a file as written by `write_bins`, items from 0, checked where a record is given."""
    text = TextFile(path)
    groups, totals = _groups(text, "bin", "Bin #1: 4 17 30")
    bins = [[item - 1 for item in items] for items in groups]
    if record is not None:
        _check_stated(text, "bins", totals, check_bpp(record, bins))
    return bins


def read_items(path: str | os.PathLike, record: KpFile | None = None) -> list[int]:
    """Items of a file as written by `write_items`, from 0, checked where a record is given."""
    text = TextFile(path)
    chosen: list[int] | None = None
    totals: dict[str, tuple[float, int]] = {}
    for line, content in text.lines:
        found = _ITEMS.fullmatch(content)
        if found and chosen is None:
            chosen = [text.integer(token, line, "an item", 1) - 1 for token in found[1].split()]
        elif not _take_total(text, line, content, totals):
            raise text.fault(line, "'Items: 1 4 7', 'Value 295' or 'Weight 269'", shown(content))
    if chosen is None:
        raise text.ended("a line 'Items: 1 4 7'")
    if record is not None:
        _check_stated(text, "value", totals, check_kp(record, chosen))
        _check_stated(text, "weight", totals, kp_weight(record, chosen))
    return chosen


def published_best(path: str | os.PathLike, record: TspFile | CvrpFile | BppFile | KpFile) -> float | None:
    """The best known value of an instance: what its file says, else NAME.opt.tour or NAME.sol next to it.

    Raises
    ------
    DataError
        The neighbouring file is broken or does not belong to the instance.
    """
    if record.best_known is not None:
        return record.best_known
    path = Path(path)
    tour, routes = path.with_suffix(".opt.tour"), path.with_suffix(".sol")
    if isinstance(record, TspFile) and tour.is_file():
        return float(check_tsp(record, read_tour(tour, record)))
    if isinstance(record, CvrpFile) and routes.is_file():
        return float(check_cvrp(record, read_routes(routes, record)[0]))
    return None


# Details


def _broken(name: str, what: str) -> DataError:
    return DataError(f"{shown_path(name)}: {what}.")


def _whole(name: str, what: str, numbers: Sequence[int] | np.ndarray) -> list[int]:
    try:
        array = np.asarray(numbers)
    except (ValueError, OverflowError):
        array = np.array("ragged")
    if array.ndim == 1 and not array.size:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _broken(name, f"expected a {what} that is a list of whole numbers, got {array.dtype} {array.shape}")
    return array.tolist()


def _each_once(name: str, what: str, numbers: list[int], wanted: range, complete: bool = True) -> None:
    seen: set[int] = set()
    for number in numbers:
        if number not in wanted:
            raise _broken(name, f"expected {what}s {wanted.start} to {wanted.stop - 1}, got {number}")
        if number in seen:
            raise _broken(name, f"expected every {what} once, got {number} twice")
        seen.add(number)
    if complete and len(seen) < len(wanted):
        missing = next(number for number in wanted if number not in seen)
        raise _broken(name, f"expected all of {what}s {wanted.start} to {wanted.stop - 1}, got none of {missing}")


def _within(name: str, what: str, groups: list[list[int]], amounts: list[int], capacity: int) -> None:
    for k, group in enumerate(groups, 1):
        load = sum(amounts[member] for member in group)
        if load > capacity:
            raise _broken(name, f"expected a {what} within the capacity {capacity}, got {load} in {what} {k}")


def _total(distances: np.ndarray, steps: Iterable[tuple[int, int]]) -> int | float:
    total = math.fsum(float(distances[a, b]) for a, b in steps)
    return int(total) if (distances == np.floor(distances)).all() else total


def _sum(amounts: np.ndarray, chosen: Sequence[int]) -> int | float:
    numbers = [amounts[item].item() for item in chosen]
    return sum(numbers) if amounts.dtype.kind in "iu" else math.fsum(numbers)


def _joined(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _write(path: str | os.PathLike, lines: list[str]) -> None:
    try:
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{shown_path(path)}: expected a file that can be written, got: {error}.") from None


def _groups(text: TextFile, word: str, example: str) -> tuple[list[list[int]], dict[str, tuple[float, int]]]:
    groups: list[list[int]] = []
    totals: dict[str, tuple[float, int]] = {}
    for line, content in text.lines:
        found = _GROUP.fullmatch(content)
        if found and found[1].lower() == word:
            groups.append([text.integer(token, line, "a number from 1", 1) for token in found[2].split()])
        elif not _take_total(text, line, content, totals):
            raise text.fault(line, f"'{example}' or a total", shown(content))
    if not groups:
        raise text.ended(f"'{example}'")
    return groups, totals


def _take_total(text: TextFile, line: int, content: str, totals: dict[str, tuple[float, int]]) -> bool:
    found = _TOTAL.fullmatch(content)
    if found:
        totals[found[1].lower()] = text.number(found[2], line, "a total"), line
    return bool(found)


def _check_stated(text: TextFile, what: str, totals: dict[str, tuple[float, int]], actual: float) -> None:
    if what in totals and not math.isclose(totals[what][0], actual, rel_tol=1e-6, abs_tol=1e-9):
        raise text.fault(totals[what][1], f"{what} {actual}", f"{totals[what][0]:g}")
