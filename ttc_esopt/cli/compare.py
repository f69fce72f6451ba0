"""`compare`: does the candidate beat the baseline, and can so many runs say so?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ttc_esopt.errors import ConfigurationError

if TYPE_CHECKING:
    from ttc_esopt.compare import Comparison, Setting, SummaryComparison

_HELP = """Compare finished runs: the candidate against the baseline.

Runs are sorted into settings (problem, set, size, method, model, budget), which are never mixed; runs with equal seeds
are pairs. The value of a run is the objective of its best heuristic, chosen on val and reported on test (on train where
there is no test set); lower is better. With --summary it repeats the t-tests of published figures, baseline first.

What does not match is refused. --ignore names what may differ all the same: budget, data (instances, protocol),
evaluator (version, limits), method, model, settings (runs of one side that differ in more than the seed), unfinished
(taken as they are), failed (runs without a value, left out).

\b
Examples:
  ttc-esopt compare --baseline runs/a1 runs/a2 --candidate runs/b1 runs/b2
  ttc-esopt compare --baseline runs/a1 runs/a2 --candidate runs/b1 runs/b2 --json
  ttc-esopt compare --baseline runs/a1 --candidate runs/b1 --ignore budget,evaluator
  ttc-esopt compare --summary 6.5517,0.0729,20 6.5007,0.0868,20
  ttc-esopt compare --summary 40.1562,0.0024,20 40.1578,0.0017,20 --maximise
