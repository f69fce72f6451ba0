"""Tells a user who waits for the first evaluation on a machine that kernels are being compiled (once, then cached)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module


def say_when_compiling(say: Callable[[str], None]) -> None:
    """Have one line said when numba begins to compile something in this process; what is cached makes no line.

    Parameters
    ----------
    say : called at most once
    """
    event = import_module("numba.core.event")

    class _Listener(event.Listener):
        said = False

        def on_start(self, _: object) -> None:
            if not self.said:
                self.said = True
                say("compiling kernels for this machine (once; they are cached) ...")

        def on_end(self, _: object) -> None:
            pass

    event.register("numba:compile", _Listener())
