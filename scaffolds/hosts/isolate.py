"""Evaluating model-written programs with the host's own problem, each in a process that can do no harm.

Hosts evaluate in processes that start slowly, ask politely to stop, and may do what their user may. Here the host's
process is forked, so that the problem is there as the user built it; what the program may do is taken away in the fork;
and whatever it does, the fork and all that it started are gone at the end. How: `watched` and `candidate`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttc_esopt.evaluation import landlock, sandbox, seccomp
from ttc_esopt.scaffolds.hosts import watched
from ttc_esopt.scaffolds.hosts.client import HostError

MODES = ("auto", "required", "limits", "off")
_GRACE = 15.0  # seconds after the timeout in which a watcher must have answered
_STOP_SECONDS = 8.0  # for a watcher to end everything when the host wants no more answers
_NEEDED = ("seccomp", "landlock")  # what shuts a program in; without a zygote there is no place for bubblewrap
_FORKING = threading.Lock()  # or a fork of one thread would hold the sockets of another


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes
    ----------
    value : the number that the host's problem returned, None if there is none
    failure : None, or one of `candidate.FAILURES`
    detail : why, up to about 2,000 characters
    seconds : by the clock on the wall
    """

    value: int | float | None
    failure: str | None
    detail: str
    seconds: float


@dataclass(frozen=True)
class Isolation:
    """How programs are shut in.

    Attributes
    ----------
    mode : "auto" (what the kernel offers), "required" (all of it, or no evaluation), "limits" (only those on memory,
        processor time and output), "off" (only ended at the timeout, with all that they started)
    memory_mb : what one program may use beyond the host's own
    read : folders and files that stay readable, beside the system's, Python's modules, the current folder, the
        script's and that of the problem's module
    """

    mode: str = "auto"
    memory_mb: int = 2048
    read: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise HostError(f"Expected one of {', '.join(MODES)}, got {self.mode!r} (--sandbox).")
        if self.memory_mb < 1:
            raise HostError(f"Expected at least 1 MiB of memory for a program, got {self.memory_mb} (--memory-mb).")


def evaluate(
    function: Callable[[str], Any],
    codes: Sequence[str],
    *,
    timeout: float | None,
    processes: int | None,
    isolation: Isolation,
) -> list[Outcome]:
    """Call `function(code)` for every code, each in a forked process; the outcomes are in the order of the codes.

    Parameters
    ----------
    function : the host's evaluation: a number, or None for an invalid program
    timeout : seconds for one program; None for no limit
    processes : how many at once; -1 for all processors

    Raises
    ------
    HostError
        The sandbox that is required is not to be had, or processes cannot be started.
    """
    if not codes:
        return []
    layers, limits = _layers(isolation), None
    if isolation.mode != "off":
        # The clock on the wall decides; processor time (of all threads) only matters should the watcher hang.
        cpu = (math.ceil(timeout) if timeout is not None else 10**7) * (os.cpu_count() or 1) + 10
        limits = sandbox.Limits(memory=isolation.memory_mb << 20, cpu_seconds=cpu)
    read = tuple(_readable(function, isolation.read)) if "landlock" in layers else ()
    # Done once here, then shared by all children: the filter's program, and numpy's lazy import of what is seeded.
    if "seccomp" in layers:
        seccomp.program(0, allow_writing="landlock" in layers)
    getattr(sys.modules.get("numpy"), "random", None)
    base = tempfile.mkdtemp(prefix="ttc-esopt-")
    try:
        tasks = [
            watched.Task(function, code, timeout, layers, limits, read, os.path.join(base, str(n)), _current())
            for n, code in enumerate(codes)
        ]
        return [Outcome(**answer) for answer in _run(tasks, _at_once(processes))]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def settle(
    function: Callable[[str], Any], template_code: str | None, isolation: Isolation, timeout: float | None
) -> tuple[Isolation, str | None]:
    """Find a sandbox in which the problem itself works, by evaluating its own template.

    The template is tried without a sandbox too, and so must be the user's: a model's program could open the sandbox.

    Returns
    -------
    tuple of Isolation and str or None
        The one asked for, or in mode "auto" the strongest that works; and a sentence for the user where that is less
        than everything, or where the template fails with and without a sandbox.

    Raises
    ------
    HostError
        A sandbox is required, and is not to be had or the problem does not work in it.
    """
    notice = _weakness(_layers(isolation)) if isolation.mode == "auto" else None
    if template_code is None or isolation.mode == "off":
        return isolation, notice

    def attempt(how: Isolation) -> Outcome:
        return evaluate(function, [template_code], timeout=timeout, processes=1, isolation=how)[0]

    first = attempt(isolation)
    if first.failure is None:
        return isolation, notice
    why = f"{first.failure}: {_last_line(first.detail)}"
    for mode in MODES[MODES.index("limits") :]:
        weaker = replace(isolation, mode=mode)
        if isolation.mode == mode or attempt(weaker).failure is not None:
            continue
        if isolation.mode == "required":
            raise HostError(
                f"Expected the problem's own template to work in the sandbox (--sandbox required), but it does so only "
                f"without ({why}). Name the folders that it reads, or choose --sandbox auto."
            )
        kept = "limits on memory, time and output" if mode == "limits" else "a limit on time"
        return weaker, (
            f"The problem's own template does not work in the sandbox ({why}), so model-written programs run with your "
            f"rights and only {kept}."
        )
    return isolation, f"The problem's own template fails, with and without the sandbox ({why})."


