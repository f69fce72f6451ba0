"""The `ttc-esopt` command: one typer application, one module per group of commands.

Only light modules are imported here (no torch, no numba), so that `--help`, `parse` and usage errors answer at once.
Exit codes: 0 done, 1 the run failed, 2 bad usage.
"""

from __future__ import annotations

import sys

import typer

from ttc_esopt import __version__
from ttc_esopt.cli import compare, evaluate, exec, models, parse, probe, report, run, serve, solve, study
from ttc_esopt.errors import TtcEsoptError

app = typer.Typer(
    name="ttc-esopt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Move the language model while it searches for heuristics: evolution strategies at test time.",
)
for module in (run, study, probe, exec, serve, evaluate, solve, compare, report, parse, models):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"ttc-esopt {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Entry point: an error of ours is one line on standard error and its exit code, never a traceback."""
    try:
        app()
    except TtcEsoptError as error:
        print(f"ttc-esopt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
