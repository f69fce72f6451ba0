"""`exec`: the user's own script of another framework, unchanged, with our engine and ES inside."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from ttc_esopt.cli.options import given_settings, with_settings
from ttc_esopt.errors import ConfigurationError

# What the host decides, or what only searches of our own know.
NOT_FOR_HOSTS = (
    "problem", "problem_args", "instances", "data", "protocol", "mode", "scaffold", "budget", "budget_excludes_init",
    "population", "offspring", "init", "init_candidates", "operators", "distinct_parents", "workers", "eval_timeout",
    "directions", "sandbox", "evaluate_on",
)  # fmt: skip

# Only `run` and `solve` measure steps; a settings file that asks for it is refused (`host_options`).
MEASURING = ("diagnostics", "cap_kl", "cap_distance", "on_cap")

# Behind the script these are hardly meant for it.
OURS = ("--dry-run", "--continue", "--directions", "--model", "--out", "--parser", "--python", "--sandbox", "--seeds")

EXEC_HELP = """Run your own EoH (0.1, 0.2), LLM4AD or ReEvo script, unchanged, with a local model, and with ES inside.

The script's population size, operators, generations and output folder hold; its API settings are not used. Calls of m1
and m2 become batches of --directions directions; --directions host keeps the host's own numbers. Without --esopt the
same command is the matched baseline: the same plan, the same model, frozen. Options stand before the script; what
stands behind it is the script's own.

\b
Examples:
  ttc-esopt exec --esopt --model smollm2-135m runEoH.py
  ttc-esopt exec --model smollm2-135m --directions host --parser host runEoH.py
  ttc-esopt exec --esopt --model smollm2-135m --continue results runEoH.py
"""


def _exec(
    script: Path,
    arguments: list[str] | None,
    out: Path | None,
    config: Path | None,
    esopt: bool,
    python: str | None,
    dry_run: bool,
    **values: Any,
) -> None:
    from ttc_esopt.attached.exec import execute
    from ttc_esopt.attached.options import HOST_OPTIONS, host_options

    if not script.is_file():
        raise ConfigurationError(f"No such file: {script} (SCRIPT; options stand before it).")
    if "--esopt" in (arguments or ()):
        raise ConfigurationError("--esopt stands behind the script, where it is the script's own: put it before.")
    behind = [word for word in arguments or () if word.partition("=")[0] in OURS]
    if behind:
        typer.echo(f"note: {' '.join(behind)} stands behind the script and is given to it; ours stand before it")
    chosen = {name: values.pop(name) for name in HOST_OPTIONS}
    timeout = values.pop("batch_timeout")
    given = given_settings(config, esopt, values, typer.echo)
    unused = [name for name in given if name in NOT_FOR_HOSTS and name not in HOST_OPTIONS]
    if unused:
        typer.echo(f"note: the script decides about {', '.join(unused)}; what {config} says of it is not used")
    given, options = host_options(given, **chosen)
    code = execute(
        script, arguments or [], given, options, out=out, python=python or sys.executable, dry_run=dry_run,
        batch_timeout=timeout, command=without_keys("ttc-esopt " + shlex.join(sys.argv[1:])), say=typer.echo,
    )  # fmt: skip
    raise typer.Exit(code)


_SECRET = r"(?:key|token(?!s)|secret|passw|credential|auth(?!or))"  # not --max-tokens


def without_keys(command: str) -> str:
    """A command line as it may be stored: what may be an API key, a token or a password is left out."""
    shown, hide = [], False
    for word in shlex.split(command):
        if hide and not word.startswith("--"):
            word = "..."
        hide = re.fullmatch(rf"(?i)-[\w.-]*{_SECRET}[\w.-]*", word) is not None
        word = re.sub(rf"(?i)({_SECRET}[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\"',}}]+", r"\1...", word)
        word = re.sub(r"\b((?:sk|hf|ghp|gsk|xai)[-_]|AIza)[\w-]{6,}", r"\1...", word)
        shown.append(re.sub(r"(://[^/@\s:]*:)[^/@\s]+@", r"\1...@", word))
    return shlex.join(shown)


def host_flags() -> list[tuple[str, Any, Any]]:
    """Options that every command for hosts has, besides the settings."""
    return [
        ("directions", str | None, typer.Option(None, help="directions per batch, or host: the host's own numbers of "
                                                "candidates [default: 10]", show_default=False)),
        ("parser", str, typer.Option("ours", help="who reads replies: ours, or host (as the host does, re-asks "
                                     "included)")),
        ("sandbox", str, typer.Option("auto", help="auto (what machine and problem bear), required, or off (as the "
                                      "host: your problem may start processes and write files)")),
        ("seeds", list[Path] | None, typer.Option(None, metavar="FILE.py", help="a heuristic that joins the initial "
                                                  "population; may be given several times", show_default=False)),
        ("trust_objectives", bool, typer.Option(False, "--trust-objectives", help="do not evaluate a continued "
                                                "population again (problems that draw random numbers)")),
        ("continue_from", Path | None, typer.Option(None, "--continue", help="results folder to go on from: its last "
                                                    "population, and our weights if there are any")),
    ]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    fixed = [
        ("script", Path, typer.Argument(..., metavar="SCRIPT.py", help="your script")),
        ("arguments", list[str] | None, typer.Argument(None, metavar="[ARGS]", help="its own arguments")),
        ("out", Path | None, typer.Option(None, help="folder for our files [default: ttc_esopt in the host's results "
                                          "folder]", show_default=False)),
        ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win)")),
        ("esopt", bool, typer.Option(False, "--esopt", help="the method itself: --arm esopt")),
        ("python", str | None, typer.Option(None, help="interpreter of the script [default: ours]",
                                            show_default=False)),
        ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
        ("batch_timeout", float, typer.Option(0.0, help="seconds after which a batch that a host fills one by one is "
                                              "closed without the missing scores (0: never)")),
        *host_flags(),
    ]  # fmt: skip
    app.command("exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(
        with_settings(_exec, EXEC_HELP, fixed, without=(*NOT_FOR_HOSTS, *MEASURING))
    )
