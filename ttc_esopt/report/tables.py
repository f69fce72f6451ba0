"""Tables of a page about runs: headline, operators, failures, updates, costs, settings. All values are texts."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ttc_esopt.candidates import key
from ttc_esopt.report.costs import PHASES, Ledger, ledger
from ttc_esopt.report.diagnostics import Update
from ttc_esopt.rundata import (
    RunData,
    all_numbers,
    as_number,
    as_table,
    best_line,
    duration,
    is_new,
    plain,
    references,
    show_objective,
    show_share,
    thirds,
)

MOST_STEPS = 300  # rows of the table of updates


def headline(run: RunData) -> list[tuple[str, str]]:
    """Name and value of the numbers that matter most."""
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
    rows.append(("Chosen heuristic, train", show_objective(found)))
    rows += [
        (f"Chosen heuristic, {split}", show_objective(as_number(run.best[split])))
        for split in ("val", "test")
        if as_number(run.best.get(split)) is not None
    ]
    rows.append(("Best seed heuristic", show_objective(min(seeds, default=None))))
    for name, value in references(run).items():
        rows.append((f"Baseline: {name}", show_objective(value)))
        if found is not None and value:
            rows.append((f"Chosen against {name}", f"{100 * (found - value) / abs(value):+.2f} %"))
    first, last = thirds(written)
    rows.append(("Valid share, first third → last third", f"{show_share(first)} → {show_share(last)}"))
    rows.append(("New valid candidates of the model", str(sum(is_new(line) for line in written))))
    taken = sum(bool(step.get("taken")) for step in run.steps)
    rows.append(("ES steps taken", f"{taken} of {len(run.steps)}" if run.steps else "none"))
    total = ledger(run).total
    rows.append(("Tokens written", f"{total.written:,}"))
    if total.elapsed:
        rows.append(("Time generating / evaluating / stepping", " / ".join(duration(total.seconds[p]) for p in PHASES)))
    return rows


def operators(runs: Sequence[RunData]) -> list[tuple[str, list[list[str]]]]:
    """For each operator and run: candidates, valid, new, better than the parent, than all before, best objective."""
    names = list(dict.fromkeys(str(line.get("operator")) for run in runs for line in run.samples))
    counted = [_successes(run) for run in runs]
    rows = []
    for name in names:
        cells = []
        for run, (parents, records) in zip(runs, counted, strict=True):
            lines = [line for line in run.samples if str(line.get("operator")) == name]
            valid = [line["objective"] for line in lines if line["objective"] is not None]
            with_parent = any(all_numbers(line.get("parent_objectives")) for line in lines)
            cells.append(
                [
                    str(len(lines)), str(len(valid)), str(sum(is_new(line) for line in lines)),
                    str(parents[name]) if with_parent else "–", str(records[name]),
                    show_objective(min(valid, default=None)),
                ]
            )  # fmt: skip
        rows.append((name, cells))
    return rows


def _successes(run: RunData) -> tuple[Counter[str], Counter[str]]:
    """Operator -> candidates better than their best parent; -> candidates better than all before them."""
    parents: Counter[str] = Counter()
    records: Counter[str] = Counter()
    best: float | None = None
    for line in run.samples:
        objective, name = line["objective"], str(line.get("operator"))
        if objective is None:
            continue
        known = all_numbers(line.get("parent_objectives"))
        parents[name] += bool(known) and key(objective) < key(min(known))
        if best is None or key(objective) < key(best):
            records[name] += best is not None
            best = objective
    return parents, records


def failures(runs: Sequence[RunData]) -> list[tuple[str, list[list[str]]]]:
    """For each kind and run: candidates in the first, second and last third of the replies, and in all."""
    counts = []
    for run in runs:
        third, end = len(run.written) // 3, len(run.written)
        parts = run.written[:third], run.written[third : end - third], run.written[end - third :]
        counts.append([_kinds(part) for part in (*parts, run.samples)])
    totals = sum((count[-1] for count in counts), Counter())
    return [(kind, [[str(part[kind]) for part in count] for count in counts]) for kind, _ in totals.most_common()]


def _kinds(lines: Iterable[dict]) -> Counter[str]:
    return Counter(str(line["failure"]) for line in lines if line.get("failure"))


def update_rows(updates: Sequence[Update]) -> list[list[str]]:
    """One row per step, the first `MOST_STEPS`."""

    def number(value: float | None, digits: int = 3) -> str:
        return "–" if value is None else f"{value:.{digits}g}"

    return [
        [
            f"{one.t:g}", one.operator, number(one.sigma), number(one.alpha), number(one.spread), number(one.largest),
            number(one.effective), number(one.rms) if one.taken else "0", number(one.ratio, 2) if one.taken else "–",
            number(one.distance), _remark(one),
        ]
        for one in updates[:MOST_STEPS]
    ]  # fmt: skip


def _remark(one: Update) -> str:
    back = [] if one.back_to is None else [f"from the weights after step {one.back_to:g}"]
    return "; ".join(back + ([] if one.taken else [f"not taken: {one.skipped or 'no reason recorded'}"]))


MEASURED = ("Step", "RMS of update", "RMS distance", "cosine with the last", "below 1e-3", "sigma", "2e-3", "KL")


def measured_rows(run: RunData) -> list[list[str]]:
    """What was measured after steps (`--diagnostics`), under the heads `MEASURED`."""

    def number(value: object) -> str:
        found = as_number(value)
        return "–" if found is None else f"{found:.3g}"

    rows = []
    for line in run.diagnostics[:MOST_STEPS]:
        below = as_table(line.get("below"))
        shares = [show_share(as_number(below.get(word))) for word in ("0.001", "sigma", "0.002")]
        names = ("update_rms", "distance_rms", "cosine")
        first = [number(line.get(name)) for name in ("t", *names)]
        rows.append([*first, *shares, number(line.get("kl"))])
    return rows


def update_summary(updates: Sequence[Update]) -> str:
    """One sentence on steps taken and skipped, and how far they are expected to have led."""
    if not updates:
        return "The history holds no step."
    taken = [one for one in updates if one.taken]
    reasons = Counter(one.skipped or "no reason recorded" for one in updates if not one.taken)
    text = f"{len(taken)} of {len(updates)} steps were taken"
    if reasons:
        text += f"; not taken: {', '.join(f'{count} ({reason})' for reason, count in reasons.most_common())}"
    if taken:
        mean = sum(one.rms for one in taken) / len(taken)
        text += f". A taken step is expected to move a weight by {mean:.3g} (root mean square)"
        text += f", all of them together by {updates[-1].distance:.3g}"
        first = next((one.sigma for one in updates if one.sigma), None)
        if first:
            text += f", which is {updates[-1].distance / first:.2g} times the first sigma"
    return text + "."


def cost_rows(run: RunData) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Rows by operator, and facts about the whole run."""
    book = ledger(run)
    rows = [
        [
            name, f"{one.candidates:,}", f"{one.evaluations:,}", f"{one.read:,}", f"{one.written:,}",
            _seconds(one.seconds["generate"]), _seconds(one.seconds["evaluate"]),
            f"{one.speed:.0f}" if one.speed else "–", _flops(book, one),
        ]
        for name, one in book.rows
    ]  # fmt: skip
    total = book.total
    facts = [(f"Seconds to {phase}", _seconds(total.seconds[phase])) for phase in PHASES]
    if total.elapsed:
        facts.append(("Share of the step", f"{100 * total.seconds['step'] / total.elapsed:.2g} %"))
    for name, count in (("valid", total.valid), ("new valid", total.new)):
        each = total.per(count)
        facts.append((f"Seconds per {name} candidate", "–" if each is None else f"{each:.3g}"))
    facts.append(("Tokens per second of generating", f"{total.speed:.1f}" if total.speed else "–"))
    for name, peak in (("Peak memory of the process, MiB", book.peak_mb), ("of the GPU", book.gpu_peak_mb)):
        if peak is not None:
            facts.append((name, f"{peak:,.0f}"))
    for method in ("GRPO", "PPO"):
        value = book.flops(total, method)
        facts.append((f"FLOPs of {method} on as many tokens", "–" if value is None else f"{value:.2e}"))
    return rows, facts


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value else "–"


def _flops(book: Ledger, cost: Any) -> str:
    value = book.flops(cost)
    return "–" if value is None else f"{value:.2e}"


def settings_tables(runs: Sequence[RunData]) -> list[dict[str, Any]]:
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
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{table}.{name}" if table else str(name))
        else:
            yield (table or "run.toml", str(name)), item


def recorded_command(run: RunData) -> str | None:
    """The command as it was given."""
    command = as_table(run.document.get("run")).get("command")
    return plain(command) if command else None


def repeating_command(run: RunData) -> str | None:
    """A command that repeats the run from its own settings; None where another framework drove it."""
    if as_table(run.document.get("run")).get("host") or not run.settings:
        return None
    return f"ttc-esopt run --config {shlex.quote(str(run.path / 'run.toml'))} --out NEW"


def scores(run: RunData) -> list[list[str]]:
    """Rows (name, train, val, test) of best.json."""
    rows = run.best.get("rows")
    return [
        [str(row.get("name")), *(show_objective(as_number(row.get(split))) for split in ("train", "val", "test"))]
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]
