"""One line of samples.jsonl: its keys, what an evaluation adds to it, and the rewards of a batch of them.

Searches of our own and runs of other frameworks that we attach to write the same lines, so the arithmetic stands here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from typing import Any

from ttc_esopt.rewards import Scored, rewards


def blank(order: int, generation: int, operator: str) -> dict[str, Any]:
    """A line of which nothing is known yet."""
    return {
        "order": order, "generation": generation, "operator": operator, "parents": [],
        "parent_objectives": [], "direction": None, "reply_index": 0, "sigma": None, "sampling_seed": None,
        "prompt_tokens": 0, "tokens": 0, "finish": None, "objective": None, "failure": None, "detail": "",
        "copy_of": None, "reward": None, "description": None, "code": None, "reply": None,
    }  # fmt: skip


def key(objective: float) -> float:
    """Objectives that agree in this count as one heuristic, as EoH counts them."""
    return round(objective, 5)


def mark_copy(line: dict[str, Any], known: dict[float, int]) -> None:
    """Note the first candidate with the objective of a valid line; `known` is key -> order, and is added to."""
    if line["objective"] is not None:
        line["copy_of"] = known.get(key(line["objective"]))
        known.setdefault(key(line["objective"]), line["order"])


def batch_rewards(
    rule: str, lines: Sequence[dict[str, Any]], known: Container[float], worst: float | None
) -> list[float]:
    """Rewards of the lines of one batch.

    Parameters
    ----------
    rule : `default` or `paper`
    lines : the whole batch
    known : keys of the objectives that candidates before the batch had
    worst : worst objective of the population before the batch; of use only where candidates have parents
    """
    batch = [
        Scored(
            objective=line["objective"],
            parent=min(line["parent_objectives"], default=None),
            known=line["objective"] is not None and key(line["objective"]) in known,
        )
        for line in lines
    ]
    return rewards(rule, batch, worst if any(line["parent_objectives"] for line in lines) else None)


def stream(*parts: int) -> int:
    """A sampling stream (63 bits) from the run seed and what it is for; equal in every arm."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
