"""The forked child: compile one program, drive it over all instances, send what it returned.

From the first line of the program on nothing in this process can be trusted, this module included. What leaves it is
checked by the parent; what is decided here (a failure's word and detail) can only harm the program itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttc_esopt.evaluation.compilable import FILE
from ttc_esopt.evaluation.compiled import drive
from ttc_esopt.evaluation.frames import Failure, encode, encode_failure
from ttc_esopt.problems.base import Problem, Rejected

_OUT_OF_MEMORY = encode_failure("memory", "MemoryError: the memory limit was reached")  # made while there is memory


def seed_everything(code: str, index: int, seed: int) -> None:
    """Seed `random`, `np.random`, unseeded numpy generators and numba by (program, instance, seed).

    `index` is the number of the instance, -1 while the module is being executed.
    """
    text = f"{seed}/{index}/".encode() + code.encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    words = [number >> 32 * k & 0xFFFFFFFF for k in range(4)]
    random.seed(number ^ 2)  # another stream than np.random's, which is the same generator
    np.random.seed(words)
    # np.random.default_rng() and its like ask this function for entropy: a stream apart from `random`'s own.
    np.random.bit_generator.randbits = random.Random(number ^ 1).getrandbits
    # Compiled code has generators of its own (numba, one pair per thread); the names are private and may go away.
    with contextlib.suppress(ImportError, AttributeError):
        from numba import _helperlib

        _helperlib.rnd_seed(_helperlib.rnd_get_np_state_ptr(), words[0])
        _helperlib.rnd_seed(_helperlib.rnd_get_py_state_ptr(), words[1])


@dataclass(frozen=True)
class Task:
    """What to drive a program over, and how.

    Attributes
    ----------
    instances : of the problem
    first : number of the first of them in the whole set
    seed : of the random numbers that the program sees
    compile : auto, never or always
    lenient : whether an instance that fails leaves the others alone
    announce : told when compiling begins and ends
    """

    instances: Sequence[Any]
    first: int
    seed: int
    compile: str = "auto"
    lenient: bool = False
    announce: Callable[[bytes], None] = lambda _: None


def answer(problem: Problem, task: Task, code: str) -> list[bytes | memoryview]:
    """Execute a program and drive it over the instances; returns the frame to send, in pieces, whatever happens."""
    warnings.simplefilter("ignore")
    try:
        return _answer(problem, task, code)
    except MemoryError:  # of the program, or while its error was being described
        return [_OUT_OF_MEMORY]


def _answer(problem: Problem, task: Task, code: str) -> list[bytes | memoryview]:
    try:
        return _outputs(problem, task, code)
    except MemoryError:
        raise
    except BaseException as error:
        failure = _failure_of(error)
        return [encode_failure(failure.word, failure.detail)]


class _Failed(Exception):
    def __init__(self, word: str, detail: str) -> None:
        super().__init__(word, detail)
        self.failure = Failure(word, detail)


def _failure_of(error: BaseException) -> Failure:
    if isinstance(error, _Failed):
        return error.failure
    if isinstance(error, Rejected):
        return Failure(error.failure, str(error))
    if isinstance(error, Exception):
        return Failure("exception", _describe(error))
    return Failure("crash", _describe(error))  # SystemExit, KeyboardInterrupt: the program wanted to end


def _outputs(problem: Problem, task: Task, code: str) -> list[bytes | memoryview]:
    seed_again = seed_everything  # a second reference: the program may rebind what it finds in the modules
    seed_again(code, -1, task.seed)
    function = _function(problem, code)

    def seed_instance(index: int) -> None:
        seed_again(code, task.first + index, task.seed)

    if task.lenient:
        return encode([_lenient(problem, function, one, seed_instance, k) for k, one in enumerate(task.instances)])
    outputs, info = drive(problem, function, code, task.instances, seed_instance, task.compile, task.announce)
    return encode(outputs, compile_seconds=info["compile_seconds"] if info["path"] == "compiled" else None)


def _lenient(
    problem: Problem, function: Callable[..., Any], instance: Any, seed_instance: Callable[[int], None], index: int
) -> np.ndarray | Failure:
    seed_instance(index)
    try:
        return problem.run(function, instance)
    except MemoryError:
        raise
    except Exception as error:
        return _failure_of(error)


def _function(problem: Problem, code: str) -> Callable[..., Any]:
    """Execute the program's module; returns the function that it was to define."""
    try:
        text, names = problem.prepare(code)
        compiled = compile(text, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _Failed("syntax", _describe(error)) from None
    module = types.ModuleType(FILE)
    sys.modules[FILE] = module  # dataclasses and typing look a class's module up
    module.__dict__.update(names)
    exec(compiled, module.__dict__)
    function = problem.find(module.__dict__)
    if not callable(function):
        what = "defined, but no function" if problem.function in module.__dict__ else "not defined"
        raise _Failed("name", f"{problem.function} is {what}")
    return function


def _describe(error: BaseException) -> str:
    """Type, message and line number in the program; survives errors that cannot be printed."""
    try:
        message = str(error)
    except BaseException:
        message = "(its message cannot be printed)"
    if isinstance(error, SyntaxError):
        message, line = str(error.msg), error.lineno
    else:
        line, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILE:
                line = trace.tb_lineno
            trace = trace.tb_next
    # where packages lie differs between machines, and the same run is to leave the same bytes
    message = re.sub(r"/[^\s'\"()]*/((?:site|dist)-packages|python3\.\d+)/", r"\1/", message[:2000])
    text = f"{type(error).__name__}: {message[:400]}" if message else type(error).__name__
    return f"{text} (line {line})" if line is not None else text


def send(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
