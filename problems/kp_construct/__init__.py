"""Knapsack, filled step by step: the model writes the function that picks the next item.

The protocol is the published one, and so are the instance sets where their folder is at hand; without it, sets of the
same distribution are drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from ttc_esopt.problems.base import Infeasible, Problem, WrongShape, exact_index
from ttc_esopt.problems.data import published
from ttc_esopt.problems.kp import KpInstance, kp_instance
from ttc_esopt.problems.kp_construct.heuristics import BEST_RATIO, SEEDS
from ttc_esopt.solvers.choice import integer_choice
from ttc_esopt.solvers.knapsack import BadPick, fault, pack, pack_compiled, tolerance

# Own sets, where the published ones are missing: one random stream fills all of them in this order.
_DRAWN = (
    ("train", 64, 100),
    ("val", 64, 50),
    ("val", 64, 100),
    ("val", 64, 200),
    ("test", 1000, 50),
    ("test", 1000, 100),
    ("test", 1000, 200),
)
_NUMBERS = types.float64[::1]
_ARGUMENTS = (types.float64, _NUMBERS, _NUMBERS)


def _pick(item: Any) -> int:
    """The index that a program means: as published, an array of one element is its element, and a float is cut off."""
    if isinstance(item, np.ndarray) and item.size == 1:
        item = item.item()
    if isinstance(item, float | bool | np.floating | np.bool_) and math.isfinite(item):
        item = int(item)
    return exact_index(item)


class KpConstruct(Problem):
    """Objective: minus the mean value of the filled knapsacks over all instances of the set."""

    name = "kp_construct"
    function = "select_next_item"
    maximise = True
    timeout = 30.0
    splits = {"train": (100,), "val": (100, 200, 50), "test": (100, 200, 50)}
    counts = {"train": 64, "val": 64, "test": 1000}
    seeds = SEEDS
    baselines = {"best_ratio": BEST_RATIO}
    gives_numpy = True
    task = (
        "Design a heuristic that fills a knapsack with items of a high total value step by step. In each step it "
        "selects the next item among the remaining items; the item must fit into the remaining capacity."
    )
    template = '''import numpy as np

def select_next_item(remaining_capacity, weights, values):
    """Return the index of the item to take next, one that fits.

    remaining_capacity: float, the capacity that is left
    weights: array (n,), weights of the remaining items; at least one fits
    values: array (n,), values of the remaining items
    """
'''

    def instances(self, split: str, size: int) -> list[KpInstance]:
        """Items with weights and values uniform in [0, 1], capacity 25, or 12.5 for 50 items."""
        self.resolve(split, size)
        array = self._published(split, size)
        if array is None:
            stream = np.random.RandomState(1234)
            for drawn_split, count, n in _DRAWN:
                array = stream.rand(count, n, 2)
                if (drawn_split, n) == (split, size):
                    break
        return [_item_set(rows) for rows in array]

    def source(self, split: str, size: int) -> str:
        """`published` where the folder of published sets holds the file, else `own`."""
        return "own" if self._published(split, size) is None else "published"

    def _published(self, split: str, size: int) -> np.ndarray | None:
        return published(self.data, f"kp_constructive/{split}{size}_dataset.npy", (self.counts[split], size, 2))

    def read(self, path: Path) -> list[KpInstance]:
        """Instances of a knapsack file or of an .npy set in the published layout.

        Raises
        ------
        DataError
            The file cannot be read.
        """
        if Path(path).suffix in (".npy", ".npz"):
            from ttc_esopt.problems.files.arrays import read_array

            return [_item_set(rows) for rows in read_array(path, "kp")]
        from ttc_esopt.problems.files.knapsack import read_kp

        return [kp_instance(record) for record in read_kp(path)]

    def run(self, function: Callable[..., Any], instance: KpInstance) -> np.ndarray:
        """The items that a program picks, in order: int64 array."""

        def choose(remaining: float, weights: np.ndarray, values: np.ndarray) -> int:
            return _pick(function(remaining, weights, values))

        weights, _, capacity = instance.counted
        try:
            return pack(choose, weights, capacity, instance.weights, instance.values, instance.scale)
        except BadPick as error:
            raise Infeasible(str(error)) from None

    def compiled(self, function: Callable[..., Any]) -> Callable[[KpInstance], np.ndarray] | None:
        """A compiled `run`; None unless the function returns an integer or an array of one."""
        choose = integer_choice(function, _ARGUMENTS, arrays=True)
        if choose is None:
            return None

        def run(instance: KpInstance) -> np.ndarray:
            weights, _, capacity = instance.counted
            slack = tolerance(weights, capacity, instance.scale)
            return pack_compiled(choose, weights, capacity, instance.weights, instance.values, instance.scale, slack)

        return run

    def score(self, instance: KpInstance, output: np.ndarray) -> float:
        """Total value of the picked items."""
        if output.dtype != np.int64 or output.ndim != 1:
            raise WrongShape(f"expected a list of integers, got {output.dtype} of shape {output.shape}")
        weights, values, capacity = instance.counted
        wrong = fault(weights, capacity, np.ascontiguousarray(output), instance.scale)
        if wrong:
            raise Infeasible(f"the knapsack has {wrong}")
        return float(values[output].sum())

    def solution(self, instance: KpInstance, output: np.ndarray) -> list[int]:
        """The picked items, in increasing order."""
        self.score(instance, output)
        return sorted(output.tolist())

    def bounds(self, instance: KpInstance) -> tuple[float, float]:
        """From nothing to the value of the best fractional knapsack."""
        from ttc_esopt.solvers.bounds import dantzig

        weights, values, capacity = instance.counted
        return 0.0, float(dantzig(weights, values, capacity + tolerance(weights, capacity, instance.scale)))


def _item_set(rows: np.ndarray) -> KpInstance:
    """An instance of the published distribution: rows (n, 2) of weight and value."""
    n = len(rows)
    weights, values = np.array(rows.T, dtype=np.float64, order="C")
    return KpInstance(weights, values, 25.0 if n >= 100 else n / 4)
