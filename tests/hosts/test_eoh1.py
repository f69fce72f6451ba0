"""A user's EoH 0.1 run under a client that only records: the double here, a real checkout where TTC_ESOPT_EOH_V01 says.

A checkout needs what it imports (joblib, requests) in the environment of the tests.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fake_client import FakeClient

from ttc_esopt.evaluation import sandbox
from ttc_esopt.scaffolds.hosts import eoh1
from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.client import HostError, Stopped

DOUBLE = Path(__file__).parent / "eoh1_double"
CHECKOUT = os.environ.get("TTC_ESOPT_EOH_V01")
HOSTS = [str(DOUBLE)] + ([os.path.join(CHECKOUT, "eoh", "src")] if CHECKOUT else [])
POPULATION = "results/pops/population_generation_{}.json"


class Prompts:
    def get_task(self):
        return "Choose a number near 2 pi."

    def get_func_name(self):
        return "choose"

    def get_func_inputs(self):
        return ["x"]

    def get_func_outputs(self):
        return ["y"]

    def get_inout_inf(self):
        return "x and y are numbers."

    def get_other_inf(self):
        return ""


class Choose:
    """What a user of EoH 0.1 writes: prompts, and `evaluate`, which swallows every exception."""

    def __init__(self, wanted=6.28):
        self.prompts, self.wanted = Prompts(), wanted

    def evaluate(self, code_string):
        try:
            space = {}
            exec(code_string, space)
            return self.score(space)
        except Exception:
            return None

    def score(self, space):
        return abs(space["choose"](2.0) - self.wanted)


def program(a):
    return f"import numpy as np\n\ndef choose(x):\n    y = {a} * x\n    return y"


def write(prompt, number):
    """A reply: good, without a program, without anything after `return`, failing, or one that comes again and again."""
    seed = hashlib.blake2b(f"{number}/{prompt}".encode(), digest_size=8).digest()
    random = Random(int.from_bytes(seed, "big"))
    kind = random.random()
    if kind < 0.2:
        return "I would rather not."
    if kind < 0.5:
        return f"{{Take one of three.}}\n```python\n{program(random.choice((3, 3.1, 3.2)))}\n```"
    if kind < 0.6:
        return f"{{Fail.}}\n```python\n{program('(1 / 0)')}\n```"
    a = round(random.uniform(0, 5), 6)
    return f"{{Choose {a} times x.}}\n```python\n{program(a)}\n```\nGood luck."


@pytest.fixture(params=HOSTS, ids=["double", "checkout"][: len(HOSTS)])
def host(request, monkeypatch, tmp_path):
    """The host's folder, on the path of modules; nothing of another test's host is loaded."""
    if request.param != str(DOUBLE):
        pytest.importorskip("joblib")
    monkeypatch.syspath_prepend(request.param)
    monkeypatch.chdir(tmp_path)
    forget()
    yield request.param
    forget()


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "eoh"]:
        del sys.modules[name]


def script(problem=None, **settings):
    """What the user's script does."""
    from eoh import eoh
    from eoh.utils.getParas import Paras

    given = {
        "problem": problem or Choose(), "llm_api_endpoint": "xxx", "llm_api_key": "xxx", "llm_model": "gpt",
        "ec_pop_size": 3, "ec_n_pop": 2, "exp_n_proc": 1, "eva_timeout": 20,
    }  # fmt: skip
    paras = Paras()
    paras.set_paras(**(given | settings))
    eoh.EVOL(paras).run()


@contextlib.contextmanager
def attached(client):
    attachment = Attachment(client, eoh1.HOOKS)
    try:
        attachment.begin()
        yield attachment
    finally:
        attachment.restore()


def run(client, problem=None, **settings):
    with attached(client):
        script(problem, **settings)
    return client


def recorder(**options):
    return FakeClient(lambda operator, prompt, number: write(prompt, number), **options)


def run_alone(monkeypatch, **settings):
    """The host's own run with the same model; returns what it asked."""
    evolution = importlib.import_module("eoh.methods.eoh.eoh_evolution")
    asked = []

    class Model:
        def __init__(self, *args):
            pass

        def get_response(self, prompt):
            asked.append(prompt)
            return write(prompt, len(asked) - 1)

    with monkeypatch.context() as patch:
        patch.setattr(evolution, "InterfaceLLM", Model)
        patch.setattr("time.sleep", lambda seconds: None)
        script(**settings)
    return asked


