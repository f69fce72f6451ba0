"""Two lines in a notebook or a script of one's own: attach an engine to the hosts of this process.

    import ttc_esopt
    with ttc_esopt.attach(model="smollm2-135m", esopt=True):
        EoH(llm=llm, problem=task).run()

The engine lives in a process of its own (`ttc_esopt.attached.process`); this one loads no torch. Leaving the block
restores the host and ends the engine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.client import Client, HostError, Stopped
from ttc_esopt.scaffolds.hosts.known import HOOKS


class attach:  # noqa: N801  a context manager, used as a function
    """Attach to EoH, LLM4AD or ReEvo for the time of a `with` block.

    Parameters
    ----------
    model : as `--model`
    esopt : the method itself; without it the model stays frozen
    directions : directions per batch, or "host"
    parser : "ours" or "host"
    sandbox : "auto", "required" or "off"
    out : folder of our files; None: beside the host's
    continue_from : results folder of an earlier run
    seeds : files of heuristics that join the initial population
    trust_objectives : do not evaluate a continued population again
    batch_timeout : seconds after which a batch that a host fills one by one is closed (0: never)
    settings : fields of `ttc_esopt.settings.Settings`

    Raises
    ------
    HostError
        On entering: a setting is wrong, or a host that is imported already is none that we know. A stop by a limit or
        Ctrl-C ends the block without an error, with everything saved.
    """

    def __init__(
        self,
        model: str | os.PathLike = "smollm2-135m",
        *,
        esopt: bool = False,
        directions: int | str | None = None,
        parser: str = "ours",
        sandbox: str = "auto",
        out: str | os.PathLike | None = None,
        continue_from: str | os.PathLike | None = None,
        trust_objectives: bool = False,
        seeds: Sequence[str | os.PathLike] = (),
        batch_timeout: float = 0.0,
        **settings: Any,
    ) -> None:
        given = {**settings, "model": os.fspath(model)} | ({"arm": "esopt"} if esopt else {})
        self._message = {
            "given": given, "out": None if out is None else os.fspath(out), "batch_timeout": batch_timeout,
            "chosen": {
                "directions": directions, "parser": parser, "sandbox": sandbox, "trust_objectives": trust_objectives,
                "continue_from": None if continue_from is None else os.fspath(continue_from),
                "seeds": [os.fspath(file) for file in seeds],
            },
        }  # fmt: skip
        self._process: subprocess.Popen | None = None
        self._attachment: Attachment | None = None
        self._previous: Any = None
        self._lines: threading.Thread | None = None

    def __enter__(self) -> Client:
        # -P: modules of the notebook's folder must not stand in for the engine's
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ttc_esopt.attached.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self._process.stdin.write(json.dumps(self._message) + "\n")
        self._process.stdin.flush()
        first = self._process.stdout.readline()
        answer = json.loads(first) if first else {"error": "The engine's process ended at once; see above."}
        if "error" in answer:
            self._process.wait()
            raise HostError(answer["error"])
        client = Client(answer["address"], bytes.fromhex(answer["key"]), answer["options"])
        # what the engine says must appear where this process prints: in a notebook that is not the terminal
        self._lines = threading.Thread(target=self._print, daemon=True)
        self._lines.start()
        self._attachment = Attachment(client, HOOKS)
        try:
            self._attachment.begin()
        except HostError:
            self.__exit__(None, None, None)
            raise
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._interrupted)
        return client

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        self._attachment.restore()
        if isinstance(error, KeyboardInterrupt):
            self._process.kill()  # at once; it may be in the middle of a batch
        self._process.stdin.close()  # the engine's process ends with it
        self._lines.join()
        self._process.wait()
        if isinstance(error, Stopped):
            print(f"ttc-esopt: {error}")
            return True
        return False

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        client = self._attachment.client
        if client.stopping:
            raise KeyboardInterrupt
        client.stopping = "interrupted"
        print("interrupted: the running batch is finished and saved (again stops at once)", flush=True)

    def _print(self) -> None:
        for line in self._process.stdout:
            print(line, end="", flush=True)
