"""The process in which a host's evaluation meets one model-written program: what it sheds first, and how it answers.

It is forked, so the host's problem is there as the user built it: nothing is pickled, and the user's script is not
run again. For the same reason it begins with all that the host has (descriptors, signal handlers, keys in the
environment), which is taken away before the program is looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import gc
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ttc_esopt.evaluation import sandbox
from ttc_esopt.scaffolds.hosts.client import forget_engines

if TYPE_CHECKING:
    from ttc_esopt.scaffolds.hosts.watched import Task

# What an evaluation can come to; "name" and "reply" are the parser's, "infeasible" needs a problem of ours.
FAILURES = {
    "syntax", "exception", "timeout", "memory", "crash", "output", "forbidden", "nonfinite", "shape",
}  # fmt: skip
LONGEST_DETAIL = 2_000
_DESCRIPTORS = 64  # that a confined candidate may open beyond those that are there
_SECRET = re.compile(r"^TTC_ESOPT_|KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_NEAR = 4  # calls between ours and the frame in which a host swallows an exception


def move_up(descriptor: int) -> int:
    """The same file under a number that is none of the standard streams'."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def forget_signals(mask: set[int]) -> None:
    """Ignore what a terminal or a job scheduler sends to all; put back the defaults where the host had handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # A host that ignores the ends of its children would leave none to be waited for here, either.
        if callable(signal.getsignal(number)) or number == signal.SIGCHLD:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def forget_descriptors(kept: set[int]) -> int:
    """Let go of every open file but those, which are above 2; returns the highest number in use.

    The numbers stay in use, for /dev/null: a log file's object of the host that still writes to its number must not
    meet a file that was opened later under the same one.
    """
    empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        numbers = set(range(4096))
    highest = 2
    for number in sorted({0, 1, 2, *numbers} - kept - {empty}):
        if number > 2:
            try:
                os.fstat(number)
            except OSError:  # the listing's own
                continue
        os.dup2(empty, number, inheritable=number <= 2)
        highest = max(highest, number)
    if empty > 2:
        os.close(empty)
    return max(highest, *kept)


def be_candidate(watcher: int, result: int, errors: int, task: Task) -> NoReturn:
    """Confine this process (just forked from the process `watcher`), evaluate, answer on the pipe `result`, and end."""

    def send(what: dict[str, Any]) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(result, data) :]

    status, own = 1, os.getpid()
    try:
        gc.freeze()  # collecting what the host made would copy its pages, and might close files by their old numbers
        result, errors = move_up(result), move_up(errors)
        highest = forget_descriptors({result, errors})
        os.dup2(errors, 2)
        os.close(errors)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = open(number, "w" if number else "r", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        _forget_secrets()
        forget_engines()
        try:
            _confine(watcher, task, highest)
        except Exception as error:
            send({"fault": f"the sandbox cannot be set up: {type(error).__name__}: {error}"})
            return
        send({"ready": True})
        logged: list[BaseException] = []
        _overhear(logged)
        verdict = _evaluate(task)
        if os.getpid() != own:  # a fork that the program made, on its way back
            return
        if verdict.get("silent") and _compile_fault(task.code):
            verdict = {"failure": "syntax", "detail": _compile_fault(task.code)}
        send(verdict)
        # Evaluated again to see what the host swallowed, but only where that can change nothing.
        if verdict.get("silent") and (found := logged or (_swallowed(task) if task.layers else [])):
            send({"detail": _text(found[-1]), "failure": "memory" if isinstance(found[-1], MemoryError) else None})
        status = 0
    except MemoryError:  # so little is left that not even the reason can be written down
        os.write(result, b'{"failure": "memory", "detail": "MemoryError"}\n')
    finally:
        os._exit(status)


def _confine(watcher: int, task: Task, highest: int) -> None:
    if task.limits is None:
        sandbox.detach(watcher)
        return
    limits = dataclasses.replace(task.limits, descriptors=highest + 1 + _DESCRIPTORS)
    sandbox.enter(watcher, task.scratch, limits, task.layers, task.read, folder=task.folder)
    tempfile.tempdir = None  # the host may have asked before; TMPDIR is another one now


def is_secret(name: str) -> bool:
    """Whether a variable of the environment is none of a program's business."""
    return _SECRET.search(name) is not None


