"""Arguments of a host problem's class as one text, `timeout=60,n_instance=8`: what flags, TOML and run.toml hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from ttc_esopt.errors import ConfigurationError

_NAME_AND_TEXT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*", re.DOTALL)


def parse(text: str) -> dict[str, Any]:
    """Values by name; they are Python literals.

    Raises
    ------
    ConfigurationError
        The text is no list of NAME=VALUE, or a value is no literal.
    """
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in found:  # **something
            raise ValueError
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ConfigurationError(
            f"Expected NAME=VALUE,... with numbers, 'texts', True, None or lists as values, got {text} (--problem-arg)."
        ) from None
    return found


def joined(flags: Sequence[str]) -> str:
    """One text from several flags; a single value that is no literal is taken for a text.

    Raises
    ------
    ConfigurationError
        A flag is not NAME=VALUE, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for flag in flags:
        try:
            given = parse(flag)
        except ConfigurationError:
            match = _NAME_AND_TEXT.fullmatch(flag)
            if not match or match[2][:1] in ("", "'", '"', "[", "(", "{"):
                raise
            given = {match[1]: match[2]}
        for name, value in given.items():
            if name in found:
                raise ConfigurationError(f"Expected one value of {name}, got two (--problem-arg).")
            found[name] = value
    return ",".join(f"{name}={value!r}" for name, value in found.items())
