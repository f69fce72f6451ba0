"""One run of EoH 0.2: its plan, its offspring by our engine, and their scores."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.scaffolds.hosts import populations
from ttc_esopt.scaffolds.hosts.client import Client, HostError
from ttc_esopt.scaffolds.hosts.run import (
    HostRun,
    draws,
    individual,
    parents_of,
    restore_draws,
    results_folder,
    told,
)
from ttc_esopt.scaffolds.hosts.templates import entry, prefill_of

INIT = "i1"


@dataclass
class Candidate:
    """One offspring on its way: `id` is the engine's, parents are those of the last prompt."""

    operator: str
    prompt: str = ""
    parents: Any = None
    id: int | None = None
    code: str | None = None
    description: str | None = None
    why: dict = field(default_factory=dict)  # failure and detail of a reply without a program
    offspring: dict | None = None


class Model:
    """Stands in for the host's `InterfaceLLM`; its `get_response` asks for the candidate that is being made."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.making: tuple[Candidate, int, int | None] | None = None  # candidate, generation, batch

    def get_response(self, prompt: str) -> str | None:
        candidate, generation, batch = self.making
        ask = {"prompt": prompt}
        if candidate.id is None:
            reply = self._client.generate(candidate.operator, generation, [ask], batch)[0]
        else:
            reply = self._client.again(candidate.id, ask)
        candidate.id, candidate.prompt = reply["id"], prompt
        return reply["text"]


class Run(HostRun):
    """One `EOH` object and what it asks of us."""

    def __init__(self, client: Client, config: Any, problem: Any) -> None:
        super().__init__(client, problem.evaluate, problem.timeout, problem.n_processes)
        self.config, self.problem = config, problem
        self.loop: Any = None
        self.valid = self._inits = 0
        self._stored: list[dict] = []
        self._state: dict | None = None
        weights = dict.fromkeys(config.operators, 0.0)
        for operator, weight in zip(config.operators, config.operator_weights, strict=True):
            weights[operator] += weight
        weights = {one: weight for one, weight in weights.items() if weight > 0}
        if not weights or config.pop_size < 1:
            raise HostError(
                f"Expected operators with weights above 0 and a population of at least 1, got operators "
                f"{config.operators}, operator_weights {config.operator_weights}, pop_size {config.pop_size}."
            )
        self.es = self.es_operators(list(weights))
        self.others = {one: weight for one, weight in weights.items() if one not in self.es}
        share = sum(self.others.values()) / sum(weights.values())
        self.other_draws = max(1, round(config.pop_size * share)) if self.others else 0

    # around the run

    def begin(self) -> None:
        """Announce the plan."""
        c = self.config
        first = c.continue_id if c.use_continue else 0
        if c.use_continue and first >= c.n_pop:
            raise HostError(
                f"Nothing is left to do: generation {first} of {c.n_pop} is there (n_pop in the script).", 0
            )
        self._check_operators()
        if c.use_seed:
            populations.read_seeds(c.seed_path)
        self.settle(self.problem.template_program)
        # before anything of an earlier run is touched
        self._stored = self.continued(c.continue_path, first) if c.use_continue else []
        made = 0 if c.use_seed or c.use_continue else 2 * c.pop_size
        left, es = c.n_pop - first, bool(self.es)
        per = self.other_draws + len(self.es) * self.batch if not self.host_numbers and es else c.pop_size
        start = f"{made} {INIT}" if made else "the seeds" if c.use_seed else f"generation {first}"
        detail = f"{c.pop_size} by {' '.join(c.operators)}"
        if es and not self.host_numbers:
            detail = " and ".join(
                [f"{self.other_draws} by {' '.join(self.others)}"] * bool(self.others)
                + [f"{self.batch} by {one}" for one in self.es]
            )
        name, kind = entry(self.problem.template_program)
        answer = self.client.hello({
            "host": "EoH", "version": "0.2", "problem": type(self.problem).__name__,
            "folder": results_folder(c.output_dir), "function": name, "kind": kind,
            "prefill": prefill_of(self.problem.template_program), "candidates": made + left * per,
            "host_candidates": made + left * c.pop_size, "population": c.pop_size, "generations": c.n_pop,
            "steps": left * (1 if self.host_numbers else len(self.es)) if es else 0,
            "largest_batch": c.pop_size if self.host_numbers else self.options["directions"],
            "lines": [f"candidates: {start}, then {left} generations of {detail}; population {c.pop_size}"],
            "continued": {"generation": first, "path": c.continue_path} if c.use_continue else None,
        })  # fmt: skip
        self._state = answer["state"]
        if c.use_continue:
            self._go_on_counting()
            if not answer["ours"]:
                self.client.seeds(self._stored)

    def _check_operators(self) -> None:
        """Refuse an operator that the host does not have, for which it would make empty offspring for ever."""
        state, program = draws(), self.problem.template_program
        for operator in [*self.es, *self.others]:
            try:
                self.loop.evolution.drafted([individual("", program, 0.0)], operator)
            except Exception as error:
                raise HostError(
                    f"Expected operators for which EoH asks its model, got {operator!r} ({error}; operators)."
                ) from error
        restore_draws(state)

    def _go_on_counting(self) -> None:
        """The host's sample files go on where they were."""
        folder = os.path.join(self.config.output_dir, "results", "samples")
        last = [
            int(found[1]) for name in os.listdir(folder) if (found := re.fullmatch(r"samples_\d+~(\d+)\.json", name))
        ]
        self.loop._sample_count = self.loop._samples_flushed = max(last, default=0)

    def initial(self, population: list) -> list:
        """The population that the run begins with, and the draws with which it goes on."""
        if self.config.use_continue:
            population = [individual(one["description"], one["code"], one["objective"]) for one in self._stored]
            restore_draws(self._state)
        return population

    def saved(self, population: list, k: int) -> None:
        """The host has written generation k."""
        self.generation = k
        self.client.generation(k, told(population), draws())

    def evaluate_seeds(self, seeds: list) -> list:
        """As the host does, each in a child of its own; a seed without a description is no reason to fail."""
        outcomes = self.outcomes([seed["code"] for seed in seeds])
        evaluated = [
            individual(seed.get("algorithm") or "", seed["code"], outcome.value)
            for seed, outcome in zip(seeds, outcomes, strict=True)
        ]
        self.client.seeds(told(evaluated))
        for place, outcome in enumerate(outcomes, start=1):
            if outcome.value is None:
                self.count(outcome)
                self.client.say(f"seed {place} is left out: {outcome.failure}, {outcome.detail}")
        kept = [one for one in evaluated if one["objective"] is not None]
        self.valid += len(kept)
        logging.getLogger("eoh").info("Seeds: %d/%d valid.", len(kept), len(seeds))
        return kept

    # offspring

    def get_algorithm(self, population: list, operators: list) -> tuple[list, list]:
        """Offspring of one generation (or of half the initial population); rewrites `operators` to what was made."""
        if self.client.stopping:
            self.loop._flush_samples()
            self.stop_here()
        generation = 0 if not population else self.generation + 1
        if population and not self.host_numbers and self.es:
            others, shares = list(self.others), list(self.others.values())
            drawn = random.choices(others, shares, k=self.other_draws) if others else []
            operators[:] = sorted(drawn) + [one for one in self.es for _ in range(self.batch)]
        if self.host_numbers and self.problem.n_processes == 1:
            made = self._one_by_one(population, operators, generation)
        else:
            made = self._together(population, operators, generation)
        if len(made) < len(operators):
            del operators[len(made) :]
        joined = self._joining() if not population else []
        return [one.parents for one in made] + [None] * len(joined), [one.offspring for one in made] + joined

    def _joining(self) -> list[dict]:
        """Heuristics beside those that the model writes in the beginning; EoH asks twice, and takes what comes."""
        self._inits += 1
        found = self.openings() if self._inits == 1 else []
        self.valid += len(found)
        if self._inits == 2 and not self.valid:
            found = self.spares([self.problem.template_program], 1)
            self.valid += len(found)
        return [individual(one["description"], one["code"], one["objective"]) for one in found]

    def _together(self, population: list, operators: Sequence[str], generation: int) -> list[Candidate]:
        """Operator after operator, each in one request; a batch of directions is scored before the next begins."""
        made: list[Candidate] = []
        shared = None
        if self.host_numbers:  # one batch for all mutations, which are too few to be one each
            shared = self._open(sum(one in self.es for one in operators), population, generation)
        for operator in dict.fromkeys(operators):
            candidates = [Candidate(operator) for one in operators if one == operator]
            is_es = operator in self.es
            batch = shared if is_es and self.host_numbers else None
            if is_es and not self.host_numbers:
                batch = self._open(self.options["directions"], population, generation, operator)
            for candidate in candidates:
                if is_es and not self.host_numbers and self.options["common_parent"] and candidates[0].prompt:
                    candidate.parents, candidate.prompt = candidates[0].parents, candidates[0].prompt
                else:
                    candidate.parents, candidate.prompt = self.loop.evolution.drafted(population, operator)
            replies = self.client.generate(operator, generation, [{"prompt": one.prompt} for one in candidates], batch)
            for candidate, reply in zip(candidates, replies, strict=True):
                candidate.id = reply["id"]
                self._parse(candidate, reply, population, generation)
            made += candidates
            if not self.host_numbers:
                self._score(candidates)
                if self.client.stopping:
                    break
        if self.host_numbers:  # in the order in which the host drew them
            left = {one: [c for c in made if c.operator == one] for one in dict.fromkeys(operators)}
            made = [left[one].pop(0) for one in operators]
            self._score(made)
        return made

    def _open(self, n: int, population: list, generation: int, operator: str = "") -> int | None:
        """A batch of n directions."""
        worst = max((one["objective"] for one in population), default=None)
        return self.client.open_batch(n, generation=generation, operator=operator or ",".join(self.es), worst=worst)

    def _parse(self, candidate: Candidate, reply: dict, population: list, generation: int) -> None:
        """Code and description of a reply, by our rules or by the host's, with its re-asks."""
        evolution = self.loop.evolution
        if not self.host_parser:
            if reply["ok"]:
                candidate.code = evolution._prepend_imports(reply["code"])
                candidate.description = reply["description"] or ""
            else:
                candidate.why = {"failure": reply["failure"], "detail": reply["detail"]}
            return
        description, code = evolution._extract(reply["text"])
        for _ in range(3):
            if description and code:
                break
            description, code = evolution._extract(
                self.client.again(candidate.id, {"prompt": candidate.prompt})["text"]
            )
        if description and code:
            candidate.code, candidate.description = evolution._prepend_imports(code[0]), description[0]
        self._again_if_duplicate(candidate, population, generation)

    def _again_if_duplicate(self, candidate: Candidate, population: list, generation: int) -> None:
        """As the host does: a program that the population has is asked for again, twice at most."""
        for _ in range(2):
            if candidate.code is None or not self.loop.evolution._is_duplicate(population, candidate.code):
                break
            self._host_generate(candidate, population, generation, None)

    def _one_by_one(self, population: list, operators: Sequence[str], generation: int) -> list[Candidate]:
        """As the host alone does it with one process: every draw and every call in its order."""
        batch = self._open(sum(one in self.es for one in operators), population, generation)
        made = []
        for operator in operators:
            candidate = Candidate(operator)
            made.append(candidate)
            self._host_generate(candidate, population, generation, batch if operator in self.es else None)
            if self.host_parser:
                self._again_if_duplicate(candidate, population, generation)
        self._score(made)
        return made

    def _host_generate(self, candidate: Candidate, population: list, generation: int, batch: int | None) -> None:
        """The host's own drawing, asking and parsing, for a candidate that may have been asked for before."""
        evolution = self.loop.evolution
        if not self.host_parser:
            candidate.parents, candidate.prompt = evolution.drafted(population, candidate.operator)
            reply = self.client.generate(candidate.operator, generation, [{"prompt": candidate.prompt}], batch)[0]
            candidate.id = reply["id"]
            self._parse(candidate, reply, population, generation)
            return
        evolution.llm.making = (candidate, generation, batch)
        candidate.parents, candidate.code, candidate.description = evolution._generate(population, candidate.operator)

    def _score(self, candidates: Sequence[Candidate]) -> None:
        """Evaluate candidates, tell their scores, and make the host's records of them."""
        outcomes = iter(self.outcomes([one.code for one in candidates if one.code is not None]))
        results = []
        for one in candidates:
            outcome = next(outcomes) if one.code is not None else None
            results.append(
                self.result(one.id, one.code, one.description, outcome, parents=parents_of(one.parents), **one.why)
            )
            if outcome is not None:
                self.valid += outcome.value is not None
                one.offspring = individual(one.description, one.code, outcome.value)
        self.client.tell(results)