def _forget_secrets() -> None:
    """Take the host's keys out of the environment, and out of /proc/self/environ, which shows it as it was."""
    secret = [name for name in os.environ if is_secret(name)]
    for name in secret:
        del os.environ[name]
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[47:49])  # env_start, env_end
        if not secret or not 0 < start < end:
            return
        block = ctypes.string_at(start, end - start)
        for name in secret:
            found = re.search(rb"(?:\A|\0)" + re.escape(os.fsencode(name)) + rb"=([^\0]*)", block)
            if found:
                ctypes.memset(start + found.start(1), ord("x"), len(found.group(1)))


def _seed(code: str) -> None:
    """The same random numbers in every evaluation of the same program."""
    digest = hashlib.blake2b(code.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    random.seed(seed)
    if numbers := getattr(sys.modules.get("numpy"), "random", None):
        numbers.seed(seed & 0xFFFFFFFF)


def _evaluate(task: Task) -> dict[str, Any]:
    _seed(task.code)
    try:
        value = task.function(task.code)
    except MemoryError as error:
        return {"failure": "memory", "detail": _text(error)}
    except Exception as error:
        failure = "syntax" if isinstance(error, SyntaxError) and _compile_fault(task.code) else "exception"
        return {"failure": failure, "detail": _text(error)}
    except BaseException as error:  # SystemExit, KeyboardInterrupt and what a program makes of BaseException
        return {"failure": "crash", "detail": _text(error)}
    if value is None:
        return {"failure": "exception", "detail": "the problem's evaluate returned None", "silent": True}
    try:
        return {"value": _number(value)}
    except Exception:
        return {"failure": "shape", "detail": f"evaluate returned {type(value).__name__}, not a number"}


def _number(value: Any) -> int | float:
    """A plain number from a number of any kind, also numpy's and arrays that hold one."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        # larger ones lose nothing that an objective needs, and "infinite" is the truth about what no float holds
        return int(value) if abs(value) < 1 << 63 else _float(value)
    return float(value)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _text(error: BaseException) -> str:
    """The end of an exception's traceback; its own text may be anything, even another exception."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
        return text[-LONGEST_DETAIL:].encode("utf-8", "replace").decode()
    except BaseException:
        return type(error).__name__


def _compile_fault(code: str) -> str:
    """Why the code is no Python, or "". Asked only after a failure: what a host evaluates need not be Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<string>", "exec")
    except SyntaxError as error:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return ""
    return ""


def _overhear(logged: list[BaseException]) -> None:
    """Note the last of the exceptions that are logged, at whatever level and whether or not the log shows them.

    The host's handlers are gone: they would write into files that are closed, under locks that another thread of the
    host may have held at the fork.
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if hasattr(logger, "handlers"):
            logger.handlers = []

    def listening(original: Callable[..., None]) -> Callable[..., None]:
        def log(self: Any, *arguments: Any, **options: Any) -> None:
            if options.get("exc_info") and (error := sys.exc_info()[1]) is not None:
                logged[:] = [error]
            original(self, *arguments, **options)

        return log

    for name in ("debug", "info", "warning", "error", "critical", "log"):
        setattr(logging.Logger, name, listening(getattr(logging.Logger, name)))


def _swallowed(task: Task) -> list[BaseException]:
    """Evaluate once more; the last exception that reached one of the outermost frames, if any."""
    here = sys._getframe()
    seen: list[BaseException] = []

    def near(frame: FrameType | None) -> bool:
        for _ in range(_NEAR):
            frame = frame.f_back if frame is not None else None
            if frame is here:
                return True
        return False

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and not issubclass(argument[0], (StopIteration, GeneratorExit)):
            error = argument[1] if isinstance(argument[1], BaseException) else argument[0](argument[1])
            seen[:] = [error.with_traceback(argument[2])]
        return note

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not near(frame):
            return None
        frame.f_trace_lines = False
        return note

    _seed(task.code)
    sys.settrace(trace)
    try:
        with contextlib.suppress(BaseException):
            task.function(task.code)
    finally:
        sys.settrace(None)
    return seen
