"""What only a graphics card can show, in one script for whoever has one.

    python tests/gpu/check.py                                        # on a card, under six minutes
    TRITON_INTERPRET=1 python tests/gpu/check.py --small --part a    # on a CPU: do the kernels' bits agree?

Part a needs torch and Triton: bits of the kernels against those of the CPU, rewriting and restoring, speed. Part b
needs vLLM too, and makes a random Llama on the spot; engine and worker are in this process, so that which requests
share a batch does not depend on when they arrive. A line per check, ok or FAILED; exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import mmap
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

from ttc_esopt.engines import arrays, torch_noise
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SAME_TEXTS = 0.75  # share of greedy replies that a batch and single calls must agree in: sums differ in their last bits
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 does not name it
FAR = 1 << 30  # rows whose factors of three directions need 64-bit offsets
FAILED: list[str] = []


def check(what: str, work: Callable[[], str | bool | None]) -> None:
    """Run one check; a text it returns is shown beside it."""
    began = time.monotonic()
    try:
        said = work()
        good = said is not False
    except Exception as error:
        said, good = f"{type(error).__name__}: {str(error).strip()[:300]}", False
    if not good:
        FAILED.append(what)
    note = f"  {said}" if isinstance(said, str) else ""
    print(f"{'ok    ' if good else 'FAILED'}  {what} ({time.monotonic() - began:.1f} s){note}", flush=True)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """base and delta on the CPU, with what is hard to round: tiny, zero, infinite."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(shape, generator=generator) * 0.02
    base.view(-1)[:4] = torch.tensor([3e-6, -2e-5, 0.0, float("inf")])
    return base.to(dtype), torch.randn(shape, generator=generator) * 1e-3


# --- part a: torch and Triton -----------------------------------------------------------------------------------------


def part_a(device: torch.device, small: bool) -> None:
    from ttc_esopt.engines import triton_noise

    whole, wide = ((6, 301), (7, 3)) if small else ((300, 4099), (4096, 16))
    shards = [
        Shard.whole(whole), Shard(whole, 2, whole[0] - 3, 5, whole[1] - 9), Shard((whole[1],), 7, 83, 0, 1),
        Shard(wide, 1, wide[0] - 2, 1, 2),
    ]  # fmt: skip
    codes = {"Triton": triton_noise} if small else {"Triton": triton_noise, "torch": torch_noise}
    for (word, code), dtype in itertools.product(codes.items(), DTYPES):
        check(f"{word}, {name_of(dtype)}: perturb, apply", lambda d=dtype, c=code: rewrites_alike(c, d, shards, device))
        if code is triton_noise:  # without Triton fingerprints are made on the CPU
            check(
                f"{word}, {name_of(dtype)}: fingerprint", lambda d=dtype: prints_alike(triton_noise, d, shards, device)
            )
    for word, code in codes.items():
        check(f"{word}: steps, full noise", lambda c=code: steps_alike(c, "full", shards, device))
        check(f"{word}: steps, low-rank noise", lambda c=code: steps_alike(c, "lowrank", shards[:2], device))
    check("Triton: low-rank factors behind 2^31 values", lambda: far_factors(triton_noise, device))
    for dtype, rounding in itertools.product(DTYPES, noise.ROUNDINGS):
        what = f"{20 if small else 1000} directions leave not one bit, {name_of(dtype)}, {rounding}"
        check(what, lambda d=dtype, r=rounding: restored(triton_noise, d, r, device, small))
    if device.type == "cuda":
        for dtype in DTYPES:
            check(f"speed, {name_of(dtype)}", lambda d=dtype: speed(d, device, small))


def rewrites_alike(code: ModuleType, dtype: torch.dtype, shards: list[Shard], device: torch.device) -> bool:
    for shard, (direction, values), rounding in itertools.product(
        shards, ((7, "normal"), (~(2**63), "rademacher")), noise.ROUNDINGS
    ):
        base, delta = made((shard.rows, shard.columns), dtype)
        expected, live = torch.empty_like(base), torch.empty_like(base, device=device)
        there, moved, where = base.to(device), delta.to(device), arrays._where(shard)
        for change in (None, delta):
            arrays.perturb(base, change, direction, "w", 0.01, expected, shard, NoiseKind("full", 1, values), rounding)
            code.perturb(
                there, None if change is None else moved, direction, "w", 0.01, live, **where, values=values,
                rounding=rounding,
            )  # fmt: skip
            if not same_bits(live.cpu(), expected):
                return False
        arrays.apply(base, delta, expected, "w", shard, rounding)
        code.apply(there, moved, live, "w", **where, rounding=rounding)
        if not same_bits(live.cpu(), expected):
            return False
    return True


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    kind = torch.int32 if one.element_size() == 4 else torch.int16
    return torch.equal(one.view(kind), other.view(kind))


