"""What a server refuses, from whom, and what it survives."""

import contextlib
import json
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest
from serving import EOH, HELLO, TOKEN, Recording, serving

from ttc_esopt.attached.http_server import Limits, Server
from ttc_esopt.errors import ConfigurationError


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path) as start:
        yield start


# -- wrong requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/completions", {}, "prompt"),
        ("/completions", {"prompt": 7}, "prompt"),
        ("/completions", {**EOH, "repeat_prompt": 0}, "repeat_prompt"),
        ("/completions", {**EOH, "repeat_prompt": 1000}, "repeat_prompt"),
        ("/completions", {**EOH, "params": []}, "list"),
        ("/completions", {**EOH, "params": {"temperature": "hot"}}, "temperature"),
        ("/completions", [], "object"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": ["hi"]}, "role"),
        ("/v1/chat/completions", {"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ("/v1/chat/completions", {"messages": [{"role": ["user"], "content": "x"}]}, "role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}, "content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ("/v1/chat/completions", {**HELLO, "n": 0}, "n as"),
        ("/v1/chat/completions", {**HELLO, "n": 65}, "n as"),
        ("/v1/chat/completions", {**HELLO, "n": True}, "n as"),
        ("/v1/chat/completions", {**HELLO, "n": 1.0}, "n as"),
        ("/v1/chat/completions", {**HELLO, "temperature": -1}, "temperature"),
        ("/v1/chat/completions", {**HELLO, "temperature": float("nan")}, "temperature"),
        ("/v1/chat/completions", {**HELLO, "top_p": 1.5}, "top_p"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {**HELLO, "stop": [""]}, "stop"),
        ("/v1/chat/completions", {**HELLO, "stop": {"a": 1}}, "stop"),
        ("/v1/chat/completions", {**HELLO, "seed": "x"}, "seed"),
        ("/v1/chat/completions", {**HELLO, "seed": 1 << 70}, "seed"),
        ("/v1/chat/completions", {**HELLO, "stream": "yes"}, "stream"),
        ("/v1/chat/completions", {**HELLO, "stream": 1}, "stream"),
        ("/v1/chat/completions", {**HELLO, "model": 3}, "model"),
        ("/v1/chat/completions", {**HELLO, "tools": [{}]}, "tools"),
        ("/v1/chat/completions", {**HELLO, "logprobs": True}, "logprobs"),
        ("/v1/chat/completions", {**HELLO, "logit_bias": {"5": 3}}, "logit_bias"),
        ("/v1/chat/completions", {**HELLO, "frequency_penalty": 0.5}, "frequency_penalty"),
        ("/v1/chat/completions", {**HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 40, "n": 2}, "64"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, "best_of"),
        ("/v1/completions", b"", "JSON"),
        ("/v1/completions", b"{", "JSON"),
        ("/v1/completions", b"[" * 200_000, "JSON"),
        ("/v1/completions", b'{"prompt": ' + b"9" * 5000 + b"}", "JSON"),
        ("/v1/completions", b'{"prompt": "\xff\xfe"}', "UTF-8"),
        ("/v1/completions", b'{"prompt": "\\ud800"}', "UTF-8"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_costs_no_direction(served, path, body, word):
    client = served()
    assert word in client.wrong(path, body)
    assert client.engine.requests == [] and client.state()["asked"] == 0


@pytest.mark.parametrize("headers", [{"X_Esopt": "maybe"}, {"X_Esopt_Operator": "a b"}, {"X_Esopt_Operator": "x" * 50},
                                     {"X_Esopt_Parent": "nan"}])  # fmt: skip
def test_wrong_header_fields_are_refused(served, headers):
    client = served()
    assert "X-Esopt" in client.wrong("/completions", EOH, **headers)


def test_what_the_engine_refuses_is_told_to_the_client(served):
    class Refusing(Recording):
        def generate(self, requests, sampling, progress=None):
            raise ConfigurationError("The chat template refuses these messages.")

    client = served(engine=Refusing())
    assert "chat template" in client.wrong("/v1/chat/completions", HELLO)


@pytest.mark.parametrize("path", ["/", "/v1", "/completions/../es/state", "/%2e%2e/etc/passwd", "/v1/models/../../x",
                                  "//v1/nothing", "/es", "/es/tell%00"])  # fmt: skip
def test_unknown_paths_are_404_and_say_what_there_is(served, path):
    client = served()
    status, value, _ = client.send("GET", path)
    assert status == 404 and "/v1/chat/completions" in value["error"]["message"]


def test_wrong_methods_are_405(served):
    client = served()
    status, value, headers = client.send("GET", "/completions")
    assert status == 405 and headers["Allow"] == "POST"
    assert client.send("DELETE", "/v1/models")[0] == 405
    assert client.send("POST", "/es/state", {})[0] == 405
    assert client.send("BREW", "/health")[0] == 501


# -- who may ask -----------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_everywhere_but_at_health(served):
    client = served(token=TOKEN)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"X_Api_Key": "é"},
                    {"X_Api_Key": TOKEN + "x"}, {"Authorization": TOKEN}):  # fmt: skip
        assert "token" in client.wrong("/v1/chat/completions", HELLO, 401, **headers)
    assert client.send("GET", "/nothing")[0] == 401
    client.ok("/v1/chat/completions", HELLO, Authorization=f"Bearer {TOKEN}")
    client.ok("/v1/chat/completions", HELLO, X_Api_Key=TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_other_machines_are_let_in_with_a_token_only(host):
    with pytest.raises(ConfigurationError, match="a token is needed"):
        Server(host, 0, {})


@pytest.mark.parametrize("token", ["short", "", "white space in a token", "ключ-ключ-ключ-ключ", "x" * 20 + "\n"])
def test_weak_tokens_are_refused(token):
    with pytest.raises(ConfigurationError, match="token of at least 16"):
        Server("127.0.0.1", 0, {}, token)


def test_a_port_that_is_taken_is_one_sentence(served):
    client = served()
    with pytest.raises(ConfigurationError, match="in use"):
        Server("127.0.0.1", client.port, {})


def test_pages_of_other_origins_are_refused_and_get_no_permission(served):
    client = served()
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[", "file://"):
        status, value, headers = client.send("POST", "/v1/chat/completions", HELLO, {"Origin": origin})
        assert status == 403 and "Origin" in value["error"]["message"]
        assert not any(name.lower().startswith("access-control") for name in headers)
    assert client.send("OPTIONS", "/completions", headers={"Origin": "https://evil.example"})[0] == 403
    for origin in ("http://localhost:3000", "http://127.0.0.1:8888", "http://[::1]:1"):
        status, _, headers = client.send("POST", "/v1/chat/completions", HELLO, {"Origin": origin})
        assert status == 200 and not any(name.lower().startswith("access-control") for name in headers)


def test_host_names_that_point_here_are_refused(served):
    client = served()
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "", "a@b",
                 "169.254.1.1", "[::2]:80"):  # fmt: skip
        assert "Host" in client.wrong("/v1/chat/completions", HELLO, 403, Host=host)
    for host in ("localhost:1", "127.0.0.1", "[::1]:80", "127.8.8.8", "LOCALHOST"):
        client.ok("/v1/chat/completions", HELLO, Host=host)
    assert client.raw(b"GET /health HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 400")
    assert client.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n").startswith("HTTP/1.1 400")


# -- who would break it ----------------------------------------------------------------------------------------------

SHORT = Limits(body=2000, head=3000, reading=0.6, idle=1.0, writing=2.0, connections=4)
HEAD = b"POST /es/tell HTTP/1.1\r\nHost: localhost\r\n"


def test_large_bodies_are_refused_by_their_announcement(served):
    client = served(limits=SHORT)
    assert client.raw(HEAD + b"Content-Length: 2001\r\n\r\n").startswith("HTTP/1.1 413")
    assert "2000 bytes" in client.wrong("/es/tell", b" " * 100_000, 413)
    assert client.raw(HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n").startswith("HTTP/1.1 400")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"Content-Length: -1\r\n\r\n", 400),
        (b"Content-Length: +5\r\n\r\nhello", 400),
        (b"Content-Length: 5_0\r\n\r\nhello", 400),
        (b"Content-Length: five\r\n\r\n", 400),
        (b"Content-Length: 50\r\n\r\nhello", 408),
    ],
)
def test_bodies_of_doubtful_size_are_refused_and_the_connection_closed(served, fields, status):
    client = served(limits=SHORT)
    answer = client.raw(HEAD + fields)
    assert answer.startswith(f"HTTP/1.1 {status} ") and "Connection: close" in answer and answer.count("HTTP/1.1") == 1


def test_a_body_is_waited_for_only_when_it_will_be_read(served):
    client = served(limits=SHORT)
    refused = client.raw(HEAD.replace(b"localhost", b"evil") + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert refused.startswith("HTTP/1.1 403")
    taken = client.raw(HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello")
    assert taken.startswith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400")


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n",
                                  b"GET " + b"a" * 2500 + b" HTTP/1.1\r\n" + b"x: y\r\n" * 400, b"\r\n" * 50,
                                  b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                  b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 150 + b"\r\n"])  # fmt: skip
def test_what_is_no_request_ends_the_connection_and_nothing_else(served, data):
    client = served(limits=SHORT)
    answer = client.raw(data)
    assert "200 OK" not in answer and "Traceback" not in answer
    assert client.send("GET", "/health")[0] == 200


def test_a_sender_that_drips_is_cut_off(served):
    client = served(limits=SHORT)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", client.port), timeout=5) as drip:
        drip.sendall(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 5:
                drip.sendall(b"a")
                time.sleep(0.1)
        assert time.monotonic() - began < 3


def test_connections_beyond_the_limit_are_told_so_and_come_through_later(served):
    client = served(limits=SHORT)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection(("127.0.0.1", client.port)))
        time.sleep(0.3)
        assert client.raw(b"").startswith("HTTP/1.1 503")
    time.sleep(0.3)
    assert client.send("GET", "/health")[0] == 200


def test_a_full_queue_is_503(served):
    client = served(queue=1)
    client.engine.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ok, "/v1/chat/completions", HELLO)
        time.sleep(0.3)
        status, value, headers = client.send("POST", "/v1/chat/completions", HELLO)
        assert status == 503 and value["error"]["code"] == "queue_full" and headers["Retry-After"]
        assert client.state()["batch"]["dealt"] == 1  # scores and state need no place in the queue
        client.engine.gate.set()
        waiting.result()


