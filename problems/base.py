"""What a problem is: a function that a model writes, instances to try it on, and a score that nobody can forge.

`run` is executed in the sandboxed child, next to the model's program; `score` in the parent, from the returned array
alone. Whatever `run` returns may have been forged, so `score` checks everything. Where the score function must run the
program itself, `SelfScored` moves the whole evaluation into the child, which is weaker.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ttc_esopt.errors import ConfigurationError, DataError, TtcEsoptError


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


class Score(NamedTuple):
    """A score by the protocol that was asked for, and the one that the user would pay."""

    value: float
    true: float


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
    gives_numpy : whether programs find `np` without importing it
    kind : what the model writes: a `function`, several (`functions`, of which `function` is called), or a `class`
    opening : how a started reply begins, if not with `imports` and the signature
    reads : folders, beside Python's own, that the programs' process must see
    seeded : whether `score` and `solution` take a third argument, the seed of the random numbers that they draw
    options : option -> allowed values, the first one is the default (`--protocol`, `--mode`)
    chosen : the values of the options, set by `configure`
    data : folder of published instance sets (`--data`), None: the environment variable TTC_ESOPT_DATA, if set
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
    gives_numpy: ClassVar[bool] = False
    kind: ClassVar[str] = "function"
    opening: ClassVar[str] = ""
    reads: tuple[str, ...] = ()
    seeded: ClassVar[bool] = False
    options: ClassVar[dict[str, tuple[str, ...]]] = {"protocol": ("published", "corrected")}
    chosen: dict[str, str] = {}
    data: Path | None = None

    @property
    def spec(self) -> str:
        """What `problems.load` makes this problem from, in another process too."""
        return getattr(self, "_spec", f"{type(self).__module__}:{type(self).__qualname__}")

    def configure(self, given: dict[str, str], data: str | Path | None = None) -> None:
        """Choose options, the others at their defaults, and the folder of published sets.

        Raises
        ------
        ConfigurationError
            There is no such option or value, or no such folder.
        """
        for option, value in given.items():
            allowed = self.options.get(option)
            if allowed is None:
                raise ConfigurationError(f"Problem {self.name} has no option {option} (--{option}).")
            if value not in allowed:
                raise ConfigurationError(f"Expected one of {', '.join(allowed)}, got {value!r} (--{option}).")
        self.chosen = {option: allowed[0] for option, allowed in self.options.items()} | given
        folder, flag = (data, "--data") if data else (os.environ.get("TTC_ESOPT_DATA"), "TTC_ESOPT_DATA")
        if folder and not Path(folder).is_dir():
            raise ConfigurationError(f"Expected a folder of published instance sets, got {folder} ({flag}).")
        self.data = Path(folder) if folder else None

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

    def time_limit(self, instances: Sequence[Any]) -> float:
        """Seconds for one program on all of these instances: `timeout`, grown with their number and size."""
        first = next(iter(self.splits))
        count, size = self.counts[first], self.splits[first][0]
        growth = sum(max(1.0, (self.size_of(instance) / size) ** 2) for instance in instances) / count
        return self.timeout * max(1.0, growth)

    def size_of(self, instance: Any) -> int:
        """Size of an instance, in the measure of `splits`; of an instance without a length, the first size."""
        return len(instance) if hasattr(instance, "__len__") else next(iter(self.splits.values()))[0]

    def instances(self, split: str, size: int) -> list[Any]:
        """All instances of a set, the same ones in every process."""
        raise NotImplementedError(f"{type(self).__name__} does not define instances().")

    def source(self, split: str, size: int) -> str:
        """Where a set comes from: `published`, `own` (in place of a published one not at hand), or the `problem`."""
        return "problem"

    def read(self, path: Path) -> list[Any]:
        """Instances from a file in a format of the field.

        Raises
        ------
        DataError
            The file cannot be read, or this problem knows no file format.
        """
        raise DataError(f"{path}: problem {self.name} reads no instance files.")

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        """The text to execute for a program, and the names that it finds there (in the child)."""
        return code, {"np": np} if self.gives_numpy else {}

    def find(self, namespace: dict[str, Any]) -> Any:
        """What a program defined under the function's name or another accepted one; None if nothing."""
        return namespace.get(self.function)

    def per_process(self, instances: Sequence[Any]) -> int:
        """How many instances one child works on: fewer where what it returns is large."""
        return len(instances)

    def warm(self, instances: Sequence[Any]) -> None:
        """Called once before children are forked: make here what all of them need, such as compiled kernels."""

    def run(self, function: Callable[..., Any], instance: Any) -> np.ndarray:
        """Drive a program on one instance (in the child); returns an int64 or float64 array, may raise `Rejected`."""
        raise NotImplementedError(f"{type(self).__name__} does not define run().")

    def compiled(self, function: Callable[..., Any]) -> Callable[[Any], np.ndarray] | None:
        """A compiled `run` for a function that numba has compiled, one argument: the instance; None: there is none."""
        return None

    def score(self, instance: Any, output: np.ndarray) -> float | Score:
        """Score of one returned array (in the parent); raises `Rejected` if it does not count."""
        raise NotImplementedError(f"{type(self).__name__} does not define score().")

    def bounds(self, instance: Any) -> tuple[float, float]:
        """Least and largest score that is possible; anything outside them is taken for a fraud, not for a feat."""
        return -math.inf, math.inf

    def references(self, instance: Any) -> dict[str, float]:
        """Scores of classical methods that are no programs of this problem (name -> score)."""
        return {}


class SelfScored(Problem):
    """A problem whose score function runs the program itself, as the problems of other frameworks do.

    The whole evaluation happens in the sandboxed child and only a number leaves it. That number is what the program's
    own process says, so a hostile program can forge it: `bounds` are all that stands against that, and must be finite
    (`bounded`; problems of other frameworks state none).
    """

    bounded: ClassVar[bool] = True

    def evaluate(self, function: Callable[..., Any], instance: Any) -> float:
        """Score of a program on one instance."""
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate().")

    def bounds(self, instance: Any) -> tuple[float, float]:
        """Least and largest score that is possible; to be stated by every such problem."""
        raise NotImplementedError(f"{type(self).__name__} does not define bounds().")

    def run(self, function: Callable[..., Any], instance: Any) -> np.ndarray:
        """The score, as an array of one number."""
        return np.array([float(self.evaluate(function, instance))])

    def score(self, instance: Any, output: np.ndarray) -> float:
        """The number that came back; the evaluator holds it against `bounds`."""
        if output.dtype != np.float64 or output.shape != (1,):
            raise WrongShape(f"expected one number, got {output.dtype} of shape {output.shape}")
        if not math.isfinite(output[0]):
            raise NonFinite(f"the score is {output[0]}")
        return float(output[0])


@contextlib.contextmanager
def own_code(what: str) -> Iterator[None]:
    """Turn a fault of a user's own class into one line that names it; `what` is such as `job_shop.read() on x.txt`.

    Raises
    ------
    ConfigurationError
        The code inside raised anything that is no error of ours.
    """
    try:
        yield
    except (TtcEsoptError, Rejected):
        raise
    except Exception as error:
        raise ConfigurationError(f"{what} failed: {describe(error)} (--problem).") from error


def describe(error: Exception) -> str:
    """Type and message, without a full stop."""
    return f"{type(error).__name__}: {str(error).rstrip('.')}"


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
