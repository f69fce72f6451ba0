"""A recipe is checked as a whole; what it asks for, and how a machine is shared out, follows from it alone."""

import json
import os
from pathlib import Path

import pytest

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.study import machine as machines
from ttc_esopt.study import published_table, read_recipe
from ttc_esopt.study.plan import planned

RECIPES = sorted((Path(__file__).parents[1] / "runs").glob("*.toml"))
MINIMAL = """
seeds = [1, 2]
problems = ["tsp_construct"]
[arms.frozen]
[arms.esopt]
arm = "esopt"
"""
EQUAL = '[arms.best]\nscaffold = "sample"\nequal_tokens_to = "esopt"\n'


def recipe(folder, text=MINIMAL, name="small.toml"):
    (folder / name).write_text(text)
    return read_recipe(folder / name)


@pytest.mark.parametrize("path", [path for path in RECIPES if path.name != "demo.toml"], ids=lambda path: path.stem)
def test_the_recipes_of_the_package_are_recipes(path):
    found = read_recipe(path)
    assert found.name == path.stem and found.about and found.hardware and len(found.arms) > 1
    assert {one.problem for one in found.published} <= set(found.problems)
    assert {one.arm for one in found.published} <= set(found.arms)
    plans = planned(found, Path("out"))
    assert len(plans) == len(found.seeds) * len(found.problems) * len(found.arms)
    assert "not run here" in published_table(found) or not found.published


def test_a_grid_goes_seed_by_seed_and_folders_say_what_is_in_them(tmp_path):
    found = recipe(tmp_path)
    cells = found.cells(Path("out"))
    assert [(cell.arm, cell.seed) for cell in cells] == [("frozen", 1), ("esopt", 1), ("frozen", 2), ("esopt", 2)]
    assert cells[1].folder == Path("out/tsp_construct/esopt/seed-1") and cells[1].name == "tsp_construct-esopt-1"
    assert cells[1].given == {"threads": 1, "arm": "esopt", "problem": "tsp_construct", "seed": 1}
    assert (found.name, found.baseline, found.folder) == ("small", "frozen", Path("runs/small"))
    assert [(arm.name, other.name) for arm, other in found.pairs()] == [("esopt", "frozen")]


def test_the_copy_in_a_studys_folder_has_the_folders_name(tmp_path):
    (tmp_path / "mine").mkdir()
    assert recipe(tmp_path / "mine", name="study.toml").name == "mine"
    assert recipe(tmp_path / "mine", 'name = "other"' + MINIMAL, "study.toml").name == "other"


def test_the_arm_wins_over_the_problem_and_that_over_the_study(tmp_path):
    text = "[settings]\nbudget = 60\nalpha = 1\nsigma_end = 1e-4\nthreads = 2\n"
    text += "[problem.tsp_construct]\nbudget = 70\nalpha = 2\n[arms.hot]\nalpha = 3\nsigma = '1e-2'\n"
    text = MINIMAL.replace("[arms.frozen]", text + "[arms.frozen]")
    given = {cell.arm: cell.given for cell in recipe(tmp_path, text).cells(Path())}
    assert (given["frozen"]["budget"], given["frozen"]["alpha"], given["frozen"]["threads"]) == (70, 2, 2)
    assert given["hot"]["alpha"] == 3 and "sigma_end" not in given["hot"]  # an end belongs to its own sigma


