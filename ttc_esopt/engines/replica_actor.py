"""One replica: a process that Ray starts, with an ordinary engine in it. Neither Ray nor torch is imported with it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.engines.base import Reply, Request, Sampling
from ttc_esopt.es.noise import NoiseKind

Steps = Sequence[tuple[Sequence[int], Sequence[float]]]
Chapters = Sequence[tuple[NoiseKind, str, Steps]]
PIECE = 64 << 20  # bytes of a file that travel at once
# For vLLM: its engine in the replica's own process, so that nothing of it outlives a replica that Ray ends; and no
# choice of processors, which on one machine would be the same for all replicas.
WITHIN = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class Replica:
    """What a `ReplicatedEngine` asks of each of its processes; methods run one after the other, but for `written`.

    Parameters
    ----------
    number : int
        Its name in messages.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._engine: Any = None
        self._written = 0
        self._copy: tempfile.TemporaryDirectory | None = None

    def join(self, model: str, given: dict[str, Any], chapters: Chapters, steps: Steps) -> dict[str, Any]:
        """Load the engine, take the steps of all others, and say where it is and which weights came out.

        Parameters
        ----------
        model, given : of `load_engine`
        chapters, steps : what the run has adopted, and its steps

        Returns
        -------
        dict
            ``base`` and ``fingerprint``: before and after the steps; ``node``, ``host``, ``pid``.
        """
        import ray

        if given.get("threads"):  # Ray has set it to the processors it counts, and torch reads it once
            os.environ["OMP_NUM_THREADS"] = str(given["threads"])
        for name, value in WITHIN.items():
            os.environ.setdefault(name, value)
        from ttc_esopt.engines import load_engine

        self._engine = load_engine(model, **given)
        base = self._engine.fingerprint()
        for noise, scope, taken in chapters:
            self._engine.adopt(noise, scope, taken)
        if steps:
            self._engine.rewind(steps)
        return {
            "base": base, "fingerprint": self._engine.fingerprint(), "host": socket.gethostname(), "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }  # fmt: skip

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> tuple[list[Reply], int]:
        """Replies of one unit, and the tokens written by this replica so far."""
        return self._engine.generate(requests, sampling, self._count), self._written

    def _count(self, tokens: int) -> None:
        self._written += tokens

    def written(self) -> int:
        """Tokens written so far; may be asked while a unit is written."""
        return self._written

    def call(self, method: str, *arguments: Any) -> Any:
        """Any other method of the engine."""
        return getattr(self._engine, method)(*arguments)

    def move(self, method: str, *arguments: Any) -> str:
        """A method that moves the weights; the fingerprint afterwards."""
        getattr(self._engine, method)(*arguments)
        return self._engine.fingerprint()

    def follow(self, steps: Steps) -> str:
        """Steps that were taken while this replica was loading; the fingerprint afterwards."""
        for directions, coefficients in steps:
            self._engine.step(directions, coefficients)
        return self._engine.fingerprint()

    def exported(self, shard_size: str) -> list[tuple[str, int]]:
        """Export into a folder of this node; names and sizes of the files, to be read by `piece`."""
        self._copy = tempfile.TemporaryDirectory(prefix="ttc-esopt-export-")
        folder = Path(self._copy.name)
        self._engine.export(folder, shard_size)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [(str(path.relative_to(folder)), path.stat().st_size) for path in files]

    def piece(self, name: str, start: int) -> bytes:
        """At most `PIECE` bytes of an exported file."""
        with open(Path(self._copy.name) / name, "rb") as file:
            file.seek(start)
            return file.read(PIECE)

    def forget_export(self) -> None:
        """Remove what `exported` wrote."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
