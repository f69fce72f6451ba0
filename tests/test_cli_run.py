"""`run`, `resume`, `replay`, `export` as a user types them: wrong input is one helpful line and exit 2."""

import subprocess
import sys

import pytest
from in_this_process import typed as ttc


def one_line(done):
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def test_dry_run_says_what_would_be_spent_and_writes_nothing(tmp_path):
    done = ttc("run", "--esopt", "--budget", 120, "--out", tmp_path / "demo", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "candidates: 120" in done.stdout and "batches: 8" in done.stdout and "tokens" in done.stdout
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--problem", "tsp_constuct"), "tsp_construct"),
        (("--problem", "nosuch"), "nosuch"),
        (("--alpha", "-1"), "Expected alpha >= 0, got -1.0 (--alpha)"),
        (("--esopt", "--arm", "frozen"), "--esopt means --arm esopt"),
        (("--model", "smollm3-135m"), "smollm2-135m"),
        (("--config", "missing.toml"), "missing.toml"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(tmp_path, arguments, message):
    done = ttc("run", *arguments, "--out", tmp_path / "x", cwd=tmp_path)
    assert done.returncode == 2
    assert message in one_line(done)
    assert not (tmp_path / "x").exists()


def test_a_typo_in_a_toml_key_is_one_line_and_exit_2(tmp_path):
    (tmp_path / "c.toml").write_text("budgt = 10\n")
    done = ttc("run", "--config", tmp_path / "c.toml", "--out", tmp_path / "x")
    assert done.returncode == 2 and "budgt; did you mean budget?" in one_line(done)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "run.toml").write_text("")
    done = ttc("run", "--out", tmp_path)
    assert done.returncode == 2 and "already holds a run" in one_line(done)


@pytest.mark.parametrize("command", ["resume", "replay"])
def test_a_folder_without_a_run_is_one_line_and_exit_2(tmp_path, command):
    done = ttc(command, tmp_path)
    assert done.returncode == 2 and "holds no run" in one_line(done)


def test_the_command_is_a_process_with_an_exit_status(tmp_path):
    command = [sys.executable, "-m", "ttc_esopt.cli.main"]
    done = subprocess.run([*command, "resume", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "holds no run" in one_line(done)
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("ttc-esopt ")


def test_every_command_has_help():
    top = ttc("--help").stdout
    for command in ("run", "resume", "replay", "export", "evaluate", "parse", "models", "doctor"):
        assert command in top
        assert ttc(command, "--help").returncode == 0


def test_commands_for_other_frameworks_offer_no_measurements_of_steps():
    for command, offered in (("run", True), ("serve", False), ("exec", False)):
        help = ttc(command, "--help").stdout
        assert all((flag in help) == offered for flag in ("--diagnostics", "--cap-kl", "--cap-distance", "--on-cap"))


def test_light_commands_do_not_load_torch():
    code = "import sys, ttc_esopt.cli.main, ttc_esopt.evaluation.zygote; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
