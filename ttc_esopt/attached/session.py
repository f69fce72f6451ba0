"""One host's run, from its announcement to its end: settings, run folder, engine, and what `--continue` means.

A host saves its population once a generation, and our files must agree with it: generations.jsonl says how many lines
of samples.jsonl and history.jsonl belonged to each saved generation. Going on from generation k of a run of ours cuts
both files back to it (what is cut is kept beside them) and rebuilds the weights, so that a run that was killed goes on
as if it had not been. If the host went on without us in between, nothing is cut, the weights are our last ones, and its
population is recorded as seeds are.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttc_esopt import models
from ttc_esopt.attached.desk import Desk
from ttc_esopt.attached.ledger import Ledger, Reading
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.jsonlines import JsonLines, lines_of, write_atomically
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import open_engine, say_memory
from ttc_esopt.search import replay
from ttc_esopt.settings import FIELDS, Settings, resolve

Say = Callable[[str], None]
# Where ids of a server that was started again begin: late scores of replies from before must find nobody.
LATE = 1_000_000


class Finished(Exception):
    """The host is to end without having asked for anything (`--dry-run`)."""


class Session:
    """Answers a host's `Client`; use `call`.

    Parameters
    ----------
    given : settings that the user gave
    options : `Client.options`, see there
    out : the run folder; None: where the host's plan says
    command : for the record
    say : told lines for the user
    dry_run : print the plan and end
    batch_timeout : see `Ledger`
    engine : a loaded engine to use instead of the settings' model; it is not closed
    """

    METHODS = ("hello", "open_batch", "generate", "again", "tell", "seeds", "generation_done", "finish", "say")

    def __init__(
        self,
        given: dict[str, Any],
        options: dict[str, Any],
        *,
        out: Path | None = None,
        command: str = "",
        say: Say = print,
        dry_run: bool = False,
        batch_timeout: float = 0.0,
        engine: Any = None,
    ) -> None:
        self._given, self.options, self._out, self._command = given, options, out, command
        self.say = say
        self._dry_run, self._timeout = dry_run, batch_timeout
        self._engine, self._own_engine = engine, engine is None
        self._desk: Desk | None = None
        self.ledger: Ledger | None = None
        self.folder: RunFolder | None = None
        self.stop: str | None = None
        self.finished = False
        self.reason: str | None = None  # why the host ended before its end

    def call(self, method: str, **values: Any) -> Any:
        """Answer one message of a client.

        Raises
        ------
        TtcEsoptError
            Whatever went wrong; the host is told.
        """
        if method not in self.METHODS:
            raise ConfigurationError(f"Unknown message {method!r} from a host; are both ends of one version?")
        if method == "say":
            return self.say(values["text"])
        if method in ("hello", "generation_done", "finish"):
            return getattr(self, method)(**values)
        if self.ledger is None:
            raise ConfigurationError("The host asked before it announced its plan.")
        return getattr(self.ledger, method)(**values)

    @property
    def stopping(self) -> str | None:
        """Why the host is to end, or None."""
        return self.stop or (self.ledger.stop if self.ledger else None)

    # the host's messages

    def hello(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Announce the run, make or continue its folder, and load the model."""
        if self.ledger is not None:
            raise ConfigurationError(
                f"A second run of {plan['host']} began in one script; attach to one run at a time."
            )
        settings = self._settings(plan)
        path = (self._out or Path(plan["folder"])).resolve()
        for line in announcement(plan, settings, self.options, path):
            self.say(line)
        if self._dry_run:
            raise Finished
        continued = plan.get("continued")
        known = (path / "run.toml").exists() and continued is not None
        if known:
            self.folder = RunFolder.open(path)
        else:
            if self._out is None:
                keep_apart(path, self.say)
            elif (path / "samples.jsonl").exists() and (path / "samples.jsonl").stat().st_size:
                raise ConfigurationError(f"{path} holds a run already: go on with --continue, or give another --out.")
            path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = RunFolder.create(path, settings, self._command)
        self.folder.lock()
        answer: dict[str, Any] = {"ours": known, "state": None}
        if known:
            self._agree(settings)
            answer |= self._go_back(continued["generation"])
        steps = self._steps(plan) if known else plan["steps"]
        # who asks one by one over HTTP may still tell scores of replies from before a restart
        starts = (self.folder.host or {}).get("starts", 0) + 1
        first = 0 if plan["generations"] else (starts - 1) * LATE
        self.folder.note_host({"name": f"{plan['host']} {plan['version']}", "problem": plan["problem"],
                               "parser": self.options["parser"], "directions": self.options["directions"],
                               "sandbox": self.options["sandbox"],
                               "steps": steps, "generations": plan["generations"], "starts": starts})  # fmt: skip
        began = time.monotonic()
        if self._engine is None:
            say_memory(self.folder, self.say)
            self.say(f"loading {settings.model} ...")
            self._engine = open_engine(self.folder)
        fingerprint = self._engine.fingerprint()
        self.folder.note_model(self._engine.describe(), fingerprint)
        if known:
            fingerprint = replay(self.folder, self._engine)
            records = self.folder.history.read()
            if records and records[-1]["fingerprint"] != fingerprint:
                raise DataError(f"After {len(records)} steps the weights have another fingerprint than the run had.")
        self.say(f"model ready after {time.monotonic() - began:.0f} s, fingerprint {fingerprint}")
        self._desk = Desk(self._engine)
        self.ledger = Ledger(
            self.folder, self._desk, steps=steps, first_id=first, batch_timeout=self._timeout, say=self.say,
            reading=Reading(plan["function"], plan["kind"], plan["prefill"] if settings.prefill else ""),
        )  # fmt: skip
        return answer

    def generation_done(self, k: int, population: list[dict], state: Any = None) -> None:
        """See `Client.generation`."""
        line = {"generation": k, **self.ledger.counts(), "population": len(population), "state": state}
        self._generations().append(line)
        self.ledger.save_best()

    def finish(self, reason: str | None = None) -> None:
        """See `Client.finish`."""
        if self.ledger is not None and not self.finished:
            self.finished = True
            self.reason = reason
            self.ledger.finish()

    # parts

    def close(self) -> None:
        """End what is open, whether the host said good-bye or not."""
        try:
            if self._desk is not None:
                self.finish()
                self._desk.close()
                result = {"fingerprint": self._engine.fingerprint(), "sha256": self._engine.sha256()}
                self.folder.note_result(result | ({"stopped": self.reason} if self.reason else {}))
        finally:
            if self._engine is not None and self._own_engine:
                self._engine.close()
            if self.folder is not None:
                self.folder.unlock()

    def _settings(self, plan: dict[str, Any]) -> Settings:
        """The run's settings: the user's, and what the host decides."""
        given = {**self._given, "problem": f"{plan['host']}:{plan['problem']}", "budget": max(1, plan["candidates"])}
        given |= {"population": plan["population"], "directions": max(2, plan["largest_batch"])}
        given |= {"memory_mb": self.options["memory_mb"]}
        if self.options["parser"] == "host":
            given["prefill"] = False  # a started reply is none that the host could read
        return resolve(given, models.defaults(given.get("model", FIELDS["model"].default)))

    def _steps(self, plan: dict[str, Any]) -> int:
        """T of a continued run: as it began, unless the host's number of generations is another one now."""
        stored = self.folder.host or {}
        if not plan["generations"]:  # who asks one by one says T itself
            return plan["steps"]
        if stored.get("generations") == plan["generations"]:
            return stored["steps"]
        return len(self.folder.history.read()) + plan["steps"]

    def _agree(self, settings: Settings) -> None:
        """A continued run keeps its rules; what only bounds it may change."""
        for name in ("parser", "directions"):
            before = (self.folder.host or {}).get(name, self.options[name])
            if before != self.options[name]:
                raise ConfigurationError(f"The run in {self.folder.path} had --{name} {before}: give the same.")
        stored = self.folder.settings
        free = {"budget", "max_tokens_total", "max_minutes", "workers", "batch_size", "memory_mb", "directions"}
        free |= {"replicas", "ray_address", "delta"}  # who writes, and where it lies: not what
        free |= {"population", "offspring", "init_candidates"}  # the script's
        for name in settings.__dataclass_fields__:
            if name not in free and getattr(stored, name) != getattr(settings, name):
                raise ConfigurationError(
                    f"The run in {self.folder.path} had {name} {getattr(stored, name)!r}, this one has "
                    f"{getattr(settings, name)!r}: give the same, or begin a new run with another --out."
                )
        self.folder.change(settings)

    def _generations(self) -> JsonLines:
        return JsonLines(self.folder.path / "generations.jsonl")

    def _go_back(self, generation: int | None) -> dict[str, Any]:
        """Cut our files back to a saved generation: whether it is ours, and the state that the host stored with it."""
        if generation is None:  # who asks one by one has no generations
            return {}
        saved = [line for line in self._generations().read() if line["generation"] <= generation]
        if not saved or saved[-1]["generation"] != generation:
            self.say(f"note: generation {generation} was made without us; the weights are those of our last step")
            return {"ours": False}
        for file, count in ((self.folder.samples, saved[-1]["samples"]), (self.folder.history, saved[-1]["history"])):
            lines = file.read()
            if len(lines) > count:
                self.say(f"{len(lines) - count} lines of {file.path.name} after generation {generation} are made again")
                number = sum(1 for _ in file.path.parent.glob(f"{file.path.stem}.cut*")) + 1
                shutil.copy(file.path, file.path.with_name(f"{file.path.stem}.cut{number}.jsonl"))
                file.cut(count)
        timings = [line for line in self.folder.timings.read() if line.get("order", 0) < saved[-1]["samples"]]
        write_atomically(self.folder.timings.path, "".join(f"{line}\n" for line in lines_of(timings)))
        self._generations().cut(len(saved))
        return {"state": saved[-1]["state"]}


