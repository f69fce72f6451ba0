"""How fast one thread perturbs a 135 M-parameter model: our noise kernel against torch.randn + add_.

    python tests/benchmarks/bench_noise.py [--rounds 7] [--json]

Both do the same to every tensor of the shapes of SmolLM2-135M in float32: first in place (live + sigma * eps), then as
an engine does it (base + sigma * eps written into live, the base untouched). The two take turns; the seconds are the
thread's own processor seconds (on a quiet machine those of the clock); seconds and ratios are medians over the rounds,
so that a busy machine slows both alike. Exit status 1 if the ratio in place is below 5.

Beside them, in the same rounds, a plain pass over memory: the same tensors read and written with one addition. The aim
is 1.2e9 values/s, or 80 % of that pass where that is less; whether it is met is printed and decides nothing. Also
printed: bfloat16, the process's peak memory, and what a direction takes in history.jsonl.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import numpy as np
import torch

from ttc_esopt.es import ESOptimizer, ESParams, noise
from ttc_esopt.es.history import record_of

LAYER = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (192, 576),
    "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.gate_proj": (1536, 576),
    "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536),
    "input_layernorm": (576,),
    "post_attention_layernorm": (576,),
}
SIGMA, EXPECTED = 1e-3, 5.0
AIM, SHARE = 1.2e9, 0.8


def shapes() -> dict[str, tuple[int, ...]]:
    layers = {f"model.layers.{i}.{name}.weight": shape for i in range(30) for name, shape in LAYER.items()}
    return {"model.embed_tokens.weight": (49152, 576), **layers, "model.norm.weight": (576,)}


def seconds(work) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def bytes_per_direction(directions: int = 30) -> float:
    """Of a line of history.jsonl."""
    es = ESOptimizer(ESParams(sigma=1e-3, alpha=5e-4, directions=directions, steps=100, seed=1))
    step = es.tell(es.ask(), np.random.default_rng(0).normal(size=directions))
    record = record_of(step, generation=1, operator="m1", orders=(0, directions - 1), noise="full")
    return len(json.dumps({**record, "fingerprint": "0" * 16}, separators=(",", ":"))) / directions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = {name: torch.full(shape, 0.01) for name, shape in shapes().items()}
    live = {name: tensor.clone() for name, tensor in base.items()}
    values = sum(tensor.numel() for tensor in base.values())

    def kernel(source):
        for name, tensor in live.items():
            noise.perturb(source[name].numpy(), None, 7, name, SIGMA, tensor.numpy())

    def reference_in_place():
        for tensor in live.values():
            tensor.add_(torch.randn(tensor.shape), alpha=SIGMA)

    def reference_from_base():
        for name, tensor in live.items():
            torch.add(base[name], torch.randn(tensor.shape), alpha=SIGMA, out=tensor)

    def memory_pass(source):
        for name, tensor in live.items():
            np.add(source[name].numpy(), np.float32(SIGMA), out=tensor.numpy())

    narrow = {name: tensor.bfloat16().view(torch.uint16).numpy() for name, tensor in base.items()}
    narrow_live = {name: array.copy() for name, array in narrow.items()}

    def bfloat16():
        for name, array in narrow_live.items():
            noise.perturb_bf16(narrow[name], None, 7, name, SIGMA, array)

    works = {
        "in place": (lambda: kernel(live), reference_in_place, lambda: memory_pass(live)),
        "from base": (lambda: kernel(base), reference_from_base, lambda: memory_pass(base)),
    }
    results = {}
    for what, three in works.items():
        for work in three:  # compile, and touch every page
            work()
        times = [tuple(map(seconds, three)) for _ in range(options.rounds)]
        results[what] = {
            "kernel_seconds": round(statistics.median(k for k, _, _ in times), 4),
            "torch_seconds": round(statistics.median(r for _, r, _ in times), 4),
            "pass_seconds": round(statistics.median(p for _, _, p in times), 4),
            "ratio": round(statistics.median(r / k for k, r, _ in times), 2),
            "share_of_pass": round(statistics.median(p / k for k, _, p in times), 3),
        }
    bfloat16()
    narrow_seconds = statistics.median(seconds(bfloat16) for _ in range(options.rounds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    per_direction = bytes_per_direction()
    if options.json:
        further = {"bfloat16_seconds": round(narrow_seconds, 4), "peak_gb": round(peak, 2)}
        print(json.dumps({"values": values, **results, **further, "bytes_per_direction": round(per_direction, 1)}))
    else:
        print(f"{values:,} values, one thread, medians of {options.rounds} rounds")
        for what, result in results.items():
            k, r = result["kernel_seconds"], result["torch_seconds"]
            print(f"{what:9}  noise kernel        {k:6.3f} s  {values / k / 1e9:5.2f}e9 values/s")
            print(f"{'':9}  torch.randn + add   {r:6.3f} s  {values / r / 1e9:5.2f}e9 values/s")
            print(f"{'':9}  ratio               {result['ratio']:6.2f}")
            through = values / result["pass_seconds"]
            aim = min(AIM, SHARE * through)
            print(f"{'':9}  read and write      {result['pass_seconds']:6.3f} s  {through / 1e9:5.2f}e9 values/s")
            print(
                f"{'':9}  kernel / that pass  {result['share_of_pass']:6.1%}; aim {aim / 1e9:.2f}e9 values/s: "
                f"{'met' if values / k >= aim else 'missed'}"
            )
        print(
            f"from base  bfloat16            {narrow_seconds:6.3f} s  {values / narrow_seconds / 1e9:5.2f}e9 values/s"
        )
        print(f"peak memory of this process {peak:.2f} GiB; history.jsonl: {per_direction:.0f} bytes per direction")
        print(f"expected in place: at least {EXPECTED:g} times torch")
    return 0 if results["in place"]["ratio"] >= EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
