"""A whole run in one call: load the parts, search, conclude, report. The command line and Python users both come here.

from ttc_esopt.runner import run
result = run("demo", problem="tsp_construct", model="smollm2-135m", arm="esopt", budget=120, seed=1)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ttc_esopt import models, problems, scaffolds
from ttc_esopt.engines.base import SHARD_SIZE, expect_size
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.evaluation.sandbox import warning
from ttc_esopt.instances import absolute_files, evaluator, own_sets, own_template, problem_of, read_files, split_files
from ttc_esopt.runfolder import RunFolder, versions
from ttc_esopt.settings import FIELDS, Settings, check_types, resolve
from ttc_esopt.tuned import Tuned, begin, rollback_of, settled, tuned, write_patch

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a run ended with.

    Attributes
    ----------
    folder : Path
        The run folder; best.py, best.json and report.html are in it.
    conclusion : ttc_esopt.conclude.Conclusion
        Baselines, best found, valid shares.
    fingerprint : str
        Of the weights at the end.
    steps : int
        ES steps taken.
    stopped : str or None
        Why the plan was not finished, if it was not.
    report : Path or None
        The page, if one was written.
    """

    folder: Path
    conclusion: Any
    fingerprint: str
    steps: int
    stopped: str | None
    report: Path | None


def settings_of(given: dict[str, Any]) -> Settings:
    """Resolve settings, checking everything that can be checked before anything is written.

    Paths of a problem file or a model folder become absolute, so that the run can be resumed from anywhere.

    Raises ConfigurationError or DataError for a name that does not exist or a plan without a batch of directions.
    """
    check_types(given)
    given = settled(dict(given))
    named = given.get("problem", "")
    file, colon, name = named.rpartition(":")
    if colon and file.endswith(".py"):
        given["problem"] = f"{Path(file).resolve()}:{name}"
    elif named and named not in problems.names() and Path(named).is_dir():
        given["problem"] = str(Path(named).resolve())
    if given.get("instances"):
        given["instances"] = absolute_files(given["instances"])
    data = given.get("data") or os.environ.get("TTC_ESOPT_DATA")
    if data:
        given["data"] = str(Path(data).resolve())
    # a wrong name is told before a wrong model
    problems.load(given.get("problem", FIELDS["problem"].default), problem_args=given.get("problem_args", ""))
    model = given.get("model", FIELDS["model"].default)
    if model not in models.REGISTRY:
        found = models.resolve(model)
        if isinstance(found, Path):
            given["model"] = str(found.resolve())
    settings = resolve(given, models.defaults(model))
    problem = problem_of(settings)
    missing = [name for name in ("task", "template") if not hasattr(problem, name)]
    if missing:
        raise ConfigurationError(f"{settings.problem} lacks {', '.join(missing)}: no prompt can be made (--problem).")
    read_files(problem, split_files(settings.instances))
    plan = scaffolds.build(problem, settings).plan()
    if settings.arm != "frozen" and not any(call.es for call in plan):
        batch = settings.directions * settings.replies_per_direction
        raise ConfigurationError(
            f"Arm {settings.arm} needs at least one batch of {batch} candidates, this plan has none "
            "(--budget, --directions, --es-operators)."
        )
    return settings


def run(out: Path | str, *, report: bool = True, say: Say = print, **given: Any) -> Result:
    """A new run in the folder `out`; keyword arguments are the fields of `Settings`."""
    command = f"ttc_esopt.runner.run({str(out)!r}, **{given})"
    return work(RunFolder.create(Path(out), settings_of(given), command), report, say)


def resume(
    folder: Path | str, *, report: bool = True, rollback: bool = False, say: Say = print, **limits: Any
) -> Result:
    """Go on with a run exactly where it stopped; `limits` may change its limits and who does the work.

    With `rollback` the weights go back to those of the best batch so far first; what was found stays.
    """
    opened = RunFolder.open(Path(folder))
    if opened.host:
        raise ConfigurationError(
            f"{folder} belongs to a run of {opened.host['name']}: go on with `ttc-esopt serve --continue --out DIR`, "
            "or for a script with `ttc-esopt exec --continue RESULTS_DIR SCRIPT.py`."
        )
    if limits:
        opened.change_limits(limits)
    return work(opened, report, say, rollback)


