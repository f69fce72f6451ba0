"""Weights that a run begins with or goes back to: those of another run (`--init-from`), or its own best (`--rollback`).

A run that starts from another keeps that run's steps in `start.jsonl`, so that its folder and the public model rebuild
its weights when the other folder is gone. Runs may start from runs that started from others: chapters of steps, each
with its own noise, are taken one after the other, and what a chapter ends with is the base of the next. A patch is
the same in a file of its own: some kilobytes that rebuild a tuned model from the public one (`export --patch`).

The best batch is the one with the largest share of valid replies, then of new ones, then the latest. A batch measures
the weights before its step. Of many batches of chance the best looks good by chance: this is no test of anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.es.history import path
from ttc_esopt.es.noise import ROUNDINGS, VERSION, NoiseKind
from ttc_esopt.es.optimizer import coefficients
from ttc_esopt.jsonlines import lines_of, write_atomically

if TYPE_CHECKING:
    from ttc_esopt.engines.base import Engine
    from ttc_esopt.runfolder import RunFolder
    from ttc_esopt.scaffolds.base import Call
    from ttc_esopt.settings import Settings

PATCH = 1  # version of the format
_NEEDED = {"chapter", "noise", "noise_version", "scope", "dtype", "began", "seeds", "weights", "alpha", "fingerprint"}


@dataclass(frozen=True)
class BestBatch:
    """The best batch so far.

    Attributes
    ----------
    step : int
        Its number.
    after : int
        Its weights are those after this step, -1 those of the beginning; of the last batch, the weights that its own
        step led to, which no batch has measured yet.
    valid, new : float
        Shares of its replies.
    last : float
        Share of valid replies in the last batch.
    """

    step: int
    after: int
    valid: float
    new: float
    last: float

    def text(self) -> str:
        """For people."""
        where = "those that the run began with" if self.after < 0 else f"those after step {self.after}"
        shares = f"{self.valid:.0%} valid, {self.new:.0%} new; last batch {self.last:.0%} valid"
        return f"{where} (batch {self.step}: {shares})"


def best_batch(records: Sequence[dict], samples: Sequence[dict]) -> BestBatch:
    """The best of the batches in `records` (at least one), by the lines of samples.jsonl."""
    batches: dict[int, list[dict]] = {}
    for line in samples:
        if line["direction"] is not None:
            batches.setdefault(line["direction"], []).append(line)
    shares = []
    for record in records:
        lines = [line for seed in record["seeds"] for line in batches.get(seed, [])]
        valid = [line for line in lines if line["objective"] is not None]
        new = sum(line["copy_of"] is None for line in valid)
        count = max(1, len(lines))
        shares.append((len(valid) / count, new / count))
    step = max(range(len(records)), key=lambda t: (shares[t], t))
    last = len(records) - 1
    after = last if step == last else records[step].get("from", step - 1)
    return BestBatch(step, after, *shares[step], shares[last][0])


# going back within a run


def rollback_of(folder: RunFolder, plan: Sequence[Call]) -> tuple[BestBatch, int]:
    """Where a run would go back to, and before which candidate.

    Raises
    ------
    ConfigurationError
        There is nothing to go back to, or no batch is left that could begin there.
    """
    records, samples = folder.history.read(), folder.samples.read()
    if not any(record["taken"] for record in records):
        raise ConfigurationError(f"{folder.path} has taken no ES step: there is nothing to go back to (--rollback).")
    order = 0
    left = list(plan)
    while left and order < len(samples):
        order += left.pop(0).count  # a call that was cut is finished with the weights that it began with
    if not any(call.es for call in left):
        raise ConfigurationError(
            f"{folder.path} has no batch left that could begin anew (--rollback); a new run can: "
            f"`ttc-esopt run --init-from {folder.path} --rollback --out DIR`."
        )
    best = best_batch(records, samples)
    if best.step == len(records) - 1:
        raise ConfigurationError(f"The last batch of {folder.path} is its best: leave --rollback away.")
    return best, order


def steps_along(records: Sequence[dict], last: int) -> list[tuple[list[int], tuple[float, ...]]]:
    """(directions, coefficients) of the steps that were taken on the way to the weights after step `last`."""
    return as_steps([records[t] for t in path(records, last) if records[t]["taken"]])


def as_steps(taken: Sequence[dict]) -> list[tuple[list[int], tuple[float, ...]]]:
    """(directions, coefficients) of steps that were taken; raises DataError for noise of another version."""
    for record in taken:
        if record["noise_version"] != VERSION:
            raise DataError(
                f"The history has noise version {record['noise_version']}, this release makes version {VERSION}."
            )
    return [(record["seeds"], coefficients(record["alpha"], record["weights"])) for record in taken]


# starting from another run


@dataclass(frozen=True)
class Tuned:
    """A tuned model as its steps.

    Attributes
    ----------
    model : str
        The public model's name, or the folder that the run had it from.
    lines : list of dict
        Steps in order, as start.jsonl has them.
    """

    model: str
    lines: list[dict[str, Any]]

    @property
    def fingerprint(self) -> str:
        """Of the weights that the steps lead to."""
        return self.lines[-1]["fingerprint"]

    @property
    def rounding(self) -> str:
        """Of the weights after each step; one for all chapters."""
        return self.lines[0].get("rounding", "nearest")


def tuned(place: Path, rollback: bool = False) -> Tuned:
    """The model that a run ended with (or had at its best batch), or that a patch holds.

    Raises
    ------
    ConfigurationError
        There is no run or no tuned model in it.
    DataError
        The patch is damaged.
    """
    if not place.is_file():
        from ttc_esopt.runfolder import RunFolder

        folder = RunFolder.open(place)
        return Tuned(folder.settings.model, steps_of(folder, rollback))
    if rollback:
        raise ConfigurationError(f"Expected a run to go back in, {place} is a patch (--rollback).")
    try:
        document = json.loads(place.read_text())
        found = Tuned(str(document["model"]), [dict(line) for line in document["steps"]])
        complete = document["patch"] == PATCH and found.lines and all(map(_whole, found.lines))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        complete = False
    if not complete:
        raise DataError(f"{place} is no patch: expected the JSON of `ttc-esopt export --patch`, version {PATCH}.")
    return found


def _whole(line: dict[str, Any]) -> bool:
    """Whether a line of a patch has what a step needs."""
    if not line.keys() >= _NEEDED:
        return False
    seeds, numbers = line["seeds"], [*line["weights"], line["alpha"]]
    texts = (line[name] for name in ("noise", "scope", "dtype", "began", "fingerprint"))
    return (
        all(type(seed) is int and -(1 << 64) <= seed < 1 << 64 for seed in seeds)
        and all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and len(seeds) == len(line["weights"]) > 0
        and line.get("rounding", "nearest") in ROUNDINGS
    )


def write_patch(folder: RunFolder, out: Path) -> Tuned:
    """Write the steps that rebuild a run's tuned model from the public one.

    Raises
    ------
    ConfigurationError
        The run moved no weights.
    """
    model = folder.settings.model
    found = Tuned(Path(model).name if Path(model).is_absolute() else model, steps_of(folder, rollback=False))
    document = {"patch": PATCH, "model": found.model, "fingerprint": found.fingerprint, "steps": found.lines}
    write_atomically(out, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
    return found


def settled(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with `init_from` made absolute and the model of that run where none is given.

    Whether a model that is given is the right one, whatever its name, is told by its fingerprint (`begin`).

    Raises
    ------
    ConfigurationError
        There is no tuned model, or its dtype or rounding is not the one asked for.
    """
    if not given.get("init_from"):
        return given
    place = Path(given["init_from"])
    start = tuned(place, given.get("rollback", False))
    dtype, rounding = start.lines[0]["dtype"], start.rounding
    if given.get("dtype", "auto") not in (dtype, "auto"):
        raise ConfigurationError(f"{place} was made with dtype {dtype}, got {given['dtype']} (--dtype, --init-from).")
    if given.get("rounding", rounding) != rounding:
        raise ConfigurationError(
            f"{place} was made with rounding {rounding}, got {given['rounding']} (--rounding, --init-from)."
        )
    made = {"init_from": str(place.resolve()), "model": given.get("model", start.model), "rounding": rounding}
    return {**given, **made}


