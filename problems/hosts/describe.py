"""What a host's problem is, told by a process that loads it: `python -m ttc_esopt.problems.hosts.describe PLACE NAME`.

Prints one JSON line, the last one: a description, {"own": true} for a problem of ours, or {"error": one sentence}.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from ttc_esopt.errors import ConfigurationError, TtcEsoptError
from ttc_esopt.evaluation import old_numpy
from ttc_esopt.problems.hosts import arguments, classes, folders


def live(place: str, name: str, text: str) -> classes.Host | None:
    """The problem itself; `name` is empty for a folder, and None is a problem of ours."""
    given = arguments.parse(text)
    return classes.load(place, name, given) if name else folders.ReEvo(Path(place).resolve(), given)


def description(host: classes.Host) -> dict[str, Any]:
    """What the rest of the package needs to know of it."""
    return {
        "host": host.host, "template": dataclasses.asdict(host.template), "task": host.task, "timeout": host.timeout,
        "maximise": host.maximise, "seeds": host.seeds, "read": host.read,
    }  # fmt: skip


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the host prints is no answer
    old_numpy.restore()  # as in the processes that evaluate
    place, name, text = sys.argv[1:]
    try:
        host = live(place, name, text)
        if isinstance(host, folders.ReEvo):
            host.check()
        answer = {"own": True} if host is None else description(host)
    except ConfigurationError as error:
        answer = {"error": str(error)}
    except TtcEsoptError as error:
        answer = {"error": f"{place}: {error} (--problem)."}
    print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # whatever threads the host has


if __name__ == "__main__":
    main()
