"""A user's EoH 0.2 script under `exec`: the double here, a real checkout where TTC_ESOPT_EOH names one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from eoh2_user import DOUBLE, alone, hosts, user_script
from scripted import Chooser, Scripted

from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options
from ttc_esopt.candidates import batch_rewards, key
from ttc_esopt.engines.base import Reply
from ttc_esopt.rundata import read_run


def attach(script, engine, said=None, chosen=None, out=None, **settings):
    given, options = host_options({"prefill": False, "sigma": 0.05, "alpha": 0.05} | settings, **(chosen or {}))
    lines = said if said is not None else []
    return execute(script, [], given, options, engine=engine, say=lines.append, out=out, report=False)


def files(folder):
    """What the host wrote, but for its log."""
    return {
        path.relative_to(folder): json.loads(path.read_text())
        for path in sorted((folder / "results").rglob("*.json")) if "ttc_esopt" not in path.parts
    }  # fmt: skip


def lines(folder, name="samples.jsonl"):
    return [json.loads(line) for line in (folder / "results" / "ttc_esopt" / name).read_text().splitlines()]


@pytest.mark.parametrize("host", hosts())
@pytest.mark.parametrize("more", ["", "operators=['m1', 'e1', 'e2'], operator_weights=[3.0, 1.0, 1.0]"])
def test_the_frozen_run_with_the_hosts_numbers_and_parser_is_the_hosts_own_candidate_for_candidate(
    tmp_path, host, more
):
    own = user_script(tmp_path / "own", host, pop=4, generations=4, more=more)
    subprocess.run([sys.executable, alone(own, host)], check=True, timeout=120, capture_output=True)
    ours = user_script(tmp_path / "ours", host, pop=4, generations=4, more=more)
    chosen = {"directions": "host", "parser": "host"}
    assert attach(ours, Scripted(), chosen=chosen) == 0
    found, expected = files(ours.parent), files(own.parent)
    assert found == expected
    samples = next(content for path, content in expected.items() if path.name.startswith("samples_1~"))
    assert [line["objective"] for line in lines(ours.parent)] == [one["objective"] for one in samples]
    assert any(line.get("calls", 1) > 1 for line in lines(ours.parent))  # re-asks happened


@pytest.mark.parametrize("host", hosts())
def test_batches_have_our_size_the_budget_holds_and_rewards_follow_from_the_files(tmp_path, host):
    script = user_script(tmp_path, host, pop=4, generations=3, processes=2)
    said = []
    assert attach(script, Chooser(), said, {"directions": 5}, arm="esopt") == 0
    assert "candidates in all: 44 (the host alone: 20; --directions host keeps the host's own numbers)" in said
    samples, history = lines(tmp_path), lines(tmp_path, "history.jsonl")
    assert len(samples) == 44 and [line["order"] for line in samples] == list(range(44))
    assert [record["operator"] for record in history] == ["m1", "m2"] * 3
    by_code = {line["code"]: line["order"] for line in reversed(samples) if line["objective"] is not None}
    stored = json.loads((tmp_path / "results" / "pops" / "population_generation_3.json").read_text())
    assert all(samples[by_code[one["code"]]]["objective"] == one["objective"] for one in stored)
    for record in history:
        batch = [samples[order] for order in record["candidates"]]
        assert [line["direction"] for line in batch] == record["seeds"]
        assert len({tuple(line["parents"]) for line in batch}) == 1 and len(batch[0]["parents"]) == 1
        parent = samples[batch[0]["parents"][0]]
        assert [parent["objective"]] == batch[0]["parent_objectives"] and parent["order"] < batch[0]["order"]
        known = {key(line["objective"]) for line in samples[: batch[0]["order"]] if line["objective"] is not None}
        assert record["rewards"] == batch_rewards("default", batch, known, record["worst"])
        assert record["rewards"] == [line["reward"] for line in batch]
    assert sum(record["taken"] for record in history) >= 4


@pytest.mark.parametrize("host", hosts())
def test_without_esopt_the_plan_is_the_same(tmp_path, host):
    plans = []
    for arm in ("frozen", "esopt"):
        script = user_script(tmp_path / arm, host)
        assert attach(script, Chooser(), chosen={"directions": 4}, arm=arm) == 0
        plans.append([(line["operator"], line["generation"]) for line in lines(script.parent)])
    assert plans[0] == plans[1]
    assert (
        lines(tmp_path / "esopt", "history.jsonl")
        and not (tmp_path / "frozen/results/ttc_esopt/history.jsonl").exists()
    )


@pytest.mark.parametrize("host", hosts())
@pytest.mark.parametrize("parser", ["ours", "host"])
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, host, parser):
    chosen = {"directions": 4, "parser": parser}
    whole = user_script(tmp_path / "whole", host, generations=3)
    assert attach(whole, Chooser(), chosen=chosen, arm="esopt") == 0
    cut = user_script(tmp_path / "cut", host, generations=3)
    with pytest.raises(RuntimeError, match="killed"):
        attach(cut, Chooser(fail_at=24), chosen=chosen, arm="esopt")
    assert 0 < len(lines(cut.parent)) < len(lines(whole.parent))
    said = []
    again = chosen | {"continue_from": cut.parent / "results"}
    assert attach(cut, Chooser(), said, again, arm="esopt") == 0
    for name in ("samples.jsonl", "history.jsonl"):
        assert lines(cut.parent, name) == lines(whole.parent, name)
    populations = [path for path in files(whole.parent) if path.parts[1] == "pops"]
    assert all(files(cut.parent)[path] == files(whole.parent)[path] for path in populations)


@pytest.mark.parametrize("host", hosts())
def test_a_run_of_the_plain_host_is_continued_and_the_host_goes_on_from_ours(tmp_path, host):
    script = user_script(tmp_path, host, generations=2)
    subprocess.run([sys.executable, alone(script, host)], check=True, timeout=120, capture_output=True)
    before = files(tmp_path)
    log = (tmp_path / "results" / "run_log.txt").read_text()
    script = user_script(tmp_path, host, generations=4)
    assert attach(script, Chooser(), chosen={"directions": 4, "continue_from": tmp_path}, arm="esopt") == 0
    after = files(tmp_path)
    assert all(after[path] == content for path, content in before.items() if "best" not in path.name)
    assert Path("results/pops/population_generation_4.json") in after
    assert (tmp_path / "results" / "run_log.txt").read_text().startswith(log)
    orders = [one["sample_order"] for path, content in sorted(after.items()) if "samples_" in path.name
              and isinstance(content, list) for one in content]  # fmt: skip
    assert sorted(orders) == list(range(1, len(orders) + 1))  # numbering goes on
    operators = [line["operator"] for line in lines(tmp_path)]
    assert operators[:1] == ["seed"] and operators.count("m1") == 8
    last = tmp_path / "results" / "pops" / "population_generation_4.json"
    more = f"use_continue=True, continue_path={str(last)!r}, continue_id=4"
    script = user_script(tmp_path, host, generations=5, more=more)
    subprocess.run([sys.executable, alone(script, host)], check=True, timeout=120, capture_output=True)
    assert Path("results/pops/population_generation_5.json") in files(tmp_path)


@pytest.mark.parametrize("host", hosts())
def test_objectives_of_another_problem_are_refused_before_anything_is_cut(tmp_path, host, capfd):
    script = user_script(tmp_path, host)
    assert attach(script, Chooser(), chosen={"directions": 4}) == 0
    (tmp_path / "results" / "pops" / "population_generation_2.json").unlink()  # our lines of it would be made again
    before = lines(tmp_path)
    script = user_script(tmp_path, host, generations=3, extra="return 17.0 + callable_func(1.0)")
    assert attach(script, Chooser(), chosen={"directions": 4, "continue_from": tmp_path}) == 2
    assert "objective" in capfd.readouterr().err
    assert lines(tmp_path) == before and len(list((tmp_path / "results" / "pops").iterdir())) == 2


@pytest.mark.parametrize("host", hosts())
def test_programs_that_ignore_signals_or_never_end_cost_their_time_and_no_more(tmp_path, host):
    hostile = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    hostile += "time.sleep(60 if callable_func(1.0) > 2 else 0)"
    script = user_script(tmp_path, host, generations=1, extra=hostile)
    script.write_text(script.read_text().replace("timeout=5", "timeout=1"))
    assert attach(script, Chooser(), chosen={"directions": 3, "sandbox": "off"}) == 0
    failures = [line["failure"] for line in lines(tmp_path)]
    assert "timeout" in failures and None in failures


@pytest.mark.parametrize("host", hosts())
def test_a_stop_ends_after_the_running_batch_with_everything_saved(tmp_path, host, capfd):
    script = user_script(tmp_path, host, generations=9)
    assert attach(script, Chooser(), chosen={"directions": 4}, arm="esopt", max_tokens_total=400) == 0
    out = capfd.readouterr().out
    assert "--max-tokens-total" in out and "the script ended" not in out
    last = max(int(path.stem.rpartition("_")[2]) for path in (tmp_path / "results" / "pops").iterdir())
    assert 0 < last < 9 and len(read_run(tmp_path / "results" / "ttc_esopt").steps) >= 1
    samples = [
        one for path, content in files(tmp_path).items() if path.name.startswith("samples_1~") for one in content
    ]
    assert len(samples) == len(lines(tmp_path))
    assert attach(script, Chooser(), chosen={"directions": 4, "continue_from": tmp_path}, arm="esopt") == 0
    assert (tmp_path / "results/pops/population_generation_9.json").exists()


def test_an_unknown_host_and_a_script_without_one_are_refused(tmp_path, capfd):
    package = tmp_path / "eoh"
    package.mkdir()
    (package / "__init__.py").write_text("Something = 1\n")
    script = tmp_path / "run.py"
    script.write_text("import eoh\n")
    assert attach(script, Chooser()) == 2
    error = capfd.readouterr().err
    assert "offers Something" in error and "EoH 0.1 and 0.2" in error
    script.write_text("print('nothing to do')\n")
    assert attach(script, Chooser()) == 2
    assert "without a run that we can attach to" in capfd.readouterr().err


def test_a_version_without_a_name_that_we_patch_is_refused(tmp_path, capfd):
    shutil.copytree(DOUBLE, tmp_path / "host")
    evolution = tmp_path / "host" / "eoh" / "eoh" / "evolution.py"
    evolution.write_text(evolution.read_text().replace("_extract", "_find"))
    script = user_script(tmp_path / "user", str(tmp_path / "host"))
    assert attach(script, Chooser()) == 2
    error = capfd.readouterr().err
    assert "Expected EoH 0.2" in error and "has no Evolution._extract" in error and "Supported are" in error
    assert not (tmp_path / "user" / "results" / "pops" / "population_generation_0.json").exists()


@pytest.mark.parametrize("host", hosts())
def test_nothing_valid_ends_in_one_sentence_that_says_why(tmp_path, host, capfd):
    script = user_script(tmp_path, host, extra="raise ValueError('no data here')")
    assert attach(script, Chooser(), chosen={"directions": 3}) == 1
    error = capfd.readouterr().err
    assert "None of 6 candidates was valid" in error and "Traceback" not in error


@pytest.mark.parametrize("host", hosts())
def test_the_template_begins_where_the_model_wrote_nothing_valid_and_the_users_own_always_join(tmp_path, host):
    class Silent(Chooser):
        def generate(self, requests, sampling, progress=None):
            return [Reply("No.", 1, 1, "stop") for _ in requests]

    said = []
    script = user_script(tmp_path / "a", host, generations=1)
    assert attach(script, Silent(), said, {"directions": 3}, arm="esopt") == 0
    assert any("join the initial population" in line for line in said)
    seed = next(line for line in lines(script.parent) if line["operator"] == "seed")
    assert "return 2 * x" in seed["code"]
    own = tmp_path / "mine.py"
    own.write_text("def choose(x):\n    return 3 * x\n")
    script = user_script(tmp_path / "b", host, generations=1)
    assert attach(script, Silent(), said, {"directions": 3, "seeds": [own]}, arm="esopt") == 0
    found = files(script.parent)[Path("results/pops/population_generation_1.json")]
    assert [one["code"] for one in found] == [own.read_text()]
