"""`report`: a page about runs or a study, TensorBoard files, or a live view of what is at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttc_esopt.errors import ConfigurationError

_HELP = """Write one self-contained HTML page about one or several runs, or about a study.

The page needs no network and has no scripts. A study is a folder with study.toml; its page has comparisons, anytime
curves and every run, and figures/*.svg and figures/anytime.csv are written beside it.

--tensorboard writes event files instead, a folder for each run; with --out it writes the page too. --watch writes
nothing: it shows a run or a study while it works, and ends with it (or with Ctrl-C).

\b
Examples:
  ttc-esopt report demo
  ttc-esopt report demo demo-frozen --out both.html
  ttc-esopt report runs/pilot
  ttc-esopt report demo --tensorboard events
  ttc-esopt report demo --watch
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""

    @app.command("report", help=_HELP)
    def report(
        folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or one of a study.")],
        out: Annotated[
            Path | None, typer.Option(help="File to write [default: report.html in the folder, if there is one].")
        ] = None,
        tensorboard: Annotated[
            Path | None, typer.Option(metavar="DIR", help="Write TensorBoard event files into this folder.")
        ] = None,
        watch: Annotated[bool, typer.Option("--watch", help="Show the run or study live; write nothing.")] = False,
    ) -> None:
        if watch:
            _watch(folders, out, tensorboard)
            return
        from ttc_esopt.report.grid import is_study

        studies = [folder for folder in folders if is_study(folder)]
        if studies and len(folders) > 1:
            raise ConfigurationError(f"Expected runs, or one study: {studies[0]} is a study; give it alone.")
        if tensorboard is not None:
            from ttc_esopt.tensorboard import write_events

            typer.echo(f"event files: {write_events(folders, tensorboard)}  (tensorboard --logdir {tensorboard})")
            if out is None:
                return
        if out is None:
            if len(folders) > 1:
                raise ConfigurationError("Expected a file for the report of several runs (--out FILE.html).")
            out = folders[0] / "report.html"
        _page(folders, studies, out)


def _page(folders: list[Path], studies: list[Path], out: Path) -> None:
    from ttc_esopt.report import write_figures, write_report, write_study_report

    if studies:
        for path in write_figures(studies[0]):
            typer.echo(f"figure: {path}")
        typer.echo(f"report: {write_study_report(studies[0], out)}")
    else:
        typer.echo(f"report: {write_report(folders, out)}")


def _watch(folders: list[Path], out: Path | None, tensorboard: Path | None) -> None:
    if out is not None or tensorboard is not None:
        raise ConfigurationError("--watch writes no file: leave out --out and --tensorboard.")
    if len(folders) > 1:
        raise ConfigurationError("Expected one folder to watch, of a run or of a study (--watch).")
    from ttc_esopt.watch import watch

    watch(folders[0])
