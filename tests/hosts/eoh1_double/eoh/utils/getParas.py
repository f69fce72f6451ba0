"""All settings of a run."""

DEFAULTS = {
    "method": "eoh", "problem": None, "selection": None, "management": None,
    "ec_pop_size": 5, "ec_n_pop": 5, "ec_operators": None, "ec_m": 2, "ec_operator_weights": None,
    "llm_use_local": False, "llm_local_url": None, "llm_api_endpoint": None, "llm_api_key": None, "llm_model": None,
    "exp_debug_mode": False, "exp_output_path": "./", "exp_use_seed": False, "exp_seed_path": "./seeds/seeds.json",
    "exp_use_continue": False, "exp_continue_id": 0, "exp_continue_path": "./results/pops/population_generation_0.json",
    "exp_n_proc": 1, "eva_timeout": 30, "eva_numba_decorator": False,
}  # fmt: skip


class Paras:
    def __init__(self):
        self.__dict__.update(DEFAULTS)

    def set_ec(self):
        self.management = self.management or "pop_greedy"
        self.selection = self.selection or "prob_rank"
        self.ec_operators = self.ec_operators or ["e1", "e2", "m1", "m2"]
        if self.ec_operator_weights is None:
            self.ec_operator_weights = [1] * len(self.ec_operators)
        elif len(self.ec_operator) != len(self.ec_operator_weights):  # no such attribute, in the original either
            raise AssertionError

    def set_paras(self, *args, **kwargs):
        self.__dict__.update((key, value) for key, value in kwargs.items() if key in DEFAULTS)
        self.set_ec()
