"""What a problem is: a function that a model writes, instances to try it on, and a score that nobody can forge.

`run` is executed in the sandboxed child, next to the model's program; `score` in the parent, from the returned array
alone. Whatever `run` returns may have been forged, so `score` checks everything.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ttc_esopt.errors import ConfigurationError


class Rejected(Exception):
    """A program's answer does not count; `failure` is the word for it, the message says why."""

    failure = "infeasible"


class Infeasible(Rejected):
    """The answer breaks a rule of the problem."""


class WrongShape(Rejected):
    """The answer has the wrong type or shape."""

    failure = "shape"


class NonFinite(Rejected):
    """The answer holds NaN or infinity where a number is needed."""

    failure = "nonfinite"


@dataclass(frozen=True)
class Seed:
    """A heuristic to start from: `description` is one sentence, `code` a complete program."""

    description: str
    code: str


class Problem:
    """Base class; a problem sets the attributes and writes `instances`, `run` and `score`.

    Attributes
    ----------
    name : as on the command line
    function : name of the function that the model writes
    imports : import lines that programs may rely on having been shown
    template : imports, signature and docstring, no body: what the prompt shows
    task : what is to be designed, as the prompt says it
    maximise : whether a larger score is better (objectives are minimised: the mean score is negated)
    timeout : seconds for one program on the train split
    splits : split -> sizes, the first one is the default
    counts : split -> number of instances
    seeds, baselines : programs to start from, programs to compare with (name -> code)
    """

    name: ClassVar[str]
    function: ClassVar[str]
    imports: ClassVar[str] = "import numpy as np"
    template: ClassVar[str]
    task: ClassVar[str]
    maximise: ClassVar[bool] = False
    timeout: ClassVar[float] = 30.0
    splits: ClassVar[dict[str, tuple[int, ...]]]
    counts: ClassVar[dict[str, int]]
    seeds: ClassVar[tuple[Seed, ...]] = ()
    baselines: ClassVar[dict[str, str]] = {}

    @property
    def spec(self) -> str:
        """What `problems.load` makes this problem from, in another process too."""
        return getattr(self, "_spec", f"{type(self).__module__}:{type(self).__qualname__}")

    def resolve(self, split: str, size: int | None = None) -> tuple[str, int]:
        """Check a split and a size (None: the split's first).

        Raises
        ------
        ConfigurationError
            There is no such split or size.
        """
        if split not in self.splits:
            raise ConfigurationError(f"Expected one of {', '.join(self.splits)}, got {split!r} (--split).")
        sizes = self.splits[split]
        if size is None:
            return split, sizes[0]
        if size not in sizes:
            known = ", ".join(map(str, sizes))
            raise ConfigurationError(f"Expected size {known} for split {split} of {self.name}, got {size} (--size).")
        return split, size

    def time_limit(self, split: str, size: int) -> float:
        """Seconds for one program on all instances of a set: `timeout`, grown with the number and size of instances."""
        first = next(iter(self.splits))
        growth = self.counts[split] / self.counts[first] * (size / self.splits[first][0]) ** 2
        return self.timeout * max(1.0, growth)

    def instances(self, split: str, size: int) -> list[Any]:
        """All instances of a set, the same ones in every process."""
        raise NotImplementedError(f"{type(self).__name__} does not define instances().")

    def run(self, function: Callable[..., Any], instance: Any) -> np.ndarray:
        """Drive a program on one instance (in the child); returns an int64 or float64 array, may raise `Rejected`."""
        raise NotImplementedError(f"{type(self).__name__} does not define run().")

    def score(self, instance: Any, output: np.ndarray) -> float:
        """Score of one returned array (in the parent); raises `Rejected` if it does not count."""
        raise NotImplementedError(f"{type(self).__name__} does not define score().")


def exact_index(value: object) -> int:
    """The integer that a program returned, as an exact int.

    Raises
    ------
    WrongShape
        It is no integer: None, a float, a bool, an array with a dimension.
    """
    if isinstance(value, bool | np.bool_):
        raise WrongShape("expected an integer, got a bool")
    try:
        return operator.index(value)
    except TypeError:
        pass
    kind = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise WrongShape(f"expected an integer, got {kind}")


def closest(word: str, known: list[str]) -> str:
    """' Did you mean ...?' or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""
