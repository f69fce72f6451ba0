"""What goes over HTTP in both directions: requests that were let in, answers, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class HttpError(Exception):
    """An answer that is no success, in the shape that OpenAI's clients read."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def answer(self) -> Answer:
        """The error as it is sent."""
        kinds = {401: "authentication_error", 403: "permission_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(self.status, {})
        if self.status == 405:
            headers = {"Allow": self.param or ""}
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return Answer({"error": error}, self.status, headers)


@dataclass(frozen=True)
class Answer:
    """What is sent back: a value as JSON, or bytes of another `kind`."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"

    def bytes(self) -> bytes:
        """The body."""
        return self.value if isinstance(self.value, bytes) else json.dumps(self.value).encode() + b"\n"


@dataclass(frozen=True)
class Call:
    """A request that was let in: its header fields, its JSON (None for GET), and whether its sender has hung up."""

    headers: Mapping[str, str]
    body: Any
    gone: Callable[[], bool]


def parsed(body: bytes) -> Any:
    """The JSON of a body. Raises HttpError (400)."""
    try:
        value = json.loads(body.decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # halves of surrogate pairs come through as escapes
    except UnicodeError:
        raise HttpError(400, "Expected a body in UTF-8.") from None
    except (ValueError, RecursionError):
        raise HttpError(400, "Expected a body in JSON.") from None
    return value
