"""`ttc-esopt evaluate` as users and scripts call it."""

import json
import sys
from dataclasses import dataclass

import pytest
from benchmark_files import A_N32_K5, BURMA14, GR17, KP_10_269, U120, written
from in_this_process import InThisProcess
from in_this_process import use as use_this_process

from ttc_esopt.cli.main import main
from ttc_esopt.errors import ConfigurationError
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


def test_a_run_folder_knows_its_problem(call, here):
    done = call("run")
    assert done.returncode == 0 and "7.00437" in done.stdout


# Instance files and options, mostly without a sandbox: what is said about the answers is what is tested


def in_this_process(monkeypatch):
    use_this_process(monkeypatch)
    monkeypatch.setattr("ttc_esopt.evaluation.Evaluator", InThisProcess)


@pytest.fixture
def here(monkeypatch):
    in_this_process(monkeypatch)


@pytest.fixture
def files(programs):
    texts = {"gr17.tsp": GR17, "burma14.tsp": BURMA14, "a.vrp": A_N32_K5, "u.txt": U120, "k.txt": KP_10_269}
    for name, text in texts.items():
        written(programs, name, text)
    for problem in ("cvrp_aco", "bpp_aco", "kp_construct"):
        (programs / f"{problem}.py").write_text(load(problem).seeds[0].code)
    return programs


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_instance_files_may_stand_before_or_after_the_programs(call, files, here):
    alone = [rows_of(call("--problem", "tsp_construct", "--instances", name, "--json", "good.py"))[0]["objective"]
             for name in ("gr17.tsp", "burma14.tsp")]  # fmt: skip
    for arguments in (
        ("--instances", "gr17.tsp", "burma14.tsp", "--json", "--", "good.py", "bad.py"),
        ("good.py", "bad.py", "--json", "--instances", "gr17.tsp", "burma14.tsp"),
        ("--json", "--instances", "gr17.tsp", "--instances", "burma14.tsp", "good.py", "bad.py"),
        ("--json", "good.py", "--instances", "burma14.tsp", "bad.py", "gr17.tsp"),
    ):
        good, bad = rows_of(call("--problem", "tsp_construct", *arguments))
        assert (good["program"], bad["program"], bad["valid"]) == ("good.py", "bad.py", False)
        assert (good["split"], good["size"], good["source"], good["instances"]) == ("files", None, "files", 2)
        assert good["objective"] == pytest.approx(sum(alone) / 2) and good["valid_instances"] == 2


def test_the_files_of_a_run_are_its_search_set(call, files, here):
    with (files / "run" / "run.toml").open("a") as file:
        file.write(f'instances = "{files}/gr17.tsp"\nseed = 5\n')
    (row,) = rows_of(call("--json", "run"))
    assert (row["split"], row["instances"], row["seed"]) == ("files", 1, 5)
    (row,) = rows_of(call("--json", "--split", "val", "--size", "20", "run"))
    assert (row["split"], row["instances"]) == ("val", 64)


def test_the_options_of_a_run_are_kept_and_flags_win(call, files, here):
    settings = '[settings]\nproblem = "bpp_aco"\nprotocol = "corrected"\nmode = "aco"\n'
    (files / "run" / "run.toml").write_text(settings)
    (files / "run" / "best.py").write_text((files / "bpp_aco.py").read_text())
    (row,) = rows_of(call("--json", "--instances", "u.txt", "--", "run"))
    assert (row["problem"], row["protocol"], row["mode"]) == ("bpp_aco", "corrected", "aco")
    (row,) = rows_of(call("--json", "--mode", "sample", "--protocol", "published", "--instances", "u.txt", "--", "run"))
    assert (row["protocol"], row["mode"]) == ("published", "sample")


def test_baselines_are_programs_and_classical_methods(call, files, here):
    names = ["baseline large_with_large", "baseline first_fit_decreasing", "baseline best_fit_decreasing"]
    shared = ("--problem", "bpp_aco", "--instances", "u.txt", "--baselines")
    rows = rows_of(call(*shared, "--json"))
    assert [row["program"] for row in rows] == names
    assert all(row["valid"] and 48.5 <= row["objective"] <= 51 and row["instances"] == 2 for row in rows)
    table = call(*shared, "bpp_aco.py").stdout.splitlines()
    assert [line.split("  ")[0] for line in table if line[0] != " "] == ["program", "bpp_aco.py", *names]
    assert sum(line.startswith("  u120_0") for line in table) == 4  # two programs, two instances
    (row,) = rows_of(call("--problem", "kp_construct", "--instances", "k.txt", "--baselines", "--json"))
    assert (row["program"], row["objective"]) == ("baseline best_ratio", -294)


def test_the_corrected_protocol_is_what_routes_cost(call, files, here):
    shared = ("--problem", "cvrp_aco", "--instances", "a.vrp", "--json", "cvrp_aco.py")
    (published,) = rows_of(call(*shared))
    (corrected,) = rows_of(call(*shared, "--protocol", "corrected"))
    assert (published["protocol"], corrected["protocol"]) == ("published", "corrected")
    assert published["objective"] > published["true_objective"] >= 784
    assert corrected["objective"] == corrected["true_objective"] >= 784
    table = call("--problem", "cvrp_aco", "--instances", "a.vrp", "--", "cvrp_aco.py").stdout.splitlines()
    assert "true objective" in table[0] and f"{published['true_objective']:.6g}" in table[1]


