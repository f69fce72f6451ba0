"""One engine made of many: replicas in processes that Ray places, on one machine or on a cluster.

Every replica holds the whole model and is handed work units, the next one whenever it has nothing to do. A step is told
as seeds and coefficients; every replica computes it for itself and proves by its fingerprint that it came out as in all
others. A replica that comes later, in place of a lost one or because the cluster has grown, loads the model, takes the
steps so far in the same way, and gives the same proof before it is handed work.

What replicas write does not depend on how many there are (`ttc_esopt.engines.replica_units`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.engines import load_engine
from ttc_esopt.engines.base import SHARD_SIZE, Engine, Reply, Request, Sampling, expect
from ttc_esopt.engines.replica_actor import PIECE, Steps
from ttc_esopt.engines.replica_cluster import Cluster
from ttc_esopt.engines.replica_fleet import PATIENCE, Fleet, Lost
from ttc_esopt.engines.replica_units import InUnits, default_work_unit, texts, units
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind


def in_units(model: str, replicas: int, work_unit: int, address: str, **given: Any) -> Engine:
    """An engine that writes in work units, by itself or as many; `given` is for `load_engine`."""
    if replicas != 1:
        return ReplicatedEngine(model, replicas=replicas, work_unit=work_unit, address=address, **given)
    return InUnits(load_engine(model, **given), work_unit)


class ReplicatedEngine:
    """An `Engine` of several; see `ttc_esopt.engines.load_engine` for what each of them is given.

    Parameters
    ----------
    model : str
    replicas : int
        How many there are to be. As many as fit are there from the beginning, the others join when they can.
    work_unit : int
        Directions of a unit; 0 for the default of the noise. Part of the arithmetic: keep it within a run.
    address : str
        See `Cluster`.
    noise : NoiseKind
    device : str
        "cuda": a GPU for each replica (several where the engine splits its tensors); "cpu"; "auto": GPUs if there are.
    threads : int, optional
        Of each replica on the CPU; None: those of one engine, shared out.
    say : callable, optional
        Told when replicas are lost or join; None: standard error.
    patience : float
        Seconds to wait for Ray to start a replica when all are gone.
    **given
        Further keyword arguments of `load_engine`.

    Raises
    ------
    ConfigurationError
        Ray is not installed, or what an engine refuses.
    EngineError
        No replica fits into the cluster, one cannot load the model, or they load different ones.
    """

    def __init__(
        self,
        model: str,
        *,
        replicas: int,
        noise: NoiseKind,
        work_unit: int = 0,
        address: str = "",
        device: str = "auto",
        threads: int | None = None,
        say: Callable[[str], None] | None = None,
        patience: float = PATIENCE,
        **given: Any,
    ) -> None:
        expect(replicas >= 1, "replicas >= 1", replicas, "--replicas")
        expect(work_unit >= 0, "work_unit >= 0", work_unit, "--work-unit")
        expect(device in ("auto", "cpu", "cuda"), "device auto, cpu or cuda with replicas", device, "--device")
        self.work_unit = work_unit or default_work_unit(noise)
        if not threads:
            from ttc_esopt.engines.place import default_threads

            threads = max(1, default_threads() // replicas)
        self._cluster = Cluster(address, cores=threads * replicas)
        self._ray = self._cluster.ray
        cuda = device == "cuda" or (device == "auto" and self._cluster.gpus())
        split = int(given.get("tensor_parallel") or 1)
        need = {"GPU": float(split), "CPU": 1.0} if cuda else {"CPU": float(threads)}
        given |= {"noise": noise, "device": "cuda" if cuda else "cpu", "threads": threads}
        say = say or (lambda text: print(text, file=sys.stderr))
        self._fleet = Fleet(self._cluster, model, given, wanted=replicas, need=need, say=say, patience=patience)
        try:
            self._fleet.start()
        except BaseException:
            self.close()
            raise

    @property
    def say(self) -> Callable[[str], None]:
        """Told when replicas are lost or join."""
        return self._fleet.say

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self._fleet.say = say

    @property
    def replicas(self) -> int:
        """How many are at work."""
        return len(self._fleet.active)

    def add_replica(self) -> None:
        """One more from now on: it is at work as soon as it has loaded and taken the steps so far."""
        self._fleet.add()

    # -- writing -----------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Reply]:
        """See `Engine.generate`; units are shared out."""
        parts = units(requests, self.work_unit)
        jobs = [([requests[i] for i in part], sampling) for part in parts]
        found: dict[int, Reply] = {}
        for part, (replies, _) in zip(parts, self._fleet.spread("generate", jobs, progress), strict=True):
            found |= zip(part, replies, strict=True)
        return [found[i] for i in range(len(requests))]

    def divergence(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> list[float]:
        """See `Engine.divergence`; texts are shared out."""
        parts = texts(requests, replies)
        jobs = [("divergence", [requests[i] for i in part], [replies[i] for i in part], sampling) for part in parts]
        found: dict[int, float] = {}
        for part, values in zip(parts, self._fleet.spread("call", jobs), strict=True):
            found |= zip(part, values, strict=True)
        return [found[i] for i in range(len(requests))]

    def drift(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> float:
        """See `Engine.drift`."""
        return self._fleet.one("drift", requests, replies, sampling)

    def measure(self, steps: Steps, sigma: float) -> dict:
        """See `Engine.measure`."""
        return self._fleet.one("measure", steps, sigma)

    # -- weights -----------------------------------------------------------------------------------------------------

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """See `Engine.step`; raises EngineError where replicas disagree on what came out."""
        step = ([int(seed) for seed in directions], tuple(coefficients))
        if len(step[0]) != len(step[1]):
            raise EngineError(f"Expected one coefficient per direction, got {len(step[1])} for {len(step[0])}.")
        self._fleet.steps.append(step)  # before it is told: who takes a lost one's place must know it
        self._move("step", *step)

    def rewind(self, steps: Steps) -> None:
        """See `Engine.rewind`."""
        taken = [(list(directions), tuple(values)) for directions, values in steps]
        self._fleet.begin(self._fleet.chapters, taken)
        self._move("rewind", taken)

    def adopt(self, noise: NoiseKind, scope: str, steps: Steps) -> None:
        """See `Engine.adopt`; raises EngineError once the model has moved."""
        if self._fleet.steps:
            raise EngineError("Expected a model that has not moved yet: steps of another run come first.")
        self._fleet.begin([*self._fleet.chapters, (noise, scope, steps)], [])
        self._move("adopt", noise, scope, steps)

    def _move(self, method: str, *arguments: Any) -> None:
        """Let all replicas move, and see that they agree."""
        self._fleet.fingerprint = None
        found = self._fleet.all("move", method, *arguments)
        if not found:
            self._fleet.wait_for_one()  # it takes all steps when it joins, this one too
            return
        counts = Counter(found.values()).most_common()
        if len(counts) > 1:
            majority = counts[0][0] if counts[0][1] > counts[1][1] else None
            odd = [f"{place} has {value}" for place, value in found.items() if value != majority]
            others = f", the others have {majority}" if majority else ""
            raise EngineError(
                f"Replicas disagree on the weights after a step: {'; '.join(odd)}{others}. The step is not recorded; "
                "`ttc-esopt resume` goes on from the steps before it, best without the machine at fault."
            )
        self._fleet.fingerprint = counts[0][0]

    def fingerprint(self) -> str:
        """Of the weights that all replicas have."""
        return self._fleet.fingerprint or self._fleet.one("fingerprint")

    def sha256(self) -> str:
        """See `Engine.sha256`; raises EngineError where replicas disagree."""
        found = self._fleet.all("call", "sha256")
        if len(set(found.values())) > 1:
            said = "; ".join(f"{place} has {value[:16]}..." for place, value in found.items())
            raise EngineError(f"Replicas disagree on the SHA-256 of the weights: {said}.")
        return next(iter(found.values())) if found else self._fleet.one("sha256")

    def export(self, folder: Path, shard_size: str = SHARD_SIZE) -> None:
        """See `Engine.export`; `folder` is one of this machine, wherever the replicas are."""
        here = self._ray.get_runtime_context().get_node_id()
        if not self._fleet.active:
            self._fleet.wait_for_one()
        place = next((one for one in self._fleet.active if one.node == here), self._fleet.active[0])
        ask = lambda method, *given: self._fleet.get(place, getattr(place.actor, method).remote(*given))  # noqa: E731
        try:
            if place.node == here:
                ask("call", "export", Path(folder).resolve(), shard_size)
                return
            for name, size in ask("exported", shard_size):
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    for start in range(0, size, PIECE):
                        file.write(ask("piece", name, start))
            ask("forget_export")
        except Lost as lost:
            self._fleet.drop(place, lost)
            raise EngineError(f"{lost}. {folder} is not complete: try again.") from None

    def describe(self) -> dict:
        """See `Engine.describe`; besides, `replicas`, `work_unit` and the version of Ray."""
        found = self._fleet.one("describe")
        return {
            **found, "replicas": self._fleet.wanted, "work_unit": self.work_unit,
            "versions": {**found.get("versions", {}), "ray": self._ray.__version__},
        }  # fmt: skip

    def peak(self) -> dict[str, float]:
        """The largest of any replica."""
        found: dict[str, float] = {}
        for one in self._fleet.all("call", "peak").values():
            found |= {name: max(value, found.get(name, 0.0)) for name, value in one.items()}
        return found

    def close(self) -> None:
        """End the replicas, and Ray if it was started for them."""
        self._fleet.close()
        self._cluster.close()
