"""A server on a stand-in engine, and a client for it."""

import contextlib
import json
import socket
import threading
from http.client import HTTPConnection

from stand_in import StandInEngine

from ttc_esopt.attached.http_api import Api, Offer
from ttc_esopt.attached.http_server import Server
from ttc_esopt.attached.options import host_options
from ttc_esopt.attached.session import Session

TOKEN = "a-token-of-24-characters"
HELLO = {"messages": [{"role": "user", "content": "Write a function."}]}
EOH = {
    "prompt": "Write a function.", "repeat_prompt": 1,
    "params": {"do_sample": True, "temperature": None, "top_k": None, "top_p": None, "add_special_tokens": False,
               "skip_special_tokens": True},
}  # fmt: skip


class Recording(StandInEngine):
    """Keeps what it is asked; may be made to wait."""

    def __init__(self):
        super().__init__()
        self.base[0] = 1.0  # always a program
        self.requests, self.samplings, self.sizes = [], [], []
        self.gate = threading.Event()
        self.gate.set()

    def generate(self, requests, sampling, progress=None):
        self.gate.wait(30)
        self.requests += requests
        self.samplings += [sampling] * len(requests)
        self.sizes.append(len(requests))
        return super().generate(requests, sampling, progress)


class Client:
    """Talks to one server as a host would."""

    def __init__(self, server, engine, api, session):
        self.server, self.engine, self.api, self.session = server, engine, api, session
        self.port = server.server_address[1]

    def send(self, method, path, body=None, headers=None):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        fits = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if fits else text.decode(), answer.headers

    def post(self, path, body, **headers):
        status, value, _ = self.send("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        return status, value

    def ok(self, path, body, **headers):
        status, value = self.post(path, body, **headers)
        assert status == 200, value
        return value

    def wrong(self, path, body, status=400, **headers):
        got, value = self.post(path, body, **headers)
        assert got == status, value
        assert set(value) == {"error"} and set(value["error"]) == {"message", "type", "param", "code"}
        return value["error"]["message"]

    def state(self):
        return self.send("GET", "/es/state")[1]

    def raw(self, data, wait=5.0):
        """Everything that comes back for these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as one:
            one.sendall(data)
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := one.recv(65536):
                    received += part
            return received.decode()


@contextlib.contextmanager
def serving(folder):
    """Starts servers on a stand-in engine; everything is closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(
            *, arm="esopt", directions=3, replies=1, steps=4, timeout=0.0, token=None, limits=None, function=None,
            start="", host="127.0.0.1", engine=None, go_on=False, **service,
        ):  # fmt: skip
            engine = engine or Recording()
            given = {"arm": arm, "directions": directions, "replies_per_direction": replies, "sigma": 0.05,
                     "max_tokens": 64, "model": "smollm2-135m", "prefill": bool(start)}  # fmt: skip
            given, options = host_options(given, parser="ours" if function or start else "host")
            session = Session(
                given, options, out=folder / "run", say=lambda _: None, batch_timeout=timeout, engine=engine
            )
            session.hello({
                "host": "HTTP", "version": "1.1", "problem": "requests", "folder": "", "function": function,
                "kind": "function", "prefill": start, "candidates": 12, "host_candidates": 12, "steps": steps,
                "largest_batch": directions, "population": 0, "generations": 0, "lines": [],
                "continued": {"generation": None} if go_on else None,
            })  # fmt: skip
            stack.callback(session.close)
            told = Offer("tiny", 64, reads=function is not None, start=start, **service)
            api = Api(session.ledger, told)
            server = Server(host, 0, api.routes(), token, limits)
            server.start()
            stack.callback(server.stop, 5)
            return Client(server, engine, api, session)

        yield start


def lines(client, name="samples"):
    return [json.loads(line) for line in (client.session.folder.path / f"{name}.jsonl").read_text().splitlines()]
