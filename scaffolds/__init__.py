"""How a model is driven: `eoh` (a population with operators) and `sample` (independent replies)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttc_esopt.problems.base import Problem
    from ttc_esopt.scaffolds.base import Scaffold
    from ttc_esopt.settings import Settings


def build(problem: Problem, settings: Settings) -> Scaffold:
    """The scaffold that the settings name."""
    from ttc_esopt.scaffolds.eoh import EoH  # here, so that `parse` starts without numpy
    from ttc_esopt.scaffolds.sample import Sample

    return {"eoh": EoH, "sample": Sample}[settings.scaffold](problem, settings)
