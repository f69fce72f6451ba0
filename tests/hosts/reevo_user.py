"""The double of ReEvo, attached to a client in this process; what its tests share."""

import contextlib
import importlib
import json
import shutil
import sys
from pathlib import Path
from random import Random

from fake_client import FakeClient
from stand_in import StandInEngine

from ttc_esopt.engines.base import Reply
from ttc_esopt.scaffolds.hosts import reevo as adapter
from ttc_esopt.scaffolds.hosts.attachment import Attachment

DOUBLE = Path(__file__).parent / "reevo_double"
MODULES = ("main", "reevo", "utils", "utils.utils", "utils.llm_client", "utils.llm_client.base")


def program(value):
    return f"Here it is:\n```python\ndef grow_v2(x):\n    return x * {value}\n```"


def improving(operator, prompt, number):
    return "Make it smaller." if operator == "reflection" else program(50 - number)


@contextlib.contextmanager
def double(tmp_path, monkeypatch):
    """A function that runs the double with a client attached; the client is returned, `.best` being the result."""
    checkout = shutil.copytree(DOUBLE, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path / "outputs")
    monkeypatch.syspath_prepend(checkout)
    monkeypatch.setattr(adapter, "_attached", None)
    attached = []

    def undo():
        while attached:
            attached.pop().restore()
        for name in MODULES:
            sys.modules.pop(name, None)

    def run(writer=improving, given=None, before=None, **options):
        undo()
        client = FakeClient(writer, **{"parser": "ours"} | options)
        attachment = Attachment(client, adapter.HOOKS)
        attached.append(attachment)
        attachment.begin()
        main = importlib.import_module("main")
        if before is not None:
            before(client)
        settings = dict(given or {})
        if callable(settings.get("mutation")):
            settings["mutation"] = settings["mutation"]()
        client.best = main.main(**settings)
        return client

    yield run
    undo()


class Grower(StandInEngine):
    """Writes programs whose factor follows weight 1, as the chat's request wants them."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def generate(self, requests, sampling, progress=None):
        replies = []
        for request in requests:
            value = 5 + Random(request.seed).random() + float(self.weights(request.direction, request.sigma)[1])
            replies.append(Reply(self.text.format(value=value), 10, 10, "stop"))
        return replies


def samples(folder):
    (path,) = folder.rglob("samples.jsonl")
    history = path.with_name("history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in path.read_text().splitlines()], [json.loads(line) for line in history]
