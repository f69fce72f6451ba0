"""Travelling salesman, built step by step: the model writes the function that picks the next node.

Protocol and instance sets are the published ones, so that objectives compare with published values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from ttc_esopt.problems import tsp
from ttc_esopt.problems.base import Infeasible, Problem, WrongShape, exact_index
from ttc_esopt.problems.tsp import TspInstance, tsp_instance
from ttc_esopt.problems.tsp_construct.heuristics import NEAREST_NEIGHBOUR, SEEDS
from ttc_esopt.solvers.choice import integer_choice
from ttc_esopt.solvers.tsp_construct import (
    BadChoice,
    construct,
    construct_compiled,
    distance_matrix,
    is_tour,
    length_bounds,
    nearest_first,
    tour_length,
)  # fmt: skip

# One random stream fills all sets in this order: (split, instances, nodes).
_DRAWN = (
    ("train", 64, 50),
    ("val", 64, 20),
    ("val", 64, 50),
    ("val", 64, 100),
    ("val", 64, 200),
    ("test", 1000, 20),
    ("test", 1000, 50),
    ("test", 1000, 100),
    ("test", 1000, 200),
)
_ARGUMENTS = (types.int64, types.int64, types.int64[::1], types.float64[:, ::1])


class TspConstruct(Problem):
    """Objective: mean length of the closed tours from node 0 over all instances of the set."""

    name = "tsp_construct"
    function = "select_next_node"
    timeout = 20.0
    splits = {"train": (50,), "val": (20, 50, 100, 200), "test": (20, 50, 100, 200)}
    counts = {"train": 64, "val": 64, "test": 1000}
    seeds = SEEDS
    baselines = {"nearest_neighbour": NEAREST_NEIGHBOUR}
    task = (
        "Design a heuristic that builds a short closed tour through all nodes step by step. In each step it selects "
        "the next node to visit among the unvisited nodes."
    )
    template = '''import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    """Return the node to visit next, one of unvisited_nodes.

    current_node: int, the node where the tour is now
    destination_node: int, the node where the tour must end
    unvisited_nodes: array of int, nearest to current_node first
    distance_matrix: array (n, n), distances between all nodes
    """
'''

    def instances(self, split: str, size: int) -> list[np.ndarray]:
        """Node coordinates: float64 arrays (n, 2), uniform in the unit square."""
        self.resolve(split, size)
        stream = np.random.RandomState(1234)
        for drawn_split, count, n in _DRAWN:
            points = stream.rand(count, n, 2)
            if (drawn_split, n) == (split, size):
                return list(points)
        raise AssertionError("resolve() admits only sets that are drawn")

    def source(self, split: str, size: int) -> str:
        """`published`: the sets are drawn from the published seed."""
        return "published"

    def read(self, path: Path) -> list[TspInstance] | list[np.ndarray]:
        """The instance of a TSPLIB file, measured in the file's own lengths, or a set of points (.npy, .npz).

        Raises
        ------
        DataError
            The file cannot be read.
        """
        if Path(path).suffix in (".npy", ".npz"):
            from ttc_esopt.problems.files.arrays import read_array

            return list(read_array(path, "tsp"))
        from ttc_esopt.problems.files.tsp import read_tsp

        return [tsp_instance(read_tsp(path))]

    def run(self, function: Callable[..., Any], instance: np.ndarray | TspInstance) -> np.ndarray:
        """The tour that a program builds: int64 array (n,)."""
        matrix = _seen(instance)
        order = nearest_first(matrix)  # from here on the matrix is the program's to spoil

        def choose(node: int, unvisited: np.ndarray) -> int:
            return exact_index(function(node, 0, unvisited, matrix))

        try:
            return construct(choose, order)
        except BadChoice as error:
            raise Infeasible(str(error)) from None

    def compiled(self, function: Callable[..., Any]) -> Callable[[np.ndarray | TspInstance], np.ndarray] | None:
        """A compiled `run`; None unless the function returns an integer."""
        choose = integer_choice(function, _ARGUMENTS)
        if choose is None:
            return None

        def run(instance: np.ndarray | TspInstance) -> np.ndarray:
            matrix = _seen(instance)
            return construct_compiled(choose, matrix, nearest_first(matrix))

        return run

    def score(self, instance: np.ndarray | TspInstance, output: np.ndarray) -> float:
        """Length of the closed tour, for an instance of a file in the file's lengths."""
        n = len(instance)
        if output.dtype != np.int64 or output.shape != (n,):
            raise WrongShape(f"expected a tour of {n} integers, got {output.dtype} of shape {output.shape}")
        if not is_tour(output):
            raise Infeasible("expected a tour from node 0 through every node once")
        if isinstance(instance, TspInstance):
            return tsp.tour_length(instance.metric(), output)
        return tour_length(instance, output)

    def solution(self, instance: np.ndarray | TspInstance, output: np.ndarray) -> np.ndarray:
        """The tour: int64 array (n,), node 0 first."""
        self.score(instance, output)
        return output.copy()

    def bounds(self, instance: np.ndarray | TspInstance) -> tuple[float, float]:
        """Half the sums of the two shortest and of the two longest edges of every node."""
        return length_bounds(instance.metric() if isinstance(instance, TspInstance) else distance_matrix(instance))


def _seen(instance: np.ndarray | TspInstance) -> np.ndarray:
    """Distances that the program gets, and may spoil: float64 (n, n)."""
    return instance.matrix() if isinstance(instance, TspInstance) else distance_matrix(instance)
