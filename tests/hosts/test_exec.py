"""`exec` as a user types it, and how it ends: Ctrl-C once and twice, wrong usage, keys in the command line."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from eoh2_user import DOUBLE, user_script
from in_this_process import typed

from ttc_esopt.cli.exec import without_keys

TESTS = Path(__file__).parents[1]
DRIVER = """
import sys, time
sys.path[:0] = [TESTS, TESTS + "/hosts"]
from pathlib import Path
from scripted import Chooser
from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options

class Slow(Chooser):
    def generate(self, requests, sampling, progress=None):
        if self.asked >= 6:
            print("writing", flush=True)
            time.sleep(SECONDS)
        return super().generate(requests, sampling, progress)

given, options = host_options({"arm": "esopt", "prefill": False}, directions=3)
sys.exit(execute(Path(SCRIPT), [], given, options, engine=Slow(), report=False))
"""


def begun(tmp_path, seconds):
    """A run that is in the middle of a batch, which takes `seconds` to be written."""
    script = user_script(tmp_path, str(DOUBLE), generations=2)
    text = DRIVER.replace("TESTS", repr(str(TESTS))).replace("SCRIPT", repr(str(script)))
    process = subprocess.Popen(
        [sys.executable, "-c", text.replace("SECONDS", str(seconds))], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line == "writing\n":
            return process
    pytest.fail("it never wrote")


def test_ctrl_c_once_finishes_the_batch_and_saves_the_generation(tmp_path):
    process = begun(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "finished and saved" in out and "the script ended" not in out
    assert (tmp_path / "results" / "pops" / "population_generation_1.json").exists()
    assert not (tmp_path / "results" / "pops" / "population_generation_2.json").exists()


def test_ctrl_c_twice_ends_at_once_and_leaves_nothing_running(tmp_path):
    process = begun(tmp_path, 60)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)  # its pipe is closed: no process of the host's holds it either
    assert time.monotonic() - began < 20 and process.returncode == 1 and "stopped at once" in out
    assert (tmp_path / "results" / "ttc_esopt" / "samples.jsonl").read_text().count("\n") == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch.py"], "No such file: nosuch.py"),
        (["runEoH.py", "--esopt"], "put it before"),
        (["--directions", "many", "runEoH.py"], "Expected a number or host, got 'many'"),
        (["--parser", "mine", "runEoH.py"], "Expected parser ours, host"),
        (["--continue", "nowhere", "runEoH.py"], "No such folder: nowhere"),
        (["--seeds", "nosuch.py", "runEoH.py"], "Expected a Python program, got nosuch.py"),
        (["--directions", "host", "--replies-per-direction", "2", "runEoH.py"], "one reply per direction"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_2(tmp_path, arguments, says):
    user_script(tmp_path, str(DOUBLE))
    done = typed("exec", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_dry_run_prints_the_plan_and_writes_nothing_of_ours(tmp_path):
    script = user_script(tmp_path, str(DOUBLE), pop=4, generations=20)
    done = typed("exec", "--esopt", "--dry-run", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "candidates in all: 448 (the host alone: 88; --directions host keeps the host's own numbers)" in done.stdout
    assert not (tmp_path / "results" / "ttc_esopt").exists()


def test_an_option_of_ours_behind_the_script_is_pointed_out(tmp_path):
    script = user_script(tmp_path, str(DOUBLE))
    done = typed("exec", "--dry-run", script, "--directions=3", "--mine", "4", cwd=tmp_path)
    assert done.returncode == 0 and "note: --directions=3 stands behind the script" in done.stdout
    assert "10 by m1" in done.stdout and "--mine" not in done.stdout


def test_an_interpreter_that_is_none_is_one_line(tmp_path):
    script = user_script(tmp_path, str(DOUBLE))
    done = typed("exec", "--python", "/no/python", script, cwd=tmp_path)
    assert done.returncode == 2 and "/no/python cannot be started" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "stored"),
    [
        ("exec main.py api_key=abc", "exec main.py api_key=..."),
        ("exec main.py --api-key abc --hf-token=xyz", "exec main.py --api-key ... --hf-token=..."),
        ("exec main.py sk-12345678", "exec main.py sk-..."),
        ("exec main.py --api-key 'a b c' --n 3", "exec main.py --api-key ... --n 3"),
        ("exec main.py --openai-key 123 --passwd=abc hf_12345678", "exec main.py --openai-key ... --passwd=... hf_..."),
        ("exec main.py https://me:secret1@host/v1 --author me", "exec main.py https://me:...@host/v1 --author me"),
        ("exec --max-tokens 96 --max-tokens-total 5 main.py", "exec --max-tokens 96 --max-tokens-total 5 main.py"),
    ],
)
def test_keys_of_a_command_line_are_not_stored(command, stored):
    assert without_keys(command) == stored
