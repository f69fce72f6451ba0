"""How fast asp_construct evaluates a program: our evaluator against a plain Python rendering.

    python tests/benchmarks/bench_admissible_sets.py [--rounds 5] [--large] [--json]

Both rate every word with the same program, choose greedily and expand, on one thread. The plain rendering is what the
published evaluator does (2 s for n = 15, 410 s for n = 21): after each choice a loop over the words that are left, the
words chosen before and the groups, with a look-up of the sorted triple in a set. Ours runs through the whole
`Evaluator`, a sandboxed process per evaluation; warm, after one evaluation that does not count, and each time with
another comment in the program, since outcomes are remembered. Seconds are those of the clock, ours the median.
`--large` adds n = 21 (some minutes); without it, ours alone is timed there. Exit status 1 if a ratio is below 50.
"""

import argparse
import itertools
import json
import statistics
import sys
import time

import numpy as np

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import load
from ttc_esopt.solvers.admissible_sets import GROUPS

EXPECTED = 50.0
WEIGHT = [sum(letter > 0 for letter in group) for group in GROUPS]


def turned(group: tuple[int, int, int]) -> set[tuple[int, int, int]]:
    return {group[k:] + group[:k] for k in range(3)}


def conflicts() -> set[tuple[int, int, int]]:
    """Sorted triples of group numbers that can be turned so that no place tells the three apart."""
    good = {(0, 1, 2), (0, 0, 1), (0, 0, 2)}
    return {
        triple
        for triple in itertools.combinations_with_replacement(range(len(GROUPS)), 3)
        if any(
            all(tuple(sorted(place)) not in good for place in zip(*groups, strict=True))
            for groups in itertools.product(*(turned(GROUPS[number]) for number in triple))
        )
    }


def survivors(chosen: np.ndarray, new: np.ndarray, left: list[np.ndarray], bad: set) -> list[int]:
    """Indices of the words that are left which do not conflict with the new one and those chosen before."""
    kept = []
    for index, child in enumerate(left):
        if all(WEIGHT[x] <= WEIGHT[y] for x, y in zip(new, child, strict=True)):
            continue
        if all(WEIGHT[x] >= WEIGHT[y] for x, y in zip(new, child, strict=True)):
            continue
        for old in chosen:
            if all(tuple(sorted(triple)) in bad for triple in zip(old, new, child, strict=True)):
                break
        else:
            kept.append(index)
    return kept


def plain(code: str, n: int, w: int) -> int:
    """Size of the expanded set."""
    namespace = {"np": np}
    exec(code, namespace)
    bad = conflicts()
    rows = itertools.product(range(len(GROUPS)), repeat=n // 3)
    left = [np.array(row, np.int32) for row in rows if sum(WEIGHT[x] for x in row) == w]
    scores = np.array([namespace["priority"](sum((GROUPS[x] for x in row), ()), n, w) for row in left])
    chosen = np.empty((0, n // 3), np.int32)
    while left:
        best = int(np.argmax(scores))
        new = left[best]
        kept = survivors(chosen, new, left, bad)
        left, scores = [left[i] for i in kept], scores[kept]
        chosen = np.concatenate([chosen, new[None]])
    family = [sum(word, ()) for row in chosen for word in itertools.product(*(turned(GROUPS[x]) for x in row))]
    return len(family)


def ours(problem, code: str, n: int, rounds: int) -> tuple[float, float]:
    """Median seconds and the objective."""
    times = []
    with Evaluator(problem, split="test", size=n, workers=1) as evaluator:
        for round_ in range(rounds + 1):
            began = time.perf_counter()
            (outcome,) = evaluator.evaluate([f"# {round_}\n{code}"])
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:]), outcome.objective


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="also the plain rendering of n = 21")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    problem = load("asp_construct")
    code = problem.baselines["constant"]
    results = {}
    for n in (15, 21):
        (instance,) = problem.instances("test", n)
        seconds, objective = ours(problem, code, n, options.rounds)
        result = results[f"({n}, {instance.w})"] = {"seconds": round(seconds, 4), "objective": objective}
        if n == 15 or options.large:
            began = time.perf_counter()
            result["plain_objective"] = float(-plain(code, n, instance.w))
            plain_seconds = time.perf_counter() - began
            result |= {"plain_seconds": round(plain_seconds, 3), "ratio": round(plain_seconds / seconds, 1)}
    if options.json:
        print(json.dumps(results))
    else:
        print(f"asp_construct, one thread, median of {options.rounds} evaluations")
        for name, result in results.items():
            print(f"{name:9}  evaluator     {result['seconds']:8.3f} s  objective {result['objective']:g}")
            if "ratio" in result:
                print(
                    f"{'':9}  plain Python  {result['plain_seconds']:8.3f} s  objective {result['plain_objective']:g}"
                )
                print(f"{'':9}  ratio         {result['ratio']:8.1f}")
        print(f"expected: ratios of at least {EXPECTED:g}")
    equal = all(r["objective"] == r.get("plain_objective", r["objective"]) for r in results.values())
    return 0 if equal and all(r.get("ratio", EXPECTED) >= EXPECTED for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
