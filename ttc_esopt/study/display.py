"""What a study shows while it works: a live table on a terminal, one plain line per event everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ttc_esopt.rundata import as_number, duration, show_objective, visible
from ttc_esopt.watch import Tail

Say = Callable[[str], None]
_EVERY = 1.0  # seconds between two looks at the runs' files


class Follower:
    """How far a run is, read from what it appends to samples.jsonl; each call reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder / "samples.jsonl")
        self.done = self.replies = self.valid = 0
        self.best: float | None = None
        self.look()
        self.before = self.done  # by an earlier process

    def look(self) -> None:
        """Read on."""
        for line in self._tail.new():
            objective = as_number(line.get("objective"))
            written = line.get("reply") is not None
            self.done += 1
            self.replies += written
            self.valid += written and objective is not None
            if objective is not None:
                self.best = objective if self.best is None else min(self.best, objective)

    def row(self, title: str, total: int, began: float) -> tuple[str, ...]:
        """For the live table."""
        share = f"{100 * self.valid / self.replies:.0f} %" if self.replies else "–"
        return (title, f"{self.done}/{total}", share, show_objective(self.best), duration(time.monotonic() - began))


class StudyDisplay:
    """Progress of a study; use it as a context manager.

    The live table is drawn by `refresh` alone, in the caller's thread: a process that forks should have only one.

    Parameters
    ----------
    say : callable or None
        Takes the lines; None: standard output, with a live table if it is a terminal.
    """

    def __init__(self, say: Say | None = None, console: Console | None = None) -> None:
        self._say = say
        self._console = console or Console()
        self._live: Live | None = None
        self._looked = 0.0

    def __enter__(self) -> Self:
        if self._say is None and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
            self._live = None

    def line(self, text: str) -> None:
        """A line that stays."""
        text = visible(text)
        if self._say is not None:
            self._say(text)
        elif self._live is not None:
            self._console.print(Text(text), soft_wrap=True)
        else:
            self._console.file.write(text + "\n")
            self._console.file.flush()

    def due(self) -> bool:
        """Whether it is time to look at the runs again."""
        now = time.monotonic()
        if now - self._looked < _EVERY:
            return False
        self._looked = now
        return True

    def refresh(self, head: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Draw the live table, if there is one."""
        if self._live is None:
            return
        table = Table(
            "run", "candidates", "valid", "best on train", "time", box=None, padding=(0, 2, 0, 0), title=head,
            title_justify="left",
        )  # fmt: skip
        for row in rows:
            table.add_row(*map(Text, row))
        self._live.update(table, refresh=True)
