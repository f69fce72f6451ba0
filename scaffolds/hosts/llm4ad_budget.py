"""What a run of LLM4AD's EoH will spend: samples, generations, batches of directions."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Budget:
    """Figures that follow from the host's settings and the user's.

    Attributes
    ----------
    samples : max_sample_nums of the script
    population, generations, threads : as in the script; generations None is no limit
    drawn : samples that an earlier run has made
    expected : samples after which the limit on generations ends the run
    mutated : samples that will have directions, or would in another arm
    directions, batch : of one batch, and candidates in it
    steps : batches from here on
    """

    samples: int
    population: int
    generations: int | None
    threads: int
    drawn: int
    expected: int
    mutated: int
    directions: int
    batch: int
    steps: int
    es: Sequence[str]

    @classmethod
    def of(
        cls,
        eoh: Any,
        *,
        operators: Sequence[str],
        es: Sequence[str],
        options: dict[str, Any],
        drawn: int,
        generation: int,
        begins: bool,
    ) -> Budget:
        """From the host's object.

        Parameters
        ----------
        operators, es : that take turns, and those of them whose candidates have directions
        drawn, generation : where the run goes on from
        begins : it makes an initial population
        """
        samples, size, generations = eoh._max_sample_nums, eoh._pop_size, eoh._max_generations
        initial = min(2 * size, samples)

        def left(start: int, first: int) -> int:
            room = samples - start
            return max(0, room if generations is None else min(room, size * (generations - first)))

        # A full initial population is generation 2 to LLM4AD; its 2 * size samples are the most that it may take.
        rest = left(drawn + initial, 2) if begins else left(drawn, generation)
        share = len(es) / len(operators)
        directions = max(2, round(size * share)) if options["directions"] == "host" else options["directions"]
        batch = directions * options["replies_per_direction"]
        # while a batch waits for its last scores, what the other threads ask for gets no direction
        per_step = batch + (eoh._num_samplers - 1) * share
        return cls(
            samples=samples, population=size, generations=generations, threads=eoh._num_samplers, drawn=drawn,
            expected=drawn + rest + (initial if begins else 0), mutated=int(rest * share), directions=directions,
            batch=batch, steps=max(1, int(rest * share // per_step)) if es else 0, es=es,
        )  # fmt: skip

    def plan(self) -> dict[str, Any]:
        """Its part of the plan that is announced."""
        return {
            "candidates": self.samples,
            "host_candidates": self.samples,
            "population": self.population,
            "generations": self.generations or math.ceil(self.samples / self.population),
            "steps": self.steps,
            "largest_batch": self.directions,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        before = f"; {self.drawn} were made before" if self.drawn else ""
        lines = [f"{self.samples} samples: every reply counts, also one that LLM4AD drops{before}"]
        if self.generations is not None and self.expected < self.samples:
            lines.append(f"max_generations={self.generations} ends the run sooner, after about {self.expected} samples")
        if self.es:
            lines.append(
                f"about {self.mutated} samples by {' and '.join(self.es)}, one at a time in {self.threads} threads; "
                f"{self.batch} of them make a batch ({self.directions} directions)"
            )
        if self.es and self.mutated < self.batch:
            lines.append("that is less than a batch: the only step comes at the end, from what is there (--directions)")
        return lines


def version(module: Any) -> str:
    """Of the wheel that `module` comes from; the package itself has said 1.0.0 for several releases."""
    installed = Path(module.__file__).parents[3].glob("llm4ad-*.dist-info")
    found = [match[1] for path in installed if (match := re.match(r"llm4ad-([\d.]+)\.dist-info", path.name))]
    package = sys.modules[module.__name__.partition(".")[0]]
    return found[0] if found else getattr(package, "__version__", "1.0")
