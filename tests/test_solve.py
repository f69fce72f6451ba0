"""One file in, one solution out: what is reported is what the written file says, and nothing is searched twice."""

import json
import sys

import numpy as np
import pytest
import solving
from benchmark_files import A_N32_K5, BERLIN52, BURMA14, GR17, KP_10_269, U120, written
from in_this_process import InThisProcess, use
from solving import gap, go, tsp_file

from ttc_esopt.errors import ConfigurationError, DataError, EvaluationError
from ttc_esopt.problems.files import read_bpp, read_kp, read_tsp, read_vrp, solutions
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.solve import folder_for, planned

OWN = """
import numpy as np
from ttc_esopt.problems.tsp_construct import TspConstruct

class Own(TspConstruct):
    name = "own"
    options = {}

class Mute(TspConstruct):
    name = "mute"
    solution = None

class Twice(TspConstruct):
    name = "twice"
    def read(self, path):
        return super().read(path) * 2

class Short(TspConstruct):
    name = "short"
    def solution(self, instance, output):
        return output[:-1]

class Broken(TspConstruct):
    name = "broken"
    def solution(self, instance, output):
        return output[len(output)]
"""


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    return solving.stand_in_engines(monkeypatch)


@pytest.fixture
def here(monkeypatch):
    use(monkeypatch)


# The real thing in sandboxed processes; below it the same without them


def test_berlin52_with_a_strong_solver(tmp_path):
    pytest.importorskip("pyvrp")
    file = written(tmp_path, "berlin52.tsp", BERLIN52)
    out = tmp_path / "out"
    first = go(file, out=out, best_known=7542, strong_seconds=0.1, arm="frozen")
    record = read_tsp(file)
    tour = solutions.read_tour(first.file, record)
    assert first.file == out / "berlin52.tour" and first.what == "length"
    assert first.value == solutions.check_tsp(record, tour) == solutions.check_tsp(record, first.solution)
    assert 7542 <= first.value < 9000 and first.notes == []
    assert gap(first, "best known").percent == pytest.approx(100 * (first.value - 7542) / 7542)
    assert gap(first, "1-tree").value <= 7542 and gap(first, "pyvrp").value >= 7542
    facts = json.loads((out / "solution.json").read_text())
    assert (facts["instance"], facts["length"], facts["notes"]) == ("berlin52", first.value, [])
    assert [one["name"] for one in facts["gaps"]] == [one.name for one in first.gaps]
    best = json.loads((out / "best.json").read_text())
    assert best["objective"] == first.value and best["chosen_on"] == "train" and best["size"] is None


def test_a_second_call_gives_the_same_solution_and_asks_the_model_for_nothing(tmp_path, here, engines):
    file, out, said = written(tmp_path, "gr17.tsp", GR17), tmp_path / "out", []
    first = go(file, out=out)
    before = (out / "samples.jsonl").read_bytes()
    again = go(file, out=out, budget=99, say=said.append)
    assert np.array_equal(again.solution, first.solution) and again.value == first.value
    assert (out / "samples.jsonl").read_bytes() == before and engines.engines[-1].calls == 0
    assert any("goes on with its own settings" in line for line in said)


def test_one_of_several_bin_packing_instances(tmp_path, here):
    file = written(tmp_path, "u120.txt", U120)
    solved = go(file, out=tmp_path / "out", index=2, init="seeds", budget=2, strong_seconds=0.2)
    record = read_bpp(file)[1]
    assert solved.what == "bins" and solved.value == len(solutions.read_bins(solved.file, record))
    assert gap(solved, "best known").value == 49 and gap(solved, "L2").value <= 49 <= solved.value
    assert sorted(item for items in solved.solution for item in items) == list(range(120))
    kept = RunFolder.open(tmp_path / "out").settings.instances
    assert kept == str(tmp_path / "out" / "instance.txt") and np.array_equal(read_bpp(kept)[0].sizes, record.sizes)
    with pytest.raises(ConfigurationError, match="holds another run"):
        go(file, out=tmp_path / "out", index=1)


@pytest.mark.parametrize(("text", "optimum"), [(GR17, 2085), (BURMA14, 3323)])
def test_tours_without_coordinates_of_a_plane(tmp_path, here, text, optimum):
    file = written(tmp_path, "a.tsp", text)
    solved = go(file, out=tmp_path / "out")
    record = read_tsp(file)
    tour = solutions.read_tour(solved.file, record)
    assert solved.value == solutions.check_tsp(record, tour) >= optimum
    assert solved.value < 1.1 * optimum and gap(solved, "1-tree").value <= optimum
    assert any("no best-known value" in note for note in solved.notes)


def test_routes(tmp_path, here):
    file = written(tmp_path, "A-n32-k5.vrp", A_N32_K5)
    solved = go(file, out=tmp_path / "out", mode="", init="seeds", budget=2)
    routes, cost = solutions.read_routes(solved.file, read_vrp(file))
    assert (solved.what, solved.value) == ("cost", cost) and routes == solved.solution
    assert 784 <= cost < 1000 and gap(solved, "best known").value == 784
    assert gap(solved, "best known").percent == pytest.approx(100 * (cost - 784) / 784)
    assert gap(solved, "weak").value <= 784


