"""The host's end of the socket to the engine: ask for candidates, tell their scores.

One connection per thread, so that threads of a host wait for their replies side by side and the engine can write them
in one batch. Messages are JSON; nothing is pickled, in either direction.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Client as Connect
from multiprocessing.connection import Connection
from typing import Any

# The number of a descriptor: what a process was started with in its environment can be read for as long as it lives,
# by what it evaluates too.
ENVIRONMENT = "TTC_ESOPT_HOST"
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
Json = dict[str, Any]


class HostError(BaseException):
    """A host, its files or its settings are not what we can work with; `exit_code` is what the command returns.

    No Exception: hosts catch those, count a failed sample and go on, without an engine for ever.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(BaseException):
    """Leaves the host's run after everything is saved. No Exception: hosts catch those and go on."""


class Client:
    """Asks and tells; see `ttc_esopt.attached.ledger.Ledger`, which answers.

    Attributes
    ----------
    options : what the user chose: arm, directions (a number or "host"), replies_per_direction, parser, es_operators,
        common_parent, prefill, sandbox, memory_mb, seed, continue, trust_objectives
    stopping : why the run is to end, None as long as it is not: finish what runs, save, raise `Stopped`
    announced : whether a host has said what it is about to do
    """

    def __init__(self, address: str, key: bytes, options: Json) -> None:
        self._address, self._key = address, key
        _CLIENTS.add(self)
        self._local = threading.local()
        self._process = os.getpid()
        self.options = options
        self.stopping: str | None = None
        self.announced = False

    @classmethod
    def from_environment(cls) -> Client:
        """The client of a script under `ttc-esopt exec`.

        Raises
        ------
        HostError
            The process was not started by it.
        """
        number = os.environ.pop(ENVIRONMENT, None)
        if not number:
            raise HostError("Expected to run under `ttc-esopt exec --esopt SCRIPT.py`, but no engine is attached.")
        with os.fdopen(int(number), encoding="utf-8") as file:
            given = json.load(file)
        return cls(given["address"], bytes.fromhex(given["key"]), given["options"])

    def hello(self, plan: Json) -> Json:
        """Announce what the host is about to do; answers {"ours": whether an earlier run of ours is continued, ...}."""
        self.announced = True
        return self._call("hello", plan=plan)

    def open_batch(
        self, n: int, *, generation: int, operator: str, worst: float | None = None
    ) -> int | None:  # fmt: skip
        """The number of a new batch of `n` directions; None if none are to be had (n < 2, or all steps are taken)."""
        return self._call("open_batch", n=n, generation=generation, operator=operator, worst=worst)

    def generate(self, operator: str, generation: int, asks: Sequence[Json], batch: Any = None) -> list[Json]:
        """Replies to all `asks`, under the next directions of `batch`, or of the unperturbed model."""
        return self._call("generate", operator=operator, generation=generation, asks=list(asks), batch=batch)

    def again(self, id: int, ask: Json) -> Json:
        """Another reply for the same candidate, under the same direction; prompt and parents are replaced."""
        return self._call("again", id=id, ask=ask)

    def tell(self, results: Sequence[Json]) -> Json:
        """Objectives of candidates (minimised; None: invalid). The step is taken when a batch is complete."""
        return self._call("tell", results=list(results))

    def seeds(self, individuals: Sequence[Json]) -> None:
        """Record heuristics that the host begins with."""
        self._call("seeds", individuals=list(individuals))

    def generation(self, k: int, population: Sequence[Json], state: Json | None = None) -> None:
        """The host has saved generation `k`."""
        self._call("generation_done", k=k, population=list(population), state=state)

    def finish(self, reason: str | None = None) -> None:
        """The host's run is over."""
        self._call("finish", reason=reason)

    def say(self, text: str) -> None:
        """One line for the user."""
        self._call("say", text=text)

    def _call(self, method: str, **values: Any) -> Any:
        if os.getpid() != self._process:
            raise HostError("The engine was asked from a child of the host's process; only the process itself may.", 1)
        connection: Connection | None = getattr(self._local, "connection", None)
        try:
            if connection is None:
                connection = self._local.connection = Connect(self._address, "AF_UNIX", self._key)
            connection.send_bytes(json.dumps({"method": method, **values}).encode("utf-8", "surrogatepass"))
            answer = json.loads(connection.recv_bytes().decode("utf-8", "surrogatepass"))
        except BaseException as error:
            self._local.connection = None  # whatever was cut short, the next answer belongs to the next question
            if not isinstance(error, OSError | EOFError):
                raise
            with contextlib.suppress(OSError):  # one that was killed could not
                os.unlink(self._address)
                os.rmdir(os.path.dirname(self._address))
            raise HostError(f"The engine's process has ended ({type(error).__name__}); see its messages.", 1) from None
        if answer.get("stop") and not self.stopping:
            self.stopping = answer["stop"]
        if "error" in answer:
            raise HostError(answer["error"], answer["exit_code"])
        return answer["result"]


def forget_engines() -> None:
    """Blank what leads to an engine; for a child that is about to run a model's program."""
    for client in list(_CLIENTS):
        client._address, client._key, client._local = "", b"", threading.local()
