"""A user's EoH 0.2 script and problem, written into a folder; the host is the double or a real checkout."""

from __future__ import annotations

import os
from pathlib import Path

DOUBLE = Path(__file__).parent / "eoh2_double"
CHECKOUT = os.environ.get("TTC_ESOPT_EOH")

PROBLEM = '''
from eoh import BaseProblem

class Choose(BaseProblem):
    template_program = """
import numpy as np

def choose(x: float) -> float:
    return 2 * x
"""
    task_description = "Choose a number."

    def evaluate_program(self, program_str, callable_func):
        EXTRA
        return abs(callable_func(2.0) - 2 * 3.14159)
'''

SCRIPT = """
import os, sys
sys.path.insert(0, HOST)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from eoh import EoH, LLMConfig
from prob import Choose

llm = LLMConfig(api_endpoint="api.example.com", api_key="sk-placeholder", model="gpt")
EoH(llm=llm, problem=Choose(timeout=5, n_processes=PROCESSES), output_dir=os.path.dirname(os.path.abspath(__file__)),
    pop_size=POP, n_pop=GENERATIONS, MORE).run()
print("the script ended")
"""

ALONE = """
import sys

def main():
    sys.path[:0] = [HOST, TESTS, TESTS + "/hosts"]
    import eoh.eoh.evolution as evolution
    from scripted import scripted

    class Model:
        asked = 0
        def __init__(self, *args, **kwargs): pass
        def get_response(self, prompt):
            Model.asked += 1
            return scripted(prompt, Model.asked - 1)

    evolution.InterfaceLLM = Model
    exec(compile(open(SCRIPT).read(), SCRIPT, "exec"), {"__name__": "__main__", "__file__": SCRIPT})

if __name__ == "__main__":  # the host starts its children by spawning
    main()
"""


def hosts() -> list[str]:
    """Folders to put on the path of modules: the double's, and a checkout's if there is one."""
    return [str(DOUBLE)] + ([os.path.join(CHECKOUT, "eoh", "src")] if CHECKOUT else [])


def user_script(
    folder: Path,
    host: str,
    *,
    pop: int = 3,
    generations: int = 2,
    processes: int = 1,
    extra: str = "pass",
    more: str = "",
) -> Path:
    """Write problem and script; returns the script. It has no main guard, as the host's own README has none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prob.py").write_text(PROBLEM.replace("EXTRA", extra))
    script = folder / "runEoH.py"
    text = SCRIPT.replace("HOST", repr(host)).replace("PROCESSES", str(processes)).replace("POP", str(pop))
    script.write_text(text.replace("GENERATIONS", str(generations)).replace("MORE", more))
    return script


def alone(script: Path, host: str) -> Path:
    """A script that runs another one without us, with the scripted model in place of the host's."""
    tests = str(Path(__file__).parents[1])
    path = script.with_name("alone.py")
    text = ALONE.replace("HOST", repr(host)).replace("TESTS", repr(tests)).replace("SCRIPT", repr(str(script)))
    path.write_text(text)
    return path
