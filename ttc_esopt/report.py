"""`report`: one self-contained HTML page from one or several run folders.

The page has no scripts and asks the network for nothing. All text of a run (replies, descriptions, code, messages) is
model-written and therefore hostile: the template escapes everything but our own SVG and the highlighter's output. A run
that was killed early, with files missing or torn, gives a page with what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ttc_esopt import __version__
from ttc_esopt.charts import COLOURS, Chart, Curve, draw, require_matplotlib
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import write_atomically
from ttc_esopt.rundata import (
    RunData,
    all_numbers,
    as_number,
    as_table,
    best_line,
    duration,
    is_new,
    plain,
    read_run,
    references,
    run_labels,
    show_objective,
    show_share,
    thirds,
    visible,
)

MAX_LINEAGE = 60  # ancestors listed


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
    runs = [read_run(Path(path)) for path in run_dirs]
    for run, label in zip(runs, run_labels([run.path for run in runs]), strict=True):
        run.label = label
    page = _render(runs).encode("utf-8", "replace").decode()  # lone surrogates become question marks
    out = Path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise ConfigurationError(f"Cannot write {out}: {error.strerror or error} (--out).") from None
    return out


# summaries


def _headline(run: RunData) -> list[tuple[str, str]]:
    settings, written = run.settings, run.written
    best = best_line(run)
    found = as_number(run.best.get("objective"))
    if found is None and best is not None:
        found = best["objective"]
    seeds = [line["objective"] for line in run.samples if line.get("reply") is None and line["objective"] is not None]
    rows = [
        (key.capitalize(), plain(settings[key]))
        for key in ("problem", "scaffold", "model", "arm", "seed")
        if key in settings
    ]
    rows.append(("Budget (candidates)", f"{len(run.samples)} of {plain(settings.get('budget'))}"))
    rows.append(("Best objective found", show_objective(found)))
    rows += [
        (f"Best objective, {split}", show_objective(as_number(run.best[split])))
        for split in ("val", "test")
        if as_number(run.best.get(split)) is not None
    ]
    rows.append(("Best seed heuristic", show_objective(min(seeds, default=None))))
    for name, value in references(run).items():
        rows.append((f"Baseline: {name}", show_objective(value)))
        if found is not None and value:
            rows.append((f"Best found against {name}", f"{100 * (found - value) / abs(value):+.2f} %"))
    first, last = thirds(run.written)
    rows.append(("Valid share, first third → last third", f"{show_share(first)} → {show_share(last)}"))
    rows.append(("New valid candidates of the model", str(sum(is_new(line) for line in written))))
    taken = sum(bool(step.get("taken")) for step in run.steps)
    rows.append(("ES steps taken", f"{taken} of {len(run.steps)}" if run.steps else "none"))
    rows.append(("Tokens written", f"{sum(int(as_number(line.get('tokens')) or 0) for line in run.samples):,}"))
    seconds = {
        key: sum(as_number(line.get(key)) or 0.0 for line in run.timings) for key in ("generate", "evaluate", "step")
    }
    if any(seconds.values()):
        rows.append(
            ("Time generating / evaluating / stepping", " / ".join(duration(value) for value in seconds.values()))
        )
    return rows


def _failures(runs: Sequence[RunData]) -> list[tuple[str, list[int]]]:
    counts = [Counter(str(line["failure"]) for line in run.samples if line.get("failure")) for run in runs]
    totals = sum(counts, Counter())
    return [(kind, [count[kind] for count in counts]) for kind, _ in totals.most_common()]


def _operators(runs: Sequence[RunData]) -> list[tuple[str, list[list[str]]]]:
    """For each operator and run: candidates, valid, new, best objective."""
    names = list(dict.fromkeys(str(line.get("operator")) for run in runs for line in run.samples))
    rows = []
    for name in names:
        cells = []
        for run in runs:
            lines = [line for line in run.samples if str(line.get("operator")) == name]
            valid = [line["objective"] for line in lines if line["objective"] is not None]
            new = sum(is_new(line) for line in lines)
            cells.append([str(len(lines)), str(len(valid)), str(new), show_objective(min(valid, default=None))])
        rows.append((name, cells))
    return rows


def _lineage(run: RunData) -> list[dict[str, str]]:
    """The best heuristic and its ancestors, latest first."""
    by_order = {line["order"]: line for line in run.samples}
    start = best_line(run)
    if start is None:
        return []
    seen, queue = {start["order"]}, [start["order"]]
    while queue and len(seen) < MAX_LINEAGE:
        parents = by_order[queue.pop(0)].get("parents")
        for parent in parents if isinstance(parents, list) else []:
            if isinstance(parent, int) and parent in by_order and parent not in seen:
                seen.add(parent)
                queue.append(parent)
    rows = []
    for order in sorted(seen, reverse=True):
        line = by_order[order]
        parents = line.get("parents") if isinstance(line.get("parents"), list) else []
        rows.append(
            {
                "order": str(order),
                "operator": str(line.get("operator")),
                "objective": show_objective(line["objective"]),
                "parents": ", ".join(map(str, parents)) or "–",
                "description": str(line.get("description") or "–"),
            }
        )
    return rows


def _tables(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Every table of run.toml, generically: name, and rows (key, one value per run, whether they differ)."""
    flat = [dict(_flatten(run.document)) for run in runs]
    names = dict.fromkeys(table for values in flat for table, _ in values)
    tables = []
    for name in names:
        keys = dict.fromkeys(key for values in flat for table, key in values if table == name)
        rows = [(key, [plain(values.get((name, key))) for values in flat]) for key in keys]
        tables.append({"name": name, "rows": [(key, cells, len(set(cells)) > 1) for key, cells in rows]})
    return tables


