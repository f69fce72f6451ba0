"""`ttc-esopt solve` as a user types it: what is printed, exit codes, and one line where something is wrong."""

import json
import sys
from dataclasses import dataclass

import pytest
import stand_in
from benchmark_files import A_N32_K5, BURMA14, GR17, KP_10_269, U120, written
from in_this_process import use

from ttc_esopt.cli.main import main

FEW = ("--budget", "2", "--init", "seeds", "--no-report")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self):
        return self.stdout.splitlines()


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls the command as the entry point does, in an empty folder, with an engine that has no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ttc_esopt.runner.open_engine", lambda folder, model=None: stand_in.StandInEngine())

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", "solve", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Done(end.value.code or 0, out, err)

    return run


def test_a_tour_is_printed_checked_and_compared(tmp_path, call):
    written(tmp_path, "gr17.tsp", GR17)
    done = call("gr17.tsp", *FEW, "--best-known", 2000, "--strong-seconds", 0)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "gr17-solve" / "solution.json").read_text())
    assert f"length {facts['length']} (checked against gr17.tsp)" in done.lines
    assert f"best known: 2000  {(facts['length'] - 2000) / 20:+.2f} % from it" in done.lines
    assert any(line.startswith("Held-Karp 1-tree bound: ") for line in done.lines)
    assert done.lines[-1] == "solution: gr17-solve/gr17.tour"
    (tour,) = [line for line in done.lines if line.replace(" ", "").isdigit() and len(line.split()) == 17]
    assert sorted(map(int, tour.split())) == list(range(1, 18))
    assert tour.split() == (tmp_path / "gr17-solve" / "gr17.tour").read_text().split("TOUR_SECTION")[1].split()[:17]
    assert any("nearest neighbour" in line and line.count("–") == 2 for line in done.lines)  # no val, no test


def test_an_item_choice_and_missing_packages(tmp_path, call, monkeypatch):
    use(monkeypatch)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    written(tmp_path, "k.txt", KP_10_269)
    done = call("k.txt", *FEW, "--out", "mine", "--budget", 1)
    assert done.returncode == 0, done.stderr
    assert "note: no strong solver: OR-Tools is not installed (pip install ortools)." in done.lines
    assert "note: no best-known value in the file (--best-known)" in done.lines
    assert any(line.startswith("Items: ") for line in done.lines) and done.lines[-1] == "solution: mine/k.sol"


@pytest.mark.parametrize(
    ("arguments", "name", "setting"),
    [
        (("gr17.tsp",), "gr17", "tsp_aco"),
        (("gr17.tsp", "--problem", "tsp_construct"), "gr17", "tsp_construct"),
        (("a.vrp",), "A-n32-k5", "cvrp_aco"),
        (("u.txt", "--index", 2), "u120_01", "bpp_aco"),
        (("k.txt",), "k", "kp_construct"),
    ],
)
def test_dry_run_says_what_would_be_spent_and_writes_nothing(tmp_path, call, arguments, name, setting):
    for file, text in (("gr17.tsp", GR17), ("a.vrp", A_N32_K5), ("u.txt", U120), ("k.txt", KP_10_269)):
        written(tmp_path, file, text)
    before = sorted(tmp_path.rglob("*"))
    done = call(*arguments, "--esopt", "--budget", 120, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"instance {name}" in done.lines and any(line.startswith(f"{setting}, scaffold") for line in done.lines)
    assert any(line.startswith("candidates: 120") for line in done.lines) and "nothing was run" in done.lines[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_dry_run_names_the_folder(tmp_path, call):
    written(tmp_path, "u.txt", U120)
    assert "results go to u-2-solve" in call("u.txt", "--index", 2, "--dry-run").lines
    assert "results go to x" in call("u.txt", "--index", 2, "--dry-run", "--out", "x").lines


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing.tsp",), 1, "missing.tsp: expected a text file, got nothing there"),
        ((".",), 1, "expected a text file, got a folder"),
        (("broken.tsp",), 1, "broken.tsp, line "),
        (("u.txt",), 2, "holds 2 instances: choose one (--index 1 to 2)"),
        (("u.txt", "--index", 3), 2, "Expected an index from 1 to 2, got 3 (--index)"),
        (("gr17.tsp", "--problem", "bpp_aco"), 2, "Expected a problem that fits gr17.tsp: tsp_aco or tsp_construct"),
        (("gr17.tsp", "--problem", "own.py:Own"), 2, "own.py (--problem FILE.py:CLASS)"),
        (("gr17.tsp", "--best-known", "nan"), 2, "(--best-known)"),
        (("gr17.tsp", "--strong-seconds", "-1"), 2, "(--strong-seconds)"),
        (("gr17.tsp", "--out", "."), 2, "Expected a folder of its own"),
        (("gr17.tsp", "--out", "u.txt"), 2, "is a file"),
        (("gr17.tsp", "--esopt", "--arm", "frozen"), 2, "--esopt means --arm esopt"),
        (("gr17.tsp", "--budget", 0), 2, "Expected budget >= 1, got 0 (--budget)"),
        (("gr17.tsp", "--out", "other"), 2, "other holds another run: choose another folder (--out)"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, call, arguments, code, message):
    written(tmp_path, "gr17.tsp", GR17)
    written(tmp_path, "u.txt", U120)
    written(tmp_path, "broken.tsp", BURMA14.replace("20.09 ", "north "))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.toml").write_text(
        '[settings]\nproblem = "tsp_aco"\ninstances = "/x/y.tsp"\n[model]\nfingerprint = "00"\n'
    )
    done = call(*arguments)
    assert done.returncode == code and done.stderr.startswith("ttc-esopt: "), done.stderr
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "gr17-solve").exists()


def test_what_a_file_of_settings_says_about_instances_does_not_count(tmp_path, call):
    written(tmp_path, "gr17.tsp", GR17)
    (tmp_path / "c.toml").write_text('budget = 77\nprotocol = "published"\ninstances = "nowhere"\n')
    done = call("gr17.tsp", "--config", "c.toml", "--dry-run")
    assert done.returncode == 0 and any(line.startswith("candidates: 77") for line in done.lines)


def test_help_has_examples(call):
    done = call("--help")
    assert done.returncode == 0 and "ttc-esopt solve berlin52.tsp --model smollm2-135m" in done.stdout
    assert "--best-known" in done.stdout and "--instances" not in done.stdout and "--protocol" not in done.stdout
