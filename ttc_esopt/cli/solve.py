"""`ttc-esopt solve`: one instance file in, one solution out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ttc_esopt.cli.options import given_settings, with_settings
from ttc_esopt.cli.run import show

HELP = """Search a heuristic for one instance, and solve the instance with it.

FILE is a TSPLIB .tsp, a CVRPLIB .vrp, a bin-packing file (BPPLIB, Falkenauer) or a knapsack file. The problem that fits
is chosen (--problem overrides). The solution is checked against the file, saved in its community's format, and compared
with the best-known value, a bound, and a strong solver where its package is installed (pip install
'ttc-esopt[solvers]'). A search that was stopped goes on when the command is given again.

Examples:

  ttc-esopt solve berlin52.tsp --model smollm2-135m --esopt --budget 120

  ttc-esopt solve A-n32-k5.vrp --model smollm2-135m --esopt --budget 120 --best-known 784 --out a32

  ttc-esopt solve binpack1.txt --index 3 --budget 60
"""

_OPTIONS = [
    ("file", Path, typer.Argument(..., metavar="FILE", help="the instance file")),
    ("out", Path | None, typer.Option(None, help="folder for the results [default: FILE's stem, the index, -solve]")),
    ("index", int | None, typer.Option(None, help="which instance, from 1, of a file that holds several")),
    ("best_known", float | None, typer.Option(None, help="best-known value [default: what the file says]")),
    (
        "strong_seconds", float,
        typer.Option(10.0, help="seconds for a strong solver (pyvrp, ortools) to compare with; 0: none"),
    ),
    ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win)")),
    ("esopt", bool, typer.Option(False, "--esopt", help="the method itself: --arm esopt")),
    ("report", bool, typer.Option(True, help="write report.html at the end")),
    ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
]  # fmt: skip


def _solve(
    file: Path, out: Path | None, index: int | None, best_known: float | None, strong_seconds: float,
    config: Path | None, esopt: bool, report: bool, dry_run: bool, **flags: Any,
) -> None:  # fmt: skip
    given = given_settings(config, esopt, flags, typer.echo)
    from ttc_esopt.evaluation import say_when_compiling

    say_when_compiling(typer.echo)
    from ttc_esopt.runner import announcement
    from ttc_esopt.solve import folder_for, planned, solve

    if dry_run:
        name, settings = planned(file, index, **given)
        typer.echo(f"instance {name}")
        for line in announcement(settings, out or folder_for(file, index)):
            typer.echo(line)
        typer.echo("nothing was run (--dry-run)")
        return
    solved = solve(
        file, out=out, index=index, best_known=best_known, strong_seconds=strong_seconds, report=report,
        say=typer.echo, **given,
    )  # fmt: skip
    show(solved.run)
    typer.echo("")
    for line in _lines(solved.file):
        typer.echo(line)
    typer.echo(f"{solved.what} {solved.value} (checked against {file})")
    for gap in solved.gaps:
        percent = "" if gap.percent is None else f"  {gap.percent:+.2f} % from it"
        typer.echo(f"{gap.name}: {gap.value:.10g}{percent}")
    for note in solved.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"solution: {solved.file}")


def _lines(file: Path) -> list[str]:
    """A solution file for the eye: what it says, a tour on one line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if "TOUR_SECTION" not in lines:
        return lines
    return [" ".join(lines[lines.index("TOUR_SECTION") + 1 : lines.index("-1")])]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    without = ("instances", "protocol", "data", "problem_args")
    app.command("solve")(with_settings(_solve, HELP, _OPTIONS, without, {"problem": "what the file needs"}))
