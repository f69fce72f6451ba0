"""The books of a run that somebody else drives: candidates, batches of directions, their scores, and the steps.

The host decides when it asks for a reply and when a score is there; every candidate has a direction of its own (or
none), so that this may happen in any order and from several threads. A batch is closed, and the model moved, inside
the `tell` that brings its last score, or when it has waited too long: what has no score then is left out of the step.

Lines of samples.jsonl are written when their score is told, in that order, and never change; where a batch's scores
come in one `tell`, its rewards stand in the lines too. The rewards of every step are in history.jsonl, with the
candidates that they belong to.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ttc_esopt.attached.batches import Batch, Batches, Ticket
from ttc_esopt.attached.desk import Desk
from ttc_esopt.candidates import blank, key, mark_copy, stream
from ttc_esopt.engines.base import Engine, Request, Sampling
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.es.optimizer import Step
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.scaffolds.replies import parse_reply

Say = Callable[[str], None]
SETTLED = ("objective", "failure", "detail", "description", "code")  # what a host may say of a candidate


@dataclass(frozen=True)
class Reading:
    """How replies of a run are read: the name that a program must define, and what was started for the model.

    `function` None: replies are not programs of ours to read (the text itself is the candidate's code).
    """

    function: str | None = None
    kind: str = "function"
    prefill: str = ""


class Ledger:
    """Thread-safe; every method blocks until it is done.

    Parameters
    ----------
    folder : open and locked; lines that it holds already belong to the run
    desk : works the engine, whose weights are those after the steps in the folder's history
    steps : T of the whole run, the steps in the history included
    reading : how replies are read
    batch_timeout : seconds after which a batch of kind "stream" is closed with the scores that are there (0: never)
    first_id : ids of candidates begin here, or behind those of the folder's lines
    say : told lines for the user
    """

    def __init__(
        self,
        folder: RunFolder,
        desk: Desk,
        *,
        steps: int,
        reading: Reading = Reading(),  # noqa: B008  frozen
        batch_timeout: float = 0.0,
        first_id: int = 0,
        say: Say = print,
    ) -> None:
        self.folder, self.settings = folder, folder.settings
        self._desk, self._reading, self._say = desk, reading, say
        self._timeout = batch_timeout
        self._sampling = self.settings.sampling()
        self._lock = threading.RLock()
        records, lines = folder.history.read(), folder.samples.read()
        self._batches = Batches(self.settings, steps, records)
        self.steps = steps
        self.steps_taken = sum(record["taken"] for record in records)
        self._tickets: dict[int, Ticket] = {}
        last = max((line.get("ticket", line["order"]) for line in lines), default=-1)
        self._next_id = max(first_id, last + 1)
        self._order = len(lines)
        self._known: dict[float, int] = {}
        self._codes: dict[str, int] = {}
        self.best: dict[str, Any] | None = None
        self._saved: dict[str, Any] | None = None  # the one that is in best.py
        self.tokens = self.valid = 0
        self.rejected: dict[str, int] = {}
        for line in lines:
            self._count(line)
            self.tokens += line["tokens"]
        self.stop: str | None = None
        self._began = time.monotonic()

    # asking

    def open_batch(self, n: int, *, generation: int, operator: str, worst: float | None = None) -> int | None:
        """See `Client.open_batch`."""
        with self._lock:
            batch = self._open(n, generation, operator, worst)
            return batch.number if batch else None

    def _open(
        self, n: int, generation: int, operator: str, worst: float | None, streamed: bool = False
    ) -> Batch | None:  # fmt: skip
        if self._batches.current is not None and self._batches.current.open:
            self._close(self._batches.current)  # directions of one step belong to one batch
        # numbered by the next candidate, which a continued run knows, so that streams of random numbers go on
        return self._batches.open(self._next_id, n, generation, operator, worst, streamed)

    def generate(
        self, operator: str, generation: int, asks: Sequence[dict], batch: int | str | None = None
    ) -> list[dict]:  # fmt: skip
        """See `Client.generate`; an ask may also hold "prefill", "seed" and "sampling" (temperature, stop, raw ...).

        Raises
        ------
        ConfigurationError
            The batch has not as many directions left.
        """
        with self._lock:
            self.tend()
            tickets = [self._ticket(operator, generation, ask, batch) for ask in asks]
        return self._write(tickets, asks)

    def again(self, id: int, ask: dict) -> dict:
        """See `Client.again`."""
        with self._lock:
            ticket = self._find(id)
            if ticket.told is not None:
                raise DataError(f"Candidate {id} has its score already; it cannot be asked for again.")
            ticket.parents = ask.get("parents") or ()
        return self._write([ticket], [ask])[0]

    def _ticket(self, operator: str, generation: int, ask: dict, batch: int | str | None) -> Ticket:
        ticket = Ticket(self._next_id, blank(-1, generation, operator), parents=ask.get("parents") or ())
        self._next_id += 1
        self._tickets[ticket.id] = ticket
        if batch is None:
            return ticket
        current = self._batches.current
        if batch == "stream":
            if current is None or not current.open:
                current = self._open(self.settings.directions, generation, operator, ask.get("worst"), streamed=True)
            if current is None or current.full:
                return ticket  # no steps are left, or some scores are outstanding: the model as it is
        elif current is None or current.number != batch or not current.open or current.full:
            raise ConfigurationError(f"Expected an open batch with directions left, got {batch}.")
        current.deal(ticket)
        return ticket

    def _write(self, tickets: Sequence[Ticket], asks: Sequence[dict]) -> list[dict]:
        """Have the replies of tickets written, and read them."""
        s = self.settings
        began = time.monotonic()
        groups: dict[Sampling, list[tuple[Ticket, Request]]] = {}
        for ticket, ask in zip(tickets, asks, strict=True):
            line, batch = ticket.line, ticket.batch
            what = (ticket.id,) if not (s.common_seeds and batch) else (1 << 40, batch.number, line["reply_index"])
            line["sampling_seed"] = stream(s.seed, *what, ticket.calls) if ask.get("seed") is None else ask["seed"]
            ticket.calls += 1
            # without noise the candidates of a batch still have a slot each, so that shapes are the same in every arm
            direction = line["direction"] if batch is None or batch.seeds else ticket.slot
            request = Request(ask["prompt"], line["sampling_seed"], self._started(ask), direction, line["sigma"] or 0.0)
            groups.setdefault(self._sampling_of(ask), []).append((ticket, request))
        for sampling, group in groups.items():
            replies = self._desk.generate([request for _, request in group], sampling)
            for (ticket, request), reply in zip(group, replies, strict=True):
                self._read(ticket, reply, request.prefill)
        with self._lock:
            for ticket in tickets:
                ticket.seconds += (time.monotonic() - began) / len(tickets)
        return [self._answer(ticket) for ticket in tickets]

    def _started(self, ask: dict) -> str:
        """The start of the reply, written for the model; an ask may want none, or another one."""
        return ask.get("prefill", self._reading.prefill)

    def _sampling_of(self, ask: dict) -> Sampling:
        own = {name: getattr(self._sampling, name) for name in Sampling.__dataclass_fields__}
        if not self._started(ask):
            own["stop"] = ()  # where a started function ends is no place to end for a whole reply
        given = dict(ask.get("sampling") or {})
        if given.pop("raw", False):
            own["chat_template"] = False
        return Sampling(**own | given)

    def _read(self, ticket: Ticket, reply: Any, prefill: str) -> None:
        line = ticket.line
        with self._lock:
            line["prompt_tokens"] += reply.prompt_tokens
            line["tokens"] += reply.tokens
            self.tokens += reply.tokens
        line |= {"finish": reply.finish, "reply": reply.text, "failure": None, "detail": ""}
        if self._reading.function is None:
            line["code"] = reply.text
            return
        parsed = parse_reply(
            reply.text, self._reading.function, kind=self._reading.kind, prefill=prefill,
            truncated=reply.finish == "length",
        )  # fmt: skip
        line |= {"description": parsed.description, "code": parsed.code}
        if not parsed.ok:
            line |= {"failure": parsed.failure, "detail": parsed.reason}
        if not reply.tokens:
            line["detail"] = f"the prompt of {reply.prompt_tokens} tokens leaves no room for a reply"

    def _answer(self, ticket: Ticket) -> dict:
        line = ticket.line
        names = ("tokens", "prompt_tokens", "finish", "code", "description", "failure", "detail", "direction", "sigma")
        return {"id": ticket.id, "text": line["reply"], "ok": line["failure"] is None} | {n: line[n] for n in names}

    def _find(self, id: int) -> Ticket:
        ticket = self._tickets.get(id)
        if ticket is None:
            raise DataError(f"Expected the id of a candidate of this run, got {id}.")
        return ticket

    # telling

    def tell(self, results: Sequence[dict]) -> dict:
        """See `Client.tell`; a result may hold "reward" where there is no objective.

        Raises
        ------
        DataError
            The id is none of this run, or the candidate was told something else before.
        """
        with self._lock:
            new: dict[int, tuple[Ticket, dict, tuple]] = {}
            repeated = 0
            for result in results:  # all are looked at before any counts
                ticket = self._find(result["id"])
                said = tuple(result.get(name) for name in ("objective", "reward", "failure"))
                before = new[ticket.id][2] if ticket.id in new else ticket.told
                if before not in (None, said):
                    raise DataError(f"Candidate {ticket.id} was told another score before.")
                repeated += before is not None
                if before is None:
                    new[ticket.id] = ticket, result, said
            tickets = [ticket for ticket, _, _ in new.values()]
            for ticket, result, said in new.values():
                ticket.told = said
                self._settle(ticket, result)
            batch = self._batches.current
            complete = batch is not None and batch.complete
            if complete:
                self._batches.reward(batch)
            self.folder.samples.append(*(ticket.line for ticket in tickets))
            evaluated = {result["id"]: float(result.get("seconds") or 0) for result in results}
            self.folder.timings.append(
                *(
                    {"order": t.line["order"], "generate": round(t.seconds, 4), "evaluate": round(evaluated[t.id], 4)}
                    for t in tickets
                )
            )
            step = self._close(batch) if complete else None
            self.tend()
            self._limits()
            return {"step": step, "repeated": repeated}

    def _settle(self, ticket: Ticket, result: dict) -> None:
        """Complete a line from what the host said."""
        line = ticket.line
        line |= {name: result[name] for name in SETTLED if name in result}
        if line["objective"] is not None and not math.isfinite(line["objective"]):
            line |= {"objective": None, "failure": "nonfinite"}
        if line["objective"] is not None:
            line |= {"objective": float(line["objective"]), "failure": None}
        elif line["failure"] is None and result.get("reward") is None:
            line["failure"] = "exception"
        line["detail"] = line["detail"] or ""
        if "parents" in result:  # of hosts that choose them inside what they ask with
            ticket.parents = result["parents"]
        line["order"] = self._order
        self._order += 1
        line["parents"] = [self._codes[p["code"]] for p in ticket.parents if p.get("code") in self._codes]
        line["parent_objectives"] = [p["objective"] for p in ticket.parents if p.get("objective") is not None]
        if result.get("reward") is not None:
            line["reward"] = float(result["reward"])
        mark_copy(line, self._known)
        self._count(line)
        if ticket.calls > 1:
            line["calls"] = ticket.calls
        if ticket.id != line["order"]:
            line["ticket"] = ticket.id

    def _count(self, line: dict) -> None:
        if line["objective"] is None:
            if line["failure"]:
                self.rejected[line["failure"]] = self.rejected.get(line["failure"], 0) + 1
            return
        self.valid += 1
        self._known.setdefault(key(line["objective"]), line["order"])
        if line["code"]:
            self._codes.setdefault(line["code"], line["order"])
        if self.best is None or line["objective"] < self.best["objective"]:
            self.best = line

    def _close(self, batch: Batch) -> dict | None:
        """Move the model by the scores that are there."""
        closed = self._batches.close(batch)
        if closed is None:
            if self.settings.arm != "frozen" and batch.tickets:
                self._say(f"no step: fewer than two directions of a batch of {batch.operator} were scored")
            return None
        step, record = closed
        record["fingerprint"] = self._desk.do(lambda engine: _move(engine, step))
        self.steps_taken += step.taken
        self.folder.history.append(record)
        valid = sum(ticket.told is not None and ticket.line["failure"] is None for ticket in batch.tickets)
        self._say(
            f"{'step' if step.taken else f'no step ({step.skipped})'} {step.t + 1} of {self.steps}: {batch.operator}, "
            f"generation {batch.generation}, sigma {step.sigma:.3g}, {valid} of {batch.size} valid"
        )
        return {"t": step.t, "taken": step.taken, "skipped": step.skipped, "fingerprint": record["fingerprint"]}

    # around

    def tend(self) -> None:
        """Close a stream batch that has waited too long."""
        with self._lock:
            batch = self._batches.current
            timed = self._timeout and batch is not None and batch.open and batch.streamed
            if timed and time.monotonic() - batch.opened > self._timeout:
                self._close(batch)

    def seeds(self, individuals: Sequence[dict]) -> None:
        """See `Client.seeds`."""
        with self._lock:
            lines = []
            for one in individuals:
                line = blank(self._order, 0, "seed") | {name: one.get(name) for name in SETTLED[3:]}
                line["objective"] = None if one.get("objective") is None else float(one["objective"])
                line["failure"] = None if line["objective"] is not None else "exception"
                mark_copy(line, self._known)
                self._count(line)
                self._order += 1
                self._next_id = max(self._next_id, self._order)
                lines.append(line)
            self.folder.samples.append(*lines)

    def _limits(self) -> None:
        s = self.settings
        if self.stop is None and s.max_tokens_total and self.tokens >= s.max_tokens_total:
            self.stop = f"stopped at {self.tokens} tokens (--max-tokens-total)"
        elif self.stop is None and s.max_minutes and time.monotonic() - self._began >= 60 * s.max_minutes:
            self.stop = f"stopped after {s.max_minutes:g} minutes (--max-minutes)"

    def counts(self) -> dict[str, int]:
        """Lines of samples.jsonl and history.jsonl."""
        with self._lock:
            return {"samples": self._order, "history": self._batches.t}

    def finish(self) -> None:
        """Close what is open and write best.py and best.json."""
        with self._lock:
            if self._batches.current is not None and self._batches.current.open:
                self._close(self._batches.current)
            self.save_best()

    def save_best(self) -> None:
        """best.py and best.json of what there is so far."""
        if self.best is not None and self.best["code"] and self.best is not self._saved:
            self._saved = self.best
            names = ("order", "description", "objective")
            scores = {name: self.best[name] for name in names}
            self.folder.write_best(self.best["code"], {**scores, "chosen_on": "train"})

    def state(self) -> dict:
        """Plain figures: step, steps, sigma, the open batch, counts."""
        with self._lock:
            batch = self._batches.current
            opened = batch is not None and batch.open
            return {
                "step": self._batches.t, "steps": self.steps, "steps_taken": self.steps_taken,
                "sigma": self._batches.sigma, "candidates": self._order, "valid": self.valid,
                "asked": len(self._tickets), "tokens": self.tokens, "waiting": self._desk.waiting(),
                "best": self.best["objective"] if self.best else None,
                "batch": {
                    "directions": batch.directions, "candidates": batch.size, "dealt": len(batch.tickets),
                    "scored": sum(t.told is not None for t in batch.tickets),
                } if opened else None,
            }  # fmt: skip


def _move(engine: Engine, step: Step) -> str:
    """Take a step, if it is one; the fingerprint of the weights then."""
    if step.taken:
        engine.step(step.seeds, step.coefficients)
    return engine.fingerprint()
