"""Writes runs/README.md from the recipes and from the results in runs/published; the test of recipes compares with it.

Run it as `python tests/recipe_page.py`.
"""

import json
import textwrap
from pathlib import Path
from statistics import fmean

from ttc_esopt.rundata import as_number
from ttc_esopt.study import published_table, read_recipe

RUNS = Path(__file__).parents[1] / "runs"
PAGE = RUNS / "README.md"
ORDER = (
    "eoh-1000", "eoh-2000", "sample-1000", "sample-2000", "ttest-20", "sigma", "temperature", "population", "placebos",
    "pilot", "rewards",
)  # fmt: skip
HEAD = """# Recipes

Each study here is a TOML file: arms, problems and seeds of one experiment. The first eight follow published
experiments, `placebos` adds the controls that these lack, the others need no GPU. `demo.toml` is a single run
(`ttc-esopt run --config runs/demo.toml --out demo`).

```bash
ttc-esopt study runs/pilot.toml --dry-run       # what it would spend
ttc-esopt study runs/pilot.toml --out pilot     # run it; the same command goes on
ttc-esopt study runs/ttest-20.toml --table      # published figures, with ours from runs/ttest-20 beside them
```

`published` are means over n runs, with the best of them, as their sources give them; the numbers in brackets name the
source and what is known against the figure. `ours` comes from `runs/published/NAME/comparison.json`; where that is
missing, the cell says "not run here". Figures on `train` are those of the search set: they say which search fits it
better, and flatter every method. This page is written by `python tests/recipe_page.py`, and a test compares it.

What the recipes take over from the published protocol, and what not: sizes, operators, counts of candidates and
directions, sigma, alpha, sampling, reward rules and model are those published (`--preset paper`); noise, precision of
the steps, prompts, parser, random numbers of colonies and sandbox are ours: see
[docs/differences.md](../docs/differences.md).
"""


def studies() -> list[Path]:
    """The recipes, in the order of the page; a new one comes last."""
    paths = {path.stem: path for path in sorted(RUNS.glob("*.toml")) if "[arms." in path.read_text()}
    return [paths.pop(name) for name in ORDER] + list(paths.values())


def page() -> str:
    """The whole page."""
    return HEAD + "".join(section(path) for path in studies())


def section(path: Path) -> str:
    recipe, results = read_recipe(path), RUNS / "published" / path.stem
    runs = len(recipe.cells(Path()))
    parts = [f"\n## {recipe.name}\n"]
    for label, text in (("", recipe.about), ("Needs: ", recipe.hardware)):
        if text:
            parts.append(textwrap.fill(f"{label}{' '.join(text.split())}", 118, break_on_hyphens=False) + "\n")
    grid = f"Problems: {', '.join(recipe.problems)}. Arms: {', '.join(recipe.arms)}."
    parts.append(textwrap.fill(f"[{path.name}]({path.name}), {runs} runs. {grid}", 118, break_on_hyphens=False) + "\n")
    if recipe.published:
        parts.append(published_table(recipe, results))
    elif own := own_table(results):
        parts.append(own)
    else:
        parts.append("No published figure is known to us. Not run here.\n")
    return "\n".join(parts)


def own_table(results: Path) -> str | None:
    """Means of ours by problem and arm, where a study without published figures was run."""
    file = results / "comparison.json"
    if not file.is_file():
        return None
    groups: dict[tuple[str, str], list[dict]] = {}
    for run in json.loads(file.read_text())["runs"]:
        if run["state"] == "finished":
            groups.setdefault((run["problem"], run["arm"]), []).append(run["values"])
    rows = ["| problem | arm | runs | ours on train (mean) | ours on test (mean) |", "|---|---|---|---|---|"]
    for (problem, arm), values in groups.items():
        means = []
        for split in ("train", "test"):
            found = [as_number(value.get(split, {}).get("objective")) for value in values]
            known = [value for value in found if value is not None]
            means.append(f"{fmean(known):.6g}" if known else "–")
        rows.append(f"| {problem} | {arm} | {len(values)} | {' | '.join(means)} |")
    return "\n".join([*rows, "", "Objectives, minimised. No figure is published."]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