def test_items_are_maximised(tmp_path, here):
    file = written(tmp_path, "k.txt", KP_10_269)
    pytest.importorskip("ortools")
    solved = go(file, out=tmp_path / "out", best_known=300, strong_seconds=2)
    assert sorted(solutions.read_items(solved.file, read_kp(file)[0])) == solved.solution
    assert solved.value <= 295 and gap(solved, "best known").percent == pytest.approx((300 - solved.value) / 3)
    assert gap(solved, "LP").value >= 295 and gap(solved, "LP").percent > 0
    optimal = gap(solved, "proven optimal")
    assert optimal.value == 295 and optimal.percent >= 0 and str(optimal.percent) != "-0.0"


def test_missing_packages_are_notes(tmp_path, here, monkeypatch):
    for package in ("pyvrp", "ortools", "ortools.sat.python", "ortools.constraint_solver"):
        monkeypatch.setitem(sys.modules, package, None)
    for name, text in (("a.tsp", GR17), ("a.vrp", A_N32_K5), ("k.txt", KP_10_269)):
        solved = go(written(tmp_path, name, text), out=tmp_path / f"{name}-out", budget=1, strong_seconds=1)
        (note,) = [note for note in solved.notes if note.startswith("no strong solver: ")]
        assert "installed" in note and "pip install" in note


# Which setting, which folder


def test_a_large_tour_is_built_step_by_step(tmp_path):
    points = [f"{k % 25} {k // 25}" for k in range(600)]
    assert planned(tsp_file(tmp_path, points))[1].problem == "tsp_construct"
    assert planned(tsp_file(tmp_path, points[:500]))[1].problem == "tsp_aco"
    assert planned(tsp_file(tmp_path, points), problem="tsp_aco")[1].problem == "tsp_aco"


def test_a_plan_is_checked_and_corrected_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "u120.txt", U120)
    before = sorted(tmp_path.iterdir())
    name, settings = planned("u120.txt", 2, mode="aco", protocol="published")
    assert (name, settings.problem, settings.mode, settings.protocol) == ("u120_01", "bpp_aco", "aco", "corrected")
    assert settings.instances == str(tmp_path / "u120.txt") and sorted(tmp_path.iterdir()) == before
    assert str(folder_for("a/b.tsp")) == "b-solve" and str(folder_for("a/b.txt", 3)) == "b-3-solve"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"problem": "cvrp_aco"}, "Expected a problem that fits .*: tsp_aco or tsp_construct, got cvrp_aco"),
        ({"problem": "tsp_aoc"}, "Did you mean tsp_aco?"),
        ({"mode": "aco"}, "has no option mode"),
        ({"index": 2}, r"Expected an index from 1 to 1, got 2 \(--index\)"),
        ({"index": 0}, "Expected an index from 1 to 1, got 0"),
        ({"best_known": float("nan")}, r"Expected a finite number, got nan \(--best-known\)"),
        ({"strong_seconds": -1}, "--strong-seconds"),
        ({"strong_seconds": float("inf")}, "--strong-seconds"),
        ({"arm": "esopt", "budget": 4}, "needs at least one batch"),
        ({"budgett": 4}, "did you mean budget"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(tmp_path, given, message):
    file = written(tmp_path, "a.tsp", GR17)
    with pytest.raises(ConfigurationError, match=message):
        go(file, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_an_index_of_the_only_instance_is_allowed(tmp_path, here):
    assert go(written(tmp_path, "a.tsp", GR17), out=tmp_path / "out", index=1, budget=1).value >= 2085


def test_several_instances_need_an_index(tmp_path):
    file = written(tmp_path, "u.txt", U120)
    with pytest.raises(ConfigurationError, match=r"holds 2 instances: choose one \(--index 1 to 2\)"):
        go(file, out=tmp_path / "out")
    with pytest.raises(ConfigurationError, match="needs at least one batch"):
        go(file, out=tmp_path / "out", index=1, arm="esopt", budget=4)
    assert not (tmp_path / "out").exists()


def test_sets_are_not_files_of_one_instance(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 5, 2)))
    with pytest.raises(ConfigurationError, match="Expected a file of one instance"):
        go(tmp_path / "a.npy")


@pytest.mark.parametrize("out", [".", "data", "data/../data"])
def test_the_folders_of_the_user_and_of_the_file_are_not_used(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigurationError, match="Expected a folder of its own"):
        go(written(tmp_path / "data", "a.tsp", GR17), out=out)


