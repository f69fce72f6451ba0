"""A running `ttc-esopt serve`, asked over HTTP in the place of `hosts.client.Client`, for hosts that run on their own.

The server deals its directions in order to whoever asks, and steps when the scores of all of them are there: how many
make a batch is its own `--directions`, and need not be what the host asks for at a time.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from ttc_esopt.scaffolds.hosts.client import HostError

_TOLD = ("id", "objective", "failure", "detail", "seconds")
_SECONDS = 3600.0  # for a reply; a large model on a slow machine, behind others


class Served:
    """The part of `Client` that a host with one perturbed operator needs; what the server decides is None or off.

    Parameters
    ----------
    base_url : of the OpenAI-compatible interface, as "http://127.0.0.1:8000/v1"
    candidates : to ask for at a time, None: as many as the host does
    """

    stopping: str | None = None

    def __init__(self, base_url: str, api_key: str | None, model: str, candidates: int | None = None) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise HostError(f"Expected base_url like http://127.0.0.1:8000/v1, got {base_url}.")
        self._url, self._key, self._model = url, api_key, model
        prefix = url.path.rstrip("/")
        self._chat = f"{prefix}/chat/completions"
        self._tell = f"{prefix[:-3] if prefix.endswith('/v1') else prefix}/es/tell"
        self._rejected: set[int] = set()  # the server has found no program in them, and counts them as invalid
        self.options: dict[str, Any] = {
            "arm": "esopt", "directions": candidates or "host", "replies_per_direction": 1, "parser": "host",
            "es_operators": ["m1"], "prefill": False, "sandbox": "auto", "memory_mb": 4096, "seed": None,
            "continue": None,
        }  # fmt: skip

    def hello(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Print the plan; the server has its own."""
        for line in plan["lines"]:
            self.say(line)
        return {"ours": False, "state": None}

    def open_batch(self, n: int, *, generation: int, operator: str, worst: float | None = None) -> str | None:
        """The server keeps batches itself."""
        return "stream"

    def generate(
        self, operator: str, generation: int, asks: Sequence[dict[str, Any]], batch: Any = None
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Replies, asked for side by side, so that the engine can write them together.

        Raises
        ------
        HostError
            The server cannot be reached, or says no.
        """
        with ThreadPoolExecutor(max_workers=len(asks)) as pool:
            return list(pool.map(lambda ask: self._ask(operator, ask, batch is not None), asks))

    def _ask(self, operator: str, ask: dict[str, Any], directed: bool) -> dict[str, Any]:
        prompt, parents = ask["prompt"], ask.get("parents") or ()
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        headers = {"X-Esopt": "on" if directed else "off", "X-Esopt-Operator": operator}
        if parents:
            headers["X-Esopt-Parent"] = repr(min(parent["objective"] for parent in parents))  # as rewards take it
        answer = self._post(self._chat, {"model": self._model, "messages": messages, "n": 1}, headers)
        try:
            choice, said = answer["choices"][0], answer["esopt"]
            if said.get("failure"):
                self._rejected.add(said["id"])
            return {
                "id": said["id"], "text": choice["message"]["content"] or "", "finish": choice.get("finish_reason"),
                "code": None, "description": None, "failure": said.get("failure"), "detail": "",
            }  # fmt: skip
        except (KeyError, IndexError, TypeError):
            raise HostError(
                f"Expected the server at {self._url.geturl()} to be `ttc-esopt serve`, but its reply has no esopt.id."
            ) from None

    def tell(self, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Send objectives (None: invalid); the server steps when those of all its directions are there."""
        told = [
            {"objective": None} | {name: result[name] for name in _TOLD if result.get(name) is not None}
            for result in results
            if result["id"] not in self._rejected
        ]
        return self._post(self._tell, told) if told else {"step": None}

    def seeds(self, individuals: Sequence[dict[str, Any]]) -> None:
        """The server records replies only."""

    def generation(self, k: int, population: Sequence[dict[str, Any]], state: Any = None) -> None:
        """The server knows no generations."""

    def finish(self, reason: str | None = None) -> None:
        """The server goes on."""

    def say(self, text: str) -> None:
        """One line for the user."""
        print(f"ttc-esopt: {text}", flush=True)

    def _post(self, path: str, body: Any, more: dict[str, str] | None = None) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname, self._url.port, timeout=_SECONDS)
        headers = {"Content-Type": "application/json", **(more or {})}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        where = f"{self._url.scheme}://{self._url.netloc}{path}"
        try:
            connection.request("POST", path, json.dumps(body).encode("utf-8", "replace"), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise HostError(f"Expected a running `ttc-esopt serve` at {where}, but: {error}.", 1) from None
        finally:
            connection.close()
        if response.status != 200:
            raise HostError(f"{where} answered {response.status}: {text[:300]}", 1)
        try:
            return json.loads(text)
        except ValueError:
            raise HostError(f"{where} answered something that is no JSON: {text[:100]}", 1) from None
