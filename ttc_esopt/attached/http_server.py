"""HTTP for programs on this machine: one thread per connection, JSON in and out, and what may go wrong told as JSON.

The server knows nothing of models. It keeps strangers out: web pages (Host and Origin are checked, so that neither a
link nor a rebound DNS name reaches it), other machines (a token, except on the loopback interface), and senders that
want to fill the memory or hold every connection open (sizes, times and counts are bounded).
"""

from __future__ import annotations

import hmac
import io
import ipaddress
import select
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ttc_esopt.attached.http_messages import Answer, Call, HttpError, parsed
from ttc_esopt.errors import ConfigurationError, TtcEsoptError

SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """What one sender may use.

    Attributes
    ----------
    body, head : bytes of a request's body, and of its first line and header fields
    reading : seconds from a request's first byte to its last
    idle : seconds that a connection may wait for the next request
    writing : seconds in which an answer must be taken
    connections : at the same time
    """

    body: int = 4 << 20
    head: int = 64 << 10
    reading: float = 30.0
    idle: float = 60.0
    writing: float = 60.0
    connections: int = 256


Routes = Mapping[str, tuple[str, Callable[[Call], Answer]]]


class Server(ThreadingHTTPServer):
    """Listens; `start` serves in the background.

    Parameters
    ----------
    host, port : where to listen (port 0: any free one, see `url`)
    routes : path -> (GET or POST, function)
    token : what a sender must know; needed unless `host` is the loopback interface
    limits : what one sender may use

    Raises
    ------
    ConfigurationError
        A token is missing or too short, or nobody can listen there.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, routes: Routes, token: str | None = None, limits: Limits | None = None
    ) -> None:
        self.routes, self.limits = routes, limits or Limits()
        self.loopback = is_loopback(host)
        self.token = _checked_token(token, host, self.loopback)
        self._slots = threading.BoundedSemaphore(self.limits.connections)
        self._idle = threading.Condition()
        self._answering = 0
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(("127.0.0.1" if host == "localhost" else host, port), _Handler)
        except (OSError, OverflowError) as error:
            what = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"Cannot listen on {host} port {port}: {what} (--host, --port).") from None

    @property
    def url(self) -> str:
        """Where to find it."""
        host, port = self.server_address[:2]
        return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"

    def server_bind(self) -> None:
        """Listen, without the look-up of the machine's name that the standard library's server does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def start(self) -> None:
        """Serve in a thread until `stop`."""
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """Take no more connections, and wait for the answers that are on their way."""
        self.shutdown()
        self.server_close()
        with self._idle:
            self._idle.wait_for(lambda: self._answering == 0, seconds)

    def begun(self, difference: int) -> None:
        """Count the requests that are being answered."""
        with self._idle:
            self._answering += difference
            self._idle.notify_all()

    # called by the standard library

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: D102
        if not self._slots.acquire(blocking=False):
            body = HttpError(503, "Too many connections; close some, or try again.").answer().bytes()
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
            request.settimeout(0.2)
            request.sendall(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: D102
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that hangs up is no news."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()


class _Source(io.RawIOBase):
    """What a sender sends, within the bounds of time and size."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection, self._limits = connection, limits
        self.begin()

    def begin(self) -> None:
        """The next request is awaited."""
        self._started = False
        self._left = self._limits.head
        self._deadline = time.monotonic() + self._limits.idle

    def expect(self, size: int) -> None:
        """A body of this size is allowed."""
        self._left += size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0 or self._left <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        got = self._connection.recv_into(buffer)
        self._left -= got
        if got and not self._started:
            self._started = True
            self._deadline = time.monotonic() + self._limits.reading
        return got


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one write
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._source = _Source(self.connection, self.server.limits)
        self.rfile = io.BufferedReader(self._source, 8192)  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        self._source.begin()
        self._unread = False
        self._continue = False
        super().handle_one_request()

    def handle_expect_100(self) -> bool:
        self._continue = True  # said when the body is read, not before the request is checked
        return True

    def version_string(self) -> str:
        return "ttc-esopt"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself, in our shape."""
        self.close_connection = True
        self._send(HttpError(int(code), message or HTTPStatus(code).phrase).answer())

    def _serve(self) -> None:
        self.server.begun(1)
        try:
            try:
                answer = self._answer()
            except HttpError as error:
                answer = error.answer()
            except TimeoutError:
                self.close_connection = True
                answer = HttpError(408, f"The request did not come within {self.server.limits.reading:g} s.").answer()
            except OSError:
                self.close_connection = True
                return
            except TtcEsoptError as error:
                answer = HttpError(500, str(error)).answer()
            except Exception:
                traceback.print_exc()
                answer = HttpError(500, "The server failed; its messages on the terminal say why.").answer()
            self._send(answer)
        finally:
            self.server.begun(-1)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _serve

    def _answer(self) -> Answer:
        length = self._length()
        self._unread = length > 0 or "Transfer-Encoding" in self.headers
        self._check_sender()
        path = self.path.partition("?")[0]
        path = path.rstrip("/") or "/"
        if path != "/health":
            self._check_token()
        if path not in self.server.routes:
            shown = "".join(letter for letter in path[:80] if letter.isprintable())
            known = ", ".join(self.server.routes)
            raise HttpError(404, f"Expected one of the paths {known}, got {shown}.", code="unknown_path")
        method, function = self.server.routes[path]
        if self.command != method:
            raise HttpError(405, f"Expected {method} {path}, got {self.command}.", param=method)
        body = parsed(self._read(length)) if method == "POST" else None
        return function(Call(self.headers, body, self._gone))

    def _length(self) -> int:
        """The size of the body. What two parsers could read in two ways is refused."""
        given = self.headers.get_all("Content-Length") or []
        self.close_connection = self.close_connection or len(given) > 1
        if "Transfer-Encoding" in self.headers:
            self.close_connection = self._unread = True
            raise HttpError(411, "Expected a body with a Content-Length, not in chunks (Transfer-Encoding).")
        text = given[0].strip() if given else "0"
        if len(given) > 1 or not (text.isascii() and text.isdigit() and len(text) < 20):
            self.close_connection = self._unread = True
            raise HttpError(400, "Expected one Content-Length, a whole number.")
        if int(text) > self.server.limits.body:
            self.close_connection = self._unread = True
            raise HttpError(413, f"Expected a body of at most {self.server.limits.body} bytes, got {text}.")
        return int(text)

    def _check_sender(self) -> None:
        """Web pages are kept out: those that send here, and those whose host name was made to point here."""
        hosts = self.headers.get_all("Host") or []
        kept, self.close_connection = self.close_connection, True  # strangers get one answer
        if len(hosts) > 1 or (not hosts and self.request_version >= "HTTP/1.1"):
            raise HttpError(400, "Expected one Host header.")
        if self.server.loopback and hosts and not is_loopback(_name("//" + hosts[0])):
            raise HttpError(403, "Expected the Host header localhost, 127.0.0.1 or [::1]: DNS rebinding is refused.")
        for origin in self.headers.get_all("Origin") or []:
            if not is_loopback(_name(origin)):
                raise HttpError(403, "Web pages of other origins are refused (Origin header).")
        self.close_connection = kept

    def _check_token(self) -> None:
        token = self.server.token
        if token is None:
            return
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        given = [self.headers.get("X-Api-Key", ""), bearer.strip() if kind.lower() == "bearer" else ""]
        fits = [hmac.compare_digest(one.encode("utf-8", "replace"), token.encode()) for one in given]
        if not any(fits):
            raise HttpError(401, "Expected the token of the server: Authorization: Bearer TOKEN, or X-Api-Key: TOKEN.")

    def _read(self, length: int) -> bytes:
        if self._continue:
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        self._source.expect(length)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            raise HttpError(400, f"Expected a body of {length} bytes, got {len(body)}.")
        self._unread = False
        return body

    def _gone(self) -> bool:
        """Whether the sender has closed the connection."""
        try:
            waiting = select.poll()  # unlike select() it takes descriptors of any number
            waiting.register(self.connection, select.POLLIN)
            if not waiting.poll(0):
                return False
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (OSError, ValueError):
            return True

    def _send(self, answer: Answer) -> None:
        body = answer.bytes()
        self.close_connection = self.close_connection or self._unread or self.command == "HEAD"
        try:
            self.connection.settimeout(self.server.limits.writing)
            self.send_response(answer.status)
            fixed = {"Content-Type": answer.kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
                     "X-Content-Type-Options": "nosniff"}  # fmt: skip
            for name, value in {**fixed, **answer.headers}.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)
            self.wfile.flush()
            if self._unread:
                self._drain()
        except OSError:
            self.close_connection = True

    def _drain(self) -> None:
        """Take a little of a refused body: a connection closed over unread bytes loses the answer on its way."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 2
        for _ in range(256):
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            if not self.connection.recv(65536):
                return


def is_loopback(host: str) -> bool:
    """Whether a host, by its name or address, can only be this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(url: str) -> str:
    """The host in a URL, empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _checked_token(token: str | None, host: str, loopback: bool) -> str | None:
    if token is None:
        if not loopback:
            raise ConfigurationError(
                f"Listening on {host} lets other machines in: a token is needed (TTC_ESOPT_TOKEN, or --token)."
            )
        return None
    if len(token) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in token):
        raise ConfigurationError(
            f"Expected a token of at least {SHORTEST_TOKEN} letters, digits and signs without blanks "
            "(TTC_ESOPT_TOKEN, or --token)."
        )
    return token
