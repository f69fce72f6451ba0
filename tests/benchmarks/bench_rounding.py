"""How many 16-bit gains of norms see a direction or a step, rounded to nearest or stochastically.

    python tests/benchmarks/bench_rounding.py

Gains near 1 (1 +- 0.1) and ordinary weights N(0, 0.02), 400,000 of each, under one direction of sigma = 1e-3 and under
one step of 30 directions of alpha = 5e-4. Columns: share of elements that move at all; cosine of what moved with what
was meant; how much of it arrives, the projection of the move on what was meant (1: right on average).
"""

from __future__ import annotations

import torch

from ttc_esopt.engines import arrays
from ttc_esopt.es.noise import ROUNDINGS, NoiseKind
from ttc_esopt.es.optimizer import coefficients

SIZE, SIGMA, ALPHA, DIRECTIONS = 400_000, 1e-3, 5e-4, 30
FULL = NoiseKind("full")


def compare(moved: torch.Tensor, meant: torch.Tensor) -> str:
    """The three figures as cells of a table."""
    moved, meant = moved.double(), meant.double()
    product, squares = float(moved @ meant), float(meant @ meant)
    norm = float(moved @ moved) ** 0.5 * squares**0.5
    cosine = product / norm if norm else 0.0
    return f"{float((moved != 0).double().mean()):.1%} | {cosine:.2f} | {product / squares:.2f}"


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {
        "gains 1 +- 0.1": 1 + 0.1 * torch.randn(SIZE, generator=generator),
        "weights N(0, 0.02)": 0.02 * torch.randn(SIZE, generator=generator),
    }
    z = torch.randn(DIRECTIONS, generator=generator).double()
    z = ((z - z.mean()) / z.std(correction=0)).tolist()
    nudge, step = torch.zeros(SIZE), torch.zeros(SIZE)
    arrays.perturb(nudge, None, 7, "w", SIGMA, nudge)
    arrays.accumulate(step, FULL, range(DIRECTIONS), coefficients(ALPHA, z), "w")
    print("| type, weights | rounding | direction: move | cosine | arrives | step: move | cosine | arrives |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float16):
        for what, values in weights.items():
            base = values.to(dtype)
            for rounding in ROUNDINGS:
                cells = []
                live = torch.empty_like(base)
                arrays.perturb(base, None, 7, "w", SIGMA, live, kind=FULL, rounding=rounding)
                cells.append(compare(live.float() - base.float(), nudge))
                arrays.apply(base, step, live, "w", rounding=rounding)
                cells.append(compare(live.float() - base.float(), step))
                print(f"| {str(dtype).removeprefix('torch.')}, {what} | {rounding} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
