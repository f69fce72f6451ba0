"""EoH 0.1 with our engine: its own candidates where those are wanted, batches of directions elsewhere."""

import importlib
import json
from pathlib import Path

import pytest
from eoh1_user import (
    HOSTS,
    POPULATION,
    Choose,
    attached,
    files,
    forget,
    loaded,
    noted,
    recorder,
    run,
    run_alone,
    script,
)

SETTINGS = {"ec_pop_size": 4, "ec_n_pop": 3, "ec_operators": ["e1", "e2", "m1", "m2", "m3"], "ec_m": 2}


@pytest.fixture(params=HOSTS, ids=["double", "checkout"][: len(HOSTS)])
def host(request, monkeypatch, tmp_path):
    yield from loaded(request.param, monkeypatch, tmp_path)


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
