"""EoH 0.1 with our engine: stopping, going on, and beginning from what is there."""

import json
from pathlib import Path

import pytest
from eoh1_user import HOSTS, POPULATION, Choose, files, forget, loaded, program, recorder, run, stored, write
from stand_in import StandInEngine

from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options
from ttc_esopt.engines.base import Reply
from ttc_esopt.scaffolds.hosts.client import HostError, Stopped

MIXED = [("worse", program(1), 4.28), ("best", program(3), 0.28), ("failed", None, None), ("worst", program(0), 6.28)]


@pytest.fixture(params=HOSTS, ids=["double", "checkout"][: len(HOSTS)])
def host(request, monkeypatch, tmp_path):
    yield from loaded(request.param, monkeypatch, tmp_path)


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


def test_generations_are_reported_before_the_host_saves_them_so_that_a_kill_leaves_none_unknown(host):
    client, there = recorder(directions=3), []
    report = client.generation

    def generation(k, population, state=None):
        there.append(Path(POPULATION.format(k)).exists())
        report(k, population, state)

    client.generation = generation
    run(client, ec_n_pop=3)
    assert there == [False] * 4 and all(Path(POPULATION.format(k)).exists() for k in range(4))


def test_a_seed_file_that_is_none_is_refused_before_the_model_is_loaded(host, tmp_path):
    for text in ("[{", "{}", '[{"algorithm": "no code"}]'):
        (tmp_path / "seeds.json").write_text(text)
        client = recorder()
        with pytest.raises(HostError, match="seeds.json"):
            run(client, exp_use_seed=True, exp_seed_path=str(tmp_path / "seeds.json"))
        assert client.plan is None
        forget()


def test_seeds_that_fail_are_left_out(host, tmp_path):
    seeds = [{"algorithm": "good", "code": program(3)}, {"algorithm": "bad", "code": program("z")}]
    (tmp_path / "seeds.json").write_text(json.dumps(seeds))
    client = run(recorder(directions=3), exp_use_seed=True, exp_seed_path="seeds.json")
    assert [(one["description"], one["objective"]) for one in client.given_seeds] == [("good", 0.28)]
    assert len(client.lines) == 1 and "seed 2" in client.lines[0]
    assert list(client.told) == [0, 1, 2] and client.told[0][0] == client.given_seeds
    assert len(client.candidates) == client.plan["candidates"] == 2 * 12


class Writer(StandInEngine):
    """Replies follow from prompt, seed and every bit of the weights; dies at request `fail_at`, as if killed."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.asked, self.fail_at = 0, fail_at

    def generate(self, requests, sampling, progress=None):
        replies = []
        for request in requests:
            if self.asked == self.fail_at:
                raise RuntimeError("the engine was killed")
            self.asked += 1
            weights = self.weights(request.direction, request.sigma)
            text = write(request.prompt, f"{request.seed}/{weights.tobytes().hex()}")
            replies.append(Reply(text, len(request.prompt) // 4, len(text) // 4, "stop"))
        return replies


@pytest.mark.parametrize("parser", ["ours", "host"])
def test_a_killed_run_under_exec_goes_on_to_the_same_bytes(host, tmp_path, monkeypatch, parser):
    paths = [host, str(Path(__file__).parent), str(Path(__file__).parents[1])]
    user = tmp_path / "runEoH.py"
    user.write_text(f"import sys\nsys.path[:0] = {paths}\nfrom eoh1_user import script\nscript(ec_n_pop=2)\n")

    def attach(name, engine, **more):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        given = {"prefill": False, "sigma": 0.05, "alpha": 0.05, "arm": "esopt"}
        settings, options = host_options(given, directions=4, parser=parser, **more)
        return execute(user, [], settings, options, engine=engine, say=lambda line: None)

    def ours(name, file):
        return (tmp_path / name / "results" / "ttc_esopt" / file).read_text()

    assert attach("whole", Writer()) == 0
    with pytest.raises(RuntimeError, match="killed"):
        attach("cut", Writer(fail_at=24))
    assert 0 < len(files(tmp_path / "cut")) < len(files(tmp_path / "whole"))
    assert attach("cut", Writer(), continue_from=tmp_path / "cut") == 0
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    for file in ("samples.jsonl", "history.jsonl"):
        assert ours("cut", file) == ours("whole", file) != ""