def test_a_colony_packs_bins_in_mode_aco(call, files, here):
    (row,) = rows_of(call("--problem", "bpp_aco", "--mode", "aco", "--instances", "u.txt", "--json", "bpp_aco.py"))
    assert row["mode"] == "aco" and row["valid"] and 48.5 <= row["objective"] <= 52


def test_lenient_leaves_out_the_instances_that_fail(call, files, here):
    (files / "picky.py").write_text(NEAREST.replace("    ", "    assert len(distance_matrix) != 14\n    ", 1))
    shared = ("--problem", "tsp_construct", "--instances", "gr17.tsp", "burma14.tsp", "--json", "--", "picky.py")
    (strict,) = rows_of(call(*shared))
    assert (strict["valid"], strict["valid_instances"], strict["failure"]) == (False, 0, "exception")
    (lenient,) = rows_of(call("--lenient", *shared))
    assert (lenient["valid"], lenient["valid_instances"], lenient["instances"]) == (True, 1, 2)
    assert lenient["detail"] == "1 of 2 instances failed and were left out"


@pytest.mark.parametrize(
    ("problem", "two"), [("kp_construct", ("k.txt", "k.txt")), ("tsp_construct", ("gr17.tsp", "burma14.tsp"))]
)
def test_compile_always_compiles_from_the_second_instance_on_and_changes_nothing(
    call, files, monkeypatch, problem, two
):
    (files / "tsp_construct.py").write_text(NEAREST)
    shared = ("--problem", problem, "--instances", *two, "--json", f"{problem}.py")
    (compiled,) = rows_of(call(*shared, "--compile", "always"))
    in_this_process(monkeypatch)
    (plain,) = rows_of(call(*shared, "--compile", "never"))
    assert (plain["path"], plain["compile_seconds"]) == ("python", 0)
    assert compiled["path"] == "compiled" and compiled["compile_seconds"] > 0
    assert compiled["objective"] == plain["objective"]


def test_a_required_sandbox_is_there_or_nothing_runs(call, files, monkeypatch):
    arguments = ("--problem", "tsp_construct", "--sandbox", "required", "--instances", "gr17.tsp", "--", "good.py")
    done = call(*arguments)
    assert done.returncode in (0, 2) and ("good.py" in done.stdout) == (done.returncode == 0)

    def refuses(layers):
        raise ConfigurationError("no isolation here (--sandbox)")

    monkeypatch.setattr("ttc_esopt.evaluation.sandbox.require", refuses)
    done = call(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "ttc-esopt: no isolation here (--sandbox)\n")


def test_a_wrong_folder_of_sets_is_named_as_it_was_given(call, files, here, monkeypatch):
    done = call("--problem", "kp_construct", "--data", "nowhere", "kp_construct.py")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "got nowhere (--data)" in done.stderr
    monkeypatch.setenv("TTC_ESOPT_DATA", "nowhere")
    done = call("--problem", "kp_construct", "kp_construct.py")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "got nowhere (TTC_ESOPT_DATA)" in done.stderr
    (row,) = rows_of(call("--problem", "kp_construct", "--data", ".", "--json", "kp_construct.py"))
    assert (row["source"], row["instances"]) == ("own", 64)


def test_a_set_of_our_own_is_said(call, files, here, monkeypatch):
    monkeypatch.delenv("TTC_ESOPT_DATA", raising=False)
    done = call("--problem", "kp_construct", "kp_construct.py")
    assert done.returncode == 0 and "a set of our own: the published one is not at hand (--data)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--problem", "tsp_construct", "--instances", "missing.tsp", "--", "good.py"], 1, "missing.tsp: expected"),
        (["--problem", "tsp_construct", "--instances", "a.vrp", "--", "good.py"], 1, "a.vrp, line 3: expected TYPE"),
        (["--problem", "tsp_construct", "--instances", "gr17.tsp"], 2, "Expected at least one program"),
        (["--problem", "asp_construct", "--instances", "k.txt", "--", "good.py"], 1, "reads no instance files"),
        (["--problem", "tsp_aco", "--mode", "aco", "good.py"], 2, "has no option mode (--mode)"),
        (["--problem", "tsp_aco", "--protocol", "mine", "good.py"], 2, "Expected one of published, corrected"),
        (["--problem", "tsp_construct", "--compile", "maybe", "good.py"], 2, "got 'maybe' (--compile)"),
        (["--problem", "tsp_construct", "--sandbox", "no", "good.py"], 2, "got 'no' (--sandbox)"),
        (["--problem", "tsp_construct", "--seed", "-1", "good.py"], 2, "(--seed)"),
        (["--problem", "own.py:Own", "good.py"], 2, "own.py (--problem"),
    ],
)  # fmt: skip
def test_wrong_files_and_options_are_one_line(call, files, arguments, code, message):
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
