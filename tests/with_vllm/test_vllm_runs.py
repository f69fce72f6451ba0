"""Whole runs with the vLLM engine, by the command line as installed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ARGS

TTC = Path(sys.executable).parent / "ttc-esopt"
ENV = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def command(folder, out):
    return [
        TTC, "run", "--engine", "vllm", "--engine-args", json.dumps(ARGS | {"max_model_len": 2048}), "--problem",
        "tsp_construct", "--model", folder, "--esopt", "--budget", "28", "--directions", "4", "--max-tokens", "8",
        "--sigma", "0.05", "--out", out,
    ]  # fmt: skip


def ttc(*words):
    """What a command printed."""
    done = subprocess.run([TTC, *words], env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def history(out):
    file = out / "history.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model with room for the prompts of a problem."""
    from tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("wide"), head_dim=32, context=8192)


def test_a_run_ends_and_the_other_engine_rebuilds_its_weights(wide, tmp_path):
    out = tmp_path / "run"
    ttc(*command(wide, out)[1:])
    assert 'engine = "vllm"' in (out / "run.toml").read_text().split("[model]")[1]
    steps = history(out)
    assert any(step["taken"] for step in steps)
    assert steps[-1]["fingerprint"] in ttc("replay", out)
    assert steps[-1]["fingerprint"] in ttc("export", out, "--out", tmp_path / "tuned")


def test_a_killed_run_goes_on_to_its_end(wide, tmp_path):
    out = tmp_path / "run"
    with subprocess.Popen(command(wide, out), env=ENV, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None and not history(out):
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    before = history(out)
    assert before
    ttc("resume", out)
    after = history(out)
    assert after[: len(before)] == before and len(after) > len(before)
    assert after[-1]["fingerprint"] in ttc("replay", out)
