"""The routes of `serve`: EoH's local interface, OpenAI's, and scores that come back.

Every request is a candidate of its own (several, where several replies are asked for), with a direction of its own or
none. A reply that nobody was there to take, because its sender had given up, goes to whoever asks the same again: its
direction is dealt already, and no other reply could score it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttc_esopt.attached import http_requests as read
from ttc_esopt.attached.http_messages import Answer, Call, HttpError
from ttc_esopt.attached.http_scores import Ledger, Scores
from ttc_esopt.attached.http_server import Routes
from ttc_esopt.errors import TtcEsoptError

PROBE = "1+1=?"  # EoH asks it once to see whether anybody is there
FENCE = "```"
MOST_UNTAKEN = 256


@dataclass(frozen=True)
class Offer:
    """What the routes need to know.

    Attributes
    ----------
    model : its name for clients
    max_tokens : longest reply; a request may ask for less
    queue : requests for replies at the same time
    es_match : only prompts in which it is found get directions, unless a request says otherwise
    start : what every reply was begun with
    reads : whether the ledger looks for a program in the replies; those without one are invalid at once
    """

    model: str
    max_tokens: int
    queue: int = 128
    es_match: re.Pattern[str] | None = None
    start: str = ""
    reads: bool = False


class Api:
    """Answers calls from a ledger.

    Attributes
    ----------
    ending : set by whoever wants to end: only what the open batch still needs is answered
    """

    def __init__(self, ledger: Ledger, offer: Offer) -> None:
        self._ledger, self._offer = ledger, offer
        self._scores = Scores(ledger)
        self._places = threading.BoundedSemaphore(offer.queue)
        self._untaken: dict[str, list[tuple[int, list[dict]]]] = {}
        self._lock = threading.Lock()
        self._since = int(time.time())
        self.ending = False

    def routes(self) -> Routes:
        """Paths, methods and functions for `Server`."""
        return {
            "/completions": ("POST", self._eoh),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._raw),
            "/v1/models": ("GET", self._models),
            "/es/tell": ("POST", lambda call: Answer(self._scores.tell(call.body))),
            "/es/state": ("GET", self._state),
            "/health": ("GET", lambda _: Answer({"status": "ok"})),
        }

    # -- routes ------------------------------------------------------------------------------------------------------

    def _eoh(self, call: Call) -> Answer:
        body = read.an_object(call.body)
        prompt = read.text(body, "prompt")
        if prompt.strip() == PROBE:
            return Answer({"content": ["2"]})
        count = read.count(body, "repeat_prompt")
        sampling = read.eoh_sampling(body, self._offer.max_tokens)
        ask = {"prompt": prompt, "sampling": sampling}
        try:
            replies = self._replies(call, read.Wish.of(call.headers, ""), [ask] * count)
        except HttpError as error:
            if error.status == 503:
                time.sleep(1)  # EoH 0.1 asks again at once, and for ever
            raise
        said = [self._said(reply) for reply in replies]
        return Answer({"content": [self._text(reply) for reply in replies], "esopt": said}, headers=_headers(said))

    def _chat(self, call: Call) -> Answer:
        body = read.an_object(call.body)
        messages = read.messages(body)
        read.refuse_what_is_not_there(body)
        ask = {"prompt": messages, "sampling": read.openai_sampling(body, self._offer.max_tokens)}
        return self._openai(call, body, [ask], _CHAT)

    def _raw(self, call: Call) -> Answer:
        body = read.an_object(call.body)
        read.refuse_what_is_not_there(body)
        sampling = read.openai_sampling(body, self._offer.max_tokens) | {"raw": True}
        return self._openai(call, body, [{"prompt": p, "sampling": sampling} for p in read.prompts(body)], _RAW)

    def _openai(self, call: Call, body: Mapping[str, Any], asks: list[dict], form: _Form) -> Answer:
        model = read.text(body, "model", self._offer.model)
        stream, options = read.flag(body, "stream"), read.part(body, "stream_options")
        count = read.count(body, "n")
        if count * len(asks) > read.LARGEST_COUNT:
            raise HttpError(400, f"Expected at most {read.LARGEST_COUNT} replies to one request.", param="n")
        asks = [ask | read.seed(body, i) for ask in asks for i in range(count)]
        replies = self._replies(call, read.Wish.of(call.headers, model), asks)
        said = [self._said(reply) for reply in replies]
        usage = _usage(replies, count)
        reply: dict[str, Any] = {"id": _name(replies), "created": int(time.time()), "model": model}
        alone = {"esopt": said[0]} if len(said) == 1 else {}
        choices = [
            {"index": i, "finish_reason": r["finish"], "logprobs": None, "esopt": one, **form.whole(self._text(r))}
            for i, (r, one) in enumerate(zip(replies, said, strict=True))
        ]
        if stream:
            chunk = reply | {"object": form.chunk} | alone
            events = _events(chunk, choices, form, usage if options.get("include_usage") else None)
            value = b"".join(b"data: " + event.encode() + b"\n\n" for event in events)
            return Answer(value, headers=_headers(said), kind="text/event-stream")
        return Answer(reply | {"object": form.kind, "choices": choices, "usage": usage} | alone, headers=_headers(said))

    def _models(self, call: Call) -> Answer:
        names = (self._offer.model, self._offer.model + read.FROZEN)
        rows = [{"id": n, "object": "model", "created": self._since, "owned_by": "ttc-esopt"} for n in names]
        return Answer({"object": "list", "data": rows})

    def _state(self, call: Call) -> Answer:
        return Answer({**self._ledger.state(), "unscored": self._scores.unscored(), "ending": self.ending})

    # -- replies -----------------------------------------------------------------------------------------------------

    def _replies(self, call: Call, wish: read.Wish, asks: list[dict]) -> list[dict]:
        """One reply to each ask, handed out for good."""
        directed = wish.directed
        if directed is None:
            match = self._offer.es_match
            directed = match is None or match.search(read.plain(asks[0]["prompt"])) is not None
        asks = [ask | {"parents": wish.parents} for ask in asks]
        with self._place():
            self._check_ending()
            step = self._ledger.state()["step"]
            same = _key(asks, wish.operator, directed)
            replies = self._left(same, step)
            if replies is None:
                replies = self._generated(wish.operator, asks, "stream" if directed else None)
            if call.gone():
                with self._lock:
                    if len(self._untaken) < MOST_UNTAKEN:
                        self._untaken.setdefault(same, []).append((step, replies))
                raise ConnectionAbortedError("The sender has hung up.")
        return replies

    def _generated(self, operator: str, asks: list[dict], batch: str | None) -> list[dict]:
        try:
            replies = self._ledger.generate(operator, 0, asks, batch)
        except TtcEsoptError as error:
            raise HttpError(400, str(error)) from None
        for reply in replies:
            self._scores.note(reply["id"], self._text(reply))
        if self._offer.reads:
            lost = [{"id": r["id"], "failure": r["failure"], "detail": r["detail"]} for r in replies if not r["ok"]]
            if lost:
                self._scores.tell(lost)
        return replies

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise HttpError(503, f"{self._offer.queue} requests are waiting already; try again.", code="queue_full")
        try:
            yield
        finally:
            self._places.release()

    def _check_ending(self) -> None:
        if self.ending:
            batch = self._ledger.state()["batch"]
            if batch is None or batch["dealt"] >= batch["candidates"]:
                raise HttpError(503, "The server is ending and takes no more requests.", code="ending")

    def _left(self, same: str, step: int) -> list[dict] | None:
        """Replies to the same request that nobody took, of the model as it is now."""
        with self._lock:
            for old in [one for one, found in self._untaken.items() if found[0][0] != step]:
                del self._untaken[old]
            found = self._untaken.get(same)
            if not found:
                return None
            if len(found) == 1:
                del self._untaken[same]
            return found.pop()[1]

    def _text(self, reply: Mapping[str, Any]) -> str:
        """A reply as clients see it: with what it was begun with, and the fence closed at which it was cut off."""
        text = self._offer.start + reply["text"]
        if self._offer.start and reply["finish"] == "stop" and text.count(FENCE) % 2:
            text = text.rstrip() + "\n" + FENCE
        return text

    def _said(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        said = {"id": reply["id"], "direction": reply["direction"], "sigma": reply["sigma"] or 0.0}
        return said | ({"failure": reply["failure"]} if self._offer.reads else {})


@dataclass(frozen=True)
class _Form:
    """How one of OpenAI's two interfaces wraps a text."""

    kind: str
    chunk: str
    whole: Callable[[str], dict]
    parts: Callable[[str], list[dict]]
    nothing: dict


