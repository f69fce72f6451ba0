"""The parent's side: hands programs to warm zygotes, and computes every objective itself from the returned arrays."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from ttc_esopt.errors import ConfigurationError, EvaluationError
from ttc_esopt.evaluation.frames import BadFrame, Failure, clean, decode
from ttc_esopt.evaluation.outcome import Outcome
from ttc_esopt.evaluation.process import Process
from ttc_esopt.evaluation.sandbox import KERNEL_LAYERS
from ttc_esopt.problems.base import Problem, Rejected, Score, SelfScored, own_code

COMPILE = ("auto", "never", "always")
SANDBOX = ("auto", "required")
PATIENCE = 4.0  # times a problem's limit where a figure is wanted: a limit of the search says what is worth its time
FILES = "files"  # the split of instances that no set of the problem holds
_REMEMBERED = 4096  # outcomes kept for programs that come again
_SLACK = 1e-9  # relative; bounds are computed in another order than scores


@dataclass
class _Part:
    """What one process made of its share of the instances."""

    seconds: float = 0.0
    scores: list[Score | None] = field(default_factory=list)
    failure: Failure | None = None
    compiled: bool = False
    compile_seconds: float = 0.0
    alarm: bool = False


class Evaluator:
    """Evaluates programs for one problem and one set of instances.

    Parameters
    ----------
    problem : from `ttc_esopt.problems.load`
    split, size : the set of instances; None: the split's first size
    instances : instances to take instead of a set
    seed : of `random` and `np.random` inside the programs, and of what the problem draws in scoring
    workers : processes at the same time; None: one per core this process may use
    timeout : seconds per program on all instances; None: the problem's own, times `patience`
    patience : see `timeout`
    memory_mb : MiB that a program may allocate
    lenient : whether instances on which a program fails are left out, as the published test evaluators do
    compile : whether programs are compiled: auto (where it pays and changes nothing), never, always (where possible)
    sandbox : auto (what this machine offers), required (refuse to run with less than full isolation)
    layers : kernel layers to use where the kernel has them (all; fewer only serve to test the rest)

    Raises
    ------
    ConfigurationError
        A parameter is out of range, or the sandbox is weaker than required.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        split: str = "train",
        size: int | None = None,
        instances: Sequence[Any] | None = None,
        seed: int = 0,
        workers: int | None = None,
        timeout: float | None = None,
        patience: float = 1.0,
        memory_mb: int = 1024,
        lenient: bool = False,
        compile: str = "auto",
        sandbox: str = "auto",
        layers: Sequence[str] = KERNEL_LAYERS,
    ) -> None:
        self.problem = problem
        if instances is None:
            self.split, self.size = problem.resolve(split, size)
            with own_code(f"{problem.name}.instances() or source()"):
                instances = problem.instances(self.split, self.size)
                self.source = problem.source(self.split, self.size)
        else:
            self.split, self.size, self.source = FILES, size, FILES
        self.instances = list(instances)
        if not self.instances:
            raise ConfigurationError("Expected at least one instance, got none.")
        self.seed = seed
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self.timeout = patience * problem.time_limit(self.instances) if timeout is None else timeout
        self.lenient = lenient
        self.compile = compile
        for name, value, allowed in (("compile", compile, COMPILE), ("sandbox", sandbox, SANDBOX)):
            if value not in allowed:
                raise ConfigurationError(f"Expected one of {', '.join(allowed)}, got {value!r} (--{name}).")
        if self.workers < 1:
            raise ConfigurationError(f"Expected workers >= 1, got {workers} (--workers).")
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"Expected a timeout > 0 in seconds, got {timeout} (--timeout).")
        if memory_mb < 16:
            raise ConfigurationError(f"Expected memory of at least 16 MiB, got {memory_mb} (--memory-mb).")
        if sandbox == "required":
            from ttc_esopt.evaluation.sandbox import require

            require(layers)
        self._config = {
            "problem": problem.spec,
            "options": problem.chosen,
            "seed": seed,
            "lenient": lenient,
            "memory_mb": memory_mb,
            "layers": tuple(layers),
        }
        with own_code(f"{problem.name}.per_process()"):
            step = max(1, problem.per_process(self.instances))
        count = len(self.instances)
        self._shares = [(first, min(first + step, count)) for first in range(0, count, step)]
        self._bounds: dict[int, tuple[float, float]] = {}
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._idle: list[Process] = []
        self._all: set[Process] = set()
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

        def done(code: str, outcome: Outcome) -> None:
            nonlocal finished
            found[code] = outcome
            finished += times[code]
            if progress:
                progress(finished)

        if fresh:
            self._fresh(fresh, done)
        for code in codes:
            self._known[code] = found[code]
            self._known.move_to_end(code)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return [found[code] for code in codes]

    def solutions(self, code: str) -> list[Any]:
        """What the answers of a valid program amount to: tours, routes, bins, items; one per instance.

        Raises
        ------
        EvaluationError
            The program fails, or the machinery did twice.
        """
        found = []
        for first, last in self._shares:
            verdict, data = self._ask(code, first, last)
            part = _Part()
            outputs = self._outputs(part, verdict, data, last - first)
            if isinstance(outputs, Failure):
                raise EvaluationError(f"The program gives no solution: {outputs.word}: {outputs.detail}")
            for index, output in zip(range(first, last), outputs, strict=True):
                score = self._score(part, index, output)
                if isinstance(score, Failure):
                    raise EvaluationError(f"The program gives no solution: {score.word}: {score.detail}")
                found.append(self.problem.solution(self.instances[index], output, *self._seed()))
        return found

    def close(self) -> None:
        """End all processes; the evaluator cannot be used again."""
        self._closed = True
        self._stop()

    def _fresh(self, codes: Sequence[str], done: Callable[[str, Outcome], None]) -> None:
        """Evaluate programs of which no outcome is known; `done` is told each outcome, one at a time."""
        parts: dict[str, list[_Part | None]] = {code: [None] * len(self._shares) for code in codes}

        def one(task: tuple[str, int]) -> None:
            code, k = task
            mine = parts[code]
            # What comes before decides what is reported, so only a failure there makes this share needless.
            needless = any(part is not None and part.failure for part in mine[:k])
            part = _Part() if needless else self._part(code, *self._shares[k])
            with self._lock:
                mine[k] = part
                if all(mine):
                    done(code, self._sum_up(mine))

        tasks = [(code, k) for code in codes for k in range(len(self._shares))]
        self._stopping = False
        with ThreadPoolExecutor(min(self.workers, len(tasks))) as pool:
            try:
                list(pool.map(one, tasks))
            except BaseException:  # Ctrl-C, or the machinery: no thread may wait for a program any longer
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop()
                raise

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            processes, self._all = self._all, set()
            self._idle = []
        for process in processes:
            process.close()

    def _part(self, code: str, first: int, last: int) -> _Part:
        """One program on one share of the instances."""
        if not code.strip():
            return _Part(failure=Failure("reply", "no program"))
        verdict, data = self._ask(code, first, last)
        part = _Part(seconds=verdict["seconds"])
        began = perf_counter()
        part.failure = self._judge(part, verdict, data, first, last)
        part.seconds += perf_counter() - began
        return part

    def _ask(self, code: str, first: int, last: int) -> tuple[dict[str, Any], bytes]:
        """Have a program run in a process; the verdict from outside and the frame."""
        timeout = self.timeout * (last - first) / len(self.instances)
        verdict, frame = self._try(code, first, last, timeout, self.compile)
        if verdict["cause"] == "compiler" and self.compile != "never":  # no fault of the program: Python decides
            lost = verdict["seconds"]
            verdict, frame = self._try(code, first, last, timeout, "never")
            verdict["seconds"] += lost
        if verdict["cause"] == "compiler":
            verdict |= {"cause": "forbidden", "detail": "pretended to be in the compiler"}
        return verdict, frame

    def _try(self, code: str, first: int, last: int, timeout: float, compile: str) -> tuple[dict[str, Any], bytes]:
        fault = ""
        for _ in range(2):
            process = self._take()
            try:
                verdict, frame = process.ask(code, first, last, timeout, compile)
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
                return verdict, frame
            fault = verdict["detail"]
        raise EvaluationError(f"A program could not be evaluated, tried twice: {clean(fault)}")

    def _take(self) -> Process:
        with self._lock:
            if self._stopping:
                raise EvaluationError("The evaluation was stopped.")
            if self._idle:
                return self._idle.pop()
            process = Process(self._config, self.instances, self.problem.reads)
            self._all.add(process)
        try:
            process.wait_until_ready()
        except BaseException:
            self._drop(process)
            raise
        return process

    def _drop(self, process: Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.close()

    def _judge(self, part: _Part, verdict: dict[str, Any], data: bytes, first: int, last: int) -> Failure | None:
        """Score what came back, instance by instance; returns what is wrong with the whole program."""
        outputs = self._outputs(part, verdict, data, last - first)
        if isinstance(outputs, Failure):
            return outputs
        for index, output in zip(range(first, last), outputs, strict=True):
            result = output if isinstance(output, Failure) else self._score(part, index, output)
            if isinstance(result, Failure) and not self.lenient:
                return result
            part.scores.append(None if isinstance(result, Failure) else result)
        return None

    def _outputs(
        self, part: _Part, verdict: dict[str, Any], data: bytes, count: int
    ) -> tuple[np.ndarray | Failure, ...] | Failure:
        """What each instance gave, or what is wrong with all of it."""
        if verdict["cause"] is not None:
            return Failure(verdict["cause"], clean(verdict["detail"]))
        try:
            frame = decode(data)
        except BadFrame as error:
            return Failure("forbidden", f"the result was tampered with: {error}")
        part.compiled, part.compile_seconds = frame.compiled, frame.compile_seconds
        if frame.failure is None and len(frame.outputs) != count:
            return Failure("forbidden", f"{len(frame.outputs)} results for {count} instances")
        return frame.failure or frame.outputs

    def _score(self, part: _Part, index: int, output: np.ndarray) -> Score | Failure:
        instance = self.instances[index]
        try:
            score = self.problem.score(instance, output, *self._seed())
            score = Score(*map(float, score)) if isinstance(score, Score) else Score(float(score), float(score))
        except Rejected as rejected:
            return Failure(rejected.failure, clean(str(rejected)))
        except Exception as error:  # an array that the problem did not think of
            return Failure("shape", clean(f"{type(error).__name__}: {error}"))
        if not math.isfinite(score.value):
            return Failure("nonfinite", f"the score of instance {index} is {score.value}")
        low, high = self._bounds_of(index)
        if not low - _SLACK * abs(low) <= score.value <= high + _SLACK * abs(high):
            part.alarm = True
            return Failure(
                "infeasible",
                f"ALARM: the score {score.value:.9g} of instance {index} is impossible, bounds are {low:.9g} to "
                f"{high:.9g}",
            )
        return score

    def _seed(self) -> tuple[int, ...]:
        """What score() and solution() take besides instance and output."""
        return (self.seed,) if self.problem.seeded else ()

    def _bounds_of(self, index: int) -> tuple[float, float]:
        if index not in self._bounds:
            with own_code(f"{self.problem.name}.bounds()"):
                low, high = map(float, self.problem.bounds(self.instances[index]))
            finite = math.isfinite(low) and math.isfinite(high)
            if isinstance(self.problem, SelfScored) and self.problem.bounded and not finite:
                raise ConfigurationError(
                    f"Expected finite bounds of a score that the program's own process reports, got {low} to {high} "
                    f"({self.problem.name}.bounds())."
                )
            if not low <= high:
                raise ConfigurationError(f"{self.problem.name}.bounds() gave {low} to {high} (--problem).")
            self._bounds[index] = low, high
        return self._bounds[index]

    def _sum_up(self, parts: Sequence[_Part]) -> Outcome:
        seconds = round(sum(part.seconds for part in parts), 6)
        compile_seconds = round(sum(part.compile_seconds for part in parts), 6)
        shared = {
            "seconds": seconds, "compile_seconds": compile_seconds, "compiled": any(part.compiled for part in parts),
            "alarm": any(part.alarm for part in parts),
        }  # fmt: skip
        failure = next((part.failure for part in parts if part.failure), None)
        scores = [score for part in parts for score in part.scores]
        valid = [score for score in scores if score is not None]
        if failure is None and not valid:
            failure = Failure("infeasible", "failed on every instance")
        if failure is not None:
            return Outcome(False, None, failure.word, failure.detail, **shared)
        sign = -1.0 if self.problem.maximise else 1.0
        objective, true = (sign * float(np.mean(column)) for column in zip(*valid, strict=True))
        if not math.isfinite(objective):
            return Outcome(False, None, "nonfinite", f"the objective is {objective}", **shared)
        left_out = len(scores) - len(valid)
        detail = f"{left_out} of {len(scores)} instances failed and were left out" if left_out else ""
        values = tuple(None if score is None else score.value for score in scores)
        return Outcome(True, objective, None, detail, true_objective=true, scores=values, **shared)
