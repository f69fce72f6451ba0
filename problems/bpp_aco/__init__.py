"""Bin packing guided by affinities: the model writes the function that says which items belong into one bin.

Protocol and instance sets are the published ones, so that objectives compare with published values; the corrected
protocol is the same one, but programs see sizes of 64 bits. In spite of the
setting's name no ant colony searches there: `mode` sample (the default) takes the best of 200 greedy packings, `mode`
aco runs the colony (15 iterations of 20 ants).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.errors import DataError
from ttc_esopt.problems.base import Infeasible, NonFinite, Problem, WrongShape
from ttc_esopt.problems.bpp import BppInstance
from ttc_esopt.problems.bpp_aco.heuristics import LARGE_WITH_LARGE, SEEDS
from ttc_esopt.problems.colonies import MOST_NODES, as_matrix, at_once, find_heuristic, stream_of
from ttc_esopt.solvers import bin_packing

CAPACITY = 150
# One random stream per split, seeded by the length of the split's name, fills the sets in this order.
_DRAWN = {"train": (500,), "val": (120, 500, 1000), "test": (500, 1000)}


class BppAco(Problem):
    """Objective: mean number of bins over all instances of the set."""

    name = "bpp_aco"
    function = "heuristics_v2"
    timeout = 30.0
    splits = {"train": (500,), "val": (500, 120, 1000), "test": (500, 1000)}
    counts = {"train": 5, "val": 64, "test": 64}
    gives_numpy = True
    seeded = True
    options = {"protocol": ("published", "corrected"), "mode": ("sample", "aco")}
    seeds = SEEDS
    baselines = {"large_with_large": LARGE_WITH_LARGE}
    task = (
        "Design a heuristic for bin packing that rates how promising it is to put two items into the same bin. "
        "Bins are filled item by item with the item that has the best mean rating with those in the bin."
    )
    template = '''import numpy as np

def heuristics_v2(demand, capacity):
    """Return an array (n, n) of positive ratings: [i, j] is large if items i and j should share a bin.

    demand: array (n,) of int, sizes of the items
    capacity: int, capacity of every bin
    """
'''

    def instances(self, split: str, size: int) -> list[BppInstance]:
        """Items of sizes 20 to 100, uniform, for bins of capacity 150."""
        self.resolve(split, size)
        stream = np.random.RandomState(len(split))
        for n in _DRAWN[split]:
            sizes = stream.randint(20, 101, (self.counts[split], n))
            if n == size:
                return [BppInstance(i, row.astype(np.int64), CAPACITY) for i, row in enumerate(sizes)]
        raise AssertionError("resolve() admits only sets that are drawn")

    def source(self, split: str, size: int) -> str:
        """All sets are the published ones: the streams draw what the published files hold."""
        return "published"

    def read(self, path: Path) -> list[BppInstance]:
        """Instances of a BPPLIB or OR-Library file, or of a set in the published layout (.npz, .npy).

        Raises
        ------
        DataError
            The file cannot be read, or an instance has too many items for its ratings to travel between processes.
        """
        if Path(path).suffix in (".npy", ".npz"):
            from ttc_esopt.problems.files.arrays import read_array

            sets = read_array(path, "bpp")
            if sets.max() > CAPACITY:
                raise DataError(f"{path}: expected sizes of at most {CAPACITY}, the capacity, got {sets.max()}.")
            found = [BppInstance(i, sizes, CAPACITY) for i, sizes in enumerate(sets)]
        else:
            from ttc_esopt.problems.files.bpp import read_bpp

            found = [BppInstance(i, r.sizes, r.capacity, r.name) for i, r in enumerate(read_bpp(path))]
        largest = max(map(len, found))
        if largest > MOST_NODES:
            raise DataError(f"{path}: expected at most {MOST_NODES} items, got {largest}.")
        return found

    def find(self, namespace: dict[str, Any]) -> Any:
        """`heuristics`, or any `heuristics_v*`, in the published order."""
        return find_heuristic(namespace)

    def per_process(self, instances: Sequence[BppInstance]) -> int:
        """So many that their ratings stay small."""
        return at_once(instances)

    def run(self, function: Callable[..., Any], instance: BppInstance) -> np.ndarray:
        """The ratings of a program: float64 array (n, n)."""
        # The published sets hold int32, in which products of sizes may overflow.
        narrow = self.chosen.get("protocol") != "corrected" and instance.sizes.max(initial=0) < 2**31
        found = function(instance.sizes.astype(np.int32 if narrow else np.int64), int(instance.capacity))
        return as_matrix(found, len(instance))

    def compiled(self, function: Callable[..., Any]) -> Callable[[BppInstance], np.ndarray]:
        """The same as `run`: the function is called only once per instance."""
        return lambda instance: self.run(function, instance)

    def score(self, instance: BppInstance, output: np.ndarray, seed: int = 0) -> float:
        """Number of bins."""
        return float(self._bins(instance, output, seed).max() + 1)

    def solution(self, instance: BppInstance, output: np.ndarray, seed: int = 0) -> list[list[int]]:
        """The items of every bin."""
        return bin_packing.groups(self._bins(instance, output, seed))

    def _bins(self, instance: BppInstance, output: np.ndarray, seed: int) -> np.ndarray:
        n = len(instance)
        if output.dtype != np.float64 or output.shape != (n, n):
            raise WrongShape(f"expected ({n}, {n}) float64 ratings, got {output.dtype} of shape {output.shape}")
        largest = output.max()
        if not np.isfinite(largest):  # NaN if there is one anywhere; -inf is as good as zero if there are better ones
            raise NonFinite(f"the largest rating is {largest}")
        if largest <= 0:
            raise Infeasible(f"expected a positive rating, the largest one is {largest}")
        affinity = bin_packing.normalised(np.ascontiguousarray(output))
        search = bin_packing.colony if self.chosen.get("mode") == "aco" else bin_packing.sample
        return search(affinity, instance.sizes, instance.capacity, stream_of(instance, seed))

    def bounds(self, instance: BppInstance) -> tuple[float, float]:
        """The lower bound L2, and a bin for every item."""
        from ttc_esopt.solvers.bounds import martello_toth_l2

        return float(martello_toth_l2(instance.sizes, instance.capacity)), float(len(instance))

    def references(self, instance: BppInstance) -> dict[str, float]:
        """Bins of first-fit and best-fit decreasing."""
        sizes, capacity = instance.sizes, instance.capacity
        return {
            "first_fit_decreasing": float(bin_packing.fit_decreasing(sizes, capacity, best=False).max() + 1),
            "best_fit_decreasing": float(bin_packing.fit_decreasing(sizes, capacity, best=True).max() + 1),
        }
