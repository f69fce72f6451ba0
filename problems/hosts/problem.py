"""A host's problem as one of ours, known from its description; it is loaded where its programs are evaluated."""

from __future__ import annotations

import functools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.problems.base import Seed, SelfScored

_PREFIX = "host:"
_SECONDS = 180.0  # imports on a slow network disk


class HostProblem(SelfScored):
    """A problem of EoH, LLM4AD, ReEvo or MCTS-AHD. What its programs' own process reports is all there is to go by.

    Parameters
    ----------
    place : FILE.py, a module, or a problem folder of ReEvo
    class_name : empty for a folder
    arguments : of the class, as text
    description : see `describe.description`; None: in a process that evaluates, which loads the problem itself
    """

    splits = {"train": (1,)}
    counts = {"train": 1}
    options: dict = {}
    bounded = False
    _live: Any = None
    _program = ""

    def __init__(self, place: str, class_name: str, arguments: str, description: dict[str, Any] | None) -> None:
        self.place, self.class_name, self.arguments = place, class_name, arguments
        self.name = class_name or Path(place).name
        self._spec = f"{_PREFIX}{place}:{class_name}"
        self.chosen = {"problem_args": arguments} if arguments else {}
        if description is not None:
            self._take(description)

    def _take(self, description: dict[str, Any]) -> None:
        template = description["template"]
        self.host, self.task, self.timeout = description["host"], description["task"], description["timeout"]
        self.function, self.imports, self.kind = template["entry"], template["imports"], template["kind"]
        self.template, self.opening = template["shown"], template["opening"]
        self.maximise, self.reads = description["maximise"], tuple(description["read"])
        seeds = [Seed(*seed) for seed in description["seeds"]]
        if template["program"]:
            seeds.append(Seed("The heuristic that comes with the problem.", template["program"]))
        self.seeds = tuple(seeds)
        self.baselines = {"template": seeds[0].code} if seeds else {}

    def configure(self, given: dict[str, str], data: str | Path | None = None) -> None:
        """There is nothing to choose but the class's own arguments, which are fixed by now."""
        for option in given:
            raise ConfigurationError(f"Problem {self.name} of {self.host} has no option {option} (--{option}).")

    def resolve(self, split: str, size: int | None = None) -> tuple[str, None]:
        """One set without a size: what the host evaluates on."""
        super().resolve(split, None if size in (None, 1) else size)
        return split, None

    def time_limit(self, instances: Sequence[Any]) -> float:
        """The host's own."""
        return self.timeout

    def instances(self, split: str, size: int | None) -> list[Any]:
        """The host evaluates all of its instances in one call."""
        return [None]

    def bounds(self, instance: Any) -> tuple[float, float]:
        """Nothing is known of them."""
        return -math.inf, math.inf

    def warm(self, instances: Sequence[Any]) -> None:
        """Load the problem, in the process whose children evaluate."""
        from ttc_esopt.problems.hosts.describe import description, live

        self._live = live(self.place, self.class_name, self.arguments)
        self._take(description(self._live))
        self._live.warm()

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        """What the host executes for a program."""
        self._program = code
        return self._live.prepare(code)

    def run(self, function: Callable[..., Any], instance: Any) -> np.ndarray:
        """What the host says of the program, as an array of one number."""
        if (torch := sys.modules.get("torch")) is not None:  # it seeds itself by chance
            chance = random.Random()
            chance.setstate(random.getstate())  # which depends on the program and the seed; the host shall find it so
            torch.default_generator.manual_seed(chance.getrandbits(63))
        return np.array([self._live.value(function, self._program)])


def is_host(name: str) -> bool:
    """Whether a problem's name means, or may mean, a problem of a host: a folder, or a class not said to be ours.

    A file that speaks of this package holds a problem of ours; what others hold, only loading them tells.
    """
    place, colon, class_name = name.removeprefix(_PREFIX).rpartition(":")
    if name.startswith(_PREFIX) or Path(name).is_dir():
        return True
    if not colon or not class_name or place.partition(".")[0] == "ttc_esopt":
        return False
    if not place.endswith(".py"):
        return True
    try:
        return "ttc_esopt" not in Path(place).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def open_host(name: str, arguments: str) -> HostProblem | None:
    """The problem that a name means; None if its class is one of ours.

    Raises
    ------
    ConfigurationError
        It cannot be found, loaded, made or recognised.
    """
    if name.startswith(_PREFIX):  # in an evaluation process, from another one that has described it
        place, _, class_name = name.removeprefix(_PREFIX).rpartition(":")
        return HostProblem(place, class_name, arguments, None)
    place, class_name = name, ""
    if not Path(name).is_dir():
        place, _, class_name = name.rpartition(":")
    if not class_name or place.endswith(".py"):
        place = str(Path(place).resolve())
    description = _described(place, class_name, arguments, _stamp(place))
    return None if description.get("own") else HostProblem(place, class_name, arguments, description)


def _stamp(place: str) -> int:
    path = Path(place)
    return path.stat().st_mtime_ns if path.exists() else 0


@functools.cache
def _described(place: str, class_name: str, arguments: str, stamp: int) -> dict[str, Any]:
    from ttc_esopt.evaluation.sandbox import environment

    command = [sys.executable, "-P", "-m", "ttc_esopt.problems.hosts.describe", place, class_name, arguments]
    what = f"{place}:{class_name}" if class_name else place
    try:
        answer = subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_SECONDS, check=False,
        )  # fmt: skip
        found = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{what} cannot be loaded: nothing after {_SECONDS:g} s (--problem).") from None
    except (OSError, ValueError, IndexError):
        said = answer.stderr.strip().rpartition("\n")[2] or f"exit status {answer.returncode}"
        raise ConfigurationError(f"{what} cannot be loaded: {said} (--problem).") from None
    if "error" in found:
        raise ConfigurationError(found["error"])
    return found
