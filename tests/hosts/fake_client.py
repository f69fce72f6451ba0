"""A client without a service: deterministic replies, our parser, and a record of everything that a host does.

It has the methods of `ttc_esopt.scaffolds.hosts.client.Client`; what the real one sends over a socket is kept here.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from ttc_esopt.scaffolds.replies import parse_reply

Json = dict[str, Any]
OPTIONS = {
    "arm": "frozen", "directions": "host", "replies_per_direction": 1, "parser": "host", "es_operators": ["m1", "m2"],
    "common_parent": True, "prefill": False, "sandbox": "off", "memory_mb": 2048, "seed": 0, "continue": None,
    "trust_objectives": False, "seeds": [],
}  # fmt: skip


class FakeClient:
    """`writer(operator, prompt, number)` gives the text of reply `number` (0, 1, ... over the whole run).

    Attributes
    ----------
    calls : list of (method, arguments), in order
    candidates : what became of each: operator, generation, batch, asks and texts (several if asked again), result
    batches : of each opened batch: n, generation, operator, worst
    told : {generation: (population, state)} as the host reported them
    """

    def __init__(self, writer: Callable[[str, Any, int], str], **options: Any) -> None:
        unknown = options.keys() - OPTIONS.keys()
        assert not unknown, unknown
        self.options = {**OPTIONS, **options}
        self.writer = writer
        self.stopping: str | None = None
        self.stop_at: tuple[int, str] | None = None  # (generation, operator) whose first request sets `stopping`
        self.hello_answer: Json = {"ours": False}
        self.steps_left: int | None = None
        self.number = 0
        self.calls: list[tuple[str, Json]] = []
        self.candidates: list[Json] = []
        self.batches: list[Json] = []
        self.told: dict[int, tuple[list[Json], Json | None]] = {}
        self.lines: list[str] = []
        self.given_seeds: list[Json] = []
        self.finished: list[str | None] = []
        self.plan: Json | None = None
        self._lock = threading.Lock()

    def _note(self, method: str, **arguments: Any) -> None:
        self.calls.append((method, json.loads(json.dumps(arguments, allow_nan=False))))

    def prompts(self) -> list[Any]:
        """Everything that was asked, in the order of asking."""
        asked: list[Any] = []
        for method, arguments in self.calls:
            if method == "generate":
                asked += [ask["prompt"] for ask in arguments["asks"]]
            elif method == "again":
                asked.append(arguments["ask"]["prompt"])
        return asked

    def hello(self, plan: Json) -> Json:
        assert self.plan is None, "hello twice"
        self._note("hello", plan=plan)
        self.plan = plan
        return self.hello_answer

    def open_batch(self, n: int, *, generation: int, operator: str, worst: float | None = None) -> int | None:
        self._note("open_batch", n=n, generation=generation, operator=operator, worst=worst)
        if n < 2 or self.steps_left == 0:
            return None
        if self.steps_left is not None:
            self.steps_left -= 1
        self.batches.append({"n": n, "generation": generation, "operator": operator, "worst": worst})
        return len(self.batches) - 1

    def generate(self, operator: str, generation: int, asks: Any, batch: Any = None) -> list[Json]:
        with self._lock:
            assert self.plan is not None, "asked before hello"
            self._note("generate", operator=operator, generation=generation, asks=list(asks), batch=batch)
            if self.stop_at == (generation, operator):
                self.stopping = "stopped by the test"
            replies = []
            for ask in asks:
                self.candidates.append(
                    {"operator": operator, "generation": generation, "batch": batch, "asks": [], "texts": [],
                     "result": None}
                )  # fmt: skip
                replies.append(self._reply(len(self.candidates) - 1, ask))
            if isinstance(batch, int):
                held = sum(one["batch"] == batch for one in self.candidates)
                assert held <= self.batches[batch]["n"] * self.options["replies_per_direction"], "batch overdrawn"
            return replies

    def again(self, id: int, ask: Json) -> Json:
        with self._lock:
            self._note("again", id=id, ask=ask)
            assert self.candidates[id]["result"] is None, "asked again after its result"
            return self._reply(id, ask)

    def _reply(self, id: int, ask: Json) -> Json:
        candidate = self.candidates[id]
        text = self.writer(candidate["operator"], ask["prompt"], self.number)
        self.number += 1
        candidate["asks"].append(ask)
        candidate["texts"].append(text)
        prefill = self.plan["prefill"] if self.options["prefill"] else ""
        parsed = parse_reply(text, self.plan["function"], kind=self.plan["kind"], prefill=prefill)
        return {
            "id": id, "text": text, "tokens": len(text) // 4, "finish": "stop", "ok": parsed.ok, "code": parsed.code,
            "description": parsed.description, "failure": parsed.failure, "detail": parsed.reason or "",
        }  # fmt: skip

    def tell(self, results: Any) -> Json:
        with self._lock:
            self._note("tell", results=list(results))
            for result in results:
                assert self.candidates[result["id"]]["result"] is None, "told twice"
                self.candidates[result["id"]]["result"] = result
            return {"step": None}

    def seeds(self, individuals: Any) -> None:
        self._note("seeds", individuals=list(individuals))
        self.given_seeds += individuals

    def generation(self, k: int, population: Any, state: Json | None = None) -> None:
        self._note("generation", k=k, population=list(population), state=state)
        assert k not in self.told, "a generation told twice"
        self.told[k] = (list(population), json.loads(json.dumps(state)))

    def finish(self, reason: str | None = None) -> None:
        self._note("finish", reason=reason)
        self.finished.append(reason)

    def say(self, text: str) -> None:
        self._note("say", text=text)
        self.lines.append(text)

    def names(self) -> list[str]:
        """Names of the calls, repeats in a row once."""
        return [name for name, _ in itertools.groupby(method for method, _ in self.calls)]
