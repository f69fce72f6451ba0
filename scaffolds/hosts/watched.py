"""The two processes behind one evaluation for a host: a watcher forked from it, and the candidate's forked from that.

A watcher of its own per candidate, because only the parent of orphans can find and end what a candidate leaves behind,
and a host's process must neither adopt nor wait for processes that are not ours. The watcher runs no code of the
model, and looks at the candidate from outside: how long, how it ended, and at most a few bytes of what it says.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ttc_esopt.evaluation import sandbox
from ttc_esopt.evaluation.children import TOO_MUCH, end_group, end_orphans, ended_by, scratch_is_full
from ttc_esopt.scaffolds.hosts import candidate

LARGEST = 1 << 16  # bytes that a candidate's process may say; the number, and why there is none
_TAIL = 4_000  # bytes of standard error that are kept
_EXPLAIN_SECONDS = 1.0  # for ending, and for finding out why there is no number, after the verdict is there
_LOOK_SECONDS = 0.1  # between two looks at the scratch folder
_CLEAN_SECONDS = 5.0  # after which a flood of orphans is left alone

Json = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One evaluation: `limits` None means that the candidate is only watched and ended, not confined."""

    function: Callable[[str], Any]
    code: str
    timeout: float | None
    layers: tuple[str, ...]
    limits: sandbox.Limits | None
    read: tuple[str, ...]
    scratch: str
    folder: str | None


class _HostGone(Exception):
    """Nobody is left to answer to, or nobody wants the answer."""


def be_watcher(host: int, link: int, mask: set[int], task: Task) -> NoReturn:
    """Watch over `task` and answer on the socket `link`; for a process just forked from the process `host`.

    Parameters
    ----------
    mask : signals that were blocked in the host before it blocked more for the fork
    """
    try:
        link = candidate.move_up(link)
        os.setsid()  # Ctrl-C in the host's terminal is the host's affair
        candidate.forget_signals(mask)
        candidate.forget_descriptors({link})
        sandbox.adopt_orphans()
        os.mkdir(task.scratch, 0o700)
        try:
            answer = _Watch(host, link, task).run()
        except _HostGone:
            return
        except Exception as error:
            answer = {"fault": f"{type(error).__name__}: {error}"}
        finally:
            shutil.rmtree(task.scratch, ignore_errors=True)
            if os.getppid() != host:  # killed: it removes nothing any more, and the last watcher finds this one empty
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(task.scratch))
        data = json.dumps(answer).encode()
        data = struct.pack("=I", len(data)) + data
        while data:
            data = data[os.write(link, data) :]
    finally:
        os._exit(0)