def test_paths_are_relative_to_the_recipe_as_it_was_typed(tmp_path, monkeypatch):
    (tmp_path / "here" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    text = MINIMAL.replace('"tsp_construct"', '"shop.py:Shop", "kp_construct", "mod:Bin"')
    text += '[settings]\nmodel = "model"\ninstances = "a.tsp:b.tsp"\ndata = "sets"\n'
    found = recipe(Path("here"), text)
    first, second, third = (cell.given for cell in found.cells(Path("out"))[::2][:3])
    assert list(found.problems) == ["Shop", "kp_construct", "Bin"]
    assert first["problem"] == "here/shop.py:Shop" and first["model"] == "here/model" and first["data"] == "here/sets"
    assert first["instances"] == "here/a.tsp:here/b.tsp"
    assert (second["problem"], third["problem"]) == ("kp_construct", "mod:Bin")


def test_what_is_compared_with_what(tmp_path):
    def pairs(text):
        return [(arm.name, other.name) for arm, other in recipe(tmp_path, MINIMAL + text).pairs()]

    assert pairs('against = ["frozen", "noise"]\n[arms.noise]\n') == [
        ("esopt", "frozen"), ("esopt", "noise"), ("noise", "frozen"),
    ]  # fmt: skip
    assert pairs("against = []\n") == []
    assert pairs(EQUAL) == [("esopt", "frozen"), ("best", "esopt")]
    # not both ways round
    assert pairs('against = ["frozen", "best"]\n' + EQUAL) == [("esopt", "frozen"), ("esopt", "best")]
    assert pairs(EQUAL + 'against = "frozen"\n') == [("esopt", "frozen"), ("best", "frozen")]
    best = (
        MINIMAL.replace('baseline = "frozen"', 'baseline = "best"')
        if "baseline" in MINIMAL
        else 'baseline = "best"\n' + MINIMAL
    )
    assert [(arm.name, other.name) for arm, other in recipe(tmp_path, best + EQUAL).pairs()] == [
        ("frozen", "best"), ("esopt", "best"),
    ]  # fmt: skip
    alone = recipe(tmp_path, MINIMAL.partition("[arms.frozen]")[0] + "[arms.only]\n")
    assert alone.pairs() == [] and alone.baseline is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds = [1, 2]", "seed = [1, 2]"), r"small.toml: Expected seed in the table \[settings\]"),
        (("seeds", "seedz"), "Unknown key seedz in the recipe; did you mean seeds?"),
        (("seeds = [1, 2]", "seeds = [1, 1]"), "Expected each seed once, got 1 2 times"),
        (("seeds = [1, 2]", "seeds = [-1]"), "Expected seeds from 0"),
        (("seeds = [1, 2]", "seeds = [true]"), "Expected each of seeds as a whole number, got True"),
        (("seeds = [1, 2]", "seeds = []"), "Expected seeds, such as"),
        (("seeds = [1, 2]", "seeds = 3"), "Expected seeds as a list, got 3"),
        (("seeds = [1, 2]", 'seeds = [1, 2]\nignore = [["data"]]'), r"Expected ignore among .*got \['data'\]"),
        (("seeds = [1, 2]", "seeds = [" + "9" * 5000 + "]"), "is not valid TOML"),
        (("seeds = [1, 2]", "seeds = " + "[" * 3000), "is not valid TOML"),
        (('["tsp_construct"]', "[]"), "Expected problems, such as"),
        (('["tsp_construct"]', '["a.py:X", "b.py:X"]'), "Expected each problem once, got X for a.py:X and b.py:X"),
        (('["tsp_construct"]', '["logs"]'), "other than cells, figures, logs"),
        (("seeds", 'name = "a/b"\nseeds'), "Expected name that can be a folder's"),
        (("seeds", 'baseline = "frzen"\nseeds'), "Expected an arm as baseline, got 'frzen'; did you mean frozen?"),
        (("seeds", 'ignore = ["seeds"]\nseeds'), "Expected ignore among budget, data"),
        (("[arms.frozen]", "[arms.'a b']"), "an arm's name that can be a folder's"),
        (("[arms.frozen]", "[arms.plain]"), "Expected baseline, the arm that the others are compared with"),
        (("[arms.frozen]", "[settings]\nseed = 3\n[arms.frozen]"), r"Expected no seed in \[settings\]"),
        (("[arms.frozen]", "[arms.frozen]\nproblem = 'x'"), r"Expected no problem in \[arms.frozen\]"),
        (("[arms.frozen]", "[problem.tsp]\n[arms.frozen]"), r"Unknown key tsp in \[problem\]; there are tsp_constr"),
        (("[arms.frozen]", "[arms.frozen]\nbudgt = 3"), r"Unknown key budgt in \[arms.frozen\]; did you mean budget?"),
        (("[arms.frozen]", "[arms.frozen]\nbudget = '3'"), r"\[arms.frozen\]: Expected budget as a whole number"),
        (("[arms.frozen]", "[arms.frozen]\ndevice = 'cuda:1'"), "Expected device auto, cpu or cuda"),
        (("[arms.frozen]", "[arms.frozen]\nagainst = 'esopd'"), "against in .*got 'esopd'; did you mean esopt?"),
        (("[arms.frozen]", "[arms.frozen]\nagainst = 'frozen'"), "to name other arms once, got frozen"),
        (("[arms.frozen]", "[arms.frozen]\nagainst = [3]"), r"Expected against in \[arms.frozen\] as text"),
        (("esopt\"", "esopt\"\nagainst = 'b'\n[arms.b]\nagainst = 'esopt'"), "b and esopt are each compared with the"),
        (("[arms.frozen]", "[arms.frozen]\nequal_tokens_to = 'esop'"), "did you mean esopt?"),
        (("esopt\"", "esopt\"\nequal_tokens_to = 'b'\n[arms.b]\nequal_tokens_to = 'esopt'"), "circle: esopt -> b -> "),
        (("[arms.frozen]", "[arms.frozen]\nequal_tokens_to = 'esopt'\nmax_tokens_total = 3"), "drop one"),
        (("[arms.frozen]", "[settings]\nnoise = 'full'\n[arms.frozen]\npreset = 'default'"), "default sets noise"),
        (("[arms.frozen]", "[arms.a-1]\n[arms.frozen]"), None),
        (("[arms.frozen]", "[[published]]\narm = 'x'\nmean = 3\n[arms.frozen]"), "Expected problem in .*number 1"),
        (("[arms.frozen]", "[[published]]\nmena = 3\n[arms.frozen]"), "Unknown key mena in .*did you mean mean?"),
        (("[arms.frozen]", "[[published]]\nproblem = 'a'\narm = 'x'\nmean = 3\nsplit = 'all'\n[arms.frozen]"), "split"),
        (("[arms.frozen]", "[[published]]\nproblem = 'a'\narm = 'x'\nmean = '3'\n[arms.frozen]"), "mean .* a number"),
        (("[arms.frozen]", "[arms.frozen"), "is not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, change, message):
    text = MINIMAL.replace(*change, 1)
    assert text != MINIMAL
    if message is None:
        assert recipe(tmp_path, text)
        return
    with pytest.raises(ConfigurationError, match=message) as told:
        recipe(tmp_path, text)
    assert len(str(told.value).splitlines()) == 1 and "small.toml" in str(told.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ConfigurationError, match="Cannot read the recipe .*No such file"):
        read_recipe(tmp_path / "no.toml")


def test_names_of_files_do_not_run_into_one_another(tmp_path):
    text = MINIMAL.replace('"tsp_construct"', '"a.py:P", "b.py:P-x"')
    with pytest.raises(ConfigurationError, match="P-x frozen seed 1 and P x-frozen seed 1 would both have"):
        recipe(tmp_path, text + "[arms.x-frozen]\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tsp_construct", "tsp_constuct"), "Unknown problem 'tsp_constuct'"),
        (('arm = "esopt"', 'arm = "esopt"\nbudget = 10'), "tsp_construct esopt seed 1: Arm esopt needs at least"),
        (("[arms.frozen]", "[arms.frozen]\nmodel = 'smollm3-135m'"), "tsp_construct frozen seed 1: .*smollm2-135m"),
        (("[arms.frozen]", "[arms.frozen]\nalpha = -1"), "frozen seed 1: Expected alpha >= 0"),
        (("[arms.frozen]", "[arms.frozen]\ninstances = 'no.tsp'"), "No such file: .*no.tsp"),
    ],
)  # fmt: skip
def test_every_cell_is_checked_before_anything_runs(tmp_path, change, message):
    found = recipe(tmp_path, MINIMAL.replace(*change, 1))
    with pytest.raises((ConfigurationError, DataError), match=message):
        planned(found, tmp_path / "out")


