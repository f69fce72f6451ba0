"""Measurements after each step, and the caps at which a run stops or takes the step back (`--diagnostics`, `--on-cap`).

ES for language models walks far: updates are dense and mostly orthogonal to what the rewards ask for, and what a model
could do before is what suffers (arXiv 2601.20861, 2604.01499). So the distance from the beginning is worth watching. KL
is taken along the run's first replies of operator i1, whose prompt never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ttc_esopt.engines.base import Engine, Request
from ttc_esopt.es.history import path
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.scaffolds.base import Call, Scaffold
from ttc_esopt.tuned import as_steps

CAP = "past a cap"  # why a step that was taken back counts as not taken
REPLIES = 2  # along which KL is taken


class Diagnoses:
    """`diagnostics.jsonl` of a run: one line per step that was taken, or taken back.

    Parameters
    ----------
    folder, scaffold, engine : of the run
    """

    def __init__(self, folder: RunFolder, scaffold: Scaffold, engine: Engine) -> None:
        self.folder, self.scaffold, self.engine = folder, scaffold, engine
        self._stored = {line["t"]: line for line in folder.diagnostics.read()}
        self._latest: dict[str, Any] | None = None

    def after(self, t: int, records: Sequence[dict], lines: Sequence[dict]) -> None:
        """Measure where step `t` led, or take it from the file; `records` are the steps, `lines` all candidates."""
        if not records[t]["taken"]:
            return
        if t not in self._stored:
            taken = [step for step in path(records, t) if records[step]["taken"]]
            steps = as_steps([records[step] for step in taken[-2:]])
            found = {"t": t, **self.engine.measure(steps, records[t]["sigma"]), "kl": self._kl(lines)}
            self.folder.diagnostics.append(found)
            self._stored[t] = found
        self._latest = self._stored[t]

    def forget(self) -> None:
        """The weights have gone back: what was measured last is not where they are."""
        self._latest = None

    def passed(self) -> str | None:
        """Which cap the model has passed, or None."""
        if self._latest is None:
            return None
        s, one = self.folder.settings, self._latest
        for cap, value, what, flag in (
            (s.cap_kl, one["kl"], "KL to the beginning", "--cap-kl"),
            (s.cap_distance, one["distance_rms"], "distance from the beginning", "--cap-distance"),
        ):
            if cap and value is not None and value > cap:
                return f"{what} is {value:.3g} after step {one['t']}, above {cap:g} ({flag})"
        return None

    def _kl(self, lines: Sequence[dict]) -> float | None:
        written = [line["reply"] for line in lines if line["operator"] == "i1" and line["reply"]][:REPLIES]
        if not written:
            return None
        draft = self.scaffold.drafts(Call(0, 0, "i1", 1), [], Random(0))[0]
        requests = [Request(draft.prompt, 0, draft.prefill)] * len(written)
        return self.engine.drift(requests, written, self.folder.settings.sampling())
