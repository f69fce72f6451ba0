"""What a run cost: candidates, evaluations, tokens and seconds, by operator and by phase; an estimate of the FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc_esopt.rundata import RunData, as_number, as_table, is_new

PHASES = ("generate", "evaluate", "step")
# FLOPs per parameter and token as the paper counts them (arXiv 2608.17310): forward passes alone, with a reference
# model and a backward pass, with a critic too
FACTORS = {"ES": 2.0, "GRPO": 8.0, "PPO": 14.0}


@dataclass
class Cost:
    """Sums over some candidates.

    Attributes
    ----------
    candidates, evaluations, valid, new : int
        Lines, programs that were run, valid ones, valid ones with an objective not known before.
    read, written : int
        Tokens of the prompts and of the replies.
    seconds : dict
        By phase; a step's are counted in `Ledger.total` alone.
    timed : int
        Tokens written by candidates that have a clock reading.
    """

    candidates: int = 0
    evaluations: int = 0
    valid: int = 0
    new: int = 0
    read: int = 0
    written: int = 0
    timed: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def elapsed(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def speed(self) -> float | None:
        """Tokens written per second of generating."""
        return self.timed / self.seconds["generate"] if self.timed and self.seconds["generate"] else None

    def per(self, count: int) -> float | None:
        """Seconds for each of `count` candidates, everything counted."""
        return self.elapsed / count if count and self.elapsed else None


@dataclass(frozen=True)
class Ledger:
    """Costs of a run.

    Attributes
    ----------
    operators : dict
        Operator -> Cost, in the order in which they first appear.
    total : Cost
        Of the whole run, steps included.
    parameters : int or None
        Of the model, as run.toml has it.
    peak_mb : float or None
        Largest resident memory of the process so far, MiB; on a GPU also in `gpu_peak_mb`.
    """

    operators: dict[str, Cost]
    total: Cost
    parameters: int | None
    peak_mb: float | None = None
    gpu_peak_mb: float | None = None

    def flops(self, cost: Cost, method: str = "ES") -> float | None:
        """FLOPs, estimated as factor x parameters x (tokens read + tokens written); the paper's `FACTORS`."""
        return FACTORS[method] * self.parameters * (cost.read + cost.written) if self.parameters else None

    @property
    def rows(self) -> list[tuple[str, Cost]]:
        """Operators and the total."""
        return [*self.operators.items(), ("all", self.total)]


def ledger(run: RunData) -> Ledger:
    """The costs of a run, from samples.jsonl and timings.jsonl."""
    readings = _readings(run.timings)
    operators: dict[str, Cost] = {}
    total = Cost()
    for line in run.samples:
        reading = readings.get(line["order"])
        for cost in (operators.setdefault(str(line.get("operator")), Cost()), total):
            cost.candidates += 1
            cost.evaluations += line.get("code") is not None  # a reply without a program is never run
            cost.valid += line["objective"] is not None
            cost.new += is_new(line)
            cost.read += _count(line, "prompt_tokens")
            cost.written += _count(line, "tokens")
            if reading is not None:
                cost.timed += _count(line, "tokens")
                for phase in ("generate", "evaluate"):
                    cost.seconds[phase] += reading[phase]
    total.seconds["step"] = sum(seconds_of(line, "step") for line in run.timings)
    parameters = as_number(as_table(run.document.get("model")).get("parameters"))
    peaks = [
        max((value for line in run.timings if (value := as_number(line.get(name))) is not None), default=None)
        for name in ("peak_mb", "gpu_peak_mb")
    ]
    return Ledger(operators, total, int(parameters) if parameters and parameters > 0 else None, *peaks)


def _readings(timings: Sequence[dict]) -> dict[int, dict[str, float]]:
    """Order -> seconds; a batch that was cut and made again cost both times."""
    found: dict[int, dict[str, float]] = {}
    for line in timings:
        if isinstance(line.get("order"), int):
            reading = found.setdefault(line["order"], dict.fromkeys(PHASES, 0.0))
            for phase in ("generate", "evaluate"):
                reading[phase] += seconds_of(line, phase)
    return found


def seconds_of(line: dict, phase: str) -> float:
    """Of a phase, in a line of timings.jsonl."""
    return max(0.0, as_number(line.get(phase)) or 0.0)


def _count(line: dict, name: str) -> int:
    return max(0, int(as_number(line.get(name)) or 0))
