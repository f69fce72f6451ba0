"""Run by a test: a history on two tensor-parallel ranks, in processes of their own. Prints what came out as JSON.

python two_ranks.py MODEL NOISE EXPORT
"""

import json
import sys
from pathlib import Path

from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.es.noise import NoiseKind

STEPS = [([7, 8, 9], [0.01, -0.02, 0.03]), ([10, 11], [0.02, -0.05])]
ARGS = {"kv_cache_memory_bytes": 64 << 20, "block_size": 32, "max_model_len": 512}


def history(engine):
    """Fingerprints and greedy replies along a short history."""
    wanted = [
        Request(prompt, 1, direction=direction, sigma=0 if direction is None else 0.05)
        for prompt in ("the quick brown fox jumps over the lazy dog " * 8, "import numpy")
        for direction in (None, 7, 8)
    ]
    told = []
    for step in STEPS:
        engine.step(*step)
        replies = engine.generate(wanted, Sampling(temperature=0, max_tokens=16))
        told.append([engine.fingerprint(), [reply.text for reply in replies]])
    return [*told, engine.sha256(), engine.measure(STEPS, 0.01)]


if __name__ == "__main__":
    folder, noise, out = sys.argv[1:]
    two = load_engine(
        folder, engine="vllm", noise=NoiseKind.parse(noise), tensor_parallel=2, engine_args=json.dumps(ARGS)
    )
    print(json.dumps(history(two)))
    two.export(Path(out))
    two.close()
