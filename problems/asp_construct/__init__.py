"""Large admissible sets: the model writes the function that says which words to add first.

Protocol (there is nothing to correct in it) and sizes are the published ones: every candidate word is rated once, then
words are added greedily as long as they are compatible with those added before, and the set is expanded by rotations.
Letters are 0, 1 and 2; n of them, w not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttc_esopt.problems.asp_construct.heuristics import CONSTANT, SEEDS
from ttc_esopt.problems.base import Problem, WrongShape
from ttc_esopt.solvers import admissible_sets

_WEIGHT = {12: 7, 15: 10, 21: 15, 24: 17}
# Sizes that functions found by FunSearch reach; (15, 10) and (12, 7) cannot be beaten.
_BEST_KNOWN = {(12, 7): 792, (15, 10): 3003, (21, 15): 43596, (24, 17): 237984}


@dataclass(frozen=True, eq=False)
class AspInstance:
    """Words of `n` letters, `w` of them not zero."""

    n: int
    w: int

    def __len__(self) -> int:
        return self.n


class AspConstruct(Problem):
    """Objective: minus the number of words in the expanded set."""

    name = "asp_construct"
    function = "priority"
    maximise = True
    timeout = 30.0
    splits = {"train": (15,), "val": (15, 12, 21, 24), "test": (15, 12, 21, 24)}
    counts = {"train": 1, "val": 1, "test": 1}
    gives_numpy = True
    seeds = SEEDS
    baselines = {"constant": CONSTANT}
    task = (
        "Design a priority function for building a large symmetric constant-weight admissible set. Words of n letters "
        "0, 1, 2 of which w are not zero are added in the order of their priority as long as the set stays admissible."
    )
    template = '''import numpy as np

def priority(el, n, w):
    """Return the priority (float) with which the word el should be added; the largest is added first.

    el: tuple of n int, each 0, 1 or 2
    n: int, number of letters
    w: int, number of letters that are not 0
    """
'''

    def instances(self, split: str, size: int) -> list[AspInstance]:
        """The one instance with words of `size` letters."""
        self.resolve(split, size)
        return [AspInstance(size, _WEIGHT[size])]

    def source(self, split: str, size: int) -> str:
        """All instances are the published ones."""
        return "published"

    def time_limit(self, instances: Sequence[AspInstance]) -> float:
        """Grows with the number of words that a program rates."""
        rated = [len(admissible_sets.candidates(instance.n, instance.w)) for instance in instances]
        return self.timeout * max(1.0, sum(rated) / len(admissible_sets.candidates(15, 10)))

    def warm(self, instances: Sequence[AspInstance]) -> None:
        """Make the words once, before processes are forked."""
        for instance in instances:
            admissible_sets.words(instance.n, instance.w)

    def run(self, function: Callable[..., Any], instance: AspInstance) -> np.ndarray:
        """The ratings of all words in the published order: float64 array (words,)."""
        n, w = instance.n, instance.w
        rated = [function(word, n, w) for word in admissible_sets.words(n, w)]
        return np.array([_number(value) for value in rated])

    def score(self, instance: AspInstance, output: np.ndarray) -> float:
        """Number of words in the expanded set."""
        return float(admissible_sets.size(instance.n, instance.w, self._chosen(instance, output)))

    def solution(self, instance: AspInstance, output: np.ndarray) -> np.ndarray:
        """The words of the expanded set: int8 array (size, n)."""
        return admissible_sets.expand(instance.n, instance.w, self._chosen(instance, output))

    def _chosen(self, instance: AspInstance, output: np.ndarray) -> np.ndarray:
        count = len(admissible_sets.candidates(instance.n, instance.w))
        if output.dtype != np.float64 or output.shape != (count,):
            raise WrongShape(f"expected {count} float64 priorities, got {output.dtype} of shape {output.shape}")
        # As published, NaN counts as largest and infinities as what they are.
        return admissible_sets.choose(instance.n, instance.w, output)

    def bounds(self, instance: AspInstance) -> tuple[float, float]:
        """No two words of an admissible set have the same places that are not zero."""
        return 1.0, float(math.comb(instance.n, instance.w))

    def references(self, instance: AspInstance) -> dict[str, float]:
        """Size of the largest known symmetric set."""
        known = _BEST_KNOWN.get((instance.n, instance.w))
        return {"best_known": float(known)} if known else {}


def _number(value: Any) -> float:
    """A priority as a float; whatever is no real number has the wrong shape."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, str | bytes | bytearray | complex):
        raise WrongShape(f"expected a priority that is a number, got {kind}")
    try:
        return float(value)
    except TypeError:
        raise WrongShape(f"expected a priority that is a number, got {kind}") from None
