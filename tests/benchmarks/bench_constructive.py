"""How fast programs of the constructive problems are evaluated on whole test sets, one worker.

    python tests/benchmarks/bench_constructive.py --data DIR [--instances 1000] [--problem NAME] [--json]

For each program the same set is evaluated three times in one run: by a plain numpy rendering of the protocol in this
process, by `Evaluator` with compile="never" and by `Evaluator` with compile="auto", which may compile the program. The
seconds are those of the clock; `ratio` is plain over auto with the seconds of compiling taken off, `whole` with them.
Exit status 1 if objectives differ, if a compiled program is less than 5 times as fast as the plain rendering, or if
auto took more than 1.1 times as long as plain and half a second.
"""

import argparse
import json
import sys
import time

import numpy as np

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import load

EXPECTED = 5.0
TSP = "import numpy as np\n\ndef select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
KP = "import numpy as np\n\ndef select_next_item(remaining_capacity, weights, values):\n"
PROGRAMS = {
    "tsp_construct": {
        "two-step lookahead, loops": TSP
        + """    best, low = None, float("inf")
    for node in unvisited_nodes:
        follow = float("inf")
        for other in unvisited_nodes:
            if other != node and distance_matrix[node][other] < follow:
                follow = distance_matrix[node][other]
        if follow == float("inf"):
            follow = distance_matrix[node][destination_node]
        score = distance_matrix[current_node][node] + 0.5 * follow
        if score < low:
            best, low = node, score
    return best
""",
        "mean distances, numpy": TSP
        + """    near = distance_matrix[current_node][unvisited_nodes]
    spread = distance_matrix[np.ix_(unvisited_nodes, unvisited_nodes)].mean(axis=1)
    return unvisited_nodes[np.argmin(near - 0.1 * spread)]
""",
        "one line, numpy": TSP
        + "    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]\n",
        "dictionary": TSP
        + """    scores = {}
    for node in unvisited_nodes:
        scores[node] = distance_matrix[current_node][node] - 0.2 * distance_matrix[node].mean()
    return min(scores, key=scores.get)
""",
    },
    "kp_construct": {
        "pairs of items, loops": KP
        + """    best, high = 0, -1.0
    for i in range(len(weights)):
        if weights[i] <= remaining_capacity:
            follow = 0.0
            for j in range(len(weights)):
                if j != i and weights[i] + weights[j] <= remaining_capacity and values[j] / weights[j] > follow:
                    follow = values[j] / weights[j]
            score = values[i] / weights[i] + 0.1 * follow
            if score > high:
                best, high = i, score
    return best
""",
        "best ratio, numpy": KP
        + "    return int(np.argmax(np.where(weights <= remaining_capacity, values / weights, -1.0)))\n",
    },
}


def plain_tsp(function, points):
    matrix = np.linalg.norm(points[:, None] - points[None], axis=-1)
    order = np.argsort(matrix, axis=1)
    tour, free = [0], np.ones(len(points), dtype=bool)
    free[0] = False
    for _ in range(len(points) - 2):
        near = order[tour[-1]]
        node = function(tour[-1], 0, near[free[near]][:50], matrix)
        if not free[node]:
            raise ValueError("visited")
        free[node] = False
        tour.append(int(node))
    tour.append(int(np.flatnonzero(free)[0]))
    return sum(matrix[a, b] for a, b in zip(tour, tour[1:] + tour[:1], strict=True))


def plain_kp(function, instance):
    weights, values, capacity, total = instance.weights.copy(), instance.values.copy(), instance.capacity, 0.0
    while weights.size and capacity + 1e-12 >= weights.min():
        place = int(function(capacity, weights.copy(), values.copy()))
        if not 0 <= place < weights.size or weights[place] > capacity + 1e-12:
            raise ValueError("does not fit")
        total += values[place]
        capacity -= float(weights[place])
        weights, values = np.delete(weights, place), np.delete(values, place)
    return -total


def timed(work):
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def measure(problem, code, instances):
    namespace = {"np": np}
    exec(code, namespace)
    plain = plain_tsp if problem.name == "tsp_construct" else plain_kp
    function = namespace[problem.function]
    objective, seconds = timed(lambda: float(np.mean([plain(function, instance) for instance in instances])))
    row = {"plain_seconds": seconds, "plain_objective": objective}
    for mode in ("never", "auto"):
        with Evaluator(problem, instances=instances, workers=1, compile=mode, timeout=3600) as evaluator:
            evaluator.evaluate(["broken"])  # starts the warm process
            (outcome,), seconds = timed(lambda evaluator=evaluator: evaluator.evaluate([code]))
        row |= {f"{mode}_seconds": seconds, f"{mode}_objective": outcome.objective}
    row |= {"path": "compiled" if outcome.compiled else "python", "compile_seconds": outcome.compile_seconds}
    row["ratio"] = row["plain_seconds"] / (row["auto_seconds"] - outcome.compile_seconds)
    row["whole"] = row["plain_seconds"] / row["auto_seconds"]
    same = all(abs(row[f"{mode}_objective"] / objective - 1) < 1e-9 for mode in ("never", "auto"))
    row["good"] = (
        same
        and (not outcome.compiled or row["ratio"] >= EXPECTED)
        and row["auto_seconds"] <= 1.1 * row["plain_seconds"] + 0.5
    )
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the published sets; without it own ones")
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--problem", choices=list(PROGRAMS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for name in [options.problem] if options.problem else PROGRAMS:
        problem = load(name, data=options.data)
        instances = problem.instances("test", 100)[: options.instances]
        if not options.json:
            print(f"{name}, {len(instances)} test instances of size 100 ({problem.source('test', 100)})", flush=True)
        for label, code in PROGRAMS[name].items():
            row = results[f"{name}: {label}"] = measure(problem, code, instances)
            if not options.json:
                print(
                    f"  {label:26} plain {row['plain_seconds']:7.2f} s  never {row['never_seconds']:7.2f} s  "
                    f"auto {row['auto_seconds']:7.2f} s ({row['path']}, compiling {row['compile_seconds']:.2f} s)  "
                    f"ratio {row['ratio']:6.1f} (whole {row['whole']:5.1f})  "
                    f"objective {row['plain_objective']:.9f} {row['auto_objective']:.9f}  "
                    f"{'good' if row['good'] else 'BAD'}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results))
    return 0 if all(row["good"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
