"""`ttc-esopt evaluate`: the objective of programs on one set of instances, or on instance files."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttc_esopt.errors import ConfigurationError

if TYPE_CHECKING:
    from ttc_esopt.evaluation import Evaluator, Outcome

_HELP = """Evaluate heuristics: programs in files, or a run folder (its best.py).

Each program runs in a sandboxed process of its own; an invalid one is reported, not an error. Exit status 0 when the
evaluation ran, 1 for a file that cannot be read, 2 for bad usage.

\b
Examples:
  ttc-esopt evaluate --problem tsp_construct mine.py
  ttc-esopt evaluate --problem tsp_construct --split val --size 100 mine.py other.py
  ttc-esopt evaluate --problem cvrp_aco --split test --protocol corrected --json mine.py
  ttc-esopt evaluate --problem tsp_construct --instances berlin52.tsp gr17.tsp -- mine.py
  ttc-esopt evaluate --problem bpp_aco --baselines
  ttc-esopt evaluate demo
"""


def register(app: typer.Typer) -> None:
    @app.command(help=_HELP)
    def evaluate(
        programs: Annotated[
            list[Path] | None,
            typer.Argument(metavar="CODE.py...|RUN", help="Program files, or run folders.", show_default=False),
        ] = None,
        problem: Annotated[
            str | None,
            typer.Option(metavar="NAME|FILE.py:CLASS|DIR", help="The problem; by default the run folder's own."),
        ] = None,
        problem_arg: Annotated[
            list[str] | None,
            typer.Option(
                "--problem-arg",
                metavar="NAME=VALUE",
                help="Argument of another framework's problem class; may be given several times.",
                show_default=False,
            ),
        ] = None,
        split: Annotated[str, typer.Option(help="Set of instances: train, val or test.")] = "train",
        size: Annotated[int | None, typer.Option(help="Instance size; by default the split's first.")] = None,
        instances: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE...",
                help="Instance files instead of a set: .tsp, .vrp, .bpp, knapsack, .npy, .npz. Arguments that are no "
                "programs (.py) and no folders count as further files.",
                show_default=False,
            ),
        ] = None,
        data: Annotated[
            str | None,
            typer.Option(metavar="DIR", help="Folder of published sets that no seed rebuilds (else TTC_ESOPT_DATA)."),
        ] = None,
        protocol: Annotated[
            str | None, typer.Option(help="published (default), or corrected where that distorts.", show_default=False)
        ] = None,
        mode: Annotated[
            str | None, typer.Option(help="bpp_aco: sample (default) or aco (a real ant colony).", show_default=False)
        ] = None,
        seed: Annotated[
            int | None,
            typer.Option(
                help="Seed of the random numbers of programs and ant colonies; by default the run's own, or 0."
            ),
        ] = None,
        baselines: Annotated[bool, typer.Option("--baselines", help="Evaluate the problem's baselines too.")] = False,
        lenient: Annotated[
            bool,
            typer.Option(
                "--lenient",
                help="Leave out instances on which a program fails, as the published test evaluators do; by default "
                "one such instance makes a program invalid.",
            ),
        ] = False,
        compile: Annotated[
            str,
            typer.Option(
                help="auto (where it pays and changes nothing), never (plain Python), or always (from the second "
                "instance on)."
            ),
        ] = "auto",
        sandbox: Annotated[
            str, typer.Option(help="auto (what this machine offers), or required (refuse to run with less).")
        ] = "auto",
        timeout: Annotated[
            float | None,
            typer.Option(
                help="Seconds per program on the whole set; by default four times what a search allows, more for "
                "larger sets."
            ),
        ] = None,
        memory_mb: Annotated[int, typer.Option(help="MiB that a program may allocate.")] = 1024,
        workers: Annotated[int | None, typer.Option(help="Processes at a time; by default one per core.")] = None,
        json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per program.")] = False,
    ) -> None:
        from ttc_esopt import problems
        from ttc_esopt.evaluation import PATIENCE, Evaluator, say_when_compiling
        from ttc_esopt.instances import instance_names, read_files, split_files
        from ttc_esopt.problems.hosts.arguments import joined

        codes_from, files = _sort_arguments(programs or [], instances or [])
        of_run = _settings_of_run(codes_from)
        name = problem or of_run.get("problem")
        if not isinstance(name, str):
            raise ConfigurationError(f"Expected --problem NAME; there are: {', '.join(problems.names())}.")
        if not codes_from and not baselines:
            raise ConfigurationError("Expected at least one program file or run folder, or --baselines.")
        own = of_run if problem is None else {}  # a run's options are for the run's problem
        say_when_compiling(lambda line: print(line, file=sys.stderr))
        folder = data or own.get("data") or None
        arguments = joined(problem_arg) if problem_arg else own.get("problem_args") or ""
        chosen = problems.load(name, data=folder, problem_args=arguments)
        given = {"protocol": protocol, "mode": mode}
        given |= {key: own.get(key) for key, value in given.items() if not value and key in chosen.options}
        chosen.configure({key: value for key, value in given.items() if value}, folder)
        if seed is None:
            seed = of_run.get("seed", 0)
        if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ConfigurationError(f"Expected a seed from 0 to 2^64 - 1, got {seed} (--seed).")
        texts = [(str(path), _read(path)) for path in map(_program_file, codes_from)]
        if baselines:
            texts += [(f"baseline {key}", code) for key, code in chosen.baselines.items()]
        if not texts:
            raise ConfigurationError(f"Problem {chosen.name} has no baselines: expected a program file.")
        if not files and not problem and split == "train":
            files = [Path(file) for file in split_files(of_run.get("instances", ""))]
        with Evaluator(
            chosen, split=split, size=size, instances=read_files(chosen, files) if files else None, seed=seed,
            workers=workers, timeout=timeout, patience=PATIENCE, memory_mb=memory_mb, lenient=lenient,
            compile=compile, sandbox=sandbox,
        ) as evaluator:  # fmt: skip
            _say_what(evaluator, len(texts))
            outcomes = _evaluate(evaluator, [code for _, code in texts])
        shared = {"problem": chosen.name, "split": evaluator.split, "size": evaluator.size, "seed": seed}
        more = {"instances": len(evaluator.instances), "source": evaluator.source, **chosen.chosen}
        names = instance_names(evaluator.instances) if files else []
        rows = [_row(text[0], shared, outcome, more, names) for text, outcome in zip(texts, outcomes, strict=True)]
        if baselines:
            for key, value in problems.mean_references(chosen, evaluator.instances).items():
                rows.append(_row(f"baseline {key}", shared, _reference(value, len(evaluator.instances)), more, []))
        if json_lines:
            for row in rows:
                print(json.dumps(row))
        else:
            _print_table(rows)


def _sort_arguments(arguments: list[Path], files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Programs and run folders; instance files, if any were named (an option cannot take several values)."""
    if not files:
        return arguments, []
    programs = [path for path in arguments if path.suffix == ".py" or path.is_dir()]
    files = files + [path for path in arguments if path not in programs]
    return programs, files


