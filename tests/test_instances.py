"""Which problem and which instances settings mean."""

import os
import pickle

import numpy as np
import pytest
from benchmark_files import A_N32_K5, BURMA14, GR17, U120, written

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.evaluation import PATIENCE
from ttc_esopt.instances import absolute_files, evaluator, joined, problem_of, read_files, split_files
from ttc_esopt.problems import load
from ttc_esopt.runner import settings_of
from ttc_esopt.settings import Settings


def test_options_reach_the_problem():
    problem = problem_of(Settings(problem="bpp_aco", protocol="corrected", mode="aco"))
    assert problem.chosen == {"protocol": "corrected", "mode": "aco"}
    assert problem_of(Settings(problem="bpp_aco")).chosen == {"protocol": "published", "mode": "sample"}
    with pytest.raises(ConfigurationError, match=r"tsp_aco has no option mode \(--mode\)"):
        problem_of(Settings(problem="tsp_aco", mode="aco"))
    with pytest.raises(ConfigurationError, match="Expected one of sample, aco, got 'ants'"):
        problem_of(Settings(problem="bpp_aco", mode="ants"))


OWN = """from ttc_esopt.problems import Problem
class Own(Problem):
    name, function = "own", "f"
    splits, counts = {"train": (1,)}, {"train": 1}
"""


def test_an_own_problem_need_not_tell_protocols_apart(tmp_path):
    (tmp_path / "own.py").write_text(OWN + "    options = {}\n")
    assert problem_of(Settings(problem=f"{tmp_path}/own.py:Own", protocol="corrected")).chosen == {}


def test_data_reaches_the_problem(tmp_path, monkeypatch):
    assert problem_of(Settings(problem="kp_construct", data=str(tmp_path))).data == tmp_path
    with pytest.raises(ConfigurationError, match=r"got /no/such \(--data\)"):
        problem_of(Settings(problem="kp_construct", data="/no/such"))
    monkeypatch.setenv("TTC_ESOPT_DATA", "/no/such")
    with pytest.raises(ConfigurationError, match=r"got /no/such \(TTC_ESOPT_DATA\)"):
        problem_of(Settings(problem="kp_construct"))
    assert problem_of(Settings(problem="kp_construct", data=str(tmp_path))).data == tmp_path


def test_files_are_read_in_order_and_no_file_depends_on_the_others(tmp_path):
    problem = load("bpp_aco")
    one = written(tmp_path, "one.bpp", "2\n9\n4\n5\n")
    two = written(tmp_path, "two.txt", U120)
    together = read_files(problem, [one, two])
    assert [instance.name for instance in together] == ["one", "u120_00", "u120_01"]
    assert [instance.index for instance in together] == [0, 0, 1]
    with pytest.raises(DataError, match="missing.bpp: expected a text file"):
        read_files(problem, [one, tmp_path / "missing.bpp"])


@pytest.mark.parametrize(
    ("body", "message"), [("1 / 0", "ZeroDivisionError"), ("return None", "TypeError"), ("return []", None)]
)
def test_the_reader_of_an_own_problem_may_fail(tmp_path, body, message):
    (tmp_path / "own.py").write_text(OWN + f"    def read(self, path):\n        {body}\n")
    problem = load(f"{tmp_path}/own.py:Own")
    if message is None:
        assert read_files(problem, ["x"]) == []
        return
    with pytest.raises(ConfigurationError, match=rf"own\.read\(\) on x failed: {message}"):
        read_files(problem, ["x"])


def test_paths_in_one_setting(tmp_path, monkeypatch):
    written(tmp_path, "a.tsp", GR17)
    written(tmp_path, "b.tsp", GR17)
    monkeypatch.chdir(tmp_path)
    text = absolute_files(os.pathsep.join(["a.tsp", "b.tsp"]))
    assert split_files(text) == [f"{tmp_path}/a.tsp", f"{tmp_path}/b.tsp"] and split_files("") == []
    with pytest.raises(ConfigurationError, match=r"No such file: .*c\.tsp \(--instances\)"):
        absolute_files("c.tsp")
    with pytest.raises(ConfigurationError, match="No such file"):
        absolute_files(str(tmp_path))


def test_a_folder_with_the_separator_in_its_name_is_refused(tmp_path, monkeypatch):
    odd = tmp_path / f"a{os.pathsep}b"
    odd.mkdir()
    monkeypatch.chdir(odd)
    written(odd, "a.tsp", GR17)
    with pytest.raises(ConfigurationError, match="Expected a path without"):
        absolute_files("a.tsp")
    with pytest.raises(ConfigurationError, match="Expected a path without"):
        joined([odd / "a.tsp"])


def test_the_search_set_is_the_files_and_its_limits_are_the_runs(tmp_path):
    files = os.pathsep.join(str(written(tmp_path, f"{k}.tsp", text)) for k, text in enumerate((GR17, BURMA14)))
    settings = Settings(problem="tsp_aco", instances=files, seed=7, workers=3, eval_timeout=2.5)
    problem = problem_of(settings)
    with evaluator(problem, settings) as search:
        assert (search.split, search.source, search.size) == ("files", "files", None)
        assert [instance.name for instance in search.instances] == ["gr17", "burma14"]
        assert (search.seed, search.workers, search.timeout) == (7, 3, 2.5)
    with evaluator(problem, settings, "val", 20) as held_out:
        assert (held_out.split, held_out.size, len(held_out.instances)) == ("val", 20, 64)
        assert held_out.timeout == PATIENCE * problem.time_limit(held_out.instances) and held_out.seed == 7


def test_instances_of_files_travel_to_other_processes(tmp_path):
    for name, text, problem in (("a.tsp", GR17, "tsp_aco"), ("a.vrp", A_N32_K5, "cvrp_aco"), ("u", U120, "bpp_aco")):
        (instance, *_) = read_files(load(problem), [written(tmp_path, name, text)])
        again = pickle.loads(pickle.dumps(instance))
        assert again.name == instance.name and len(again) == len(instance)
        if problem != "bpp_aco":
            assert np.array_equal(again.metric(), instance.metric())


def test_a_broken_file_is_told_before_a_run_begins(tmp_path):
    file = written(tmp_path, "broken.tsp", BURMA14.replace("20.09 ", "north "))
    with pytest.raises(DataError, match=r"broken\.tsp, line \d+: expected"):
        settings_of({"problem": "tsp_aco", "instances": str(file)})
    with pytest.raises(DataError, match="expected"):
        settings_of({"problem": "bpp_aco", "instances": str(file)})
    with pytest.raises(DataError, match="asp_construct reads no instance files"):
        settings_of({"problem": "asp_construct", "instances": str(file)})
