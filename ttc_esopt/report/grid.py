"""A study's folder as a page sees it: the recipe, and whatever of its runs can be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc_esopt.charts import COLOURS, DASHES, Key
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.rundata import RunData, read_run

FILE = "study.toml"


@dataclass
class Grid:
    """A study and its runs.

    Attributes
    ----------
    folder : Path
        Of the study.
    recipe : ttc_esopt.study.Recipe
        The copy in the folder.
    cells : list of ttc_esopt.study.Cell
        All runs that there should be.
    runs : list of RunData or None
        In the order of `cells`; None where nothing has begun.
    states : list of ttc_esopt.study.plan.State
        How far each run is.
    """

    folder: Path
    recipe: Any
    cells: list[Any]
    runs: list[RunData | None]
    states: list[Any]

    def of(self, problem: str, arm: str) -> list[RunData]:
        """Runs of an arm on a problem that have begun."""
        pairs = zip(self.cells, self.runs, strict=True)
        return [run for cell, run in pairs if run is not None and (cell.problem, cell.arm) == (problem, arm)]

    def wanted(self, problem: str, arm: str) -> int:
        """How many runs of an arm on a problem there should be."""
        return sum((cell.problem, cell.arm) == (problem, arm) for cell in self.cells)

    @property
    def keys(self) -> dict[str, Key]:
        """Arm -> colour and line style, the same all over the page."""
        return {arm: Key(arm, COLOURS[i % len(COLOURS)], i % len(DASHES)) for i, arm in enumerate(self.recipe.arms)}


def is_study(folder: Path) -> bool:
    """Whether the folder is that of a study."""
    return (Path(folder) / FILE).is_file()


def read_grid(folder: Path) -> Grid:
    """Read a study's folder.

    Raises
    ------
    ConfigurationError
        There is no recipe in it, or a broken one.
    """
    from ttc_esopt.study import read_recipe
    from ttc_esopt.study.plan import state_of

    folder = Path(folder)
    if not is_study(folder):
        raise ConfigurationError(f"{folder} holds no study: no {FILE} is in it.")
    recipe = read_recipe(folder / FILE)
    cells = recipe.cells(folder)
    runs: list[RunData | None] = []
    for cell in cells:
        try:
            run = read_run(cell.folder)
        except ConfigurationError:
            run = None
        else:
            run.label = f"{cell.problem} {cell.arm} seed {cell.seed}"
        runs.append(run)
    return Grid(folder, recipe, cells, runs, [state_of(cell.folder) for cell in cells])
