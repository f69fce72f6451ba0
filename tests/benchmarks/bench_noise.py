"""How fast one thread perturbs a 135 M-parameter model: our noise kernel against torch.randn + add_.

    python tests/benchmarks/bench_noise.py [--rounds 7] [--json]

Both do the same to every tensor of the shapes of SmolLM2-135M in float32: first in place (live + sigma * eps), then as
an engine does it (base + sigma * eps written into live, the base untouched). The two take turns; the seconds are the
thread's own processor seconds (on a quiet machine those of the clock); seconds and ratios are medians over the rounds,
so that a busy machine slows both alike. Exit status 1 if the ratio in place is below 5.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from ttc_esopt.es import noise

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


def shapes() -> dict[str, tuple[int, ...]]:
    layers = {f"model.layers.{i}.{name}.weight": shape for i in range(30) for name, shape in LAYER.items()}
    return {"model.embed_tokens.weight": (49152, 576), **layers, "model.norm.weight": (576,)}


def seconds(work) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


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

    works = (lambda: kernel(live), reference_in_place), (lambda: kernel(base), reference_from_base)
    results = {}
    for what, (ours, theirs) in zip(("in place", "from base"), works, strict=True):
        ours()  # compile, and touch every page
        theirs()
        times = [(seconds(ours), seconds(theirs)) for _ in range(options.rounds)]
        results[what] = {
            "kernel_seconds": round(statistics.median(k for k, _ in times), 4),
            "torch_seconds": round(statistics.median(r for _, r in times), 4),
            "ratio": round(statistics.median(r / k for k, r in times), 2),
        }
    if options.json:
        print(json.dumps({"values": values, **results}))
    else:
        print(f"{values:,} values, one thread, medians of {options.rounds} rounds")
        for what, result in results.items():
            k, r = result["kernel_seconds"], result["torch_seconds"]
            print(f"{what:9}  noise kernel        {k:6.3f} s  {values / k / 1e9:5.2f}e9 values/s")
            print(f"{'':9}  torch.randn + add   {r:6.3f} s  {values / r / 1e9:5.2f}e9 values/s")
            print(f"{'':9}  ratio               {result['ratio']:6.2f}")
        print(f"expected in place: at least {EXPECTED:g}")
    return 0 if results["in place"]["ratio"] >= EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
