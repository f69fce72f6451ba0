"""The live view of a run or a study: follows the files, ends with them, disturbs nothing."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys

import pytest
from report_folders import EVIL, make_run, make_study
from rich.console import Console

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import hold
from ttc_esopt.watch import Tail, bars, watch

RESULT = '\n[result]\nfingerprint = "0"\n'


def watched(folder, *acts, terminal=False):
    """What is shown when `acts` happen one after the other, one between two looks; the last must end the run."""
    rest = list(acts)

    def sleep(_):
        if not rest:
            raise KeyboardInterrupt
        rest.pop(0)()

    console = Console(file=io.StringIO(), force_terminal=terminal, width=110)
    watch(folder, console, sleep=sleep)
    return console.file.getvalue()


def appended(path, text):
    def act():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.write(text)

    return act


@contextlib.contextmanager
def at_work(run):
    """A process, this one, works in the folder of a run."""
    run.mkdir(parents=True, exist_ok=True)
    with hold(run / "samples.jsonl"):
        yield


def line(order, objective=None, **more):
    return json.dumps({"order": order, "objective": objective, "reply": "x", "tokens": 5, "operator": "m1",
                       "generation": 1, **more}) + "\n"  # fmt: skip


def test_a_tail_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    assert tail.new() == [{"a": 1}] and tail.new() == []
    with open(path, "ab") as file:
        file.write(b"}\n[1]\njunk\xff\n" + b"[" * 100_000 + b'\n{"a": 3}\n')
    assert tail.new() == [{"a": 2}, {"a": 3}]
    path.write_bytes(b'{"b": 1}\n')  # begun anew
    assert tail.new() == [{"b": 1}]


def test_a_run_is_waited_for_followed_and_left_at_its_end(tmp_path):
    run = tmp_path / "demo"
    acts = [
        lambda: None,
        appended(run / "run.toml", '[settings]\nproblem = "p"\nbudget = 3\n'),
        appended(run / "samples.jsonl", line(0, 7.0)),
        lambda: None,
        appended(run / "samples.jsonl", line(1, None, failure="reply") + line(2, 6.5)[:20]),
        appended(run / "samples.jsonl", line(2, 6.5)[20:]),
        appended(run / "history.jsonl", '{"t": 0, "taken": true, "sigma": 0.006, "rewards": [1, 0]}\n'),
        appended(run / "run.toml", RESULT),
    ]
    with at_work(run):
        out = watched(run, *acts).splitlines()
    assert out[0] == f"{run} has not begun yet; waiting" and out[-1] == f"{run} has ended"
    assert out[2].startswith("demo: 1/3 candidates  valid 100 %") and "best 7.0000" in out[2]
    assert "2/3 candidates  valid 50 %" in out[3] and "3/3 candidates" in out[4] and "best 6.5000" in out[4]
    assert "1/1 steps taken  sigma 6.00e-03" in out[5]
    assert len(out) == 8  # nothing is said where nothing changed
    assert sorted(path.name for path in run.iterdir()) == ["history.jsonl", "run.toml", "samples.jsonl"]


def test_a_run_that_ends_at_its_limit_of_tokens_has_ended(tmp_path):
    run = tmp_path / "demo"
    acts = [
        appended(run / "run.toml", "[settings]\nmax_tokens_total = 10\n"),
        appended(run / "samples.jsonl", line(0, 7.0) + line(1, 6.0)),
        lambda: None,
        appended(run / "best.json", '{"objective": 6.0, "rows": []}'),
    ]
    with at_work(run):
        out = watched(run, *acts)
    assert out.splitlines()[-1] == f"{run} has ended"


def test_a_run_whose_process_is_gone_is_left(tmp_path):
    run, waiting = tmp_path / "demo", [lambda: None] * 12
    with contextlib.ExitStack() as process:
        process.enter_context(at_work(run))
        out = watched(
            run,
            appended(run / "run.toml", "[settings]\nbudget = 3\n"),
            appended(run / "samples.jsonl", line(0, 7.0)),
            lambda: None,
            process.close,  # killed
            *waiting,
        )
    last = f"no process works in {run} any more; go on with: ttc-esopt resume {run}"
    assert out.splitlines()[-1] == last and "1/3 candidates" in out
    for terminal in (False, True):
        assert watched(run, *waiting, terminal=terminal).rstrip().endswith(last)
    # what goes on in the meantime is not left, nor is a host's run sent to another command
    out = watched(run, *waiting[:8], appended(run / "samples.jsonl", line(1, 6.0)), *waiting[:8])
    assert "2/3 candidates" in out and out.splitlines()[-1].startswith("no longer watching")
    appended(run / "run.toml", '[run.host]\nname = "eoh"\n')()
    assert watched(run, *waiting).splitlines()[-1] == f"no process works in {run} any more"


def test_control_c_ends_the_view_alone(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    out = watched(run)
    assert "20/20 candidates" in out and out.splitlines()[-1] == "no longer watching; the run goes on"


def test_a_study_is_followed_run_by_run(tmp_path):
    study = make_study(tmp_path / "study", seeds=1, candidates=20, missing=1)
    last = study / "kp_construct" / "esopt" / "seed-1"
    out = watched(study, lambda: make_run(last, 20, ended=True))
    assert out.count("20/20 candidates") == 6 and out.splitlines()[-1] == f"{study} has ended"
    assert "kp_construct esopt seed 1: 20/20 candidates" in out


@pytest.mark.parametrize("kind", ["run", "study", "nothing"])
def test_on_a_terminal_there_is_a_view_without_the_runs_control_codes(tmp_path, kind):
    folder = tmp_path / "demo"
    if kind == "run":
        make_run(folder, evil=True)
    elif kind == "study":
        make_study(folder, seeds=1, candidates=20)
    out = watched(folder, lambda: None, terminal=True)
    wanted = {"run": "best so far", "study": "1 not begun yet", "nothing": "has not begun yet; waiting"}[kind]
    assert wanted in out and "\x1b[2J" not in out
    assert kind != "run" or "alert(1)" in out and EVIL not in out


def test_the_command_ends_with_the_run_and_with_a_signal(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20, ended=True)
    command = [sys.executable, "-m", "ttc_esopt.cli.main", "report", "--watch"]
    done = subprocess.run([*command, str(run)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"{run} has ended"
    assert not (run / "report.html").exists()
    waiting = subprocess.Popen([*command, str(tmp_path / "later")], stdout=subprocess.PIPE, text=True)
    assert "has not begun yet" in waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(timeout=60) == 0
    assert waiting.stdout.read() == "no longer watching; the run goes on\n"
    waiting.stdout.close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        watch(tmp_path / "x")


def test_bars_are_as_wide_as_asked():
    assert bars([0, 7, 2]) == "▁█▃"
    assert len(bars(list(range(1000)), 40)) == 40 and bars([5, 5]) == "▁▁"
