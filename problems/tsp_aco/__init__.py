"""Travelling salesman with ants: the model writes the function that says how promising each edge is.

Protocol and instance sets are the published ones, so that objectives compare with published values. The program only
makes a matrix; the colony that uses it runs in the parent, with random numbers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.problems.base import Infeasible, Problem
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
from ttc_esopt.problems.data import published
from ttc_esopt.problems.tsp import TspInstance, nearest_neighbour, tour_length, tsp_instance, unit
from ttc_esopt.problems.tsp_aco.heuristics import INVERSE_DISTANCE, SEEDS

# One random stream fills these sets in this order: (split, instances, nodes).
_DRAWN = (("train", 5, 50), ("val", 64, 20), ("val", 64, 50), ("val", 64, 100), ("test", 64, 20))
_LARGEST = float(np.finfo(np.float32).max)  # the colony works in float32


class TspAco(Problem):
    """Objective: mean length of the best tours that colonies of 30 ants find in 100 iterations."""

    name = "tsp_aco"
    function = "heuristics_v2"
    splits = {"train": (50,), "val": (20, 50, 100), "test": (20, 50, 100)}
    counts = {"train": 5, "val": 64, "test": 64}
    gives_numpy = True
    seeded = True
    seeds = SEEDS
    baselines = {"inverse_distance": INVERSE_DISTANCE}
    task = (
        "Design a heuristic for the travelling salesman problem that rates how promising it is to include each edge "
        "in a tour. An ant colony samples tours in proportion to these ratings."
    )
    template = '''import numpy as np

def heuristics_v2(distance_matrix):
    """Return an array (n, n) of positive ratings: [i, j] is large if the edge from i to j is promising.

    distance_matrix: array (n, n), distances between all nodes, 1 on the diagonal
    """
'''

    def instances(self, split: str, size: int) -> list[TspInstance]:
        """Nodes uniform in the unit square; of test sets those of 50 and 100 nodes are published files, if at hand."""
        self.resolve(split, size)
        stream = np.random.RandomState(1234)
        for drawn_split, count, n in _DRAWN:
            points = stream.rand(count, n, 2)
            if (drawn_split, n) == (split, size):
                break
        else:
            points = self._stored(size)
            if points is None:
                points = own_stream(size).rand(self.counts[split], size, 2)
        return [TspInstance(i, np.ascontiguousarray(each, dtype=np.float64)) for i, each in enumerate(points)]

    def source(self, split: str, size: int) -> str:
        """`own` for a test set of 50 or 100 nodes without the folder of published sets."""
        self.resolve(split, size)
        return "own" if split == "test" and size != 20 and self._stored(size) is None else "published"

    def _stored(self, size: int) -> np.ndarray | None:
        return published(self.data, f"tsp_aco/test{size}_dataset.npy", (self.counts["test"], size, 2))

    def read(self, path: Path) -> list[TspInstance]:
        """The instance of a TSPLIB file, or those of a set in the published layout (.npy).

        Raises
        ------
        DataError
            The file cannot be read, or an instance has too many nodes for a matrix to travel between processes.
        """
        from ttc_esopt.problems.files.arrays import read_array
        from ttc_esopt.problems.files.tsp import read_tsp

        if Path(path).suffix in (".npy", ".npz"):
            sets = read_array(path, "tsp")
            check_nodes(path, sets.shape[1], 3)
            if sets.min() >= 0 and sets.max() <= 1:
                return [TspInstance(i, points) for i, points in enumerate(sets)]
            lengths = [TspInstance(i, points).matrix() for i, points in enumerate(sets)]
            return [TspInstance(i, unit(points), None, lengths[i]) for i, points in enumerate(sets)]
        record = read_tsp(path)
        check_nodes(path, len(record.distances), 3)
        return [tsp_instance(record)]

    def find(self, namespace: dict[str, Any]) -> Any:
        """`heuristics`, or any `heuristics_v*`, in the published order."""
        return find_heuristic(namespace)

    def per_process(self, instances: Sequence[TspInstance]) -> int:
        """So many that their matrices stay small."""
        return at_once(instances)

    def run(self, function: Callable[..., Any], instance: TspInstance) -> np.ndarray:
        """The ratings that a program makes: float64 array (n, n)."""
        matrix = as_matrix(function(ones_on_diagonal(instance)), len(instance))
        check_matrix(matrix, len(instance))
        return matrix

    def score(self, instance: TspInstance, output: np.ndarray, seed: int = 0) -> float:
        """Length of the best tour of a colony that follows the ratings."""
        return self._colony(instance, output, seed)[0]

    def solution(self, instance: TspInstance, output: np.ndarray, seed: int = 0) -> np.ndarray:
        """That tour: int64 array (n,)."""
        return self._colony(instance, output, seed)[1]

    def _colony(self, instance: TspInstance, output: np.ndarray, seed: int) -> tuple[float, np.ndarray]:
        from ttc_esopt.solvers.ant_colony import tsp_colony

        check_matrix(output, len(instance), _LARGEST)
        lengths = instance.metric()
        tour = tsp_colony(ones_on_diagonal(instance), output, lengths, stream_of(instance, seed))
        if not np.array_equal(np.sort(tour), np.arange(len(instance))):
            raise Infeasible("the colony found no tour")
        return tour_length(lengths, tour), tour

    def bounds(self, instance: TspInstance) -> tuple[float, float]:
        """Half the sum of every node's two shortest edges, and no upper bound."""
        from ttc_esopt.solvers.tsp_construct import length_bounds

        return length_bounds(instance.metric())[0], math.inf

    def references(self, instance: TspInstance) -> dict[str, float]:
        """The nearest-neighbour tour from node 0."""
        lengths = instance.metric()
        return {"nearest_neighbour": tour_length(lengths, nearest_neighbour(lengths))}
