"""What isolation costs for one candidate, against a fresh interpreter for each.

    python tests/benchmarks/bench_isolation.py [--programs 200]

The problem does nothing and has one instance, so that what is left is fork, sandbox, result and cleaning up. A fresh
interpreter that imports numpy is what a framework pays that starts one per candidate.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ttc_esopt.evaluation import Evaluator, sandbox_layers
from ttc_esopt.problems import load

NOTHING = """
import numpy as np
from ttc_esopt.problems import Problem

class Nothing(Problem):
    name, function, task = "nothing", "f", "Return the number."
    template = "def f(x):\\n"
    splits, counts = {"train": (1,)}, {"train": 1}
    def instances(self, split, size): return [1.0]
    def run(self, function, instance): return np.array([float(function(instance))])
    def score(self, instance, output): return float(output[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    count = parser.parse_args().programs
    print("\n".join(sandbox_layers()))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nothing.py"
        file.write_text(NOTHING)
        with Evaluator(load(f"{file}:Nothing"), workers=1) as evaluator:
            evaluator.evaluate(["def f(x): return x"])  # starts the warm process
            costs = []
            for number in range(count):
                began = time.perf_counter()
                outcome = evaluator.evaluate([f"def f(x): return x + {number}"])[0]
                costs.append(1000 * (time.perf_counter() - began))
                assert outcome.objective == 1.0 + number
    fresh = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        fresh.append(1000 * (time.perf_counter() - began))
    costs.sort()
    print(
        f"one candidate, isolated: median {statistics.median(costs):.1f} ms, 95 % below "
        f"{costs[int(0.95 * count)]:.1f} ms, most {costs[-1]:.1f} ms ({count} programs)"
    )
    print(f"a fresh interpreter with numpy: median {statistics.median(fresh):.1f} ms")


if __name__ == "__main__":
    main()
