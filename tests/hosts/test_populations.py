"""Population files of hosts: every shape is read, whatever is no population is refused with what was found."""

import json
import os
import time

import pytest

from ttc_esopt.scaffolds.hosts.client import HostError
from ttc_esopt.scaffolds.hosts.populations import check_objectives, last_population, read_population


def entry(objective, code="def f(): pass", **more):
    return {"algorithm": "what it does", "code": code, "objective": objective, "other_inf": None, **more}


@pytest.fixture
def saved(tmp_path):
    def save(content, name="population_generation_3.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return save


def test_eoh_populations_come_sorted_and_without_the_failed(saved):
    population = read_population(saved([entry(3.0, "c"), entry(None, "x"), entry(-1.5, "a"), entry(0, "b")]))
    assert [(one["code"], one["objective"]) for one in population] == [("a", -1.5), ("b", 0.0), ("c", 3.0)]
    assert population[0]["description"] == "what it does"


def test_equal_objectives_keep_their_order(saved):
    assert [one["code"] for one in read_population(saved([entry(1, "x"), entry(1, "y"), entry(0, "z")]))] == list("zxy")


def test_files_of_the_first_eoh_differ_in_one_key_and_may_lack_a_description(saved):
    old = {"algorithm": None, "code": "a", "objective": 2.0, "first_obj": 7.0}
    assert read_population(saved([old])) == [{"description": "", "code": "a", "objective": 2.0}]


def test_scores_of_llm4ad_are_negated_and_zero_is_one(saved):
    stored = [
        {"algorithm": "{low}", "function": "low", "score": -2.5},
        {"algorithm": "{zero}", "function": "zero", "score": 0},
        {"algorithm": "{failed}", "function": "failed", "score": None},
        {"algorithm": "{infinite}", "function": "infinite", "score": float("-inf")},
    ]
    population = read_population(saved(stored, "pop_4.json"))
    assert [(one["code"], one["objective"]) for one in population] == [("zero", 0.0), ("low", 2.5)]
    assert str(population[0]["objective"]) == "0.0"


def test_mcts_ahd_stores_thoughts_and_words_for_failures(saved):
    stored = [
        {"algorithm": None, "thought": "a thought", "code": "a", "objective": 4.0, "other_inf": None},
        {"algorithm": "said", "thought": "a thought", "code": "b", "objective": 3.0, "other_inf": None},
        {"algorithm": "said", "thought": "a thought", "code": "c", "objective": "timeout", "other_inf": None},
    ]
    assert [one["description"] for one in read_population(saved(stored))] == ["said", "a thought"]


def test_the_best_of_a_generation_alone_is_a_population_of_one(saved):
    assert len(read_population(saved(entry(1.0)))) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is broken or cut"),
        ('[{"algorithm": "x", "code"', "remove it to go on from the generation before"),
        ("[" * 100_000, "is broken or cut"),
        ("[]", "is an empty list"),
        ("3", "holds a int"),
        ("[[]]", "number 1 in"),
        ([entry(1.0), {"a": 1}], "number 2 in"),
        ([{"code": "x", "fitness": 1}], "has code, fitness"),
        ([entry(None), entry(float("nan")), entry(10**400)], "none of the 3"),
        ([entry(1.0, code=7)], "is a int"),
    ],
)
def test_what_is_no_population_is_refused_by_name(saved, content, words):
    path = saved(content)
    with pytest.raises(HostError) as caught:
        read_population(path)
    assert words in str(caught.value) and str(path) in str(caught.value) and caught.value.exit_code == 2


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "population_generation_1.json", tmp_path):
        with pytest.raises(HostError, match="Expected a population file"):
            read_population(path)


@pytest.mark.parametrize("inside", ["pops", "results/pops", "results/results/pops", "population", ""])
def test_the_last_generation_is_found_from_any_folder_around_it(tmp_path, inside):
    folder = tmp_path / inside
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "results" / "pops_best").mkdir(parents=True, exist_ok=True)
    (tmp_path / "results" / "pops_best" / "population_generation_99.json").write_text("{}")
    name = "pop" if inside == "population" else "population_generation"
    for k in (0, 2, 10, 9):
        (folder / f"{name}_{k}.json").write_text("[]")
    (folder / f"best_{name}_11.json").write_text("[]")
    assert last_population(tmp_path) == (10, folder / f"{name}_10.json")
    assert last_population(folder) == (10, folder / f"{name}_10.json")
    assert last_population(folder / f"{name}_9.json") == (9, folder / f"{name}_9.json")


def test_what_a_longer_run_left_in_the_folder_is_not_taken_for_the_last_generation(tmp_path):
    for k, age in ((0, 0), (1, 0), (2, 7200), (3, 3600)):
        path = tmp_path / f"population_generation_{k}.json"
        path.write_text("[]")
        os.utime(path, (time.time() - age, time.time() - age + k))
    with pytest.raises(HostError, match=r"generation 1 was written after generation 3: .*--continue .*_1\.json"):
        last_population(tmp_path)
    assert last_population(tmp_path / "population_generation_1.json")[0] == 1
    for k in (2, 3):
        (tmp_path / f"population_generation_{k}.json").write_text("[]")
    assert last_population(tmp_path)[0] == 3


def test_a_log_folder_of_llm4ad_with_one_run_is_enough_and_with_two_is_not(tmp_path):
    for name in ("20250101_1", "20250102_2"):
        (tmp_path / name / "population").mkdir(parents=True)
        (tmp_path / name / "population" / "pop_5.json").write_text("[]")
        if name == "20250101_1":
            assert last_population(tmp_path)[0] == 5
    with pytest.raises(HostError, match="holds 2: 20250101_1, 20250102_2"):
        last_population(tmp_path)


def test_a_folder_without_populations_is_refused_with_what_was_looked_for(tmp_path):
    (tmp_path / "notes.json").write_text("[]")
    with pytest.raises(HostError, match="there is no .*nowhere"):
        last_population(tmp_path / "nowhere")
    with pytest.raises(HostError, match=r"population_generation_<k>\.json or pop_<k>\.json in"):
        last_population(tmp_path)
    with pytest.raises(HostError, match="Expected a file population_generation"):
        last_population(tmp_path / "notes.json")


def test_objectives_that_come_out_again_pass():
    check_objectives([1.0, -20.00001, 0.0, 123456.7], [1.00001, -20.0, 0.000004, 123457.0], "pops/x.json")


def test_the_first_objective_that_differs_is_named():
    with pytest.raises(HostError) as caught:
        check_objectives([1.0, 2.0, 3.0], [1.0, 2.1, None], "pops/x.json")
    for words in ("pops/x.json", "2 of 3", "number 2 was stored with 2", "it has 2.1 now", "--trust-objectives"):
        assert words in str(caught.value)
    with pytest.raises(HostError, match="number 1 was stored with 3 and it fails now"):
        check_objectives([3.0], [None], "x")
