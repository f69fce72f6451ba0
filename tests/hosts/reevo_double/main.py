"""Runs the double as the host's main.py does, without Hydra: SETTING=VALUE on the command line."""

import json
import os
import subprocess
import sys

from utils.utils import init_client


class Settings(dict):
    def __getattr__(self, name):
        return Settings(self[name]) if isinstance(self[name], dict) else self[name]


ROOT = os.path.dirname(os.path.abspath(__file__))
DEFAULTS = {
    "algorithm": "reevo", "max_fe": 9, "pop_size": 2, "init_pop_size": 4, "mutation_rate": 1.0, "timeout": 20,
    "seed_func": "```python\ndef grow_v1(x):\n    return 100.0\n```",
    "problem": {"problem_name": "toy", "problem_type": "toy", "obj_type": "min", "problem_size": 1,
                "func_name": "grow"},
}  # fmt: skip


def main(**given):
    cfg = Settings({**DEFAULTS, **given})
    client = cfg.get("generator") or init_client(cfg)
    from reevo import ReEvo

    code, path = ReEvo(cfg, ROOT, client, mutation_llm=cfg.get("mutation")).evolve()
    with open("validation.txt", "w") as stdout:
        subprocess.run(["python", f"{ROOT}/problems/toy/eval.py", "-1", ROOT, "val"], stdout=stdout)
    return code


if __name__ == "__main__":
    print(main(**{name: json.loads(value) for name, value in (text.split("=", 1) for text in sys.argv[1:])}))
