"""EoH 0.1 with our engine: what would end its run, or harm its user, does not; what cannot work is refused."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from eoh1_user import (
    HOSTS,
    POPULATION,
    Choose,
    attached,
    forget,
    loaded,
    program,
    recorder,
    run,
    run_alone,
    write,
)
from fake_client import FakeClient

from ttc_esopt.evaluation import sandbox
from ttc_esopt.scaffolds.hosts.client import HostError


@pytest.fixture(params=HOSTS, ids=["double", "checkout"][: len(HOSTS)])
def host(request, monkeypatch, tmp_path):
    yield from loaded(request.param, monkeypatch, tmp_path)


def test_weights_that_do_not_match_the_operators_are_refused(host):
    with pytest.raises(HostError, match="as many weights"):
        run(recorder(), ec_operator_weights=[1, 1])


@pytest.mark.parametrize("local", [True, False])
def test_neither_placeholders_nor_debug_mode_stop_the_run(host, monkeypatch, local):
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("it waits for the Enter key"))
    client = run(recorder(), llm_use_local=local, llm_local_url=None, llm_api_key=None, exp_debug_mode=True)
    assert len(client.told) == 3 and "1+1=?" not in client.prompts()


@pytest.mark.parametrize("parser", ["ours", "host"])
def test_nothing_valid_ends_in_one_sentence_that_says_why(host, parser):
    class Broken(Choose):
        def score(self, space):
            raise ValueError("there is no data")

    client = FakeClient(lambda *asked: "{Fail.}\n" + program("z"), parser=parser)
    with pytest.raises(HostError, match="None of 6 candidates was valid.*6 times") as ended:
        run(client, Broken())
    assert "there is no data" in str(ended.value) or "evaluate returned None" in str(ended.value)
    assert client.finished == ["no valid candidate"]


def test_a_trivial_program_begins_where_the_model_wrote_nothing_valid_and_the_users_own_always_join(host):
    client = run(FakeClient(lambda *asked: "No.", parser="ours", seeds=[]), ec_n_pop=1)
    assert any("join the initial population" in line for line in client.lines)
    assert [one["code"] for one in client.given_seeds] == ["def choose(x):\n    return x\n"]
    forget()
    own = {"description": "The heuristic of mine.py.", "code": "def choose(x):\n    return 6"}
    client = run(FakeClient(lambda *asked: "No.", parser="ours", seeds=[own]), ec_n_pop=1)
    assert [one["code"] for one in client.given_seeds] == [own["code"]]
    assert json.loads(Path(POPULATION.format(1)).read_text())[0]["code"] == own["code"]


def test_failures_have_names_and_offspring_that_eoh_drops(host):
    texts = ["No.", "{a}" + program("z"), "{b}" + program("float('nan')"), "{c}" + program(3)]
    client = run(
        FakeClient(lambda operator, prompt, number: texts[number % 4], parser="ours"), ec_pop_size=4, ec_n_pop=0
    )
    assert [one["result"]["failure"] for one in client.candidates] == ["reply", "exception", "nonfinite", None] * 2
    assert [one["objective"] for one in json.loads(Path(POPULATION.format(0)).read_text())] == [0.28]


def test_numbers_of_numpy_do_not_break_the_hosts_files(host):
    class Whole(Choose):
        def score(self, space):
            return np.int64(round(super().score(space)))

    client = run(recorder(directions=3), Whole())
    assert all(type(one["objective"]) is float for one in client.told[2][0])


def test_programs_are_decorated_for_evaluation_but_not_in_the_population(host, monkeypatch):
    interface = importlib.import_module("eoh.methods.eoh.eoh_interface_EC")
    monkeypatch.setattr(
        interface, "add_numba_decorator", lambda program, function_name: f"decorated = '{function_name}'\n{program}"
    )

    class Decorated(Choose):
        def score(self, space):
            return super().score(space) if space["decorated"] == "choose" else None

    for parser in ("ours", "host"):
        client = run(recorder(directions=3, parser=parser), Decorated(), eva_numba_decorator=True)
        assert all("decorated" not in one["code"] for one in client.told[2][0])
        Path(POPULATION.format(2)).unlink()


def test_a_problem_that_the_sandbox_stops_still_runs_and_the_user_is_told(host):
    class Writes(Choose):
        def score(self, space):
            Path("scratch.txt").write_text("")
            return super().score(space)

    client = run(recorder(sandbox="auto", parser="ours"), Writes(), ec_n_pop=1)
    assert Path("scratch.txt").exists()
    assert any("with your rights" in line or "Model-written programs can" in line for line in client.lines)


def test_a_program_that_only_works_outside_does_not_lower_the_sandbox(host):
    text = "{Write.}\ndef choose(x):\n    open('stolen.txt', 'w')\n    y = x\n    return y"
    client = FakeClient(lambda *asked: text, sandbox="auto", parser="ours")
    if "landlock" not in sandbox.kernel_layers():
        pytest.skip("this kernel has no Landlock")
    run(client)  # it goes on from a trivial program of ours
    assert {one["result"]["objective"] for one in client.candidates} == {None}
    assert not Path("stolen.txt").exists() and not any("with your rights" in line for line in client.lines)


def test_other_methods_unknown_operators_and_failing_selections_are_refused(host, monkeypatch):
    with pytest.raises(HostError, match='method = "eoh".*ls'):
        run(recorder(), method="ls")
    with pytest.raises(HostError, match="operators that EoH has.*m9"):
        run(recorder(), ec_operators=["m1", "m9"])
    forget()
    selection = importlib.import_module("eoh.methods.selection.prob_rank")
    monkeypatch.setattr(selection, "parent_selection", lambda pop, m: pop[len(pop)])
    for options in ({}, {"parser": "ours"}):
        with pytest.raises(HostError, match="cannot select parents.*prob_rank"):
            run(recorder(**options))


def test_an_error_of_the_engine_ends_the_run_and_is_no_bad_candidate(host):
    class Broken(FakeClient):
        def again(self, id, ask):
            raise HostError("the engine has ended", 1)

    with pytest.raises(HostError, match="the engine has ended"):
        run(Broken(lambda operator, prompt, number: write(prompt, number)))


def test_a_version_without_a_name_that_we_need_is_refused(host, monkeypatch):
    loop = importlib.import_module("eoh.methods.eoh.eoh")
    monkeypatch.delattr(loop.InterfaceEC, "get_offspring")
    with pytest.raises(HostError, match="EoH 0.1.*has no InterfaceEC.get_offspring"):
        run(recorder())


def test_everything_is_put_back(host, monkeypatch):
    loop = importlib.import_module("eoh.methods.eoh.eoh")
    before = (loop.EOH, loop.InterfaceEC)
    with attached(recorder()) as attachment:
        assert loop.EOH is not before[0] and attachment.hosts == ["EoH 0.1"]
    assert (loop.EOH, loop.InterfaceEC) == before
    assert len(run_alone(monkeypatch, ec_n_pop=1)) >= 18
