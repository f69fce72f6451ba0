"""The main job with the real small model, as the command line does it: run, replay, kill and resume, export."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from in_this_process import typed
from test_docs_commands import README, commands, few, learned, smaller

from ttc_esopt.problems.kp_construct import KpConstruct

pytestmark = pytest.mark.model
SMALL = """
from ttc_esopt.problems.tsp_construct import TspConstruct

class Small(TspConstruct):
    def instances(self, split, size):
        return super().instances(split, size)[:16]
"""
RUN = [
    *("run", "--esopt", "--model", "smollm2-135m", "--budget", "18", "--directions", "6", "--offspring", "2"),
    *("--init", "seeds", "--operators", "e1,m1,m2", "--sigma", "6e-3:6e-3", "--max-tokens", "96", "--seed", "5"),
    *("--threads", "1", "--workers", "1"),
]


def content(folder):
    return {name: (folder / name).read_bytes() for name in ("samples.jsonl", "history.jsonl", "best.py")}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The run's, but for its folder; on few instances, since a thousand say no more here."""
    (file := tmp_path_factory.mktemp("problem") / "small.py").write_text(SMALL)
    return [*RUN, "--problem", f"{file}:Small", "--out"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, command):
    folder = tmp_path_factory.mktemp("real") / "run"
    done = typed(*command, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"best heuristic: {folder / 'best.py'}"
    return folder


def test_a_run_leaves_samples_steps_best_heuristic_and_report(undisturbed):
    lines = [json.loads(line) for line in (undisturbed / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 18 and sum(line["reply"] is not None for line in lines) == 14
    assert all(line["tokens"] > 0 and line["prompt_tokens"] > 0 for line in lines if line["reply"] is not None)
    steps = [json.loads(line) for line in (undisturbed / "history.jsonl").read_text().splitlines()]
    assert len(steps) == 2 and all(len(step["seeds"]) == 6 for step in steps)
    best = json.loads((undisturbed / "best.json").read_text())
    assert best["chosen_on"] == "val" and best["test"] > 0
    assert "<svg" in (undisturbed / "report.html").read_text()


def test_replay_prints_the_fingerprint_that_the_run_ended_with(undisturbed):
    last = json.loads((undisturbed / "history.jsonl").read_text().splitlines()[-1])["fingerprint"]
    done = typed("replay", undisturbed, "--model", "smollm2-135m")
    assert done.returncode == 0 and done.stdout.split()[0] == last, done.stderr


def test_a_run_killed_at_a_random_moment_resumes_to_the_bytes_of_the_undisturbed_run(undisturbed, command, tmp_path):
    folder = tmp_path / "killed"
    words = [sys.executable, "-m", "ttc_esopt.cli.main", *command, folder]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    samples, count = folder / "samples.jsonl", random.randrange(1, 18)
    while not samples.exists() or samples.read_bytes().count(b"\n") < count:
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(random.uniform(0, 1))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = typed("resume", folder)
    assert done.returncode == 0, done.stderr
    assert content(folder) == content(undisturbed)


def test_commands_of_the_readme_that_go_on_from_a_model_which_has_learned(undisturbed, tmp_path, monkeypatch):
    steps = [json.loads(line) for line in (undisturbed / "history.jsonl").read_text().splitlines()]
    assert any(step["taken"] for step in steps), [step["skipped"] for step in steps]
    monkeypatch.setattr(KpConstruct, "instances", few(KpConstruct.instances))
    shutil.copytree(undisturbed, tmp_path / "demo")
    listed = [command for command in commands(README) if learned(command)]
    assert len(listed) == 2
    for command in listed:
        done = typed(*shlex.split(smaller(command))[1:], cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_exported_weights_are_those_of_the_run(undisturbed, tmp_path):
    done = typed("export", undisturbed, "--out", tmp_path / "tuned")
    assert done.returncode == 0, done.stderr
    fingerprint = done.stdout.split()[1]
    from ttc_esopt.engines import load_engine
    from ttc_esopt.es.noise import NoiseKind

    engine = load_engine(str(tmp_path / "tuned"), noise=NoiseKind.parse("lowrank:1"))
    assert engine.fingerprint() == fingerprint
    engine.close()
