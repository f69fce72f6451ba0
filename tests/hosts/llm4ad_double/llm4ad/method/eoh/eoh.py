"""The loop: sampler threads that take the operators in turn."""

from __future__ import annotations

import concurrent.futures
import time
from threading import Thread

from ...base import LLM, SecureEvaluator, TextFunctionProgramConverter
from .population import Population
from .profiler import EoHProfiler
from .prompt import EoHPrompt
from .sampler import EoHSampler

__all__ = ["LLM", "EoH", "EoHProfiler"]


class EoH:
    def __init__(
        self, llm, evaluation, profiler=None, max_generations=10, max_sample_nums=100, pop_size=5, selection_num=2,
        use_e2_operator=True, use_m1_operator=True, use_m2_operator=True, num_samplers=1, num_evaluators=1, *,
        resume_mode=False, debug_mode=False, multi_thread_or_process_eval="thread", **kwargs,
    ):  # fmt: skip
        self._template_program_str = evaluation.template_program
        self._task_description_str = evaluation.task_description
        self._max_generations = max_generations
        self._max_sample_nums = max_sample_nums
        self._pop_size = pop_size
        self._selection_num = selection_num
        self._use_e2_operator = use_e2_operator
        self._use_m1_operator = use_m1_operator
        self._use_m2_operator = use_m2_operator
        self._num_samplers = num_samplers
        self._resume_mode = resume_mode
        llm.debug_mode = debug_mode
        self._function_to_evolve = TextFunctionProgramConverter.text_to_function(self._template_program_str)
        self._function_to_evolve_name = self._function_to_evolve.name
        self._template_program = TextFunctionProgramConverter.text_to_program(self._template_program_str)
        self._population = Population(pop_size=pop_size)
        self._sampler = EoHSampler(llm, self._template_program_str)
        self._evaluator = SecureEvaluator(evaluation, debug_mode=debug_mode, **kwargs)
        self._profiler = profiler
        self._tot_sample_nums = 0
        self._initial_sample_nums_max = min(max_sample_nums, 2 * pop_size)
        self._evaluation_executor = concurrent.futures.ThreadPoolExecutor(num_evaluators)
        if profiler is not None:
            profiler.record_parameters(llm, evaluation, self)

    def _sample_evaluate_register(self, prompt):
        start = time.time()
        thought, function = self._sampler.get_thought_and_function(prompt)
        if thought is None or function is None:
            return
        sampled = time.time() - start
        program = TextFunctionProgramConverter.function_to_program(function, self._template_program)
        function.score, function.evaluate_time = self._evaluation_executor.submit(
            self._evaluator.evaluate_program_record_time, program
        ).result()
        function.algorithm, function.sample_time = thought, sampled
        if self._profiler is not None:
            self._profiler.register_function(function, program=str(program))
            if isinstance(self._profiler, EoHProfiler):
                self._profiler.register_population(self._population)
            self._tot_sample_nums += 1
        self._population.register_function(function)

    def _continue_loop(self):
        within = self._max_generations is None or self._population.generation < self._max_generations
        return within and self._tot_sample_nums < self._max_sample_nums

    def _iteratively_use_eoh_operator(self):
        task, function = self._task_description_str, self._function_to_evolve
        used = {"e1": True, "e2": self._use_e2_operator, "m1": self._use_m1_operator, "m2": self._use_m2_operator}
        while self._continue_loop():
            try:
                for operator in [operator for operator in used if used[operator]]:
                    if operator in ("e1", "e2"):
                        chosen = [self._population.selection() for _ in range(self._selection_num)]
                    else:
                        chosen = self._population.selection()
                    prompt = getattr(EoHPrompt, f"get_prompt_{operator}")(task, chosen, function)
                    self._sample_evaluate_register(prompt)
                    if not self._continue_loop():
                        break
            except Exception:
                continue
        self._evaluation_executor.shutdown(cancel_futures=True)

    def _iteratively_init_population(self):
        while self._population.generation == 0:
            try:
                prompt = EoHPrompt.get_prompt_i1(self._task_description_str, self._function_to_evolve)
                self._sample_evaluate_register(prompt)
                if self._tot_sample_nums >= self._initial_sample_nums_max:
                    break
            except Exception:
                continue

    def _multi_threaded_sampling(self, fn, *args, **kwargs):
        threads = [Thread(target=fn, args=args, kwargs=kwargs) for _ in range(self._num_samplers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run(self):
        if not self._resume_mode:
            self._multi_threaded_sampling(self._iteratively_init_population)
            self._population.survival()
            if len(self._population) < self._selection_num:
                print("The search is terminated")
                return
        self._multi_threaded_sampling(self._iteratively_use_eoh_operator)
        if self._profiler is not None:
            self._profiler.finish()
        self._sampler.llm.close()
