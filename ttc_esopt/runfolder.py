"""The folder of one run: names and formats of its files, creation, locking, and what `resume` reads back.

run.toml        settings, versions, model (written first, so that a run killed at once can be resumed)
samples.jsonl   one line per candidate, in order; no clock readings
timings.jsonl   seconds for the same lines and for the steps
history.jsonl   one line per ES step
diagnostics.jsonl    how far the model had gone after each step that was taken (--diagnostics)
start.jsonl     the steps of another run that this one starts from, if it does
results/pops/   populations in the host's format
best.py, best.json, report.html
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ttc_esopt import __version__
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.es.history import History
from ttc_esopt.jsonlines import JsonLines, hold, write_atomically
from ttc_esopt.settings import TABLES, Settings, resolve
from ttc_esopt.tuned import start_of, write_start

LIMITS = ("max_tokens_total", "max_minutes", "cap_kl", "cap_distance")
SCALE = ("replicas", "ray_address", "evaluate_on", "delta")  # who writes and evaluates where, but not what
VERSIONED = ("torch", "transformers", "numpy", "numba", "scipy", "tokenizers")


class RunFolder:
    """An opened run folder; `create` starts one, `open` continues one."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document
        self.settings = resolve(document["settings"])
        self.samples = JsonLines(path / "samples.jsonl")
        self.timings = JsonLines(path / "timings.jsonl")
        self.history = History(path / "history.jsonl")
        self.start = JsonLines(path / "start.jsonl")
        self.diagnostics = JsonLines(path / "diagnostics.jsonl")
        self._lock: Any = None

    @classmethod
    def create(cls, path: Path, settings: Settings, command: str) -> RunFolder:
        """Make the folder and its run.toml. Raises ConfigurationError if it already holds a run."""
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{path} is a file, expected a folder or nothing (--out).")
        samples = path / "samples.jsonl"
        if (path / "run.toml").exists() and (not samples.exists() or samples.stat().st_size == 0):
            with contextlib.suppress(DataError):  # a run that never got as far as its model is begun anew
                if not cls.open(path).document["model"]:
                    (path / "run.toml").unlink()
        if (path / "run.toml").exists() or (samples.exists() and samples.stat().st_size):
            raise ConfigurationError(
                f"{path} already holds a run: go on with it (`ttc-esopt resume {path}`; runs of exec and serve: "
                "their --continue), or give another --out."
            )
        document = {
            "settings": {name: getattr(settings, name) for name in settings.__dataclass_fields__},
            "run": {"command": command},
            "versions": versions(),
        }
        start = start_of(settings)
        try:
            write_start(path, start)
            write_atomically(path / "run.toml", tomli_w.dumps(document))
        except DataError as error:
            raise ConfigurationError(f"{error} (--out)") from None
        return cls(path, document)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Read a run folder. Raises ConfigurationError when it holds no run, DataError when run.toml is broken."""
        file = path / "run.toml"
        if not file.exists() and (path / "study.toml").exists():
            raise ConfigurationError(
                f"{path} is a study, expected one of its runs: {path}/<problem>/<arm>/seed-<n>."
            )
        if not file.exists():
            raise ConfigurationError(
                f"{path} holds no run (no run.toml in it): start one with `ttc-esopt run --out {path}`."
            )
        try:
            document = tomllib.loads(file.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{file} cannot be read: {error}") from None
        for table in TABLES:
            if not isinstance(document.setdefault(table, {}), dict):
                raise DataError(f"{file} is damaged: expected a table [{table}].")
        if not document["settings"]:
            raise DataError(f"{file} is damaged: it has no table [settings].")
        return cls(path, document)

    def lock(self) -> None:
        """Keep a second process out for the life of this one. Raises DataError if one is already at work."""
        self._lock = hold(self.path / "samples.jsonl")

    def unlock(self) -> None:
        """Let others in."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def change_limits(self, limits: dict[str, Any]) -> None:
        """Other values for what changes no candidate: limits, which decide when a run pauses, and who does the work."""
        for name in limits:
            if name not in LIMITS + SCALE:
                raise ConfigurationError(f"Expected one of {', '.join(LIMITS + SCALE)}; {name} would change the run.")
        if self.settings.on_cap == "pull-back" and limits.keys() & {"cap_kl", "cap_distance"}:
            raise ConfigurationError(
                "With --on-cap pull-back the caps decide which steps are taken: others would change the run "
                "(--cap-kl, --cap-distance)."
            )
        if limits.get("replicas", 1) > 1 and not self.settings.work_unit:
            raise ConfigurationError(
                f"{self.path} was begun in whole batches, so that other replicas would have nothing to do, or change "
                "what is written: a run that is begun with --work-unit N (or with --replicas) can go on with any "
                "number of them (--replicas)."
            )
        self.document["settings"] |= limits
        self.settings = resolve(self.document["settings"])
        write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))

    def change(self, settings: Settings) -> None:
        """Other settings from now on; what may differ is the caller's to decide."""
        self.document["settings"] = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
        self.settings = settings
        write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))

    def note_host(self, host: dict[str, Any]) -> None:
        """Add the framework that drives the run to run.toml."""
        self.document["run"]["host"] = host
        write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))

    @property
    def host(self) -> dict[str, Any] | None:
        """The framework that drives the run; None for runs of our own."""
        return self.document["run"].get("host")

    def note_model(self, engine: dict[str, Any], fingerprint: str) -> None:
        """Add engine and fingerprint of the unmoved model to run.toml; on resume they must be the same.

        Raises DataError when another model stands in run.toml.
        """
        table = {key: value for key, value in {**engine, "fingerprint": fingerprint}.items() if value is not None}
        stored = self.document.get("model", {}).get("fingerprint")
        if stored is None:
            self.document["model"] = table
            write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))
        elif stored != fingerprint:
            raise DataError(
                f"The model has fingerprint {fingerprint}, the run was made with {stored}: "
                f"give the model of run.toml ({self.settings.model}), unchanged."
            )

    def note_rollback(self, where: dict[str, int]) -> None:
        """Add a place where the run went back to run.toml: before candidate `order`, to the weights after a step."""
        self.document["run"].setdefault("rollbacks", []).append(where)
        write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))

    def note_result(self, result: dict[str, Any]) -> None:
        """Add what the run ended with to run.toml."""
        self.document["result"] = result
        write_atomically(self.path / "run.toml", tomli_w.dumps(self.document))

    def write_population(self, generation: int, population: Sequence[Any], replace: bool = True) -> None:
        """`results/pops/population_generation_<k>.json`: EoH's four keys, best first."""
        file = self.path / "results" / "pops" / f"population_generation_{generation}.json"
        if file.exists() and not replace:
            return
        rows = [
            {"algorithm": one.description, "code": one.code, "objective": round(one.objective, 5), "other_inf": None}
            for one in population
        ]
        write_atomically(file, json.dumps(rows, indent=5))

    def write_best(self, code: str, scores: dict[str, Any]) -> None:
        """best.py (importable) and best.json."""
        write_atomically(self.path / "best.json", json.dumps(scores, indent=2) + "\n")
        write_atomically(self.path / "best.py", code.rstrip() + "\n")


def versions() -> dict[str, str]:
    """Versions that a run depends on, without importing any of the packages."""
    found = {"ttc-esopt": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in VERSIONED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