@dataclass
class _Watch:
    host: int
    link: int
    task: Task
    said: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)
    cause: str | None = None
    detail: str = ""
    seconds: float | None = None

    def run(self) -> Json:
        result, result_in = os.pipe()
        errors, errors_in = os.pipe()
        start = time.monotonic()
        watcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            candidate.be_candidate(watcher, result_in, errors_in, self.task)
        os.close(result_in)
        os.close(errors_in)
        try:
            self._watch(pid, result, errors, start)
        finally:
            status, usage = end_group(pid)
            end_orphans(_CLEAN_SECONDS)
        if self.seconds is None:
            self.seconds = time.monotonic() - start
        answer = {"value": None, "failure": None, "detail": "", **self._judge(status, usage.ru_maxrss << 10)}
        detail = answer["detail"].encode("utf-8", "replace").decode()
        if len(detail) > candidate.LONGEST_DETAIL + 200:  # the end says most, and the beginning what it is about
            detail = f"{detail[:100]} … {detail[-candidate.LONGEST_DETAIL :]}"
        return {**answer, "detail": detail, "seconds": round(self.seconds, 6)}

    def _watch(self, pid: int, result: int, errors: int, start: float) -> None:
        """Drain the candidate's pipes until it ends, or until it has to be ended."""
        poll = select.poll()
        pipes = {result: self.said, errors: self.printed}
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        poll.register(self.link, select.POLLIN)
        handle = -1
        with contextlib.suppress(OSError, AttributeError):  # before Linux 5.3: ask again and again instead
            handle = os.pidfd_open(pid)
            poll.register(handle, select.POLLIN)
        deadline = math.inf if self.task.timeout is None else start + self.task.timeout
        looked = start
        while True:
            now = time.monotonic()
            if now >= deadline:
                if self.seconds is None:
                    self.cause, self.detail = "timeout", f"still running after {self.task.timeout:g} s"
                return
            if now - looked > _LOOK_SECONDS:
                looked = now
                if scratch_is_full(self.task.scratch):
                    self.cause, self.detail = "output", TOO_MUCH
                    return
            longest = 0.2 if handle >= 0 else 0.005
            ready = {descriptor for descriptor, _ in poll.poll(1000 * min(deadline - now, longest) + 1)}
            if self.link in ready or os.getppid() != self.host:
                raise _HostGone
            # Ended? Asked before the pipes are drained, so that nothing written before the end is missed.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            for descriptor in list(pipes):
                if (descriptor in ready or ended) and not _drain(descriptor, pipes[descriptor]):
                    poll.unregister(descriptor)
                    del pipes[descriptor]
            del self.printed[:-_TAIL]
            if len(self.said) > LARGEST:
                self.cause, self.detail = "output", f"sent more than {LARGEST >> 10} KiB as its result"
                return
            if self.seconds is None and self.said.count(b"\n") > 1:
                self.seconds = time.monotonic() - start
                deadline = min(deadline, time.monotonic() + _EXPLAIN_SECONDS)
            if ended:
                return

    def _judge(self, status: int, memory: int) -> Json:
        """The outcome: the cause known already, or what the candidate's process said, or how it ended."""
        if self.cause is not None:
            return {"failure": self.cause, "detail": self.detail}
        lines = [_read(line) for line in bytes(self.said).split(b"\n")[:-1]]
        if not lines or "fault" in lines[0]:
            return {"fault": lines[0]["fault"] if lines else f"its process ended with status {status}"}
        if len(lines) > 1:
            return _checked(lines[1], lines[2] if len(lines) > 2 else {}, self._traceback())
        tail = self.printed.decode("utf-8", "replace").strip()
        if os.WIFSIGNALED(status):
            return self._killed(os.WTERMSIG(status), memory, tail)
        return {"failure": "crash", "detail": f"ended itself with exit status {os.WEXITSTATUS(status)}\n{tail}".strip()}

    def _killed(self, number: int, memory: int, tail: str) -> Json:
        limit = self.task.limits.memory if self.task.limits else 2 << 30
        failure, detail = ended_by(number, memory, limit)
        if failure == "crash":
            failure = "memory" if number == signal.SIGABRT and "bad_alloc" in tail else "crash"
            detail = f"{detail}\n{tail}".strip()
        return {"failure": failure, "detail": detail}

    def _traceback(self) -> str:
        """The last traceback that the host or the candidate printed."""
        _, begin, rest = self.printed.decode("utf-8", "replace").rpartition("Traceback (most recent call last)")
        return (begin + rest).strip() if begin else ""


def _drain(descriptor: int, into: bytearray) -> bool:
    """Read what is there, a bounded part at a time; False at the end of the stream."""
    try:
        data = os.read(descriptor, LARGEST)
    except BlockingIOError:
        return True
    into += data
    return bool(data)


def _read(line: bytes) -> Json:
    """A line of the candidate's process, which may hold anything."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {"failure": "crash", "detail": "its result was no JSON: something else wrote to the result's pipe"}
    return said if isinstance(said, dict) else {"failure": "shape", "detail": "its result was no JSON object"}


def _checked(said: Json, more: Json, printed: str) -> Json:
    """What the candidate's process said, in the form that is promised to the host."""
    failure, detail = said.get("failure"), str(said.get("detail", ""))
    if failure is not None:
        if said.get("silent"):  # the host swallowed the reason
            found = str(more.get("detail") or printed)
            failure = more.get("failure") or failure
            detail = f"{detail}; the last exception inside it:\n{found}" if found else detail
        known = failure if failure in candidate.FAILURES else "exception"
        return {"failure": known, "detail": detail}
    value = said.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return {"failure": "shape", "detail": "its result was no number"}
    with contextlib.suppress(OverflowError):
        if math.isfinite(value):
            return {"value": value}
    return {"failure": "nonfinite", "detail": f"evaluate returned {value if isinstance(value, float) else 'too much'}"}
