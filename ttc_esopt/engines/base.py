"""What every engine takes and gives: requests, sampling settings, replies, and the `Engine` protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import NoiseKind

SHARD_SIZE = "5GB"  # largest file of an exported model
ROLES = ("system", "user", "assistant")


def expect_size(text: str) -> int:
    """The bytes of a size such as 5GB or 300MiB; raises ConfigurationError for another text."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([KMGT]?)(i?)B", text)
    expect(found is not None and float(found[1]) > 0, "a size such as 5GB or 300MB", text, "--shard-size")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit or " "))


def expect(ok: bool, what: str, got: object, flag: str) -> None:
    """Raise ConfigurationError "Expected `what`, got `got` (`flag`)." unless `ok`."""
    if not ok:
        raise ConfigurationError(f"Expected {what}, got {got!r} ({flag}).")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen and when a reply ends; the same for all requests of a call.

    Applied in this order: repetition penalty, presence penalty, temperature, top-k, top-p, min-p.

    Parameters
    ----------
    temperature : float
        0 takes the likeliest token.
    top_p : float
        Keep the smallest set of likeliest tokens whose mass is at least this; 1 keeps all.
    top_k : int
        Keep this many likeliest tokens; 0 keeps all.
    min_p : float
        Keep tokens at least this probable relative to the likeliest; 0 keeps all.
    presence_penalty : float
        Subtracted from the logit of every token that the reply already holds.
    repetition_penalty : float
        Logits of tokens that the reply already holds are divided (positive) or multiplied (negative) by it.
        Both penalties count generated tokens only: neither the prompt nor the prefill, which quote code that the
        reply is meant to take up again.
    max_tokens : int
        Longest reply, in tokens.
    stop : tuple of str
        The reply ends before the first of these; the string itself is cut off.
    chat_template : bool
        Write the prompt (one user message, or the messages of a chat) by the model's chat template; else send it raw,
        the messages of a chat one below the other.
    chat_template_args : dict
        Extra arguments of the chat template, for example ``{"enable_thinking": False}``.
    """

    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    chat_template: bool = True
    chat_template_args: dict = field(default_factory=dict, hash=False)  # a dict has no hash; equality does compare it

    def __post_init__(self) -> None:
        t, penalty = self.temperature, self.repetition_penalty
        expect(0 <= t < math.inf, "temperature >= 0", t, "--temperature")
        expect(0 < self.top_p <= 1, "0 < top_p <= 1", self.top_p, "--top-p")
        expect(self.top_k >= 0, "top_k >= 0 (0: all tokens)", self.top_k, "--top-k")
        expect(0 <= self.min_p <= 1, "0 <= min_p <= 1", self.min_p, "--min-p")
        expect(math.isfinite(self.presence_penalty), "a finite presence_penalty", self.presence_penalty,
               "--presence-penalty")  # fmt: skip
        expect(0 < penalty < math.inf, "repetition_penalty > 0", penalty, "--repetition-penalty")
        expect(self.max_tokens >= 1, "max_tokens >= 1", self.max_tokens, "--max-tokens")
        expect(not isinstance(self.stop, str), "a tuple of stop strings", self.stop, "stop")
        object.__setattr__(self, "stop", tuple(self.stop))
        expect(all(self.stop), "non-empty stop strings", self.stop, "stop")


@dataclass(frozen=True)
class Request:
    """One reply that is wanted.

    Parameters
    ----------
    prompt : str or list of dict
        The user message, or the raw text (`Sampling.chat_template`), or a chat: ``{"role": ..., "content": ...}`` with
        the roles system, user and assistant.
    seed : int
        Seed of this reply's own sampling stream: token k is chosen by a uniform number that depends on (seed, k) alone.
    prefill : str
        Start of the reply, written for the model, appended raw after the generation prompt.
    direction : int, optional
        Seed of the direction that the weights are nudged along; None for the unperturbed model.
    sigma : float
        Length of that nudge.
    """

    prompt: str | Sequence[Mapping[str, str]]
    seed: int
    prefill: str = ""
    direction: int | None = None
    sigma: float = 0.0

    def __post_init__(self) -> None:
        expect(0 <= self.sigma < math.inf, "sigma >= 0", self.sigma, "--sigma")
        if not isinstance(self.prompt, str):
            expect(len(self.prompt) > 0, "a chat of at least one message", self.prompt, "messages")
            for message in self.prompt:
                fits = isinstance(message, Mapping) and message.get("role") in ROLES
                fits = fits and isinstance(message.get("content"), str)
                expect(fits, f"messages with a role ({', '.join(ROLES)}) and a text as content", message, "messages")

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return [{"role": message["role"], "content": message["content"]} for message in self.prompt]

    @property
    def nudge(self) -> tuple[int, float] | None:
        """(direction, sigma), or None where the weights are the unperturbed ones (sigma = 0 nudges nothing)."""
        return None if self.direction is None or self.sigma == 0 else (self.direction, self.sigma)


@dataclass(frozen=True)
class Reply:
    """What the model wrote.

    Parameters
    ----------
    text : str
        The reply without the prefill, the end-of-sequence token and the stop string.
    prompt_tokens : int
        Tokens of prompt and prefill.
    tokens : int
        Tokens generated, an end-of-sequence token and the tokens of a stop string included.
    finish : str
        "stop" (end of sequence or stop string) or "length" (`max_tokens`, or the model's context, is used up).
    """

    text: str
    prompt_tokens: int
    tokens: int
    finish: str


class Engine(Protocol):
    """Where the model lives and writes."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Reply]:
        """Replies in the order of the requests; `progress` is told the number of new tokens, many times."""

    def divergence(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> list[float]:
        """Mean KL(unperturbed || nudged) per token, in nats, over the tokens of replies that the model itself wrote.

        One value for each request (prompt, prefill, direction, sigma) and its reply; exactly 0 where sigma is 0. Of
        `sampling` only the chat template counts. Raises EngineError for a reply without a token.

        An engine that does not see whole laws gives a close lower bound (`ttc_esopt.engines.vllm_divergence`).
        """

    def drift(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> float:
        """Mean KL(weights at the beginning || now) per token, in nats, over the tokens of these replies.

        Where `divergence` is a lower bound this is one too.
        """

    def measure(self, steps: Sequence[tuple[Sequence[int], Sequence[float]]], sigma: float) -> dict:
        """How far the last of `steps` and all steps went: see `ttc_esopt.engines.measures.measured`."""

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """Move the weights: delta += sum of c_i * eps_i, in float32 and in this order; live = round(base + delta)."""

    def rewind(self, steps: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
        """The weights as they are after these steps alone, (directions, coefficients) each, from the beginning."""

    def adopt(
        self, noise: NoiseKind, scope: str, steps: Sequence[tuple[Sequence[int], Sequence[float]]]
    ) -> None:
        """Take steps of another run, of its own noise and scope, and regard what comes out as the beginning."""

    def fingerprint(self) -> str:
        """16 hexadecimal digits: a 64-bit sum over (checkpoint name, index, bits) of all live tensors."""

    def sha256(self) -> str:
        """64 hexadecimal digits over all live tensors (name, dtype, shape, bytes; sorted by name)."""

    def export(self, folder: Path, shard_size: str = SHARD_SIZE) -> None:
        """Write the live model as a Hugging Face folder, tokenizer included, in files of at most that size."""

    def describe(self) -> dict:
        """Plain values for the run's record: model, dtype, device, threads, parameters, noise, scope, versions."""

    def peak(self) -> dict[str, float]:
        """Largest memory so far, MiB: `peak_mb` of the process, on a GPU also `gpu_peak_mb`."""

    def close(self) -> None:
        """Give the memory back; the engine is of no use afterwards."""