# the machine


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def test_cores_are_shared_by_threads_and_gpus_are_given_one_each(four_cores, monkeypatch):
    monkeypatch.setattr(machines, "gpus", lambda: ())

    def shape(*given):
        found = machines.machine(*given)
        return found.jobs, found.workers

    assert shape(1, {"auto"}) == (4, 1) and shape(2, {"auto"}) == (2, 2) and shape(8, {"auto"}) == (1, 4)
    assert shape(0, {"auto"}) == (1, 4) and shape(1, {"auto"}, 3) == (3, 1)
    monkeypatch.setattr(machines, "gpus", lambda: ("0", "1"))
    assert shape(1, {"auto"}) == (2, 2) and shape(1, {"cpu"}) == (4, 1)
    with pytest.raises(ConfigurationError, match="--jobs"):
        machines.machine(1, {"cpu"}, 0)


def test_gpus_are_found_without_torch(monkeypatch):
    monkeypatch.setattr(machines.importlib.metadata, "version", lambda _: "2.9.0")
    for visible, found in {"": (), "0,1": ("0", "1"), "-1": (), "2,x,3": ("2",), "GPU-a1": ("GPU-a1",)}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machines.gpus() == found
    listed = "GPU 0: H200 (UUID: GPU-aa)\n  MIG 1g Device 0: (UUID: MIG-b1)\n  MIG 1g Device 1: (UUID: MIG-b2)\n"
    assert machines._listed(listed + "GPU 1: H200 (UUID: GPU-cc)\n") == ("MIG-b1", "MIG-b2", "GPU-cc")
    monkeypatch.setattr(machines.importlib.metadata, "version", lambda _: "2.9.0+cpu")
    assert machines.gpus() == ()


