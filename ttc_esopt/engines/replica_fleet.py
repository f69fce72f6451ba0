"""The replicas of one engine: who is at work, who is on the way, and who does what next.

Ray starts the processes and says when one has died; all else is here. A replica joins by loading the model, taking all
steps so far, and coming to the fingerprint of the others. Those that Ray has no room for stay asked for, so that they
join by themselves when the cluster grows.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ttc_esopt.engines.replica_actor import Chapters, Replica
from ttc_esopt.engines.replica_cluster import Cluster
from ttc_esopt.errors import EngineError, TtcEsoptError

TICK = 1.0  # seconds between two looks at what replicas have written
PATIENCE = 600.0  # seconds that a run waits for Ray to start a replica when it has none
PLACING = 120.0  # the same for the first replicas, if one is at work
LOADING = 3600.0  # seconds that a started replica may take to load: large models come over slow networks
TRIES = 3  # replicas that may be lost over one unit, and replacements in a row that may fail


class Lost(EngineError):
    """A replica is gone."""

    def __init__(self, place: Place, why: Exception) -> None:
        first = (str(why).strip().splitlines() or [type(why).__name__])[0]
        super().__init__(f"{place} is lost: {first[:200]}")


@dataclass(eq=False)
class Place:
    """One replica as the others' end sees it."""

    number: int
    actor: Any
    at: tuple[int, int] = (0, 0)  # epoch and number of steps that it was told of when it began to load
    where: str = "not placed yet"
    node: str = ""
    told: int = 0  # of its tokens, how many have gone to the progress display
    asked: Any = None  # an answer of `written` that is under way

    def __str__(self) -> str:
        return f"Replica {self.number} ({self.where})"


