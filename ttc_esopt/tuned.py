"""Weights that a run begins with or goes back to: those of another run (`--init-from`), or its own best (`--rollback`).

A run that starts from another keeps that run's steps in `start.jsonl`, so that its folder and the public model rebuild
its weights when the other folder is gone. Runs may start from runs that started from others: chapters of steps, each
with its own noise, are taken one after the other, and what a chapter ends with is the base of the next.

The best batch is the one with the largest share of valid replies, then of new ones, then the latest. A batch measures
the weights before its step. Of many batches of chance the best looks good by chance: this is no test of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.es.history import path
from ttc_esopt.es.noise import VERSION, NoiseKind
from ttc_esopt.es.optimizer import coefficients

if TYPE_CHECKING:
    from ttc_esopt.engines.base import Engine
    from ttc_esopt.runfolder import RunFolder
    from ttc_esopt.scaffolds.base import Call


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


def note_rollback(folder: RunFolder, plan: Sequence[Call]) -> BestBatch:
    """Note in run.toml that the run goes back before its next call; where to.

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
    folder.note_rollback({"order": order, "after": best.after})
    return best


def steps_along(records: Sequence[dict], last: int) -> list[tuple[list[int], tuple[float, ...]]]:
    """(directions, coefficients) of the steps that were taken on the way to the weights after step `last`."""
    taken = [records[t] for t in path(records, last) if records[t]["taken"]]
    for record in taken:
        if record["noise_version"] != VERSION:
            raise DataError(
                f"The history has noise version {record['noise_version']}, this release makes version {VERSION}."
            )
    return [(record["seeds"], coefficients(record["alpha"], record["weights"])) for record in taken]


# starting from another run


def settled(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with `init_from` made absolute and the model of that run where none is given.

    Raises
    ------
    ConfigurationError
        The folder holds no run with ES steps, or its model or dtype is not the one asked for.
    """
    if not given.get("init_from"):
        return given
    from ttc_esopt.runfolder import RunFolder

    folder = RunFolder.open(Path(given["init_from"]))
    steps_of(folder, given.get("rollback", False))
    given = {**given, "init_from": str(folder.path.resolve())}
    for name, has in (("model", folder.settings.model), ("dtype", folder.document["model"].get("dtype"))):
        asked = given.get(name, has if name == "model" else "auto")
        if name == "model" and asked != has and Path(asked).is_dir():
            asked = str(Path(asked).resolve())
        if has is not None and asked not in (has, "auto"):
            raise ConfigurationError(f"{folder.path} was made with {name} {has}, got {asked} (--{name}, --init-from).")
    return {**given, "model": given.get("model", folder.settings.model)}


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
    lines = [
        {
            "chapter": chapter, "noise": records[t]["noise"], "noise_version": records[t]["noise_version"],
            "scope": model["scope"], "dtype": model["dtype"], "began": model["fingerprint"],
            "seeds": records[t]["seeds"], "weights": records[t]["weights"], "alpha": records[t]["alpha"],
            "fingerprint": records[t]["fingerprint"], "taken": True,
        }
        for t in path(records, last)
        if records[t]["taken"]
    ]  # fmt: skip
    if not earlier and not lines:
        raise ConfigurationError(f"{folder.path} has moved no weights: there is no tuned model in it (--init-from).")
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
        engine.adopt(NoiseKind.parse(part[0]["noise"]), part[0]["scope"], steps_along(part, len(part) - 1))
        if engine.fingerprint() != part[-1]["fingerprint"]:
            raise DataError(
                f"The steps to start from lead to fingerprint {engine.fingerprint()}, that run had "
                f"{part[-1]['fingerprint']}."
            )