"""
_SIDEWAYS = 3  # so many settings stand beside one another; more get a row each, with fewer columns


class _ManyFolders(TyperCommand):
    """`--baseline A B C` as `--baseline A --baseline B --baseline C`, so that the shell's `runs/a*` works."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        taker = None
        for arg in args:
            name = arg.partition("=")[0]
            if name in ("--baseline", "--candidate"):
                taker = name
                if arg != name:
                    spread += [name, arg[len(name) + 1 :]]
                    continue
                spread.append(name)
            elif taker and not arg.startswith("-"):
                spread += [arg] if spread[-1] == taker else [taker, arg]
            else:
                taker = None
                spread.append(arg)
        return super().parse_args(ctx, spread)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""

    @app.command(help=_HELP, cls=_ManyFolders)
    def compare(
        baseline: Annotated[
            list[Path] | None, typer.Option(metavar="DIR...", help="Folders of the baseline's runs.")
        ] = None,
        candidate: Annotated[
            list[Path] | None, typer.Option(metavar="DIR...", help="Folders of the candidate's runs.")
        ] = None,
        summary: Annotated[
            tuple[str, str] | None,
            typer.Option(metavar="MEAN,SD,N MEAN,SD,N", help="Summary figures instead of runs, baseline first."),
        ] = None,
        maximise: Annotated[bool, typer.Option("--maximise", help="With --summary: larger values are better.")] = False,
        ignore: Annotated[
            list[str] | None, typer.Option(metavar="WORD[,WORD]", help="What may differ all the same (see above).")
        ] = None,
        budget_in: Annotated[
            str,
            typer.Option(
                metavar="candidates|tokens",
                help="What equal budgets are: candidates, or tokens (mean written tokens within 5 %).",
            ),
        ] = "candidates",
        k: Annotated[str, typer.Option("--k", metavar="K[,K]", help="The k of Pass@k.")] = "1,10",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        if summary:
            if baseline or candidate:
                raise ConfigurationError("Expected either --summary or run folders, got both.")
            _summaries(summary, maximise, as_json)
            return
        if maximise:
            raise ConfigurationError("--maximise is for --summary: the objectives of runs are minimised already.")
        if not baseline or not candidate:
            raise ConfigurationError("Expected --baseline DIR... and --candidate DIR..., or --summary.")
        from ttc_esopt.compare import compare as compare_runs

        words = [word.strip() for text in ignore or [] for word in text.split(",")]
        result = compare_runs(baseline, candidate, ignore=words, budget_in=budget_in, ks=_ks(k))
        if as_json:
            print(json.dumps(result.as_dict(), allow_nan=False))
        else:
            _show(result)


def _ks(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigurationError(f"Expected numbers such as 1,10, got {text} (--k).") from None


def _summaries(texts: tuple[str, str], maximise: bool, as_json: bool) -> None:
    from ttc_esopt.compare import compare_summaries
    from ttc_esopt.statistics import Summary

    result = compare_summaries(*(Summary.parse(text) for text in texts), maximise)
    if as_json:
        print(json.dumps(result.as_dict(), allow_nan=False))
        return
    lines = ["higher is better" if maximise else "lower is better"]
    print_table(_summary_rows(result), lines + [f"note: {note}" for note in result.notes()])


def _summary_rows(result: SummaryComparison) -> list[tuple[str, ...]]:
    rows = [("", "mean", "sd", "n")]
    for name, side in (("baseline", result.baseline), ("candidate", result.candidate)):
        rows.append((name, _number(side.mean), _number(side.sd), str(side.n)))
    rows.append(("difference", _number(result.candidate.mean - result.baseline.mean), "", ""))
    rows.append(("", "t", "df", "p one-sided"))
    for name, test in (("t-test, equal variance", result.student), ("Welch's t-test", result.welch)):
        cells = ("–", "–", "–") if test is None else (f"{test.statistic:.4f}", f"{test.df:.4g}", f"{test.p:.4f}")
        rows.append((name, *cells))
    return rows


def _show(result: Comparison) -> None:
    beside = len(result.settings) <= _SIDEWAYS
    columns = [_column(one, beside) for one in result.settings]
    labels = [label for label, _ in columns[0]]
    rows = [tuple(labels), *(tuple(text for _, text in column) for column in columns)]
    if beside:
        rows = list(zip(*rows, strict=True))
    print_table(rows, _lines(result))


def _column(one: Setting, all_of_it: bool) -> list[tuple[str, str]]:
    """Label and text of every statistic of a setting."""
    of, test, (a, b) = one.statistics, one.statistics.primary, (one.baseline, one.candidate)
    percent = "" if of.percent is None else f"{of.percent:+.2f} %"
    if all_of_it and percent:
        percent = f"{_number(of.difference)} ({percent})"
    shift = of.shift
    interval = (
        f"{_number(shift.estimate)} [{_number(shift.low)}, {_number(shift.high)}] at {100 * shift.confidence:.1f} %"
    )
    entries = [
        (True, "setting", one.key.text()),
        (True, "runs", f"{of.baseline.n}, {of.candidate.n}"),
        (True, "baseline mean ± sd", f"{_number(of.baseline.mean)} ± {_sd(of.baseline.sd)}"),
        (True, "candidate mean ± sd", f"{_number(of.candidate.mean)} ± {_sd(of.candidate.sd)}"),
        (False, "best", f"{_number(of.best[0])}, {_number(of.best[1])}"),
        (True, "difference", percent or _number(of.difference)),
        (False, "shift [interval]", interval),
        (True, "A12", f"{of.a12:.2f}{' ' + _word(of.a12) if all_of_it else ''}"),
        (True, "t-test p", _p(of.student and of.student.p)),
        (False, "Welch p", _p(of.welch and of.welch.p)),
        (False, "decides", test.name),
        (True, "p two-sided", _p(test.p_two_sided)),
        (True, "Holm", _p(one.p_holm)),
        (True, "verdict", one.verdict),
        (False, "candidates a run", f"{a.candidates:.6g}, {b.candidates:.6g}"),
        (False, "tokens a run", f"{a.tokens:.0f}, {b.tokens:.0f}"),
        (False, "valid replies, Mean@k", f"{_share(a.mean_at_k)}, {_share(b.mean_at_k)}"),
    ]
    for k in a.pass_at_k:
        entries.append((False, f"Pass@{k}", f"{_share(a.pass_at_k[k])}, {_share(b.pass_at_k[k])}"))
    return [(label, text) for always, label, text in entries if always or all_of_it]


def _word(a12: float) -> str:
    from ttc_esopt.statistics import a12_word

    return a12_word(a12)


def _lines(result: Comparison) -> list[str]:
    """What stands under the table."""
    lines = ["lower is better; t-test and Welch: one-sided, the candidate is better; two figures: baseline, candidate"]
    if len(result.settings) > _SIDEWAYS:
        lines.append("more of each setting: --json, or fewer settings at a time")
    if result.differences:
        changes = [f"{name} {_list(a)} -> {_list(b)}" for name, (a, b) in result.differences.items()]
        lines.append(f"compared: {'; '.join(changes)}")
    if result.ignored:
        lines.append(f"ignored: {', '.join(result.ignored)}")
    count = result.tally
    sign = "" if count.p is None else f" (sign test p = {_p(count.p)}, as if settings were independent)"
    lines.append(f"{count.better} better, {count.tie} tie, {count.worse} worse of {count.of}{sign}")
    if result.aggregate:
        g = result.aggregate
        lines.append(
            f"gain across {g.settings} settings, interquartile mean: {g.iqm:+.2f} % [{g.low:+.2f}, {g.high:+.2f}] "
            f"at {100 * g.confidence:.0f} % (bootstrap within settings)"
        )
    seen: dict[str, list[str]] = {}
    for one in result.settings:
        for note in one.notes:
            seen.setdefault(note, []).append(one.key.text())
    for note, where in seen.items():
        lines.append(f"note: {note}" + ("" if len(where) == len(result.settings) else f" ({'; '.join(where)})"))
    return lines + [f"note: {note}" for note in result.notes]


def print_table(rows: Sequence[tuple[str, ...]], lines: Sequence[str]) -> None:
    """A rich table on a terminal, aligned columns elsewhere; then lines."""
    if sys.stdout.isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(*rows[0], box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for row in rows[1:]:
            table.add_row(*row)
        Console(markup=False, highlight=False).print(table)
    else:
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = zip(row, widths, strict=True)
            print("  ".join(f"{text:<{width}}" for text, width in cells).rstrip())
    for line in lines:
        print(line)


def _list(values: list) -> str:
    return ", ".join(map(str, values)) if values else "none"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _sd(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value >= 1e-4 else f"{value:.1e}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
