"""`ttc-esopt evaluate`: the objective of programs on one set of instances."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttc_esopt.errors import ConfigurationError

if TYPE_CHECKING:
    from ttc_esopt.evaluation import Evaluator, Outcome

_HELP = """Evaluate heuristics: programs in files, or a run folder (its best.py).

Each program runs in a sandboxed process of its own; an invalid one is reported, not an error. Exit status 0 when the
evaluation ran, 2 for bad usage.

\b
Examples:
  ttc-esopt evaluate --problem tsp_construct mine.py
  ttc-esopt evaluate --problem tsp_construct --split val --size 100 mine.py other.py
  ttc-esopt evaluate --problem tsp_construct --split test --json mine.py
  ttc-esopt evaluate demo
"""


def register(app: typer.Typer) -> None:
    @app.command(help=_HELP)
    def evaluate(
        programs: Annotated[
            list[Path], typer.Argument(metavar="CODE.py...|RUN", help="Program files, or run folders.")
        ],
        problem: Annotated[
            str | None,
            typer.Option(metavar="NAME|FILE.py:CLASS", help="The problem; by default the run folder's own."),
        ] = None,
        split: Annotated[str, typer.Option(help="Set of instances: train, val or test.")] = "train",
        size: Annotated[int | None, typer.Option(help="Instance size; by default the split's first.")] = None,
        seed: Annotated[
            int | None,
            typer.Option(help="Seed of random and np.random inside the programs; by default the run's own, or 0."),
        ] = None,
        timeout: Annotated[
            float | None,
            typer.Option(help="Seconds per program on the whole set; by default the problem's, more for larger sets."),
        ] = None,
        memory_mb: Annotated[int, typer.Option(help="MiB that a program may allocate.")] = 1024,
        workers: Annotated[int | None, typer.Option(help="Programs at the same time; by default one per core.")] = None,
        json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per program.")] = False,
    ) -> None:
        from ttc_esopt.evaluation import Evaluator
        from ttc_esopt.problems import load, names

        files = [_program_file(path) for path in programs]
        of_run = _settings_of_run(programs)
        name = problem or of_run.get("problem")
        if not isinstance(name, str):
            raise ConfigurationError(f"Expected --problem NAME; there are: {', '.join(names())}.")
        chosen = load(name)
        if seed is None:
            seed = of_run.get("seed", 0)
        if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ConfigurationError(f"Expected a seed from 0 to 2^64 - 1, got {seed} (--seed).")
        codes = [_read(path) for path in files]
        with Evaluator(
            chosen, split=split, size=size, seed=seed, workers=workers, timeout=timeout, memory_mb=memory_mb
        ) as evaluator:
            size = evaluator.size
            print(
                f"{len(codes)} program{'s'[: len(codes) != 1]} on {chosen.counts[split]} instances of size {size} "
                f"({chosen.name}, {split}), at most {evaluator.timeout:g} s each",
                file=sys.stderr,
            )
            outcomes = _evaluate(evaluator, codes)
        rows = []
        for path, outcome in zip(files, outcomes, strict=True):
            rows.append(
                {
                    "program": str(path),
                    "problem": chosen.name,
                    "split": split,
                    "size": size,
                    "seed": seed,
                    "valid": outcome.valid,
                    "objective": outcome.objective,
                    "seconds": outcome.seconds,
                    "failure": outcome.failure,
                    "detail": outcome.detail,
                }
            )
        if json_lines:
            for row in rows:
                print(json.dumps(row))
        else:
            _print_table(rows)


def _program_file(path: Path) -> Path:
    if path.is_dir():
        if not (path / "best.py").is_file():
            raise ConfigurationError(f"No best.py in {path}: expected a program file or a run folder.")
        return path / "best.py"
    if not path.is_file():
        raise ConfigurationError(f"No such file: {path}")
    return path


def _settings_of_run(programs: list[Path]) -> dict:
    """The settings of the first run folder among the arguments."""
    for path in programs:
        file = path / "run.toml"
        if file.is_file():
            try:
                found = tomllib.loads(file.read_text(encoding="utf-8")).get("settings")
                return found if isinstance(found, dict) else {}
            except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{file} cannot be read: {error}") from None
    return {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"Expected UTF-8 text in {path}.") from None


def _evaluate(evaluator: Evaluator, codes: list[str]) -> list[Outcome]:
    if not (sys.stderr.isatty() and len(codes) > 1):
        return evaluator.evaluate(codes)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("evaluating", total=len(codes))
        return evaluator.evaluate(codes, progress=lambda done: progress.update(task, completed=done))


def _print_table(rows: list[dict]) -> None:
    head = ("program", "objective", "seconds", "failure")
    table = [head]
    for row in rows:
        value = "-" if row["objective"] is None else f"{row['objective']:.6g}"
        failure = f"{row['failure']}: {row['detail']}" if row["failure"] else ""
        table.append((row["program"], value, f"{row['seconds']:.2f}", failure))
    widths = [max(len(line[k]) for line in table) for k in range(3)]
    for name, value, seconds, failure in table:
        line = f"{name:<{widths[0]}}  {value:>{widths[1]}}  {seconds:>{widths[2]}}  {failure}"
        print(line.rstrip())
