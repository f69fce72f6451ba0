"""The progress display: live on a terminal, plain flushed lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ttc_esopt.progress import RunProgress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Flushed(io.StringIO):
    flushed = 0

    def flush(self) -> None:
        self.flushed += 1
        super().flush()


def start(terminal: bool, total: int = 120) -> tuple[RunProgress, Flushed, Clock]:
    file, clock = Flushed(), Clock()
    console = Console(
        force_terminal=terminal,
        file=file,
        width=100,
        color_system=None,
        _environ={"TERM": "xterm"},
        legacy_windows=False,
    )
    return RunProgress(total, "tsp_construct eoh esopt", console, clock=clock), file, clock


def state(done: int, **changes: object) -> dict:
    common = {
        "valid": done // 2,
        "best": 6.91234,
        "sigma": 0.0042,
        "tokens": done * 100,
        "seconds_generating": done * 1.0,
    }
    return {"done": done, "phase": "m1, generation 2", **common, **changes}


def test_off_a_terminal_there_is_one_flushed_plain_line_per_batch():
    progress, file, clock = start(terminal=False)
    with progress:
        progress.update(**state(0, best=None, sigma=None))
        for _ in range(1000):
            progress.tokens_tick(16)
        progress.update(**state(0, phase="evaluating"))
        clock.now += 60
        progress.update(**state(10))
        progress.update(**state(10, phase="m2, generation 2"))
        clock.now += 60
        progress.update(**state(20))
    lines = file.getvalue().splitlines()
    assert len(lines) == 3 and file.flushed >= 3
    assert "\x1b" not in file.getvalue() and "\r" not in file.getvalue()
    assert "best –" in lines[0] and "sigma –" in lines[0] and "valid –" in lines[0] and "time left –" in lines[0]
    for text in ("tsp_construct eoh esopt", "20/120 candidates", "valid 50 %", "best 6.9123", "sigma 4.20e-03",
                 "2,000 tokens", "100 tokens/s", "time left 10:00 min", "m1, generation 2"):  # fmt: skip
        assert text in lines[2], text


def test_a_resumed_run_counts_its_pace_from_where_it_went_on():
    progress, file, clock = start(terminal=False)
    with progress:
        progress.update(**state(100, seconds_generating=0.0))
        clock.now += 30
        progress.update(**state(110, tokens=10_500, seconds_generating=5.0))
    first, second = file.getvalue().splitlines()
    assert "– tokens/s" in first and "time left –" in first
    assert "100 tokens/s" in second and "time left 30 s" in second


@pytest.mark.parametrize("terminal", [True, False])
def test_a_permanent_line_is_printed_whole_and_harmless(terminal):
    progress, file, _ = start(terminal)
    text = "[bold]not markup[/bold] " + "word " * 40
    with progress:
        progress.update(**state(10))
        progress.line(text + "\x1b[2J")
    assert text + "\ufffd[2J" in file.getvalue()


def test_on_a_terminal_the_display_is_live_and_complete():
    progress, file, clock = start(terminal=True)
    with progress:
        progress.update(**state(0))
        clock.now += 60
        progress.update(**state(20))
        before = len(file.getvalue())
        for _ in range(10):
            clock.now += 0.5
            progress.tokens_tick(40)
        progress.update(**state(20, phase="m2, generation 2"))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()[before:])
    for text in ("tsp_construct eoh esopt", "m2, generation 2", "20/120 candidates", "valid 50 %", "best 6.9123",
                 "sigma 4.20e-03", "80 tokens/s", "time left 4:55 min", "━"):  # fmt: skip
        assert text in shown, text
    assert "\x1b[" in file.getvalue()


def test_the_last_update_says_done():
    progress, file, _ = start(terminal=False, total=20)
    with progress:
        progress.update(**state(10))
        progress.update(**state(20, phase="done"))
    assert "20/20 candidates" in file.getvalue().splitlines()[-1] and "  done  " in file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_inside_passes_through_and_leaves_the_terminal_usable(terminal):
    progress, file, _ = start(terminal)
    with pytest.raises(KeyError), progress:
        progress.update(**state(10))
        raise KeyError
    if terminal:
        assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")  # the cursor is shown again


def test_nothing_before_the_first_update_fails():
    progress, _, _ = start(terminal=True, total=0)
    with progress:
        progress.tokens_tick(1)
        progress.line("hello")
