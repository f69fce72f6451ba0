"""Driving a program over the instances of a set, compiled where that is faster: in the sandboxed child.

Python is what a program means. The first instances always run in Python and are timed; if the others would take much
longer than compiling does, the program and the whole loop around it are compiled (numba), tried on the instances whose
answers are known, and used for the rest. Whatever goes wrong on the way (a program that cannot be typed, another
answer, an exception in compiled code) leads back to Python, for that instance and all after it.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import event
from numba.core.dispatcher import Dispatcher

from ttc_esopt.evaluation.compilable import FILE, NotCompilable, prepare
from ttc_esopt.problems.base import Problem

COMPILING, COMPILED = b"~", b"."
FEWEST = 3  # instances to be run in Python first: their answers are what compiled code is held against
LEAST_SECONDS = 0.05  # of Python to be timed: a few milliseconds say little on a busy machine
# Compiling a typical heuristic with its loop takes 1 to 2.5 s of one core. Below twice that there is little to win.
WORTH_SECONDS = 5.0
# Compiling ends unfinished after this share of what Python would take (at least half of WORTH_SECONDS): some numpy
# functions take ten seconds to compile, and a program must not become slower by trying.
PATIENCE = 0.25
_UNSAFE = frozenset({operator.pow, operator.ipow, operator.lshift, operator.ilshift})


def drive(
    problem: Problem,
    function: Callable[..., Any],
    code: str,
    instances: Sequence[Any],
    seed_instance: Callable[[int], None],
    mode: str = "auto",
    announce: Callable[[bytes], None] = lambda _: None,
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Run a program on every instance.

    Parameters
    ----------
    problem : whose program it is
    function : what the program defined
    code : the program's source, which is compiled
    instances : of the problem
    seed_instance : called with an instance's number before a program that may draw random numbers runs on it
    mode : `auto`, `never` (all in Python) or `always` (compiled from the second instance on, whatever it costs)
    announce : called with COMPILING before a program is compiled and with COMPILED after it, so that whoever watches
        can end what does not come back from the compiler

    Returns
    -------
    (outputs, info): what `problem.run` returns for each instance, and {"path": "compiled" (at least one instance whose
    answer came from compiled code) or "python", "compile_seconds": seconds}

    Raises
    ------
    Whatever the program raises in Python.
    """
    clock = time.perf_counter
    outputs: list[np.ndarray] = []
    info: dict[str, Any] = {"path": "python", "compile_seconds": 0.0}
    undecided = mode != "never"
    elapsed = 0.0
    while (index := len(outputs)) < len(instances):
        if undecided and _enough(mode, index, elapsed):
            rest = elapsed / index * (len(instances) - index)
            if mode == "always" or rest > WORTH_SECONDS:
                undecided = False
                began = clock()
                patience = None if mode == "always" else max(WORTH_SECONDS / 2, PATIENCE * rest)
                announce(COMPILING)
                run = _compile(problem, code, instances[:index], outputs, elapsed, patience)
                announce(COMPILED)
                info["compile_seconds"] = clock() - began
                if run is not None:
                    found = _run_compiled(run, instances[index:])
                    outputs += found
                    info["path"] = "compiled" if found else "python"
                    continue
        seed_instance(index)
        began = clock()
        outputs.append(problem.run(function, instances[index]))
        elapsed += clock() - began
    return outputs, info


def _enough(mode: str, count: int, elapsed: float) -> bool:
    return count >= 1 if mode == "always" else count >= FEWEST and elapsed >= LEAST_SECONDS


def _run_compiled(run: Callable[[Any], np.ndarray], instances: Sequence[Any]) -> list[np.ndarray]:
    """Answers up to the first instance on which compiled code raises."""
    outputs = []
    for instance in instances:
        try:
            outputs.append(run(instance))
        except Exception:  # Python decides what this instance comes to, and all after it
            break
    return outputs


def _compile(
    problem: Problem,
    code: str,
    known: Sequence[Any],
    answers: Sequence[np.ndarray],
    python_seconds: float,
    patience: float | None,
) -> Callable[[Any], np.ndarray] | None:
    """A compiled `run` that gives the known answers and is faster than Python; None if there is none."""
    clock = time.perf_counter
    try:
        namespace, growing = prepare(code, problem.gives_numpy)
        dispatchers = _compile_functions(namespace)
        function = problem.find(namespace)
        if not isinstance(function, Dispatcher):
            return None
        with event.install_listener("numba:run_pass", _Deadline(patience)):
            run = problem.compiled(function)
            if run is None or any(_may_overflow(dispatcher, growing) for dispatcher in dispatchers):
                return None
            run(known[0])  # compiles the loop
        began = clock()
        same = all(_equal(run(instance), answer) for instance, answer in zip(known, answers, strict=True))
        worth = patience is None or clock() - began < python_seconds
        return run if same and worth else None
    except (NotCompilable, _OutOfPatience):
        return None
    except Exception:  # numba raises about everything
        return None


def _compile_functions(namespace: dict[str, Any]) -> list[Dispatcher]:
    """Replace the program's functions by dispatchers, which compile once they are called."""
    compiled = njit(boundscheck=True, error_model="python")
    dispatchers = []
    for name, value in list(namespace.items()):
        if isinstance(value, FunctionType) and value.__code__.co_filename == FILE:
            namespace[name] = compiled(value)
            dispatchers.append(namespace[name])
    return dispatchers


def _equal(output: np.ndarray, answer: np.ndarray) -> bool:
    return output.dtype == answer.dtype and np.array_equal(output, answer)


def _may_overflow(dispatcher: Dispatcher, growing: frozenset[str]) -> bool:
    """Whether integers that Python would let grow are computed in 64 bits."""
    for result in dispatcher.overloads.values():
        annotation = result.type_annotation
        for expression, signature in annotation.calltypes.items():
            is_operation = getattr(expression, "op", None) in ("binop", "inplace_binop")
            if is_operation and expression.fn in _UNSAFE and isinstance(signature.return_type, types.Integer):
                return True
        for name, kind in annotation.typemap.items():
            if name.partition(".")[0] in growing and isinstance(kind, types.Integer):
                return True
    return False


class _OutOfPatience(BaseException):  # no Exception: numba swallows those while it tries overloads
    pass


class _Deadline(event.Listener):
    """Ends a compilation that takes too long, between two of numba's passes."""

    def __init__(self, patience: float | None) -> None:
        self.end = None if patience is None else time.perf_counter() + patience

    def on_start(self, event: event.Event) -> None:
        if self.end is not None and time.perf_counter() > self.end:
            raise _OutOfPatience

    def on_end(self, event: event.Event) -> None:
        pass
