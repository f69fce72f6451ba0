"""The parent's side: hands programs to warm zygotes, and computes every objective itself from the returned arrays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttc_esopt.errors import ConfigurationError, EvaluationError
from ttc_esopt.evaluation.frames import BadFrame, clean, decode
from ttc_esopt.evaluation.sandbox import KERNEL_LAYERS
from ttc_esopt.problems.base import Problem, Rejected

_REMEMBERED = 4096  # outcomes kept for programs that come again
_START_SECONDS = 120.0  # imports on a slow network disk
_GRACE_SECONDS = 30.0  # what a zygote may need beyond the candidate's own time limit
# A candidate's process sees nothing of the user's environment but where Python and the data are.
_KEPT = (
    "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUSERBASE", "NUMBA_CACHE_DIR", "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES", "TTC_ESOPT_DATA",
)  # fmt: skip
_SET = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes
    ----------
    valid : whether it has an objective
    objective : minimised (negated mean score for maximisation problems); None if invalid
    failure : one of reply, syntax, name, exception, timeout, memory, crash, output, forbidden, infeasible, nonfinite,
        shape; None if valid
    detail : one line about the failure
    seconds : wall time of the program's process
    """

    valid: bool
    objective: float | None
    failure: str | None
    detail: str
    seconds: float


