"""One run of ReEvo: what it is about to spend, who asks for what, what became of each candidate, and how it ended."""

from __future__ import annotations

import math
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ttc_esopt.scaffolds.hosts.client import HostError, Stopped
from ttc_esopt.scaffolds.hosts.reevo_process import FULL, LIMITS, TRUSTED, Evaluation, Evaluator

Individual = dict[str, Any]
MUTATION, CROSSOVER, INITIAL, REFLECTION = "m1", "e1", "i1", "reflection"
_NUMPY_2 = re.compile(r"was removed in the NumPy 2\.0 release")
_NAME = re.compile(r"cannot import name|attribute name must be string|module 'gpt' has no attribute")


class Reply(str):
    """A reply of ours; ReEvo takes it for a string."""

    answer: dict[str, Any]


class Run:
    """The state of one `ReEvo` object.

    Parameters
    ----------
    host : the `ReEvo`, its prompts being loaded
    engine : `hosts.client.Client`, or `served.Served`
    """

    def __init__(self, host: Any, engine: Any) -> None:
        self.host, self.engine, self.options = host, engine, engine.options
        self.generation, self.operator = 0, REFLECTION
        self.pairs: list[list[Individual]] = []
        self.evaluations: dict[int, Evaluation] = {}
        self._tickets: dict[str, dict[str, Any]] = {}  # by `code_path`, which is unique
        self._failures: Counter = Counter()
        self._details: Counter = Counter()
        self.valid = 0
        self.evaluator = Evaluator(host.root_dir, memory_mb=self.options["memory_mb"])
        black = "_black_box" if host.problem_type == "black_box" else ""
        self.problem = host.problem + black
        self.script = os.path.join(os.path.abspath(host.root_dir), "problems", host.problem, f"eval{black}.py")
        self.arguments = [str(host.problem_size), host.root_dir, "train"]
        self.mutations = self._mutations()

    # before the run

    def begin(self, ours: Sequence[str]) -> None:
        """Announce the run; `ours` are the operators whose replies our model writes.

        Raises
        ------
        HostError
            ReEvo's settings ask for something that cannot be.
        """
        if self.options["continue"]:
            raise HostError("ReEvo saves no population and cannot go on with a run: leave out --continue.")
        if self.options["arm"] != "frozen" and not set(self.options["es_operators"]) & set(ours):
            raise HostError(
                f"Expected one of {', '.join(ours)} among the operators that are batches of directions, got "
                f"{', '.join(self.options['es_operators'])} (--es-operators)."
            )
        self.engine.hello(self.plan(ours))
        seed = self.options["seed"]
        if seed is not None:  # ReEvo draws parents from NumPy's global stream, which it does not seed
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)

    def plan(self, ours: Sequence[str]) -> dict[str, Any]:
        """What is about to be spent, as `Client.hello` takes it."""
        cfg, k = self.host.cfg, self._replies
        for name in ("init_pop_size", "pop_size"):
            if cfg.get(name) < 1:
                raise HostError(f"Expected {name} >= 1, got {cfg.get(name)}.")
        own = int(cfg.pop_size * cfg.mutation_rate)
        rounds, alone = (self._rounds(n) for n in (self.mutations, own))
        # What our model writes in a round, and before the first.
        each = sum(n for name, n in ((CROSSOVER, cfg.pop_size), (MUTATION, self.mutations)) if name in ours)
        each_alone = each + (own - self.mutations) * (MUTATION in ours)
        before = cfg.init_pop_size * (INITIAL in ours)
        sizes = [self._directions(name, n) for name, n in self._numbers() if name in ours]
        steps = rounds * len([n for name, n in self._numbers()[1:] if name in ours and self._directions(name, n) >= 2])
        steps += INITIAL in ours and self._directions(INITIAL, cfg.init_pop_size) >= 2
        return {
            "host": "ReEvo", "version": "0.1", "problem": self.problem,
            "folder": os.path.join(os.getcwd(), "ttc_esopt"),
            "function": f"{self.host.func_name}_v2", "kind": "function", "prefill": self._prefill(),
            "candidates": before + rounds * each, "host_candidates": before + alone * each_alone, "steps": steps,
            "largest_batch": max(sizes, default=0), "population": cfg.pop_size, "generations": rounds,
            "lines": self._lines(rounds, ours, k), "continued": None,
        }  # fmt: skip

    def _lines(self, rounds: int, ours: Sequence[str], k: int) -> list[str]:
        cfg, m = self.host.cfg, self.mutations
        total = 1 + cfg.init_pop_size + rounds * (cfg.pop_size + m)
        directions = self._directions(MUTATION, m)
        batch = f"{directions} directions with {k} {'reply' if k == 1 else 'replies'} each, of the best program so far"
        lines = [
            f"about {total} evaluations (max_fe {cfg.max_fe}; a round that has begun is finished): the seed function, "
            f"{cfg.init_pop_size} initial programs, {rounds} rounds of {cfg.pop_size} crossovers and {m} mutations",
            f"a mutation is a batch of {batch}"
            if directions >= 2
            else f"note: {m} mutations at a time are no batch of directions (pop_size * mutation_rate): nothing steps",
        ]
        if not rounds:
            lines.append("note: no mutation happens: max_fe is used up by the initial programs; give a larger one")
        if REFLECTION in ours:
            lines.append(f"about {rounds * (cfg.pop_size + 1)} reflections come on top; they are no candidates")
            lines.append("our model, unperturbed, writes what your client in the log of ReEvo (Using LLM) would write")
        else:
            lines.append(
                "all operators but mutation are written by your own client; only mutations are candidates of ours"
            )
        seconds = f"{cfg.timeout} s each, at most {self.evaluator.cores} at a time"
        return [*lines, f"eval.py is run by {sys.executable}, {seconds}"]

    def _numbers(self) -> list[tuple]:
        cfg = self.host.cfg
        return [(INITIAL, cfg.init_pop_size), (CROSSOVER, cfg.pop_size), (MUTATION, self.mutations)]

    def _rounds(self, mutations: int) -> int:
        cfg = self.host.cfg
        return max(0, math.ceil((cfg.max_fe - 1 - cfg.init_pop_size) / (cfg.pop_size + mutations)))

    def _prefill(self) -> str:
        if not self.options["prefill"]:
            return ""
        signature = self.host.func_signature.format(version=2).strip()
        return f"```python\nimport numpy as np\n{'import torch' if 'torch' in signature else ''}\n{signature}"

    @property
    def _replies(self) -> int:
        return self.options["replies_per_direction"]

    def _mutations(self) -> int:
        """Candidates of one mutation."""
        directions, cfg = self.options["directions"], self.host.cfg
        if directions != "host" and MUTATION in self.options["es_operators"]:
            return int(directions) * self._replies
        return int(cfg.pop_size * cfg.mutation_rate)

    def _directions(self, operator: str, n: int) -> int:
        """How many directions `n` candidates of an operator have; 0: none."""
        if operator not in self.options["es_operators"]:
            return 0
        if n % self._replies:
            raise HostError(
                f"Expected a number of candidates that --replies-per-direction {self._replies} divides, "
                f"but ReEvo asks for {n} of {operator}."
            )
        return n // self._replies

    # asking

    def write(self, conversations: Sequence[Any], n: int) -> list[str]:
        """Replies to conversations, `n` to each, for the operator that is at work.

        Raises
        ------
        Stopped
            The run is to end: nothing is half done here, since ReEvo evaluates what it has asked for before it asks on.
        """
        if self.engine.stopping:
            raise Stopped(self.engine.stopping)
        operator = self.operator
        n = self.mutations if operator == MUTATION else n
        asks: list[dict[str, Any]] = []
        for _ in range(n):
            for messages in conversations:
                asks.append({"prompt": messages, "parents": self._parents(operator, len(asks))})
        if not asks:
            return []
        if operator == REFLECTION:
            asks = [{**ask, "prefill": ""} for ask in asks]
        directions = self._directions(operator, len(asks)) if operator != REFLECTION else 0
        batch = None
        if directions >= 2:
            worst = max((one["obj"] for one in self._survivors(self.host.population)), default=None)
            batch = self.engine.open_batch(directions, generation=self.generation, operator=operator, worst=worst)
        replies = []
        for answer in self.engine.generate(operator, self.generation, asks, batch):
            reply = Reply(answer["text"].encode("utf-8", "replace").decode("utf-8"))
            reply.answer = answer
            replies.append(reply)
        return replies

    def _parents(self, operator: str, index: int) -> list[dict[str, Any]]:
        if operator == MUTATION:
            parents = [self.host.elitist]
        else:
            parents = self.pairs[index] if operator == CROSSOVER and index < len(self.pairs) else []
        return [{"code": one["code"], "objective": one["obj"]} for one in parents]

    def read(self, individual: Individual, response: str) -> None:
        """Note which candidate an individual is; with our parser, take its code from there."""
        if not isinstance(response, Reply):
            return
        answer = self._tickets[individual["code_path"]] = response.answer
        # A function under another name is left to eval.py, which may accept several names.
        if self.options["parser"] == "ours" and answer["failure"] != "name":
            individual["code"] = _with_imports(answer["code"]) if answer["code"] else None

    # evaluating

    def start(self, individual: Individual, response_id: int) -> Evaluation:
        """What `ReEvo._run_code` does."""
        path, seed = individual["stdout_filepath"], individual is self.host.seed_ind
        with open(path, "w") as output:
            evaluation = self.evaluator.start(
                self.script, self.arguments, individual["code"], output, timeout=self.host.cfg.timeout,
                mode=TRUSTED if seed else None,
            )  # fmt: skip
        evaluation.output = path
        self.evaluations[response_id] = evaluation
        return evaluation

    def evaluated(self, population: Sequence[Individual]) -> None:
        """Tell what became of candidates of ours."""
        results = []
        for index, one in enumerate(population):
            if one["exec_success"] and not math.isfinite(one["obj"]):
                self.host.mark_invalid_individual(one, f"The objective is {one['obj']}.")  # ReEvo's argmin takes a nan
            answer, evaluation = self._tickets.get(one["code_path"]), self.evaluations.get(index)
            failure, detail = (None, "") if one["exec_success"] else _failure(one, evaluation, answer)
            if one is not self.host.seed_ind:
                self.valid += failure is None
                if failure is not None:
                    self._failures[failure] += 1
                    self._details[detail] += 1
            if answer is not None:
                results.append({
                    "id": answer["id"], "objective": None if failure else float(one["obj"]), "failure": failure,
                    "detail": detail, "seconds": evaluation.seconds if evaluation else 0.0, "code": one["code"],
                })  # fmt: skip
        self.evaluations = {}
        if results:
            self.engine.tell(results)

    def settle(self) -> None:
        """After the seed function was evaluated: find out how programs can be confined, and record it.

        Raises
        ------
        HostError
            It does not work under what the user requires.
        """
        seed, cfg = self.host.seed_ind, self.host.cfg
        self.engine.seeds([{"description": "", "code": seed["code"], "objective": float(seed["obj"])}])
        given = self.options["sandbox"]
        tried = {}
        for mode in (FULL, LIMITS) if given != "off" else (LIMITS,):
            fault = self.evaluator.works(self.script, self.arguments, seed["code"], timeout=cfg.timeout, mode=mode)
            if not fault:
                self.evaluator.mode = mode
                break
            tried[mode] = fault
            if given == "required":
                raise HostError(f"The seed function cannot be evaluated in a sandbox (--sandbox required): {fault}")
        else:
            raise HostError(f"The seed function fails under --memory-mb {self.evaluator.memory_mb}: {fault}")
        if FULL in tried:
            self.engine.say(f"sandbox: limits only, since the seed function fails under the full one: {tried[FULL]}")

    def saved(self, population: Sequence[Individual]) -> None:
        """A generation is complete."""
        kept = [
            {"description": "", "code": one["code"], "objective": one["obj"]} for one in self._survivors(population)
        ]
        self.engine.generation(self.generation, kept)

    def _survivors(self, population: Sequence[Individual]) -> list[Individual]:
        elitist = [self.host.elitist] if self.host.elitist is not None else []
        valid = {one["code"]: one for one in [*elitist, *population] if one.get("exec_success")}
        return sorted(valid.values(), key=lambda one: one["obj"])

    # at the end

    def counts(self) -> str:
        """What became of the candidates, in a sentence or two."""
        failed = sum(self._failures.values())
        text = f"{self.valid + failed} candidates, {self.valid} of them valid."
        if not failed:
            return text
        kinds = ", ".join(f"{n} {name}" for name, n in self._failures.most_common())
        (detail, number), = self._details.most_common(1)  # fmt: skip
        text = f"{text} Failed: {kinds}. The most frequent reason ({number} times): {detail}"
        return text + (f" {_numpy_hint()}" if _NUMPY_2.search(detail) else "")

    def seed_fault(self) -> HostError:
        """Why ReEvo cannot even begin."""
        text = str(self.host.seed_ind.get("traceback_msg", ""))
        detail = _last_line(text)
        if _NUMPY_2.search(text):
            hint = _numpy_hint()
        elif "ModuleNotFoundError" in detail:
            hint = f"It is run by {sys.executable}: install the module there."
        else:
            hint = f"See {os.path.abspath(self.host.seed_ind['stdout_filepath'])}."
        return HostError(f"ReEvo's own seed function of {self.problem} cannot be evaluated: {detail} {hint}")


