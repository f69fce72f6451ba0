"""A study of real runs, in processes of their own: killed, it goes on to the bytes of one that nothing disturbed."""

import json
import subprocess
import sys
from pathlib import Path

from test_study import wait_for
from tiny_model import make_tiny_model

SMALL = """
from ttc_esopt.problems.tsp_construct import TspConstruct

class Small(TspConstruct):
    name = "small"
    splits = {"train": (50,), "test": (50,)}
    counts = {"train": 2, "test": 2}

    def instances(self, split, size):
        return super().instances(split, size)[:2]
"""


def test_a_study_killed_goes_on_to_the_same_bytes_whatever_the_number_of_jobs(tmp_path):
    make_tiny_model(tmp_path / "model")
    (tmp_path / "small.py").write_text(SMALL)
    text = 'seeds = [3]\nproblems = ["small.py:Small"]\n[arms.esopt]\narm = "esopt"\nmodel = "model"\nbudget = 20\n'
    (tmp_path / "grid.toml").write_text(text + "population = 2\ndirections = 4\nmax_tokens = 24\n")
    command = [sys.executable, "-m", "ttc_esopt.cli.main", "study", "grid.toml", "--no-report", "--out"]

    def begin(out, *more):
        return subprocess.Popen(
            [*command, out, *more], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    whole, cut = begin("whole", "--jobs", "2"), begin("cut", "--jobs", "1")
    place = tmp_path / "cut" / "Small" / "esopt" / "seed-3"
    wait_for(lambda: (place / "samples.jsonl").exists() and (place / "samples.jsonl").stat().st_size, 300)
    cut.kill()
    cut.communicate()
    wait_for(lambda: not working_in(place), 60)
    assert not (tmp_path / "cut" / "comparison.json").exists()
    again = begin("cut", "--jobs", "1")
    printed = again.communicate(timeout=600)[0]
    assert again.returncode == 0 and "1 to go on with, 0 to start" in printed, printed
    printed = whole.communicate(timeout=600)[0]
    assert whole.returncode == 0 and printed.splitlines()[-1] == "comparison: whole/comparison.json", printed
    other = tmp_path / "whole" / "Small" / "esopt" / "seed-3"
    for name in ("samples.jsonl", "history.jsonl"):
        assert (place / name).read_bytes() == (other / name).read_bytes()
    command = "ttc-esopt run --config cut/cells/Small-esopt-3.toml --workers"
    assert f'command = "{command}' in (place / "run.toml").read_text()
    same, different = (json.loads((tmp_path / out / "comparison.json").read_text()) for out in ("whole", "cut"))
    assert same == different and same["runs"][0]["values"]["test"]["size"] == 50


def working_in(place):
    """Process ids of runs in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            here = (process / "cwd").resolve()
        except OSError:
            continue
        if any((here / word) == place for word in words if word.endswith(place.name)):
            found.append(process.name)
    return found
