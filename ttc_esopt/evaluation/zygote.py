"""The warm process that forks one child per candidate: `python -m ttc_esopt.evaluation.zygote`, started by `Evaluator`.

It imports numpy and numba and builds the instances once, so that a candidate costs a fork instead of an interpreter.
It looks at children from outside only (time, output, how they ended) and passes their bytes on unread.

Protocol, on standard input and output: first in come the configuration, as a line, and the pickled instances; the first
line out says that all is ready. Then, per candidate, a line {"bytes", "first", "last", "timeout", "compile"} and the
program in, a line {"cause", "detail", "seconds", "bytes"} and the child's frame out. The end of input, or the parent's
death, ends this process and its child.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.abc
import json
import math
import os
import pickle
import select
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from ttc_esopt.evaluation import child, children, landlock, namespaces, old_numpy, sandbox, seccomp
from ttc_esopt.evaluation.compiled import COMPILED, COMPILING
from ttc_esopt.evaluation.frames import LARGEST
from ttc_esopt.problems import Problem, load

_MOST_OUTPUT = 1 << 20  # bytes a candidate may print
_LOOK_SECONDS = 0.02  # between two looks at what a running candidate has made of its folder and threads
_THREADS = 100  # that a candidate may have at a time
_READY = b"+"  # first byte of a child's stream: the sandbox stands, the program starts now
_COMPILER_SHARE = 0.5  # of the time that is left, for a compiler that does not look at its own deadline


class _NoTorch(importlib.abc.MetaPathFinder):
    """A candidate never loads torch: seconds and gigabytes, and no heuristic needs it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch' (heuristics cannot use it)", name=name)


class ParentGone(Exception):
    """Nobody is left to answer to."""


@dataclass(frozen=True)
class Config:
    """What the parent wants evaluated, and how."""

    problem: str
    options: dict[str, str]
    instances: int  # bytes
    seed: int
    lenient: bool
    memory_mb: int
    scratch: str
    parent: int  # process id
    watch: int  # descriptor that becomes readable at the parent's end; -1: there is none, the parent's id must do
    layers: tuple[str, ...]


@dataclass
class _Watched:
    """A running child, as seen from outside."""

    pid: int
    result: int
    output: int
    frame: bytearray = field(default_factory=bytearray)
    printed: int = 0
    cause: str | None = None
    detail: str = ""

    @property
    def compiling(self) -> bool:
        """Whether the child said that it compiles its program, and not yet that it is done."""
        return self.frame[1:2] == COMPILING and self.frame[2:3] != COMPILED


