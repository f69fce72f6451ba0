"""The Triton kernels have the bits of the CPU's: by Triton's interpreter, where Triton is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_for_cuda_have_the_bits_of_the_cpu():
    script = Path(__file__).parent / "gpu" / "check.py"
    done = subprocess.run(
        [sys.executable, script, "--small", "--part", "a"],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and done.stdout.count("ok ") >= 15
