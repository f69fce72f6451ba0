"""The engine's process of `ttc_esopt.attach`: settings come as one line of JSON, the end comes as the end of input."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ttc_esopt.attached.exec import conclude
from ttc_esopt.attached.options import host_options
from ttc_esopt.attached.service import Service
from ttc_esopt.attached.session import Session
from ttc_esopt.errors import TtcEsoptError


def main() -> None:
    """Serve one `attach` block."""
    message = json.loads(sys.stdin.readline())
    try:
        given, options = host_options(message["given"], **message["chosen"])
    except TtcEsoptError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return

    def say(text: str) -> None:
        print(text, flush=True)

    out = Path(message["out"]) if message["out"] else None
    session = Session(
        given, options, out=out, say=say, command="ttc_esopt.attach", batch_timeout=message["batch_timeout"]
    )
    service = Service(session)
    service.host = os.getppid()
    print(service.told(), flush=True)
    sys.stdin.read()
    service.close()
    session.close()
    if session.ledger is not None:
        conclude(session, say)
    if service.failed is not None:
        raise service.failed


if __name__ == "__main__":
    main()
