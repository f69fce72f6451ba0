"""The forked child: compile one program, drive it over all instances, send what it returned.

From the first line of the program on nothing in this process can be trusted, this module included. What leaves it is
checked by the parent; what is decided here (a failure's word and detail) can only harm the program itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ttc_esopt.evaluation.frames import encode, encode_failure
from ttc_esopt.problems.base import Problem, Rejected

FILE = "<heuristic>"
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


def answer(problem: Problem, instances: Sequence[Any], code: str, seed: int) -> bytes:
    """Execute a program and drive it over the instances; returns the frame to send, whatever happens."""
    warnings.simplefilter("ignore")
    try:
        return _answer(problem, instances, code, seed)
    except MemoryError:  # of the program, or while its error was being described
        return _OUT_OF_MEMORY


def _answer(problem: Problem, instances: Sequence[Any], code: str, seed: int) -> bytes:
    try:
        return encode(_outputs(problem, instances, code, seed))
    except MemoryError:
        raise
    except _Failure as failure:
        return encode_failure(failure.word, failure.detail)
    except Rejected as rejected:
        return encode_failure(rejected.failure, str(rejected))
    except Exception as error:
        return encode_failure("exception", _describe(error))
    except BaseException as error:  # SystemExit, KeyboardInterrupt: the program wanted to end
        return encode_failure("crash", _describe(error))


class _Failure(Exception):
    def __init__(self, word: str, detail: str) -> None:
        super().__init__(word, detail)
        self.word, self.detail = word, detail


def _outputs(problem: Problem, instances: Sequence[Any], code: str, seed: int) -> list[np.ndarray]:
    # A second reference: the program may rebind what it finds in the modules.
    seed_again = seed_everything
    seed_again(code, -1, seed)
    try:
        compiled = compile(code, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _Failure("syntax", _describe(error)) from None
    module = types.ModuleType(FILE)
    sys.modules[FILE] = module  # dataclasses and typing look a class's module up
    exec(compiled, module.__dict__)
    function = module.__dict__.get(problem.function)
    if not callable(function):
        what = "defined, but no function" if problem.function in module.__dict__ else "not defined"
        raise _Failure("name", f"{problem.function} is {what}")
    outputs = []
    for index, instance in enumerate(instances):
        seed_again(code, index, seed)
        outputs.append(problem.run(function, instance))
    return outputs


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
    text = f"{type(error).__name__}: {message[:400]}" if message else type(error).__name__
    return f"{text} (line {line})" if line is not None else text


def send(descriptor: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
