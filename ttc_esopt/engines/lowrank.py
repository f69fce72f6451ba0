"""Low-rank directions in one batch: every row is written by its own nudged model, and the weights stay untouched.

A linear layer under W + sigma * eps, eps = (1 / sqrt r) A B^T, gives W x + (sigma / sqrt r) * A (B^T x). The second
part costs two thin products per row, so hooks on the layers add it with each row's own A and B. Scope `lora` has
factors of its own, which are nudged by full noise and decode in one batch by the same hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ttc_esopt.engines.adapters import Lora, size_of, working_device
from ttc_esopt.errors import EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

if TYPE_CHECKING:
    from ttc_esopt.engines.weights import Weights

Nudge = tuple[int, float]  # direction, sigma


class RowFactors:
    """Context manager: inside, row i of every forward pass of `modules` gets y += A_i (B_i^T x).

    Parameters
    ----------
    modules : dict of str to nn.Module
        Layers by weight name.
    factors : dict of str to (A, B)
        Both transposed: A (b, r, rows), B (b, r, cols).
    rows : int
        b, the rows of the batch.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], factors: dict[str, tuple[torch.Tensor, torch.Tensor]], rows: int
    ) -> None:
        self.modules, self.factors, self.rows = modules if factors else {}, factors, rows
        self.columns = 1  # tokens per row of the coming forward pass; the caller keeps it up to date
        self._handles: list = []

    def __enter__(self) -> RowFactors:
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
        def add(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
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


class LowRankForward(RowFactors):
    """Inside, row i of every forward pass of `modules` runs under `nudges[i]`, low-rank noise.

    Parameters
    ----------
    modules : dict of str to nn.Module
        Layers by weight name (the name keys the noise), packed ones too.
    kind : NoiseKind
    nudges : sequence of (direction, sigma) or None
        One per row of the batch; None leaves the row unperturbed.
    dtype : torch.dtype
        Of the model's activations.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        kind: NoiseKind,
        nudges: Sequence[Nudge | None],
        dtype: torch.dtype,
    ) -> None:
        moved = modules if any(nudges) else {}
        factors = {name: _stack(name, module, kind, nudges, dtype) for name, module in moved.items()}
        super().__init__(modules, factors, len(nudges))


class LoraForward(RowFactors):
    """Inside, row i of every forward pass runs under its own factors of scope `lora`, full noise on them.

    Parameters
    ----------
    lora : Lora
    weights : Weights
        Those that move the factors.
    nudges : as for `LowRankForward`
    """

    def __init__(self, lora: Lora, weights: Weights, nudges: Sequence[Nudge | None]) -> None:
        self.lora = lora
        factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        if any(nudges):
            taken: dict[Nudge | None, dict[str, tuple[torch.Tensor, ...]]] = {}
            try:
                for nudge in dict.fromkeys(nudges):
                    weights.restore() if nudge is None else weights.perturb(*nudge)
                    taken[nudge] = {name: tuple(f.T.clone() for f in pair) for name, pair in lora.factors.items()}
            finally:
                weights.restore()
            for name in lora.factors:
                pairs = [taken[nudge][name] for nudge in nudges]
                factors[name] = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
        super().__init__(lora.modules, factors, len(nudges))

    def __enter__(self) -> LoraForward:
        self.lora.active = not self.factors
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.lora.active = True


def _stack(
    name: str, module: nn.Module, kind: NoiseKind, nudges: Sequence[Nudge | None], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors of one layer, both transposed: A (b, r, rows), scaled by sigma / sqrt r, and B (b, r, cols)."""
    rows, columns = size_of(module)
    a = torch.zeros(len(nudges), kind.rank, rows)
    b = torch.zeros(len(nudges), kind.rank, columns)
    for i, nudge in enumerate(nudges):
        if nudge is not None:
            left, right = noise.factors(nudge[0], name, (rows, columns), kind.rank, values=kind.values)
            a[i] = torch.from_numpy(left).T * (nudge[1] * float(noise.lowrank_scale(kind.rank)))
            b[i] = torch.from_numpy(right).T
    device = working_device(module)
    return a.to(device, dtype), b.to(device, dtype)
