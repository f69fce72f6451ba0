import os

from .config import EoHConfig
from .eoh.eoh import EOH


class EoH:
    def __init__(
        self, llm, problem, pop_size=5, n_pop=20, operators=None, operator_weights=None, n_parents=2,
        n_processes=None, output_dir="./", debug=False, use_seed=False, seed_path="./seeds/seeds.json",
        use_continue=False, continue_path="./results/pops/population_generation_0.json", continue_id=0,
    ):  # fmt: skip
        if n_processes is not None:
            problem.n_processes = n_processes
        self._config = EoHConfig(
            llm=llm, pop_size=pop_size, n_pop=n_pop, operators=operators or ["e1", "e2", "m1", "m2"],
            operator_weights=operator_weights, n_parents=n_parents, output_dir=output_dir, debug=debug,
            use_seed=use_seed, seed_path=seed_path, use_continue=use_continue, continue_path=continue_path,
            continue_id=continue_id,
        )  # fmt: skip
        self._problem = problem
        for name in ("pops", "pops_best", "samples"):
            os.makedirs(os.path.join(output_dir, "results", name), exist_ok=True)

    def run(self):
        EOH(self._config, self._problem).run()
