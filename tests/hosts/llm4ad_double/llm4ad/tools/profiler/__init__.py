"""The base profiler: samples and a log with everything that the model's object holds."""

from __future__ import annotations

import json
import os
from datetime import datetime
from threading import Lock


class ProfilerBase:
    def __init__(
        self, log_dir=None, *, initial_num_samples=0, log_style="complex", create_random_path=True, **kwargs
    ):  # fmt: skip
        self._num_samples = initial_num_samples
        stamp = datetime.now().strftime("%Y%m%d_%H%M%S_%f")
        self._log_dir = os.path.join(log_dir, stamp) if create_random_path else log_dir
        self._cur_best_program_score = float("-inf")
        self._register_function_lock = Lock()
        self.finished = 0

    def record_parameters(self, llm, prob, method):
        self._samples_json_dir = os.path.join(self._log_dir, "samples")
        os.makedirs(self._samples_json_dir, exist_ok=True)
        with open(os.path.join(self._log_dir, "run_log.txt"), "a") as file:
            print(f"LLM: {type(llm).__name__}", file=file)
            for name, value in [*vars(llm).items(), *vars(method).items()]:
                print(f"{name}: {value}", file=file)

    def register_function(self, function, program="", *, resume_mode=False):
        with self._register_function_lock:
            self._num_samples += 1
            if function.score is not None:
                self._cur_best_program_score = max(self._cur_best_program_score, function.score)
            if not resume_mode:
                self._write_json(function, program)

    def _write_json(self, function, program):
        low = (self._num_samples - 1) // 200 * 200
        path = os.path.join(self._samples_json_dir, f"samples_{low + 1}~{low + 200}.json")
        data = []
        if os.path.exists(path):
            with open(path) as file:
                data = json.load(file)
        data.append({"sample_order": self._num_samples, "algorithm": function.algorithm, "function": str(function),
                     "score": function.score, "program": program})  # fmt: skip
        with open(path, "w") as file:
            json.dump(data, file)

    def finish(self):
        self.finished += 1
