"""OpenEvolve's evaluator: score a program, and tell the score to the model that wrote it."""

import json
import math
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

SERVER = os.environ.get("TTC_ESOPT_URL", "http://127.0.0.1:8000")
TOKEN = os.environ.get("TTC_ESOPT_TOKEN", "")
SECONDS = 20


def evaluate(program_path):
    code = Path(program_path).read_text()
    bins = packed(program_path)
    tell(code, bins)
    return {"combined_score": 1 / bins if bins else 0.0, "bins": bins or 0.0}


def packed(program_path):
    """The number of bins, or None if the program fails."""
    script = Path(__file__).with_name("pack.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", script, program_path], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        bins = float(done.stdout.split()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None
    return bins if math.isfinite(bins) else None


def tell(code, objective):
    """The objective is minimised; None says that the program is invalid."""
    body = json.dumps({"code": code, "objective": objective}).encode()
    request = urllib.request.Request(f"{SERVER}/es/tell", body, {"X-Api-Key": TOKEN})
    try:
        urllib.request.urlopen(request, timeout=600).close()
    except urllib.error.HTTPError as error:
        if error.code != 404:  # 404: not written by the model, such as the initial program
            print("score not taken:", error.read().decode(), file=sys.stderr)
