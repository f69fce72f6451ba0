"""How fast bpp_aco evaluates a program on its train set: our evaluator against a plain numpy rendering.

    python tests/benchmarks/bench_bin_packing.py [--rounds 5] [--samples 200] [--json]

Both do the same work on one thread: run the program on 5 instances of 500 items, then take the best of 200 greedy
packings of each. The plain rendering is what the published evaluator does (11 to 16 s): in every step the mean over the
rows of all items in the bin, for all 500 items. Ours runs through the whole `Evaluator`: a sandboxed process per
evaluation, the matrices sent back, the packings in the parent; warm, after one evaluation that does not count, and
each time with another comment in the program, since outcomes are remembered. Seconds are those of the clock, ours the
median. Exit status 1 if the ratio is below 50. With fewer `--samples` the plain seconds are scaled to 200.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import load

EXPECTED, SAMPLES = 50.0, 200


def plain_sample(affinity: np.ndarray, sizes: np.ndarray, capacity: int, random: np.random.Generator) -> int:
    """Bins of one greedy packing."""
    free = np.ones(len(sizes), dtype=bool)
    inside = np.zeros(len(sizes), dtype=bool)
    bins, room, held = 1, capacity, 0
    for _ in range(len(sizes)):
        fits = np.logical_and(sizes <= room, free)
        if not fits.any():
            bins, room, held = bins + 1, capacity, 0
            inside[:] = False
            fits = free
        if held:
            item = int(np.argmax((affinity[inside].sum(axis=0) / held + 1e-5) * fits))
        else:
            item = int(random.choice(np.flatnonzero(fits)))
        inside[item], free[item] = True, False
        room -= sizes[item]
        held += 1
    return bins


def plain(code: str, instances: list, samples: int) -> float:
    """Mean over the instances of the best of the samples."""
    namespace = {"np": np}
    exec(code, namespace)
    random = np.random.default_rng(0)
    best = []
    for instance in instances:
        rated = namespace["heuristics_v2"](instance.sizes.copy(), instance.capacity).astype(float)
        affinity = np.clip(rated, 1e-6, 1e6)
        affinity = np.maximum(affinity / affinity.max(), 1e-6)
        best.append(min(plain_sample(affinity, instance.sizes, instance.capacity, random) for _ in range(samples)))
    return statistics.fmean(best)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of the plain rendering (fewer: a rough figure)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    problem = load("bpp_aco")
    code = problem.baselines["large_with_large"]

    began = time.perf_counter()
    plain_objective = plain(code, problem.instances("train", 500), options.samples)
    plain_seconds = (time.perf_counter() - began) * SAMPLES / options.samples

    times, objectives = [], []
    with Evaluator(problem, workers=1) as evaluator:
        for round_ in range(options.rounds + 1):
            began = time.perf_counter()
            (outcome,) = evaluator.evaluate([f"# {round_}\n{code}"])
            times.append(time.perf_counter() - began)
            objectives.append(outcome.objective)
    seconds = statistics.median(times[1:])
    result = {
        "plain_seconds": round(plain_seconds, 3),
        "seconds": round(seconds, 4),
        "ratio": round(plain_seconds / seconds, 1),
        "plain_objective": plain_objective,
        "objective": objectives[0],
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"bpp_aco, train (5 x 500 items, {SAMPLES} samples), one thread, median of {options.rounds} evaluations")
        print(f"plain numpy  {plain_seconds:8.3f} s  mean bins {plain_objective}")
        print(f"evaluator    {seconds:8.3f} s  mean bins {objectives[0]} (other random numbers)")
        print(f"ratio        {result['ratio']:8.1f}    expected: at least {EXPECTED:g}")
    return 0 if result["ratio"] >= EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
