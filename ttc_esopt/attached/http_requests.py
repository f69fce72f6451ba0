"""Bodies and header fields of requests for replies, read field by field: whatever is wrong is one sentence (400)."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.attached.http_messages import HttpError

FROZEN, ESOPT = ":frozen", ":esopt"  # ends of a model's name that say whether its replies get directions
LARGEST_COUNT = 64  # replies to one request
LARGEST_STOPS = 16
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
OPERATOR = re.compile(r"[A-Za-z0-9_.-]{1,40}")
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Wish:
    """What a request says beside its prompt.

    Attributes
    ----------
    operator : for the record
    directed : whether to nudge the model; None: as the server decides
    parents : as a ledger takes them
    """

    operator: str = "request"
    directed: bool | None = None
    parents: list[dict] = field(default_factory=list)

    @classmethod
    def of(cls, headers: Mapping[str, str], model: str) -> Wish:
        """From the header fields X-Esopt, X-Esopt-Operator and X-Esopt-Parent, and from the model's name."""
        operator = headers.get("X-Esopt-Operator", "request")
        if not OPERATOR.fullmatch(operator):
            raise HttpError(400, "Expected X-Esopt-Operator as 1 to 40 letters, digits, points, dashes.")
        directed = False if model.endswith(FROZEN) else True if model.endswith(ESOPT) else None
        choice = headers.get("X-Esopt")
        if choice is not None:
            if choice.lower() not in ("on", "off"):
                raise HttpError(400, "Expected the header X-Esopt to be on or off.")
            directed = choice.lower() == "on"
        parents = []
        if (parent := headers.get("X-Esopt-Parent")) is not None:
            try:
                objective = float(parent)
            except ValueError:
                objective = math.nan
            if not math.isfinite(objective):
                raise HttpError(400, "Expected X-Esopt-Parent as the objective of the parent, a number.")
            parents = [{"code": None, "objective": objective}]
        return cls(operator, directed, parents)


def an_object(body: Any) -> Body:
    """The body as an object."""
    if not isinstance(body, dict):
        raise HttpError(400, f"Expected a JSON object, got {type(body).__name__}.")
    return body


def part(body: Body, name: str) -> Body:
    """An object within the body; absent means empty."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise HttpError(400, f"Expected {name} as a JSON object, got {type(value).__name__}.", param=name)
    return value or {}


def text(body: Body, name: str, default: str | None = None) -> str:
    """A text that must be there, unless there is a default."""
    value = body.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise HttpError(400, f"Expected {name} as text, got {type(value).__name__}.", param=name)
    return value


def flag(body: Body, name: str) -> bool:
    """True or false; absent means false."""
    value = body.get(name)
    if value not in (None, True, False) or isinstance(value, int | float) and not isinstance(value, bool):
        raise HttpError(400, f"Expected {name} to be true or false.", param=name)
    return bool(value)


def count(body: Body, name: str) -> int:
    """How many replies; absent means one."""
    value = number(body, name, 1, LARGEST_COUNT, whole=True)
    return 1 if value is None else int(value)


def number(body: Body, name: str, low: float, high: float, whole: bool = False) -> float | None:
    """A number within bounds; None where it is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    kind = "a whole number" if whole else "a number"
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        raise HttpError(400, f"Expected {name} as {kind} from {low:g} to {high:g}.", param=name)
    return value


def messages(body: Body) -> list[dict[str, str]]:
    """The messages of a chat, as an engine takes them."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise HttpError(400, "Expected messages as a list of at least one message.", param="messages")
    result = []
    for message in given:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise HttpError(400, f"Expected messages with a role of {', '.join(ROLES)}.", param="messages")
        result.append({"role": ROLES[role], "content": _content(message.get("content"), role)})
    return result


def _content(content: Any, role: str) -> str:
    """A message's text, which may come in parts."""
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(one, str) for one in texts):
        raise HttpError(400, "Expected the content of a message as text, or as parts of type text.", param="messages")
    return "".join(texts)


def prompts(body: Body) -> list[str]:
    """One prompt or several."""
    given = body.get("prompt")
    several = given if isinstance(given, list) and given else [given]
    if not all(isinstance(prompt, str) and prompt for prompt in several):
        raise HttpError(400, "Expected prompt as a text that is not empty, or a list of such texts.", param="prompt")
    return several


def plain(prompt: str | list[dict[str, str]]) -> str:
    """All text of a prompt."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def openai_sampling(body: Body, longest: int) -> dict[str, Any]:
    """Sampling settings of a request in OpenAI's words; what is not said stays as the server was started."""
    tokens = number(body, "max_completion_tokens", 1, 1e9, whole=True)
    if tokens is None:
        tokens = number(body, "max_tokens", 1, 1e9, whole=True)
    given = {
        "temperature": number(body, "temperature", 0, 100),
        "top_p": _top_p(body),
        "presence_penalty": number(body, "presence_penalty", -2, 2),
        "max_tokens": None if tokens is None else min(tokens, longest),
        "stop": _stop(body),
    }
    return {name: value for name, value in given.items() if value is not None}


def eoh_sampling(body: Body, longest: int) -> dict[str, Any]:
    """Sampling settings of a request in EoH's words."""
    params = part(body, "params")
    tokens = number(params, "max_new_tokens", 1, 1e9, whole=True)
    given = {
        "temperature": 0 if params.get("do_sample") is False else number(params, "temperature", 0, 100),
        "top_p": _top_p(params),
        "top_k": number(params, "top_k", 0, 1e9, whole=True),
        "max_tokens": None if tokens is None else min(tokens, longest),
    }
    return {name: value for name, value in given.items() if value is not None}


def _top_p(body: Body) -> float | None:
    value = number(body, "top_p", 0, 1)
    return value if value is None else max(value, 1e-6)  # 0: the likeliest token alone


def _stop(body: Body) -> tuple[str, ...] | None:
    given = body.get("stop")
    if given is None:
        return None
    stops = [given] if isinstance(given, str) else given
    fits = isinstance(stops, list) and len(stops) <= LARGEST_STOPS
    if not fits or not all(isinstance(stop, str) and 0 < len(stop) <= 100 for stop in stops):
        raise HttpError(400, f"Expected stop as at most {LARGEST_STOPS} texts of 1 to 100 characters.", param="stop")
    return tuple(stops)


def seed(body: Body, index: int) -> dict[str, int]:
    """The seed of the index-th reply to a request, if one is given; the same again gives the same reply."""
    value = number(body, "seed", -(1 << 63), (1 << 63) - 1, whole=True)
    if value is None or value < 0:  # clients say "any" by -1
        return {}
    if index:
        value = int.from_bytes(hashlib.blake2b(f"{value}/{index}".encode(), digest_size=8).digest(), "little") >> 1
    return {"seed": int(value)}


def refuse_what_is_not_there(body: Body) -> None:
    """What would change the reply's form or meaning and cannot be done is refused, everything else unknown ignored."""
    refused = ("tools", "functions", "logprobs", "top_logprobs", "logit_bias", "frequency_penalty", "echo", "suffix",
               "audio", "modalities")  # fmt: skip
    for name in refused:
        if body.get(name):
            raise HttpError(400, f"{name} is not supported by this server.", param=name, code="unsupported")
    if part(body, "response_format").get("type", "text") != "text":
        raise HttpError(400, "response_format is not supported by this server.", param="response_format",
                        code="unsupported")  # fmt: skip
    if (number(body, "best_of", 1, LARGEST_COUNT, whole=True) or 1) > count(body, "n"):
        raise HttpError(400, "best_of is not supported by this server.", param="best_of", code="unsupported")
