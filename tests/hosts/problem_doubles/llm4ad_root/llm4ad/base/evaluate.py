"""The class that tasks derive from."""


class Evaluation:
    def __init__(
        self, template_program, task_description="", use_numba_accelerate=False, use_protected_div=False,
        protected_div_delta=1e-5, random_seed=None, timeout_seconds=None,
    ):  # fmt: skip
        self.template_program, self.task_description = template_program, task_description
        self.use_numba_accelerate, self.use_protected_div = use_numba_accelerate, use_protected_div
        self.protected_div_delta, self.random_seed = protected_div_delta, random_seed
        self.timeout_seconds = timeout_seconds
        self.exec_code = True
