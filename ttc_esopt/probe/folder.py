"""The folder of a probe.

probe.toml     settings, sigmas, versions, model, the seed heuristics' objectives (written first)
probe.jsonl    append-only, one line per reply in order
start.jsonl    with --init-from: the steps that the weights start from
probe.json     the result;  probe.html, probe.svg  for people
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.jsonlines import JsonLines, hold, write_atomically
from ttc_esopt.probe import NOT_HERE
from ttc_esopt.probe.plan import Plan
from ttc_esopt.runfolder import versions
from ttc_esopt.settings import Settings
from ttc_esopt.tuned import start_of, write_start

CONCLUSIONS_ONLY = ("budget", "shaping", "population", "offspring", "init_candidates")  # decide no reply
NAME = "probe.toml"


class ProbeFolder:
    """An opened probe; has what `ttc_esopt.runner.open_engine` needs of a run."""

    def __init__(self, path: Path, document: dict[str, Any], settings: Settings) -> None:
        self.path, self.document, self.settings = path, document, settings
        self.lines = JsonLines(path / "probe.jsonl")
        self.start = JsonLines(path / "start.jsonl")
        self._lock: Any = None

    @classmethod
    def open(cls, path: Path, plan: Plan) -> ProbeFolder:
        """A new folder, or one of the same probe to go on with.

        Raises
        ------
        ConfigurationError
            It holds something else, or a probe with other settings.
        """
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{path} is a file, expected a folder or nothing (--out).")
        if path.resolve() == Path.cwd():
            raise ConfigurationError("Expected a folder of its own for the results, got the current one (--out).")
        told = {
            "settings": {name: getattr(plan.settings, name) for name in plan.settings.__dataclass_fields__},
            "probe": {"sigmas": list(plan.sigmas), "operator": plan.operator},
        }
        if (path / NAME).exists():
            document = _read(path / NAME)
            _same(path, document, told)
            return cls(path, document, plan.settings)
        if (path / "run.toml").exists() or (path / "probe.jsonl").exists():
            raise ConfigurationError(f"{path} holds something else already: give another --out.")
        document = {**told, "versions": versions(), "model": {}}
        start = start_of(plan.settings)
        try:
            write_start(path, start)
            write_atomically(path / NAME, tomli_w.dumps(document))
        except DataError as error:
            raise ConfigurationError(f"{error} (--out)") from None
        return cls(path, document, plan.settings)

    def lock(self) -> None:
        """Keep a second process out. Raises DataError if one is already at work."""
        self._lock = hold(self.lines.path)

    def unlock(self) -> None:
        """Let others in."""
        self.lines.close()
        if self._lock:
            self._lock.close()
            self._lock = None

    def note_model(self, engine: dict[str, Any], fingerprint: str) -> None:
        """Add the model to probe.toml, or check that it is the one that stands there.

        Raises DataError for another one.
        """
        stored = self.document["model"].get("fingerprint")
        if stored not in (None, fingerprint):
            raise DataError(
                f"The model has fingerprint {fingerprint}, the probe in {self.path} was made with {stored} (--model)."
            )
        if stored is None:
            table = {key: value for key, value in engine.items() if value is not None}
            self.document["model"] = {**table, "fingerprint": fingerprint}
            self._write()

    def note_seeds(self, objectives: list[float], parents: list[float]) -> None:
        """Add what the problem's own heuristics scored, and the parents' objectives."""
        if "seeds" not in self.document["probe"]:
            self.document["probe"] |= {"seeds": objectives, "parents": parents}
            self._write()

    def _write(self) -> None:
        write_atomically(self.path / NAME, tomli_w.dumps(self.document))


def _read(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    for table in ("settings", "probe", "model"):
        if not isinstance(document.get(table), dict):
            raise DataError(f"{file} is damaged: expected a table [{table}].")
    return document


def _same(path: Path, stored: dict[str, Any], told: dict[str, Any]) -> None:
    """Raise ConfigurationError, naming what differs, unless a stored probe has the settings that are asked for."""
    ignored = (*CONCLUSIONS_ONLY, *(name for name in NOT_HERE if name not in ("directions", "replies_per_direction")))
    for table in ("settings", "probe"):
        for name, value in told[table].items():
            if name not in ignored and stored[table].get(name) != value:
                raise ConfigurationError(
                    f"{path} holds a probe with {name} {stored[table].get(name)}, got {value}: give the settings that "
                    "it began with, or another --out."
                )