def test_a_broken_solution_beside_the_file_is_told_before_the_search(tmp_path):
    file = written(tmp_path, "a.tsp", GR17)
    written(tmp_path, "a.opt.tour", "TYPE : TOUR\nTOUR_SECTION\n1 2 3 -1\nEOF\n")
    with pytest.raises(DataError, match=r"a\.opt\.tour, line \d"):
        go(file, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_path_with_the_separator_is_refused(tmp_path):
    (tmp_path / "a:b").mkdir()
    with pytest.raises(ConfigurationError, match="Expected a path without ':'"):
        go(written(tmp_path / "a:b", "a.tsp", GR17), out=tmp_path / "out")


def test_another_file_does_not_go_on_in_a_folder(tmp_path, here):
    go(written(tmp_path, "a.tsp", GR17), out=tmp_path / "out", budget=1)
    with pytest.raises(ConfigurationError, match="holds another run"):
        go(written(tmp_path, "b.tsp", BURMA14), out=tmp_path / "out", budget=1)


def test_a_file_that_was_changed_does_not_go_on_either(tmp_path, here):
    file = written(tmp_path, "a.tsp", GR17.replace("\n", "\r\n").replace("Groetschel", "Gr\xf6tschel"))
    first = go(file, out=tmp_path / "out", budget=1)
    assert go(file, out=tmp_path / "out").value == first.value
    kept = RunFolder.open(tmp_path / "out").settings.instances
    assert kept == str(tmp_path / "out" / "instance.tsp")
    file.write_bytes(file.read_bytes().replace(b"\xc3\xb6", b"\xf6"))  # not UTF-8, the same text
    assert go(file, out=tmp_path / "out").value == first.value
    file.write_text(GR17.replace("0 633", "0 634"))
    with pytest.raises(ConfigurationError, match="holds another run"):
        go(file, out=tmp_path / "out", budget=1)


def test_a_run_that_never_began_is_begun_anew(tmp_path, here, monkeypatch):
    def fails(folder, model=None):
        raise DataError("no such model")

    file = written(tmp_path, "a.tsp", GR17)
    with monkeypatch.context() as patch, pytest.raises(DataError):
        patch.setattr("ttc_esopt.runner.open_engine", fails)
        go(file, out=tmp_path / "out", seed=1)
    go(file, out=tmp_path / "out", seed=2)
    assert RunFolder.open(tmp_path / "out").settings.seed == 2


def test_a_stopped_search_goes_on(tmp_path, here, engines):
    file = written(tmp_path, "a.tsp", GR17)
    stopped = go(file, out=tmp_path / "out", budget=30, max_tokens_total=1)
    assert "--max-tokens-total" in stopped.run.stopped
    some = len((tmp_path / "out" / "samples.jsonl").read_text().splitlines())
    whole = go(file, out=tmp_path / "out", max_tokens_total=0)
    assert some < 30 == len((tmp_path / "out" / "samples.jsonl").read_text().splitlines())
    assert whole.run.stopped is None and whole.value <= stopped.value
    undisturbed = go(file, out=tmp_path / "other", budget=30)
    assert np.array_equal(undisturbed.solution, whole.solution)


def test_no_valid_candidate_is_one_sentence(tmp_path, here, monkeypatch):
    monkeypatch.setattr("stand_in.PROGRAM", "I would rather not. {a}")
    with pytest.raises(DataError, match="No candidate was valid"):
        go(written(tmp_path, "a.tsp", GR17), out=tmp_path / "out", init="model")


# A problem of the user's own


def test_an_own_problem(tmp_path, here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "own.py", OWN)
    file = written(tmp_path, "a.tsp", GR17)
    solved = go(file, out=tmp_path / "out", problem="own.py:Own")
    assert solved.value == solutions.check_tsp(read_tsp(file), solved.solution)
    assert RunFolder.open(tmp_path / "out").settings.problem == f"{tmp_path}/own.py:Own"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Mute", ConfigurationError, r"has no solution\(\)"),
        ("Twice", ConfigurationError, "twice reads 2"),
        ("Short", DataError, "expected all of nodes 0 to 16, got none of"),
        ("Broken", ConfigurationError, r"broken\.solution\(\) failed: IndexError"),
        ("Nothing", ConfigurationError, "Expected a class"),
    ],
)
def test_an_own_problem_that_does_not_do_is_one_sentence(tmp_path, here, name, error, message):
    own = written(tmp_path, "own.py", OWN)
    with pytest.raises(error, match=message):
        go(written(tmp_path, "a.tsp", GR17), out=tmp_path / "out", problem=f"{own}:{name}")


def test_an_edited_best_heuristic_that_fails_gives_no_solution(tmp_path, here, monkeypatch):
    file = written(tmp_path, "a.tsp", GR17)

    class Spoiled(InThisProcess):
        def solutions(self, code):
            return super().solutions("def heuristics_v2(d): return d / 0 - 1")

    monkeypatch.setattr("ttc_esopt.instances.Evaluator", Spoiled)
    with pytest.raises(EvaluationError, match="The program gives no solution: nonfinite"):
        go(file, out=tmp_path / "out", budget=1)
