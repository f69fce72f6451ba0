"""What a run shows while it works: a live display on a terminal, one plain line per batch everywhere else.

The search loop calls `update` between its phases and passes `tokens_tick` to the engine. Off a terminal nothing but
whole lines is written, each flushed, without control codes, so that a log file can be followed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_WINDOW = 15.0  # seconds over which the live tokens/s are taken


class RunProgress:
    """Progress of one run; use it as a context manager.

    Parameters
    ----------
    total : int
        Candidates planned.
    title : str
        What runs: problem, scaffold, arm.
    console : rich.console.Console, optional
        Where to write; standard output by default. A live display needs a terminal with cursor control.
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self, total: int, title: str, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.title = total, title
        self._console = console or Console()
        self._clock = clock
        self._live: Live | None = None
        self._done = self._valid = self._tokens = 0
        self._best: float | None = None
        self._sigma: float | None = None
        self._seconds_generating = 0.0
        self._phase = "starting"
        self._began: tuple[float, int] | None = None  # clock and candidates at the first update (not 0 after a resume)
        self._reached: tuple[float, int] | None = None  # the same when the number of candidates last changed
        self._tokens_before = 0  # tokens at the first update
        self._ticks: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=4, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(
        self,
        *,
        done: int,
        valid: int,
        best: float | None,
        sigma: float | None,
        tokens: int,
        seconds_generating: float,
        phase: str,
    ) -> None:
        """Say where the run stands.

        Parameters
        ----------
        done, valid : int
            Candidates so far, and how many of them are valid.
        best : float or None
            Lowest objective so far.
        sigma : float or None
            Radius of the coming step; None without ES.
        tokens : int
            Tokens written so far, also by an earlier process of the same run.
        seconds_generating : float
            Seconds that this process has spent generating.
        phase : str
            What happens now.
        """
        now = self._clock()
        changed = self._began is None or done != self._done
        if self._began is None:
            self._began = (now, done)
            self._tokens_before = tokens
        if changed:
            self._reached = (now, done)
        self._done, self._valid, self._best, self._sigma = done, valid, best, sigma
        self._tokens, self._seconds_generating, self._phase = tokens, seconds_generating, phase
        if self._live is not None:
            self._live.refresh()
        elif changed:
            self._write(f"{self.title}: {'  '.join(self._numbers())}  {self._time_left()}  [{phase}]")

    def tokens_tick(self, n: int) -> None:
        """Count `n` new tokens. Cheap: called after every token step; the display refreshes at its own pace."""
        now = self._clock()
        self._ticks.append((now, n))
        while self._ticks and now - self._ticks[0][0] > _WINDOW:
            self._ticks.popleft()

    def line(self, text: str) -> None:
        """Print a line that stays, above the live display."""
        self._write(text)

    def _write(self, text: str) -> None:
        text = "".join(letter if letter.isprintable() or letter == "\t" else "\ufffd" for letter in text)
        if self._live is not None:
            self._console.print(Text(text), soft_wrap=True)
        else:  # not through rich, which would wrap the line at 80 columns
            self._console.file.write(text + "\n")
            self._console.file.flush()

    def _numbers(self) -> list[str]:
        done = self._done
        return [
            f"{done}/{self.total} candidates",
            f"valid {100 * self._valid / done:.0f} %" if done else "valid –",
            f"best {self._best:.4f}" if self._best is not None else "best –",
            f"sigma {self._sigma:.2e}" if self._sigma is not None else "sigma –",
            f"{self._tokens:,} tokens",
            self._speed(),
        ]

    def _speed(self) -> str:
        """Tokens per second: of the running batch while tokens come, else over all that this process generated."""
        ticks = list(self._ticks)
        now = self._clock()
        if self._live is not None and len(ticks) > 1 and now - ticks[-1][0] < 2 and ticks[-1][0] > ticks[0][0]:
            # the first tick ends an interval that began before the window
            return f"{sum(n for _, n in ticks[1:]) / (ticks[-1][0] - ticks[0][0]):.0f} tokens/s"
        written = self._tokens - self._tokens_before
        if written > 0 and self._seconds_generating > 0:
            return f"{written / self._seconds_generating:.0f} tokens/s"
        return "– tokens/s"

    def _time_left(self) -> str:
        """From the pace of the candidates so far, counted down between batches."""
        if self._done >= self.total:
            return "done"
        if self._began is None or self._reached is None or self._reached[1] <= self._began[1]:
            return "time left –"
        pace = (self._reached[0] - self._began[0]) / (self._reached[1] - self._began[1])
        left = max(0.0, pace * (self.total - self._reached[1]) - (self._clock() - self._reached[0]))
        return f"time left {_duration(left)}"

    def _render(self) -> Group:
        head = Text(self.title, style="bold", overflow="ellipsis", no_wrap=True)
        head.append(f"  {self._phase}", style="not bold cyan")
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(total=max(1, self.total), completed=self._done, complete_style="cyan", finished_style="green")
        numbers = self._numbers()
        row.add_row(bar, Text(f"{numbers[0]}  {self._time_left()}"))
        return Group(head, row, Text("  ".join(numbers[1:])))


def _duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02d} min"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02d} h"
