"""What our arithmetic changes against the published one: drift, lost steps, steps out of nothing, the walk at the end.

    python tests/benchmarks/bench_differences.py [--values 1000000] [--seed 1]

Everything is emulated on vectors of normal numbers of the size of weights: no model, no search, one thread, 10 seconds.
"published" means the order of operations of the published code: noise cast to the weights' type and added in it, undone
by adding its negative; steps summed in float32, cast, and added; z-scores in float32.
"""

import argparse
import math

import numpy as np
import torch

from ttc_esopt.es import SigmaSchedule, noise, zscore
from ttc_esopt.rewards import Scored, default_rewards, paper_mutation_rewards

SIGMA, ALPHA, STEPS = 1e-3, 5e-4, 50
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def eps(seed: int, count: int) -> torch.Tensor:
    out = np.empty(count, np.float32)
    noise.fill(out, seed, "w")
    return torch.from_numpy(out)


def rms(values: torch.Tensor) -> float:
    return float(values.double().pow(2).mean().sqrt())


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length else 0.0


def normal(count: int, scale: float, centre: float, seed: int) -> torch.Tensor:
    return centre + scale * torch.randn(count, generator=torch.Generator().manual_seed(seed))


def drift(count: int, seed: int) -> None:
    print(f"1. What perturbing and undoing by subtraction leaves of weights N(0, 0.02), RMS / sigma ({SIGMA:g})")
    pairs = (1, 10, 100, 500)
    print(f"   {'pairs':>12}" + "".join(f"{n:>10}" for n in pairs) + "   rewritten from a base copy")
    for name, dtype in DTYPES.items():
        start = normal(count, 0.02, 0.0, seed).to(dtype)
        live, left = start.clone(), []
        for n in range(1, pairs[-1] + 1):
            direction = eps(seed + n, count).to(dtype)
            live.add_(direction, alpha=SIGMA).add_(direction, alpha=-SIGMA)
            if n in pairs:
                left.append(rms(live.float() - start.float()) / SIGMA)
        print(f"   {name:>12}" + "".join(f"{x:10.2g}" for x in left) + "   0, bit for bit")
    for g in (10, 30):
        print(f"   one whole step of {g} directions, alpha {ALPHA:g}: {ALPHA / math.sqrt(g) / SIGMA:.2g} sigma")


def lost_steps(count: int, seed: int) -> None:
    print(f"2. 16-bit weights without a float32 delta: {STEPS} steps of 10 directions, alpha {ALPHA:g}")
    print(f"   {'weights':>24} {'unmoved a step':>15} {'cosine with what was meant':>27} {'with a delta':>13}")
    for name, scale, centre in (("N(0, 0.02)", 0.02, 0.0), ("N(0, 0.05)", 0.05, 0.0), ("gains N(1, 0.1)", 0.1, 1.0)):
        for kind in ("bfloat16", "float16"):
            base = normal(count, scale, centre, seed).to(DTYPES[kind])
            live, delta, unmoved = base.clone(), torch.zeros(count), []
            for t in range(STEPS):
                step = eps(seed + t, count) * (ALPHA / math.sqrt(10))  # as long as a step of 10 directions
                before = live.clone()
                live.add_(step.to(live.dtype))
                delta += step
                unmoved.append(float((live == before).float().mean()))
            ours = (base.float() + delta).to(base.dtype)
            moved = cosine(live.float() - base.float(), delta), cosine(ours.float() - base.float(), delta)
            print(f"   {name + ' ' + kind:>24} {np.mean(unmoved):14.0%} {moved[0]:27.2f} {moved[1]:13.2f}")


def perturbed(count: int, seed: int) -> None:
    print("3. What the forward pass sees of a direction: share of entries that do not move (base copy or not)")
    sigmas = (1e-3, 2.5e-4, 1e-4)
    print(f"   {'sigma':>24}" + "".join(f"{sigma:>10g}" for sigma in sigmas))
    for name, scale, centre in (("N(0, 0.02)", 0.02, 0.0), ("gains N(1, 0.1)", 0.1, 1.0)):
        for kind in ("bfloat16", "float16"):
            base = normal(count, scale, centre, seed).to(DTYPES[kind])
            row = ""
            for sigma in sigmas:
                live = (base.float() + np.float32(sigma) * eps(seed, count)).to(base.dtype)
                row += f"{float((live == base).float().mean()):10.1%}"
            print(f"   {name + ' ' + kind:>24}" + row)


def degenerate(seed: int) -> None:
    draw, large, largest, ours = np.random.default_rng(seed), 0, 0.0, 0.0
    trials = 2000
    for _ in range(trials):
        rewards = np.full(int(draw.choice([8, 10, 16, 20, 30, 32])), draw.uniform(-50, 50))
        single = torch.tensor(rewards, dtype=torch.float32)
        weights = (single - single.mean()) / (single.std(unbiased=False) + 1e-8)
        top = float(weights.abs().max())
        large, largest = large + (top > 0.05), max(largest, top)
        ours = max(ours, float(np.abs(zscore(rewards)).max()))
    print(f"4. {trials} batches of equal rewards: float32 z above 0.05 in {large / trials:.0%}, largest {largest:.3f}")
    print(f"   ours: largest {ours:g}")


def walk() -> None:
    schedule = SigmaSchedule("cosine", SIGMA, 0.0, STEPS)
    sigmas = [schedule.at(t) for t in range(STEPS)]
    one = ALPHA / math.sqrt(10)
    constant = one * math.sqrt(STEPS) / SIGMA
    falling = one * math.sqrt(sum((s / SIGMA) ** 2 for s in sigmas)) / SIGMA
    late = sum(s < 0.1 * SIGMA for s in sigmas)
    print(f"5. Where {STEPS} steps of 10 directions lead with rewards that are chance alone, RMS in units of sigma_0")
    print(f"   alpha constant {constant:.2f}, alpha falling with sigma {falling:.2f}")
    share = sum((s / SIGMA) ** 2 for s in sigmas if s < 0.1 * SIGMA) / sum((s / SIGMA) ** 2 for s in sigmas)
    print(f"   of it (squared) made below a tenth of sigma_0, by {late} steps: {late / STEPS:.0%} and {share:.2%}")


def order() -> None:
    tried = ((-2400.0, False), (None, False), (-2700.0, True), (-2710.0, False))
    batch = [Scored(objective, parent=-2700.0, known=known) for objective, known in tried]
    print("6. Rewards of an admissible-set batch (parent 2700): valid with 2400, invalid, copy, 2710")
    print(f"   published {paper_mutation_rewards(batch, worst=-2300.0)}, ours {default_rewards(batch)}")


def parents() -> None:
    twice = []
    for size in (4, 10):
        weights = np.array([1 / (rank + 1 + size) for rank in range(size)])
        twice.append(f"{float(((weights / weights.sum()) ** 2).sum()):.0%} of {size}")
    print(f"7. Pairs of parents for e1 and e2 that are one heuristic twice, drawn as published: {', '.join(twice)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    drift(options.values, options.seed)
    lost_steps(options.values, options.seed)
    perturbed(options.values, options.seed)
    degenerate(options.seed)
    walk()
    order()
    parents()


if __name__ == "__main__":
    main()
