"""Run folders as a report sees them: tolerant reading, and the few quantities that several parts of the page share.

Unlike `resume`, which must refuse a damaged folder, a report shows what there is: torn lines are counted and left out,
missing files are noted, and values of an unexpected kind count as absent.
"""

from __future__ import annotations

import json
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import parsed

LARGEST = 1e150  # of numbers that count: squares and sums of larger ones are no floats


@dataclass
class RunData:
    """What could be read of one run folder; objectives that are no numbers of reasonable size count as absent."""

    path: Path
    label: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    best_code: str = ""
    samples: list[dict] = field(default_factory=list)
    steps: list[dict] = field(default_factory=list)
    timings: list[dict] = field(default_factory=list)
    diagnostics: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return as_table(self.document.get("settings"))

    @property
    def written(self) -> list[dict]:
        """Candidates that the model wrote; the problem's seed heuristics have no reply."""
        return [line for line in self.samples if line.get("reply") is not None]


def read_run(path: Path) -> RunData:
    names = ("run.toml", "samples.jsonl", "history.jsonl", "best.json")
    if not any((path / name).is_file() for name in names):
        raise ConfigurationError(f"{path} holds no run: none of {', '.join(names)} is in it.")
    run = RunData(path)
    for name, into, parse in (("run.toml", "document", tomllib.loads), ("best.json", "best", json.loads)):
        try:
            setattr(run, into, as_table(parse(_text(path / name))))
        except (ValueError, RecursionError):
            run.notes.append(f"{name} is damaged and was left out.")
        except OSError:
            run.notes.append(f"{name} is missing.")
    for name, into in (
        ("samples.jsonl", "samples"), ("history.jsonl", "steps"), ("timings.jsonl", "timings"),
        ("diagnostics.jsonl", "diagnostics"),
    ):  # fmt: skip
        lines, damaged = _json_lines(path / name)
        setattr(run, into, lines)
        if damaged:
            run.notes.append(f"{name}: {damaged} line{'s' * (damaged > 1)} could not be read (torn or damaged).")
    for line in run.samples:
        line["objective"] = as_number(line.get("objective"))
    run.samples = [line for line in run.samples if isinstance(line.get("order"), int)]
    if (path / "best.py").is_file():
        run.best_code = _text(path / "best.py")
    return run


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _json_lines(path: Path) -> tuple[list[dict], int]:
    """Objects of the lines that can be read, and the number of those that cannot."""
    try:
        rows = [row for row in _text(path).split("\n") if row.strip()]
    except OSError:
        return [], 0
    found = [value for row in rows if (value := parsed(row)) is not None]
    return found, len(rows) - len(found)


def as_table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST else None
    except OverflowError:  # an integer beyond the floats
        return None


def all_numbers(value: object) -> list[float]:
    """All finite numbers of a (nested) list."""
    if isinstance(value, list):
        return [number for item in value for number in all_numbers(item)]
    number = as_number(value)
    return [] if number is None else [number]


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Folder names; with as many parents as it takes to tell the runs apart."""
    resolved = [path.resolve() for path in paths]
    for depth in range(1, max(len(path.parts) for path in resolved) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(labels)) == len(set(resolved)):
            return labels
    return [str(path) for path in resolved]


def best_line(run: RunData) -> dict | None:
    """The line of the best heuristic: the one that best.json names, else the lowest objective."""
    order = run.best.get("order")
    named = next((line for line in run.samples if line["order"] == order), None)
    valid = [line for line in run.samples if line["objective"] is not None]
    return named or min(valid, key=lambda line: line["objective"], default=None)


def is_new(line: dict) -> bool:
    """A valid candidate whose objective no earlier candidate had."""
    return line["objective"] is not None and line.get("copy_of") is None


def thirds(written: Sequence[dict]) -> tuple[float | None, float | None]:
    """Share of valid replies in the first and the last third of the replies; None below three replies."""
    flags = [line["objective"] is not None for line in written]
    third = len(flags) // 3
    return (sum(flags[:third]) / third, sum(flags[-third:]) / third) if third else (None, None)


def ended_at_limit(limit: float, tokens: float, valid: bool, best: dict) -> bool:
    """Whether a run without a result has ended at its limit of tokens: it has concluded, or had nothing to conclude."""
    return 0 < limit <= tokens and (not valid or "rows" in best)


def references(run: RunData) -> dict[str, float]:
    found = {str(name): as_number(value) for name, value in as_table(run.best.get("reference")).items()}
    return {name: value for name, value in found.items() if value is not None and name != "best seed heuristic"}


def visible(text: str) -> str:
    """Characters that steer a terminal or the direction of a text, and lone surrogates, shown as U+FFFD."""
    return "".join(
        "\ufffd" if letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter
        for letter in text
    )


def plain(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    return str(value)


def show_objective(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if 1e-2 <= abs(value) < 1e5 or value == 0 else f"{value:.5g}"


def show_share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
