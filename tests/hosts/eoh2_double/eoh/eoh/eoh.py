import json
import os
import random

from ..utils.logger import setup_logger
from .evolution import Evolution


def population_management(pop, size):
    first = {}
    for one in pop:
        if one["objective"] is not None:
            first.setdefault(one["objective"], one)
    return sorted(first.values(), key=lambda one: one["objective"])[:size]


class EOH:
    def __init__(self, config, problem):
        self.config, self.problem = config, problem
        self.operators, self.operator_weights = config.operators, config.operator_weights
        self.pop_size, self.n_pop, self.output_path = config.pop_size, config.n_pop, config.output_dir
        self._sample_count = self._samples_flushed = 0
        self._samples_buffer = []
        self._logger = setup_logger(os.path.join(config.output_dir, "results", "run_log.txt"), config.debug)
        random.seed(2024)
        self.evolution = Evolution(config, problem)

    def _record(self, op, offspring):
        self._sample_count += 1
        one = offspring or {}
        self._logger.info("#%d [%s] %s", self._sample_count, op, one.get("objective"))
        fields = {name: one.get(name) for name in ("algorithm", "code", "objective")}
        self._samples_buffer.append({"sample_order": self._sample_count, "operator": op, **fields})

    def _flush_samples(self):
        if self._samples_buffer:
            low, high = self._samples_flushed + 1, self._samples_flushed + len(self._samples_buffer)
            self._write(f"samples/samples_{low}~{high}.json", self._samples_buffer)
            self._samples_flushed, self._samples_buffer = high, []

    def _write(self, name, content):
        with open(os.path.join(self.output_path, "results", name), "w") as file:
            json.dump(content, file, indent=4)

    def run(self):
        population, start = self._init_population(0.0)
        for gen in range(start, self.n_pop):
            selected_ops = random.choices(self.operators, weights=self.operator_weights, k=self.pop_size)
            _, offspring = self.evolution.get_algorithm(population, selected_ops)
            for op, off in zip(selected_ops, offspring, strict=False):
                self._record(op, off)
                if off and off["objective"] is not None:
                    population.append(off)
            population = population_management(population, self.pop_size)
            self._save_checkpoint(population, gen + 1)
            self._write(f"pops_best/population_generation_{gen + 1}.json", population[0])
        self._flush_samples()

    def _init_population(self, t0):
        c = self.config
        if c.use_continue:
            with open(c.continue_path) as file:
                return json.load(file), c.continue_id
        if c.use_seed:
            with open(c.seed_path) as file:
                population = self.evolution.evaluate_seeds(json.load(file))
            if not population:
                raise RuntimeError("no valid seeds")
            self._save_checkpoint(population, 0)
            return population, 0
        population = []
        for _ in range(2):
            for one in self.evolution.get_algorithm([], ["i1"] * self.pop_size)[1]:
                self._record("i1", one)
                population += [one] if one and one["objective"] is not None else []
        population = population_management(population, self.pop_size)
        if not population:
            raise RuntimeError("Initial population is empty.")
        self._save_checkpoint(population, 0)
        return population, 0

    def _save_checkpoint(self, population, gen):
        self._write(f"pops/population_generation_{gen}.json", population)
