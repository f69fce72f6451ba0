"""Low-rank directions in one batch: every row is written by its own nudged model, and the weights stay untouched.

A linear layer under W + sigma * eps, eps = (1 / sqrt r) A B^T, gives W x + (sigma / sqrt r) * A (B^T x). The second
part costs two thin products per row, so hooks on the layers add it with each row's own A and B.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ttc_esopt.errors import EngineError
from ttc_esopt.es import noise

Nudge = tuple[int, float]  # direction, sigma


class LowRankForward:
    """Context manager: inside, row i of every forward pass of `modules` runs under `nudges[i]`.

    Parameters
    ----------
    modules : dict of str to nn.Linear
        Layers by weight name (the name keys the noise).
    rank : int
    nudges : sequence of (direction, sigma) or None
        One per row of the batch; None leaves the row unperturbed.
    """

    def __init__(self, modules: dict[str, nn.Linear], rank: int, nudges: Sequence[Nudge | None]) -> None:
        self.modules = modules if any(nudges) else {}
        self.rows = len(nudges)
        self.columns = 1  # tokens per row of the coming forward pass; the caller keeps it up to date
        self.factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._handles: list = []
        for name, module in self.modules.items():
            self.factors[name] = _stack(name, module.weight, rank, nudges)

    def __enter__(self) -> LowRankForward:
        for name, module in self.modules.items():
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.rows = len(rows)
        for name, (a, b) in self.factors.items():
            index = torch.tensor(rows, device=a.device)
            self.factors[name] = a[index], b[index]

    def _hook(self, name: str):
        def add(module: nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            x = inputs[0]
            a, b = self.factors[name]
            if x.numel() != self.rows * self.columns * x.shape[-1]:
                raise EngineError(
                    f"The layer of {name} sees an input of shape {tuple(x.shape)} that cannot be told apart by request "
                    f"({self.rows} x {self.columns}): low-rank noise does not work for this model; use --noise full."
                )
            x = x.reshape(self.rows, self.columns, x.shape[-1])
            y = output.view(self.rows, self.columns, output.shape[-1])
            # One token per row: torch's batched matrix product is slow on vectors.
            inner = torch.linalg.vecdot(x, b)[:, None] if self.columns == 1 else torch.bmm(x, b.transpose(1, 2))
            if a.shape[1] == 1:
                y.addcmul_(inner, a)
            else:
                y.baddbmm_(inner, a)
            return output

        return add


def _stack(
    name: str, weight: torch.Tensor, rank: int, nudges: Sequence[Nudge | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors of one layer, both transposed: A (b, r, out), scaled by sigma / sqrt r, and B (b, r, in)."""
    out, width = weight.shape
    a = torch.zeros(len(nudges), rank, out)
    b = torch.zeros(len(nudges), rank, width)
    for i, nudge in enumerate(nudges):
        if nudge is not None:
            left, right = noise.factors(nudge[0], name, (out, width), rank)
            a[i] = torch.from_numpy(left).T * (nudge[1] * float(noise.lowrank_scale(rank)))
            b[i] = torch.from_numpy(right).T
    return a.to(weight.device, weight.dtype), b.to(weight.device, weight.dtype)
