"""Scaffold `sample`: independent i1 replies, no parents; the batches of directions are i1 calls.

The matched baseline of the search: whatever it finds is the model's alone. The population is only a record of the
best; no prompt shows it.
"""

from __future__ import annotations

from ttc_esopt.scaffolds.base import Call
from ttc_esopt.scaffolds.eoh import EoH


class Sample(EoH):
    """See the module; satisfies `ttc_esopt.scaffolds.base.Scaffold`."""

    def plan(self) -> list[Call]:
        """Batches of G x K candidates, each its own generation; a rest below one batch is an ordinary call."""
        s = self.settings
        batch = s.directions * s.replies_per_direction
        counts = [batch] * (s.budget // batch) + ([s.budget % batch] if s.budget % batch else [])
        return [Call(i, i + 1, "i1", count, es=count == batch) for i, count in enumerate(counts)]
