"""Where the best heuristic came from: its ancestors, and what each changed in the code of its parents."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc_esopt.rundata import RunData, best_line

MOST_ANCESTORS = 60
MOST_LINES = 400  # of a program that is compared, and of a difference that is shown
WIDEST = 300  # characters of a line that are shown
MOST_TEXT = 400_000  # characters of all differences of a run together

Row = tuple[str, str]  # kind (add, del, at, same), text


@dataclass
class Difference:
    """A child against one of its parents.

    Attributes
    ----------
    parent : int
        Order of the parent.
    added, removed : int
        Lines.
    rows : list of (kind, text)
        Unified difference; kinds are add, del, at and same. Empty where the code is the same, or where `cut`.
    cut : bool
        Some of it is left out for its length.
    """

    parent: int
    added: int = 0
    removed: int = 0
    rows: list[Row] = field(default_factory=list)
    cut: bool = False


@dataclass
class Ancestor:
    """The best heuristic or one of its ancestors.

    Attributes
    ----------
    line : dict
        Of samples.jsonl.
    parents : list of int
        As recorded.
    seed : bool
        The problem's own heuristic, which the model did not write.
    differences : list of Difference
        One for each parent that is in the file.
    code : str
        Where there is no parent to compare with.
    """

    line: dict
    parents: list[int]
    seed: bool
    differences: list[Difference]
    code: str


def lineage(run: RunData) -> list[Ancestor]:
    """The best heuristic and its ancestors, latest first; empty where nothing is valid."""
    by_order = {line["order"]: line for line in run.samples}
    start = best_line(run)
    if start is None:
        return []
    seen, queue = {start["order"]}, [start["order"]]
    while queue and len(seen) < MOST_ANCESTORS:
        for parent in parents_of(by_order[queue.pop(0)]):
            if parent in by_order and parent not in seen:
                seen.add(parent)
                queue.append(parent)
    found, room = [], MOST_TEXT
    for order in sorted(seen, reverse=True):
        line = by_order[order]
        parents = parents_of(line)
        code = _code(line)
        differences = []
        for parent in dict.fromkeys(parents):
            if parent in by_order and parent != order:
                one = difference(parent, _code(by_order[parent]), code)
                room -= sum(len(text) for _, text in one.rows)
                if room < 0:
                    one.rows, one.cut = [], True
                differences.append(one)
        seed = line.get("reply") is None
        found.append(Ancestor(line, parents, seed, differences, "" if differences else _short(code)))
    return found


def difference(parent: int, before: str, after: str) -> Difference:
    """Unified difference of two programs, without file names."""
    old, new = before.splitlines(), after.splitlines()
    cut = max(len(old), len(new)) > MOST_LINES
    found = Difference(parent, cut=cut)
    for text in list(difflib.unified_diff(old[:MOST_LINES], new[:MOST_LINES], lineterm="", n=2))[2:]:
        kind = {"+": "add", "-": "del", "@": "at"}.get(text[:1], "same")
        found.added += kind == "add"
        found.removed += kind == "del"
        found.rows.append((kind, _narrow(text)))
    if len(found.rows) > MOST_LINES:
        found.rows, found.cut = found.rows[:MOST_LINES], True
    return found


def parents_of(line: dict) -> list[int]:
    """Orders of the parents that a line names."""
    parents = line.get("parents")
    return [one for one in (parents if isinstance(parents, list) else []) if type(one) is int]


def _code(line: dict) -> str:
    return line["code"] if isinstance(line.get("code"), str) else ""


def _short(code: str) -> str:
    rows: Sequence[str] = code.splitlines()
    text = "\n".join(_narrow(row) for row in rows[:MOST_LINES])
    return text + "\n…" if len(rows) > MOST_LINES else text


def _narrow(text: str) -> str:
    return text if len(text) <= WIDEST else text[:WIDEST] + "…"
