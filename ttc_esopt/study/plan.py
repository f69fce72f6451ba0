"""The runs of a study before they start: settings that are checked, what will be spent, and how far each run is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc_esopt import scaffolds
from ttc_esopt.comparable import Run, open_run
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.instances import problem_of
from ttc_esopt.rundata import plain
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import settings_of
from ttc_esopt.settings import Settings
from ttc_esopt.study.machine import Machine
from ttc_esopt.study.recipe import LOCK, Cell, Recipe

MISSING, BEGUN, STARTED, FINISHED = "not started", "begun", "to go on with", "finished"
# may be other values when a study goes on: they change no result, or the study sets them itself
_FREE = ("workers", "max_minutes")
# where absolute, told apart by their last part: a study may have moved
_PATHS = ("problem", "model", "instances", "data")


@dataclass(frozen=True)
class Planned:
    """A run of the grid with its settings.

    Attributes
    ----------
    cell : Cell
    settings : Settings
    candidates, written, steps : int
        Of the plan: all candidates, those that the model writes, batches of directions.
    tokens_of : Cell or None
        The run that must have ended before this one starts: it writes as many tokens.
    """

    cell: Cell
    settings: Settings
    candidates: int
    written: int
    steps: int
    tokens_of: Cell | None = None

    @property
    def tokens(self) -> int:
        """Tokens at most, if no other run says how many."""
        return self.written * self.settings.max_tokens


def planned(recipe: Recipe, out: Path) -> list[Planned]:
    """Every run of a recipe, checked.

    Raises
    ------
    ConfigurationError, DataError
        A run cannot work as the recipe says; the message names problem and arm.
    """
    cells = recipe.cells(out)
    at = {(cell.problem, cell.arm, cell.seed): cell for cell in cells}
    checked: dict[tuple[str, str], Planned] = {}
    found = []
    for cell in cells:
        first = checked.get((cell.problem, cell.arm))
        try:
            if first is None:
                first = checked[cell.problem, cell.arm] = _counted(cell, settings_of(cell.given))
            settings = dataclasses.replace(first.settings, seed=cell.seed)
        except (ConfigurationError, DataError) as error:
            raise type(error)(f"{recipe.path}, {cell.title}: {error}") from None
        equal = recipe.arms[cell.arm].equal_tokens_to
        tokens_of = at[cell.problem, equal, cell.seed] if equal else None
        found.append(dataclasses.replace(first, cell=cell, settings=settings, tokens_of=tokens_of))
    return found


def _counted(cell: Cell, settings: Settings) -> Planned:
    plan = scaffolds.build(problem_of(settings), settings).plan()
    written = sum(call.count for call in plan if call.operator != "seed")
    steps = sum(call.es for call in plan) if settings.arm != "frozen" else 0
    return Planned(cell, settings, sum(call.count for call in plan), written, steps)


@dataclass(frozen=True)
class State:
    """How far a run is.

    Attributes
    ----------
    word : str
        One of the four above.
    trouble : str or None
        What keeps it from going on.
    run : Run or None
        As a comparison sees it; None if its files are not whole.
    at_limit : bool
        It ended at its limit of tokens.
    """

    word: str
    trouble: str | None = None
    run: Run | None = None
    at_limit: bool = False


def state_of(folder: Path) -> State:
    """The state of a run folder, read from its files alone."""
    if not (folder / "run.toml").exists():
        return State(MISSING)
    try:
        opened = RunFolder.open(folder)
    except (ConfigurationError, DataError) as error:
        return State(STARTED, trouble=str(error))
    if not opened.document["model"]:
        return State(BEGUN)
    try:
        run = open_run(folder, budget_in="tokens")  # a run that ended at its limit of tokens has ended
    except ConfigurationError:  # a torn line: it was killed while it wrote
        return State(STARTED)
    if run.unfinished:
        return State(STARTED, run=run)
    return State(FINISHED, run=run, at_limit=not opened.document["result"])


def check_unchanged(plans: Sequence[Planned], out: Path, recipe: Recipe) -> None:
    """Raise ConfigurationError if a run that exists was made with other settings than the recipe now says."""
    for one in plans:
        folder = one.cell.folder
        if state_of(folder).word in (MISSING, BEGUN):
            continue
        try:
            stored = RunFolder.open(folder).settings
        except (ConfigurationError, DataError):
            continue  # told when its turn comes
        for name in Settings.__dataclass_fields__:
            if name in _FREE or (name == "max_tokens_total" and one.tokens_of):
                continue
            was, now = getattr(stored, name), getattr(one.settings, name)
            if (_last(was) if name in _PATHS else was) != (_last(now) if name in _PATHS else now):
                raise ConfigurationError(
                    f"{folder} was made with {name} {plain(was) or 'none'}, {recipe.path} now says "
                    f"{plain(now) or 'none'}: take the change back, remove that folder, or give another --out."
                )
    _same_study(out, recipe)


def _same_study(out: Path, recipe: Recipe) -> None:
    if (out / "run.toml").exists():
        raise ConfigurationError(f"{out} is the folder of a run, expected one for a study (--out).")
    name = _stored_name(out)
    if name and name != recipe.name:
        raise ConfigurationError(f"{out} holds the study {name}, the recipe is {recipe.name}: give another --out.")


def _stored_name(out: Path) -> str | None:
    """Of the study in a folder: the lock file holds it, or the comparison of a study that was copied here."""
    with contextlib.suppress(OSError, ValueError):
        if name := (out / LOCK).read_text().strip():
            return name
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((out / "comparison.json").read_text()).get("study")
    return None


def _last(text: str) -> list[str]:
    return [Path(part).name if Path(part).is_absolute() else part for part in text.split(":")]


def announcement(
    recipe: Recipe, plans: Sequence[Planned], states: Sequence[State], of: Machine, out: Path
) -> list[str]:  # fmt: skip
    """What is about to be spent, as lines."""
    free = [one for one in plans if one.tokens_of is None]
    equal = {one.cell.arm: one.tokens_of.arm for one in plans if one.tokens_of}
    candidates = sum(one.candidates for one in free)
    counts = [f"{_many(len(recipe.problems), 'problem')}, {_many(len(recipe.arms), 'arm')}"]
    counts.append(f"{_many(len(recipe.seeds), 'seed')}: {_many(len(plans), 'run')}")
    tokens = sum(one.tokens for one in free)
    lines = [f"study {recipe.name}: {', '.join(counts)}"]
    if recipe.hardware:
        lines.append(f"needs: {' '.join(recipe.hardware.split())}")
    lines.append(
        f"candidates: {candidates:,} in all; at most {tokens:,} tokens; {candidates:,} evaluations on the search sets, "
        "then the last population of each run on val and its best on test"
    )
    for arm, other in equal.items():
        lines.append(f"on top: the runs of {arm} write as many tokens as those of {other}, and start when they end")
    lines.append(of.text(max(one.settings.threads for one in plans) or of.cores))
    words = [state.word for state in states]
    there = {word: words.count(word) for word in (FINISHED, STARTED) if word in words}
    if there:
        todo = words.count(MISSING) + words.count(BEGUN)
        lines.append(", ".join(f"{count} {word}" for word, count in there.items()) + f", {todo} to start")
    return [*lines, f"results go to {out}"]


def grid(recipe: Recipe, plans: Sequence[Planned], states: Sequence[State]) -> list[tuple[str, ...]]:
    """Rows of a table: each problem and arm, with a heading."""
    rows = [("problem", "arm", "against", "seeds", "candidates", "tokens at most", "batches", "finished")]
    for label in recipe.problems:
        for arm in recipe.arms.values():
            mine = [i for i, one in enumerate(plans) if (one.cell.problem, one.cell.arm) == (label, arm.name)]
            one, done = plans[mine[0]], sum(states[i].word == FINISHED for i in mine)
            spent = (str(one.candidates), f"{one.tokens:,}")
            if one.tokens_of:
                spent = (f"up to {one.candidates}", f"those of {one.tokens_of.arm}")
            rows.append(
                (label, arm.name, ", ".join(arm.against) or "–", _seeds(recipe.seeds), *spent, str(one.steps),
                 f"{done} of {len(mine)}")
            )  # fmt: skip
    return rows


def _seeds(seeds: Sequence[int]) -> str:
    text = " ".join(map(str, seeds))
    return text if len(text) <= 24 else f"{seeds[0]} ... {seeds[-1]} ({len(seeds)})"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def settings_file(cell: Cell, given: dict[str, Any]) -> str:
    """The content of the file that a run of the study is started with."""
    import tomli_w

    return f"# {cell.title}: one run of a study; made by `ttc-esopt study`\n{tomli_w.dumps(given)}"