def _last_line(detail: str) -> str:
    return detail.strip().rpartition("\n")[2][:300]


def _at_once(processes: int | None) -> int:
    everything = len(os.sched_getaffinity(0))
    return everything if processes is not None and processes < 0 else max(1, processes or 1)


def _current() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has removed it
        return None


# What the kernel offers


@functools.cache
def _offered() -> frozenset[str]:
    """The layers that work here, tried in a fork: this process may have threads, which such trials do not stand."""
    count = len(sandbox.KERNEL_LAYERS)
    with tempfile.TemporaryDirectory(prefix="ttc-esopt-") as base:

        def bits(_: str) -> int:
            found = sandbox.kernel_layers()
            return sum(1 << k for k in range(count) if sandbox.KERNEL_LAYERS[k] in found)

        task = watched.Task(bits, "", 60.0, (), None, (), os.path.join(base, "0"), None)
        value = next(iter(_run([task], 1)))["value"]
    return frozenset(layer for k, layer in enumerate(sandbox.KERNEL_LAYERS) if int(value or 0) >> k & 1)


def _layers(isolation: Isolation) -> tuple[str, ...]:
    if isolation.mode in ("limits", "off"):
        return ()
    works = tuple(layer for layer in _NEEDED if layer in _offered())
    if isolation.mode == "required" and works != _NEEDED:
        raise HostError(
            f"Expected a full sandbox (--sandbox required), but {_lacking(works)}. --sandbox auto does without."
        )
    return works


def _lacking(works: Sequence[str]) -> str:
    names = {
        "seccomp": "system-call filters (seccomp, on x86-64 or AArch64)",
        "landlock": "Landlock (Linux 5.13 or later with landlock in its lsm= list)",
    }
    return "this machine has no " + " and no ".join(names[layer] for layer in _NEEDED if layer not in works)


def _weakness(works: Sequence[str]) -> str | None:
    if set(_NEEDED) <= set(works):
        return None
    if "seccomp" in works:
        can = "read your files"
    else:
        can = "reach the network" if "landlock" in works else "read and change your files and reach the network"
    return f"Model-written programs can {can}: {_lacking(works)}."


# What a program may read


def _readable(function: Callable[..., Any], extra: Sequence[str]) -> list[str]:
    """The system's and Python's folders, and those from which the host's problem may still read modules and data."""
    folders = [_current(), os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else None]
    folders += _module_folders(function)
    opened = [path for folder in dict.fromkeys(filter(None, folders)) for path in _harmless(folder)]
    return [*landlock.readable(), *opened, *map(os.path.expanduser, extra)]


