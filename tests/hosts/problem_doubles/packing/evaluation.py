"""A task as users of LLM4AD write it; the larger the value, the better."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "llm4ad_root"))

import numpy as np
from llm4ad.base import Evaluation

TEMPLATE = '''
import numpy as np

def priority(item: float, bins: np.ndarray) -> np.ndarray:
    """Rate the bins."""
    return item - bins
'''


class Packing(Evaluation):
    def __init__(self, timeout_seconds=20, items=(6, 5, 4, 5, 3, 7, 2, 8), **more):
        super().__init__(TEMPLATE, "Rate the bins for an item.", timeout_seconds=timeout_seconds, **more)
        self.items = items

    def evaluate_program(self, program_str, callable_func, **kwargs):
        assert "def priority" in program_str and "import numpy as np" in program_str
        bins = np.full(20, 10.0)
        for item in self.items:
            fits = np.nonzero(bins >= item)[0]
            bins[fits[np.argmax(callable_func(item, bins[fits]))]] -= item
        return -(bins < 10.0).sum()
