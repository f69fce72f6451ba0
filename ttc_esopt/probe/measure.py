"""The measurement: at each sigma all directions write their replies on the one prompt, and all of them are scored.

A sigma is a batch: its replies are written, scored, rewarded and stored together, so that a reply's reward (by ranks
within the batch) stands in its line. Directions and sampling streams are the same at every sigma, so that sigmas
compare; within a sigma every reply has a stream of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from ttc_esopt import scaffolds
from ttc_esopt.candidates import batch_rewards, blank, key, stream
from ttc_esopt.engines.base import Engine, Reply, Request
from ttc_esopt.errors import DataError
from ttc_esopt.es.optimizer import direction_seed
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.instances import evaluator, own_template, problem_of
from ttc_esopt.jsonlines import lines_of
from ttc_esopt.probe.folder import ProbeFolder
from ttc_esopt.probe.plan import DIVERGENCE_REPLIES, Plan, request_of
from ttc_esopt.progress import RunProgress
from ttc_esopt.scaffolds.base import Draft, Individual

Say = Callable[[str], None]


def measure(plan: Plan, folder: ProbeFolder, say: Say, console: Console | None = None) -> list[dict[str, Any]]:
    """The lines of the whole probe; those that are stored already are taken from the folder.

    Raises
    ------
    DataError
        The folder's lines are not of this probe, or the model is another one.
    """
    stored = folder.lines.read()
    _check(plan, folder, stored)
    if stored:
        say(f"{len(stored)} replies are there already")
    if len(stored) == plan.total:
        return stored
    from ttc_esopt.runner import open_engine

    s = plan.settings
    say(f"loading {s.model} ...")
    began = time.monotonic()
    with closing(open_engine(folder)) as engine:
        folder.note_model(engine.describe(), engine.fingerprint())
        say(f"model ready after {time.monotonic() - began:.0f} s, fingerprint {engine.fingerprint()}")
        problem = problem_of(s)
        with evaluator(problem, s) as search_set:
            if note := own_template(problem, search_set):
                say(note)
            seeds = _seeds(problem.seeds, search_set)
            draft = request_of(plan, seeds)
            folder.note_seeds([one.objective for one in seeds], [one.objective for one in draft.parents])
            with RunProgress(plan.total, f"probe {problem.name} {plan.operator}", console) as progress:
                return _Measurement(plan, folder, engine, search_set, draft, progress).lines(stored)


def _seeds(seeds: Sequence[Any], search_set: Evaluator) -> list[Individual]:
    """The problem's valid heuristics; their numbers stand in the place of orders."""
    outcomes = search_set.evaluate([seed.code for seed in seeds])
    return [
        Individual(i, seed.description, seed.code, outcome.objective)
        for i, (seed, outcome) in enumerate(zip(seeds, outcomes, strict=True))
        if outcome.objective is not None
    ]