def keep_apart(path: Path, say: Say) -> None:
    """Move an earlier run out of the way, so that nothing of it is lost when a host begins anew.

    Raises
    ------
    DataError
        It is not over.
    """
    if not path.exists():
        return
    if (path / "samples.jsonl").exists():
        with open(path / "samples.jsonl", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"Another process is writing to {path}; wait for it or stop it.") from None
    number = 1
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    path.rename(path.with_name(f"{path.name}-{number}"))
    say(f"the earlier run in {path} is now {path.name}-{number}")


def announcement(plan: dict[str, Any], settings: Settings, options: dict[str, Any], path: Path) -> list[str]:
    """What is about to be spent, as lines."""
    s = settings
    lines = [
        f"attached to {plan['host']} {plan['version']}: {plan['problem']}, arm {s.arm}, preset {s.preset}, "
        f"seed {s.seed}, parser {options['parser']}",
        *plan["lines"],
    ]
    alone = plan["host_candidates"]
    if alone is not None:
        same = plan["candidates"] == alone
        rest = (
            "as the host alone" if same else f"the host alone: {alone}; --directions host keeps the host's own numbers"
        )
        lines.append(f"candidates in all: {plan['candidates']} ({rest})")
    asked = " for each time of asking" if options["parser"] == "host" else ""
    if s.arm != "frozen":
        lines.append(f"{plan['steps']} batches of directions; {s.es_words()}")
    lines.append(f"at most {plan['candidates'] * s.max_tokens} tokens{asked}; {s.sampling_words()}")
    return [*lines, *s.idle(), f"our files go to {path}"]
