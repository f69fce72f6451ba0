"""What the adapters of population hosts share: one run's settings, evaluation, failures, and the state of its draws."""

from __future__ import annotations

import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ttc_esopt.scaffolds.hosts import populations
from ttc_esopt.scaffolds.hosts.client import Client, HostError, Stopped
from ttc_esopt.scaffolds.hosts.isolate import Isolation, Outcome, evaluate, settle

OURS = "ttc_esopt"  # folder of our files, inside the host's results


class HostRun:
    """One run of a host: where it is, and how its candidates are evaluated.

    Parameters
    ----------
    client : the engine
    evaluate : the host's own evaluation of a program's text; its result is rounded to 5 decimals, as hosts do
    timeout : seconds for one evaluation
    processes : evaluations at once (-1: one per core)
    """

    def __init__(
        self, client: Client, evaluate: Callable[[str], Any], timeout: float | None, processes: int
    ) -> None:  # fmt: skip
        self.client = client
        self.options = client.options
        self.generation = 0  # the last one that the host has saved
        self.failures: Counter = Counter()
        self._evaluate, self._timeout, self._processes = evaluate, timeout, processes
        self._isolation = Isolation(self.options["sandbox"], self.options["memory_mb"], ())
        self._outcomes: dict[str, Outcome] = {}

    @property
    def host_numbers(self) -> bool:
        """Whether the host's own numbers of candidates hold."""
        return self.options["directions"] == "host"

    @property
    def host_parser(self) -> bool:
        return self.options["parser"] == "host"

    @property
    def batch(self) -> int:
        """Candidates of one batch of directions, where its size is ours."""
        return self.options["directions"] * self.options["replies_per_direction"]

    def es_operators(self, operators: Sequence[str]) -> list[str]:
        """Those of the host's operators whose candidates get directions.

        Raises
        ------
        HostError
            There are none, and the arm needs some.
        """
        found = [one for one in dict.fromkeys(operators) if one in self.options["es_operators"]]
        if not found and self.options["arm"] != "frozen":
            raise HostError(
                f"Expected an operator of the host among {', '.join(self.options['es_operators'])} (--es-operators), "
                f"got {', '.join(operators)}."
            )
        return found

    def settle(self, template: str | None) -> None:
        """Find out, by the problem's own template, how much of the sandbox the problem bears."""
        self._isolation, line = settle(self._evaluate, template or None, self._isolation, self._timeout)
        if line:
            self.client.say(line)

    def outcomes(self, codes: Sequence[str]) -> list[Outcome]:
        """Evaluate programs; `value` is a rounded, finite float or None. The same text is evaluated once."""
        new = [code for code in dict.fromkeys(codes) if code not in self._outcomes]
        found = evaluate(
            self._evaluate, new, timeout=self._timeout, processes=self._processes, isolation=self._isolation
        )
        for code, outcome in zip(new, found, strict=True):
            self._outcomes[code] = rounded(outcome)
        return [self._outcomes[code] for code in codes]

    def result(
        self, id: int, code: str | None, description: str | None, outcome: Outcome | None, *,
        failure: str = "reply", detail: str = "", **more: Any,
    ) -> dict:  # fmt: skip
        """What is told of a candidate; `failure` and `detail` say why nothing was evaluated (`outcome` None)."""
        outcome = outcome or Outcome(None, failure, detail, 0.0)
        self.count(outcome)
        return {
            "id": id, "code": code, "description": description, "objective": outcome.value,
            "failure": outcome.failure, "detail": outcome.detail, "seconds": outcome.seconds, **more,
        }  # fmt: skip

    def count(self, outcome: Outcome) -> None:
        """Remember a failure, to say at the end which was the most frequent."""
        if outcome.failure:
            self.failures[f"{outcome.failure}: {outcome.detail.strip().rpartition(chr(10))[2]}"] += 1

    def nothing_valid(self) -> HostError:
        """The end of a run without a single valid candidate."""
        total = sum(self.failures.values())
        most, count = self.failures.most_common(1)[0] if self.failures else ("no reply", 0)
        return HostError(
            f"None of {total} candidates was valid; most often ({count} times): {most}. "
            "Try --prefill, another --temperature, a larger model, or --seeds FILE.py.", 1
        )  # fmt: skip

    def openings(self) -> list[dict]:
        """The user's own heuristics (--seeds) that are valid for this problem, evaluated and on the record."""
        seeds = self.options.get("seeds") or []
        outcomes = self.outcomes([one["code"] for one in seeds])
        for one, outcome in zip(seeds, outcomes, strict=True):
            if outcome.value is None:
                why = outcome.detail.strip().rpartition("\n")[2]
                self.client.say(f"{one['description'].rstrip('.')} is left out: {outcome.failure}, {why} (--seeds)")
        return self._joined(zip(seeds, outcomes, strict=True))

    def spares(self, programs: Sequence[str], count: int) -> list[dict]:
        """The first valid ones of `programs`, for an initial population in which the model wrote too few."""
        spare = [{"description": "the problem's own template, or a trivial program", "code": one} for one in programs]
        outcomes = self.outcomes(list(programs))
        valid = [pair for pair in zip(spare, outcomes, strict=True) if pair[1].value is not None][:count]
        if valid:
            self.client.say(
                f"the model wrote too few valid heuristics to begin with; {len(valid)} program(s) of the problem's own "
                "template join the initial population (--seeds FILE.py: yours)"
            )
        return self._joined(valid)

    def _joined(self, pairs: Iterable[tuple[dict, Outcome]]) -> list[dict]:
        found = [one | {"objective": outcome.value} for one, outcome in pairs if outcome.value is not None]
        if found:
            self.client.seeds(found)
        return found

    def stop_here(self) -> None:
        """Leave the host's run if it is to end; call it where everything is saved."""
        if self.client.stopping:
            self.client.finish(self.client.stopping)
            raise Stopped(self.client.stopping)

    def continued(self, path: str, k: int) -> list[dict]:
        """The stored population to go on from, checked by evaluating it again.

        Raises
        ------
        HostError
            The file holds no population, or objectives do not match the problem.
        """
        stored = populations.read_population(path)
        if not self.options["trust_objectives"]:
            fresh = [outcome.value for outcome in self.again([one["code"] for one in stored])]
            populations.check_objectives([one["objective"] for one in stored], fresh, path)
        self.generation = k
        return stored

    def again(self, codes: Sequence[str]) -> list[Outcome]:
        """Evaluate stored programs."""
        return self.outcomes(codes)


