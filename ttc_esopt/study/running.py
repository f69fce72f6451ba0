"""A whole study in one call: check, announce, run what has not ended, compare, report."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ttc_esopt.errors import ConfigurationError, DataError, TtcEsoptError
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.study.comparing import ArmComparison, compared, write_comparison
from ttc_esopt.study.display import Say, StudyDisplay
from ttc_esopt.study.jobs import Jobs, last_line, log_of
from ttc_esopt.study.machine import Machine, machine
from ttc_esopt.study.plan import FINISHED, Planned, State, announcement, check_unchanged, planned, state_of
from ttc_esopt.study.recipe import COPY, LOCK, Recipe


@dataclass(frozen=True)
class StudyResult:
    """What a study ended with.

    Attributes
    ----------
    out : Path
        The folder.
    comparisons : list of ArmComparison
        Empty if the study was interrupted.
    failures : list of str
        One line for each run that failed: which, why, and its log.
    unfinished : list of str
        Runs that have not ended: interrupted, or stopped at a limit of their own.
    interrupted : bool
        The user stopped it.
    go_on : str
        The command that goes on with it.
    path : Path or None
        The report, or comparison.json if there is none.
    """

    out: Path
    comparisons: list[ArmComparison]
    failures: list[str]
    unfinished: list[str]
    interrupted: bool
    go_on: str
    path: Path | None

    @property
    def ok(self) -> bool:
        """Every run ended, and none failed."""
        return not (self.failures or self.unfinished or self.interrupted)


def prepared(recipe: Recipe, out: Path, jobs: int | None = None) -> tuple[list[Planned], list[State], Machine]:
    """The runs, how far they are, and how this machine is shared out; nothing is written.

    Raises
    ------
    ConfigurationError, DataError
        A run cannot work, or differs from the one that is there.
    """
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is a file, expected a folder or nothing (--out).")
    if out.resolve() == Path.cwd():
        raise ConfigurationError("Expected a folder of its own for the results, got the current one (--out).")
    plans = planned(recipe, out)
    check_unchanged(plans, out, recipe)
    threads = [one.settings.threads for one in plans]
    shared = machine(0 if 0 in threads else max(threads), {one.settings.device for one in plans}, jobs)
    return plans, [state_of(one.cell.folder) for one in plans], shared


def run_study(
    recipe: Recipe, out: Path | str | None = None, *, jobs: int | None = None, report: bool = True,
    say: Say | None = None,
) -> StudyResult:  # fmt: skip
    """Run what has not ended, then compare and report; the same call again goes on.

    Parameters
    ----------
    recipe : of `read_recipe`
    out : folder of the study; None: runs/<name>
    jobs : runs at once; None: as many as cores or GPUs have room for (results do not depend on it)
    report : write report.html, figures, and a page for each run
    say : takes the lines of progress; None: standard output, with a live table on a terminal

    Raises
    ------
    ConfigurationError, DataError
        A run cannot work as the recipe says or differs from the one that is there; another process is at work.
    """
    place = Path(out) if out is not None else recipe.folder
    plans, states, shared = prepared(recipe, place, jobs)
    words = ["ttc-esopt", "study", str(recipe.path), *(["--out", str(out)] if out is not None else [])]
    words += ["--jobs", str(jobs)] if jobs is not None else []
    go_on = shlex.join(words + ([] if report else ["--no-report"]))
    with StudyDisplay(say) as display, _locked(place, recipe.name):
        for line in announcement(recipe, plans, states, shared, place):
            display.line(line)
        if not (place / COPY).exists() or (place / COPY).read_bytes() != recipe.text.encode():
            write_atomically(place / COPY, recipe.text)
        if report and find_spec("matplotlib") is None:
            report = False
            display.line("no reports will be written: pip install 'ttc-esopt[report]', then `ttc-esopt report`")
        work = Jobs(plans, states, shared, place, report, display)
        work.work()
        states = [state_of(one.cell.folder) for one in plans]
        failures, unfinished = _troubles(recipe, plans, states, work, place)
        if work.interrupted and unfinished:
            return StudyResult(place, [], failures, unfinished, True, go_on, None)
        comparisons = compared(recipe, place)
        path = write_comparison(recipe, place, comparisons)
        if report:
            display.line("writing figures and report ...")
            try:
                path = _pages(place, comparisons)
            except TtcEsoptError as error:
                failures.append(f"no report: {error}")
        return StudyResult(place, comparisons, failures, unfinished, False, go_on, path)


def _pages(out: Path, comparisons: list[ArmComparison]) -> Path:
    from ttc_esopt.report import write_figures, write_study_report

    write_figures(out)
    return write_study_report(out, out / "report.html", comparisons=comparisons)


def _troubles(
    recipe: Recipe, plans: list[Planned], states: list[State], work: Jobs, out: Path
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Runs that failed, now or before, and runs that have not ended for another reason."""
    failures, unfinished = [], []
    for one, state in zip(plans, states, strict=True):
        log = log_of(out, one.cell.name)
        why = work.failures.get(one.cell.name)
        if why is None and state.word == FINISHED and state.run is not None:
            if state.run.trouble is None or "failed" in recipe.ignore:
                continue
            why = f"last line: {last_line(log) or state.run.trouble}"
        if why is not None:
            failures.append(f"{one.cell.title} failed: {why}" + (f" ({log})" if log.exists() else ""))
        elif state.word != FINISHED:
            unfinished.append(one.cell.title)
    return failures, unfinished


@contextlib.contextmanager
def _locked(out: Path, name: str) -> Iterator[None]:
    """Keep a second study out of the folder; processes that are started do not inherit the lock."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(out / LOCK, "a+")  # noqa: SIM115  held until the study ends
    except OSError as error:
        raise ConfigurationError(f"Cannot write to {out}: {error.strerror} (--out).") from None
    with lock:
        for attempt in range(10):  # whoever watches holds it for a moment
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 9:
                    raise DataError(f"Another study is at work in {out}; wait for it or stop it.") from None
                time.sleep(0.05)
        if not lock.seek(0, os.SEEK_END):
            lock.write(f"{name}\n")
            lock.flush()
        yield
