"""The runs of a study at work: each a process of its own, several at once, stopped gracefully or with this process.

A run is the ordinary command on a file of settings, so that whoever wants to can repeat it by hand. What a run
computes depends on its settings alone: its threads are fixed, its GPU is one of equals, and runs share no state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.evaluation.sandbox import detach
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.rundata import duration, show_objective, visible
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.study.display import Follower, StudyDisplay
from ttc_esopt.study.machine import Machine
from ttc_esopt.study.plan import BEGUN, FINISHED, MISSING, Planned, State, settings_file, state_of

PROGRAM = (sys.executable, "-m", "ttc_esopt.cli.main")
_POLL = 0.05  # seconds


@dataclass
class _Job:
    planned: Planned
    process: subprocess.Popen
    slot: int
    began: float
    follower: Follower


class Jobs:
    """Works through the runs that have not ended.

    Parameters
    ----------
    plans, states : the runs in order, and how far each is
    machine : how many at once, and on what
    out : folder of the study
    report : whether each run writes its own page
    display : where progress is shown

    Attributes
    ----------
    failures : dict
        Name of a cell -> why its run failed.
    interrupted : bool
        The user stopped the study.
    """

    def __init__(
        self, plans: Sequence[Planned], states: Sequence[State], machine: Machine, out: Path, report: bool,
        display: StudyDisplay,
    ) -> None:  # fmt: skip
        self.machine, self.out, self.report, self.display = machine, out, report, display
        self.total = len(plans)
        self.ended = {one.cell.name for one, state in zip(plans, states, strict=True) if state.word == FINISHED}
        self.waiting = [one for one in plans if one.cell.name not in self.ended]
        self.running: list[_Job] = []
        self.failures: dict[str, str] = {}
        self._expected = {one.cell.name: one.candidates for one in plans}
        for one in plans:  # a run of equal tokens takes about as long as the run that it equals
            if one.tokens_of:
                self._expected[one.cell.name] = self._expected.get(one.tokens_of.name, one.candidates)
        self._asked = self._heard = 0  # requests to stop, and those that were passed on
        self._began = time.monotonic()
        self._made = 0  # candidates of runs that ended in this process

    @property
    def interrupted(self) -> bool:
        return self._asked > 0

    def work(self) -> None:
        """Until every run has ended or failed, or the user stops it. No run is left behind, whatever happens."""
        with self._signals():
            try:
                while self.waiting or self.running:
                    self._pass_on()
                    if not self._asked:
                        self._start()
                    if not self.running:
                        break
                    time.sleep(_POLL)
                    for job in [job for job in self.running if job.process.poll() is not None]:
                        self.running.remove(job)
                        self._end(job)
                    if self.display.due():
                        self._show()
            finally:
                self._kill()

    # starting

    def _start(self) -> None:
        """Fill the free places with runs that need not wait for another."""
        for one in list(self.waiting):
            if len(self.running) >= self.machine.jobs:
                return
            needed = one.tokens_of
            if needed and needed.name not in self.ended:
                busy = [other.cell.name for other in self.waiting] + [job.planned.cell.name for job in self.running]
                if needed.name not in busy:
                    self.waiting.remove(one)
                    self._failed(one, f"not started: it needs the tokens of {needed.title}, which did not end")
                continue
            self.waiting.remove(one)
            try:
                self._launch(one)
            except (ConfigurationError, DataError, OSError) as error:
                self._failed(one, str(error))

    def _launch(self, one: Planned) -> None:
        cell = one.cell
        command = [*_program(), *self._arguments(one)]
        slot = min(set(range(self.machine.jobs)) - {job.slot for job in self.running})
        environment = dict(os.environ)
        if threads := one.settings.threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        if gpus := self.machine.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        path = log_of(self.out, cell.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                # a session of its own, since Ctrl-C is passed on once; and an end with this process
                preexec_fn=partial(detach, os.getpid()),
            )  # fmt: skip
        job = _Job(one, process, slot, time.monotonic(), Follower(cell.folder))
        self.running.append(job)
        went_on = f", {job.follower.before} candidates are there" if job.follower.before else ""
        self.display.line(f"started {cell.title}{went_on} ({path})")

    def _arguments(self, one: Planned) -> list[str]:
        """Of the command: a new run, or going on with one."""
        cell = one.cell
        page = [] if self.report else ["--no-report"]
        state = state_of(cell.folder)
        given: dict[str, Any] = dict(cell.given)
        if one.tokens_of:
            needed = state_of(one.tokens_of.folder).run
            if needed is None or not needed.tokens:
                raise DataError(f"not started: {one.tokens_of.title} has written no tokens")
            given["max_tokens_total"] = needed.tokens
        if state.word in (MISSING, BEGUN):
            file = self.out / "cells" / f"{cell.name}.toml"
            write_atomically(file, settings_file(cell, given))
            workers = [] if given.get("workers") else ["--workers", str(self.machine.workers)]
            return ["run", "--config", str(file), *workers, "--out", str(cell.folder), *page]
        stored = RunFolder.open(cell.folder).settings
        if one.tokens_of and stored.max_tokens_total != given["max_tokens_total"]:
            raise DataError(
                f"not gone on with: it has max_tokens_total {stored.max_tokens_total}, {one.tokens_of.title} wrote "
                f"{given['max_tokens_total']}; remove {cell.folder}"
            )
        minutes = one.settings.max_minutes
        other = ["--max-minutes", f"{minutes:g}"] if minutes != stored.max_minutes else []
        return ["resume", str(cell.folder), *other, *page]

    # ending

    def _end(self, job: _Job) -> None:
        one, cell = job.planned, job.planned.cell
        job.follower.look()
        self._made += job.follower.done - job.follower.before
        code, state, last = job.process.returncode, state_of(cell.folder), last_line(log_of(self.out, cell.name))
        if code == 0 and state.word == FINISHED and state.run is not None:
            self.ended.add(cell.name)
            took = duration(time.monotonic() - job.began)
            best = f"best {show_objective(state.run.value)} on {state.run.key.split}"
            self.display.line(f"[{len(self.ended)}/{self.total}] {cell.title}: {best}, {took}{self._left()}")
        elif self._asked:
            self.display.line(f"stopped {cell.title} at {job.follower.done} candidates")
        elif code == 0:
            self.display.line(f"paused {cell.title} at {job.follower.done} candidates: a limit of its own was reached")
        else:
            if state.word == FINISHED:
                self.ended.add(cell.name)  # it has no value, but it is over, and it wrote its tokens
            killed = f"ended by {_signal_name(-code)}; " if code < 0 else ""
            self._failed(one, f"{killed}last line: {last or '(nothing)'}")

    def _failed(self, one: Planned, why: str) -> None:
        self.failures[one.cell.name] = why
        self.display.line(f"failed {one.cell.title}: {why}")

    def _kill(self) -> None:
        """End what runs, with everything that it started."""
        for job in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)
        for job in self.running:
            job.process.wait()
        self.running.clear()

    # the user

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and termination are requests to stop; in other threads than the main one they stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            self._asked += 1

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self) -> None:
        if self._asked == self._heard:
            return
        first, self._heard = self._heard == 0, self._asked
        if not first:
            self._kill()
            return
        if self.running:
            self.display.line("interrupted: the running batches are finished and saved (Ctrl-C again stops at once)")
        for job in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.process.pid, signal.SIGINT)

    # progress

    def _show(self) -> None:
        rows = []
        for job in self.running:
            job.follower.look()
            cell = job.planned.cell
            rows.append(job.follower.row(cell.title, self._expected[cell.name], job.began))
        head = f"{len(self.ended)} of {self.total} runs finished{self._left()}"
        self.display.refresh(head, rows)

    def _left(self) -> str:
        """From the pace of all candidates since this process began."""
        made = self._made + sum(job.follower.done - job.follower.before for job in self.running)
        left = sum(self._expected[one.cell.name] for one in self.waiting)
        left += sum(max(0, self._expected[job.planned.cell.name] - job.follower.done) for job in self.running)
        if not made or not left:
            return ""
        return f", time left about {duration(left * (time.monotonic() - self._began) / made)}"


def log_of(out: Path, name: str) -> Path:
    """Where the run of a cell prints."""
    return out / "logs" / f"{name}.log"


def last_line(path: Path) -> str:
    """The last line of a run's output that is not empty, fit to be printed."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return visible(last.strip().replace("\t", " "))[:400]


def _program() -> tuple[str, ...]:
    """The command of a run; modules that lie in the current folder by chance are none of ours."""
    if os.getcwd() in [os.path.abspath(place) for place in sys.path]:
        return PROGRAM
    return (PROGRAM[0], "-P", *PROGRAM[1:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
