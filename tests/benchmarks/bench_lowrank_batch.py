"""Ten low-rank directions with one reply each: in one batch against one after another, one thread, real model.

    python tests/benchmarks/bench_lowrank_batch.py [--rounds 3] [--tokens 48] [--threads 1]

The measure is the share of its own gain that the unperturbed model keeps when every row has a direction:
(perturbed: one by one / batch) / (unperturbed: one by one / batch), wanted: at least 0.75. Replies are all of one
length (end tokens are switched off), prompts differ so that none is read once for all. The best of the rounds counts.
"""

from __future__ import annotations

import argparse
import sys
import time

from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.es.noise import NoiseKind

DIRECTIONS, WANTED = 10, 0.75
PROMPT = "Variant {}: write a Python function that chooses the next city of a short tour from the unvisited ones."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    engine = load_engine(options.model, noise=NoiseKind(), device="cpu", threads=options.threads)
    engine._ends = set()
    sampling = Sampling(temperature=0.7, top_p=0.95, max_tokens=options.tokens)
    kinds = {
        "unperturbed": [Request(PROMPT.format(i), i) for i in range(DIRECTIONS)],
        "low-rank": [Request(PROMPT.format(i), i, direction=i + 1, sigma=6e-3) for i in range(DIRECTIONS)],
    }
    best: dict[tuple[str, str], float] = {}
    for _ in range(options.rounds):
        for kind, requests in kinds.items():
            for way, batches in (("one by one", [[r] for r in requests]), ("batch", [requests])):
                begin = time.perf_counter()
                replies = [reply for batch in batches for reply in engine.generate(batch, sampling)]
                seconds = time.perf_counter() - begin
                assert all(reply.tokens == options.tokens for reply in replies)
                best[kind, way] = min(seconds, best.get((kind, way), seconds))
    tokens = DIRECTIONS * options.tokens
    print(f"{DIRECTIONS} replies of {options.tokens} tokens, {options.threads} thread(s), best of {options.rounds}")
    print(f"{'':<14}{'one by one':>12}{'batch':>12}{'gain':>8}   (tokens/s, prompts included)")
    gains = {}
    for kind in kinds:
        single, batch = (tokens / best[kind, way] for way in ("one by one", "batch"))
        gains[kind] = batch / single
        print(f"{kind:<14}{single:>12.1f}{batch:>12.1f}{gains[kind]:>8.2f}")
    share = gains["low-rank"] / gains["unperturbed"]
    print(f"share of the gain kept under directions: {share:.2f} (wanted: at least {WANTED})")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
