"""`serve` as a command: how it starts, ends, and goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection

import pytest
from in_this_process import typed
from serving import HELLO, TOKEN
from tiny_model import make_tiny_model


def command(*arguments, **options):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **options}
    return subprocess.Popen(
        [sys.executable, "-m", "ttc_esopt.cli.main", "serve", *map(str, arguments)], text=True, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


class Running:
    """A server process that has said where it listens."""

    def __init__(self, *arguments):
        self.process = command(*arguments, "--port", 0, "--token", TOKEN, TTC_ESOPT_TOKEN="another-token-entirely")
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"listening on http://127.0.0.1:(\d+), with the token", line):
                self.port = int(found[1])
                return
        raise AssertionError("".join(self.said))

    def post(self, path, body):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def end(self):
        rest = self.process.communicate(timeout=60)[0]
        return self.process.returncode, "".join(self.said) + rest


def test_ctrl_c_ends_after_the_running_batch_and_continue_goes_on(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    out = tmp_path / "out"
    options = ("--model", model, "--esopt", "--out", out, "--directions", 2, "--steps", 3, "--max-tokens", 8)
    running = Running(*options)
    chat = {**HELLO, "messages": [{"role": "system", "content": "the lazy dog"}, *HELLO["messages"]]}
    ids = [running.post("/v1/chat/completions", chat)[1]["esopt"]["id"]]
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    ids.append(running.post("/v1/chat/completions", chat)[1]["esopt"]["id"])
    assert running.post("/v1/chat/completions", chat)[0] == 503
    status, told = running.post("/es/tell", [{"id": id, "reward": float(id)} for id in ids])
    code, said = running.end()
    assert status == 200 and told["step"]["taken"] and code == 0, said
    assert "ending after the running batch" in said and said.splitlines()[-1].startswith("results: ")
    stored = (out / "run.toml").read_text()
    assert TOKEN not in said + stored and "--token ..." in stored and "--max-tokens 8" in stored
    process = command(*options[:-4], "--steps", 4, "--max-tokens", 8, "--continue")
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and "has 3 steps, this command 4" in said and len(said.strip().splitlines()) == 1
    again = Running(*options, "--continue")
    state = HTTPConnection("127.0.0.1", again.port, timeout=60)
    state.request("GET", "/es/state", headers={"X-Api-Key": TOKEN})
    assert json.loads(state.getresponse().read())["step"] == 1
    again.post("/v1/chat/completions", chat)
    for _ in range(2):  # the second Ctrl-C does not wait for the open batch
        again.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    code, said = again.end()
    assert code == 1 and "stopped at once" in said
    assert len((out / "history.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "a token is needed"),
        (("--token", "short"), "16"),
        (("--es-match", "("), "--es-match"),
        (("--steps", "0"), "--steps"),
        (("--batch-timeout", "nan"), "--batch-timeout"),
        (("--continue",), "holds no run"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setenv("TTC_ESOPT_TOKEN", "")
    done = typed("serve", "--out", tmp_path / "x", *arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 2 and message in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
