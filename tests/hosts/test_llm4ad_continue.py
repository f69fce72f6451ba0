"""Going on from what LLM4AD has stored, by `--continue` and by its own resume."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from pathlib import Path

import llm4ad_user
import pytest
from llm4ad_user import SAMPLES, client, eoh, objectives, problem, says, stored

from ttc_esopt.scaffolds.hosts.client import HostError

host, attach = llm4ad_user.host, llm4ad_user.attach
BEFORE = 12


@pytest.fixture
def folder(host, attach):
    """The log folder of a run of `BEFORE` samples."""
    attach(client())
    eoh(host, max_sample_nums=BEFORE).run()
    return glob.glob("logs/*")[0]


def last_population(folder):
    return Path(max(glob.glob(f"{folder}/population/*.json"), key=lambda path: int(re.search(r"_(\d+)\.", path)[1])))


@pytest.mark.parametrize("place", ["", "population"])
def test_it_goes_on_in_the_same_folder(host, attach, folder, place):
    before = stored("population/pop_*.json")
    c = attach(client(lambda o, p, n: says(o, p, n + 100), **{"continue": os.path.join(folder, place)}))
    eoh(host).run()
    assert c.plan["continued"]["generation"] == max(before)
    assert Path(c.plan["folder"]).parent == Path(folder).resolve()
    assert "i1" not in {one["operator"] for one in c.candidates} and len(c.candidates) == SAMPLES - BEFORE
    assert [one["objective"] for one in c.given_seeds] == [-one["score"] for one in before[max(before)]]
    assert c.candidates[0]["generation"] == max(before) and min(c.told) == max(before) + 1
    assert list(stored("population/pop_*.json")) == [*before, *c.told]
    [samples] = stored("samples/samples_*~200.json").values()
    assert [one["sample_order"] for one in samples] == list(range(1, SAMPLES + 1))
    assert [Path(path).name for path in glob.glob("logs/*")] == [Path(folder).name]


def test_without_a_profiler_too(host, attach):
    attach(client())
    eoh(host, profiler=None, max_sample_nums=BEFORE).run()
    [folder] = glob.glob("llm4ad_*")
    c = attach(client(lambda o, p, n: says(o, p, n + 100), **{"continue": folder}))
    eoh(host, profiler=None).run()
    assert Path(c.plan["folder"]) == Path(folder).resolve() / "ttc_esopt"
    assert max(c.told) == max(stored("population/pop_*.json"))
    assert min(one["objective"] for one in c.told[max(c.told)][0]) < -99


def test_a_run_of_ours_counts_and_draws_as_it_would_have(host, attach):
    whole = attach(client())
    eoh(host).run()
    [folder] = glob.glob("logs/*")
    k = max(whole.told) - 1
    last_population(folder).unlink()  # the run was killed before it
    population, state = whole.told[k]
    c = attach(client(lambda o, p, n: says(o, p, n + state["samples"]), **{"continue": folder}))
    c.hello_answer = {"ours": True, "state": state}
    samples = Path(glob.glob(f"{folder}/samples/samples_1~200.json")[0])
    samples.write_text(json.dumps(json.loads(samples.read_text())[: state["samples"]]))
    eoh(host).run()
    assert len(c.candidates) == SAMPLES - state["samples"] > 0 and c.given_seeds == []
    told = [[parent["objective"] for parent in one["asks"][0]["parents"]] for one in (*whole.candidates, *c.candidates)]
    # LLM4AD begins its turns anew, so the operator may be another one; what is drawn first is the same parent
    assert told[SAMPLES][0] == told[state["samples"]][0]


def test_with_fewer_than_the_population_and_a_score_of_zero(host, attach, folder):
    zero = {"algorithm": "{zero}", "function": "def value(a, b):\n    return 0 * a", "score": 0}
    last_population(folder).write_text(json.dumps([zero, {**zero, "score": None}]))
    c = attach(client(**{"continue": folder}))
    eoh(host).run()
    assert len(c.candidates) == SAMPLES - BEFORE
    assert [parent["objective"] for parent in c.candidates[0]["asks"][0]["parents"]] == [0, 0]


def test_another_problem_is_refused_unless_it_is_to_be_trusted(host, attach, folder):
    attach(client(**{"continue": folder}))
    with pytest.raises(HostError, match="to come out again, but 4 of 4 do not"):
        eoh(host, problem(host, shift=1)).run()
    c = attach(client(**{"continue": folder, "trust_objectives": True}))
    eoh(host, problem(host, shift=1)).run()
    assert objectives(c) == [-1 - number for number in range(SAMPLES - BEFORE)]


@pytest.mark.parametrize("settings", [{"max_sample_nums": BEFORE}, {"max_generations": 3}])
def test_nothing_is_left_to_do(host, attach, folder, settings):
    attach(client(**{"continue": folder}))
    with pytest.raises(HostError, match=rf"are there \({next(iter(settings))} in the script\)") as found:
        eoh(host, **settings).run()
    assert found.value.exit_code == 0


def resume(host, folder):
    profiler = host.method.eoh.EoHProfiler(log_dir=folder, log_style="simple", create_random_path=False)
    method = eoh(host, profiler=profiler)
    sys.modules["llm4ad.method.eoh.resume"].resume_eoh(method, folder)
    return method, profiler


def test_the_hosts_own_resume_with_a_short_population_and_a_score_of_zero(host, attach, folder):
    path = last_population(folder)
    path.write_text(json.dumps(json.loads(path.read_text())[:2]))
    samples = Path(glob.glob(f"{folder}/samples/samples_1~200.json")[0])
    lines = [{**one, "score": one["score"] - BEFORE + 1} for one in json.loads(samples.read_text())]
    samples.write_text(json.dumps(lines))
    c = attach(client())
    method, profiler = resume(host, folder)
    assert profiler._cur_best_program_score == 0
    method.run()
    assert len(c.candidates) == SAMPLES - BEFORE and len(c.given_seeds) == 2


def test_two_ways_of_going_on_are_one_too_many(host, attach, folder):
    attach(client(**{"continue": folder}))
    method, _ = resume(host, folder)
    with pytest.raises(HostError, match="resumes a run by itself"):
        method.run()
