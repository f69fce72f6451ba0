"""`run`, `resume`, `replay`, `export` and `report`: a search, going on with it, and what it ended with."""

from __future__ import annotations

import inspect
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.settings import FIELDS, Settings, flag, read_toml, resolve

RUN_HELP = """Search heuristics for a problem, with or without ES.

Before it starts it prints what it will spend. The folder --out holds everything: samples, steps, the best heuristic,
a report.

Examples:

  ttc-esopt run --problem tsp_construct --scaffold eoh --esopt --model smollm2-135m --budget 120 --seed 1 --out demo

  ttc-esopt run --config demo/run.toml --arm frozen --out demo-frozen      (the matched baseline)
"""


def _run(out: Path, config: Path | None, esopt: bool, report: bool, dry_run: bool, **flags: Any) -> None:
    given = read_toml(config) if config else {}
    typed = {name: value for name, value in flags.items() if value is not None}
    if esopt:
        if typed.get("arm", "esopt") != "esopt":
            raise ConfigurationError(f"--esopt means --arm esopt, but --arm {typed['arm']} is given too.")
        typed["arm"] = "esopt"
    if "sigma" in typed and "sigma_end" not in typed:
        given.pop("sigma_end", None) if ":" in typed["sigma"] else None
    given |= typed
    from ttc_esopt import models, problems

    problems.load(given.get("problem", FIELDS["problem"].default))
    model = given.get("model", FIELDS["model"].default)
    if model not in models.REGISTRY:
        models.resolve(model)  # a wrong name is reported before anything is written
    settings = resolve(given, models.defaults(model))
    command = "ttc-esopt " + shlex.join(sys.argv[1:])
    if dry_run:
        _announce(settings, out)
        typer.echo("nothing was run (--dry-run)")
        return
    from ttc_esopt.runfolder import RunFolder

    _work(RunFolder.create(out, settings, command), report)


def _resume(
    folder: Path = typer.Argument(..., metavar="DIR", help="folder of the run"),
    report: bool = typer.Option(True, help="write report.html at the end"),
) -> None:
    """Go on with a run exactly where it stopped.

    Example:  ttc-esopt resume demo
    """
    from ttc_esopt.runfolder import RunFolder

    _work(RunFolder.open(folder), report)


def _work(folder: Any, report: bool) -> None:
    """Load the parts, run to the end, conclude, and name the result."""
    from ttc_esopt import problems, scaffolds
    from ttc_esopt.conclude import conclude, evaluator
    from ttc_esopt.progress import RunProgress

    settings: Settings = folder.settings
    folder.lock()
    if report and find_spec("matplotlib") is None:
        report = False
        typer.echo("no report.html will be written: pip install 'ttc-esopt[report]', then `ttc-esopt report`")
    _announce(settings, folder.path)
    problem = problems.load(settings.problem)
    typer.echo(f"loading {settings.model} ...")
    began = time.monotonic()
    from ttc_esopt.search import Search

    engine = open_engine(settings)
    folder.note_model(engine.describe(), engine.fingerprint())
    typer.echo(f"model ready after {time.monotonic() - began:.0f} s, fingerprint {engine.fingerprint()}")
    scaffold = scaffolds.build(problem, settings)
    total = sum(call.count for call in scaffold.plan())
    title = f"{settings.problem} {settings.scaffold} {settings.arm}"
    with evaluator(problem, settings) as search_set:
        with RunProgress(total, title) as progress:
            search = Search(folder, problem, scaffold, engine, search_set, progress)
            state = search.run()
        fingerprint = engine.fingerprint()
        typer.echo("choosing the best on val, reporting it on test ...")
        conclusion = conclude(folder, problem, state, search_set)
    if search.stopped is None:
        folder.note_result({"fingerprint": fingerprint, "sha256": engine.sha256()})
    engine.close()
    if report:
        from ttc_esopt.report import write_report

        write_report([folder.path], folder.path / "report.html")
    _show(conclusion, problem)
    if search.es is not None:
        taken = sum(record["taken"] for record in folder.history.read())
        typer.echo(f"{taken} ES steps taken; weights end with fingerprint {fingerprint}")
    if search.stopped:
        typer.echo(f"{search.stopped}; go on with: ttc-esopt resume {folder.path}")
    if not state.population:
        raise DataError(
            f"No candidate was valid ({len(state.lines)} tried; see failure and detail in {folder.samples.path}). "
            "Try --prefill, another --temperature, or --init both."
        )
    if report:
        typer.echo(f"report: {folder.path / 'report.html'}")
    typer.echo(f"best heuristic: {folder.path / 'best.py'}")


def open_engine(settings: Settings, model: str | None = None) -> Any:
    """The engine of a run, on its own model or on another that is said to equal it."""
    from ttc_esopt.engines import load_engine
    from ttc_esopt.es.noise import NoiseKind

    return load_engine(
        model or settings.model, engine=settings.engine, device=settings.device, dtype=settings.dtype,
        noise=NoiseKind.parse(settings.noise), scope=settings.scope, threads=settings.threads or None,
        batch_size=settings.batch_size,
    )  # fmt: skip


