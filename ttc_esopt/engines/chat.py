"""Chats as text: a model's chat template, and what is done where it knows no system role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from ttc_esopt.errors import EngineError

Messages = list[dict[str, str]]


def written(model: str, tokenizer: Any, messages: Messages, arguments: dict) -> str:
    """The messages as the tokenizer's chat template writes them, up to where the reply begins.

    Templates without a system role either refuse it or leave the message out; its text then goes to the head of the
    first user message.

    Raises
    ------
    EngineError
        There is no template, or it refuses the messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise EngineError(f"The model {model} has no chat template: --no-chat-template for raw prompts.")

    def write(messages: Messages) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)

    system = [message["content"].strip() for message in messages if message["role"] == "system"]
    try:
        text = write(messages)
        if all(part in text for part in system):
            return text
    except TemplateError as error:
        if not system:
            raise EngineError(f"The chat template of {model} refuses these messages: {error}") from error
    try:
        return write(_without_system(messages))
    except TemplateError as error:
        raise EngineError(f"The chat template of {model} refuses these messages: {error}") from error


def _without_system(messages: Messages) -> Messages:
    parts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [dict(message) for message in messages if message["role"] != "system"]
    first = next((message for message in rest if message["role"] == "user"), None)
    if first is None:
        first = {"role": "user", "content": ""}
        rest.insert(0, first)
    first["content"] = "\n\n".join(part for part in [*parts, first["content"]] if part)
    return rest


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Every token that ends a reply by the word of the generation settings, the configuration or the tokenizer."""
    return token_set(model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id)


def token_set(*values: int | Sequence[int] | None) -> set[int]:
    """The tokens of settings that name one, several or none."""
    tokens: set[int] = set()
    for value in values:
        tokens.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return tokens