def noted(monkeypatch, work):
    """What `work` returns, and (operator, parents, offspring) of every call of the operators, whoever answers it."""
    loop = importlib.import_module("eoh.methods.eoh.eoh")
    calls = []

    class Noting(loop.InterfaceEC):
        def get_algorithm(self, pop, operator):
            parents, offspring = super().get_algorithm(pop, operator)
            shown = [None if some is None else [one["code"] for one in some] for some in parents]
            calls.append((operator, shown, [dict(one) for one in offspring]))
            return parents, offspring

    with monkeypatch.context() as patch:
        patch.setattr(loop, "InterfaceEC", Noting)
        return work(), calls


def files(folder):
    return {path.relative_to(folder): path.read_text() for path in sorted(Path(folder).rglob("population_*.json"))}


SETTINGS = {"ec_pop_size": 4, "ec_n_pop": 3, "ec_operators": ["e1", "e2", "m1", "m2", "m3"], "ec_m": 2}


def test_with_the_hosts_numbers_and_parser_a_frozen_run_is_the_hosts_own_candidate_for_candidate(
    host, monkeypatch, tmp_path
):
    for name in ("own", "ours"):
        (tmp_path / name).mkdir()
    asked, expected = noted(
        monkeypatch, lambda: run_alone(monkeypatch, exp_output_path=str(tmp_path / "own"), **SETTINGS)
    )
    client = recorder()
    with attached(client):
        importlib.import_module("eoh.methods.eoh.eoh")
        _, found = noted(monkeypatch, lambda: script(exp_output_path=str(tmp_path / "ours"), **SETTINGS))
    assert client.prompts() == asked
    assert found == expected
    assert files(tmp_path / "ours") == files(tmp_path / "own") and len(files(tmp_path / "own")) == 7
    several = [one["asks"] for one in client.candidates if len(one["asks"]) > 1]
    assert any(asks[0]["prompt"] == asks[1]["prompt"] for asks in several)  # an unreadable reply
    assert any(asks[0]["parents"] != asks[-1]["parents"] for asks in several)  # a duplicate
    assert len(client.candidates) == client.plan["candidates"] == client.plan["host_candidates"] == 68
    assert client.plan["steps"] == len(client.batches) == 6 and {one["n"] for one in client.batches} == {4}


def test_every_result_belongs_to_the_last_prompt_also_when_all_replies_are_fetched_at_once(host):
    client = run(recorder(directions=5), exp_n_proc=2, ec_n_pop=3)
    assert len(client.candidates) == client.plan["candidates"] == 6 + 3 * (2 * 3 + 2 * 5)
    reused = 0
    for one in client.candidates:
        last, result = one["asks"][-1], one["result"]
        assert all(parent["code"] in last["prompt"] for parent in last["parents"])
        assert len(last["parents"]) == {"i1": 0, "e1": 2, "e2": 2, "m1": 1, "m2": 1}[one["operator"]]
        if result["objective"] is not None:
            assert result["description"] in one["texts"][-1]
            assert result["objective"] == round(Choose().evaluate(result["code"]), 5)
        reused += len(one["asks"]) > 1
    assert reused > 3
    for number in range(len(client.batches)):
        parents = [ask["parents"] for one in client.candidates if one["batch"] == number for ask in one["asks"]]
        assert len(parents) >= 5 and all(some == parents[0] for some in parents)  # one parent for the batch


@pytest.mark.parametrize("common", [True, False])
def test_batches_of_directions_have_our_size_and_our_parser_asks_once(host, common):
    client = run(recorder(directions=3, replies_per_direction=2, parser="ours", common_parent=common), ec_n_pop=3)
    assert client.plan["candidates"] == len(client.candidates) == 6 + 3 * (3 + 3 + 6 + 6)
    assert client.plan["host_candidates"] == 6 + 3 * 4 * 3 and client.plan["largest_batch"] == 3
    assert [(one["operator"], one["generation"], one["n"]) for one in client.batches] == [
        (operator, generation, 3) for generation in (1, 2, 3) for operator in ("m1", "m2")
    ]
    assert all(len(one["asks"]) == 1 and one["result"] is not None for one in client.candidates)
    different = 0
    for number, batch in enumerate(client.batches):
        members = [one for one in client.candidates if one["batch"] == number]
        assert len(members) == 6 and {one["operator"] for one in members} == {batch["operator"]}
        assert batch["worst"] >= max(one["asks"][0]["parents"][0]["objective"] for one in members)
        different += len({one["asks"][0]["prompt"] for one in members}) > 1
    assert different == 0 if common else different > 0
    assert {one["generation"] for one in client.candidates if one["operator"] == "i1"} == {0}
    for generation, (population, _) in client.told.items():
        stored = json.loads(Path(POPULATION.format(generation)).read_text())
        assert [(one["code"], one["objective"]) for one in stored] == [
            (one["code"], one["objective"]) for one in population
        ]
    assert list(client.told) == [0, 1, 2, 3] and client.finished == [None]


