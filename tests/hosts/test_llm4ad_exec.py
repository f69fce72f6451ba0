"""A user's LLM4AD script under `exec`, with the engine's side and its batches as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from llm4ad_user import DOUBLE
from scripted import Chooser

from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options

SCRIPT = '''
import sys
sys.path.insert(0, HOST)
from llm4ad.base import LLM, Evaluation
from llm4ad.method.eoh import EoH, EoHProfiler

class Api(LLM):
    def __init__(self, key):
        super().__init__()
        self.key = key

class Choose(Evaluation):
    def __init__(self):
        super().__init__("""
import numpy as np

def choose(x: float) -> float:
    return 2 * x
""", "Choose a number.", timeout_seconds=5)

    def evaluate_program(self, program_str, callable_func, **kwargs):
        return -abs(callable_func(2.0) - 2 * 3.14159)

EoH(Api("sk-placeholder"), Choose(), EoHProfiler(log_dir=LOGS), max_sample_nums=SAMPLES, max_generations=None,
    pop_size=4, num_samplers=THREADS, num_evaluators=2).run()
print("the script ended")
'''


def script(folder, samples=40, threads=1):
    path = folder / "run_eoh.py"
    text = SCRIPT.replace("HOST", repr(str(DOUBLE))).replace("LOGS", repr(str(folder / "logs")))
    path.write_text(text.replace("SAMPLES", str(samples)).replace("THREADS", str(threads)))
    return path


def attach(path, said=None, chosen=None, **settings):
    settings = {"prefill": False, "sigma": 0.05, "alpha": 0.05, "directions": 4, "arm": "esopt"} | settings
    given, options = host_options(settings, **(chosen or {}))
    return execute(path, [], given, options, engine=Chooser(), say=(said if said is not None else []).append,
                   report=False)  # fmt: skip


def lines(folder, name="samples.jsonl"):
    [path] = folder.glob(f"logs/*/ttc_esopt/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("threads", [1, 3])
def test_mutations_come_in_batches_of_directions_and_every_batch_is_a_step(tmp_path, threads):
    said = []
    assert attach(script(tmp_path, threads=threads), said) == 0
    samples, history = lines(tmp_path), lines(tmp_path, "history.jsonl")
    assert len(samples) == 40 and "candidates in all: 40 (as the host alone)" in said
    assert len(history) >= (4 if threads == 1 else 3)
    mutated = [line for line in samples if line["operator"] in ("m1", "m2")]
    assert all(line["direction"] is None for line in samples if line["operator"] not in ("m1", "m2"))
    for record in history:
        batch = [line for line in mutated if line["order"] in record["candidates"]]
        assert len({line["direction"] for line in batch}) == len(batch) == 4 - record["discarded"]
    assert all(record["discarded"] == 0 for record in history[:-1])  # the last one ends with the run
    assert all(len(line["parents"]) == 1 for line in mutated if line["parent_objectives"])
    assert sum(bool(line["parents"]) for line in mutated) == len(mutated)


def test_a_run_that_was_cut_goes_on_with_its_weights(tmp_path):
    assert attach(script(tmp_path, samples=24)) == 0
    before, steps = lines(tmp_path), lines(tmp_path, "history.jsonl")
    [folder] = tmp_path.glob("logs/*")
    assert attach(script(tmp_path), chosen={"continue_from": folder}) == 0
    after = lines(tmp_path)
    assert len(after) == 40
    saved = [json.loads(line) for line in (folder / "ttc_esopt" / "generations.jsonl").read_text().splitlines()]
    kept = max(line["samples"] for line in saved if line["samples"] <= 24)
    assert after[:kept] == before[:kept]
    assert lines(tmp_path, "history.jsonl")[: len(steps) - 1] == steps[:-1]


def test_a_stored_run_of_the_host_alone_is_gone_on_with(tmp_path):
    assert attach(script(tmp_path, samples=24)) == 0
    [folder] = tmp_path.glob("logs/*")
    shutil.rmtree(folder / "ttc_esopt")
    made = len(json.loads((folder / "samples" / "samples_1~200.json").read_text()))  # LLM4AD stores what it can read
    said = []
    assert attach(script(tmp_path), said, {"continue_from": folder}) == 0
    samples = lines(tmp_path)
    assert [line["operator"] for line in samples[:4]] == ["seed"] * 4
    assert len(samples) == 4 + 40 - made
    assert f"{made} were made before" in "\n".join(said)
    assert Path(folder, "run_log.txt").read_text().count("LLM: TtcEsopt") == 2