class _Measurement:
    def __init__(
        self, plan: Plan, folder: ProbeFolder, engine: Engine, search_set: Evaluator, draft: Draft,
        progress: RunProgress,
    ) -> None:  # fmt: skip
        self.plan, self.folder, self.engine, self.search_set = plan, folder, engine, search_set
        self.draft, self.progress = draft, progress
        self.scaffold = scaffolds.build(problem_of(plan.settings), plan.settings)
        self.sampling = plan.settings.sampling()
        self.known, self.worst = context(folder.document)
        self.all: list[dict] = []
        self.seconds = 0.0

    def lines(self, stored: Sequence[dict]) -> list[dict]:
        n = self.plan.per_sigma
        for number, sigma in enumerate(self.plan.sigmas):
            there = list(stored[number * n : (number + 1) * n])
            if len(there) < n:
                there = self._batch(number, sigma, already=there)
            self.all += there
        self._show([], 0.0, "done")
        return self.all

    def _batch(self, number: int, sigma: float, already: list[dict]) -> list[dict]:
        s = self.plan.settings
        k = s.replies_per_direction
        lines = []
        for i in range(self.plan.per_sigma):
            line = blank_line(number * self.plan.per_sigma + i, self.plan.operator)
            line |= {
                "parents": [one.order for one in self.draft.parents], "sigma": sigma, "reply_index": i % k,
                "parent_objectives": [one.objective for one in self.draft.parents],
                "direction": direction_seed(s.seed, 0, i // k), "sampling_seed": stream(s.seed, "probe", i // k, i % k),
            }  # fmt: skip
            lines.append(line)
        each = max(1, s.batch_size // k) * k  # whole directions: with full noise the weights are rewritten for each
        for first in range(0, len(lines), each):
            self._show(lines[:first], sigma, "writing")
            self._write(lines[first : first + each])
        self._show(lines, sigma, "reading again for KL")
        self._diverge(lines)
        for line, reward in zip(lines, rewarded(s.reward, lines, self.known, self.worst), strict=True):
            line["reward"] = reward
        if already and lines_of(already) != lines_of(lines[: len(already)]):
            self.progress.line("note: replies made again differ from those stored; the stored ones are kept")
            lines[: len(already)] = already
        self.folder.lines.append(*lines[len(already) :])
        return lines

    def _write(self, lines: Sequence[dict]) -> None:
        clock = time.monotonic()
        requests = [self._request(line) for line in lines]
        replies: list[Reply] = self.engine.generate(requests, self.sampling, self.progress.tokens_tick)
        self.seconds += time.monotonic() - clock
        for line, reply in zip(lines, replies, strict=True):
            line |= {"prompt_tokens": reply.prompt_tokens, "tokens": reply.tokens, "finish": reply.finish}
            parsed = self.scaffold.parse(reply.text, self.draft.prefill, reply.finish == "length")
            line |= {"description": parsed.description, "code": parsed.code, "reply": reply.text}
            if not parsed.ok:
                line |= {"failure": parsed.failure, "detail": parsed.reason}
        outcomes = iter(self.search_set.evaluate([line["code"] for line in lines if line["failure"] is None]))
        for line in lines:
            if line["failure"] is None:
                outcome = next(outcomes)
                line |= {"objective": outcome.objective, "failure": outcome.failure, "detail": outcome.detail}
                if outcome.alarm:
                    self.progress.line(f"reply {line['order']}: {outcome.detail}")

    def _request(self, line: dict) -> Request:
        return Request(self.draft.prompt, line["sampling_seed"], self.draft.prefill, line["direction"], line["sigma"])

    def _diverge(self, lines: Sequence[dict]) -> None:
        """KL of each direction, along the first replies of the unperturbed model that have text."""
        own = [line["reply"] for line in (self.all or lines)[: self.plan.per_sigma] if line["reply"]]
        own = own[:DIVERGENCE_REPLIES]
        if not own:
            return
        firsts = [line for line in lines if line["reply_index"] == 0]
        requests = [self._request(line) for line in firsts for _ in own]
        values = self.engine.divergence(requests, own * len(firsts), self.sampling)
        k = self.plan.settings.replies_per_direction
        for i, line in enumerate(lines):
            part = values[i // k * len(own) : (i // k + 1) * len(own)]
            line["divergence"] = sum(part) / len(part)

    def _show(self, lines: Sequence[dict], sigma: float, phase: str) -> None:
        every = [*self.all, *lines]
        valid = [line["objective"] for line in every if line["objective"] is not None]
        self.progress.update(
            done=len(every), valid=len(valid), best=min(valid, default=None), sigma=sigma,
            tokens=sum(line["tokens"] for line in every), seconds_generating=self.seconds, phase=phase,
        )  # fmt: skip


def blank_line(order: int, operator: str) -> dict[str, Any]:
    """A line of probe.jsonl of which nothing is known yet: one of samples.jsonl, with `divergence`."""
    line = blank(order, 1, operator) | {"divergence": None}
    del line["copy_of"]  # within a probe nothing is kept that a reply could be a copy of
    return line


def context(document: dict[str, Any]) -> tuple[set[float], float | None]:
    """Keys of the objectives that count as known, and the worst of them: the seed heuristics'.

    Where the prompt shows no parent (i1 as scaffold `sample` asks it) nothing is known, as in that scaffold.
    """
    probe = document["probe"]
    seeds = probe["seeds"] if document["settings"]["scaffold"] == "eoh" or probe["parents"] else []
    return {key(objective) for objective in seeds}, max(seeds, default=None)


def rewarded(rule: str, lines: Sequence[dict], known: set[float], worst: float | None) -> list[float]:
    """The run's reward rule over these lines as one batch."""
    return batch_rewards(rule, lines, known, worst)


def _check(plan: Plan, folder: ProbeFolder, stored: Sequence[dict]) -> None:
    """Lines from the file must be lines of this probe."""
    if len(stored) > plan.total:
        raise DataError(f"{folder.lines.path} has {len(stored)} lines, this probe has {plan.total}: it was edited.")
    pattern, k = blank_line(0, plan.operator), plan.settings.replies_per_direction
    for order, line in enumerate(stored):
        number, i = divmod(order, plan.per_sigma)
        place = (order, plan.sigmas[number], direction_seed(plan.settings.seed, 0, i // k), i % k)
        if line.keys() != pattern.keys() or place != tuple(
            line[name] for name in ("order", "sigma", "direction", "reply_index")
        ):
            raise DataError(f"{folder.lines.path}, line {order + 1} is no line of this probe; it was edited.")
    if stored and "seeds" not in folder.document["probe"]:
        raise DataError(f"{folder.path}/probe.toml does not belong to probe.jsonl: it names no seed heuristics.")
