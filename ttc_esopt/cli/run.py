"""`run`, `resume`, `replay` and `export`: a search, going on with it, and what it ended with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from ttc_esopt.cli.options import given_settings, with_settings
from ttc_esopt.errors import ConfigurationError

RUN_HELP = """Search heuristics for a problem, with or without ES.

Before it starts it prints what it will spend. The folder --out holds everything: samples, steps, the best heuristic,
a report.

Examples:

  ttc-esopt run --problem tsp_construct --scaffold eoh --esopt --model smollm2-135m --budget 120 --seed 1 --out demo

  ttc-esopt run --config demo/run.toml --arm frozen --out demo-frozen      (the matched baseline)
"""

CAPS = ("--max-tokens-total", "--cap-kl", "--cap-distance")  # limits that need another value before a run can go on


def _run(out: Path, config: Path | None, esopt: bool, report: bool, dry_run: bool, **flags: Any) -> None:
    given = given_settings(config, esopt, flags, typer.echo)
    from ttc_esopt.evaluation import say_when_compiling
    from ttc_esopt.runner import announcement, settings_of, work

    settings = settings_of(given)
    if str(out) == "." or out.resolve() == Path.cwd():
        raise ConfigurationError("Expected a folder of its own for the results, got the current one (--out).")
    if dry_run:
        for line in announcement(settings, out):
            typer.echo(line)
        typer.echo("nothing was run (--dry-run)")
        return
    from ttc_esopt.runfolder import RunFolder

    say_when_compiling(typer.echo)
    show(work(RunFolder.create(out, settings, "ttc-esopt " + shlex.join(sys.argv[1:])), report, typer.echo))


def _resume(
    folder: Path = typer.Argument(..., metavar="DIR", help="folder of the run"),
    report: bool = typer.Option(True, help="write report.html at the end"),
    max_tokens_total: int = typer.Option(None, help="another limit of written tokens (0: none)"),
    max_minutes: float = typer.Option(None, help="another limit of minutes, from now (0: none)"),
    cap_kl: float = typer.Option(None, help="another cap of KL to the beginning (0: none)"),
    cap_distance: float = typer.Option(None, help="another cap of the distance from the beginning (0: none)"),
    replicas: int = typer.Option(None, help="another number of replicas: nothing else changes"),
    ray_address: str = typer.Option(None, help="another Ray cluster"),
    evaluate_on: str = typer.Option(None, help="evaluate programs elsewhere: here or ray"),
    delta: str = typer.Option(None, help="keep base and delta elsewhere: auto, device, host or replay"),
    rollback: bool = typer.Option(False, "--rollback", help="go back to the weights of the best batch so far first"),
) -> None:
    """Go on with a run exactly where it stopped.

    Example:  ttc-esopt resume demo
    """
    from ttc_esopt.runner import resume

    limits = {
        "max_tokens_total": max_tokens_total, "max_minutes": max_minutes,
        "cap_kl": cap_kl, "cap_distance": cap_distance, "replicas": replicas, "ray_address": ray_address,
        "evaluate_on": evaluate_on, "delta": delta,
    }  # fmt: skip
    changed = {name: value for name, value in limits.items() if value is not None}
    show(resume(folder, report=report, rollback=rollback, say=typer.echo, **changed))


def show(result: Any) -> None:
    """The closing table and the files that hold the result."""
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.4f}"

    conclusion = result.conclusion
    table = Table("objective", "train", "val", "test")
    for row in conclusion.rows:
        table.add_row(row.name.replace("_", " "), number(row.train), number(row.val), number(row.test))
    Console().print(table)
    for alarm in conclusion.alarms:
        typer.echo(alarm)
    if conclusion.valid_first is not None:
        typer.echo(
            f"valid replies: {conclusion.valid_first:.0%} in the first third, {conclusion.valid_last:.0%} in the last"
        )
    best = "one of them is" if conclusion.own_is_best else "none of them is"
    typer.echo(f"new valid heuristics written by the model: {conclusion.own} ({best} the best found)")
    typer.echo(f"ES steps taken: {result.steps}; weights end with fingerprint {result.fingerprint}")
    if result.stopped:
        more = next((f" {option} N" for option in CAPS if option in result.stopped), "")
        more += ", or from the best batch with --rollback" if "--cap" in more else ""
        typer.echo(f"{result.stopped}; go on with: ttc-esopt resume {result.folder}{more}")
    if result.report:
        typer.echo(f"report: {result.report}")
    typer.echo(f"best heuristic: {result.folder / 'best.py'}")


def _replay(
    folder: Path = typer.Argument(..., metavar="DIR|PATCH", help="folder of the run, or a patch"),
    model: str = typer.Option(None, help="the model that the run began with (default: as in run.toml)"),
) -> None:
    """Rebuild the weights of a run from its history, or those of a patch, and print their fingerprint.

    Exits 1 if the history says otherwise. Example:  ttc-esopt replay demo --model smollm2-135m
    """
    from ttc_esopt.runner import replayed

    engine, fingerprint = replayed(folder, model)
    engine.close()
    typer.echo(f"{fingerprint}  {folder if folder.is_file() else folder / 'history.jsonl'}")


def _export(
    folder: Path = typer.Argument(..., metavar="DIR|PATCH", help="folder of the run, or a patch"),
    out: Path = typer.Option(None, help="folder for the Hugging Face checkpoint (new)"),
    patch: Path = typer.Option(None, metavar="FILE", help="file for the patch (new)"),
    model: str = typer.Option(None, help="the model that the run began with (default: as in run.toml)"),
    shard_size: str = typer.Option("5GB", help="largest file of the checkpoint"),
) -> None:
    """Write the weights that a run ended with as a Hugging Face checkpoint, or as a patch.

    A patch is the seeds, weights and steps alone: some kilobytes that rebuild the tuned model from the public one,
    which it names by fingerprint. `replay`, `export --out` and `run --init-from` take a patch as they take a run.

    \b
    Examples:
      ttc-esopt export demo --out smollm2-tuned
      ttc-esopt export demo --patch demo.patch.json
      ttc-esopt export demo.patch.json --out smollm2-tuned
    """
    from ttc_esopt.runner import export, export_patch

    if out is None and patch is None:
        raise ConfigurationError("Expected where to write: a checkpoint (--out DIR) or a patch (--patch FILE).")
    if out is not None:
        typer.echo(f"fingerprint {export(folder, out, model, shard_size, typer.echo)}")
        typer.echo(f"checkpoint: {out}")
    if patch is not None:
        typer.echo(f"fingerprint {export_patch(folder, patch)}")
        typer.echo(f"patch: {patch} ({patch.stat().st_size:,} bytes)")


def _options() -> list[tuple[str, Any, Any]]:
    """The options of `run` that are no settings: name, type, typer's option."""
    return [
        ("out", Path, typer.Option(..., help="folder for the results (new)")),
        ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win); a run.toml will do")),
        ("esopt", bool, typer.Option(False, "--esopt", help="the method itself: --arm esopt")),
        ("report", bool, typer.Option(True, help="write report.html at the end")),
        ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
    ]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run")(with_settings(_run, RUN_HELP, _options()))
    app.command("resume")(_resume)
    app.command("replay")(_replay)
    app.command("export")(_export)