def test_a_process_with_more_than_1024_open_files_serves_on(served):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"no more than {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1100):  # what comes after has a descriptor that select() does not take
            stack.enter_context(open(os.devnull))
        assert served().ok("/completions", EOH)["content"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reply_that_nobody_took_goes_to_the_next_who_asks_the_same(served):
    client = served()
    client.engine.gate.clear()
    body = json.dumps(HELLO).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", client.port)) as impatient:
        impatient.sendall(head + body)
        time.sleep(0.3)
    time.sleep(0.1)
    client.engine.gate.set()
    time.sleep(0.3)
    other = client.ok("/v1/chat/completions", {**HELLO, "seed": 8})
    again = client.ok("/v1/chat/completions", HELLO)
    assert again["esopt"]["id"] == 0 and other["esopt"]["id"] == 1
    assert client.ok("/v1/chat/completions", HELLO)["esopt"]["id"] == 2
    assert len(client.engine.requests) == 3


def test_one_connection_serves_many_requests(served):
    client = served()
    connection = HTTPConnection("127.0.0.1", client.port, timeout=10)
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", json.dumps(HELLO))
        assert json.loads(connection.getresponse().read())["choices"]
    connection.request("POST", "/nothing", "{}")
    assert connection.getresponse().status == 404
    connection.close()


def test_at_the_end_only_what_the_open_batch_needs_is_answered(served):
    client = served(directions=2)
    first = client.ok("/completions", EOH)["esopt"][0]["id"]
    client.api.ending = True
    second = client.ok("/v1/chat/completions", HELLO)["esopt"]["id"]
    assert "ending" in client.wrong("/v1/chat/completions", HELLO, 503)
    client.ok("/es/tell", [{"id": first, "objective": 1}, {"id": second, "objective": 2}])
    assert client.state()["step"] == 1