class Zygote:
    """Forks, watches and cleans up after one candidate at a time."""

    def __init__(self, config: Config, control: BinaryIO) -> None:
        self.config = config
        self.control = control
        self.layers = list(config.layers)
        if "namespaces" in self.layers:  # before anything of the user's might start a thread
            namespaces.enter()
        sandbox.hide()
        self.problem: Problem = load(config.problem, **config.options)
        self.instances = pickle.loads(control.read(config.instances))  # from the parent, which is trusted
        self.problem.warm(self.instances)
        self.read = landlock.readable()
        if "seccomp" in self.layers:  # built once here, then shared by all children
            seccomp.program(0, allow_writing="landlock" in self.layers)
        self.chunk = bytearray(1 << 20)
        sandbox.adopt_orphans()

    def evaluate(
        self, code: str, first: int, last: int, timeout: float, compile: str
    ) -> tuple[dict[str, Any], bytes | bytearray]:
        """Run one program over some of the instances in a child; returns the verdict from outside and the frame."""
        # The clock on the wall decides; processor time (of all threads) only matters should this process hang.
        cpu = math.ceil(timeout) * (os.cpu_count() or 1) + 10
        limits = sandbox.Limits(memory=self.config.memory_mb << 20, cpu_seconds=cpu)
        task = child.Task(self.instances[first:last], first, self.config.seed, compile, self.config.lenient, _announce)
        result_in, result_out = os.pipe()
        output_in, output_out = os.pipe()
        start = time.monotonic()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_the_child(zygote, code, task, limits, result_out, output_out)
        os.close(result_out)
        os.close(output_out)
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(result_in, fcntl.F_SETPIPE_SZ, 1 << 20)
        watched = _Watched(pid, result_in, output_in)
        try:
            self._watch(watched, start, timeout)
        finally:
            usage = self._reap(watched)
            seconds = time.monotonic() - start
            os.close(result_in)
            os.close(output_in)
            self._empty_scratch()
        status, memory = usage
        self._judge(watched, status, memory, limits)
        verdict = {"cause": watched.cause, "detail": watched.detail, "seconds": round(seconds, 6)}
        return verdict, watched.frame if watched.cause is None else b""

    def _be_the_child(
        self, zygote: int, code: str, task: child.Task, limits: sandbox.Limits, result: int, output: int
    ) -> NoReturn:
        status = 1
        try:
            empty = os.open(os.devnull, os.O_RDONLY)
            # Out of the way of 0 to 3 first, so that no dup2 closes a descriptor that is still needed.
            high = [os.dup(descriptor) for descriptor in (empty, output, output, result)]
            while min(high) < 4:
                high = [os.dup(descriptor) for descriptor in high]
            for target, descriptor in enumerate(high):
                os.dup2(descriptor, target)
            # This process never holds more than a few; the parent's handle has the number that it had there.
            os.closerange(4, max(1024, self.config.watch + 1))
            # The program's prints go to the pipe, whatever the zygote's own streams point to.
            sys.stdin, sys.stdout, sys.stderr = (open(k, mode, closefd=False) for k, mode in enumerate("rww"))  # noqa: SIM115
            sys.argv = [child.FILE]
            try:
                sandbox.enter(zygote, self.config.scratch, limits, self.layers, self.read)
            except OSError as error:
                child.send(3, f"the sandbox cannot be set up: {error}".encode())
                os._exit(1)
            child.send(3, _READY)
            for piece in child.answer(self.problem, task, code):
                child.send(3, piece)
            status = 0
        finally:
            os._exit(status)

    def _watch(self, watched: _Watched, start: float, timeout: float) -> None:
        """Drain the child's pipes until it ends, or until it has to be ended."""
        poll = select.poll()
        open_pipes = {watched.result, watched.output}
        for descriptor in (*open_pipes, self.control.fileno()):
            os.set_blocking(descriptor, descriptor not in open_pipes)
            poll.register(descriptor, select.POLLIN)
        if self.config.watch >= 0:
            poll.register(self.config.watch, select.POLLIN)
        try:
            handle = os.pidfd_open(watched.pid)
        except OSError:  # before Linux 5.3: ask again and again instead
            handle = -1
        else:
            poll.register(handle, select.POLLIN)
        compiled_by = math.inf
        looked = 0.0
        try:
            while watched.cause is None:
                left = start + timeout - time.monotonic()
                if watched.compiling:
                    compiled_by = min(compiled_by, time.monotonic() + _COMPILER_SHARE * left)
                    left = min(left, compiled_by - time.monotonic())
                if left <= 0:
                    watched.cause, watched.detail = "timeout", f"still running after {timeout:g} s"
                    return
                if time.monotonic() - looked > _LOOK_SECONDS:
                    looked = time.monotonic()
                    if children.scratch_is_full(self.config.scratch):
                        watched.cause, watched.detail = "output", children.TOO_MUCH
                        return
                    if _threads(watched.pid) > _THREADS:
                        watched.cause, watched.detail = "forbidden", f"started more than {_THREADS} threads"
                        return
                longest = 0.2 if handle >= 0 else 0.005
                ready = {descriptor for descriptor, _ in poll.poll(1000 * min(left, longest) + 1)}
                if self.control.fileno() in ready or _is_gone(self.config):
                    raise ParentGone
                # Ended? Asked before the pipes are drained, so that nothing written before the end is missed.
                ended = os.waitid(os.P_PID, watched.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
                for descriptor in list(open_pipes):
                    if (descriptor in ready or ended) and not self._drain(watched, descriptor):
                        open_pipes.discard(descriptor)
                        poll.unregister(descriptor)
                if ended:
                    return
        finally:
            if handle >= 0:
                os.close(handle)

    def _drain(self, watched: _Watched, descriptor: int) -> bool:
        """Read what is there; False at the end of the stream. Too much of it is a cause to end the child."""
        while watched.cause is None:
            try:
                size = os.readv(descriptor, [self.chunk])
            except BlockingIOError:
                return True
            if not size:
                return False
            if descriptor == watched.output:
                watched.printed += size
                if watched.printed > _MOST_OUTPUT:
                    watched.cause, watched.detail = "output", f"printed more than {_MOST_OUTPUT >> 20} MiB"
            else:
                watched.frame += memoryview(self.chunk)[:size]
                if len(watched.frame) > LARGEST:
                    watched.cause, watched.detail = "output", f"returned more than {LARGEST >> 20} MiB"
        return True

    def _reap(self, watched: _Watched) -> tuple[int, int]:
        """Kill the child's group and all that it left behind; returns its wait status and largest memory in bytes."""
        status, usage = children.end_group(watched.pid)
        # Whatever its children did, this process is their parent now, or that of their living ancestor.
        if children.end_orphans():
            watched.cause, watched.detail = "forbidden", "left a process behind, which was killed"
        return status, usage.ru_maxrss << 10

    def _judge(self, watched: _Watched, status: int, memory: int, limits: sandbox.Limits) -> None:
        """Find the cause in how the child ended, unless it is known."""
        started = watched.frame[:1] == _READY
        if not started and watched.cause is None:
            watched.cause = "machinery"
            watched.detail = watched.frame.decode("utf-8", "replace") or f"the child ended with status {status}"
            return
        if watched.compiling and (watched.cause in (None, "timeout", "memory")):
            watched.cause, watched.detail = "compiler", "ended while its program was being compiled"
        del watched.frame[:1]
        if watched.cause is not None:
            return
        if watched.frame[:2] == COMPILING + COMPILED:
            del watched.frame[:2]
        if os.WIFSIGNALED(status):
            watched.cause, watched.detail = children.ended_by(os.WTERMSIG(status), memory, limits.memory)
        elif status or not watched.frame:
            watched.cause, watched.detail = "crash", f"ended itself with exit status {os.WEXITSTATUS(status)}"

    def _empty_scratch(self) -> None:
        for entry in os.scandir(self.config.scratch):
            if entry.is_dir(follow_symlinks=False):  # only possible where Landlock is missing
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _announce(what: bytes) -> None:
    """In the child: tell this process that compiling begins or ends."""
    child.send(3, what)


def _threads(pid: int) -> int:
    """Number of threads of a child."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[17])
    except (OSError, IndexError, ValueError):
        return 0


def _is_gone(config: Config) -> bool:
    """Whether the parent has ended."""
    if config.watch < 0:
        return os.getppid() != config.parent
    poll = select.poll()
    poll.register(config.watch, select.POLLIN)
    return bool(poll.poll(0))


def _next_line(control: BinaryIO, config: Config) -> bytes:
    """The next line of input; looks after the parent meanwhile, since others may hold the pipe's other end too."""
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    if config.watch >= 0:
        poll.register(config.watch, select.POLLIN)
    while control.fileno() not in {descriptor for descriptor, _ in poll.poll(1000)}:
        if _is_gone(config):
            raise ParentGone
    return control.readline()


def serve(control: BinaryIO, out: BinaryIO) -> None:
    """Answer one program after another until the input ends."""
    values = json.loads(control.readline())
    config = Config(**{**values, "layers": tuple(values["layers"])})
    try:
        zygote = Zygote(config, control)
        sys.meta_path.insert(0, _NoTorch())
        gc.collect()
        gc.freeze()  # a child's collections would copy every page of what is here already
        out.write(json.dumps({"layers": zygote.layers}).encode() + b"\n")
        out.flush()
        while line := _next_line(control, config):
            asked = json.loads(line)
            code = control.read(asked.pop("bytes")).decode("utf-8", "surrogatepass")
            verdict, frame = zygote.evaluate(code, **asked)
            out.write(json.dumps({**verdict, "bytes": len(frame)}).encode() + b"\n")
            out.flush()
            child.send(out.fileno(), memoryview(frame))
    except (ParentGone, BrokenPipeError):
        pass
    finally:
        shutil.rmtree(config.scratch, ignore_errors=True)


def main() -> None:
    # The protocol's streams move away from 0 and 1, where an import might read or print.
    control = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    import numba  # noqa: F401  so that a candidate's own import of it costs nothing

    old_numpy.restore()
    serve(control, out)


if __name__ == "__main__":
    main()