_CHAT = _Form(
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text: [{"delta": {"role": "assistant", "content": ""}}, {"delta": {"content": text}}],
    {"delta": {}},
)
_RAW = _Form(
    "text_completion", "text_completion", lambda text: {"text": text}, lambda text: [{"text": text}], {"text": ""}
)


def _events(base: dict, choices: Sequence[dict], form: _Form, usage: dict | None) -> Iterator[str]:
    """The chunks of a streamed reply; it is whole when the first is sent, since scores need whole replies."""
    for choice in choices:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        common = {"index": choice["index"], "logprobs": None}
        for part in form.parts(text):
            yield json.dumps(base | {"choices": [common | {"finish_reason": None} | part]})
        last = common | {"finish_reason": choice["finish_reason"], "esopt": choice["esopt"]} | form.nothing
        yield json.dumps(base | {"choices": [last]})
    if usage is not None:
        yield json.dumps(base | {"choices": [], "usage": usage})
    yield "[DONE]"


def _usage(replies: Sequence[Mapping[str, Any]], count: int) -> dict[str, int]:
    prompt = sum(reply["prompt_tokens"] for reply in replies[::count])  # the prompt of several replies counts once
    written = sum(reply["tokens"] for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _name(replies: Sequence[Mapping[str, Any]]) -> str:
    """The id of an answer; with one reply in it, the candidate's own."""
    more = f"+{len(replies) - 1}" if len(replies) > 1 else ""
    return f"esopt-{replies[0]['id']}{more}"


def _headers(said: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    def listed(name: str) -> str:
        return ",".join("none" if one[name] is None else str(one[name]) for one in said)

    return {"X-Esopt-Id": listed("id"), "X-Esopt-Direction": listed("direction"), "X-Esopt-Sigma": listed("sigma")}


def _key(asks: Sequence[dict], operator: str, directed: bool) -> str:
    return hashlib.sha256(json.dumps([asks, operator, directed]).encode()).hexdigest()
