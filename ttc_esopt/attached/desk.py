"""The one thread that works the engine: requests of several threads become one batch, and steps come between batches.

A step may not happen while somebody's reply is being written, since half of it would then come from another model.
Jobs are therefore done one after another, in the order in which they came; what waits to be written under the same
sampling settings is written together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.engines.base import Engine, Reply, Request, Sampling

GATHER = 0.02  # seconds that a lone request waits for company


@dataclass
class _Job:
    """Replies that are wanted, or something else to do with the engine."""

    requests: Sequence[Request] = ()
    sampling: Sampling | None = None
    work: Callable[[Engine], Any] | None = None
    result: Future = field(default_factory=Future)


class Desk:
    """Queues work for an engine. All methods block until the work is done and raise what it raised.

    Parameters
    ----------
    engine : is used by the desk's own thread alone until `close`
    progress : told the number of new tokens, many times
    """

    def __init__(self, engine: Engine, progress: Callable[[int], None] | None = None) -> None:
        self._engine = engine
        self._progress = progress
        self._jobs: list[_Job] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """Replies in the order of the requests."""
        return self._put(_Job(requests=requests, sampling=sampling))

    def do(self, work: Callable[[Engine], Any]) -> Any:
        """Call `work(engine)` between two batches."""
        return self._put(_Job(work=work))

    def waiting(self) -> int:
        """Requests that nobody has begun to answer."""
        with self._wake:
            return sum(len(job.requests) for job in self._jobs)

    def close(self) -> None:
        """Finish what is queued; the engine stays open."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _put(self, job: _Job) -> Any:
        with self._wake:
            if self._closing:
                raise RuntimeError("The desk is closed.")
            self._jobs.append(job)
            self._wake.notify()
        return job.result.result()

    def _work(self) -> None:
        while jobs := self._next():
            try:
                results = self._done(jobs)
            except BaseException as error:  # whatever it is, somebody waits for it
                # one request that the engine refuses is no reason to refuse its neighbours
                if len(jobs) > 1 and isinstance(error, Exception):
                    for job in jobs:
                        self._alone(job)
                else:
                    for job in jobs:
                        job.result.set_exception(error)
            else:
                for job, result in zip(jobs, results, strict=True):
                    job.result.set_result(result)

    def _alone(self, job: _Job) -> None:
        try:
            job.result.set_result(self._done([job])[0])
        except Exception as error:
            job.result.set_exception(error)

    def _done(self, jobs: list[_Job]) -> list[Any]:
        if jobs[0].work is not None:
            return [jobs[0].work(self._engine)]
        together = [request for job in jobs for request in job.requests]
        replies = iter(self._engine.generate(together, jobs[0].sampling, self._progress))
        return [[next(replies) for _ in job.requests] for job in jobs]

    def _next(self) -> list[_Job]:
        """What is to be done at once; empty when the desk is closed and nothing is left."""
        with self._wake:
            while not self._jobs:
                if self._closing:
                    return []
                self._wake.wait()
            first = self._jobs[0]
            if first.work is None and len(first.requests) == 1 and not self._closing:
                deadline = time.monotonic() + GATHER
                while (left := deadline - time.monotonic()) > 0:
                    self._wake.wait(left)
            together = [first]
            if first.work is None:
                for job in self._jobs[1:]:
                    if job.work is not None or job.sampling != first.sampling:
                        break
                    together.append(job)
            del self._jobs[: len(together)]
            return together
