"""What the transformers engine holds in memory: weights, base copy, delta, factors of the noise.

    python tests/benchmarks/bench_memory.py [--model smollm2-135m] [--dtype float32] [--batch 10] [--tokens 32]

For full and for low-rank noise, each in a process of its own: bytes of every part after loading, after a batch of
directions and after a step, and the largest resident memory of the process until then. One thread, CPU.
"""

import argparse
import multiprocessing
import resource

MIB = 1 << 20


def held(engine) -> dict[str, float]:
    """MiB of the parts."""
    weights = engine.weights
    parts = {"live": weights.live, "base": weights.base, "delta": weights.delta}
    return {name: sum(t.numel() * t.element_size() for t in part.values()) / MIB for name, part in parts.items()}


def measure(kind: str, options: argparse.Namespace) -> None:
    from ttc_esopt.engines import Request, Sampling, load_engine
    from ttc_esopt.es import NoiseKind

    def say(when: str) -> None:
        parts = "".join(f"{mib:9.0f}" for mib in held(engine).values())
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{kind:10} {when:22}{parts}{largest:12.0f}", flush=True)

    noise = NoiseKind.parse(kind)
    engine = load_engine(options.model, device="cpu", dtype=options.dtype, noise=noise, threads=1)
    say("loaded")
    requests = [Request("Name a colour.", seed=i, direction=i, sigma=1e-3) for i in range(options.batch)]
    engine.generate(requests, Sampling(max_tokens=options.tokens))
    say(f"{options.batch} directions written")
    engine.step(list(range(options.batch)), [1e-5] * options.batch)
    say("one step taken")
    if noise.kind == "lowrank":
        numbers = noise.rank * sum(sum(engine.weights.live[name].shape) for name in engine.weights.names)
        size = numbers * engine.model.dtype.itemsize / MIB
        print(f"{kind:10} factors of one direction: {size:.2f} MiB ({numbers:,} numbers)")
    moving = sum(engine.weights.live[name].numel() for name in engine.weights.names)
    print(f"{kind:10} scope {engine.weights.scope}: {moving:,} of {engine.describe()['parameters']:,} parameters move")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    print(f"{'noise':10} {'MiB':22}{'live':>9}{'base':>9}{'delta':>9}{'process':>12}")
    for kind in ("full", "lowrank:1"):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(kind, options))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
