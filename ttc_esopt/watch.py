"""`report --watch`: a run or a study while it works, from its files alone.

Nothing is written, and no lock is held for longer than a look takes, so that watching never disturbs. Files are
followed: what is new since the last look is read, and a line without its end waits for the next look. On a terminal the
view is redrawn; elsewhere a line is printed for each run in which something changed.
"""

from __future__ import annotations

import fcntl
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import parsed
from ttc_esopt.rundata import all_numbers, as_number, as_table, ended_at_limit, show_objective, visible

_BARS = "▁▂▃▄▅▆▇█"
_GRACE = 10  # looks at a folder in which nobody works, before it is left: one that goes on loads a model first
_RECENT = 40  # replies whose valid share is shown, and values of the small curve


class Tail:
    """New whole lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def new(self) -> list[dict]:
        """JSON objects of the lines since the last call; lines that are none are passed over."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._at:
                    self._at = 0  # begun anew
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            if (value := parsed(line)) is not None:
                found.append(value)
        return found


@dataclass
class Watched:
    """What is known of one run so far."""

    folder: Path
    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    attached: bool = False  # to a host, which goes on in a way of its own
    begun: bool = False
    ended: bool = False
    candidates: int = 0
    replies: int = 0
    valid: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of generating
    best: float | None = None
    course: list[float] = field(default_factory=list)  # best so far, one per candidate
    recent: list[bool] = field(default_factory=list)  # whether the latest replies are valid
    failures: Counter[str] = field(default_factory=Counter)
    last: str = ""
    steps: int = 0
    taken: int = 0
    sigma: float | None = None
    rewards: list[float] = field(default_factory=list)
    skipped: str = ""

    def __post_init__(self) -> None:
        names = ("samples.jsonl", "history.jsonl", "timings.jsonl")
        self._tails = [Tail(self.folder / name) for name in names]
        self._seen: Any = None  # what run.toml looked like when it was last read
        self._result = False

    def look(self) -> bool:
        """Read what is new; whether anything is."""
        changed = self._settings()
        samples, history, timings = (tail.new() for tail in self._tails)
        for line in samples:
            self._candidate(line)
        for line in history:
            self._step(line)
        self.seconds += sum(as_number(line.get("generate")) or 0.0 for line in timings)
        self.begun = self.begun or bool(samples)
        before, self.ended = self.ended, self._result or self.ended or self._at_limit()
        return changed or bool(samples or history) or self.ended != before

    def _settings(self) -> bool:
        """Read run.toml if it has changed; whether it has."""
        path = self.folder / "run.toml"
        try:
            stamp = path.stat()
            if (stamp.st_mtime_ns, stamp.st_size) == self._seen:
                return False
            document = tomllib.loads(path.read_bytes().decode("utf-8", "replace"))
        except (OSError, ValueError):
            return False
        self._seen, self.begun = (stamp.st_mtime_ns, stamp.st_size), True
        self.settings, self._result = as_table(document.get("settings")), bool(as_table(document.get("result")))
        self.attached = "host" in as_table(document.get("run"))
        return True

    def _at_limit(self) -> bool:
        """Whether the run ended at its limit of tokens: then best.json has the values of the end, and no result is."""
        limit = as_number(self.settings.get("max_tokens_total")) or 0
        if not 0 < limit <= self.tokens:
            return False  # as it is nearly always: no file has to be read
        try:
            best = parsed((self.folder / "best.json").read_bytes())
        except OSError:
            best = None
        return ended_at_limit(limit, self.tokens, self.best is not None, best or {})

    def _candidate(self, line: dict) -> None:
        objective = as_number(line.get("objective"))
        self.candidates += 1
        self.tokens += int(as_number(line.get("tokens")) or 0)
        if line.get("reply") is not None:
            self.replies += 1
            self.valid += objective is not None
            self.recent = [*self.recent, objective is not None][-_RECENT:]
        if line.get("failure"):
            self.failures[str(line["failure"])] += 1
        if objective is not None and (self.best is None or objective < self.best):
            self.best = objective
        if self.best is not None:
            self.course.append(self.best)
        self.last = f"{line.get('operator')}, generation {line.get('generation')}"

    def _step(self, line: dict) -> None:
        self.steps += 1
        self.taken += bool(line.get("taken"))
        self.sigma = as_number(line.get("sigma"))
        self.rewards = all_numbers(line.get("rewards"))
        self.skipped = "" if line.get("taken") else str(line.get("skipped") or "not taken")

    @property
    def word(self) -> str:
        """How far it is."""
        return "ended" if self.ended else "at work" if self.begun else "not begun yet"

    def numbers(self) -> list[str]:
        """What there is to say, in short pieces."""
        budget = self.settings.get("budget")
        total = f"/{budget}" if isinstance(budget, int) else ""
        share = f"{100 * self.valid / self.replies:.0f} %" if self.replies else "–"
        recent = f" (last {len(self.recent)}: {100 * sum(self.recent) / len(self.recent):.0f} %)" if self.recent else ""
        speed = f"{self.tokens / self.seconds:.0f} tokens/s" if self.seconds and self.tokens else "– tokens/s"
        found = [f"{self.candidates}{total} candidates", f"valid {share}{recent}", f"best {show_objective(self.best)}"]
        if self.steps:
            found.append(f"{self.taken}/{self.steps} steps taken")
            found.append("sigma –" if self.sigma is None else f"sigma {self.sigma:.2e}")
        return [*found, f"{self.tokens:,} tokens", speed]