def test_replies_per_direction_share_the_hosts_number_and_what_is_left_over_is_unperturbed(host):
    client = run(recorder(replies_per_direction=2, parser="ours"), ec_pop_size=5, ec_n_pop=1)
    mutants = [one["batch"] for one in client.candidates if one["operator"] == "m1"]
    assert mutants == [0, 0, 0, 0, None] and client.batches[0]["n"] == 2


def test_when_no_directions_are_left_the_numbers_stay(host):
    client = recorder(directions=4, parser="ours")
    client.steps_left = 1
    run(client, ec_n_pop=1)
    assert len(client.candidates) == client.plan["candidates"]
    assert [one["batch"] for one in client.candidates if one["operator"] == "m2"] == [None] * 4


def test_operator_weights_work_even_where_the_first_operator_is_never_drawn(host):
    client = run(recorder(parser="ours"), ec_n_pop=3, ec_operator_weights=[0, 1, 0, 1.0])
    assert [one["operator"] for one in client.candidates] == ["i1"] * 6 + ["e2", "e2", "e2", "m2", "m2", "m2"] * 3
    assert client.plan["candidates"] == len(client.candidates) and client.plan["steps"] == len(client.batches) == 3
    forget()
    client = run(recorder(parser="ours"), ec_n_pop=8, ec_operator_weights=[0.5, 0.5, 1, 0])
    drawn = [one["operator"] for one in client.candidates].count("e1") // 3
    assert 0 < drawn < 8 and list(client.told) == list(range(9))
    assert client.plan["candidates"] == 6 + 8 * 6 and any("weight 0.5" in line for line in client.plan["lines"])


def test_weights_that_do_not_match_the_operators_are_refused(host):
    with pytest.raises(HostError, match="as many weights"):
        run(recorder(), ec_operator_weights=[1, 1])


@pytest.mark.parametrize("local", [True, False])
def test_neither_placeholders_nor_debug_mode_stop_the_run(host, monkeypatch, local):
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("it waits for the Enter key"))
    client = run(recorder(), llm_use_local=local, llm_local_url=None, llm_api_key=None, exp_debug_mode=True)
    assert len(client.told) == 3 and "1+1=?" not in client.prompts()


@pytest.mark.parametrize("parser", ["ours", "host"])
def test_a_stop_answers_the_rest_of_the_generation_with_nothing_and_leaves_when_it_is_saved(host, parser):
    client = recorder(directions=3, parser=parser)
    client.stop_at = (2, "m1")
    with pytest.raises(Stopped, match="by the test"):
        run(client, ec_n_pop=5)
    assert list(client.told) == [0, 1, 2] and client.finished == ["stopped by the test"]
    assert Path(POPULATION.format(2)).exists() and not Path(POPULATION.format(3)).exists()
    last = [one for one in client.candidates if one["generation"] == 2]
    assert [one["operator"] for one in last] == ["e1"] * 3 + ["e2"] * 3 + ["m1"] * 3
    assert all(one["result"] is not None for one in client.candidates)


def test_a_stop_in_the_initial_population_saves_what_is_there(host):
    client = recorder()
    client.stop_at = (0, "i1")
    with pytest.raises(Stopped):
        run(client)
    assert list(client.told) == [0] and len(client.candidates) == 3


