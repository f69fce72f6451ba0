"""Tests with the real vLLM: in an environment that has it (docs/vllm.md); elsewhere they are skipped as a whole."""

import contextlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # engine and worker in this process: loads in seconds
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    from tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32)


@pytest.fixture
def opened(folder):
    """Opens engines, of vLLM unless another is named, and closes them at the end of the test."""
    from two_ranks import ARGS

    from ttc_esopt.engines import load_engine
    from ttc_esopt.es.noise import NoiseKind

    with contextlib.ExitStack() as stack:

        def load(noise="lowrank:1", engine="vllm", model=folder, args=None, **further):
            if engine == "vllm":
                further["engine_args"] = ARGS | (args or {})
            kind = NoiseKind.parse(noise)
            return stack.enter_context(
                contextlib.closing(load_engine(str(model), engine=engine, noise=kind, threads=1, **further))
            )

        yield load
