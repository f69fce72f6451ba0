"""One warm evaluation process, from outside: starting it, asking it, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.errors import EvaluationError
from ttc_esopt.evaluation import bubblewrap, landlock, sandbox

_START_SECONDS = 120.0  # imports on a slow network disk, and compiling kernels for the first time
_GRACE_SECONDS = 30.0  # what a zygote may need beyond the candidate's own time limit


class Process:
    """One zygote, from outside.

    Parameters
    ----------
    config : the fields of `zygote.Config` but those that are filled in here
    instances : to be evaluated on; pickled
    reads : folders of the problem's own to show

    Raises
    ------
    EvaluationError
        The process cannot be started (also by the other methods: it ended, or does not answer).
    """

    def __init__(self, config: dict[str, Any], instances: Sequence[Any], reads: Sequence[str] = ()) -> None:
        self.scratch = tempfile.mkdtemp(prefix="ttc-esopt-")
        self._busy = threading.Lock()  # held while an answer is awaited
        # Unnamed; zygotes write only when they fail.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        layers = sandbox.usable(config["layers"])
        watch = _own_handle()
        try:
            self.popen = subprocess.Popen(
                _command(layers, config["problem"], reads, self.scratch),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=sandbox.environment(),
                pass_fds=watch,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the pipe
            )
            data = pickle.dumps(list(instances), protocol=5)
            filled = {
                **config,
                "instances": len(data),
                "scratch": self.scratch,
                "parent": os.getpid(),
                "watch": watch[0] if watch else -1,
                "layers": layers,
            }
            self._send(json.dumps(filled).encode() + b"\n" + data)
        except OSError as error:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise EvaluationError(f"The evaluation process cannot be started: {error}") from error
        finally:
            for descriptor in watch:
                os.close(descriptor)
        self._buffer = bytearray()

    def wait_until_ready(self) -> None:
        """Return when the process has loaded everything."""
        with self._busy:
            self._line(time.monotonic() + _START_SECONDS)

    def ask(self, code: str, first: int, last: int, timeout: float, compile: str) -> tuple[dict[str, Any], bytes]:
        """Have one program run over the instances from `first` to before `last`; the zygote's verdict and the frame."""
        program = code.encode("utf-8", "surrogatepass")
        with self._busy:
            asked = {"bytes": len(program), "first": first, "last": last, "timeout": timeout, "compile": compile}
            self._send(json.dumps(asked).encode() + b"\n" + program)
            deadline = time.monotonic() + timeout + _GRACE_SECONDS
            verdict = json.loads(self._line(deadline))
            frame = bytearray(verdict["bytes"])
            there = len(self._buffer)
            frame[:there] = self._buffer
            self._buffer.clear()
            rest = memoryview(frame)[there:]
            while rest:
                rest = rest[self._receive(rest, deadline) :]
        return verdict, frame

    def close(self) -> None:
        """Have the zygote end its child and itself, and see to it."""
        with contextlib.suppress(OSError):
            self.popen.stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # bubblewrap's own processes are of the same group
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        with self._busy:  # whoever waits for an answer has seen the end by now
            self.popen.stdout.close()
            self.errors.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _send(self, data: bytes) -> None:
        try:
            self.popen.stdin.write(data)
            self.popen.stdin.flush()
        except (OSError, ValueError):  # ValueError: closed from another thread
            raise EvaluationError(self._last_words()) from None

    def _line(self, deadline: float) -> bytes:
        chunk = bytearray(1 << 12)
        while b"\n" not in self._buffer:
            self._buffer += memoryview(chunk)[: self._receive(chunk, deadline)]
        end = self._buffer.index(b"\n") + 1
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    def _receive(self, into: bytearray | memoryview, deadline: float) -> int:
        """Wait for bytes of the process and read what there is into a buffer; returns how many."""
        try:
            descriptor = self.popen.stdout.fileno()
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise EvaluationError("The evaluation process does not answer.")
            size = os.readv(descriptor, [into])
        except (OSError, ValueError):
            size = 0
        if not size:
            raise EvaluationError(self._last_words())
        return size

    def _last_words(self) -> str:
        try:
            self.errors.seek(0)
            lines = self.errors.read().decode("utf-8", "replace").split("\n")
        except (OSError, ValueError):
            lines = []
        said = [line for line in lines if line.strip()]
        return f"The evaluation process ended: {said[-1].strip()}" if said else "The evaluation process ended."


def _own_handle() -> tuple[int, ...]:
    """A descriptor by which others see this process's end, whatever its number is to them; none before Linux 5.3."""
    try:
        return (os.pidfd_open(os.getpid()),)
    except OSError:
        return ()


def _command(layers: Sequence[str], problem: str, reads: Sequence[str], scratch: str) -> list[str]:
    """How to start a zygote: under bubblewrap, if that is among the layers."""
    command = [sys.executable, "-P", "-m", "ttc_esopt.evaluation.zygote"]
    if "bubblewrap" not in layers:
        return command
    here = sandbox.found()
    home = landlock.home()
    read = [*here.read, *(folder for folder in reads if not home.is_relative_to(Path(folder).resolve()))]
    file = Path(problem.rpartition(":")[0])
    if file.suffix == ".py":  # a user's own problem, with what lies beside it, but never a whole home
        read.append(str(file if home.is_relative_to(file.parent) else file.parent))
    return bubblewrap.command(command, read=read, write=[*here.write, scratch], environment=sandbox.environment())
