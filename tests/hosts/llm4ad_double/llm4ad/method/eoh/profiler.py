"""Also writes a population, when the first sample of the next generation is registered."""

from __future__ import annotations

import json
import os
from threading import Lock

from ...tools.profiler import ProfilerBase


class EoHProfiler(ProfilerBase):
    def __init__(self, log_dir=None, **kwargs):
        super().__init__(log_dir, **kwargs)
        self._cur_gen = 0
        self._pop_lock = Lock()
        self._ckpt_dir = os.path.join(self._log_dir, "population")
        os.makedirs(self._ckpt_dir, exist_ok=True)

    def register_population(self, pop):
        with self._pop_lock:
            if self._num_samples == 0 or pop.generation == self._cur_gen:
                return
            members = [{"algorithm": one.algorithm, "function": str(one), "score": one.score} for one in pop.population]
            with open(os.path.join(self._ckpt_dir, f"pop_{pop.generation}.json"), "w") as file:
                json.dump(members, file)
            self._cur_gen += 1
