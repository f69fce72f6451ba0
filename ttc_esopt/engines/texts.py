"""Prompts to tokens and tokens to text, alike for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.chat import written
from ttc_esopt.errors import EngineError


class Texts:
    """A model's tokenizer, and how prompts and replies go through it.

    Parameters
    ----------
    name : str
        Of the model, for messages.
    tokenizer : a transformers tokenizer
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name, self.tokenizer = name, tokenizer

    def ids(self, index: int, request: Request, sampling: Sampling) -> list[int]:
        """Tokens of prompt and prefill; raises EngineError where there are none, or no chat template."""
        if sampling.chat_template:
            text = written(self.name, self.tokenizer, request.messages, sampling.chat_template_args)
        else:
            text = "\n\n".join(message["content"] for message in request.messages)
        # A chat template writes the special tokens itself; a raw prompt gets what the tokenizer puts around a text.
        ids = self.tokenizer(text + request.prefill, add_special_tokens=not sampling.chat_template)["input_ids"]
        if not ids:
            raise EngineError(f"Expected a prompt of at least one token (request {index}).")
        return ids

    def text(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        """Text of generated tokens, decoded behind the end of the prompt: some tokenizers drop a leading blank else."""
        end = list(prompt[-4:])
        before, text = self._decode(end), self._decode(end + list(new))
        return text[len(before) :] if text.startswith(before) else self._decode(new)

    def cut(self, prompt: Sequence[int], new: Sequence[int], stops: Sequence[str]) -> str | None:
        """The text before the first stop string, None if there is none. Looks at the tail first: that is cheap."""
        tail = max(map(len, stops)) + 8  # a token is at least one character, but for parts of one
        recent = self.tokenizer.decode(new[-tail:], skip_special_tokens=True)
        return self.before(self.text(prompt, new), stops) if any(stop in recent for stop in stops) else None

    @staticmethod
    def before(text: str, stops: Sequence[str]) -> str | None:
        """The part of a text before its first stop string, None if there is none."""
        found = [text.index(stop) for stop in stops if stop in text]
        return text[: min(found)] if found else None

    def special(self, stops: Sequence[str]) -> set[int]:
        """Stop strings that are special tokens: these never show up in the text."""
        ids = {stop: self.tokenizer.convert_tokens_to_ids(stop) for stop in stops}
        return {i for i in ids.values() if i in self.tokenizer.all_special_ids}

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
