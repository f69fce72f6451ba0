"""Survival after every `pop_size` registrations; what resembles another one gets the score of a failure."""

from __future__ import annotations

import math
from threading import Lock

import numpy as np


class Population:
    def __init__(self, pop_size, generation=0, pop=None):
        self._population = pop or []
        self._pop_size = pop_size
        self._lock = Lock()
        self._next_gen_pop = []
        self._generation = generation

    def __len__(self):
        return len(self._population)

    @property
    def population(self):
        return self._population

    @property
    def generation(self):
        return self._generation

    def survival(self):
        everybody = sorted(self._population + self._next_gen_pop, key=lambda one: one.score, reverse=True)
        self._population, self._next_gen_pop = everybody[: self._pop_size], []
        self._generation += 1

    def register_function(self, func):
        if self._generation == 0 and func.score is None:
            return
        if func.score is None:
            func.score = float("-inf")
        with self._lock:
            others = self._population + self._next_gen_pop
            if any(str(one) == str(func) or one.score == func.score for one in others):
                func.score = float("-inf")
            self._next_gen_pop.append(func)
            if len(self._next_gen_pop) >= self._pop_size:
                self.survival()

    def selection(self):
        valid = sorted((one for one in self._population if not math.isinf(one.score)), key=lambda one: -one.score)
        weights = np.array([1 / (rank + len(valid)) for rank in range(len(valid))])
        return np.random.choice(valid, p=weights / weights.sum())
