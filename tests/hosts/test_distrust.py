"""What a distrustful user does to a run of EoH 0.2: wrong settings, kills, two runs in one folder, foreign files."""

import fcntl
import json
import subprocess
import sys

import pytest
from eoh2_user import DOUBLE, hosts, user_script
from scripted import Chooser

from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.scaffolds.hosts import launch
from ttc_esopt.scaffolds.hosts.client import Client, HostError

MEMORY_KILL = """
import eoh.eoh.eoh as loop
dump = loop.json.dump

def dump_and_die(what, file, **more):
    dump(what, file, **more)
    file.flush()
    if file.name.endswith("pops/population_generation_1.json"):
        os._exit(9)

loop.json.dump = dump_and_die
"""


def attach(script, engine=None, chosen=None, python=sys.executable, **settings):
    """The exit status, and what was said."""
    given, options = host_options(
        {"prefill": False, "sigma": 0.05, "alpha": 0.05, "arm": "esopt"} | settings,
        **{"directions": 3, **(chosen or {})},
    )
    said = []
    code = execute(script, [], given, options, engine=engine or Chooser(), say=said.append, report=False, python=python)
    return code, said


def ours(folder, name):
    return (folder / "results" / "ttc_esopt" / name).read_text()


def lines(folder, name="samples.jsonl"):
    return [json.loads(line) for line in ours(folder, name).splitlines()]


@pytest.mark.parametrize("host", hosts())
@pytest.mark.parametrize("more", ["operators=['m1', 'm2']", "operators=['m2', 'm1', 'e1'], operator_weights=[1, 1, 0]"])
def test_a_host_that_only_mutates_has_batches_and_nothing_else(tmp_path, host, more):
    script = user_script(tmp_path, host, more=more)
    assert attach(script)[0] == 0
    assert [line["operator"] for line in lines(tmp_path)][6:] == (["m1"] * 3 + ["m2"] * 3) * 2 or "m2', 'm1" in more
    assert len(lines(tmp_path)) == 6 + 2 * 6 and len(lines(tmp_path, "history.jsonl")) == 4


@pytest.mark.parametrize("host", hosts())
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"more": "operators=['e1', 'm1', 'm9']"}, "got 'm9'"),
        ({"more": "operators=['e1', 'm1'], operator_weights=[0, 0]"}, "operator_weights [0, 0]"),
        ({"pop": 0}, "pop_size 0"),
        ({"more": "use_seed=True, seed_path='no/such.json'"}, "no/such.json"),
        ({"more": "use_seed=True, seed_path=__file__"}, "runEoH.py"),
    ],
)
def test_settings_that_lead_nowhere_are_one_sentence_before_the_model_is_asked(tmp_path, host, settings, says, capfd):
    script, engine = user_script(tmp_path, host, **settings), Chooser()
    code, said = attach(script, engine)
    error = [line for line in capfd.readouterr().err.splitlines() if "warn" not in line.lower()]
    assert code == 2 and len(error) == 1 and error[0].startswith("ttc-esopt: Expected") and says in error[0]
    assert engine.asked == 0 and said[-1] == "the script ended with exit status 2"


@pytest.mark.parametrize("host", hosts())
def test_seeds_without_code_are_refused_and_seeds_that_fail_are_named(tmp_path, host, capfd):
    script = user_script(tmp_path, host, more=f"use_seed=True, seed_path={str(tmp_path / 'seeds.json')!r}")
    (tmp_path / "seeds.json").write_text('[{"algorithm": "no code"}]')
    assert attach(script)[0] == 2
    assert "number 1" in capfd.readouterr().err
    (tmp_path / "seeds.json").write_text('[{"algorithm": "cut", "code": "def choose(x:"}]')
    code, said = attach(script)
    assert code == 1 and any(line.startswith("seed 1 is left out: syntax") for line in said)
    assert "None of 1 candidates was valid; most often (1 times): syntax" in capfd.readouterr().err


@pytest.mark.parametrize("host", hosts())
def test_a_kill_between_the_hosts_record_and_ours_loses_nothing(tmp_path, host):
    whole = user_script(tmp_path / "whole", host)
    assert attach(whole)[0] == 0
    cut = user_script(tmp_path / "cut", host)
    cut.write_text(cut.read_text().replace("llm =", MEMORY_KILL + "\nllm ="))
    assert attach(cut)[0] == 1
    again = user_script(tmp_path / "cut", host)
    code, said = attach(again, chosen={"continue_from": tmp_path / "cut"})
    assert code == 0 and not any("without us" in line for line in said)
    for name in ("samples.jsonl", "history.jsonl"):
        assert ours(cut.parent, name) == ours(whole.parent, name)


