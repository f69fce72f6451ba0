"""vLLM in processes of its own: two tensor-parallel ranks, its server, and runs by the command line."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from test_vllm_engine import flat
from two_ranks import STEPS, history

HERE = Path(__file__).parent
APART = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
@pytest.mark.parametrize("noise", ["lowrank:1", "full"])
def test_two_ranks_are_the_same_model_as_one(opened, folder, tmp_path, noise):
    """Noise made for each rank by itself would repeat across ranks, and depend on their number."""
    command = [sys.executable, HERE / "two_ranks.py", folder, noise, tmp_path / "out"]
    done = subprocess.run(command, env=os.environ | APART, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    *told, measures = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[")))
    oracle = opened(noise, "transformers")
    *expected, figures = json.loads(json.dumps(history(oracle)))
    assert told == expected
    assert flat(measures) == pytest.approx(flat(figures))
    again = opened(noise, "transformers", model=tmp_path / "out")
    assert again.fingerprint() == oracle.fingerprint() and again.sha256() == oracle.sha256()


@contextlib.contextmanager
def server(folder, port):
    """vLLM's own server with our part in its workers."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "256",
        "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 << 20),
        "--worker-extension-cls", "ttc_esopt.engines.vllm_worker.EsWorker",
    ]  # fmt: skip
    env = os.environ | APART | {"VLLM_SERVER_DEV_MODE": "1"}
    log = Path(folder).parent / "server.log"
    with log.open("w") as stream, subprocess.Popen(
        [str(word) for word in command], env=env, stdout=stream, stderr=stream, start_new_session=True
    ) as process:  # fmt: skip
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                assert process.poll() is None, log.read_text()[-3000:]
                time.sleep(0.5)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_server_of_vllm_takes_steps_over_its_own_rpc(opened, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def post(path, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return json.loads(urllib.request.urlopen(request, timeout=120).read() or "null")

    def call(method, *args):
        body = {"method": method, "args": list(args), "kwargs": {}, "timeout": 60}
        return post("/collective_rpc", body)["results"][0]

    oracle = opened("full", "transformers")
    ask = {"model": "tiny", "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 8, "return_token_ids": True}
    with server(folder, port):
        facts = call("es_attach", str(folder), "full", "all")
        assert facts["parameters"] == 106560
        before = post("/v1/completions", ask | {"cache_salt": "0"})["choices"][0]["token_ids"]
        for step in STEPS:
            call("es_step", *step)
            oracle.step(*step)
        assert call("es_fingerprint") == oracle.fingerprint()
        assert post("/v1/completions", ask | {"cache_salt": "1"})["choices"][0]["token_ids"] != before
        call("es_rewind", [])
        assert post("/v1/completions", ask | {"cache_salt": "2"})["choices"][0]["token_ids"] == before
