"""Capacitated vehicle routing with ants: the model writes the function that says how promising each edge is.

Protocol and instance sets are the published ones, so that objectives compare with published values. The program only
makes a matrix; the colony that uses it runs in the parent, with random numbers of its own.

The published colony charges 1 for each step that an ant waits at the depot for the last one. Under `--protocol
published` that charge is part of the objective and of what guides the colony, and the true length is reported beside
it; under `--protocol corrected` there is no charge.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.problems.base import Infeasible, Problem, Score
from ttc_esopt.problems.colonies import (
    as_matrix,
    at_once,
    check_matrix,
    check_nodes,
    find_heuristic,
    ones_on_diagonal,
    own_stream,
    stream_of,
)
from ttc_esopt.problems.cvrp import (
    CvrpInstance,
    check_demands,
    cvrp_instance,
    nearest_neighbour_routes,
    route_length,
)
from ttc_esopt.problems.cvrp_aco.heuristics import INVERSE_DISTANCE, SEEDS
from ttc_esopt.problems.data import published
from ttc_esopt.problems.tsp import unit

CAPACITY = 50
# One random stream fills these sets in this order: (split, instances, customers).
_DRAWN = (("train", 10, 50), ("val", 64, 20), ("val", 64, 50), ("val", 64, 100), ("test", 64, 20))


class CvrpAco(Problem):
    """Objective: mean cost of the best routes that colonies of 30 ants find in 100 iterations."""

    name = "cvrp_aco"
    function = "heuristics_v2"
    splits = {"train": (50,), "val": (20, 50, 100), "test": (20, 50, 100)}
    counts = {"train": 10, "val": 64, "test": 64}
    gives_numpy = True
    seeded = True
    seeds = SEEDS
    baselines = {"inverse_distance": INVERSE_DISTANCE}
    task = (
        "Design a heuristic for the capacitated vehicle routing problem that rates how promising it is to drive along "
        "each edge. An ant colony samples routes from the depot in proportion to these ratings."
    )
    template = '''import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    """Return an array (n, n) of positive ratings: [i, j] is large if the edge from i to j is promising.

    distance_matrix: array (n, n), distances between all nodes, 1 on the diagonal, node 0 is the depot
    coordinates: array (n, 2), positions of the nodes
    demands: array (n,), demands of the nodes, 0 for the depot
    capacity: int, capacity of every vehicle
    """
'''

    def instances(self, split: str, size: int) -> list[CvrpInstance]:
        """Customers uniform in the unit square around a depot, demands 1 to 9, capacity 50.

        Test sets of 50 and 100 customers are the published ones if they are at hand.
        """
        self.resolve(split, size)
        stream = np.random.RandomState(1234)
        for drawn_split, count, n in _DRAWN:
            rows = _drawn(stream, count, n)
            if (drawn_split, n) == (split, size):
                break
        else:
            rows = self._stored(size)
            if rows is None:
                rows = _drawn(own_stream(size), self.counts[split], size)
        return _from_rows(rows)

    def source(self, split: str, size: int) -> str:
        """`own` for a test set of 50 or 100 customers without the folder of published sets."""
        self.resolve(split, size)
        return "own" if split == "test" and size != 20 and self._stored(size) is None else "published"

    def _stored(self, size: int) -> np.ndarray | None:
        return published(self.data, f"cvrp_aco/test{size}_dataset.npy", (self.counts["test"], size + 1, 3))

    def read(self, path: Path) -> list[CvrpInstance]:
        """The instance of a CVRPLIB file, or those of a set in the published layout (.npy, capacity 50).

        Raises
        ------
        DataError
            The file cannot be read, a demand is above the capacity, or an instance has too many nodes for a matrix to
            travel between processes.
        """
        from ttc_esopt.problems.files.arrays import read_array
        from ttc_esopt.problems.files.vrp import read_vrp

        if Path(path).suffix in (".npy", ".npz"):
            rows = read_array(path, "vrp")
            check_nodes(path, rows.shape[1], 2)
            check_demands(rows[..., 0], CAPACITY, path)
            found = _from_rows(rows)
            if rows[..., 1:].min() >= 0 and rows[..., 1:].max() <= 1:
                return found
            return [CvrpInstance(i.index, unit(i.points), i.demands, CAPACITY, None, i.matrix()) for i in found]
        record = read_vrp(path)
        check_nodes(path, len(record.distances), 2)
        return [cvrp_instance(record)]

    def find(self, namespace: dict[str, Any]) -> Any:
        """`heuristics`, or any `heuristics_v*`, in the published order."""
        return find_heuristic(namespace)

    def per_process(self, instances: Sequence[CvrpInstance]) -> int:
        """So many that their matrices stay small."""
        return at_once(instances)

    def run(self, function: Callable[..., Any], instance: CvrpInstance) -> np.ndarray:
        """The ratings that a program makes: float64 array (n + 1, n + 1)."""
        matrix, capacity = ones_on_diagonal(instance), instance.capacity
        if _arguments(function) == 2:
            returned = function(matrix, instance.demands / capacity)
        else:
            whole = int(capacity) if capacity == int(capacity) else capacity
            returned = function(matrix, instance.coordinates(), instance.demands.copy(), whole)
        ratings = as_matrix(returned, len(instance) + 1)
        ratings[np.isneginf(ratings)] = 0.0  # as published: what is below zero counts as zero
        check_matrix(ratings, len(instance) + 1)
        return ratings

    def score(self, instance: CvrpInstance, output: np.ndarray, seed: int = 0) -> Score:
        """Least cost of any ant by the chosen protocol, and the least true length."""
        charged, true, _ = self._colony(instance, output, seed)
        return Score(charged, true)

    def solution(self, instance: CvrpInstance, output: np.ndarray, seed: int = 0) -> list[list[int]]:
        """The routes of least true length: lists of customers, numbered from 1."""
        return self._colony(instance, output, seed)[2]

    def _colony(self, instance: CvrpInstance, output: np.ndarray, seed: int) -> tuple[float, float, list[list[int]]]:
        from ttc_esopt.solvers.ant_colony import cvrp_colony

        n = len(instance)
        check_matrix(output, n + 1)
        seen, lengths = ones_on_diagonal(instance), instance.metric()
        idle = (0.0, 0.0)
        if self.chosen.get("protocol", "published") == "published":
            own = instance.lengths is not None
            idle = (1.0, lengths.sum() / instance.matrix().sum() if own and lengths.any() else 1.0)
        demands, capacity = instance.demands, instance.capacity
        found = cvrp_colony(seen, output, lengths, demands, capacity, stream_of(instance, seed), idle=idle)
        stops = sorted(stop for route in found.routes for stop in route)
        if stops != list(range(1, n + 1)) or any(demands[route].sum() > capacity for route in found.routes):
            raise Infeasible("the colony found no routes")
        true = route_length(lengths, found.routes)
        return max(found.charged, true) if idle[0] else true, true, found.routes

    def bounds(self, instance: CvrpInstance) -> tuple[float, float]:
        """A weak lower bound, and no upper one."""
        from ttc_esopt.solvers.bounds import cvrp_weak

        return float(cvrp_weak(instance.metric(), instance.demands, instance.capacity)), math.inf

    def references(self, instance: CvrpInstance) -> dict[str, float]:
        """Routes that always go on to the nearest customer that still fits."""
        lengths = instance.metric()
        routes = nearest_neighbour_routes(lengths, instance.demands, instance.capacity)
        return {"nearest_neighbour": route_length(lengths, routes)}


def _drawn(stream: np.random.RandomState, count: int, n: int) -> np.ndarray:
    """Instances as rows (demand, x, y): float64 (count, n + 1, 3), the depot first."""
    rows = np.zeros((count, n + 1, 3))
    for each in rows:
        each[0, 1:] = 0.5
        each[1:, 1:] = stream.rand(n, 2)
        each[1:, 0] = stream.randint(1, 10, n)
    return rows


def _from_rows(rows: np.ndarray) -> list[CvrpInstance]:
    rows = np.asarray(rows, dtype=np.float64)
    return [CvrpInstance(i, each[:, 1:].copy(), each[:, 0].copy(), float(CAPACITY)) for i, each in enumerate(rows)]


def _arguments(function: Callable[..., Any]) -> int:
    """4 or 2: with how many arguments a program is called; as published, all parameters count, with default or not.

    Raises
    ------
    TypeError
        It has another number of parameters, or is no function of Python.
    """
    found = inspect.getfullargspec(function)
    count = 4 if found.varargs and not found.args else len(found.args)
    if count not in (2, 4):
        raise TypeError(f"expected a function of 4 or 2 parameters, got one of {count}")
    return count
