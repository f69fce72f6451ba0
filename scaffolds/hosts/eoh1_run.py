"""One run of EoH 0.1 under our engine: arithmetic of candidates, place in the loop, evaluation, going on.

`eoh1` holds what is patched into the host; this is what the patched parts share.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ttc_esopt.scaffolds.hosts import populations
from ttc_esopt.scaffolds.hosts.client import Client, HostError
from ttc_esopt.scaffolds.hosts.isolate import Outcome, evaluate, settle
from ttc_esopt.scaffolds.hosts.run import HostRun, draws, individual, restore_draws, results_folder, told

HOST = "EoH 0.1"


class Weight(float):
    """An operator's probability, which the host compares with its draw.

    The host always hears yes, and we leave the operator out instead: where its first operator is not drawn, EoH reads
    offspring that it does not have yet.
    """

    drawn = True

    def __gt__(self, draw: float) -> bool:
        self.drawn = float(draw) < float(self)
        return True


class Run(HostRun):
    """One `EOH` object, and what it and its operators share."""

    def __init__(self, client: Client, loop: Any, problem: Any, decorate: Callable[..., str] | None) -> None:
        super().__init__(client, problem.evaluate, loop.timeout, loop.exp_n_proc)
        self.loop, self.problem = loop, problem
        self._decorate = decorate
        self._check()
        self._file = ""  # the population to go on from, as the host reads it
        self._managed = -1  # operators that are done; -1 before the initial population
        self._created = 0  # calls of i1 for the initial population
        self._start = 0  # generation that the loop begins from
        self.generation = -1
        self._population: list[dict] = []
        self._draws: dict = {}
        self._valid = False
        self._probed = self.options["sandbox"] != "auto"

    def _check(self) -> None:
        loop = self.loop
        if not loop.operators or len(loop.operator_weights) != len(loop.operators):
            raise HostError(
                f"Expected operators and as many weights, got ec_operators {loop.operators} and ec_operator_weights "
                f"{loop.operator_weights}."
            )
        if loop.use_numba and self._decorate is None:
            raise HostError(
                f"Expected {HOST} with add_numba_decorator, which eva_numba_decorator needs; there is none."
            )
        loop.operator_weights = [Weight(weight) for weight in loop.operator_weights]

    # before the loop

    def begin(self, name: str) -> None:
        """Announce the run; find, check and hand over the population to go on from."""
        continued = self._continued()
        if continued or self.loop.use_seed:
            self._managed = 0
        self.es = self.es_operators([*self.loop.operators, *(["i1"] if self._managed < 0 else [])])
        self.settle(None)  # there is no template
        if self.loop.use_seed:
            populations.read_seeds(self.loop.seed_path)
        stored = []
        if continued:
            stored = self.continued(continued["path"], continued["generation"])
            self._start = self.generation
        answer = self.client.hello(self._plan(name, continued))
        if continued:
            self._hand_over(stored)
            if answer["ours"]:
                restore_draws(answer["state"])
            else:
                self.client.seeds(stored)

    def _continued(self) -> dict | None:
        """Where the stored population lies: what `--continue` says, else what the script says."""
        loop = self.loop
        if self.options["continue"]:
            loop.use_seed = False
            generation, path = populations.last_population(self.options["continue"])
        elif loop.load_pop and not loop.use_seed:
            generation, path = loop.load_pop_id, loop.load_pop_path
            if not os.path.isfile(path):
                raise HostError(
                    f"Expected a population file, got {path} (exp_continue_path); set it together with "
                    "exp_continue_id, or give --continue with the results folder."
                )
        else:
            return None
        if generation >= loop.n_pop:
            raise HostError(
                f"Nothing is left to do: generation {generation} of {loop.n_pop} is there (ec_n_pop in the script).", 0
            )
        return {"generation": generation, "path": str(path)}

    def again(self, codes: Sequence[str]) -> list[Outcome]:
        """See `HostRun`; what is too slow without numba is evaluated with it, where the settings ask for it."""
        found = self.outcomes(codes)  # EoH, too, evaluates what it is given without numba
        if self.loop.use_numba:
            slow = [place for place, one in enumerate(found) if one.failure == "timeout"]
            compiled = self.outcomes([self.decorated(codes[place]) for place in slow])
            for place, outcome in zip(slow, compiled, strict=True):
                found[place] = outcome
        return found

    def _hand_over(self, stored: Sequence[dict]) -> None:
        """To the host as a file, sorted, since that is how it takes a population."""
        individuals = [individual(one["description"], one["code"], one["objective"]) for one in stored]
        with tempfile.NamedTemporaryFile("w", prefix="ttc-esopt-", suffix=".json", delete=False) as file:
            json.dump(individuals, file)
        self._file = file.name
        self.loop.load_pop, self.loop.load_pop_path, self.loop.load_pop_id = True, file.name, self._start

    def forget_file(self) -> None:
        """Remove what `begin` handed over, if it did."""
        if self._file and os.path.exists(self._file):
            os.remove(self._file)

    def _plan(self, name: str, continued: dict | None) -> dict:
        loop, prompts = self.loop, self.problem.prompts
        left = loop.n_pop - self._start
        begins = 2 if self._managed < 0 else 0
        shares = [min(max(float(weight), 0.0), 1.0) for weight in loop.operator_weights]
        sizes = [self.size(operator) for operator in loop.operators]
        directions, first = self.size("i1") if begins else (0, 0)
        per = sum(share * count for share, (_, count) in zip(shares, sizes, strict=True))
        steps = left * sum(share for share, (n, _) in zip(shares, sizes, strict=True) if n > 1)
        steps += begins * (directions > 1)
        candidates = begins * first + round(left * per)
        alone = begins * loop.pop_size + round(left * sum(shares) * loop.pop_size)
        about = any(share not in (0, 1) for share in shares)
        start = f"{begins * first} i1" if begins else f"generation {self._start}" if continued else "the seeds"
        detail = ", ".join(
            f"{count} by {operator}" + (f" (weight {share:g})" if share < 1 else "")
            for operator, (_, count), share in zip(loop.operators, sizes, shares, strict=True)
        )
        function = prompts.get_func_name()
        return {
            "host": "EoH", "version": "0.1", "problem": name, "folder": results_folder(loop.output_path),
            "function": function, "kind": "function",
            "prefill": f"```python\nimport numpy as np\n\ndef {function}({', '.join(prompts.get_func_inputs())}):",
            "candidates": candidates, "host_candidates": alone, "steps": round(steps),
            "largest_batch": max(directions, *(n for n, _ in sizes)),
            "population": loop.pop_size, "generations": loop.n_pop, "continued": continued,
            "lines": [
                f"candidates: {start}, then {left} generations of {detail}; population {loop.pop_size}"
                + ("; numbers are what to expect with these weights" if about else ""),
                f"evaluation: at most {loop.timeout} s, {loop.exp_n_proc} at a time"
                + (", compiled by numba" if loop.use_numba else ""),
            ],
        }  # fmt: skip

    def size(self, operator: str) -> tuple[int, int]:
        """Directions (0: none) and candidates of one call of an operator."""
        own = self.loop.pop_size
        if operator not in self.es:
            return 0, own
        if self.host_numbers:
            return own // self.options["replies_per_direction"], own
        return self.options["directions"], self.batch

    @property
    def one_by_one(self) -> bool:
        """Draw and ask in the host's own order, as it does with one process."""
        return self.host_parser and self.host_numbers and self.loop.exp_n_proc == 1

    def seeded(self, seeds: Sequence[dict]) -> list[dict]:
        """The user's seeds, evaluated; one that fails is left out, where EoH would end the run."""
        for one in seeds:
            if "algorithm" not in one or "code" not in one:
                raise HostError(
                    f"Expected algorithm and code of each seed, got {str(one)[:80]} ({self.loop.seed_path})."
                )
        population = []
        found = self.outcomes([seed["code"] for seed in seeds])
        for place, (one, outcome) in enumerate(zip(seeds, found, strict=True), start=1):
            if outcome.value is not None:
                population.append(individual(one["algorithm"], one["code"], outcome.value))
                continue
            self.count(outcome)
            self.client.say(f"seed {place} is left out: {outcome.failure}, {outcome.detail}")
        self.client.seeds(told(population))
        self.require_somebody(population)
        self._population, self._draws = population, draws()
        return population

    # in the loop

    def begin_operator(self) -> tuple[int, int]:
        """Report what the host has saved meanwhile; the generation that is made now, and the operator's place in it."""
        self.announce()
        if self._managed < 0:
            self._created += 1
            return 0, self._created - 1
        done, index = divmod(self._managed, len(self.loop.operators))
        return self._start + done + 1, index

    def is_drawn(self, generation: int, index: int) -> bool:
        """Whether the host's draw was below the operator's weight."""
        return generation == 0 or self.loop.operator_weights[index].drawn

    def managed(self, population: list[dict]) -> None:
        """The host has cut its population, after an operator or after the initial candidates."""
        self._managed += 1
        self._population = population
        if self._managed % len(self.loop.operators) == 0:
            self._draws = draws()  # nothing is drawn between this and the next generation
            self.announce()

    def announce(self) -> None:
        """Tell of the last generation, once; before the host saves it, so that a kill leaves none that is unknown."""
        saved = self._start + self._managed // len(self.loop.operators)
        if saved > self.generation:
            self.generation = saved
            self.client.generation(saved, told(self._population), self._draws)

    def require_somebody(self, population: Sequence[dict]) -> None:
        """Refuse to go on with nobody: EoH would draw parents from an empty list, and trip over it at the end."""
        if all(one["objective"] is None for one in population):
            self.stop_here()
            error = self.nothing_valid()
            self.client.finish("no valid candidate")
            raise error

    # evaluation

    def decorated(self, code: str) -> str:
        """For numba, where the settings ask for it: every function of the program, since one may call another."""
        if not self.loop.use_numba:
            return code
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                code = self._decorate(program=code, function_name=node.name)
        return code

    def outcomes(self, codes: Sequence[str]) -> list[Outcome]:
        """See `HostRun`. EoH 0.1 has no template to try the sandbox with: it is doubted if nothing works in it."""
        found = super().outcomes(codes)
        self._valid = self._valid or any(one.value is not None for one in found)
        if codes and not self._valid and not self._probed:
            self._probed = True
            before = self._isolation
            self._probe()
            if self._isolation != before:
                self._outcomes.clear()
                return super().outcomes(codes)
        return found

    def _trivial(self) -> list[str]:
        """Programs that answer with one of their inputs, or with its first element, or with 0."""
        prompts = self.problem.prompts
        inputs = prompts.get_func_inputs()
        answers = [answer for name in inputs for answer in (name, f"{name}[0]")] + ["0"]
        return [f"def {prompts.get_func_name()}({', '.join(inputs)}):\n    return {answer}\n" for answer in answers]

    def joining(self) -> list[dict]:
        """Heuristics beside those that the model wrote in the beginning."""
        found = self.openings()
        if not self._valid and not self.client.stopping:
            found = self.spares(self._trivial(), 1)
        return [individual(one["description"], one["code"], one["objective"]) for one in found]

    def _probe(self) -> None:
        """Lower the sandbox if a trivial program of ours works only without; never because of a model's program."""
        programs = self._trivial()
        found = evaluate(
            self._evaluate, programs, timeout=self._timeout, processes=self._processes,
            isolation=replace(self._isolation, mode="limits"),
        )  # fmt: skip
        works = next((program for program, one in zip(programs, found, strict=True) if one.failure is None), None)
        if works is None:
            return
        isolation, _ = settle(self._evaluate, works, self._isolation, self._timeout)
        if isolation != self._isolation:
            self._isolation = isolation
            self.client.say(
                "The problem does not work in the sandbox, not even with a trivial program, so model-written programs "
                "run with your rights, and only limits on memory, time and output."
            )