def prints_alike(code: ModuleType, dtype: torch.dtype, shards: list[Shard], device: torch.device) -> bool:
    pairs = [(made((shard.rows, shard.columns), dtype)[0], shard) for shard in shards]
    return all(
        code.fingerprint(base.to(device), "w", **arrays._where(shard)) == arrays.fingerprint(base, "w", shard)
        for base, shard in pairs
    )


def steps_alike(code: ModuleType, kind: str, shards: list[Shard], device: torch.device) -> bool:
    directions, coefficients = [7, ~7, 2**64 - 1, ~5], [0.1, -0.3, 1 / 3, 1e-4]
    for shard, values, rank in itertools.product(shards, ("normal", "rademacher"), (1, 3)):
        if kind == "full" and rank > 1:
            continue
        expected = made((shard.rows, shard.columns), torch.float32)[1]
        delta = expected.to(device, copy=True)
        arrays.accumulate(expected, NoiseKind(kind, rank, values), directions, coefficients, "w", shard)
        if kind == "full":
            code.accumulate(delta, directions, coefficients, "w", **arrays._where(shard), values=values)
        else:
            code.accumulate_lowrank(delta, directions, coefficients, "w", rank, shard.row, shard.column, values)
        if not same_bits(delta.cpu(), expected):
            return False
    return True


def far_factors(code: ModuleType, device: torch.device) -> str | bool:
    """Only the first rows are computed: the others' factors take room, and on a CPU not even that."""
    columns, count = 4, 3 * FAR
    if device.type == "cuda":
        if torch.cuda.mem_get_info(device)[0] < 5 * count:
            return "left out: it needs 15 GB of free memory"
        left = torch.zeros(count, device=device)
        left[2 * FAR] = 3.0
    else:  # pages that nobody writes do not exist; the tensor is the beginning of them
        pages = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        torch.frombuffer(pages, dtype=torch.float32, count=1, offset=8 * FAR)[0] = 3.0
        left = torch.frombuffer(pages, dtype=torch.float32, count=code.TILE[0])
    delta, right, scales = (torch.ones(size, device=device) for size in (code.TILE[0] * columns, 3 * columns, 3))
    code._run(
        code._accumulate_lowrank, 1, delta, delta, left, right, scales, 3, 1.0, FAR, columns, RANK=1, M=code.TILE[0],
        N=code.TILE[1],
    )  # fmt: skip
    return delta.tolist() == [4.0] * columns + [1.0] * (delta.numel() - columns)


def restored(code: ModuleType, dtype: torch.dtype, rounding: str, device: torch.device, small: bool) -> bool:
    base, delta = (tensor.to(device) for tensor in made((5, 201) if small else (2048, 2048), dtype))
    live = torch.empty_like(base)
    code.apply(base, delta, live, "w", rounding=rounding)
    before, kept = live.clone(), base.clone()
    for seed in range(10 if small else 500):
        for direction in (seed, ~seed):
            code.perturb(base, delta, direction, "w", 1e-3, live, rounding=rounding)
    moved = not same_bits(live, before)
    code.apply(base, delta, live, "w", rounding=rounding)
    return moved and same_bits(live, before) and same_bits(base, kept)


def speed(dtype: torch.dtype, device: torch.device, small: bool) -> str:
    """Values per second of each pass against a copy of the same tensor, which reads and writes the same bytes."""
    base = torch.zeros(1 << (24 if small else 28), dtype=dtype, device=device)
    live, delta = torch.empty_like(base), torch.zeros(base.shape, device=device)

    def rate(work: Callable[[], object]) -> float:
        work()
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        return 10 * base.numel() / (time.monotonic() - began) / 1e9

    code = arrays._on_device()
    copy = rate(lambda: live.copy_(base))
    rates = {
        "normal": rate(lambda: code.perturb(base, None, 7, "w", 1e-3, live)),
        "+-1": rate(lambda: code.perturb(base, None, 7, "w", 1e-3, live, values="rademacher")),
        "stochastic": rate(lambda: code.perturb(base, None, 7, "w", 1e-3, live, rounding="stochastic")),
        "restore": rate(lambda: code.apply(base, delta, live)),
        "step of 10 directions": rate(lambda: code.accumulate(delta, list(range(10)), [1e-4] * 10, "w")),
    }
    torch_rate = rate(lambda: torch_noise.perturb(base, None, 7, "w", 1e-3, live))
    told = ", ".join(f"{word} {value:.1f} ({value / copy:.0%})" for word, value in rates.items())
    return f"1e9 values/s (of a copy): copy {copy:.1f}, {told}; without Triton {torch_rate:.1f}"


# --- part b: vLLM -----------------------------------------------------------------------------------------------------