def rounded(outcome: Outcome) -> Outcome:
    """The objective as hosts store it: to 5 decimals, finite or None."""
    import numpy as np  # every host has it

    if outcome.failure or outcome.value is None:
        return outcome
    value = float(np.round(float(outcome.value), 5))
    if math.isfinite(value):
        return Outcome(value, None, "", outcome.seconds)
    return Outcome(None, "nonfinite", f"the objective is {value}", outcome.seconds)


def parents_of(parents: Any) -> list[dict]:
    """A host's parents (none, one or several of its dictionaries) as they are told."""
    listed = [parents] if isinstance(parents, dict) else list(parents or ())
    return [{"code": one["code"], "objective": one["objective"]} for one in listed]


def individual(description: str | None, code: str | None, objective: float | None) -> dict:
    """A heuristic as EoH, both versions, keeps it; with nothing but None it is a failure."""
    return {"algorithm": description, "code": code, "objective": objective, "other_inf": None}


def told(population: Sequence[dict]) -> list[dict]:
    """A population of EoH as it is told."""
    return [
        {"description": one["algorithm"] or "", "code": one["code"], "objective": one["objective"]}
        for one in population
    ]


def results_folder(output: str) -> str:
    """Where our files go, beside the host's."""
    return os.path.abspath(os.path.join(output, "results", OURS))


def draws() -> dict:
    """The state of `random` and `np.random`, as plain JSON."""
    version, words, gauss = random.getstate()
    state: dict = {"random": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def restore_draws(state: dict | None) -> None:
    """Put back what `draws` returned."""
    if not state:
        return
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        import numpy as np

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