def test_a_continued_run_draws_what_the_whole_one_would_have_drawn(host, tmp_path):
    whole = run(recorder(), ec_n_pop=4, exp_output_path=str(tmp_path / "whole"))
    expected = files(tmp_path / "whole")
    forget()
    first = run(recorder(), ec_n_pop=2, exp_output_path=str(tmp_path / "parts"))
    forget()
    second = recorder(**{"continue": str(tmp_path / "parts")})
    second.hello_answer = {"ours": True, "state": first.told[2][1]}
    second.number = first.number  # the stand-in model goes on counting its replies
    run(second, ec_n_pop=4, exp_output_path=str(tmp_path / "parts"))
    assert first.prompts() + second.prompts() == whole.prompts()
    assert files(tmp_path / "parts") == expected
    assert list(second.told) == [3, 4] and second.given_seeds == []
    assert second.plan["continued"]["generation"] == 2 and second.plan["candidates"] == 2 * 12
    assert {one["generation"] for one in second.candidates} == {3, 4}


def stored(folder, generation, individuals):
    """A population file as EoH writes it, but in any order."""
    path = Path(folder) / POPULATION.format(generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = ("algorithm", "code", "objective", "other_inf")
    path.write_text(json.dumps([dict(zip(keys, (*one, None), strict=True)) for one in individuals]))
    return path


MIXED = [("worse", program(1), 4.28), ("best", program(3), 0.28), ("failed", None, None), ("worst", program(0), 6.28)]


@pytest.mark.parametrize("by_script", [True, False])
def test_a_population_from_elsewhere_is_sorted_checked_and_recorded_and_numbering_goes_on(host, tmp_path, by_script):
    path = stored(tmp_path, 7, MIXED)
    if by_script:
        client = recorder(directions=3)
        settings = {"exp_use_continue": True, "exp_continue_path": str(path), "exp_continue_id": 7}
    else:
        client, settings = recorder(directions=3, **{"continue": str(tmp_path)}), {"exp_use_seed": True}
    run(client, ec_n_pop=8, **settings)
    assert [one["objective"] for one in client.given_seeds] == [0.28, 4.28, 6.28]
    assert list(client.told) == [8] and client.plan["continued"] == {"generation": 7, "path": str(path)}
    assert json.loads(path.read_text())[0]["algorithm"] == "worse"  # the user's file stays as it was
    chosen = [one["asks"][0]["parents"][0]["objective"] for one in client.candidates]
    assert set(chosen) <= {0.28, 4.28, 6.28} | {one["result"]["objective"] for one in client.candidates}


def test_objectives_of_another_problem_are_refused_before_the_model_is_loaded_unless_trusted(host, tmp_path):
    stored(tmp_path, 1, MIXED)
    client = recorder(**{"continue": str(tmp_path)})
    with pytest.raises(HostError, match="objectives"):
        run(client, Choose(wanted=1.0))
    assert client.plan is None
    forget()
    run(recorder(trust_objectives=True, **{"continue": str(tmp_path)}), Choose(wanted=1.0))


def test_what_cannot_be_continued_is_refused(host, tmp_path):
    stored(tmp_path, 2, MIXED)
    with pytest.raises(HostError, match="Nothing is left to do: generation 2 of 2") as refused:
        run(recorder(**{"continue": str(tmp_path)}))
    assert refused.value.exit_code == 0
    forget()
    with pytest.raises(HostError, match="exp_continue_path"):
        run(recorder(), exp_use_continue=True, exp_continue_path="nowhere.json")


def test_seeds_that_fail_are_left_out(host, tmp_path):
    seeds = [{"algorithm": "good", "code": program(3)}, {"algorithm": "bad", "code": program("z")}]
    (tmp_path / "seeds.json").write_text(json.dumps(seeds))
    client = run(recorder(directions=3), exp_use_seed=True, exp_seed_path="seeds.json")
    assert [(one["description"], one["objective"]) for one in client.given_seeds] == [("good", 0.28)]
    assert len(client.lines) == 1 and "seed 2" in client.lines[0]
    assert list(client.told) == [0, 1, 2] and client.told[0][0] == client.given_seeds
    assert len(client.candidates) == client.plan["candidates"] == 2 * 12


@pytest.mark.parametrize("parser", ["ours", "host"])
def test_nothing_valid_ends_in_one_sentence_that_says_why(host, parser):
    client = FakeClient(lambda *asked: "{Fail.}\n" + program("z"), parser=parser)
    with pytest.raises(HostError, match="None of 6 candidates was valid.*6 times") as ended:
        run(client)
    assert "evaluate returned None" in str(ended.value) and client.finished == ["no valid candidate"]


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
    with pytest.raises(HostError, match="None of 6"):
        run(client)
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