def _say_what(evaluator: Evaluator, count: int) -> None:
    from ttc_esopt.evaluation.sandbox import warning

    size = f" of size {evaluator.size}" if evaluator.size is not None else ""
    own = ", a set of our own: the published one is not at hand (--data)" if evaluator.source == "own" else ""
    number = len(evaluator.instances)
    print(
        f"{count} program{'s'[: count != 1]} on {number} instance{'s'[: number != 1]}{size} "
        f"({evaluator.problem.name}, {evaluator.split}{own}), at most {evaluator.timeout:g} s each",
        file=sys.stderr,
    )
    if weak := warning():
        print(weak, file=sys.stderr)


def _row(name: str, shared: dict[str, Any], outcome: Outcome, more: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """One JSON object; with the score of every instance where they come from files."""
    each = {"scores": dict(zip(names, outcome.scores, strict=True))} if names and outcome.scores else {}
    return {
        "program": name, **shared, "valid": outcome.valid, "objective": outcome.objective, "seconds": outcome.seconds,
        "failure": outcome.failure, "detail": outcome.detail, "true_objective": outcome.true_objective,
        "path": "compiled" if outcome.compiled else "python", "compile_seconds": outcome.compile_seconds, **more,
        "valid_instances": sum(score is not None for score in outcome.scores), "alarm": outcome.alarm, **each,
    }  # fmt: skip


def _reference(value: float, count: int) -> Outcome:
    """A classical method's mean as if it were a program's."""
    from ttc_esopt.evaluation import Outcome

    return Outcome(True, value, None, "", 0.0, true_objective=value, scores=(value,) * count)


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
                named = found.items() if isinstance(found, dict) else ()
                return {name: value for name, value in named if isinstance(value, str) or name == "seed"}
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
    distorted = any(row["true_objective"] != row["objective"] for row in rows)
    head = ("program", "objective", "seconds", *(["true objective"] if distorted else []), "failure")
    table = [head]
    for row in rows:
        true = [_number(row["true_objective"])] if distorted else []
        note = f"{row['failure']}: {row['detail']}" if row["failure"] else row["detail"]
        table.append((row["program"], _number(row["objective"]), f"{row['seconds']:.2f}", *true, note))
        if len(row.get("scores", {})) > 1:  # a mean of unlike instances says little
            blank = [""] * (1 + len(true))
            table += [(f"  {name}", _number(score), *blank, "") for name, score in row["scores"].items()]
    widths = [max(len(line[k]) for line in table) for k in range(len(head) - 1)]
    for name, *numbers, note in table:
        columns = [f"{name:<{widths[0]}}", *(f"{n:>{width}}" for n, width in zip(numbers, widths[1:], strict=True))]
        print("  ".join([*columns, note]).rstrip())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
