"""What a user's script starts."""

import os
import random

from .methods import methods


class EVOL:
    def __init__(self, paras, prob=None, **kwargs):
        for name in ("history", "pops", "pops_best"):
            os.makedirs(os.path.join(paras.exp_output_path, "results", name), exist_ok=True)
        self.paras = paras
        random.seed(2024)

    def run(self):
        methods.Methods(self.paras, self.paras.problem).get_method().run()
