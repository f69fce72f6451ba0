"""Scores that come over HTTP: whose they are, what they say, and whether they were told before.

A score belongs to a candidate by its id, or by the program: the evaluator of a host often sees nothing else. Programs
are compared as texts with all white space alike, and must stand in the reply as the model wrote them.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ttc_esopt.attached.http_messages import HttpError

FIELDS = ("id", "code", "objective", "reward", "failure", "detail", "seconds", "description")
FAILURES = (
    "reply", "syntax", "name", "exception", "timeout", "memory", "crash", "output", "forbidden", "infeasible",
    "nonfinite", "shape",
)  # fmt: skip
FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.S)
SHORTEST_CODE = 8  # a shorter text stands in every reply
KEPT = 20_000  # candidates whose replies are remembered
LARGEST_LIST = 10_000


class Ledger(Protocol):
    """What is needed of `ttc_esopt.attached.ledger.Ledger`."""

    def generate(self, operator: str, generation: int, asks: list[dict], batch: str | None = None) -> list[dict]: ...

    def tell(self, results: list[dict]) -> dict: ...

    def state(self) -> dict: ...


@dataclass
class _Candidate:
    id: int
    text: str  # of the reply, white space alike
    program: str  # in the reply, as far as fences tell
    told: tuple | None = None  # (objective, reward); both None: invalid


class Scores:
    """Candidates that were handed out, and their scores."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._candidates: dict[int, _Candidate] = {}
        self._lock = threading.Lock()  # of the dictionary
        self._telling = threading.Lock()  # two scores for one candidate do not pass each other
        self._kind: str | None = None  # objective or reward, whichever came first

    def note(self, id: int, text: str) -> None:
        """A candidate was handed out."""
        with self._lock:
            self._candidates[id] = _Candidate(id, alike(text), _program(text))
            while len(self._candidates) > KEPT:
                del self._candidates[next(iter(self._candidates))]

    def unscored(self) -> int:
        """Candidates that are remembered and have no score."""
        with self._lock:
            return sum(candidate.told is None for candidate in self._candidates.values())

    def tell(self, body: Any) -> dict[str, Any]:
        """Scores as they came, one object or a list of them: all are told, or none.

        Raises
        ------
        HttpError
            400: not understood. 404: nobody's. 409: the candidate has another score.
        """
        items = body if isinstance(body, list) else [body]
        if not 0 < len(items) <= LARGEST_LIST:
            raise HttpError(400, f"Expected 1 to {LARGEST_LIST} scores, got {len(items)}.")
        results = [_result(item) for item in items]
        with self._telling:
            kind = self._one_kind(results)
            fresh: dict[int, dict[str, Any]] = {}
            repeated: list[int] = []
            said: dict[int, tuple] = {}
            for result in results:
                candidate = self._whose(result, said)
                score = (result["objective"], result["reward"])
                before = said.get(candidate.id, candidate.told)
                if before is None:
                    said[candidate.id] = score
                    fresh[candidate.id] = {"code": candidate.program} | result | {"id": candidate.id}
                elif before == score:
                    repeated.append(candidate.id)
                else:
                    raise HttpError(
                        409, f"Candidate {candidate.id} was told {_shown(before)} before, now {_shown(score)}.",
                        code="told_before",
                    )  # fmt: skip
            answer = self._ledger.tell(list(fresh.values())) if fresh else {}
            self._kind = kind
            with self._lock:
                for id, score in said.items():
                    self._candidates[id].told = score
        return {"told": list(fresh), "repeated": repeated, "step": answer.get("step")}

    def _one_kind(self, results: list[dict[str, Any]]) -> str | None:
        """Whether scores are rewards or objectives; in one batch the two would not compare."""
        kind = self._kind
        for result in results:
            own = "reward" if result["reward"] is not None else "objective" if result["objective"] is not None else kind
            if kind is not None and own != kind:
                raise HttpError(400, f"Expected {kind}s as before, got a score without one.", param=kind)
            kind = own
        return kind

    def _whose(self, result: Mapping[str, Any], said: Mapping[int, tuple]) -> _Candidate:
        with self._lock:
            if result["id"] is not None:
                found = self._candidates.get(result["id"])
                if found is None:
                    raise HttpError(
                        404, f"No reply with the id {result['id']} was given by this server; the id is in the header "
                        "X-Esopt-Id and in the reply (esopt.id).", param="id", code="unknown_candidate",
                    )  # fmt: skip
                return found
            code = alike(result["code"])
            wrote = [candidate for candidate in self._candidates.values() if code in candidate.text]
        if not wrote:
            raise HttpError(
                404, "No reply of this server holds that code; give it as the model wrote it, or give the id.",
                param="code", code="unknown_candidate",
            )  # fmt: skip
        waiting = [one for one in wrote if one.told is None and one.id not in said]
        return waiting[0] if waiting else wrote[-1]  # the same program written twice is scored twice


