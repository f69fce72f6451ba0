"""Candidates: parents, reply, one more try for a duplicate, evaluation."""

import re

import numpy as np

from .eoh_evolution import Evolution
from .evaluator_accelerate import add_numba_decorator


class InterfaceEC:
    def __init__(
        self, pop_size, m, api_endpoint, api_key, llm_model, llm_use_local, llm_local_url, debug_mode, interface_prob,
        select, n_p, timeout, use_numba, **kwargs,
    ):  # fmt: skip
        self.pop_size, self.m, self.select, self.n_p = pop_size, m, select, n_p
        self.timeout, self.use_numba, self.debug = timeout, use_numba, debug_mode
        self.interface_eval = interface_prob
        self.evol = Evolution(
            api_endpoint, api_key, llm_model, llm_use_local, llm_local_url, debug_mode, interface_prob.prompts, **kwargs
        )

    def check_duplicate(self, population, code):
        return any(one["code"] == code for one in population)

    def population_generation(self):
        return [one for _ in range(2) for one in self.get_algorithm([], "i1")[1]]

    def population_generation_seed(self, seeds, n_p):
        return [
            {**seed, "objective": np.round(self.interface_eval.evaluate(seed["code"]), 5), "other_inf": None}
            for seed in seeds
        ]

    def _get_alg(self, pop, operator):
        offspring = {"algorithm": None, "code": None, "objective": None, "other_inf": None}
        parents = None
        if operator == "i1":
            offspring["code"], offspring["algorithm"] = self.evol.i1()
        elif operator in ("e1", "e2"):
            parents = self.select.parent_selection(pop, self.m)
            offspring["code"], offspring["algorithm"] = getattr(self.evol, operator)(parents)
        else:
            parents = self.select.parent_selection(pop, 1)
            offspring["code"], offspring["algorithm"] = getattr(self.evol, operator)(parents[0])
        return parents, offspring

    def get_offspring(self, pop, operator):
        try:
            for _ in range(2):
                parents, offspring = self._get_alg(pop, operator)
                code = offspring["code"]
                if self.use_numba:
                    code = add_numba_decorator(program=code, function_name=re.search(r"def (\w+)", code).group(1))
                if not self.check_duplicate(pop, offspring["code"]):
                    break
            offspring["objective"] = np.round(self.interface_eval.evaluate(code), 5)
        except Exception:
            return None, {"algorithm": None, "code": None, "objective": None, "other_inf": None}
        return parents, offspring

    def get_algorithm(self, pop, operator):
        made = [self.get_offspring(pop, operator) for _ in range(self.pop_size)]
        return [parents for parents, _ in made], [offspring for _, offspring in made]
