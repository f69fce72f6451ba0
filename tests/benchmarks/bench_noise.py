"""How fast one thread perturbs a 135 M-parameter model: our noise kernel against torch.randn + add_.

    python tests/benchmarks/bench_noise.py [--rounds 7] [--json]

Both nudge every tensor of the shapes of SmolLM2-135M in float32: ours writes base + sigma * eps into the live weights,
torch adds sigma * randn to them. The two take turns, the seconds are the thread's own processor seconds (on a quiet
machine those of the clock), and the figures are medians, so that a busy machine slows both alike. Exit status 1 if the
ratio is below 5.
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
    arrays = [(name, base[name].numpy(), live[name].numpy()) for name in base]

    def ours():
        for name, source, target in arrays:
            noise.perturb(source, None, 7, name, SIGMA, target)

    def torchs():
        for tensor in live.values():
            tensor.add_(torch.randn(tensor.shape), alpha=SIGMA)

    ours()
    torchs()  # compile, and touch every page
    times = [(seconds(ours), seconds(torchs)) for _ in range(options.rounds)]
    kernel, reference = (statistics.median(column) for column in zip(*times, strict=True))
    result = {
        "values": values,
        "kernel_seconds": round(kernel, 4),
        "torch_seconds": round(reference, 4),
        "kernel_values_per_second": round(values / kernel),
        "torch_values_per_second": round(values / reference),
        "ratio": round(reference / kernel, 2),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{values:,} values, one thread, median of {options.rounds} rounds")
        print(f"noise kernel        {kernel:7.3f} s  {values / kernel / 1e9:6.3f}e9 values/s")
        print(f"torch.randn + add_  {reference:7.3f} s  {values / reference / 1e9:6.3f}e9 values/s")
        print(f"ratio               {reference / kernel:7.2f}    (expected at least {EXPECTED:g})")
    return 0 if reference / kernel >= EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
