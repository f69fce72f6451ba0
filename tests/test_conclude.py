"""The end of a run: chosen on val, reported on test, in plain Python, beside classical methods; and alarms."""

import json

import pytest
import stand_in
from benchmark_files import A_N32_K5, GR17, U120, written
from in_this_process import InThisProcess, use

from ttc_esopt.conclude import conclude
from ttc_esopt.instances import problem_of
from ttc_esopt.problems import mean_references
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import run, settings_of
from ttc_esopt.search import State

# Guess a number: the objective is how far off the guess is, on instances that are the numbers themselves.
GUESS = """
import numpy as np
from ttc_esopt.problems import Infeasible, Problem, Seed

class Guess(Problem):
    name = "guess"
    function = "guess"
    task = "Guess."
    template = "def guess(hint):\\n    '''Guess.'''\\n"
    splits = {"train": (5,), "val": (7, 5), "test": (9, 10)}
    counts = {"train": 1, "val": 1, "test": 1}
    numbers = {"train": 3.0, "val": 6.0, "test": 8.0}
    seeds = tuple(Seed(f"Guess {k}.", f"def guess(hint):\\n    return {k}") for k in (2, 4, 7, 9))
    baselines = {"zero": "def guess(hint):\\n    return 0"}

    def instances(self, split, size):
        return [(split, self.numbers[split])]

    def run(self, function, instance):
        return np.array([float(function(0))])

    def score(self, instance, output):
        return abs(output[0] - instance[1])

    def references(self, instance):
        return {"perfect": 0.0}

class Strict(Guess):
    name = "strict"

    def score(self, instance, output):
        if instance[0] == "val":
            raise Infeasible("no")
        return super().score(instance, output)

class Suspicious(Guess):
    name = "suspicious"

    def bounds(self, instance):
        return 1.5, np.inf

class Trainless(Guess):
    name = "trainless"
    splits = {"train": (5,)}
    counts = {"train": 1}
"""


class Noted(InThisProcess):
    """Keeps how evaluators were made."""

    made: list = []

    def __init__(self, problem, **given):
        super().__init__(problem, **given)
        self.made.append((self.split, self.size, given["compile"]))


@pytest.fixture(autouse=True)
def here(monkeypatch):
    use(monkeypatch)
    Noted.made = []
    monkeypatch.setattr("ttc_esopt.instances.Evaluator", Noted)
    monkeypatch.setattr("ttc_esopt.runner.open_engine", lambda folder, model=None: stand_in.StandInEngine())


def finished(folder, budget=4, **given):
    return run(folder, report=False, say=lambda _: None, init="seeds", budget=budget, **given)


def guessing(tmp_path, name, **given):
    own = written(tmp_path, "own.py", GUESS)
    result = finished(tmp_path / "run", problem=f"{own}:{name}", **given)
    return result, json.loads((tmp_path / "run" / "best.json").read_text())


def row(result, name):
    (found,) = [one for one in result.conclusion.rows if one.name == name]
    return found.train, found.val, found.test


def test_the_best_on_val_is_chosen_and_reported_on_test(tmp_path):
    result, best = guessing(tmp_path, "Guess")
    assert [one.name for one in result.conclusion.rows] == ["perfect", "zero", "best seed heuristic", "best found"]
    assert row(result, "zero") == (3, 6, 8) and row(result, "perfect") == (0, 0, 0)
    assert row(result, "best seed heuristic") == (1, 4, 6)  # 2 and 4 are as good on train, the first counts
    assert row(result, "best found") == (4, 1, 1)  # 7: not the best on train
    assert (best["chosen_on"], best["objective"], best["val"], best["test"], best["size"]) == ("val", 4, 1, 1, 5)
    assert best["reference"] == {"perfect": 0, "zero": 3, "best seed heuristic": 1}
    assert [one["name"] for one in best["rows"]] == [one.name for one in result.conclusion.rows]
    assert "return 7" in (tmp_path / "run" / "best.py").read_text()
    assert (result.conclusion.own, result.conclusion.own_is_best) == (0, False)