def _announce(settings: Settings, out: Path) -> None:
    """What is about to be spent."""
    from ttc_esopt import problems, scaffolds

    problem = problems.load(settings.problem)
    plan = scaffolds.build(problem, settings).plan()
    counts: dict[str, int] = {}
    for call in plan:
        counts[call.operator] = counts.get(call.operator, 0) + call.count
    total = sum(counts.values())
    written = total - counts.get("seed", 0)
    steps = sum(call.es for call in plan)
    listed = ", ".join(f"{operator} {count}" for operator, count in counts.items())
    lines = [
        f"{settings.problem}, scaffold {settings.scaffold}, arm {settings.arm}, preset {settings.preset}, "
        f"seed {settings.seed}",
        f"candidates: {total} ({listed}); population {settings.population}",
        f"batches of directions: {steps} of {settings.directions} x {settings.replies_per_direction}",
        f"at most {written * settings.max_tokens} tokens, {total} evaluations on the search set",
        f"sampling: temperature {settings.temperature:g}, top-p {settings.top_p:g}, "
        f"{settings.max_tokens} tokens per reply, prefill {'on' if settings.prefill else 'off'}",
        f"results go to {out}",
    ]
    if settings.arm != "frozen":
        lines.insert(
            3,
            f"sigma {settings.sigma:g} to {settings.sigma_end:g} ({settings.sigma_schedule}), alpha {settings.alpha:g} "
            f"({settings.alpha_schedule}), noise {settings.noise}, rewards {settings.reward}",
        )
    for line in lines:
        typer.echo(line)


def _show(conclusion: Any, problem: Any) -> None:
    """The closing table."""
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "invalid" if value is None else f"{-value if problem.maximise else value:.4f}"

    table = Table("", "train", "val", "test")
    for row in conclusion.rows:
        table.add_row(row.name.replace("_", " "), number(row.train), number(row.val), number(row.test))
    Console().print(table)
    if conclusion.valid_first is not None:
        typer.echo(
            f"valid replies: {conclusion.valid_first:.0%} in the first third, {conclusion.valid_last:.0%} in the last"
        )
    best = "one of them is" if conclusion.own_is_best else "none of them is"
    typer.echo(f"new valid heuristics written by the model: {conclusion.own} ({best} the best found)")


def _replay(
    folder: Path = typer.Argument(..., metavar="DIR", help="folder of the run"),
    model: str = typer.Option(None, help="the model that the run began with (default: as in run.toml)"),
) -> None:
    """Rebuild the weights of a run from its history and print their fingerprint.

    Exits 1 if the history says otherwise. Example:  ttc-esopt replay demo --model smollm2-135m
    """
    engine, fingerprint = _replayed(folder, model)
    engine.close()
    typer.echo(f"{fingerprint}  {folder / 'history.jsonl'}")


def _replayed(path: Path, model: str | None) -> tuple[Any, str]:
    from ttc_esopt.runfolder import RunFolder

    folder = RunFolder.open(path)
    records = folder.history.read()
    from ttc_esopt.search import replay

    engine = open_engine(folder.settings, model)
    start = folder.document.get("model", {}).get("fingerprint")
    if start and engine.fingerprint() != start:
        raise DataError(
            f"The model has fingerprint {engine.fingerprint()}, the run began with {start}: another model (--model)."
        )
    fingerprint = replay(folder, engine)
    expected = records[-1]["fingerprint"] if records else start
    if expected and fingerprint != expected:
        raise DataError(f"The weights have fingerprint {fingerprint} after replay, the history says {expected}.")
    return engine, fingerprint


def _export(
    folder: Path = typer.Argument(..., metavar="DIR", help="folder of the run"),
    out: Path = typer.Option(..., help="folder for the Hugging Face checkpoint"),
    model: str = typer.Option(None, help="the model that the run began with (default: as in run.toml)"),
) -> None:
    """Write the weights that a run ended with as a Hugging Face checkpoint.

    Example:  ttc-esopt export demo --out smollm2-tuned
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"{out} is not empty (--out).")
    engine, fingerprint = _replayed(folder, model)
    engine.export(out)
    engine.close()
    typer.echo(f"fingerprint {fingerprint}")
    typer.echo(f"checkpoint: {out}")


def _report(
    folders: list[Path] = typer.Argument(..., metavar="DIR...", help="folders of runs"),
    out: Path = typer.Option(None, help="file to write (default: report.html in the folder, if there is one folder)"),
) -> None:
    """Write one self-contained HTML page about one or several runs.

    Example:  ttc-esopt report demo demo-frozen --out both.html
    """
    from ttc_esopt.report import write_report

    if out is None:
        if len(folders) > 1:
            raise ConfigurationError("Expected a file for the report of several runs (--out FILE.html).")
        out = folders[0] / "report.html"
    typer.echo(f"report: {write_report(folders, out)}")


def _with_settings() -> Any:
    """`_run` with one option per setting, so that names, defaults and help stand in `Settings` alone."""
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    fixed = [
        ("out", Path, typer.Option(..., help="folder for the results (new)")),
        ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win); a run.toml will do")),
        ("esopt", bool, typer.Option(False, "--esopt", help="the method itself: --arm esopt")),
        ("report", bool, typer.Option(True, help="write report.html at the end")),
        ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
    ]
    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=o, annotation=k) for n, k, o in fixed]
    for name, one in FIELDS.items():
        kind = str if name == "sigma" else kinds[str(one.type)]
        shown = one.default if one.default != "" else "none"
        names = (flag(name), f"--no-{name.replace('_', '-')}") if kind is bool else (flag(name),)
        declared = f"{names[0]}/{names[1]}" if kind is bool else names[0]
        option = typer.Option(None, declared, help=f"{one.metadata['help']} [default: {shown}]", show_default=False)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)
        )

    def command(**values: Any) -> None:
        _run(**values)

    command.__doc__ = RUN_HELP
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run")(_with_settings())
    app.command("resume")(_resume)
    app.command("replay")(_replay)
    app.command("export")(_export)
    app.command("report")(_report)
