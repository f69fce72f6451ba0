"""The part of EoH 0.2 that a problem sees: the class to derive from."""

import numpy as np


class BaseProblem:
    template_program = ""
    task_description = ""

    def __init__(self, timeout=40, n_processes=1):
        self.timeout, self.n_processes = timeout, n_processes

    def evaluate(self, code_string):
        """None for whatever goes wrong."""
        try:
            names = {"np": np}
            exec(code_string, names)
            return self.evaluate_program(code_string, names["select_next_node"])
        except Exception:
            return None