def _numpy_hint() -> str:
    return f"The code was written for NumPy 1: {sys.executable} -m pip install 'numpy<2'."


def _with_imports(code: str) -> str:
    """The imports that ReEvo would put before the code, where they are missing."""
    for name, line in (("torch", "import torch"), ("np", "import numpy as np")):
        if re.search(rf"\b{name}\b", code) and not re.search(rf"^{line}\b", code, re.MULTILINE):
            code = f"{line}\n{code}"
    return code


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()[:500]


def _failure(one: Individual, evaluation: Evaluation | None, answer: dict[str, Any] | None) -> tuple:
    """Our word for a failure, and one line that says more."""
    if one["code"] is None:
        known = answer is not None and answer.get("failure")
        return (answer["failure"], answer["detail"]) if known else ("reply", "The reply holds no Python program.")
    text = str(one.get("traceback_msg", ""))
    if evaluation is None:
        return "exception", _last_line(text)
    detail = _last_line(text.replace(f"{evaluation.folder}/", ""))  # a name by chance; lines are to be reproducible
    if evaluation.timed_out:
        return "timeout", f"no result after {evaluation.timeout:g} s"
    if "Traceback" not in text:
        if text.startswith("The objective is"):
            return "nonfinite", detail
        if evaluation.status >= 128:
            return "crash", f"ended by signal {evaluation.status - 128}"
        if evaluation.status:
            return "crash", f"ended with status {evaluation.status}"
        return "output", "eval.py printed no objective"
    if detail.startswith(("SyntaxError", "IndentationError", "TabError")):
        return "syntax", detail
    if detail.startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError")):
        return "memory", detail
    return ("name" if _NAME.search(detail) else "exception"), detail
