"""`probe`: which sigma is safe, and whether rewards show a signal, before a budget is spent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from ttc_esopt.cli.options import given_settings, with_settings
from ttc_esopt.probe import MAX_KL, NOT_HERE, SNR

HELP = """Measure, before a budget is spent, which sigma is safe for a model and a problem and whether ES has a signal.

At a ladder of sigmas several directions write several replies each on one prompt. Printed are the valid share, the
distance to the unperturbed model (KL), and how much rewards differ between directions against what chance makes of
them; then the cheapest settings whose step reaches a signal-to-noise, or that there is no signal. It suggests, and
changes no run. The same command again goes on with a probe that was stopped. See docs/probe.md.

Examples:

  ttc-esopt probe --problem tsp_construct --model smollm2-135m --out probe

  ttc-esopt probe --model smollm2-135m --sigmas 3e-3,6e-3 --directions 20 --replies 5 --snr 2 --out probe --dry-run
"""

_OPTIONS = [
    ("out", Path, typer.Option(..., help="folder for the results (new, or of the same probe)")),
    (
        "sigmas", str | None,
        typer.Option(None, help="sigmas with commas; 0 is always added [default: 1/4, 1/2, 1, 2, 4 times the model's]"),
    ),
    ("directions", int, typer.Option(10, help="directions at each sigma")),
    ("replies", int, typer.Option(10, help="replies of each direction")),
    (
        "operator", str | None,
        typer.Option(None, help="whose prompt [default: m1 with the best seed heuristic; i1 where there is none]"),
    ),
    ("snr", float, typer.Option(SNR, help="signal-to-noise that a step shall have")),
    ("max_kl", float, typer.Option(MAX_KL, help="KL to the unperturbed model that is safe, nats per token")),
    ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win); a run.toml will do")),
    ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
    ("as_json", bool, typer.Option(False, "--json", help="print probe.json on standard output, all else on error")),
]  # fmt: skip


def _probe(
    out: Path, sigmas: str | None, directions: int, replies: int, operator: str | None, snr: float, max_kl: float,
    config: Path | None, dry_run: bool, as_json: bool, **flags: Any,
) -> None:  # fmt: skip
    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    given = given_settings(config, False, flags, say)
    from ttc_esopt.probe import work
    from ttc_esopt.probe.plan import announcement, planned

    plan = planned(sigmas=sigmas, directions=directions, replies=replies, operator=operator, **given)
    if dry_run:
        for line in announcement(plan, out):
            say(line)
        say("nothing was run (--dry-run)")
        return
    from rich.console import Console

    from ttc_esopt.evaluation import say_when_compiling

    say_when_compiling(say)
    console = Console(file=sys.stderr if as_json else sys.stdout)
    found = work(plan, out, snr=snr, max_kl=max_kl, say=say, console=console)
    if as_json:
        typer.echo((out / "probe.json").read_text(), nl=False)
        return
    from ttc_esopt.cli.compare import print_table
    from ttc_esopt.probe.display import lines, rows

    print_table(rows(found), lines(found))
    if (out / "probe.html").exists():
        typer.echo(f"page: {out / 'probe.html'}")
    typer.echo(f"result: {out / 'probe.json'}")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    defaults = {"budget": "1000; decides nothing but alpha: candidates of the run to come"}
    app.command("probe")(with_settings(_probe, HELP, _OPTIONS, NOT_HERE, defaults))
