"""What tests do in this process instead of in others: milliseconds instead of seconds.

`InThisProcess` is an evaluator without sandbox and processes, for tests of what becomes of answers; `typed` is the
command without an interpreter of its own, for tests of what it says.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from unittest import mock

from ttc_esopt.cli.main import main
from ttc_esopt.evaluation import Evaluator, child


class InThisProcess(Evaluator):
    """Runs programs here, in plain Python."""

    def _ask(self, code, first, last):
        task = child.Task(self.instances[first:last], first, self.seed, "never", self.lenient)
        frame = bytearray(b"".join(child.answer(self.problem, task, code)))
        return {"cause": None, "detail": "", "seconds": 0.0}, frame


def use(monkeypatch):
    """Let the parts of a run take this evaluator, and leave the random numbers of the tests' own process alone."""
    monkeypatch.setattr("ttc_esopt.instances.Evaluator", InThisProcess)
    monkeypatch.setattr(child, "seed_everything", lambda *_: None)


def typed(*words, cwd=None):
    """What becomes of `ttc-esopt WORDS`: a subprocess.CompletedProcess; an error that is none of ours is raised."""
    words = ["ttc-esopt", *map(str, words)]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", words), contextlib.chdir(cwd or "."),
        mock.patch("ttc_esopt.evaluation.notice.say_when_compiling"),  # else it speaks in later tests too
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