def _flatten(value: dict, table: str = "") -> Iterable[tuple[tuple[str, str], object]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{table}.{key}" if table else str(key))
        else:
            yield (table or "run.toml", str(key)), item


# charts


def _charts(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """Title, SVG and a sentence (also the text alternative) per chart; charts without data are left out."""
    single = len(runs) == 1
    found = []
    for title, make in (
        ("Best objective", _best_chart),
        ("Valid share", _valid_chart),
        ("Sigma", _sigma_chart),
        ("Reward spread", _reward_chart),
    ):
        chart, caption = make(runs, single)
        if any(len(curve.x) for curve in chart.curves):
            found.append({"title": title, "name": chart.name, "svg": draw(chart), "caption": caption})
    return found


def _best_chart(runs: Sequence[RunData], single: bool) -> tuple[Chart, str]:
    curves, words = [], []
    for run in runs:
        x, y = [], []
        for line in run.samples:
            if line["objective"] is not None or y:
                x.append(line["order"])
                y.append(min([value for value in (line["objective"], y[-1] if y else None) if value is not None]))
        dots = [(line["order"], line["objective"]) for line in run.samples if line["objective"] is not None]
        curves.append(Curve(x, y, dots=dots if single else (), steps=True))
        if y:
            ends = f"from {show_objective(y[0])} to {show_objective(y[-1])}"
            words.append(f"{_of(run, single)}{ends} over {len(run.samples)} candidates")
    levels = sorted({value for run in runs for value in references(run).values()})
    drawn = [value for curve in curves for value in (*curve.y[:1], *curve.y[-1:])] + levels
    low, high = (min(drawn), max(drawn)) if drawn else (0.0, 1.0)
    pad = 0.08 * (high - low) or 0.02 * abs(high) or 0.1
    names = sorted({f"{name} {show_objective(value)}" for run in runs for name, value in references(run).items()})
    caption = f"Best objective so far, lower is better: {'; '.join(words)}."
    caption += f" Dashed: {', '.join(names)}." if names else ""
    caption += " Dots: valid candidates within the range shown." if single else ""
    limits = (low - pad, high + 4 * pad if single else high + pad)
    return Chart("best", "candidates", "objective", curves, levels, limits), caption


def _valid_chart(runs: Sequence[RunData], single: bool) -> tuple[Chart, str]:
    window = max(5, max((len(run.written) for run in runs), default=0) // 8)
    curves, words = [], []
    for run in runs:
        flags = [line["objective"] is not None for line in run.written]
        y = [sum(flags[max(0, i - window + 1) : i + 1]) / min(window, i + 1) for i in range(len(flags))]
        start = min(window, len(flags)) - 1 if flags else 0
        curves.append(Curve([line["order"] for line in run.written][start:], y[start:]))
        first, last = thirds(run.written)
        if first is not None:
            words.append(f"{_of(run, single)}{show_share(first)} in the first third, {show_share(last)} in the last")
    caption = (
        f"Share of valid replies among the last {window}: {'; '.join(words) or 'too few replies to compare thirds'}."
    )
    return Chart("valid", "candidates", "valid share", curves, y_limits=(-0.03, 1.03), percent=True), caption


def _sigma_chart(runs: Sequence[RunData], single: bool) -> tuple[Chart, str]:
    curves, words = [], []
    for run in runs:
        points = [(step, sigma) for step in run.steps if (sigma := as_number(step.get("sigma"))) is not None]
        x = [as_number(step.get("t")) or 0.0 for step, _ in points]
        y = [sigma for _, sigma in points]
        hollow = [(at, value) for at, (step, value) in zip(x, points, strict=True) if not step.get("taken")]
        curves.append(Curve(x, y, hollow=hollow))
        if y:
            words.append(f"{_of(run, single)}from {y[0]:.3g} to {y[-1]:.3g} in {len(y)} steps")
    caption = f"Perturbation radius at each step: {'; '.join(words)}. Rings: steps that were not taken."
    return Chart("sigma", "step", "sigma", curves, markers=True), caption


def _reward_chart(runs: Sequence[RunData], single: bool) -> tuple[Chart, str]:
    curves, words = [], []
    for run in runs:
        rows = [(as_number(step.get("t")) or 0.0, all_numbers(step.get("rewards"))) for step in run.steps]
        rows = [(at, rewards) for at, rewards in rows if rewards]
        means = [sum(rewards) / len(rewards) for _, rewards in rows]
        dots = [(at, reward) for at, rewards in rows for reward in rewards] if single else []
        low, high = [min(rewards) for _, rewards in rows], [max(rewards) for _, rewards in rows]
        curves.append(Curve([at for at, _ in rows], means, low, high, dots))
        if rows:
            words.append(f"{_of(run, single)}mean {means[0]:.3g} at the first step, {means[-1]:.3g} at the last")
    caption = f"Rewards of each step: line the mean, band from lowest to highest; {'; '.join(words)}."
    return Chart("rewards", "step", "reward", curves, markers=True), caption


def _of(run: RunData, single: bool) -> str:
    return "" if single else f"{run.label} "


# page


def _render(runs: Sequence[RunData]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ttc_esopt"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # Markup is ours and stays as it is
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    headlines = [_headline(run) for run in runs]
    keys = list(dict.fromkeys(key for rows in headlines for key, _ in rows))
    code_style = ""
    blocks = []
    for index, run in enumerate(runs):
        line = best_line(run) or {}
        code = run.best_code or str(line.get("code") or "")
        highlighted, code_style = _highlight(visible(code))
        description = run.best.get("description") or line.get("description")
        blocks.append(
            {
                "label": run.label,
                "colour": COLOURS[index % len(COLOURS)],
                "notes": run.notes,
                "code": code,
                "highlighted": highlighted,
                "description": str(description) if description else None,
                "command": _command(run),
                "lineage": _lineage(run),
                "scores": _scores(run),
                "path": str(run.path),
                "operator": line.get("operator"),
                "order": line.get("order"),
            }  # fmt: skip
        )
    return environment.get_template("report.html.j2").render(
        runs=blocks,
        single=len(runs) == 1,
        headline=[(key, [dict(rows).get(key, "–") for rows in headlines]) for key in keys],
        charts=_charts(runs),
        failures=_failures(runs),
        operators=_operators(runs),
        tables=_tables(runs),
        code_style=code_style,
        version=__version__,
    )


def _command(run: RunData) -> str | None:
    """The command that repeats the run, from whichever table of run.toml holds it."""
    for name in ("run", "settings"):
        if command := as_table(run.document.get(name)).get("command"):
            return plain(command)
    return None


def _scores(run: RunData) -> list[list[str]]:
    """Rows (name, train, val, test) of best.json."""
    rows = run.best.get("rows")
    return [
        [str(row.get("name")), *(show_objective(as_number(row.get(split))) for split in ("train", "val", "test"))]
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def _highlight(code: str) -> tuple[Any, str]:
    """HTML of the code, escaped by the highlighter, and the style sheet for it."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(nowrap=True, style="monokai")
    return Markup(highlight(code, PythonLexer(), formatter)), formatter.get_style_defs(".code")
