"""Directions for candidates of a run that somebody else drives: batches, their rewards, and the step that follows.

One batch is open at a time, since its directions are those of the optimizer's current step. Its rewards follow from
the lines of samples.jsonl alone: a candidate counts as known if the first one with its objective is none of the batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.candidates import batch_rewards, key
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.history import record_of
from ttc_esopt.es.optimizer import ESOptimizer, Step
from ttc_esopt.settings import Settings


@dataclass
class Ticket:
    """A candidate that was asked for.

    Attributes
    ----------
    id : what the host calls it
    line : what will be written of it in samples.jsonl
    batch, slot : whose direction it has, and which; None: of the unperturbed model
    calls : replies that were asked for
    told : what the host said of it, None as long as it said nothing
    parents : as the host gave them
    seconds : that its replies took
    """

    id: int
    line: dict[str, Any]
    batch: Batch | None = None
    slot: int = 0
    calls: int = 0
    told: tuple | None = None
    parents: Sequence[dict] = ()
    seconds: float = 0.0


@dataclass
class Batch:
    """Candidates that are scored together.

    Attributes
    ----------
    seeds : the directions; empty where the arm perturbs nothing
    size : candidates, directions times replies
    worst : worst objective of the host's population before it, if the host said it
    streamed : directions are dealt one by one, to whoever asks
    """

    number: int
    generation: int
    operator: str
    directions: int
    replies: int
    seeds: tuple[int, ...]
    sigma: float | None
    worst: float | None
    streamed: bool
    opened: float = field(default_factory=time.monotonic)
    tickets: list[Ticket] = field(default_factory=list)
    open: bool = True

    @property
    def size(self) -> int:
        return self.directions * self.replies

    @property
    def full(self) -> bool:
        """Whether every direction has been dealt."""
        return len(self.tickets) == self.size

    @property
    def complete(self) -> bool:
        """Whether every candidate has its score."""
        return self.open and self.full and all(ticket.told is not None for ticket in self.tickets)

    def deal(self, ticket: Ticket) -> None:
        """Give a candidate the next direction."""
        ticket.batch, ticket.slot = self, len(self.tickets) // self.replies
        ticket.line["reply_index"] = len(self.tickets) % self.replies
        if self.seeds:
            ticket.line |= {"direction": self.seeds[ticket.slot], "sigma": self.sigma}
        self.tickets.append(ticket)


class Batches:
    """Opens batches and closes them.

    Parameters
    ----------
    settings : of the run
    steps : T of the whole run
    records : steps that were taken already
    """

    def __init__(self, settings: Settings, steps: int, records: Sequence[dict]) -> None:
        self._settings = settings
        self._es = None
        if settings.arm != "frozen":
            self._es = ESOptimizer(settings.es_params(max(steps, len(records), 1)), t=len(records))
        self.current: Batch | None = None

    @property
    def t(self) -> int:
        """Steps that were told."""
        return self._es.t if self._es else 0

    @property
    def sigma(self) -> float:
        """Radius of the current step."""
        return self._es.sigma if self._es else 0.0

    def open(
        self, number: int, n: int, generation: int, operator: str, worst: float | None, streamed: bool
    ) -> Batch | None:  # fmt: skip
        """A new batch of n directions, the one before it being closed; None if there are none to be had.

        Raises
        ------
        ConfigurationError
            More directions than the settings allow.
        """
        if n < 2 or (self._es is not None and self._es.done):
            return None
        if n > self._settings.directions:
            raise ConfigurationError(f"Expected at most {self._settings.directions} directions, got {n}.")
        self.current = Batch(
            number, generation, operator, n, self._settings.replies_per_direction,
            self._es.ask(n) if self._es else (), self._es.sigma if self._es else None, worst, streamed,
        )  # fmt: skip
        return self.current

    def reward(self, batch: Batch) -> None:
        """Put rewards into the lines of the told candidates.

        Rewards that were told stay; what failed beside them gets less than any: the smallest minus their spread.
        """
        lines = [ticket.line for ticket in batch.tickets if ticket.told is not None]
        told = [line["reward"] for line in lines if line["reward"] is not None]
        if told:
            floor = min(told) - (statistics.pstdev(told) or 1.0)
            for line in lines:
                line["reward"] = floor if line["reward"] is None else line["reward"]
            return
        orders = {line["order"] for line in lines}
        copies = [line for line in lines if line["copy_of"] is not None and line["copy_of"] not in orders]
        known = {key(line["objective"]) for line in copies}
        worst = batch.worst
        if worst is None:  # of hosts that do not say it, the worst parent's
            worst = max((value for line in lines for value in line["parent_objectives"]), default=None)
        given = batch_rewards(self._settings.reward, lines, known, worst)
        for line, reward in zip(lines, given, strict=True):
            line["reward"] = reward

    def close(self, batch: Batch) -> tuple[Step, dict[str, Any]] | None:
        """The step that the scores of a batch lead to, and its record without the fingerprint.

        None if the arm takes none, or if fewer than two directions have a score. Candidates without a score are left
        out, and belong to no batch from now on.
        """
        batch.open = False
        told = [ticket for ticket in batch.tickets if ticket.told is not None]
        for ticket in batch.tickets:
            if ticket.told is None:
                ticket.batch = None
        by_slot: dict[int, list[float]] = {}
        if self._es is not None and told:
            self.reward(batch)
            for ticket in told:
                by_slot.setdefault(ticket.slot, []).append(ticket.line["reward"])
        if len(by_slot) < 2:
            return None
        rewards: list = list(by_slot.values())
        if batch.replies == 1 or any(len(row) < batch.replies for row in rewards):
            rewards = [sum(row) / len(row) for row in rewards]
        step = self._es.tell([batch.seeds[slot] for slot in by_slot], rewards)
        orders = [ticket.line["order"] for ticket in told]
        record = record_of(
            step, generation=batch.generation, operator=batch.operator, noise=self._settings.noise,
            orders=(min(orders), max(orders)),
        )  # fmt: skip
        record |= {"candidates": orders, "worst": batch.worst, "discarded": batch.size - len(told)}
        return step, record
