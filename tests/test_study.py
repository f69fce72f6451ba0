"""A study: what is started, skipped, resumed and refused; how it stops; what it says at the end."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ttc_esopt.cli.main import main
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.study import compared, jobs, read_recipe, run_study
from ttc_esopt.study.comparing import as_document, closing_lines, closing_rows, left_out

STAND_IN = (sys.executable, str(Path(__file__).with_name("study_run.py")))
RECIPE = """
seeds = [1, 2]
problems = ["tsp_construct"]
[settings]
model = "model"
budget = 60
max_tokens = 16
[arms.frozen]
[arms.esopt]
arm = "esopt"
"""
BEST = '[arms.best]\nscaffold = "sample"\nbudget = 500\nequal_tokens_to = "esopt"\n'


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Run a recipe with the stand-in: (result, lines), from the folder of the recipe."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "_program", lambda: STAND_IN)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def call(text=RECIPE, runs=None, **more):
        monkeypatch.setenv("STUDY_RUNS", json.dumps(runs or {}))
        Path("grid.toml").write_text(text)
        lines = []
        say = more.pop("say", lines.append)
        return run_study(read_recipe("grid.toml"), report=False, say=say, **more), lines

    return call


def started(lines):
    return [
        line.split(" (")[0].removeprefix("started tsp_construct ") for line in lines if line.startswith("started tsp")
    ]


def test_every_cell_is_run_and_compared_and_the_same_call_finds_nothing_to_do(study):
    result, lines = study()
    assert result.ok and result.path == Path("runs/grid/comparison.json")
    assert result.go_on == "ttc-esopt study grid.toml --no-report"
    assert sorted(started(lines)) == ["esopt seed 1", "esopt seed 2", "frozen seed 1", "frozen seed 2"]
    assert lines[0] == "study grid: 1 problem, 2 arms, 2 seeds: 4 runs"
    assert "candidates: 240 in all; at most 3,584 tokens" in lines[1]
    assert any(line.startswith("[4/4] tsp_construct ") and "best 6." in line and "on test" in line for line in lines)
    (one,) = result.comparisons
    (setting,) = one.comparison.settings
    assert (one.arm, one.against, setting.candidate.values) == ("esopt", "frozen", [6.41, 6.42])
    assert setting.verdict == "too few runs"
    folder = Path("runs/grid")
    assert (folder / "study.toml").read_bytes() == Path("grid.toml").read_bytes()
    before = result.path.read_bytes()
    assert "/tmp" not in before.decode() and str(Path.cwd()) not in before.decode()
    again, lines = study()
    assert (
        again.ok and started(lines) == [] and "4 finished, 0 to start" in lines and result.path.read_bytes() == before
    )


def test_runs_are_started_as_somebody_could_by_hand(study, monkeypatch):
    study(jobs=1)
    log = Path("runs/grid/logs/tsp_construct-esopt-2.log").read_text()
    assert "run esopt-2 threads 1 gpu None" in log
    cell = Path("runs/grid/cells/tsp_construct-esopt-2.toml").read_text()
    assert 'model = "model"' in cell and "seed = 2" in cell and "threads = 1" in cell and "workers" not in cell
    run = Path("runs/grid/tsp_construct/esopt/seed-2/run.toml").read_text()
    assert f"workers = {len(os.sched_getaffinity(0))}" in run


def test_with_gpus_each_run_sees_one(study, monkeypatch):
    monkeypatch.setattr("ttc_esopt.study.machine.gpus", lambda: ("4", "7"))
    _, lines = study()
    assert any("2 GPUs" in line and "2 runs at once, one GPU each" in line for line in lines)
    logs = [path.read_text() for path in Path("runs/grid/logs").iterdir()]
    assert sorted({log.split("gpu ")[1].split()[0] for log in logs}) == ["4", "7"]


def test_a_run_that_fails_does_not_stop_the_others_and_is_resumed_or_started_next_time(study):
    result, lines = study(runs={"esopt-1": "fail", "frozen-2": "killed"})
    assert not result.ok and len(result.failures) == 2
    assert "esopt seed 1 failed: last line: ttc-esopt: the disk is full (runs/grid/logs/" in result.failures[0]
    assert "frozen seed 2 failed: ended by SIGKILL; last line: pid" in result.failures[1]
    assert "1 of 4 runs have not begun" in result.comparisons[0].trouble
    assert "not compared" in closing_rows(result.comparisons)[1]
    result, lines = study()
    assert result.ok and started(lines) == ["esopt seed 1", "frozen seed 2, 2 candidates are there"]
    assert "resume frozen-2" in Path("runs/grid/logs/tsp_construct-frozen-2.log").read_text()


def test_a_run_without_a_valid_candidate_stays_a_failure_unless_the_recipe_says_otherwise(study):
    for _ in range(2):
        result, lines = study(runs={"esopt-2": "invalid"})
        assert result.failures[0].startswith(
            "tsp_construct esopt seed 2 failed: last line: ttc-esopt: No candidate was"
        )
    assert started(lines) == [] and "--ignore failed" in result.comparisons[0].trouble
    result, _ = study('ignore = ["failed"]\n' + RECIPE)
    assert result.ok and result.comparisons[0].comparison.settings[0].candidate.values == [6.41]


def test_a_recipe_may_grow_but_runs_that_exist_keep_their_settings(study):
    study(RECIPE.replace("[1, 2]", "[1]"))
    result, lines = study(RECIPE + '[arms.noise]\narm = "noise"\nagainst = "esopt"\n', jobs=1)
    assert sorted(started(lines)) == ["esopt seed 2", "frozen seed 2", "noise seed 1", "noise seed 2"]
    assert [(one.arm, one.against) for one in result.comparisons] == [("esopt", "frozen"), ("noise", "esopt")]
    assert b"noise" in Path("runs/grid/study.toml").read_bytes()
    result, lines = study(RECIPE.replace('"tsp_construct"', '"tsp_construct", "kp_construct"'))
    (one,) = result.comparisons
    assert len([line for line in lines if line.startswith("started kp_construct")]) == 4 and started(lines) == []
    assert [setting.key.problem for setting in one.comparison.settings] == ["kp_construct", "tsp_construct"]
    assert not any("same candidates" in line for line in closing_lines(result.comparisons))
    with pytest.raises(ConfigurationError, match="seed-1 was made with alpha 0.0005, grid.toml now says 0.1"):
        study(RECIPE.replace('arm = "esopt"', 'arm = "esopt"\nalpha = 0.1'))
    study('name = "grid"' + RECIPE)
    Path("grid2.toml").write_text(RECIPE)
    with pytest.raises(ConfigurationError, match="holds the study grid, the recipe is grid2"):
        run_study(read_recipe("grid2.toml"), "runs/grid", say=print)
    with pytest.raises(ConfigurationError, match="is the folder of a run"):
        run_study(read_recipe("grid2.toml"), "runs/grid/tsp_construct/esopt/seed-1", say=print)


def test_equal_tokens_wait_for_the_run_that_they_equal(study):
    result, lines = study(RECIPE + BEST)
    assert result.ok
    for seed in (1, 2):
        order = [i for i, line in enumerate(lines) if f"esopt seed {seed}: " in line or f"best seed {seed} (" in line]
        assert len(order) == 2 and f"started tsp_construct best seed {seed}" in lines[order[1]]
        cell = Path(f"runs/grid/cells/tsp_construct-best-{seed}.toml").read_text()
        assert f"max_tokens_total = {60 * (45 + seed)}" in cell
    best = result.comparisons[1]
    assert (best.arm, best.against, best.trouble) == ("best", "esopt", None)
    assert best.comparison.budget_in == "tokens" and best.comparison.ignored == ["budget", "method"]
    assert best.comparison.settings[0].candidate.values == [6.46, 6.47]
    again, lines = study(RECIPE + BEST)  # a run that ended at its limit is not gone on with
    assert again.ok and started(lines) == []


def test_what_waits_for_a_run_that_failed_is_not_started(study):
    result, _ = study(RECIPE + BEST, runs={"esopt-1": "fail"})
    assert len(result.failures) == 2
    assert "best seed 1 failed: not started: it needs the tokens of tsp_construct esopt seed 1" in result.failures[1]
    result, lines = study(RECIPE + BEST)
    assert result.ok and started(lines) == ["esopt seed 1", "best seed 1"]


def test_holm_is_over_all_settings_of_all_comparisons(study):
    text = RECIPE.replace("[1, 2]", "[1, 2, 3, 4, 5, 6]")
    result, _ = study(text + BEST + 'against = ["esopt", "frozen"]\nignore = ["method", "budget"]\n')
    assert [one.trouble for one in result.comparisons] == [None] * 3
    settings = [one for each in result.comparisons for one in each.comparison.settings]
    assert len(settings) == 3 and {one.p_holm for one in settings} == {3 * 2 / 2**6}
    found = json.loads(result.path.read_text())
    assert found["family"]["size"] == 3 and {one["comparison"]["family"]["size"] for one in found["comparisons"]} == {3}
    assert "Holm's correction over 3 settings" in found["notes"][0]
    said = closing_lines(result.comparisons)
    assert sum("Holm's correction over" in line for line in said) == 1 and "the 3 rows of the study" in said[0]


def test_equal_tokens_are_between_arms_that_are_linked_and_no_others(study):
    text = RECIPE.replace("[1, 2]", "[1, 2, 3, 4, 5, 6]").replace("[arms.frozen]", "[arms.frozen]\nbudget = 30")
    result, _ = study(text.replace('arm = "esopt"', 'arm = "esopt"\nagainst = []') + BEST + 'against = ["frozen"]\n')
    assert [one.comparison for one in result.comparisons] == [None]
    assert "--ignore" in result.comparisons[0].trouble


def test_runs_that_a_recipe_no_longer_names_are_told(study):
    study()
    result, _ = study(RECIPE.replace("[1, 2]", "[1, 3]"))
    said = closing_lines(result.comparisons, left_out(read_recipe("grid.toml"), result.out))
    assert any("2 runs in this folder are not in the recipe" in line for line in said)
    notes = json.loads(result.path.read_text())["notes"]
    assert any("tsp_construct/esopt/seed-2, tsp_construct/frozen/seed-2" in note for note in notes)


def test_another_recipe_without_a_name_does_not_take_the_folder(study):
    study(out="there")
    Path("other.toml").write_text(RECIPE)
    with pytest.raises(ConfigurationError, match="holds the study grid, the recipe is other"):
        run_study(read_recipe("other.toml"), "there", say=print)


def test_values_that_are_no_numbers_do_not_end_the_study(study):
    study()
    file = Path("runs/grid/tsp_construct/esopt/seed-1/best.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"val": float("nan"), "own_sets": [float("inf")]}))
    result, _ = study()
    assert "NaN" not in result.path.read_text()


def test_two_seeds_claim_nothing_and_it_says_so(study):
    result, _ = study()
    said = closing_lines(result.comparisons)
    assert "note: nothing can be claimed from this study: 2 runs a side at most, 5 are the least" in said


def test_values_of_every_set_are_kept(study):
    result, _ = study()
    run = as_document(read_recipe("grid.toml"), result.out, result.comparisons)["runs"][1]
    assert run["folder"] == "tsp_construct/esopt/seed-1" and run["state"] == "finished" and run["steps"] == 0
    assert run["values"]["train"] == {"size": 50, "objective": 6.41} and run["values"]["test"]["objective"] == 6.41
    assert compared(read_recipe("grid.toml"), result.out) == result.comparisons


# stopping


def test_an_interrupted_study_lets_runs_finish_their_batch_and_says_how_to_go_on(study):
    lines = []

    def say(text):
        lines.append(text)
        if text.startswith("started"):
            wait_for(lambda: list(Path("runs/grid").glob("*/*/*/samples.jsonl")))
            os.kill(os.getpid(), signal.SIGINT)

    result, _ = study(runs={"frozen-1": "slow"}, jobs=1, say=say)
    assert result.interrupted and not result.ok and result.path is None and result.comparisons == []
    assert result.go_on == "ttc-esopt study grid.toml --jobs 1 --no-report" and len(result.unfinished) == 4
    assert len(started(lines)) == 1 and lines[-1].startswith("stopped tsp_construct frozen seed 1 at 2 candidates")
    result, lines = study()
    assert result.ok and "1 to go on with, 3 to start" in lines


def test_a_torn_line_is_gone_on_with(study):
    result, _ = study(runs={"frozen-1": "torn"}, jobs=1, say=Interrupt(2))
    assert result.interrupted
    result, lines = study()
    assert result.ok and "frozen seed 1, 2 candidates are there" in started(lines)


class Interrupt:
    """Interrupts the study `times` times once the first run works."""

    def __init__(self, times):
        self.left = times

    def __call__(self, text):
        if text.startswith("started"):
            wait_for(lambda: list(Path("runs/grid").glob("*/*/*/samples.jsonl")))
            time.sleep(0.1)
        if text.startswith(("started", "interrupted")) and self.left:
            self.left -= 1
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_study_is_kept_out(study):
    def say(text):
        if text.startswith("started"):
            with pytest.raises(DataError, match="Another study is at work in runs/grid"):
                run_study(read_recipe("grid.toml"), say=print)
            seen.append(text)

    seen = []
    assert study(say=say)[0].ok and len(seen) == 4


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


# the command


@pytest.fixture
def ttc(study, monkeypatch, capsys):
    def call(*words, runs=None):
        monkeypatch.setenv("STUDY_RUNS", json.dumps(runs or {}))
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", "study", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    Path("grid.toml").write_text(RECIPE)
    return call


def test_the_command_ends_with_the_file_that_holds_the_result(ttc):
    code, out, err = ttc("grid.toml", "--no-report", "--out", "here")
    assert code == 0, err
    assert out.splitlines()[-1] == "comparison: here/comparison.json"
    row = next(line for line in out.splitlines() if line.startswith("tsp_construct test 50"))
    assert row.split()[3:7] == ["esopt", "frozen", "6.415", "6.515"] and row.endswith("too few runs")
    assert "nothing can be claimed from this study" in out
    code, out, err = ttc("grid.toml", "--no-report", "--out", "other", runs={"esopt-1": "fail"})
    assert code == 1 and out.splitlines()[-1] == "comparison: other/comparison.json"
    assert "go on with: ttc-esopt study grid.toml --out other" in out and "the disk is full" in out


def test_a_dry_run_prints_the_grid_and_writes_nothing(ttc):
    code, out, err = ttc("grid.toml", "--dry-run", "--jobs", 3)
    assert code == 0 and out.splitlines()[-1] == "nothing was run (--dry-run)", err
    assert "3 runs at once, 1 thread each" in out and "esopt   frozen   1 2    60" in out
    assert not Path("runs").exists()


def test_wrong_usage_is_one_line_and_exit_2(ttc):
    Path("bad.toml").write_text(RECIPE.replace("budget = 60", "budget = 0"))
    for words, message in [
        (("bad.toml",), "bad.toml, tsp_construct frozen seed 1: Expected budget >= 1, got 0"),
        (("no.toml",), "Cannot read the recipe no.toml"),
        (("grid.toml", "--jobs", 0), "Expected at least one job, got 0 (--jobs)"),
        (("grid.toml", "--out", "."), "got the current one (--out)"),
        (("grid.toml", "--out", "grid.toml"), "grid.toml is a file"),
    ]:
        code, _, err = ttc(*words)
        assert code == 2 and message in err and len(err.strip().splitlines()) == 1, err
    assert not Path("runs").exists()


def test_the_table_of_published_figures_is_printed(ttc):
    figures = '[[published]]\nproblem = "tsp_construct"\narm = "esopt"\nmean = 6.48\nsize = 50\n'
    Path("grid.toml").write_text(RECIPE + figures)
    assert "not run here" in ttc("grid.toml", "--table")[1]
    assert ttc("grid.toml", "--no-report")[0] == 0
    code, out, _ = ttc("grid.toml", "--table")
    assert code == 0 and "| tsp_construct | train | 50 | esopt | 6.48 (n unknown) | 6.415 (n = 2) |" in out