def watch(
    folder: Path, console: Console | None = None, *, every: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show a run or a study until it has ended, no process works in it any more, or Ctrl-C is pressed.

    One that has not begun is waited for.

    Parameters
    ----------
    folder : of a run or a study; it need not exist yet
    console : where to show it; standard output by default
    every : seconds between looks
    sleep : waits so long

    Raises
    ------
    ConfigurationError
        `folder` is a file.
    """
    folder = Path(folder)
    if folder.is_file():
        raise ConfigurationError(f"{folder} is a file, expected the folder of a run or a study.")
    console = console or Console()
    live = None
    if console.is_terminal and not console.is_dumb_terminal:
        live = Live(console=console, auto_refresh=False)
    try:
        if live:
            live.start()
        _follow(folder, console, live, every, sleep)
    except KeyboardInterrupt:
        if live:
            live.stop()
        _line(console, "no longer watching; the run goes on")
    finally:
        if live:
            live.stop()


def _follow(folder: Path, console: Console, live: Live | None, every: float, sleep: Callable[[float], None]) -> None:
    said_waiting, alone = False, 0
    runs: list[Watched] = []
    while True:
        if not runs:
            runs = _runs(folder)
        changed = [run for run in runs if run.look()]
        begun = any(run.begun for run in runs)
        if live:
            live.update(_view(folder, runs) if begun else Text(f"{folder} has not begun yet; waiting"), refresh=True)
        elif not begun and not said_waiting:
            _line(console, f"{folder} has not begun yet; waiting")
            said_waiting = True
        else:
            for run in changed:
                _line(console, f"{run.title}: {'  '.join(run.numbers())}  [{run.last or run.word}]")
        ended = all(run.ended for run in runs)
        alone = alone + 1 if begun and not changed and _left(folder) else 0
        if runs and (ended or alone > _GRACE):
            if live:
                live.stop()
            if not ended and (folder / "study.toml").is_file():
                _line(console, f"no study is at work in {folder} any more")
            elif not ended:
                way = "" if runs[0].attached else f"; go on with: ttc-esopt resume {folder}"
                _line(console, f"no process works in {folder} any more{way}")
            elif not live:
                _line(console, f"{folder} has ended")
            return
        sleep(every)


def _left(folder: Path) -> bool:
    """Whether a folder was worked in and no process holds it now: it was killed or stopped, or runs have failed."""
    held = ".lock" if (folder / "study.toml").is_file() else "samples.jsonl"
    try:
        with open(folder / held, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # no such file, or held
        return False
    return True


def _runs(folder: Path) -> list[Watched]:
    """The run of a folder, or all runs of a study's grid; none while there is neither."""
    if (folder / "study.toml").is_file():
        from ttc_esopt.study import read_recipe

        cells = read_recipe(folder / "study.toml").cells(folder)
        return [Watched(cell.folder, f"{cell.problem} {cell.arm} seed {cell.seed}") for cell in cells]
    if any((folder / name).is_file() for name in ("run.toml", "samples.jsonl")):
        return [Watched(folder, folder.resolve().name)]
    return []


def _view(folder: Path, runs: Sequence[Watched]) -> Group:
    if len(runs) == 1 and runs[0].folder == folder:
        return _view_of_run(runs[0])
    words = Counter(run.word for run in runs)
    head = Text(f"{folder.name}  ", style="bold")
    head.append(", ".join(f"{count} {word}" for word, count in words.items()), style="not bold cyan")
    table = Table("run", "", "candidates", "valid", "best", "steps", "tokens", "tokens/s", box=None, padding=(0, 1))
    shown = sorted(runs, key=lambda run: ("at work", "ended", "not begun yet").index(run.word))
    for run in shown:
        share = f"{100 * run.valid / run.replies:.0f} %" if run.replies else "–"
        speed = f"{run.tokens / run.seconds:.0f}" if run.seconds and run.tokens else "–"
        budget = run.settings.get("budget", "–")
        row = (
            run.title, run.word, f"{run.candidates}/{budget}", share, show_objective(run.best),
            f"{run.taken}/{run.steps}", f"{run.tokens:,}", speed,
        )  # fmt: skip
        style = {"at work": "", "ended": "green"}.get(run.word, "dim")
        table.add_row(*(Text(visible(cell)) for cell in row), style=style)
    return Group(head, table)


def _view_of_run(run: Watched) -> Group:
    settings = [str(run.settings[name]) for name in ("problem", "scaffold", "arm", "model") if name in run.settings]
    head = Text(visible(f"{run.title}: {' '.join(settings)}"), style="bold")
    head.append(f"  {run.word}", style="not bold cyan")
    rows = [head, Text(visible("  ".join(run.numbers())))]
    if len(run.course) > 1:
        ends = f"{show_objective(run.course[0])} → {show_objective(run.best)}"
        rows.append(Text(f"best so far  {bars(run.course)}  {ends}"))
    if run.rewards:
        mean = sum(run.rewards) / len(run.rewards)
        ends = f"from {min(run.rewards):.3g} to {max(run.rewards):.3g}, mean {mean:.3g}"
        text = f"last rewards  {bars(sorted(run.rewards))}  {ends}"
        rows.append(Text(visible(text + (f"; step not taken: {run.skipped}" if run.skipped else ""))))
    if run.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in run.failures.most_common(6))
        rows.append(Text(visible(f"failures  {kinds}")))
    if run.last:
        rows.append(Text(visible(f"last candidate: {run.last}"), style="dim"))
    return Group(*rows)


def bars(values: Sequence[float], width: int = _RECENT) -> str:
    """A small curve of block characters, at most `width` of them, higher for larger values."""
    size = max(1, -(-len(values) // width))
    picked = [values[min(len(values), at + size) - 1] for at in range(0, len(values), size)]
    low, span = min(picked), max(picked) - min(picked)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1)) if span else 0] for value in picked)


def _line(console: Console, text: str) -> None:
    console.file.write(visible(text) + "\n")  # not through rich, which would wrap it at 80 columns
    console.file.flush()
