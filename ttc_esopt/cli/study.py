"""`study`: a grid of arms, problems and seeds from a recipe, then the comparison and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_HELP = """Run a study: every arm on every problem with every seed, then compare and report.

The recipe is a TOML file (see docs/studies.md; runs/ holds ready-made ones), checked as a whole before anything runs.
The same command again goes on: finished runs are skipped, others resumed or started. Ctrl-C lets the running batches
finish.

\b
Examples:
  ttc-esopt study runs/pilot.toml --dry-run
  ttc-esopt study runs/pilot.toml --out pilot
  ttc-esopt study runs/ttest-20.toml --table
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""

    @app.command(help=_HELP)
    def study(
        recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="the recipe")],
        out: Annotated[Path | None, typer.Option(help="folder for the results [default: runs/NAME]")] = None,
        jobs: Annotated[
            int | None, typer.Option(help="runs at once; does not change results [default: one per GPU, or cores]")
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be spent, and stop")] = False,
        report: Annotated[bool, typer.Option(help="write report, figures, and a page for each run")] = True,
        table: Annotated[
            bool, typer.Option("--table", help="print published figures with those in --out beside them, and stop")
        ] = False,
    ) -> None:
        from ttc_esopt.study import published_table, read_recipe

        found = read_recipe(recipe)
        if table:
            typer.echo(published_table(found, out or found.folder), nl=False)
            return
        from ttc_esopt.cli.compare import print_table
        from ttc_esopt.study.comparing import closing_lines, closing_rows, left_out
        from ttc_esopt.study.plan import announcement, grid
        from ttc_esopt.study.running import prepared, run_study

        place = out or found.folder
        if dry_run:
            plans, states, machine = prepared(found, place, jobs)
            lines = announcement(found, plans, states, machine, place)
            print_table(grid(found, plans, states), [*lines, "nothing was run (--dry-run)"])
            return
        result = run_study(found, out, jobs=jobs, report=report)
        if result.comparisons:
            print_table(closing_rows(result.comparisons), closing_lines(result.comparisons, left_out(found, place)))
        for line in result.failures:
            typer.echo(line)
        if result.unfinished or result.failures:
            count = len(result.unfinished)
            left = f"{count} run{'s have' if count > 1 else ' has'} not ended; " if count else ""
            typer.echo(f"{left}{'interrupted; ' if result.interrupted else ''}go on with: {result.go_on}")
        if result.path is not None:
            typer.echo(f"{'report' if result.path.suffix == '.html' else 'comparison'}: {result.path}")
        if not result.ok:
            raise typer.Exit(1)
