"""Studies: a grid of arms, problems and seeds from one TOML file, run, compared and reported.

from ttc_esopt.study import read_recipe, run_study
result = run_study(read_recipe("runs/pilot.toml"))
print(result.comparisons[0].comparison.settings[0].verdict)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "Arm": "recipe", "Cell": "recipe", "Published": "recipe", "Recipe": "recipe", "read_recipe": "recipe",
    "StudyResult": "running", "run_study": "running",
    "ArmComparison": "comparing", "compared": "comparing", "published_table": "published",
}  # fmt: skip
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """Each part is imported when it is first used: reading a recipe needs no statistics."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
