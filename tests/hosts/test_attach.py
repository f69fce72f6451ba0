"""`with ttc_esopt.attach(...)`: two lines around a host's run, with a real (tiny) model in a process of its own."""

import json
import subprocess
import sys

import pytest
from eoh2_user import DOUBLE, user_script
from tiny_model import make_tiny_model

NOTEBOOK = """
import os, signal, sys
sys.path[:0] = [HOST, FOLDER]
import ttc_esopt
import eoh.eoh.eoh as loop
from eoh import EoH, LLMConfig
from prob import Choose

def search():
    EoH(llm=LLMConfig(), problem=Choose(timeout=5, n_processes=2), pop_size=2, n_pop=2, output_dir=FOLDER,
        use_seed=True, seed_path=FOLDER + "/seeds.json").run()

original = loop.Evolution, loop.EOH.run
with ttc_esopt.attach(model=MODEL, esopt=True, directions=3, max_tokens=8, prefill=False, chat_template=False, seed=3):
    assert loop.Evolution is not original[0]
    INSIDE
    search()
    print("inside")
assert (loop.Evolution, loop.EOH.run) == original
assert not {"torch", "transformers", "numba"} & set(sys.modules)
print("restored")
"""


def notebook(folder, inside="pass"):
    user_script(folder, str(DOUBLE))
    make_tiny_model(folder / "model")
    seeds = [{"algorithm": "two", "code": "def choose(x):\n    return 2 * x"}, {"code": "def choose(x):\n    return 3"}]
    (folder / "seeds.json").write_text(json.dumps(seeds))
    text = NOTEBOOK.replace("HOST", repr(str(DOUBLE))).replace("FOLDER", repr(str(folder)))
    (folder / "notebook.py").write_text(text.replace("MODEL", repr(str(folder / "model"))).replace("INSIDE", inside))
    return subprocess.run(
        [sys.executable, folder / "notebook.py"], capture_output=True, text=True, timeout=200, cwd=folder
    )


def test_the_block_attaches_and_leaving_it_restores_the_host(tmp_path):
    done = notebook(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inside" in done.stdout and "restored" in done.stdout
    assert "candidates in all: 14" in done.stdout and "ES steps taken" in done.stdout
    ours = tmp_path / "results" / "ttc_esopt"
    lines = [json.loads(line) for line in (ours / "samples.jsonl").read_text().splitlines()]
    assert [line["operator"] for line in lines[:2]] == ["seed", "seed"] and len(lines) == 16
    assert len((ours / "history.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "results" / "pops" / "population_generation_2.json").exists()


def test_ctrl_c_once_ends_after_the_running_batch_without_an_error(tmp_path):
    done = notebook(tmp_path, "os.kill(os.getpid(), signal.SIGINT)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interrupted" in done.stdout and "inside" not in done.stdout and "restored" in done.stdout


@pytest.mark.parametrize("wrong", ["directions='many'", "parser='theirs'", "sigm=1", "model='no/such/folder'"])
def test_a_wrong_setting_is_one_sentence(tmp_path, wrong):
    block = f"    with ttc_esopt.attach({wrong}): pass"
    code = f"import ttc_esopt\ntry:\n{block}\nexcept BaseException as e: print(repr(e))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stdout.startswith("HostError(") and len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