def start_of(settings: Settings) -> list[dict[str, Any]]:
    """The steps that a run with these settings starts from; raises as `tuned`."""
    return tuned(Path(settings.init_from), settings.rollback).lines if settings.init_from else []


def write_start(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write start.jsonl into a new folder, or take away that of one that never got as far as its model.

    Raises DataError if it cannot be written.
    """
    try:
        (path / "start.jsonl").unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"Cannot write to {path}: {error.strerror}.") from None
    if lines:
        write_atomically(path / "start.jsonl", "".join(f"{line}\n" for line in lines_of(lines)))


def steps_of(folder: RunFolder, rollback: bool) -> list[dict[str, Any]]:
    """The lines of start.jsonl for a run that starts from the weights of `folder`.

    Raises
    ------
    ConfigurationError
        No step was taken there.
    """
    records, earlier = folder.history.read(), folder.start.read()
    last = len(records) - 1
    if rollback and records:
        last = best_batch(records, folder.samples.read()).after
    model = folder.document["model"]
    chapter = earlier[-1]["chapter"] + 1 if earlier else 0
    rounding = folder.settings.rounding
    rounded = {} if rounding == "nearest" else {"rounding": rounding}
    lines = [
        {
            "chapter": chapter, "noise": records[t]["noise"], "noise_version": records[t]["noise_version"],
            "scope": model["scope"], "dtype": model["dtype"], "began": model["fingerprint"],
            "seeds": records[t]["seeds"], "weights": records[t]["weights"], "alpha": records[t]["alpha"],
            "fingerprint": records[t]["fingerprint"], **rounded,
        }
        for t in path(records, last)
        if records[t]["taken"]
    ]  # fmt: skip
    if not earlier and not lines:
        raise ConfigurationError(
            f"{folder.path} has moved no weights: there is no tuned model in it (--init-from, --patch)."
        )
    return earlier + lines


def begin(engine: Engine, lines: Sequence[dict[str, Any]]) -> None:
    """Take the steps of start.jsonl.

    Raises
    ------
    DataError
        The model is not the one that the other run began with, or the weights come out otherwise than there.
    """
    for chapter in dict.fromkeys(line["chapter"] for line in lines):
        part = [line for line in lines if line["chapter"] == chapter]
        if engine.fingerprint() != part[0]["began"]:
            raise DataError(
                f"The model has fingerprint {engine.fingerprint()}, the run to start from began with "
                f"{part[0]['began']} (--model, --init-from)."
            )
        engine.adopt(NoiseKind.parse(part[0]["noise"]), part[0]["scope"], as_steps(part))
        if engine.fingerprint() != part[-1]["fingerprint"]:
            raise DataError(
                f"The steps to start from lead to fingerprint {engine.fingerprint()}, that run had "
                f"{part[-1]['fingerprint']}."
            )