def part_b(small: bool) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny_model import make_tiny_model

    from ttc_esopt.engines import Request, Sampling, load_engine

    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as temporary:
        wide, heads = (128, 2) if small else (1024, 16)  # heads of 64: vLLM has no smaller ones everywhere
        shape = {"hidden_size": wide, "num_attention_heads": heads, "num_key_value_heads": heads // 2}
        scale = 0.3 if small else 0.06
        folder = make_tiny_model(Path(temporary) / "llama", context=1024, scale=scale, **shape)
        args = '{"gpu_memory_utilization": 0.3}' if cuda else ""
        greedy = Sampling(temperature=0.0, max_tokens=16)

        def requests(directions, sigma=0.02):
            return [Request(f"a b c {i % 4}", i, direction=d, sigma=sigma) for i, d in enumerate(directions)]

        def texts(engine, directions):
            return [reply.text for reply in engine.generate(requests(directions), greedy)]

        @contextlib.contextmanager
        def opened(noise: str, **given):
            """An engine with the card to itself; it must have CUDA graphs, where old weights could hide."""
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            engine = load_engine(
                str(folder), engine="vllm", noise=NoiseKind.parse(noise), batch_size=32, engine_args=args, **given
            )
            try:
                config = engine._core.vllm_config
                graphs = str(getattr(config.compilation_config, "cudagraph_mode", "of an older vLLM"))
                if cuda and (config.model_config.enforce_eager or graphs.endswith("NONE")):
                    raise AssertionError("vLLM works without CUDA graphs here: there is nothing to check")
                yield engine, f"graphs {graphs}"
            finally:
                engine.close()

        def full() -> str:
            with opened("full") as (engine, graphs):
                texts(engine, [None] * 8)  # from now on the prefix cache has these prompts
                before, plain = engine.fingerprint(), texts(engine, [None] * 8)
                began = time.monotonic()
                seeds = [one for seed in range(2 if small else 50) for one in (seed, ~seed)]
                nudged = texts(engine, seeds)
                seconds = time.monotonic() - began
                if engine.fingerprint() != before or texts(engine, [None] * 8) != plain:
                    raise AssertionError("the weights or the replies are not those of before")
                changed = sum(text != plain[i % 4] for i, text in enumerate(nudged))
                if not changed:
                    raise AssertionError("no direction changed a reply: do graphs read old weights?")
                engine.step([1, ~2], [0.01, 0.02])
                engine.rewind([])
                if engine.fingerprint() != before:
                    raise AssertionError("the way back from a step does not lead to the beginning")
                return (
                    f"{len(nudged)} directions in {seconds:.1f} s, {changed} changed the reply; {graphs}; delta "
                    f"{engine.delta}; peak {engine.peak()}"
                )

        def low_rank() -> str:
            # float16 has eight times the grain of bfloat16: fewer close decisions between two tokens
            with opened("lowrank:1", dtype="float16" if cuda else "float32") as (engine, graphs):
                seeds = [1, ~1, 2, ~2, 3, ~3, 4, ~4]
                together = texts(engine, seeds)
                alone = [
                    engine.generate([request], greedy)[0].text for request in requests(seeds)
                ]  # the same prompts and seeds as in the batch
                same = sum(a == b for a, b in zip(together, alone, strict=True)) / len(seeds)
                if same < SAME_TEXTS:
                    raise AssertionError(f"{same:.0%} of the texts agree, expected {SAME_TEXTS:.0%}")
                long = Sampling(temperature=1.0, max_tokens=16 if small else 256)
                rates = []
                for directions in ([None] * 32, list(range(32))):
                    engine.generate(requests(directions), long)
                    began = time.monotonic()
                    replies = engine.generate(requests(directions), long)
                    rates.append(sum(reply.tokens for reply in replies) / (time.monotonic() - began))
                return (
                    f"{same:.0%} of the texts agree (expected {SAME_TEXTS:.0%}); {rates[0]:.0f} tokens/s unperturbed, "
                    f"{rates[1]:.0f} under 32 directions whose adapters are there; {graphs}; peak {engine.peak()}"
                )

        check("vLLM, full noise: rewrite and restore, graphs as vLLM has them", full)
        check("vLLM, low-rank noise: a batch of directions against one by one, speed", low_rank)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("a", "b", "both"), default="both")
    parser.add_argument("--small", action="store_true", help="small tensors and models, for a CPU")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(torch.cuda.get_device_name(device) if device.type == "cuda" else f"no card: {platform.processor() or 'CPU'}")
    print(f"python {platform.python_version()}", *(f"{word} {known(word)}" for word in ("torch", "triton", "vllm")))
    if options.part != "b":
        if find_spec("triton") is None:
            check("part a: Triton is installed (pip install triton)", lambda: False)
        elif (device.type == "cpu") != (os.environ.get("TRITON_INTERPRET") == "1"):
            check("part a: a card, or TRITON_INTERPRET=1 and none (CUDA_VISIBLE_DEVICES=)", lambda: False)
        else:
            part_a(device, options.small)
    if options.part != "a":
        if find_spec("vllm") is None and options.part == "b":
            check("part b: vLLM is installed", lambda: False)
        elif find_spec("vllm") is None:
            print("part b left out: vLLM is not installed")
        else:
            part_b(options.small)
    print("FAILED: " + "; ".join(FAILED) if FAILED else "all checks passed")
    return 1 if FAILED else 0


def known(package: str) -> str:
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "absent"


if __name__ == "__main__":
    sys.exit(main())
