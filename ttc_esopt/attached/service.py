"""A private socket on which one host's process reaches its session.

The socket lies in a folder that only this user can enter; every connection must know a random key, and come from the
host's own process, which the kernel vouches for. Messages are JSON. Model-written code runs in other processes, forked
from the host's, in which address and key are blanked.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import struct
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Listener
from typing import Any

from ttc_esopt.attached.session import Finished, Session
from ttc_esopt.errors import TtcEsoptError


class Service:
    """Listens until `close`; one thread per connection.

    Attributes
    ----------
    address, key : what a `Client` needs
    host : number of the process that may connect; nobody may before it is set. Where it is a wrapper that starts the
        script's interpreter, the first descendant that connects takes its place, before a model has written anything
    failed : the first fault of ours that was no `TtcEsoptError`, for the user
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.key = secrets.token_bytes(32)
        self._folder = tempfile.mkdtemp(prefix="ttc-esopt-engine-")  # mode 0700
        self.address = os.path.join(self._folder, "engine")
        self._listener = Listener(self.address, "AF_UNIX", authkey=self.key)
        self.host: int | None = None
        self.failed: BaseException | None = None
        self._closed = self._met = False
        self._thread = threading.Thread(target=self._accept, name="service", daemon=True)
        self._thread.start()

    def told(self) -> str:
        """What the host's process is told, as JSON: address, key and options."""
        return json.dumps({"address": self.address, "key": self.key.hex(), "options": self.session.options})

    def close(self) -> None:
        """Stop listening; connections that are open die with their threads."""
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
            knock.connect(self.address)  # or the thread would wait for somebody for ever, holding a descriptor
        self._thread.join(2)
        with contextlib.suppress(OSError):  # whoever empties the temporary folder has taken it
            self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # a stranger without the key, or the listener was closed, or no descriptors are left
                time.sleep(0.05)
                continue
            if not self._is_the_host(connection):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="host", daemon=True).start()

    def _is_the_host(self, connection: Connection) -> bool:
        """Whether the other end is the process that was started for it."""
        deadline = time.monotonic() + 10
        while self.host is None and time.monotonic() < deadline:  # it has only just been started
            time.sleep(0.01)
        with socket.socket(fileno=os.dup(connection.fileno())) as other:
            pid, _, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if not self._met and self.host in _ancestors(pid):
            self.host = pid
        self._met = True
        return pid == self.host

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    message = json.loads(connection.recv_bytes().decode("utf-8", "surrogatepass"))
                except (OSError, EOFError):
                    return
                answer = self._answer(message)
                stop = self.session.stopping
                try:
                    text = json.dumps({**answer, "stop": stop})
                    connection.send_bytes(text.encode("utf-8", "surrogatepass"))
                except OSError:
                    return

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": self.session.call(message.pop("method"), **message)}
        except Finished:
            return {"error": "", "exit_code": 0}
        except TtcEsoptError as error:
            return {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:
            self.failed = self.failed or error
            return {"error": f"The engine failed: {type(error).__name__}: {error}", "exit_code": 1}


def _ancestors(pid: int) -> list[int]:
    """The process's parent, that one's parent and so on, as far as the kernel tells."""
    found = []
    with contextlib.suppress(OSError):
        while pid > 1:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
            found.append(pid)
    return found