class Evaluator:
    """Evaluates programs for one problem and one set of instances.

    Parameters
    ----------
    problem : from `ttc_esopt.problems.load`
    split, size : the set of instances; None: the split's first size
    seed : of `random` and `np.random` inside the programs
    workers : programs at the same time; None: one per core this process may use
    timeout : seconds per program on all instances; None: the problem's own
    memory_mb : MiB that a program may allocate
    layers : kernel layers to use where the kernel has them (all; fewer only serve to test the rest)

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        split: str = "train",
        size: int | None = None,
        seed: int = 0,
        workers: int | None = None,
        timeout: float | None = None,
        memory_mb: int = 1024,
        layers: Sequence[str] = KERNEL_LAYERS,
    ) -> None:
        self.problem = problem
        self.split, self.size = problem.resolve(split, size)
        self.seed = seed
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self.timeout = problem.time_limit(self.split, self.size) if timeout is None else timeout
        self.memory_mb = memory_mb
        if self.workers < 1:
            raise ConfigurationError(f"Expected workers >= 1, got {workers} (--workers).")
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"Expected a timeout > 0 in seconds, got {timeout} (--timeout).")
        if memory_mb < 16:
            raise ConfigurationError(f"Expected memory of at least 16 MiB, got {memory_mb} (--memory-mb).")
        self._layers = tuple(layers)
        self._instances = problem.instances(self.split, self.size)
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._closed = False

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evaluate(self, codes: Sequence[str], progress: Callable[[int], None] | None = None) -> list[Outcome]:
        """Evaluate programs; equal ones only once, also across calls.

        Parameters
        ----------
        codes : source texts
        progress : called with the number of programs that are done, from a thread of its own

        Returns
        -------
        list of Outcome, in the order of `codes`

        Raises
        ------
        EvaluationError
            The machinery failed twice on the same program (never: a program failed).
        """
        if self._closed:
            raise EvaluationError("This evaluator is closed.")
        codes = list(codes)
        found = {code: self._known[code] for code in codes if code in self._known}
        fresh = [code for code in dict.fromkeys(codes) if code not in found]
        times = Counter(codes)
        finished = len(codes) - sum(times[code] for code in fresh)
        if progress and finished:
            progress(finished)

        def one(code: str) -> Outcome:
            nonlocal finished
            outcome = self._evaluate_one(code)
            with self._lock:
                finished += times[code]
                if progress:
                    progress(finished)
            return outcome

        if fresh:
            self._stopping = False
            with ThreadPoolExecutor(min(self.workers, len(fresh))) as pool:
                try:
                    found.update(zip(fresh, pool.map(one, fresh), strict=True))
                except BaseException:  # Ctrl-C, or the machinery: no thread may wait for a program any longer
                    pool.shutdown(wait=False, cancel_futures=True)
                    self._stop()
                    raise
        for code in codes:
            self._known[code] = found[code]
            self._known.move_to_end(code)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return [found[code] for code in codes]

    def close(self) -> None:
        """End all processes; the evaluator cannot be used again."""
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            processes, self._all = self._all, set()
            self._idle = []
        for process in processes:
            process.close()

    def _evaluate_one(self, code: str) -> Outcome:
        if not code.strip():
            return Outcome(False, None, "reply", "no program", 0.0)
        fault = ""
        for _ in range(2):
            process = self._take()
            try:
                verdict, frame = process.ask(code)
            except EvaluationError as error:
                self._drop(process)
                fault = str(error)
                continue
            except BaseException:
                self._drop(process)
                raise
            with self._lock:
                if process in self._all:
                    self._idle.append(process)
            if verdict["cause"] != "machinery":
                return self._judge(verdict, frame)
            fault = verdict["detail"]
        raise EvaluationError(f"A program could not be evaluated, tried twice: {clean(fault)}")

    def _take(self) -> _Process:
        config = {
            "problem": self.problem.spec,
            "split": self.split,
            "size": self.size,
            "seed": self.seed,
            "timeout": self.timeout,
            "memory_mb": self.memory_mb,
            "layers": self._layers,
        }
        with self._lock:
            if self._stopping:
                raise EvaluationError("The evaluation was stopped.")
            if self._idle:
                return self._idle.pop()
            process = _Process(config)
            self._all.add(process)
        try:
            process.wait_until_ready()
        except BaseException:
            self._drop(process)
            raise
        return process

    def _drop(self, process: _Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.close()

    def _judge(self, verdict: dict[str, Any], data: bytes) -> Outcome:
        def failed(word: str, detail: str) -> Outcome:
            return Outcome(False, None, word, clean(detail), verdict["seconds"])

        if verdict["cause"] is not None:
            return failed(verdict["cause"], verdict["detail"])
        try:
            frame = decode(data)
        except BadFrame as error:
            return failed("forbidden", f"the result was tampered with: {error}")
        if frame.failure is not None:
            return failed(frame.failure, frame.detail)
        if len(frame.arrays) != len(self._instances):
            return failed("forbidden", f"{len(frame.arrays)} results for {len(self._instances)} instances")
        scores = []
        for instance, output in zip(self._instances, frame.arrays, strict=True):
            try:
                scores.append(float(self.problem.score(instance, output)))
            except Rejected as rejected:
                return failed(rejected.failure, str(rejected))
            except Exception as error:  # an array that the problem did not think of
                return failed("shape", f"{type(error).__name__}: {error}")
        objective = float(np.mean(scores))
        if not math.isfinite(objective):
            return failed("nonfinite", f"the objective is {objective}")
        return Outcome(True, -objective if self.problem.maximise else objective, None, "", verdict["seconds"])


class _Process:
    """One zygote, from outside."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.timeout = config["timeout"]
        self.scratch = tempfile.mkdtemp(prefix="ttc-esopt-")
        self._busy = threading.Lock()  # held while an answer is awaited
        # Unnamed; zygotes write only when they fail.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _SET
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "ttc_esopt.evaluation.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the pipe
            )
            self._send(json.dumps({**config, "scratch": self.scratch, "parent": os.getpid()}).encode() + b"\n")
        except OSError as error:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise EvaluationError(f"The evaluation process cannot be started: {error}") from error
        self._buffer = bytearray()

    def wait_until_ready(self) -> None:
        with self._busy:
            self._line(time.monotonic() + _START_SECONDS)

    def ask(self, code: str) -> tuple[dict[str, Any], bytes]:
        """Have one program run; returns the zygote's verdict and the child's frame."""
        program = code.encode("utf-8", "surrogatepass")
        with self._busy:
            self._send(json.dumps({"bytes": len(program)}).encode() + b"\n" + program)
            deadline = time.monotonic() + self.timeout + _GRACE_SECONDS
            verdict = json.loads(self._line(deadline))
            while len(self._buffer) < verdict["bytes"]:
                self._receive(deadline)
            frame = bytes(self._buffer)
            self._buffer.clear()
        return verdict, frame

    def close(self) -> None:
        """Have the zygote end its child and itself, and see to it."""
        with contextlib.suppress(OSError):
            self.popen.stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
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
        while b"\n" not in self._buffer:
            self._receive(deadline)
        end = self._buffer.index(b"\n") + 1
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    def _receive(self, deadline: float) -> None:
        try:
            descriptor = self.popen.stdout.fileno()
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise EvaluationError("The evaluation process does not answer.")
            data = os.read(descriptor, 1 << 20)
        except (OSError, ValueError):
            data = b""
        if not data:
            raise EvaluationError(self._last_words())
        self._buffer += data

    def _last_words(self) -> str:
        try:
            self.errors.seek(0)
            lines = self.errors.read().decode("utf-8", "replace").split("\n")
        except (OSError, ValueError):
            lines = []
        said = [line for line in lines if line.strip()]
        return f"The evaluation process ended: {said[-1].strip()}" if said else "The evaluation process ended."