@pytest.mark.parametrize("host", hosts())
def test_generations_of_the_host_alone_are_recorded_so_that_parents_are_known(tmp_path, host):
    assert attach(user_script(tmp_path, host, generations=1))[0] == 0
    pops = tmp_path / "results" / "pops"
    population = json.loads((pops / "population_generation_1.json").read_text())
    own = {"algorithm": "the host's", "code": "def choose(x):\n    return 3.1415 * x", "objective": 0.00018}
    (pops / "population_generation_2.json").write_text(json.dumps([own | {"other_inf": None}, *population]))
    code, said = attach(user_script(tmp_path, host, generations=5), chosen={"continue_from": tmp_path})
    assert code == 0 and any("generation 2 was made without us" in line for line in said)
    samples = lines(tmp_path)
    known = {line["order"]: line for line in samples}
    mutants = [line for line in samples if line["operator"] in ("m1", "m2") and line["generation"] > 2]
    assert len(mutants) == 18 and all(len(line["parents"]) == 1 for line in mutants)
    assert all(known[line["parents"][0]]["objective"] == line["parent_objectives"][0] for line in mutants)
    assert [line["code"] for line in samples if line["operator"] == "seed"][0] == own["code"]


def test_a_continued_run_may_have_another_population_but_no_other_numbers_or_parser(tmp_path, capfd):
    assert attach(user_script(tmp_path, str(DOUBLE)))[0] == 0
    script = user_script(tmp_path, str(DOUBLE), pop=5, generations=4)
    for changed, flag in (({"directions": 4}, "--directions 3"), ({"parser": "host"}, "--parser ours")):
        code, said = attach(script, chosen={"continue_from": tmp_path, **changed})
        assert code == 2 and f"had {flag}: give the same" in capfd.readouterr().err
        assert not any("no valid candidate" in line or "report" in line for line in said)  # nothing was begun
    assert attach(script, chosen={"continue_from": tmp_path})[0] == 0
    assert (tmp_path / "results/pops/population_generation_4.json").exists()


def test_a_run_that_is_at_work_is_not_moved_away(tmp_path, capfd):
    script = user_script(tmp_path, str(DOUBLE))
    assert attach(script)[0] == 0
    with open(tmp_path / "results" / "ttc_esopt" / "samples.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert attach(script)[0] == 1
    assert "Another process is writing to" in capfd.readouterr().err
    assert not (tmp_path / "results" / "ttc_esopt-1").exists()
    assert attach(script)[0] == 0 and (tmp_path / "results" / "ttc_esopt-1").exists()


def test_the_sandbox_of_a_settings_file_holds_and_stands_in_the_record(tmp_path):
    assert host_options({"sandbox": "required"})[1]["sandbox"] == "required"
    assert host_options({"sandbox": "required"}, sandbox="off")[1]["sandbox"] == "off"
    assert attach(user_script(tmp_path, str(DOUBLE)), chosen={"sandbox": "off"})[0] == 0
    run = RunFolder.open(tmp_path / "results" / "ttc_esopt")
    assert run.host["sandbox"] == "off" and run.settings.memory_mb == 4096


def test_a_file_beside_the_script_does_not_stand_in_for_ours_and_a_script_without_a_run_is_told(tmp_path, capfd):
    script = user_script(tmp_path, str(DOUBLE))
    (tmp_path / "ttc_esopt.py").write_text("raise SystemExit(7)\n")
    script.write_text(script.read_text().replace("EoH(llm", "(lambda **more: None)(llm").replace(").run()", ")"))
    assert attach(script)[0] == 0
    captured = capfd.readouterr()
    assert "the script ended" in captured.out and "began no run of EoH 0.2" in captured.err


def test_the_interpreter_may_be_a_wrapper_that_starts_another_process(tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    assert attach(user_script(tmp_path / "user", str(DOUBLE)), python=str(wrapper))[0] == 0


def test_an_interpreter_that_is_too_old_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    assert launch.main() == 2
    assert "Python 3.10 or later, got 3.9.18 (--python)" in capsys.readouterr().err


def test_the_socket_of_an_engine_that_was_killed_is_removed(tmp_path):
    folder = tmp_path / "engine-folder"
    folder.mkdir()
    text = f"import socket; socket.socket(socket.AF_UNIX).bind({str(folder / 'engine')!r})"
    subprocess.run([sys.executable, "-c", text], check=True)
    with pytest.raises(HostError, match="has ended"):
        Client(str(folder / "engine"), b"key", {}).say("hello")
    assert not folder.exists()


def test_an_unknown_sandbox_of_a_settings_file_is_refused():
    with pytest.raises(ConfigurationError, match="sandbox"):
        host_options({"sandbox": "perhaps"})