def work(folder: RunFolder, report: bool = True, say: Say = print, rollback: bool = False) -> Result:
    """The run of a folder, from wherever it is to the end of its plan, a limit or an interruption.

    Raises
    ------
    DataError
        If another process works in the folder, the folder does not fit its settings, or no candidate was valid.
    """
    settings = folder.settings
    folder.lock()
    try:
        for line in announcement(settings, folder.path):
            say(line)
        if weak := warning():
            say(weak)
        # refused before a model is loaded, noted after: a run that does not get so far has not gone back
        back = rollback_of(folder, scaffolds.build(problem_of(settings), settings).plan()) if rollback else None
        stored = len(folder.samples.read())
        if stored:
            say(f"{stored} candidates are there already")
        for name, version in versions().items():
            if folder.document["versions"].get(name, version) != version:
                say(f"note: the run began with {name} {folder.document['versions'][name]}, here is {version}")
        if report and find_spec("matplotlib") is None:
            report = False
            say("no report.html will be written: pip install 'ttc-esopt[report]', then `ttc-esopt report`")
        say_memory(folder, say)
        say(f"loading {settings.model} ...")
        began = time.monotonic()
        with closing(open_engine(folder)) as engine:
            folder.note_model(engine.describe(), engine.fingerprint())
            tuned_by = f", tuned by {len(folder.start.read())} steps" if settings.init_from else ""
            say(f"model ready after {time.monotonic() - began:.0f} s{tuned_by}, fingerprint {engine.fingerprint()}")
            facts = engine.describe()
            if facts.get("scope") == "all" and facts.get("frozen_tensors"):
                first = facts.get("frozen_first")
                say(f"{facts['frozen_tensors']} tensors of the checkpoint do not move with the others, first {first}")
            if back:
                folder.note_rollback({"order": back[1], "after": back[0].after})
                say(f"going back to the weights of the best batch: {back[0].text()}")
            return _search(folder, engine, report, say)
    except KeyboardInterrupt:
        say(f"interrupted; go on with: ttc-esopt resume {folder.path}")
        raise SystemExit(1) from None
    finally:
        folder.unlock()


def _search(folder: RunFolder, engine: Any, report: bool, say: Say) -> Result:
    from ttc_esopt.conclude import conclude
    from ttc_esopt.progress import RunProgress
    from ttc_esopt.search import Search

    settings = folder.settings
    problem = problem_of(settings)
    scaffold = scaffolds.build(problem, settings)
    with evaluator(problem, settings) as search_set:
        if note := own_template(problem, search_set):
            say(note)
        title = f"{problem.name} {settings.scaffold} {settings.arm}"
        with RunProgress(sum(call.count for call in scaffold.plan()), title) as progress:
            if hasattr(engine, "say"):
                engine.say = progress.line  # replicas come and go while the display is at work
            search = Search(folder, problem, scaffold, engine, search_set, progress)
            state = search.run()
            folder.timings.append(engine.peak())
        fingerprint = engine.fingerprint()
        held_out = "val" in problem.splits and not settings.instances
        last = "choosing the best on val, reporting it on test:" if held_out else "evaluating"
        say(f"{last} the last population in plain Python ...")
        conclusion = conclude(folder, problem, state)
    if search.stopped is None:
        folder.note_result({"fingerprint": fingerprint, "sha256": engine.sha256()})
    page = None
    if report:
        from ttc_esopt.report import write_report

        page = write_report([folder.path], folder.path / "report.html")
    steps = sum(record["taken"] for record in folder.history.read())
    if not state.population and search.stopped is None:
        raise DataError(
            f"No candidate was valid ({len(state.lines)} tried; see failure and detail in {folder.samples.path}). "
            "Try --prefill, another --temperature, or --init both."
        )
    return Result(folder.path, conclusion, fingerprint, steps, search.stopped, page)


def open_engine(folder: RunFolder, model: str | None = None, weights_only: bool = False) -> Any:
    """The engine of a run, on its own model or on another that is said to equal it, with the weights it began with.

    Where only the weights are wanted, one process with transformers is enough: whatever engine and however many
    replicas the run had, they come to the same. What `auto` came to when the run began holds on resume too: other
    threads or another dtype give other bits.
    """
    from ttc_esopt.engines import load_engine
    from ttc_esopt.engines.memory import delta_place_of
    from ttc_esopt.es.noise import NoiseKind

    s, began, start = folder.settings, folder.document.get("model", {}), folder.start.read()
    dtype = began.get("dtype") or (start[0]["dtype"] if start else "auto")
    dtype = dtype if s.dtype == "auto" else s.dtype
    shared_out = s.replicas > 1 and not weights_only  # then the room is that of other devices
    kept = {"engine": "transformers"} if weights_only else {
        "engine": began.get("engine", s.engine), "tensor_parallel": s.tensor_parallel, "engine_args": s.engine_args,
        "replicas": s.replicas, "work_unit": s.work_unit, "ray_address": s.ray_address,
    }  # fmt: skip
    engine = load_engine(
        model or s.model, device=s.device, noise=NoiseKind.parse(s.noise), scope=s.scope, dtype=dtype,
        delta=s.delta if shared_out else delta_place_of(s, dtype), threads=s.threads or began.get("threads"),
        batch_size=s.batch_size, rounding=s.rounding, **kept,
    )  # fmt: skip
    begin(engine, start)
    return engine


