"""A user's script in a process of its own, attached to an engine in this one.

The script gets a session of its own, so that Ctrl-C in the terminal reaches this process alone: the first one asks the
host to end after the running batch, with everything saved; the second kills the script at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from ttc_esopt.attached.service import Service
from ttc_esopt.attached.session import Session
from ttc_esopt.rundata import is_new, thirds
from ttc_esopt.scaffolds.hosts import client, launch

PACKAGES = ("ttc_esopt", "ttc_esopt.scaffolds")  # as folders, for an interpreter that does not have us


def execute(
    script: Path,
    arguments: Sequence[str],
    given: dict[str, Any],
    options: dict[str, Any],
    *,
    out: Path | None = None,
    python: str = sys.executable,
    dry_run: bool = False,
    batch_timeout: float = 0.0,
    command: str = "",
    say: Callable[[str], None] = print,
    engine: Any = None,
    report: bool = True,
) -> int:
    """Run the script to its end; returns the exit status of the command.

    Parameters
    ----------
    script, arguments : as `python script arguments` would run it
    given, options : of `host_options`
    out, dry_run, batch_timeout, command, say, engine : see `Session`
    python : the script's interpreter
    report : write report.html at the end
    """
    session = Session(
        given, options, out=out, command=command, say=say, dry_run=dry_run, batch_timeout=batch_timeout, engine=engine
    )
    service = Service(session)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["TTC_ESOPT_PACKAGES"] = json.dumps({name: os.path.dirname(_file(name)) for name in PACKAGES})
    process = None
    interrupts = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1 and session.ledger is not None:
            session.stop = "interrupted"
            say("interrupted: the running batch is finished and saved (Ctrl-C again stops at once)")
        elif process is not None:
            _kill(process)
            service.close()
            say("stopped at once" + "; what was reported is on the disk (--continue goes on)" * bool(session.ledger))
            os._exit(1)  # the engine may be in the middle of a batch

    previous = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as told:
            told.write(service.told())
            told.seek(0)
            environment[client.ENVIRONMENT] = str(told.fileno())
            process = subprocess.Popen(
                [python, launch.__file__, str(script), *arguments], env=environment, stdin=subprocess.DEVNULL,
                start_new_session=True, pass_fds=[told.fileno()],
            )  # fmt: skip
        service.host = process.pid
        code = process.wait()
    except OSError as error:
        say(f"Expected an interpreter, but {python} cannot be started: {error.strerror} (--python).")
        code = 2
    finally:
        if process is not None:
            _kill(process)  # whatever it left behind
        for number, handler in previous.items():
            signal.signal(number, handler)
        service.close()
        session.close()
    if service.failed is not None:
        raise service.failed
    if session.ledger is not None:
        conclude(session, say, report)
    if code < 0:
        say(f"the script was ended by signal {-code} ({signal.Signals(-code).name})")
        return 1
    if code:
        say(f"the script ended with exit status {code}")
    return code if code in (0, 2) else 1


def conclude(session: Session, say: Callable[[str], None], report: bool = True) -> None:
    """The closing lines: what was found, what the weights are, and where everything is."""
    folder, lines = session.folder, session.folder.samples.read()
    written = [line for line in lines if line["reply"] is not None]
    best = session.ledger.best if session.ledger else None
    say(f"best objective: {best['objective']:.5g} ({best['operator']})" if best else "no valid candidate")
    first, last = thirds(written)
    if first is not None:
        say(f"valid replies: {first:.0%} in the first third, {last:.0%} in the last")
    say(f"new valid heuristics written by the model: {sum(is_new(line) for line in written)}")
    say(f"ES steps taken: {session.ledger.steps_taken if session.ledger else 0}; weights end with fingerprint "
        f"{folder.document.get('result', {}).get('fingerprint')}")  # fmt: skip
    if report and lines and find_spec("matplotlib") is not None:
        from ttc_esopt.report import write_report

        say(f"report: {write_report([folder.path], folder.path / 'report.html')}")
    if best:
        say(f"best heuristic: {folder.path / 'best.py'}")


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _file(package: str) -> str:
    return find_spec(package).origin
