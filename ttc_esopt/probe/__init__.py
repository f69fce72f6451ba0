"""`ttc-esopt probe`: before a budget is spent, which sigma is safe and whether rewards show a signal at all.

from ttc_esopt.probe import probe
found = probe("probe-smollm2", problem="tsp_construct", model="smollm2-135m", sigmas=[3e-3, 6e-3])
print(found.verdict)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.jsonlines import write_atomically

if TYPE_CHECKING:
    from ttc_esopt.probe.findings import Findings
    from ttc_esopt.probe.plan import Plan

SNR = 1.0  # signal-to-noise that a step shall have
MAX_KL = 0.2  # nats per token: the perplexity of the model's own replies grows by e^0.2, 22 %
# settings of `run` that mean nothing here: the probe asks one prompt, perturbs without a step, and has its own sigmas
NOT_HERE = (
    "arm", "budget_excludes_init", "max_tokens_total", "max_minutes", "population", "offspring", "init",
    "init_candidates", "operators", "common_parent", "distinct_parents", "common_seeds", "es_operators", "directions",
    "antithetic", "diagnostics", "cap_kl", "cap_distance", "on_cap",
    "replies_per_direction", "sigma", "sigma_end", "sigma_schedule", "alpha", "alpha_schedule",
)  # fmt: skip


def probe(
    out: Path | str, *, snr: float = SNR, max_kl: float = MAX_KL, say: Callable[[str], None] = print,
    sigmas: str | Sequence[float] | None = None, directions: int = 10, replies: int = 10,
    operator: str | None = None, **given: Any,
) -> Findings:  # fmt: skip
    """Measure, or go on measuring, in the folder `out`; see `ttc_esopt.probe.plan.planned` for the other parameters."""
    from ttc_esopt.probe.plan import planned

    plan = planned(sigmas=sigmas, directions=directions, replies=replies, operator=operator, **given)
    return work(plan, Path(out), snr=snr, max_kl=max_kl, say=say)


def work(
    plan: Plan, out: Path, *, snr: float = SNR, max_kl: float = MAX_KL, say: Callable[[str], None] = print,
    console: Any = None,
) -> Findings:  # fmt: skip
    """The probe of a plan, from wherever its folder is; writes probe.json, and page and chart with matplotlib.

    Raises
    ------
    ConfigurationError
        The folder holds something else, or a wish is out of range.
    DataError
        Another process works in the folder, or its files do not belong together.
    """
    for value, flag in ((snr, "--snr"), (max_kl, "--max-kl")):
        if not 0 < value < float("inf"):
            raise ConfigurationError(f"Expected a number above 0, got {value} ({flag}).")
    from ttc_esopt.evaluation.sandbox import warning
    from ttc_esopt.probe.findings import conclude
    from ttc_esopt.probe.folder import ProbeFolder
    from ttc_esopt.probe.measure import measure
    from ttc_esopt.probe.plan import announcement

    folder = ProbeFolder.open(out, plan)
    folder.lock()
    try:
        for line in announcement(plan, out):
            say(line)
        if weak := warning():
            say(weak)
        lines = measure(plan, folder, say, console)
        found = conclude(plan, folder.document, lines, snr, max_kl)
        told = {name: folder.document[name] for name in ("probe", "settings", "model", "versions")}
        told = json.loads(json.dumps(told, sort_keys=True))  # TOML gives them back in another order
        write_atomically(out / "probe.json", json.dumps({**found.as_dict(), **told}, indent=1, allow_nan=False) + "\n")
        if find_spec("matplotlib") is not None:
            from ttc_esopt.probe.page import write_page

            write_page(plan, found, out)
        return found
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        raise SystemExit(1) from None
    finally:
        folder.unlock()
