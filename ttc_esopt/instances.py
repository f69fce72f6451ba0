"""Which problem and which instances the settings of a run mean: options, folders of published sets, instance files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt import problems
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems.base import Problem
from ttc_esopt.settings import Settings


def problem_of(settings: Settings) -> Problem:
    """The problem of a run, with its options."""
    options = {"protocol": settings.protocol} | ({"mode": settings.mode} if settings.mode else {})
    return problems.load(settings.problem, data=settings.data or None, **options)


def read_files(problem: Problem, files: Sequence[Path | str]) -> list[Any]:
    """Instances from files, numbered through.

    Raises
    ------
    DataError
        A file cannot be read; the message names file, line and fault.
    """
    return [instance for file in files for instance in problem.read(Path(file))]


def split_files(text: str) -> list[str]:
    """Paths of instance files as one setting holds them."""
    return [part for part in text.split(os.pathsep) if part]


def absolute_files(text: str) -> str:
    """The same paths, absolute, so that a run can be resumed from anywhere.

    Raises
    ------
    ConfigurationError
        There is no such file.
    """
    found = [Path(part).resolve() for part in split_files(text)]
    for path in found:
        if not path.is_file():
            raise ConfigurationError(f"No such file: {path} (--instances).")
    return os.pathsep.join(map(str, found))


def evaluator(
    problem: Problem, settings: Settings, split: str = "train", size: int | None = None, compile: str = "auto"
) -> Evaluator:
    """An evaluator with the run's limits; on other splits the time limit is the problem's.

    The search set is the train split, or the run's instance files.
    """
    files = split_files(settings.instances) if split == "train" else []
    return Evaluator(
        problem, split=split, size=size, instances=read_files(problem, files) if files else None, seed=settings.seed,
        workers=settings.workers or None, timeout=(settings.eval_timeout or None) if split == "train" else None,
        memory_mb=settings.memory_mb, compile=compile, sandbox=settings.sandbox,
    )  # fmt: skip
