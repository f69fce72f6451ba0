"""`ttc-esopt evaluate` as users and scripts call it."""

import json
import sys
from dataclasses import dataclass

import pytest

from ttc_esopt.cli.main import main
from ttc_esopt.problems import load

NEAREST = load("tsp_construct").baselines["nearest_neighbour"]
KEYS = ["program", "problem", "split", "size", "seed", "valid", "objective", "seconds", "failure", "detail"]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(programs, monkeypatch, capsys):
    """Calls the command as the entry point does, with the programs' folder as the current one."""
    monkeypatch.chdir(programs)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", "evaluate", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Done(end.value.code or 0, out, err)

    return run


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "good.py").write_text(NEAREST)
    (tmp_path / "bad.py").write_text("def select_next_node(*a): return 0")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.py").write_text(NEAREST)
    (tmp_path / "run" / "run.toml").write_text('[settings]\nproblem = "tsp_construct"\n')
    return tmp_path


def test_json_is_one_object_per_program_with_the_promised_keys_in_order(call):
    done = call("--problem", "tsp_construct", "--json", "good.py", "bad.py", "run")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(row)[: len(KEYS)] for row in rows] == [KEYS] * 3
    assert all(row["true_objective"] == row["objective"] and row["path"] == "python" for row in rows)
    assert [row["valid_instances"] for row in rows] == [64, 0, 64]
    assert [row["program"] for row in rows] == ["good.py", "bad.py", "run/best.py"]
    assert rows[0]["objective"] == rows[2]["objective"] == pytest.approx(7.0043697989867315, rel=1e-12)
    assert (rows[0]["split"], rows[0]["size"], rows[0]["seed"]) == ("train", 50, 0)
    assert (rows[1]["valid"], rows[1]["objective"], rows[1]["failure"]) == (False, None, "infeasible")


def test_a_table_is_aligned_and_says_why_a_program_is_invalid(call):
    done = call("--problem", "tsp_construct", "--split", "val", "--size", "20", "good.py", "bad.py")
    assert done.returncode == 0, done.stderr
    head, good, bad = done.stdout.splitlines()
    assert head.split() == ["program", "objective", "seconds", "failure"]
    assert "infeasible: choice 1 is node 0" in bad
    assert good.index(" ", 8) and head.index("seconds") + len("seconds") == len(good)
    assert "2 programs on 64 instances of size 20 (tsp_construct, val)" in done.stderr


def test_a_run_folder_knows_its_problem(call):
    done = call("run")
    assert done.returncode == 0 and "7.00437" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "tsp_construct", "missing.py"], "No such file: missing.py"),
        (["--problem", "tsp_construct", "."], "No best.py in ."),
        (["--problem", "tsp_constructt", "good.py"], "Did you mean tsp_construct?"),
        (["--problem", "tsp_construct", "--split", "valid", "good.py"], "train, val, test"),
        (["--problem", "tsp_construct", "--split", "test", "--size", "7", "good.py"], "20, 50, 100, 200"),
        (["--problem", "tsp_construct", "--timeout", "-1", "good.py"], "(--timeout)"),
        (["--problem", "tsp_construct", "--workers", "0", "good.py"], "(--workers)"),
        (["good.py"], "Expected --problem NAME; there are: tsp_construct, kp_construct"),
    ],
)
def test_bad_usage_is_one_line_and_exit_status_2(call, arguments, message):
    done = call(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_help_has_examples(call):
    done = call("--help")
    assert done.returncode == 0 and "ttc-esopt evaluate --problem tsp_construct mine.py" in done.stdout