# published figures


def test_published_figures_stand_beside_ours(tmp_path):
    rows = 'problem = "tsp_construct"\narm = "{}"\nmean = {}\n'
    text = (
        MINIMAL + "[[published]]\n" + rows.format("esopt", 6.481) + 'best = 6.43\nn = 3\nsize = 50\nsource = "a | b"\n'
    )
    text += "[[published]]\n" + rows.format("esopt", 40.1) + 'split = "test"\nsd = 0.1\nmaximised = true\n'
    text += "[[published]]\n" + rows.format("frozen", 6.5) + "size = 20\n"
    found = recipe(tmp_path, text)
    table = published_table(found, tmp_path)
    assert table.count("not run here") == 3 and "6.481 (best 6.43, n = 3) [1]" in table and "[1] a | b" in table
    values = {"train": {"size": 50, "objective": 6.4}, "test": {"size": 50, "objective": -40.0}}
    runs = [{"problem": "tsp_construct", "arm": "esopt", "state": "finished", "values": values}] * 2
    runs.append({"problem": "tsp_construct", "arm": "esopt", "state": "to go on with", "values": values})
    made = {"settings": found.settings, "problem_settings": {}}
    made["arms"] = {name: {"settings": arm.settings} for name, arm in found.arms.items()}
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": runs, **made}))
    table = published_table(found, tmp_path)
    assert "| 6.4 (n = 2) |" in table and "| 40 (n = 2) |" in table and table.count("not run here") == 1
    assert "other settings" not in table
    made["arms"] = {"frozen": {"settings": {"alpha": 9.0}}}
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": runs, **made}))
    assert "Ours were made with other settings" in published_table(found, tmp_path / "comparison.json")
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        published_table(found, tmp_path)
