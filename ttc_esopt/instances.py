"""Which problem and which instances the settings of a run mean: options, folders of published sets, instance files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ttc_esopt import problems
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import PATIENCE, Evaluator
from ttc_esopt.problems.base import Problem, own_code
from ttc_esopt.problems.hosts import HostProblem
from ttc_esopt.settings import Settings


def problem_of(settings: Settings) -> Problem:
    """The problem of a run, with its options."""
    problem = problems.load(settings.problem, data=settings.data or None, problem_args=settings.problem_args)
    options = {"mode": settings.mode} if settings.mode else {}
    if "protocol" in problem.options:  # a user's own problem need not tell protocols apart
        options["protocol"] = settings.protocol
    problem.configure(options, settings.data or None)
    return problem


def read_files(problem: Problem, files: Sequence[Path | str]) -> list[Any]:
    """Instances from files, numbered within each file, so that no file's random numbers depend on the others.

    Raises
    ------
    DataError
        A file cannot be read; the message names file, line and fault.
    ConfigurationError
        The reader of a user's own problem fails.
    """
    found: list[Any] = []
    for file in files:
        with own_code(f"{problem.name}.read() on {file}"):
            found += problem.read(Path(file))
    return found


def split_files(text: str) -> list[str]:
    """Paths of instance files as one setting holds them."""
    return [part for part in text.split(os.pathsep) if part]


def joined(paths: Sequence[Path]) -> str:
    """Paths as one setting holds them, absolute.

    Raises
    ------
    ConfigurationError
        A path holds the separator.
    """
    for path in paths:
        if os.pathsep in str(path.resolve()):
            raise ConfigurationError(f"Expected a path without {os.pathsep!r}, got {path.resolve()} (--instances).")
    return os.pathsep.join(str(path.resolve()) for path in paths)


def absolute_files(text: str) -> str:
    """The same paths, absolute, so that a run can be resumed from anywhere.

    Raises
    ------
    ConfigurationError
        There is no such file, or its folder's name holds the separator.
    """
    found = [Path(part) for part in split_files(text)]
    for path in found:
        if not path.is_file():
            raise ConfigurationError(f"No such file: {path.resolve()} (--instances).")
    return joined(found)


def evaluator(
    problem: Problem, settings: Settings, split: str = "train", size: int | None = None, compile: str = "auto"
) -> Evaluator:
    """An evaluator with the run's limits; on other splits the time limit is the problem's, with patience.

    The search set is the train split, or the run's instance files.
    """
    files = split_files(settings.instances) if split == "train" else []
    kind: Callable[..., Evaluator] = Evaluator
    if settings.evaluate_on == "ray":
        from ttc_esopt.evaluation.on_ray import RayEvaluator

        kind = partial(RayEvaluator, address=settings.ray_address)
    return kind(
        problem, split=split, size=size, instances=read_files(problem, files) if files else None, seed=settings.seed,
        workers=settings.workers or None, timeout=(settings.eval_timeout or None) if split == "train" else None,
        patience=1.0 if split == "train" else PATIENCE, memory_mb=settings.memory_mb, compile=compile,
        sandbox=settings.sandbox,
    )  # fmt: skip


def own_template(problem: Problem, search_set: Evaluator) -> str | None:
    """A line for the user where the template of another framework's problem is invalid here.

    Raises
    ------
    ConfigurationError
        The problem itself does what the sandbox forbids: no program can be evaluated.
    """
    if not isinstance(problem, HostProblem) or not problem.baselines:
        return None
    outcome = search_set.evaluate(list(problem.baselines.values())[:1])[0]
    if outcome.failure == "forbidden":
        raise ConfigurationError(
            f"{problem.name} works outside the sandbox only: its own template is forbidden here ({outcome.detail}). "
            "Run its framework's own script with ttc-esopt exec --sandbox off (--problem)."
        )
    if outcome.valid:
        return None
    hint = " (--eval-timeout gives more)" if outcome.failure == "timeout" else ""
    return f"note: the problem's own template is invalid here: {outcome.failure}: {outcome.detail}{hint}"


def instance_names(instances: Sequence[Any]) -> list[str]:
    """What instances are called, each name once: as their files say, else their number."""
    names: list[str] = []
    for number, instance in enumerate(instances, 1):
        name = str(getattr(instance, "name", "") or number)
        names.append(name if name not in names else f"{name} ({number})")
    return names


def reported_size(problem: Problem, settings: Settings, split: str) -> int | None:
    """The size that a run reports on in a split: the search's own, or the split's first; None: no such set."""
    if settings.instances or split not in problem.splits:
        return None
    size, sizes = next(iter(problem.splits.values()))[0], problem.splits[split]
    return size if size in sizes else sizes[0]


def own_sets(problem: Problem, settings: Settings) -> list[str]:
    """The sets of a run that stand in for published ones that are not at hand, such as `test 50`."""
    sized = {split: reported_size(problem, settings, split) for split in ("train", "val", "test")}
    with own_code(f"{problem.name}.source()"):
        return [f"{split} {n}" for split, n in sized.items() if n is not None and problem.source(split, n) == "own"]
