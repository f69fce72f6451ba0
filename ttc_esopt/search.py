"""The co-evolution loop: candidates are written, evaluated and kept; after each batch of directions the model moves.

The run is a fixed plan of operator calls. What a call does is a pure function of the settings, of the lines of
samples.jsonl before it and of the steps in history.jsonl, so `resume` is the same loop: calls whose lines are
complete are taken from the file, a call that was cut is made again whole, and steps are applied from their records.

Arms differ in two places only, so that equal seeds mean equal parents, sampling streams and counts: frozen leaves the
model alone (but writes its batches in the same shapes), noise perturbs but never steps, shuffled steps with permuted
rewards, esopt is the method itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from ttc_esopt.candidates import batch_rewards, blank, key, mark_copy, stream
from ttc_esopt.diagnoses import CAP, Diagnoses
from ttc_esopt.engines.base import Engine, Reply, Request
from ttc_esopt.errors import DataError
from ttc_esopt.es.history import record_of
from ttc_esopt.es.optimizer import ESOptimizer
from ttc_esopt.evaluation import Evaluator, Outcome
from ttc_esopt.jsonlines import lines_of
from ttc_esopt.problems.base import Problem
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.scaffolds.base import Call, Individual, Scaffold
from ttc_esopt.settings import Settings
from ttc_esopt.tuned import steps_along


class Display(Protocol):
    """What the loop tells a progress display."""

    def update(
        self, *, done: int, valid: int, best: float | None, sigma: float | None, tokens: int,
        seconds_generating: float, phase: str,
    ) -> None: ...  # fmt: skip

    def tokens_tick(self, n: int) -> None: ...

    def line(self, text: str) -> None: ...


@dataclass
class State:
    """What the lines so far amount to."""

    lines: list[dict] = field(default_factory=list)
    population: list[Individual] = field(default_factory=list)
    known: dict[float, int] = field(default_factory=dict)
    best: Individual | None = None
    tokens: int = 0
    valid: int = 0

    def absorb(self, scaffold: Scaffold, new: Sequence[dict]) -> None:
        """Add the lines of one whole call."""
        children = []
        for line in new:
            self.lines.append(line)
            self.tokens += line["tokens"]
            if line["objective"] is None:
                continue
            self.valid += 1
            self.known.setdefault(key(line["objective"]), line["order"])
            child = Individual(line["order"], line["description"] or "", line["code"], line["objective"])
            children.append(child)
            if self.best is None or child.objective < self.best.objective:
                self.best = child
        self.population = scaffold.survive(self.population, children)


class Search:
    """One run, from its folder; `run()` goes to the end of the plan, a limit, or an interruption.

    Parameters
    ----------
    folder : RunFolder
        New or with the lines of an earlier process.
    problem, scaffold, engine, evaluator, display
        The parts; the caller opens and closes them.
    """

    def __init__(
        self,
        folder: RunFolder,
        problem: Problem,
        scaffold: Scaffold,
        engine: Engine,
        evaluator: Evaluator,
        display: Display,
    ) -> None:
        self.folder = folder
        self.settings: Settings = folder.settings
        self.problem = problem
        self.scaffold = scaffold
        self.engine = engine
        self.evaluator = evaluator
        self.display = display
        self.plan = scaffold.plan()
        steps = sum(call.es for call in self.plan)
        self.es = ESOptimizer(self.settings.es_params(steps)) if steps and self.settings.arm != "frozen" else None
        self.sampling = self.settings.sampling()
        self.state = State()
        self.interrupted = False
        self.stopped: str | None = None
        self.seconds_generating = 0.0
        self._saved: int | None = None  # order of the candidate in best.py
        self._records: list[dict] = []  # the steps so far
        self._at = -1  # the weights are those after this step
        self._rollbacks = folder.document["run"].get("rollbacks", [])
        self._diagnoses = Diagnoses(folder, scaffold, engine) if self.settings.measures else None

    def run(self) -> State:
        """Work through the plan. Raises DataError if the folder does not belong to these settings."""
        stored, records = self.folder.samples.read(), self.folder.history.read()
        total, steps = sum(call.count for call in self.plan), self.es.params.steps if self.es else 0
        for file, got, most in ((self.folder.samples, len(stored), total), (self.folder.history, len(records), steps)):
            if got > most:
                raise DataError(f"{file.path} has {got} lines, this run has {most}: the file was edited.")
        started = time.monotonic()
        previous = signal.signal(signal.SIGINT, self._interrupt) if _in_main_thread() else None
        try:
            for call in self.plan:
                self.display.update(**self._progress(f"{call.operator}, generation {call.generation}"))
                first = len(self.state.lines)
                self._go_back(first)
                lines = stored[first : first + call.count]
                if len(lines) < call.count and self._limit(started):
                    break
                seeds = self.es.ask() if call.es and self.es else ()
                sigma = self.es.sigma if seeds else None
                if len(lines) < call.count:
                    lines = self._make(call, first, seeds, sigma, already=lines)
                self._check(call, first, lines)
                self.state.absorb(self.scaffold, lines)
                if seeds:
                    self._step(call, seeds, lines, records)
                self._save(call, fresh=first + call.count >= len(stored))
            self.display.update(**self._progress(self.stopped or "done"))
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)
        return self.state

    # one call

    def _make(
        self, call: Call, first: int, seeds: Sequence[int], sigma: float | None, already: list[dict]
    ) -> list[dict]:
        """Write, evaluate and store the candidates of one call.

        Lines of this call that a killed process had stored were reported, so they stay; the whole call is made again
        and must agree with them, which it does on the same engine and machine.
        """
        clock = time.monotonic()
        if call.operator == "seed":
            lines = [blank_line(call, first + i) for i in range(call.count)]
            for line, seed in zip(lines, self.problem.seeds, strict=False):
                line |= {"description": seed.description, "code": seed.code}
        else:
            lines = self._generate(call, first, seeds, sigma)
        generated = time.monotonic()
        self.seconds_generating += generated - clock if call.operator != "seed" else 0.0
        self.display.update(**self._progress(f"evaluating {call.operator}, generation {call.generation}"))
        outcomes = iter(self.evaluator.evaluate([line["code"] for line in lines if line["failure"] is None]))
        known = dict(self.state.known)
        for line in lines:
            if line["failure"] is None:
                outcome: Outcome = next(outcomes)
                line["objective"], line["failure"] = outcome.objective, outcome.failure
                line["detail"] = outcome.detail
                if outcome.alarm:
                    self.display.line(f"candidate {line['order']}: {outcome.detail}")
                mark_copy(line, known)
        if call.es:
            self._reward(lines)
        if already and lines_of(already) != lines_of(lines[: len(already)]):
            self.display.line(
                "note: candidates made again differ from those stored before the interruption (other machine or "
                "versions?); the stored ones are kept"
            )
            lines[: len(already)] = already
            if call.es:
                self._reward(lines[len(already) :], beside=already)
        self.folder.samples.append(*lines[len(already) :])
        each = (generated - clock) / call.count, (time.monotonic() - generated) / call.count
        self.folder.timings.append(
            *({"order": line["order"], "generate": round(each[0], 4), "evaluate": round(each[1], 4)} for line in lines)
        )
        return lines

    def _generate(self, call: Call, first: int, seeds: Sequence[int], sigma: float | None) -> list[dict]:
        s = self.settings
        drafts = self.scaffold.drafts(call, self.state.population, Random(f"{s.seed}/{call.index}"))
        lines, requests = [], []
        for i, draft in enumerate(drafts):
            line = blank_line(call, first + i)
            if call.es:
                line["reply_index"] = i % s.replies_per_direction
            if seeds:
                line["direction"], line["sigma"] = seeds[i // s.replies_per_direction], sigma
            shared = s.common_seeds and call.es
            line["sampling_seed"] = (
                stream(s.seed, call.index, line["reply_index"]) if shared else stream(s.seed, first + i)
            )
            line["parents"] = [parent.order for parent in draft.parents]
            line["parent_objectives"] = [parent.objective for parent in draft.parents]
            lines.append(line)
            # without noise a batch of directions still has one slot per direction, so that it is computed in the same
            # shapes in every arm
            direction = line["direction"] if seeds or not call.es else i // s.replies_per_direction
            requests.append(
                Request(draft.prompt, line["sampling_seed"], draft.prefill, direction, line["sigma"] or 0.0)
            )
        replies: list[Reply] = self.engine.generate(requests, self.sampling, self.display.tokens_tick)
        for line, draft, reply in zip(lines, drafts, replies, strict=True):
            line |= {"prompt_tokens": reply.prompt_tokens, "tokens": reply.tokens, "finish": reply.finish}
            line["reply"] = reply.text
            parsed = self.scaffold.parse(reply.text, draft.prefill, reply.finish == "length")
            line["description"], line["code"] = parsed.description, parsed.code
            if not parsed.ok:
                line["failure"], line["detail"] = parsed.failure, parsed.reason
            if not reply.tokens:
                line["detail"] = f"the prompt of {reply.prompt_tokens} tokens leaves no room for a reply"
        return lines

    def _reward(self, lines: list[dict], beside: Sequence[dict] = ()) -> None:
        """Reward the lines as one batch, together with `beside`, whose rewards stand already."""
        whole = [*beside, *lines]
        worst = max((one.objective for one in self.state.population), default=None)
        given = batch_rewards(self.settings.reward, whole, self.state.known, worst)
        for line, reward in zip(lines, given[len(beside) :], strict=True):
            line["reward"] = reward

    def _check(self, call: Call, first: int, lines: Sequence[dict]) -> None:
        """Lines from the file must be lines of this call."""
        pattern = blank_line(call, first)
        for i, line in enumerate(lines):
            objective = line.get("objective")
            if line.keys() != pattern.keys() or not (objective is None or isinstance(objective, float)):
                raise DataError(f"{self.folder.samples.path}, line {first + i + 1} is no line of a run; it was edited.")
            if (line["order"], line["operator"], line["generation"]) != (first + i, call.operator, call.generation):
                raise DataError(
                    f"{self.folder.samples.path}, line {first + i + 1}: expected candidate {first + i} of "
                    f"{call.operator} in generation {call.generation}, got {line['order']} of {line['operator']} in "
                    f"{line['generation']}; samples.jsonl and run.toml are not of one run."
                )

    # one step

    def _step(self, call: Call, seeds: Sequence[int], lines: Sequence[dict], records: Sequence[dict]) -> None:
        """Tell the rewards and move the model, or check that a stored record says the same and move as it did."""
        clock = time.monotonic()
        k = self.settings.replies_per_direction
        table: list = [line["reward"] for line in lines]
        if k > 1:
            table = [table[i : i + k] for i in range(0, len(table), k)]
        names = [f"candidate {line['order']}" for line in lines]
        step = self.es.tell(seeds, table, names=names)
        stored_record = records[step.t] if step.t < len(records) else None
        if step.taken:
            self.engine.step(step.seeds, step.coefficients)
        seconds = time.monotonic() - clock
        record = record_of(
            step, generation=call.generation, operator=call.operator, noise=self.settings.noise,
            orders=(lines[0]["order"], lines[-1]["order"]),
        )  # fmt: skip
        if self._at != step.t - 1:
            record["from"] = self._at
        self._records.append(record)
        if self._diagnoses:
            self._diagnoses.after(step.t, self._records, self.state.lines)
            self._pull_back(record, stored_record)
        self._at = step.t
        if stored_record is not None:
            stored = {name: stored_record.get(name) for name in record}
            if "from" in stored_record:
                stored["from"] = stored_record["from"]
            if lines_of([stored]) != lines_of([record]):  # compared as written: tuples are lists there
                raise DataError(
                    f"{self.folder.history.path}, line {step.t + 1} does not follow from samples.jsonl; "
                    "the two files are not of one run."
                )
            if step.t + 1 == len(records) and self.engine.fingerprint() != records[step.t]["fingerprint"]:
                raise DataError(
                    f"After {len(records)} steps the weights have fingerprint {self.engine.fingerprint()}, the run had "
                    f"{records[step.t]['fingerprint']}: use the model that the run began with."
                )
        else:
            self.folder.history.append({**record, "fingerprint": self.engine.fingerprint()})
            self.folder.timings.append({"t": step.t, "step": round(seconds, 4)})

    def _pull_back(self, record: dict, stored: dict | None) -> None:
        """Take a step back that passes a cap (`--on-cap pull-back`): in the history it is one that was not taken.

        What an earlier process decided stands.
        """
        if self.settings.on_cap != "pull-back" or not record["taken"]:
            return
        why = self._diagnoses.passed()
        if why is None if stored is None else stored["skipped"] != CAP:
            return
        record |= {"taken": False, "skipped": CAP}
        self.engine.rewind(steps_along(self._records, record["t"]))
        self._diagnoses.forget()
        if stored is None:
            self.display.line(f"step {record['t']} is taken back: {why}")

    def _go_back(self, first: int) -> None:
        """Roll the weights back where the user had that done before candidate `first`."""
        for place in self._rollbacks:
            if place["order"] == first and place["after"] != self._at:
                self.engine.rewind(steps_along(self._records, place["after"]))
                self._at = place["after"]
                if self._diagnoses:
                    self._diagnoses.forget()

    # around the calls

    def _save(self, call: Call, fresh: bool) -> None:
        """The population at the end of a generation, and the best so far; also what a kill kept from being written."""
        following = self.plan[call.index + 1 : call.index + 2]
        if not following or following[0].generation != call.generation:
            self.folder.write_population(call.generation, self.state.population, replace=fresh)
        best = self.state.best
        if fresh and best is not None and best.order != self._saved:
            self._saved = best.order
            scores = {"order": best.order, "description": best.description, "objective": best.objective}
            self.folder.write_best(best.code, {**scores, "chosen_on": "train"})

    def _limit(self, started: float) -> bool:
        s = self.settings
        if self.interrupted:
            self.stopped = "interrupted"
        elif s.max_tokens_total and self.state.tokens >= s.max_tokens_total:
            self.stopped = f"stopped at {self.state.tokens} tokens (--max-tokens-total)"
        elif s.max_minutes and time.monotonic() - started >= 60 * s.max_minutes:
            self.stopped = f"stopped after {s.max_minutes:g} minutes (--max-minutes)"
        elif self._diagnoses and (why := self._diagnoses.passed()):
            self.stopped = f"stopped: {why}"
        return self.stopped is not None

    def _interrupt(self, number: int, frame: Any) -> None:
        """Ctrl-C once: finish the batch and save; twice: at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.display.line("interrupted: the running batch is finished and saved (Ctrl-C again stops at once)")

    def _progress(self, phase: str) -> dict[str, Any]:
        return {
            "done": len(self.state.lines),
            "valid": self.state.valid,
            "best": self.state.best.objective if self.state.best else None,
            "sigma": self.es.sigma if self.es and self.es.t < self.es.params.steps else None,
            "tokens": self.state.tokens,
            "seconds_generating": self.seconds_generating,
            "phase": phase,
        }


def blank_line(call: Call, order: int) -> dict[str, Any]:
    """The line of a candidate of a call, of which nothing is known yet."""
    return blank(order, call.generation, call.operator)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def replay(folder: RunFolder, engine: Engine) -> str:
    """Apply the steps of history.jsonl to an unmoved model; the fingerprint that the weights then have."""
    records = folder.history.read()
    engine.rewind(steps_along(records, len(records) - 1))
    return engine.fingerprint()