def _program(text: str) -> str:
    """What stands in the first fence of a reply; all of it where there is none. For the record only."""
    found = FENCED.search(text)
    return found[1] if found else text


def alike(text: str) -> str:
    """A text with every run of white space as one blank."""
    return " ".join(text.split())


def _result(item: Any) -> dict[str, Any]:
    """One score, checked, as the ledger takes it."""
    if not isinstance(item, dict):
        raise HttpError(400, f"Expected a score as an object with id or code, got {type(item).__name__}.")
    for name in item:
        if name not in FIELDS:
            raise HttpError(400, f"Unknown field {name[:40]!r} in a score; known are {', '.join(FIELDS)}.", param=name)
    if item.get("id") is None and item.get("code") is None:
        raise HttpError(400, "Expected the id or the code of a candidate.", param="id")
    if "objective" not in item and "reward" not in item and item.get("failure") is None:
        raise HttpError(400, "Expected an objective (minimised), a reward (maximised) or a failure.", param="objective")
    code = _text(item, "code")
    if item.get("id") is None and len(alike(code)) < SHORTEST_CODE:
        raise HttpError(400, f"Expected a code of at least {SHORTEST_CODE} characters.", param="code")
    failure = _failure(item.get("failure"), "failure")
    values: dict[str, float | None] = {}
    for name in ("objective", "reward"):
        values[name], wrong = _value(item.get(name), name)
        failure = failure or wrong
    if failure:
        values = {"objective": None, "reward": None}
    elif values["objective"] is None and values["reward"] is None:
        failure = "exception"
    seconds = item.get("seconds") or 0
    if not _is_number(seconds) or not 0 <= seconds < math.inf:
        raise HttpError(400, "Expected seconds as a number that is not negative.", param="seconds")
    result = {"id": _id(item.get("id")), **values, "failure": failure, "seconds": float(seconds)}
    if item.get("detail") is not None:
        result["detail"] = _text(item, "detail")[:500]
    for name in ("code", "description"):
        if item.get(name) is not None:
            result[name] = _text(item, name)
    return result


def _value(value: Any, name: str) -> tuple[float | None, str | None]:
    """A number, or None and the failure that it stands for."""
    if value is None:
        return None, None
    if isinstance(value, str):
        return None, _failure(value, name)
    if not _is_number(value):
        raise HttpError(400, f"Expected {name} as a number, null or a failure, got {_kind(value)}.", param=name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return (number, None) if math.isfinite(number) else (None, "nonfinite")


def _failure(value: Any, name: str) -> str | None:
    if value is None or value in FAILURES:
        return value
    if value == "failure":
        return "exception"
    raise HttpError(
        400, f"Expected {name} to be one of failure, {', '.join(FAILURES)}, got {_kind(value)}.", param=name
    )


def _id(value: Any) -> int | None:
    """An id as a number, or as text: the header, or the id of a reply with one choice."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    digits = value.removeprefix("esopt-") if isinstance(value, str) else ""
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        return int(digits)
    raise HttpError(400, f"Expected id as a whole number, got {_kind(value)}.", param="id")


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise HttpError(400, f"Expected {name} as text, got {_kind(value)}.", param=name)
    return value or ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


def _shown(score: tuple) -> str:
    objective, reward = score
    if objective is None and reward is None:
        return "invalid"
    return f"objective {objective:g}" if objective is not None else f"reward {reward:g}"
