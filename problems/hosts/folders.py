"""Problems that are folders of a ReEvo or MCTS-AHD checkout: problems/NAME with its yaml, its prompts and its eval.py.

The host writes a candidate to problems/NAME/gpt.py and calls `python eval.py SIZE ROOT train`; two runs in one
checkout overwrite each other, and the `python` of the path may be another one. Here eval.py runs as a script inside the
sandboxed child, by this interpreter, in a private copy of the folder (links to all but gpt.py); the candidate is its
module `gpt`, and nothing is written to the checkout. As there, the objective is the last but one line that it prints.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.problems.base import WrongShape, describe
from ttc_esopt.problems.hosts.classes import Host, missing_module
from ttc_esopt.problems.hosts.templates import NUMPY, take_apart

_ARGUMENTS = ("config", "problem_size", "timeout")
_VERSION = "2"  # hosts ask for version 2 of a function, given version 1
_DATA_SECONDS = 600.0
# Data sets that the host would make when it first runs; the seed makes them the same in every process.
_MAKE_DATA = """
import random, numpy
from ttc_esopt.evaluation import old_numpy
old_numpy.restore()
random.seed(0)
numpy.random.seed(0)
import gen_inst
gen_inst.generate_datasets()
"""


class ReEvo(Host):
    """One problem of a checkout; `arguments` are config (name of a yaml), problem_size and timeout."""

    def __init__(self, folder: Path, arguments: dict[str, Any]) -> None:
        for name in arguments:
            if name not in _ARGUMENTS:
                raise ConfigurationError(
                    f"Expected {', '.join(_ARGUMENTS)} for a folder of ReEvo, got {name} (--problem-arg)."
                )
        self.folder, self.root = folder, folder.parent.parent
        os.chdir(folder)
        super().__init__()
        self.config = self._config(arguments.get("config"))
        self.host = "MCTS-AHD" if (self.root / "ahd_adapter.py").is_file() else "ReEvo"
        self.size = int(arguments.get("problem_size", self.config.get("problem_size", 0)))
        black_box = self.config.get("problem_type") == "black_box"
        self.script = folder / ("eval_black_box.py" if black_box else "eval.py")
        if not self.script.is_file():
            raise ConfigurationError(f"There is no {self.script} (--problem).")
        self.maximise = self._direction() == "max"
        general = self.root / "cfg" / "config.yaml"
        timeout = arguments.get("timeout") or (_yaml(general).get("timeout") if general.is_file() else None)
        self.timeout = float(timeout or 60.0)
        self.task = str(self.config.get("description", ""))
        prompts = self.root / "prompts" / (folder.name + ("_black_box" if black_box else ""))
        signature = _read(prompts / "func_signature.txt").strip().replace("{version}", _VERSION).rstrip(": ") + ":"
        said = _read(prompts / "func_desc.txt").strip().replace("\\", "\\\\").replace('"""', "'''")
        text = f'{NUMPY}\n\n{signature}\n    """{said}\n    """\n'
        self.template = take_apart(text, f"{prompts}/func_signature.txt")
        seed = prompts / "seed_func.txt"
        if seed.is_file() and (code := self._seed(seed.read_text(encoding="utf-8"))):
            self.seeds.append(("The heuristic that comes with the problem.", code))
        self.read.append(str(self.root))

    def _config(self, name: str | None) -> dict[str, Any]:
        """The problem's yaml: the named one, or the one of the folder's name, or the only one that names the folder."""
        folder = self.root / "cfg" / "problem"
        if name is not None or (folder / f"{self.folder.name}.yaml").is_file():
            return _yaml(folder / f"{name or self.folder.name}.yaml")
        fitting = [c for c in map(_yaml, sorted(folder.glob("*.yaml"))) if c.get("problem_name") == self.folder.name]
        if len(fitting) != 1:
            raise ConfigurationError(
                f"Expected a problem of ReEvo, CHECKOUT/problems/NAME with CHECKOUT/cfg/problem/NAME.yaml, got "
                f"{self.folder} and {len(fitting)} such files (--problem; --problem-arg config=NAME chooses one)."
            )
        return fitting[0]

    def _direction(self) -> str:
        direction = self.config.get("obj_type")
        if direction not in ("min", "max"):
            raise ConfigurationError(f"Expected obj_type min or max in the yaml of {self.folder}, got {direction}.")
        return direction

    def _seed(self, text: str) -> str | None:
        """The seed function under the name that is asked for, with the imports that the host adds."""
        fenced = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
        base = re.sub(r"_v\d+$", "", self.template.entry)
        code = (fenced[1] if fenced else text).strip("\n") + "\n"
        code = re.sub(rf"\b{re.escape(base)}(_v\d+)?(?=\s*\()", self.template.entry, code)
        for word, line in (("torch", "import torch"), ("np", NUMPY)):
            if re.search(rf"\b{word}\b", code) and line not in code:
                code = f"{line}\n{code}"
        try:
            defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        except SyntaxError:
            return None
        return code if self.template.entry in defined else None

    def check(self) -> None:
        """Import all that eval.py needs; raises ConfigurationError that names what is missing."""
        sys.path[:0] = [str(self.folder), str(self.root)]
        self._import(self.script, set())

    def _import(self, file: Path, seen: set[Path]) -> None:
        """Import what a file of the problem imports at its top: once here, then shared by all children."""
        seen.add(file)
        for name in _imports(ast.parse(_read(file))):
            beside = self.folder / f"{name}.py"
            if beside.is_file() and beside not in seen:
                self._import(beside, seen)
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != "gpt":  # the candidate; a module that imports it is left to each child
                    raise missing_module(str(file), error) from error
            except Exception as error:
                raise ConfigurationError(
                    f"{file} imports {name}, which fails: {describe(error)} (--problem)."
                ) from error

    def warm(self) -> None:
        private = Path(tempfile.mkdtemp(prefix="ttc-esopt-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        for entry in self.folder.iterdir():
            if entry.name not in ("gpt.py", "__pycache__"):
                (private / entry.name).symlink_to(entry)
        if (private / "gen_inst.py").exists() and not (private / "dataset").exists():
            path = os.pathsep.join([str(private), *filter(None, sys.path)])
            made = subprocess.run(
                [sys.executable, "-c", _MAKE_DATA], cwd=private, env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_DATA_SECONDS,
                check=False,
            )  # fmt: skip
            if made.returncode:
                last = (made.stderr.strip() or "no message").rpartition("\n")[2]
                raise ConfigurationError(f"{self.folder}/gen_inst.py makes no data set: {last} (--problem).")
        self.folder, self.script = private, private / self.script.name
        self.check()
        if (private / "gen_inst.py").exists():
            # Some scripts look for a file of another size, and would make all sets anew for every candidate.
            importlib.import_module("gen_inst").generate_datasets = lambda *_, **__: None

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        names: dict[str, Any] = {"np": np} if "np" in code else {}
        if "torch" in code and "torch" in sys.modules:
            names["torch"] = sys.modules["torch"]
        return code, names

    def value(self, function: Callable[..., Any], code: str) -> float:
        from ttc_esopt.evaluation.compilable import FILE  # what the child has executed the program as

        gpt = types.ModuleType("gpt")
        gpt.__dict__.update(vars(sys.modules[FILE]))
        sys.modules["gpt"] = gpt
        sys.argv = [str(self.script), str(self.size), str(self.root), "train"]
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(str(self.script), run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        lines = printed.getvalue().split("\n")
        trace = next((number for number, line in enumerate(lines) if line.startswith("Traceback")), None)
        if trace is not None:
            raise RuntimeError([line for line in lines[trace:] if line.strip()][-1])
        said = lines[-2] if len(lines) > 1 else ""
        try:
            return float(said)
        except ValueError:
            raise WrongShape(
                f"expected a number in the last line but one of what eval.py prints, got {said[:80]!r}"
            ) from None


def _imports(tree: ast.Module) -> Iterator[str]:
    """Modules that a file imports at its top, outside of any try."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "gpt")
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            and not node.level
            and node.module not in ("gpt", "__future__")
        ):
            yield node.module


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error} (--problem).") from None


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is no yaml: {' '.join(str(error).split())} (--problem).") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"Expected names and values in {path} (--problem).")
    return found
