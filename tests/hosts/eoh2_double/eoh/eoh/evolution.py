import random
import re

import numpy as np

from ..llm.interface_LLM import InterfaceLLM


def parent_selection(pop, m):
    return random.choices(pop, weights=[1 / (rank + 1 + len(pop)) for rank in range(len(pop))], k=m)


class Evolution:
    def __init__(self, config, problem):
        llm = config.llm
        self.interface_eval, self.n_parents = problem, config.n_parents
        self.llm = InterfaceLLM(llm.api_endpoint, llm.api_key, llm.model, llm.use_local, llm.local_url, timeout=9)

    def _build_prompt(self, operator, parents=None):
        parents = [parents] if isinstance(parents, dict) else parents or []
        shown = "\n".join(f"{one['algorithm']}\n{one['code']}" for one in parents)
        return f"{operator}: {self.interface_eval.task_description}\n{shown}\n{self.interface_eval.template_program}"

    def _extract(self, response):
        code = re.findall(r"```(?:python)?\n(.*?)```", response or "", re.DOTALL)
        return re.findall(r"\{([^{}]{8,})\}", (response or "").partition("```")[0]), code

    def _prepend_imports(self, code):
        return code if "import numpy" in code else f"import numpy as np\n{code}"

    def _call_llm(self, prompt):
        for _ in range(4):
            algorithm, code = self._extract(self.llm.get_response(prompt))
            if algorithm and code:
                return self._prepend_imports(code[0]), algorithm[0]
        return None, None

    def _generate(self, population, operator):
        parents = None
        if operator.startswith("e"):
            parents = parent_selection(population, self.n_parents)
        elif operator.startswith("m"):
            parents = parent_selection(population, 1)[0]
        if operator not in ("i1", "e1", "e2", "m1", "m2", "m3"):
            raise ValueError(f"no such operator: {operator}")
        code, algorithm = self._call_llm(self._build_prompt(operator, parents))
        return parents, code, algorithm

    def get_offspring(self, population, operator):
        parents, code, algorithm = self._generate(population, operator)
        for _ in range(2):
            if code is None:
                return None, None
            if not self._is_duplicate(population, code):
                break
            _, code, algorithm = self._generate(population, operator)
        if code is None:
            return None, None
        return parents, {"algorithm": algorithm, "code": code, "objective": self._judge(code), "other_inf": None}

    def _judge(self, code):
        fitness = self.interface_eval.evaluate(code)
        return None if fitness is None or not np.isfinite(fitness) else float(np.round(fitness, 5))

    def get_algorithm(self, population, operators):
        results = [self.get_offspring(population, operator) for operator in operators]
        return [parents for parents, _ in results], [offspring for _, offspring in results]

    def evaluate_seeds(self, seeds):
        judged = [{**seed, "objective": self._judge(seed["code"]), "other_inf": None} for seed in seeds]
        return [one for one in judged if one["objective"] is not None]

    def _is_duplicate(self, population, code):
        return any(one["code"] == code for one in population)