def test_sizes_are_the_searchs_own_or_the_splits_first_and_everything_is_plain_python(tmp_path):
    guessing(tmp_path, "Guess")
    (search, *end) = Noted.made
    assert search == ("train", 5, "auto")
    assert sorted(end) == [("test", 9, "never"), ("train", 5, "never"), ("val", 5, "never")]


def test_where_nothing_is_valid_on_val_the_best_on_train_is_taken(tmp_path):
    result, best = guessing(tmp_path, "Strict")
    assert row(result, "best found") == (1, None, 6) and best["chosen_on"] == "train"


def test_a_problem_without_val_and_test(tmp_path):
    result, best = guessing(tmp_path, "Trainless")
    assert row(result, "best found") == (1, None, None) and best["chosen_on"] == "train"
    assert row(result, "perfect") == (0, None, None)


def test_an_alarm_is_said_and_kept_and_the_candidate_does_not_count(tmp_path, capsys):
    result, best = guessing(tmp_path, "Suspicious")
    said = capsys.readouterr()
    assert "candidate 0: ALARM: the score 1 of instance 0 is impossible" in said.out + said.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [line["objective"] for line in lines] == [None, None, 4, 6]
    assert all(line["failure"] == "infeasible" and "ALARM" in line["detail"] for line in lines[:2])
    assert (best["objective"], best["val"]) == (6, 3)  # 7 would be impossibly good on val


def test_an_empty_population_leaves_references_alone(tmp_path):
    own = written(tmp_path, "own.py", GUESS)
    folder = RunFolder.create(tmp_path / "run", settings_of({"problem": f"{own}:Guess"}), "test")
    conclusion = conclude(folder, problem_of(folder.settings), State())
    assert [one.name for one in conclusion.rows] == ["perfect", "zero", "best seed heuristic"]
    assert (conclusion.valid_first, conclusion.own, conclusion.own_is_best) == (None, 0, False)
    assert not (tmp_path / "run" / "best.py").exists()


@pytest.mark.parametrize(
    ("problem", "name", "text", "references"),
    [
        ("tsp_aco", "gr17.tsp", GR17, ["nearest_neighbour"]),
        ("cvrp_aco", "a.vrp", A_N32_K5, ["nearest_neighbour"]),
        ("bpp_aco", "u120.txt", U120, ["first_fit_decreasing", "best_fit_decreasing"]),
    ],
)
def test_a_run_on_files_has_no_val_and_test_and_classical_methods_to_compare_with(
    tmp_path, problem, name, text, references
):
    file = written(tmp_path, name, text)
    result = finished(tmp_path / "run", budget=1, problem=problem, instances=str(file), protocol="corrected")
    assert [one.name for one in result.conclusion.rows][: len(references)] == references
    assert all(one.val is None and one.test is None for one in result.conclusion.rows)
    instances = problem_of(RunFolder.open(tmp_path / "run").settings).read(file)
    for reference in references:
        train, _, _ = row(result, reference)
        assert train == mean_references(problem_of(RunFolder.open(tmp_path / "run").settings), instances)[reference]
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["size"] is None and best["chosen_on"] == "train" and best["val"] is best["test"] is None
    assert set(references) <= set(best["reference"]) and best["objective"] == row(result, "best found")[0]
    assert {split for split, _, _ in Noted.made} == {"files"}


def test_what_the_model_writes_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("stand_in.PROGRAM", "```python\ndef guess(hint):\n    return 6 + {a:.3f}\n```")
    own = written(tmp_path, "own.py", GUESS)
    result = run(tmp_path / "run", problem=f"{own}:Guess", budget=20, report=False, say=lambda _: None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    valid = [line for line in lines if line["reply"] is not None and line["objective"] is not None]
    assert 0 < result.conclusion.own == sum(line["copy_of"] is None for line in valid) < 16
    assert result.conclusion.own_is_best and 0 < row(result, "best found")[1] < 0.5
