"""Wall time of a search with ES against the same search without, at equal candidates (low-rank noise, real model).

    python tests/benchmarks/bench_es_overhead.py [--budget 44] [--repeats 2] [--max-tokens 48]
        [--engine transformers|vllm]

By default some four minutes on one core: 44 candidates (4 of them the problem's own), 2 steps of 10 directions per run.
Replies are short, so that most end at the limit and both arms write nearly the same number of tokens.

Both arms of a repeat have the same seed, the same plan and the same sampling streams. Replies differ in length once
the weights differ, so the ratio of seconds per token is printed beside the ratio of wall times. Loading and the
closing evaluation are outside.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from ttc_esopt import models, problems, scaffolds
from ttc_esopt.conclude import evaluator
from ttc_esopt.progress import RunProgress
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import open_engine
from ttc_esopt.search import Search
from ttc_esopt.settings import resolve


def timed(arm: str, seed: int, budget: int, max_tokens: int, engine: str, folder: Path) -> tuple[float, int]:
    """Seconds and tokens of one run; the engine is fresh, so that every run begins with the same weights."""
    settings = resolve(
        {
            **{"budget": budget, "arm": arm, "seed": seed, "init": "seeds", "threads": 1},
            "max_tokens": max_tokens,
            "engine": engine,
            "sigma_schedule": "constant",  # every batch is perturbed and stepped: the dearest case
        },
        models.defaults("smollm2-135m"),
    )
    run = RunFolder.create(folder, settings, "benchmark")
    problem = problems.load(settings.problem)
    model = open_engine(run)
    plan = scaffolds.build(problem, settings)
    with evaluator(problem, settings) as search_set, RunProgress(budget, arm) as progress:
        search_set.evaluate([seed.code for seed in problem.seeds])  # starts the evaluation processes
        began = time.perf_counter()
        state = Search(run, problem, plan, model, search_set, progress).run()
        seconds = time.perf_counter() - began
    model.close()
    return seconds, state.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=44)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    arguments = parser.parse_args()
    walls, paces = [], []
    for repeat in range(arguments.repeats):
        figures = {}
        for arm in ("frozen", "esopt") if repeat % 2 == 0 else ("esopt", "frozen"):
            with tempfile.TemporaryDirectory() as folder:
                figures[arm] = timed(
                    arm, repeat, arguments.budget, arguments.max_tokens, arguments.engine, Path(folder) / "run"
                )  # fmt: skip
        (off, off_tokens), (on, on_tokens) = figures["frozen"], figures["esopt"]
        walls.append(on / off)
        paces.append((on / on_tokens) / (off / off_tokens))
        print(
            f"repeat {repeat}: off {off:.1f} s, {off_tokens} tokens; on {on:.1f} s, {on_tokens} tokens; "
            f"ratio {on / off:.3f}"
        )
    print(
        f"wall, ES on / off: median {statistics.median(walls):.3f} (seconds per token: {statistics.median(paces):.3f})"
    )


if __name__ == "__main__":
    main()
