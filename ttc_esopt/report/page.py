"""The page about one or several runs, and what every page has in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt import __version__
from ttc_esopt.charts import COLOURS, require_matplotlib
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.report import tables
from ttc_esopt.report.diagnostics import updates
from ttc_esopt.report.lineage import Ancestor, lineage
from ttc_esopt.report.run_charts import course, legend, own, run_keys
from ttc_esopt.rundata import RunData, as_table, best_line, plain, read_run, run_labels, show_objective, visible

LONGEST_CODE = 60_000  # characters of a program that are shown


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs and return its path.

    Parameters
    ----------
    run_dirs : sequence of Path
        Run folders; several runs are overlaid in the charts and get a column each.
    out : Path
        The HTML file; replaced in one step. Its folder is made if needed.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, a folder holds no run, or the file cannot be written.
    """
    require_matplotlib()
    if not run_dirs:
        raise ConfigurationError("Expected at least one run folder to report on.")
    return write_page(_render(labelled(run_dirs)), out)


def labelled(run_dirs: Sequence[Path]) -> list[RunData]:
    """The runs of the folders, each with a name that tells it from the others."""
    runs = [read_run(Path(path)) for path in run_dirs]
    for run, label in zip(runs, run_labels([run.path for run in runs]), strict=True):
        run.label = label
    return runs


def write_page(page: str, out: Path) -> Path:
    """Replace the file in one step. Raises ConfigurationError if it cannot be written."""
    out = Path(out)
    if out.exists() and not out.is_file():  # a device would be gone after it was replaced
        raise ConfigurationError(f"Expected a file to write, {out} is something else (--out).")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page.encode("utf-8", "replace").decode())  # lone surrogates become question marks
    except OSError as error:
        raise ConfigurationError(f"Cannot write {out}: {error.strerror or error} (--out).") from None
    return out


def template(name: str) -> Any:
    """A template of ours; it escapes every text that is not marked as ours."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ttc_esopt"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # Markup is ours and stays as it is
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"version": __version__}
    return environment.get_template(name)


def _render(runs: Sequence[RunData]) -> str:
    headlines = [tables.headline(run) for run in runs]
    keys = list(dict.fromkeys(key for rows in headlines for key, _ in rows))
    return template("report.html.j2").render(
        title=", ".join(run.label for run in runs),
        runs=[block(run, index, len(runs) > 1) for index, run in enumerate(runs)],
        single=len(runs) == 1,
        measured_heads=tables.MEASURED,
        headline=[(key, [dict(rows).get(key, "–") for rows in headlines]) for key in keys],
        charts=[one.for_page() for one in course(runs)],
        legend=legend(run_keys(runs)) if len(runs) > 1 else [],
        failures=tables.failures(runs),
        operators=tables.operators(runs),
        tables=tables.settings_tables(runs),
        code_style=code_style(),
    )


def block(run: RunData, index: int, several: bool) -> dict[str, Any]:
    """What a page says of one run alone."""
    line = best_line(run) or {}
    code = run.best_code or str(line.get("code") or "")
    description = run.best.get("description") or line.get("description")
    found = updates(run.steps)
    costs, facts = tables.cost_rows(run)
    prefix = f"r{index}-" if several else ""
    return {
        "label": run.label,
        "colour": COLOURS[index % len(COLOURS)],
        "notes": run.notes,
        "code": code,
        "highlighted": highlighted(code),
        "description": str(description) if description else None,
        "command": tables.recorded_command(run),
        "repeat": tables.repeating_command(run),
        "rollbacks": bool(as_table(run.document.get("run")).get("rollbacks")),
        "lineage": [_ancestor(one) for one in lineage(run)],
        "scores": tables.scores(run),
        "path": str(run.path),
        "operator": line.get("operator"),
        "order": line.get("order"),
        "charts": [one.for_page(prefix) for one in own(run)],
        "updates": tables.update_rows(found),
        "more_updates": max(0, len(found) - tables.MOST_STEPS),
        "summary": tables.update_summary(found),
        "measured": tables.measured_rows(run),
        "start": plain(run.settings.get("init_from")) if run.settings.get("init_from") else None,
        "costs": costs,
        "facts": facts,
    }


def _ancestor(one: Ancestor) -> dict[str, Any]:
    line = one.line
    return {
        "order": str(line["order"]),
        "operator": "seed" if one.seed else str(line.get("operator")),
        "objective": show_objective(line["objective"]),
        "parents": ", ".join(map(str, one.parents)) or "–",
        "description": str(line.get("description") or "–"),
        "seed": one.seed,
        "differences": one.differences,
        "code": one.code,
    }


def highlighted(code: str) -> Any:
    """HTML of the code, escaped by the highlighter."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    if len(code) > LONGEST_CODE:
        code = code[:LONGEST_CODE] + "\n… (the rest is left out here)"
    return Markup(highlight(visible(code), PythonLexer(), HtmlFormatter(nowrap=True)))


def code_style() -> str:
    """The style sheet of `highlighted`."""
    from pygments.formatters import HtmlFormatter

    rows = HtmlFormatter(style="monokai").get_style_defs(".code").split("\n")
    return "\n".join(row for row in rows if row.startswith(".code"))
