"""Evaluating programs that a model wrote: each in a sandboxed process of its own, scored from what it returned.

The names below are loaded when they are asked for: hosts and their candidates import the sandbox from here, and need
none of what an evaluator needs.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    "PATIENCE": "evaluator", "Evaluator": "evaluator", "Outcome": "outcome", "sandbox_layers": "sandbox",
    "say_when_compiling": "notice",
}  # fmt: skip

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
