"""A problem as users of EoH 0.1 write it: no base class, and evaluate() tells nothing of what went wrong."""

import types

import numpy as np
from prompts import GetPrompts


class Bins:
    def __init__(self):
        self.prompts = GetPrompts()

    def evaluate(self, code_string):
        try:
            module = types.ModuleType("heuristic_module")
            exec(code_string, module.__dict__)
            bins = np.full(20, 10.0)
            for item in [6, 5, 4, 5, 3, 7, 2, 8]:
                fits = np.nonzero(bins >= item)[0]
                bins[fits[np.argmax(module.score(item, bins[fits]))]] -= item
            return float((bins < 10.0).sum()) / 3
        except Exception:
            return None
