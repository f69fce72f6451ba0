"""A run whose candidates are asked for and scored over HTTP, from the first line printed to the last."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ttc_esopt.attached.exec import conclude
from ttc_esopt.attached.http_api import Api, Offer
from ttc_esopt.attached.http_server import Server
from ttc_esopt.attached.session import Finished, Session
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.runfolder import RunFolder

TICK = 0.2  # seconds between two looks at the clock
LAST_ANSWERS = 10.0  # seconds that answers on their way get at the end


def serve(
    given: dict[str, Any],
    options: dict[str, Any],
    *,
    out: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    steps: int = 50,
    batch_timeout: float = 600.0,
    queue: int = 128,
    es_match: str | None = None,
    function: str | None = None,
    reply_start: str = "",
    go_on: bool = False,
    dry_run: bool = False,
    command: str = "",
    say: Callable[[str], None] = print,
    engine: Any = None,
) -> None:
    """Serve until Ctrl-C or a limit; call it from the main thread.

    Parameters
    ----------
    given, options : of `host_options`
    out : the run folder
    host, port, token : see `Server`
    steps : T
    batch_timeout : seconds after which a batch is closed without the missing scores (0: never)
    queue, es_match : see `Offer`
    function : name that a reply's program must define; replies without one are invalid at once. None: nobody looks
    reply_start : what every reply is begun with
    go_on : continue the run in `out`
    dry_run, command, say, engine : see `Session`

    Raises
    ------
    TtcEsoptError
        A setting is wrong, the port is taken, or the model cannot be loaded.
    """
    settings = {**given, "prefill": bool(reply_start)}
    if steps < 1:
        raise ConfigurationError(f"Expected at least one step, got {steps} (--steps).")
    if queue < 1:
        raise ConfigurationError(f"Expected a queue of at least one request, got {queue} (--queue).")
    if not batch_timeout >= 0:
        raise ConfigurationError(f"Expected a batch timeout >= 0, got {batch_timeout} (--batch-timeout).")
    try:
        match = None if es_match is None else re.compile(es_match)
    except re.error as error:
        raise ConfigurationError(f"{es_match} is no regular expression: {error} (--es-match).") from None
    if go_on and not (out / "run.toml").exists():
        raise ConfigurationError(f"{out} holds no run to go on with (--out, --continue).")
    if go_on and (began := (RunFolder.open(out).host or {}).get("steps", steps)) != steps:
        raise ConfigurationError(f"The run in {out} has {began} steps, this command {steps}: give the same (--steps).")
    # The port is taken before the model is loaded, so that a taken one is told at once; who comes early waits.
    with Server(host, port, {}, token) as server:
        session = Session(
            settings, options, out=out, command=command, say=say, dry_run=dry_run, batch_timeout=batch_timeout,
            engine=engine,
        )  # fmt: skip
        plan = _plan(options, steps, batch_timeout, function, reply_start, match, go_on)
        interrupts = _Interrupts(say)
        try:
            session.hello(plan)
            api = Api(
                session.ledger,
                Offer(
                    options["model"], session.folder.settings.max_tokens, queue, match,
                    reply_start, function is not None,
                ),
            )  # fmt: skip
            server.routes = api.routes()
            server.start()
            for line in _addresses(server):
                say(line)
            _wait(session, api, interrupts, say)
            server.stop(LAST_ANSWERS)
        except Finished:
            say("nothing was served (--dry-run)")
            return
        finally:
            session.close()
            interrupts.restore()
    conclude(session, say)
    say(f"results: {out}; go on with the same command and --continue")


def _wait(session: Session, api: Api, interrupts: _Interrupts, say: Callable[[str], None]) -> None:
    """Until somebody wants the end, and then until the running batch has its scores."""
    ledger = session.ledger
    done = False
    while not (interrupts.count or session.stopping):
        ledger.tend()
        state = ledger.state()
        if not done and state["step"] >= state["steps"] and session.folder.settings.arm != "frozen":
            done = True
            say("all steps are taken; requests are answered by the model as it is now, until Ctrl-C")
        time.sleep(TICK)
    api.ending = True
    say(f"{session.stopping or 'interrupted'}: ending after the running batch (Ctrl-C stops at once)")
    while ledger.state()["batch"] is not None:
        ledger.tend()
        time.sleep(TICK)


class _Interrupts:
    """Counts Ctrl-C (and SIGTERM); the second one ends the process, whatever it does: all files are whole."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.count = 0
        self._say = say
        self._previous = {number: signal.signal(number, self._come) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore(self) -> None:
        """As it was before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _come(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self._say("stopped at once; go on with the same command and --continue")
            sys.stdout.flush()
            os._exit(1)


def _plan(
    options: dict[str, Any],
    steps: int,
    batch_timeout: float,
    function: str | None,
    start: str,
    match: re.Pattern[str] | None,
    go_on: bool,
) -> dict[str, Any]:
    """What `Session.hello` wants to know."""
    directions, replies = options["directions"], options["replies_per_direction"]
    candidates = steps * directions * replies
    late = f"after {batch_timeout:g} s without the missing scores" if batch_timeout else "never without all scores"
    who = "every request" if match is None else f"requests whose prompt matches {match.pattern}"
    lines = [
        f"steps: {steps}, each a batch of {directions} directions x {replies} replies, closed {late}",
        f"directions go to {who}; while a batch waits for scores, and after the last step, to none",
    ]
    if function:
        lines.append(f"replies without a program that defines {function} are invalid at once")
    return {
        "host": "HTTP", "version": "1.1", "problem": "requests", "folder": "", "function": function,
        "kind": "function", "prefill": start, "candidates": candidates, "host_candidates": None, "steps": steps,
        "largest_batch": directions, "population": 0, "generations": 0, "lines": lines,
        "continued": {"generation": None} if go_on else None,
    }  # fmt: skip


def _addresses(server: Server) -> list[str]:
    kept = "with the token" if server.token else "from this machine only"
    return [
        f"listening on {server.url}, {kept}",
        f"OpenAI's interface: {server.url}/v1   EoH's: {server.url}/completions   scores: {server.url}/es/tell",
    ]
