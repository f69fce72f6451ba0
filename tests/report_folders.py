"""Run folders and studies with made-up numbers, as `run` and `study` leave them."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ttc_esopt.es.shaping import zscore

CODE = "import numpy as np\n\n\ndef f(x):\n    # weigh the way home\n    return np.argmin(x - 0.2 * x.mean())\n"
EVIL = "</code></pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}\x1b[2J\ud800 $\\frac{"


def make_run(
    folder: Path, candidates: int = 120, seed: int = 1, best: float = 6.5, evil: bool = False, arm: str = "esopt",
    problem: str = "tsp_construct", ended: bool = False,
) -> Path:  # fmt: skip
    """A run folder as `run` leaves it, with made-up numbers; `ended` adds what `compare` asks for."""
    folder.mkdir(parents=True)
    samples, steps, timings = [], [], []
    lowest, at = math.inf, None
    for order in range(candidates):
        written = order >= 3
        valid = not written or (order * (7 + seed) + len(arm + problem)) % 10 < 3 + 4 * order / candidates
        objective = round(best + 0.9 * math.exp(-order / 40) + 0.05 * ((order * 13 + seed) % 9), 5) if valid else None
        copy = order % 6 == 0 and written and valid
        samples.append(
            {
                "order": order,
                "generation": order // 30,
                "operator": ("i1", "e1", "m1", "m2")[order % 4] if written else "seed",
                "parents": [max(0, order - 7), max(0, order - 11)][: order % 3] if written else [],
                "parent_objectives": [best + 0.3 + 0.1 * (order % 5)] * min(order % 3, 2) if written else [],
                "direction": order * 17 if order % 4 > 1 else None,
                "reply_index": 0,
                "sigma": 0.006,
                "sampling_seed": order,
                "prompt_tokens": 200,
                "tokens": 150 if written else 0,
                "finish": "stop",
                "description": EVIL if evil else f"Weigh distance and the way home, version {order} of {arm}.",
                "code": CODE.replace("0.2", f"0.{order}") + (EVIL if evil else ""),
                "objective": objective,
                "failure": None if valid else ("reply", "exception", "infeasible", EVIL)[order % (4 if evil else 3)],
                "detail": "" if valid else EVIL,
                "reply": f"{problem} {arm} {order}\n```python\n{CODE}```" if written else None,
                "copy_of": 2 if copy else None,
                "reward": None if objective is None else -objective,
            }  # fmt: skip
        )
        timings.append({"order": order, "generate": 2.5, "evaluate": 0.3})
        if objective is not None and objective < lowest:
            lowest, at = objective, order
    for t in range(candidates // 15 if arm != "frozen" else 0):
        rewards = [-7.2 + 0.05 * t + 0.04 * ((i * 7 + t) % 5) for i in range(10)]
        steps.append(
            {
                "t": t,
                "operator": "m1",
                "orders": [t, t + 9],
                "rewards": rewards,
                "seeds": [100 * t + i for i in range(10)],
                "weights": [0.0] * 10 if t == 2 else zscore(rewards).tolist(),
                "sigma": 0.003 * (1 + math.cos(math.pi * t / max(1, candidates // 15 - 1))),
                "alpha": 0.003,
                "taken": t != 2,
                "skipped": "equal rewards" if t == 2 else None,
            }
        )
        timings.append({"t": t, "step": 0.4})
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    (folder / "run.toml").write_text(
        f'[settings]\nproblem = "{problem}"\nscaffold = "eoh"\nmodel = "smollm2-135m"\narm = "{arm}"\n'
        f"budget = {candidates}\nseed = {seed}\nsigma = 0.006\n\n[run]\n"
        f'command = "ttc-esopt run --problem tsp_construct --esopt --seed {seed} --out demo"\n'
        '\n[versions]\nttc-esopt = "0.1.0"\n\n[model]\nfingerprint = "0123456789abcdef"\ndtype = "float32"\n'
        "parameters = 135000000\n" + ('\n[result]\nfingerprint = "0123456789abcdef"\n' if ended else "")
    )
    rows = [
        {"name": "nearest neighbour", "train": 7.0044, "val": 7.01, "test": 7.0},
        {"name": "best found", "train": lowest, "val": lowest + 0.02, "test": lowest + 0.03},
    ]
    scores = {"order": at, "operator": "m1", "objective": lowest, "val": lowest + 0.02, "test": lowest + 0.03,
              "description": EVIL if evil else "Weigh distance and the way home.", "rows": rows,
              "reference": {"nearest neighbour": 7.0044}, "chosen_on": "val", "size": 50, "own_sets": []}  # fmt: skip
    (folder / "best.json").write_text(json.dumps(scores))
    (folder / "best.py").write_text(CODE, encoding="utf-8")
    return folder


RECIPE = """
name = "pilot"
about = "Does moving the model find better heuristics than leaving it as it is, at equal numbers of candidates?"
hardware = "two CPU cores, 4 GiB, about 20 minutes"
baseline = "frozen"
seeds = [%s]
problems = ["tsp_construct", "kp_construct"]
[settings]
scaffold = "eoh"
model = "smollm2-135m"
budget = %d
sigma = 0.006
[arms.frozen]
arm = "frozen"
[arms.shuffled]
arm = "shuffled"
[arms.esopt]
arm = "esopt"
[[published]]
problem = "tsp_construct"
split = "train"
size = 50
arm = "esopt"
mean = 6.4810
best = 6.4278
n = 3
source = "the paper, table 2"
"""


def make_study(folder: Path, seeds: int = 3, candidates: int = 60, missing: int = 1) -> Path:
    """A study of three arms on two problems; the last `missing` runs have not begun."""
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(RECIPE % (", ".join(str(1 + i) for i in range(seeds)), candidates))
    cells = [
        (problem, arm, 1 + i)
        for i in range(seeds)
        for problem in ("tsp_construct", "kp_construct")
        for arm in ("frozen", "shuffled", "esopt")
    ]
    for problem, arm, seed in cells[: len(cells) - missing]:
        best = {"frozen": 6.5, "shuffled": 6.52, "esopt": 6.4}[arm] + 0.01 * ((seed * 7) % 5)
        make_run(folder / problem / arm / f"seed-{seed}", candidates, seed, best, arm=arm, problem=problem, ended=True)
    return folder
