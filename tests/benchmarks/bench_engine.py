"""Tokens per second of the transformers engine on the real model, prompts and replies apart, by threads and batch size.

    python tests/benchmarks/bench_engine.py [--threads 1 2] [--batches 1 10 32] [--rounds 3]

Every row has a low-rank direction of its own. Best of the rounds; the thread counts take turns, so that a busy moment
of the machine does not fall on one of them alone.
"""

from __future__ import annotations

import argparse
import time

from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.es.noise import NoiseKind

TOKENS = 24
PROMPT = "Variant {}: write a Python function that chooses the next city of a short tour from the unvisited ones. "
MORE = "It gets the distances of the current city, the home city, and the mean distance of every city to all others. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 32])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engine = load_engine(options.model, noise=NoiseKind(), dtype=options.dtype, device="cpu", threads=1)
    engine._ends = set()  # replies of one length
    print(f"{'batch':>6}{'threads':>9}{'prompt tokens/s':>18}{'reply tokens/s':>17}", flush=True)
    for batch in options.batches:
        requests = [Request(PROMPT.format(i) + 4 * MORE, i, direction=i + 1, sigma=6e-3) for i in range(batch)]
        best = {n: [float("inf"), float("inf")] for n in options.threads}
        for _ in range(options.rounds):
            for engine.threads in options.threads:
                begin = time.perf_counter()
                replies = engine.generate(requests, Sampling(max_tokens=1))
                middle = time.perf_counter()
                engine.generate(requests, Sampling(max_tokens=TOKENS + 1))
                prompt, whole = middle - begin, time.perf_counter() - middle
                pair = best[engine.threads]
                pair[:] = min(pair[0], prompt), min(pair[1], whole - prompt)
        for n, (prompt, reply) in best.items():
            read = sum(r.prompt_tokens for r in replies) / prompt
            print(f"{batch:>6}{n:>9}{read:>18.0f}{batch * TOKENS / reply:>17.1f}", flush=True)


if __name__ == "__main__":
    main()
