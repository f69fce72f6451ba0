"""A double of the host: the same class, methods and order of work, with prompts of one line."""

import os
import random
import subprocess

from utils.llm_client.base import BaseClient
from utils.utils import extract_code_from_generator, filter_traceback


class ReEvo:
    def __init__(
        self,
        cfg,
        root_dir: str,
        generator_llm: BaseClient,
        reflector_llm=None,
        short_reflector_llm=None,
        long_reflector_llm=None,
        crossover_llm=None,
        mutation_llm=None,
    ):
        self.cfg, self.root_dir = cfg, root_dir
        self.generator_llm = generator_llm
        self.reflector_llm = reflector_llm or generator_llm
        self.short_reflector_llm = short_reflector_llm or self.reflector_llm
        self.long_reflector_llm = long_reflector_llm or self.reflector_llm
        self.crossover_llm = crossover_llm or generator_llm
        self.mutation_llm = mutation_llm or generator_llm
        self.iteration = self.function_evals = 0
        self.elitist = self.best_obj_overall = self.best_code_overall = self.best_code_path_overall = None
        self.problem = cfg.problem.problem_name
        self.problem_size = cfg.problem.problem_size
        self.func_name = cfg.problem.func_name
        self.obj_type = cfg.problem.obj_type
        self.problem_type = cfg.problem.problem_type
        self.func_signature = "def grow_v{version}(x: float) -> float:"
        self.seed_func = cfg.seed_func
        self.init_population()

    def init_population(self):
        code = extract_code_from_generator(self.seed_func).replace("v1", "v2")
        self.seed_ind = self._individual(code, 0)
        self.population = self.evaluate_population([self.seed_ind])
        if not self.seed_ind["exec_success"]:
            raise RuntimeError("Seed function is invalid.")
        self.update_iter()
        responses = self.generator_llm.multi_chat_completion(
            [_chat("initial")], self.cfg.init_pop_size, temperature=self.generator_llm.temperature + 0.3
        )
        self.population = self.evaluate_population(self._individuals(responses))
        self.update_iter()

    def _individual(self, code, number):
        stem = f"problem_iter{self.iteration}"
        return {"stdout_filepath": f"{stem}_stdout{number}.txt", "code_path": f"{stem}_code{number}.py",
                "code": code, "response_id": number}  # fmt: skip

    def response_to_individual(self, response, response_id, file_name=None):
        return self._individual(extract_code_from_generator(response), response_id)

    def _individuals(self, responses):
        return [self.response_to_individual(response, number) for number, response in enumerate(responses)]

    def mark_invalid_individual(self, individual, traceback_msg):
        individual.update(exec_success=False, obj=float("inf"), traceback_msg=traceback_msg)
        return individual

    def evaluate_population(self, population):
        runs = []
        for number, individual in enumerate(population):
            self.function_evals += 1
            if individual["code"] is None:
                self.mark_invalid_individual(individual, "Invalid response!")
            runs.append(None if individual["code"] is None else self._run_code(individual, number))
        for individual, run in zip(population, runs, strict=True):
            if run is None:
                continue
            try:
                run.communicate(timeout=self.cfg.timeout)
            except subprocess.TimeoutExpired as error:
                self.mark_invalid_individual(individual, str(error))
                run.kill()
                continue
            with open(individual["stdout_filepath"]) as file:
                output = file.read()
            if fault := filter_traceback(output):
                self.mark_invalid_individual(individual, fault)
                continue
            try:
                value = float(output.split("\n")[-2])
            except (IndexError, ValueError):
                self.mark_invalid_individual(individual, "Invalid std out / objective value!")
                continue
            individual.update(exec_success=True, obj=value if self.obj_type == "min" else -value)
        return population

    def _run_code(self, individual, response_id):
        raise AssertionError("the host's own evaluation would run `python` and share one gpt.py")

    def update_iter(self):
        best = min(self.population, key=lambda one: one["obj"])
        if self.best_obj_overall is None or best["obj"] < self.best_obj_overall:
            self.best_obj_overall = best["obj"]
            self.best_code_overall, self.best_code_path_overall = best["code"], best["code_path"]
        if self.elitist is None or best["obj"] < self.elitist["obj"]:
            self.elitist = best
        self.iteration += 1

    def short_term_reflection(self, population):
        pairs = [sorted(population[i : i + 2], key=lambda one: -one["obj"]) for i in range(0, len(population), 2)]
        hints = self.short_reflector_llm.multi_chat_completion([_chat("compare") for _ in pairs])
        return hints, [worse["code"] for worse, _ in pairs], [better["code"] for _, better in pairs]

    def crossover(self, short_term_reflection_tuple):
        prompts = [_chat(f"cross {' '.join(texts)}") for texts in zip(*short_term_reflection_tuple, strict=True)]
        responses = self.crossover_llm.multi_chat_completion(prompts)
        assert len(responses) == self.cfg.pop_size
        return self._individuals(responses)

    def mutate(self):
        number = int(self.cfg.pop_size * self.cfg.mutation_rate)
        return self._individuals(self.mutation_llm.multi_chat_completion([_chat("mutate")], number))

    def evolve(self):
        while self.function_evals < self.cfg.max_fe:
            if not any(individual["exec_success"] for individual in self.population):
                raise RuntimeError(f"All individuals are invalid. Please check {os.getcwd()}.")
            valid = [one for one in [self.elitist, *self.population] if one["exec_success"]]
            if len({one["obj"] for one in valid}) < 2:
                raise RuntimeError("Selection failed. Please check the population.")
            low, high = min(valid, key=lambda one: one["obj"]), max(valid, key=lambda one: one["obj"])
            selected = [one for _ in range(self.cfg.pop_size) for one in random.sample([low, high], 2)]
            self.population = self.evaluate_population(self.crossover(self.short_term_reflection(selected)))
            self.update_iter()
            self.long_reflector_llm.multi_chat_completion([_chat("conclude")])
            self.population.extend(self.evaluate_population(self.mutate()))
            self.update_iter()
        return self.best_code_overall, self.best_code_path_overall


def _chat(text):
    return [{"role": "user", "content": text}]
