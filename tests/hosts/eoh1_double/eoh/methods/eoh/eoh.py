"""The loop."""

import json
import random

import numpy as np

from .eoh_interface_EC import InterfaceEC


class EOH:
    def __init__(self, paras, problem, select, manage, **kwargs):
        self.paras, self.prob, self.select, self.manage = paras, problem, select, manage
        self.pop_size, self.n_pop, self.m = paras.ec_pop_size, paras.ec_n_pop, paras.ec_m
        self.operators, self.operator_weights = paras.ec_operators, paras.ec_operator_weights
        self.use_seed, self.seed_path = paras.exp_use_seed, paras.exp_seed_path
        self.load_pop, self.load_pop_path = paras.exp_use_continue, paras.exp_continue_path
        self.load_pop_id = paras.exp_continue_id
        self.output_path, self.exp_n_proc = paras.exp_output_path, paras.exp_n_proc
        self.timeout, self.use_numba = paras.eva_timeout, paras.eva_numba_decorator
        self.debug_mode = paras.exp_debug_mode
        random.seed(2024)

    def add2pop(self, population, offspring):
        population.extend(offspring)

    def save(self, folder, number, content):
        with open(f"{self.output_path}/results/{folder}/population_generation_{number}.json", "w") as file:
            json.dump(content, file, indent=5)

    def run(self):
        p = self.paras
        interface_ec = InterfaceEC(
            self.pop_size, self.m, p.llm_api_endpoint, p.llm_api_key, p.llm_model, p.llm_use_local, p.llm_local_url,
            self.debug_mode, self.prob, select=self.select, n_p=self.exp_n_proc, timeout=self.timeout,
            use_numba=self.use_numba,
        )  # fmt: skip
        n_start = 0
        if self.use_seed:
            with open(self.seed_path) as file:
                population = interface_ec.population_generation_seed(json.load(file), self.exp_n_proc)
            self.save("pops", 0, population)
        elif self.load_pop:
            with open(self.load_pop_path) as file:
                population = json.load(file)
            n_start = self.load_pop_id
        else:
            population = interface_ec.population_generation()
            population = self.manage.population_management(population, self.pop_size)
            self.save("pops", 0, population)
        for pop in range(n_start, self.n_pop):
            for i, op in enumerate(self.operators):
                if np.random.rand() < self.operator_weights[i]:
                    parents, offsprings = interface_ec.get_algorithm(population, op)
                self.add2pop(population, offsprings)
                population = self.manage.population_management(population, min(len(population), self.pop_size))
            self.save("pops", pop + 1, population)
            self.save("pops_best", pop + 1, population[0])
