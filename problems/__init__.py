"""The problems by name; `load` also takes a user's own class as FILE.py:CLASS."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.problems import hosts
from ttc_esopt.problems.base import (
    Infeasible,
    NonFinite,
    Problem,
    Rejected,
    Score,
    Seed,
    SelfScored,
    WrongShape,
    closest,
    describe,
    own_code,
)

__all__ = [
    "Infeasible", "NonFinite", "Problem", "Rejected", "Score", "Seed", "SelfScored", "WrongShape", "load",
    "mean_references", "names",
]  # fmt: skip

_BUILT_IN = {
    "tsp_construct": "ttc_esopt.problems.tsp_construct:TspConstruct",
    "kp_construct": "ttc_esopt.problems.kp_construct:KpConstruct",
    "asp_construct": "ttc_esopt.problems.asp_construct:AspConstruct",
    "tsp_aco": "ttc_esopt.problems.tsp_aco:TspAco",
    "cvrp_aco": "ttc_esopt.problems.cvrp_aco:CvrpAco",
    "bpp_aco": "ttc_esopt.problems.bpp_aco:BppAco",
}


_NEEDED = ("name", "function", "splits", "counts")


def names() -> list[str]:
    """Names of the problems that come with the package."""
    return list(_BUILT_IN)


def load(name: str, *, data: str | Path | None = None, problem_args: str = "", **options: str) -> Problem:
    """The problem of that name, of a class named as FILE.py:CLASS or MODULE:CLASS, or of a problem folder of ReEvo.

    `options` are those of `Problem.options` (protocol, mode), `data` a folder of published instance sets. The class may
    be one of another framework (see `ttc_esopt.problems.hosts`), made with `problem_args`, such as "timeout=60".

    Raises
    ------
    ConfigurationError
        There is no such problem, file, class, option or folder, or the class is no `Problem`.
    """
    if name not in _BUILT_IN and hosts.is_host(name) and (found := hosts.open_host(name, problem_args)):
        found.configure(options, data)
        return found
    if problem_args:
        raise ConfigurationError(f"{name} is no problem of another framework and takes no arguments (--problem-arg).")
    place, colon, class_name = _BUILT_IN.get(name, name).rpartition(":")
    if not colon and name.endswith(".py"):
        raise ConfigurationError(f"Expected FILE.py:CLASS, got {name} without a class (--problem).")
    if not colon:
        known = ", ".join(names())
        raise ConfigurationError(f"Unknown problem {name!r} (--problem).{closest(name, names())} There are: {known}.")
    found = getattr(_module(place), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Problem)):
        raise ConfigurationError(f"Expected a class derived from ttc_esopt.problems.Problem, got {name!r} (--problem).")
    try:
        problem = found()
    except Exception as error:  # the user's own code
        raise ConfigurationError(f"{name} cannot be made: {describe(error)} (--problem).") from error
    missing = [attribute for attribute in _NEEDED if not hasattr(problem, attribute)]
    if missing:
        raise ConfigurationError(f"{name} lacks {', '.join(missing)} (--problem).")
    if problem.splits.keys() - problem.counts.keys() or not all(problem.splits.values()):
        raise ConfigurationError(f"{name}: expected a count and at least one size for every split (--problem).")
    if place.endswith(".py"):
        problem._spec = f"{Path(place).resolve()}:{class_name}"
    problem.configure(options, data)
    return problem


def mean_references(problem: Problem, instances: Sequence[Any]) -> dict[str, float]:
    """Objectives (minimised) of classical methods, name -> mean over the instances."""
    with own_code(f"{problem.name}.references()"):
        found = [problem.references(instance) for instance in instances]
    sign = -1.0 if problem.maximise else 1.0
    return {name: sign * fmean(one[name] for one in found) for name in (found[0] if found else {})}


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except Exception as error:  # no such module, or whatever its code raises
            raise ConfigurationError(f"Expected an importable module, got {place!r}: {error} (--problem).") from None
    path = Path(place).resolve()
    if not path.is_file():
        raise ConfigurationError(f"No such file: {place} (--problem FILE.py:CLASS).")
    name = f"ttc_esopt_problem_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        del sys.modules[name]
        raise ConfigurationError(f"{path} cannot be loaded: {type(error).__name__}: {error} (--problem).") from error
    return module
