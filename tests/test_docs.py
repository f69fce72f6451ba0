"""The documentation's commands exist and its code runs as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for line in block.splitlines()
    if line.startswith("ttc-esopt ")
]


def execute(code, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=900)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "smollm2" not in block])
def test_python_of_the_docs_runs(block, tmp_path):
    done = execute(block, tmp_path)
    assert done.returncode == 0, done.stderr
    if "squared distance" in block:
        before, after = (float(x) for x in re.findall(r"\d+\.\d+", done.stdout))
        assert after < before / 10


@pytest.mark.model
@pytest.mark.parametrize("block", [block for block in BLOCKS if "smollm2" in block])
def test_python_of_the_docs_runs_with_the_real_model(block, tmp_path):
    done = execute(block.replace("budget=120", "budget=28, directions=4, max_tokens=32"), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_names_options_that_exist(command):
    words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "ttc_esopt.cli.main", words[1], "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    for word in words[2:]:
        if word.startswith("--"):
            assert word in done.stdout, f"{word} is no option of {words[1]}"
