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
from serving import HELLO
from test_cli_serve import Running
from two_ranks import ARGS

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


def test_requests_of_a_server_move_the_model_and_the_other_engine_rebuilds_it(wide, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # as users have it: engine and worker apart
    out = tmp_path / "run"
    running = Running(
        "--engine", "vllm", "--engine-args", json.dumps(ARGS), "--model", wide, "--esopt", "--out", out, "--sigma",
        "0.05", "--alpha", "0.01", "--directions", 2, "--steps", 2, "--max-tokens", 8,
    )  # fmt: skip
    for reward in (1, 2, 4, 3):
        status, reply = running.post("/v1/chat/completions", HELLO)
        assert status == 200 and reply["choices"][0]["message"]["content"]
        assert running.post("/es/tell", {"id": reply["esopt"]["id"], "reward": reward})[0] == 200
    running.process.send_signal(signal.SIGINT)
    code, said = running.end()
    assert code == 0, said[-3000:]
    steps = history(out)
    assert [step["taken"] for step in steps] == [True, False]  # the last one has sigma 0
    assert steps[0]["fingerprint"] in ttc("replay", out)
    assert steps[0]["fingerprint"] in ttc("export", out, "--out", tmp_path / "tuned")


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
    assert 'engine = "vllm"' in (out / "run.toml").read_text().split("[model]")[1]
    assert after[-1]["fingerprint"] in ttc("replay", out)