def say_memory(folder: RunFolder, say: Say) -> None:
    """Say what the model will take. Raises EngineError if it cannot fit."""
    from ttc_esopt.engines.memory import memory_plan

    plan = memory_plan(folder.settings, folder.document.get("model", {}).get("dtype", "auto"))
    if plan is not None:
        say(plan.text())
        if narrow := plan.check():
            say(narrow)


def announcement(settings: Settings, out: Path) -> list[str]:
    """What is about to be spent, as lines."""
    problem = problem_of(settings)
    plan = scaffolds.build(problem, settings).plan()
    counts: dict[str, int] = {}
    for call in plan:
        counts[call.operator] = counts.get(call.operator, 0) + call.count
    total = sum(counts.values())
    written = total - counts.get("seed", 0)
    steps = sum(call.es for call in plan)
    listed = ", ".join(f"{operator} {count}" for operator, count in counts.items())
    s = settings
    lines = [
        f"{s.problem}, scaffold {s.scaffold}, arm {s.arm}, preset {s.preset}, seed {s.seed}",
        f"candidates: {total} ({listed}); population {s.population}",
    ]
    if s.arm != "frozen":
        lines.append(f"batches: {steps}, each {s.directions} directions x {s.replies_per_direction} replies")
        lines.append(s.es_words())
    if s.replicas > 1:
        lines.append(f"{s.replicas} replicas, handed {s.work_unit} directions at a time")
    if s.evaluate_on == "ray":
        lines.append("programs are evaluated on the nodes of a Ray cluster")
    if s.init_from:
        which = "best batch" if s.rollback else "end"
        lines.append(f"starts from the tuned model of {s.init_from}, as it was at its {which}")
    if own := own_sets(problem, settings):
        lines.append(
            f"sets of our own stand in for published ones that are not at hand: {', '.join(own)} (--data); "
            "figures on them do not compare with published ones"
        )
    then = "on val and the best on test" if "val" in problem.splits else "again"
    then = "on the instance files again" if s.instances else then
    return [
        *lines,
        f"at most {written * s.max_tokens} tokens; {total} evaluations on the search set, then the last population "
        f"{then}",
        s.sampling_words(),
        *s.idle(),
        f"results go to {out}",
    ]


def replayed(path: Path, model: str | None = None) -> tuple[Any, str]:
    """The engine with the weights that a run's history, or a patch, leads to, and their fingerprint.

    Raises DataError if the model is not the run's, or the weights are not those of the history.
    """
    if path.is_file():
        return _patched(tuned(path), model)
    folder = RunFolder.open(path)
    records = folder.history.read()
    if model is not None and model not in models.REGISTRY:
        models.resolve(model)
    from ttc_esopt.search import replay

    engine = open_engine(folder, model, weights_only=True)
    start = folder.document.get("model", {}).get("fingerprint")
    if start and engine.fingerprint() != start:
        raise DataError(f"The model has fingerprint {engine.fingerprint()}, the run began with {start} (--model).")
    fingerprint = replay(folder, engine)
    expected = records[-1]["fingerprint"] if records else start
    if expected and fingerprint != expected:
        raise DataError(f"After replay the weights have fingerprint {fingerprint}, the history says {expected}.")
    return engine, fingerprint


def _patched(patch: Tuned, model: str | None) -> tuple[Any, str]:
    from ttc_esopt.engines import load_engine
    from ttc_esopt.es.noise import NoiseKind

    last = patch.lines[-1]
    engine = load_engine(
        model or patch.model, noise=NoiseKind.parse(last["noise"]), scope=last["scope"], dtype=last["dtype"],
        rounding=patch.rounding,
    )  # fmt: skip
    begin(engine, patch.lines)
    return engine, engine.fingerprint()


def export(
    path: Path, out: Path, model: str | None = None, shard_size: str = SHARD_SIZE, say: Say = print
) -> str:  # fmt: skip
    """Write the weights that a run ended with, or that a patch leads to, as a Hugging Face checkpoint; fingerprint.

    It is the run's, and the checkpoint's too but for scope lora, whose factors are merged.

    Raises ConfigurationError if `out` is not empty, or `shard_size` is none.
    """
    expect_size(shard_size)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"Expected a new or empty folder, got {out} (--out).")
    engine, fingerprint = replayed(path, model)
    with closing(engine):
        engine.export(out, shard_size)
        if engine.describe()["scope"].startswith("lora"):
            say("the factors are merged into the checkpoint, which has a fingerprint of its own; the run's is")
    return fingerprint


def export_patch(path: Path, out: Path) -> str:
    """Write the few kilobytes that rebuild a run's tuned model from the public one; its fingerprint.

    Raises ConfigurationError if the run moved no weights, or `out` exists.
    """
    if out.exists():
        raise ConfigurationError(f"Expected a new file, {out} exists (--patch).")
    return write_patch(RunFolder.open(path), out).fingerprint