class Fleet:
    """Replicas in Ray's processes.

    Parameters
    ----------
    cluster : Cluster
    model : str
    given : dict
        Keyword arguments of `load_engine` for each.
    wanted : int
        How many there are to be.
    need : dict
        What each takes of the cluster: ``CPU``, ``GPU``.
    say : callable
        Told who has joined and who is lost.
    patience : float
        Seconds to wait for Ray to start a replica when there is none.

    Attributes
    ----------
    active : list of Place
        Those at work, all with the same weights.
    chapters, steps : what they have adopted, and their steps since
    fingerprint : str or None
        Of their weights; None until one has said it.
    lost : int
        How many have been lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: str,
        given: dict[str, Any],
        *,
        wanted: int,
        need: dict[str, float],
        say: Callable[[str], None],
        patience: float = PATIENCE,
    ) -> None:
        self._cluster, self._ray, self._load = cluster, cluster.ray, (model, given)
        self.wanted, self._need, self.say, self._patience = wanted, need, say, patience
        self._class = self._ray.remote(
            num_cpus=need["CPU"], num_gpus=need.get("GPU", 0), max_restarts=0, max_task_retries=0,
            concurrency_groups={"aside": 1},
        )(Replica)  # fmt: skip
        self.active: list[Place] = []
        self.chapters: Chapters = []
        self.steps: list[tuple[list[int], tuple[float, ...]]] = []
        self.fingerprint: str | None = None
        self.lost = 0
        self._epoch = 0  # counts what a replica that is loading cannot catch up with by steps alone
        self._base: str | None = None
        self._joining: dict[Any, Place] = {}
        self._numbers = self._failures = 0

    def begin(self, chapters: Chapters, steps: Sequence[tuple[list[int], tuple[float, ...]]]) -> None:
        """Another history for all that join from now on."""
        self.chapters, self.steps, self._epoch = list(chapters), list(steps), self._epoch + 1

    def close(self) -> None:
        """End them all."""
        for place in [*self.active, *self._joining.values()]:
            self._end(place)
        self.active, self._joining = [], {}

    # -- coming and going --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first replicas; an error of loading is told as that of an engine."""
        from ttc_esopt import models

        if self._load[0] in models.REGISTRY:
            models.resolve(self._load[0])  # fetched once, before all of them ask for it
        fits = self._cluster.room(self._need, self.wanted)
        needed = ", ".join(f"{size:g} {name}" for name, size in self._need.items())
        if not fits:
            free = " free: others are at work on the cluster" if self._cluster.most(self._need) else ""
            raise EngineError(
                f"Expected a node with room for a replica ({needed}), none has it{free} (--replicas, "
                "--tensor-parallel, --threads, --device)."
            )
        self._fill()
        began = time.monotonic()
        while len(self.active) < fits and time.monotonic() < began + LOADING:
            self._ray.wait(list(self._joining), timeout=1.0)
            self._admit(strict=True)
            patience = PLACING if self.active else self._patience
            if time.monotonic() > began + patience and not any(map(self._started, self._joining.values())):
                break  # what was free is taken
        if not self.active:
            raise EngineError(
                f"No replica has loaded the model within {time.monotonic() - began:.0f} s: each takes {needed} "
                "(--replicas)."
            )
        if len(self.active) < self.wanted:
            self.say(
                f"{len(self.active)} of {self.wanted} replicas are at work: each takes {needed}; the others join when "
                "Ray has room for them and has started them"
            )

    def add(self) -> None:
        """One more replica from now on: it is at work as soon as it has loaded and taken the steps so far."""
        self.wanted += 1
        self._fill()

    def _fill(self) -> None:
        """Ask Ray for the replicas that are missing; it places them when there is room."""
        missing = self.wanted - len(self.active) - len(self._joining)
        for _ in range(missing if self._failures < TRIES else 0):
            place = Place(self._numbers, self._class.remote(self._numbers), (self._epoch, len(self.steps)))
            self._numbers += 1
            reference = place.actor.join.remote(*self._load, self.chapters, self.steps)
            self._joining[reference] = place

    def _admit(self, strict: bool = False) -> None:
        """Take in the replicas that have loaded and have the weights of all others; drop those that cannot.

        With `strict` what keeps one out is raised instead.
        """
        if not self._joining:
            return
        ready, _ = self._ray.wait(list(self._joining), num_returns=len(self._joining), timeout=0)
        for reference in ready:
            place = self._joining.pop(reference)
            try:
                found = self.get(place, reference)
                if isinstance(found, dict):
                    place.where, place.node = f"{found['host']}, process {found['pid']}", found["node"]
                    self._base = self._base or found["base"]
                    if found["base"] != self._base:
                        raise EngineError(
                            f"{place} loads a model of fingerprint {found['base']}, the others one "
                            f"of {self._base}: is the same model on every node (--model)?"
                        )
                    found = found["fingerprint"]
                if place.at != (self._epoch, len(self.steps)):
                    self._catch_up(place)
                    continue
                self.fingerprint = self.fingerprint or found
                if found != self.fingerprint:
                    raise EngineError(f"{place} comes to fingerprint {found}, the others to {self.fingerprint}.")
            except TtcEsoptError as error:
                self._failures += 1
                self._end(place)
                if strict:
                    raise
                gives_up = "; no other is asked for" if self._failures >= TRIES else ""
                self.say(f"A replica could not join: {error}{gives_up}")
                continue
            self._failures = 0
            self.active.append(place)
            self.active.sort(key=lambda one: one.number)
            if not strict:
                self.say(f"{place} has joined with fingerprint {found}; {len(self.active)} are at work")

    def _started(self, place: Place) -> bool:
        """Whether Ray has started its process: then it answers, also while it loads."""
        if place.asked is None:
            place.asked = place.actor.written.options(concurrency_group="aside").remote()
        return bool(self._ray.wait([place.asked], timeout=0)[0])

    def _catch_up(self, place: Place) -> None:
        """Send a replica that has loaded the steps that were taken meanwhile."""
        epoch, count = place.at
        place.at = (self._epoch, len(self.steps))
        if epoch == self._epoch:
            self._joining[place.actor.follow.remote(self.steps[count:])] = place
        else:  # weights that went back, or another beginning: from anew
            self._end(place)
            self._fill()

    def _end(self, place: Place) -> None:
        with suppress(Exception):  # it may be gone already
            self._ray.kill(place.actor)

    def drop(self, place: Place, why: Exception) -> None:
        """A replica is lost: go on without it, and ask for another."""
        if place in self.active:
            self.active.remove(place)
            self.lost += 1
            self.say(f"{why}; {len(self.active)} are at work, another one is asked for")
        self._end(place)
        self._fill()

    def get(self, place: Place, reference: Any) -> Any:
        """The answer of a replica.

        Raises
        ------
        EngineError, ConfigurationError, DataError
            As its engine raised it, or EngineError that names the replica; `Lost` if it is gone.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, TtcEsoptError):
                raise cause from None
            raise EngineError(f"{place} failed: {type(cause).__name__}: {cause}") from None
        except errors.RayError as error:
            raise Lost(place, error) from None

    def wait_for_one(self) -> None:
        """No replica is left: wait for a new one, longer if it is loading. Raises EngineError if none comes."""
        began = time.monotonic()
        while not self.active:
            self._fill()
            loading = any(map(self._started, self._joining.values()))
            if not self._joining or time.monotonic() > began + (LOADING if loading else self._patience):
                raise EngineError(
                    "All replicas are lost and none has taken their place; what was written and every step are in the "
                    "run's folder: go on with `ttc-esopt resume` (--replicas)."
                )
            self._ray.wait(list(self._joining), timeout=1.0)
            self._admit()

    # -- work --------------------------------------------------------------------------------------------------------

    def spread(
        self, method: str, jobs: Sequence[tuple[Any, ...]], progress: Callable[[int], None] | None = None
    ) -> list[Any]:
        """Results of the jobs (arguments of a replica's method), each done by whichever replica comes to it first."""
        results: list[Any] = [None] * len(jobs)
        waiting, tries = deque(range(len(jobs))), Counter[int]()
        busy: dict[Any, tuple[Place, int]] = {}
        self._fill()
        while waiting or busy:
            self._admit()
            if not self.active:
                self.wait_for_one()
            working = {place for place, _ in busy.values()}
            for place in self.active:
                if waiting and place not in working:
                    job = waiting.popleft()
                    busy[getattr(place.actor, method).remote(*jobs[job])] = place, job
            ready, _ = self._ray.wait([*busy, *self._joining], timeout=TICK)
            for reference in ready:
                if reference not in busy:
                    continue
                place, job = busy.pop(reference)
                try:
                    results[job] = self.get(place, reference)
                except Lost as lost:
                    tries[job] += 1
                    if tries[job] >= TRIES:
                        raise EngineError(f"{TRIES} replicas were lost over one unit of work. {lost}") from None
                    self.drop(place, lost)
                    waiting.appendleft(job)
                    continue
                if progress is not None and method == "generate":
                    _tell(place, results[job][1], progress)
            if progress is not None and not ready:
                self._look(busy, progress)
        return results

    def _look(self, busy: dict[Any, tuple[Place, int]], progress: Callable[[int], None]) -> None:
        """Ask those at work how far they are, and tell what was answered since the last look."""
        for place, _ in busy.values():
            if place.asked is not None:
                if not self._ray.wait([place.asked], timeout=0)[0]:
                    continue
                with suppress(TtcEsoptError):
                    _tell(place, self.get(place, place.asked), progress)
            place.asked = place.actor.written.options(concurrency_group="aside").remote()

    def one(self, method: str, *arguments: Any) -> Any:
        """What one replica answers."""
        return self.spread("call", [(method, *arguments)])[0]

    def all(self, method: str, *arguments: Any) -> dict[Place, Any]:
        """What every replica answers; those that are lost on the way are left out."""
        asked = [(place, getattr(place.actor, method).remote(*arguments)) for place in self.active]
        found = {}
        for place, reference in asked:
            try:
                found[place] = self.get(place, reference)
            except Lost as lost:
                self.drop(place, lost)
        return found


def _tell(place: Place, written: int, progress: Callable[[int], None]) -> None:
    if written > place.told:
        progress(written - place.told)
        place.told = written
