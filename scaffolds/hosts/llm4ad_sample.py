"""One sample of LLM4AD's EoH: what is noted of it in its thread, and how its program is scored."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ttc_esopt.scaffolds.hosts.isolate import Outcome

Json = dict[str, Any]
_UNREAD = "LLM4AD found no description in braces on one line, or no function body, in the reply."


class Leave(BaseException):
    """Ends a sampler thread. No Exception: the host catches those and goes on."""


@dataclass
class Candidate:
    """One reply on its way through the host's thread."""

    reply: Json
    thought: str | None = None
    function: Any = None  # the host's object, which may come into the population
    program: str | None = None  # what was evaluated
    outcome: Outcome | None = None
    failure: str = "reply"  # if the host drops it before it is evaluated
    detail: str = _UNREAD


class Evaluations:
    """In place of the host's executor: a sampler thread evaluates its own program, when there is a free place."""

    def __init__(self, run: Any, executor: Any) -> None:
        self._run, self._executor = run, executor

    def submit(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(function, "__name__", "") != "evaluate_program_record_time":
            return self._executor.submit(function, *args, **kwargs)
        done: Future = Future()
        done.set_result(self._run.evaluate(args[0]))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def objective_of(eoh: Any, text: str) -> Any:
    """The negated score of a program, changed as the host changes it: numba, protected division, random seed."""
    evaluation = eoh._evaluator._evaluator
    text = eoh._evaluator._modify_program_code(text)
    function = None
    if getattr(evaluation, "exec_code", True):
        namespace: Json = {}
        exec(text, namespace)
        function = namespace[eoh._function_to_evolve_name]
    score = evaluation.evaluate_program(text, function)
    return None if score is None else 0 - score


def inside(eoh: Any, program: Any) -> Outcome:
    """The host's own evaluation in its process, for users who want no other."""
    start = time.monotonic()
    score = eoh._evaluator.evaluate_program(program)
    seconds = time.monotonic() - start
    if score is None:
        return Outcome(None, "exception", "the problem's evaluate_program returned None or raised", seconds)
    if not math.isfinite(score):
        return Outcome(None, "nonfinite", f"evaluate_program returned {score}", seconds)
    return Outcome(0 - float(score), None, "", seconds)


@functools.cache
def free_numpy_in_forks() -> None:
    """Free the lock of `np.random` in every child.

    LLM4AD's threads draw parents with it, and while one of them holds the lock another forks: no program of that fork
    could draw a number, or seed.
    """

    def free() -> None:
        numbers = getattr(sys.modules.get("numpy"), "random", None)
        with contextlib.suppress(AttributeError):
            numbers.mtrand._rand._bit_generator.lock._at_fork_reinit()

    os.register_at_fork(after_in_child=free)
