"""Who reaches the engine: the host's own process, and nothing that it evaluates, in any strength of the sandbox."""

import json
import os
import subprocess
import sys
import threading

import pytest

from ttc_esopt.attached.options import host_options
from ttc_esopt.attached.service import Service
from ttc_esopt.attached.session import Session
from ttc_esopt.scaffolds.hosts.client import Client, HostError

HOST = """
import gc, json, os, re, sys
from ttc_esopt.scaffolds.hosts.client import Client
from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate

client = Client.from_environment()
client.say("it is open")
held = (client._address, client._key.hex())

def look(code):
    found = []
    for pid in ("self", str(os.getppid())):
        try:
            found += re.findall("ttc-esopt-engine", open(f"/proc/{pid}/environ", errors="replace").read())
        except OSError:
            pass
    gc.unfreeze()
    clients = [one for one in gc.get_objects() if isinstance(one, Client)]
    found += [str(one.__dict__) for one in clients if one._address or one._key]
    if found or not clients:
        raise ValueError(str(found))
    return 1.0

outcome = evaluate(look, ["x = 1"], timeout=20, processes=1, isolation=Isolation(sys.argv[1], 1024, ()))[0]
client.say("and still is")
print(outcome.value, outcome.detail)
"""


@pytest.fixture
def service():
    given, options = host_options({})
    one = Service(Session(given, options, say=lambda line: None))
    yield one
    one.close()


@pytest.mark.parametrize("mode", ["auto", "limits", "off"])
def test_a_candidate_finds_neither_address_nor_key(service, mode, tmp_path):
    with open(tmp_path / "told", "w+") as told:
        told.write(service.told())
        told.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-c", HOST, mode], stdout=subprocess.PIPE, text=True, pass_fds=[told.fileno()],
            env={**os.environ, "TTC_ESOPT_HOST": str(told.fileno())},
        )  # fmt: skip
    service.host = process.pid
    assert process.communicate(timeout=60)[0].startswith("1.0")


def test_another_process_is_refused_even_with_the_key(service):
    service.host = os.getpid()
    Client(service.address, service.key, {}).say("the host is there")
    code = f"""
from ttc_esopt.scaffolds.hosts.client import Client, HostError
try:
    Client({service.address!r}, {service.key!r}, {{}}).say("forged")
except HostError as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("refused:"), done.stdout + done.stderr


def test_closing_leaves_no_thread_waiting():
    given, options = host_options({})
    before = threading.active_count()
    for _ in range(3):
        Service(Session(given, options, say=lambda line: None)).close()
    assert threading.active_count() == before


def test_a_wrong_key_is_refused_and_unknown_messages_are_one_sentence(service):
    service.host = os.getpid()
    with pytest.raises((HostError, Exception), match="digest|ended|rejected"):
        Client(service.address, b"wrong", {}).say("hello")
    client = Client(service.address, service.key, {})
    with pytest.raises(HostError, match="Unknown message 'close'"):
        client._call("close")
    with pytest.raises(HostError, match="before it announced"):
        client.tell([])
    assert json.loads(service.told())["options"] == service.session.options
