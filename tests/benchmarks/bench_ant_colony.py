"""How fast a program of tsp_aco or cvrp_aco is evaluated: our compiled colonies against the same protocol in torch.

    python tests/benchmarks/bench_ant_colony.py [--problem tsp_aco|cvrp_aco] [--instances 5] [--rounds 5] [--json]

The slow side is written the way such colonies usually are: the ants of an iteration move together, each step draws
from a torch `Categorical`, and pheromone is left ant by ant in Python. Both sides evaluate the plain inverse-distance
program, whose own time is negligible, on the same train instances with one thread; ours goes through the evaluator,
sandbox included, after one evaluation that is thrown away (compilation, processes). Seconds are those of the clock:
one run of the slow side, the median over the rounds of ours. Exit status 1 if the ratio is below 50.
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.distributions import Categorical

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import load

EXPECTED = 50.0
ITERATIONS, ANTS, DECAY = 100, 30, 0.9


def slow_tsp(instance) -> float:
    """Length of the best tour, float32."""
    distances = torch.tensor(with_ones(instance), dtype=torch.float32)
    n, ants = len(distances), torch.arange(ANTS)
    desire = torch.clamp(1.0 / distances, min=1e-9)
    pheromone, best = torch.ones(n, n), float("inf")
    for _ in range(ITERATIONS):
        node = torch.randint(n, (ANTS,))
        free = torch.ones(ANTS, n)
        free[ants, node] = 0
        stops = [node]
        for _ in range(n - 1):
            weights = pheromone[node] * desire[node] * free
            if not torch.isfinite(weights).all() or bool((weights < 0).any()):  # the published evaluator looks, too
                raise ValueError("expected finite weights of at least 0")
            node = Categorical(weights).sample()
            free[ants, node] = 0
            stops.append(node)
        tours = torch.stack(stops, dim=1)
        after = tours.roll(-1, dims=1)
        costs = distances[tours, after].sum(dim=1)
        best = min(best, float(costs.min()))
        pheromone = pheromone * DECAY
        for ant in range(ANTS):
            pheromone[tours[ant], after[ant]] += 1.0 / costs[ant]
            pheromone[after[ant], tours[ant]] += 1.0 / costs[ant]
    return best


def slow_cvrp(instance) -> float:
    """Least cost of any ant, its waiting at the depot charged, float64."""
    distances = torch.tensor(with_ones(instance))
    demands = torch.tensor(instance.demands)
    n, ants = len(distances), torch.arange(ANTS)
    desire = 1.0 / distances + 1e-9
    pheromone, best = torch.ones(n, n, dtype=torch.float64), float("inf")
    for _ in range(ITERATIONS):
        node = torch.zeros(ANTS, dtype=torch.long)
        free = torch.ones(ANTS, n)
        room = torch.full((ANTS,), float(instance.capacity), dtype=torch.float64)
        stops = [node]
        while True:
            free[ants, node] = 0
            waiting = (free[:, 1:] > 0).any(dim=1)
            free[:, 0] = ((node != 0) | ~waiting).float()
            if not waiting.any() and (node == 0).all():
                break
            room = torch.where(node == 0, float(instance.capacity), room - demands[node])
            fits = (demands[None, :] <= room[:, None]).float()
            node = Categorical(pheromone[node] * desire[node] * free * fits).sample()
            stops.append(node)
        paths = torch.stack(stops, dim=1)
        costs = distances[paths[:, :-1], paths[:, 1:]].sum(dim=1)
        best = min(best, float(costs.min()))
        pheromone = pheromone * DECAY
        for ant in range(ANTS):
            pheromone[paths[ant, :-1], paths[ant, 1:]] += 1.0 / costs[ant]
        pheromone[pheromone < 1e-10] = 1e-10
    return best


def with_ones(instance) -> np.ndarray:
    matrix = instance.matrix()
    np.fill_diagonal(matrix, 1.0)
    return matrix


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", choices=("tsp_aco", "cvrp_aco"), default="tsp_aco")
    parser.add_argument("--instances", type=int, help="how many of the train instances (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    problem = load(options.problem)
    instances = problem.instances("train", 50)[: options.instances]
    code = problem.baselines["inverse_distance"]

    times = []
    with Evaluator(problem, instances=instances, workers=1) as evaluator:
        for _ in range(1 + options.rounds):
            began = time.perf_counter()
            (outcome,) = evaluator.evaluate([f"{code}\n# round {len(times)}\n"])
            times.append(time.perf_counter() - began)
    ours = statistics.median(times[1:])
    began = time.perf_counter()
    with torch.no_grad():
        values = [(slow_tsp if options.problem == "tsp_aco" else slow_cvrp)(instance) for instance in instances]
    slow = time.perf_counter() - began

    result = {
        "problem": options.problem,
        "instances": len(instances),
        "torch_seconds": round(slow, 2),
        "our_seconds": round(ours, 4),
        "ratio": round(slow / ours, 1),
        "torch_objective": round(statistics.fmean(values), 4),
        "our_objective": round(outcome.objective, 4),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.problem}, {len(instances)} train instances of 50, 30 ants, 100 iterations, one thread")
        print(f"torch, batched over ants   {slow:8.2f} s   mean objective {result['torch_objective']:.3f}")
        print(f"ours, through Evaluator    {ours:8.3f} s   mean objective {result['our_objective']:.3f}")
        print(f"ratio                      {slow / ours:8.1f}")
        print(f"expected: at least {EXPECTED:g}")
    return 0 if slow / ours >= EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