def _module_folders(function: Any) -> list[str]:
    """Where the modules lie that define the function, its object's classes, or what it wraps."""
    names: set[str] = set()
    while function is not None:
        names.add(getattr(function, "__module__", None) or "")
        owner = getattr(function, "__self__", None)
        names.update(kind.__module__ for kind in type(owner).__mro__)
        function = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    return [os.path.dirname(os.path.abspath(file)) for file in files if file]


def _harmless(folder: str) -> list[str]:
    """The folder; only the open files in it if it is or holds the user's home, where keys and letters lie."""
    if not landlock.home().is_relative_to(Path(folder).resolve()):
        return [folder]
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    return []


# Starting, hearing and ending watchers


class _Watcher:
    """A watcher's process, from its fork to its answer."""

    def __init__(self, task: watched.Task) -> None:
        _allow_forks()
        host = os.getpid()
        with _FORKING:
            self.link, theirs = socket.socketpair()
            # Ctrl-C between the fork and the new session would end the watcher with the host's own handler.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
            try:
                self.pid = os.fork()
                if self.pid == 0:
                    watched.be_watcher(host, theirs.fileno(), mask, task)
            except OSError as error:
                self.link.close()
                raise HostError(f"A process for an evaluation cannot be started: {error}", 1) from None
            finally:
                theirs.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.link.setblocking(False)
        self.heard = bytearray()
        self.deadline = math.inf if task.timeout is None else time.monotonic() + task.timeout + _GRACE
        self.timeout = task.timeout

    def answer(self) -> dict[str, Any] | None:
        """What became of the task, once that is known."""
        over = False
        try:
            while not over:
                data = self.link.recv(1 << 16)
                self.heard += data
                over = not data
        except BlockingIOError:
            pass
        except OSError:
            over = True
        if len(self.heard) >= 4:
            size = struct.unpack_from("=I", self.heard)[0]
            if len(self.heard) >= 4 + size:
                return json.loads(bytes(self.heard[4 : 4 + size]))
        if over:
            return {"value": None, "failure": "crash", "detail": "ended its own watcher", "seconds": 0.0}
        if time.monotonic() > self.deadline:
            detail = f"still running after {self.timeout:g} s"
            return {"value": None, "failure": "timeout", "detail": detail, "seconds": self.timeout + _GRACE}
        return None

    def stop(self) -> None:
        """Have the watcher end everything, wait for that, and see to its own end."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_WR)  # others may hold this end too; this reaches the watcher all the same
        give_up = time.monotonic() + _STOP_SECONDS
        with contextlib.suppress(ChildProcessError):  # a host that waits for any process has done it already
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > give_up:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    break
                time.sleep(0.001)
        self.link.close()


def _run(tasks: Sequence[watched.Task], at_once: int) -> list[dict[str, Any]]:
    """The answers to all tasks, of which at most `at_once` run at a time."""
    answers: list[Any] = [None] * len(tasks)
    running: dict[int, _Watcher] = {}
    waiting = iter(range(len(tasks)))
    try:
        while True:
            while len(running) < at_once and (n := next(waiting, None)) is not None:
                running[n] = _Watcher(tasks[n])
            if not running:
                return answers
            poll = select.poll()
            for watcher in running.values():
                poll.register(watcher.link, select.POLLIN)
            poll.poll(200)
            for n, watcher in list(running.items()):
                answer = watcher.answer()
                if answer is None:
                    continue
                del running[n]
                watcher.stop()
                if "fault" in answer:
                    raise HostError(f"An evaluation could not begin: {answer['fault']} (see --sandbox).", 1)
                answers[n] = answer
    finally:
        for watcher in running.values():
            watcher.stop()


@functools.cache
def _allow_forks() -> None:
    # Python 3.12 and later warn about forks of processes with threads; what the fork does then is safe by design:
    # it touches none of the host's locks (loggers lose their handlers, streams are new).
    warnings.filterwarnings("ignore", message=r".*use of fork\(\) may lead to deadlocks", category=DeprecationWarning)
