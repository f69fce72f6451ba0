"""Problems that are classes of EoH 0.1, EoH 0.2 or LLM4AD: found in the user's file, made, and asked.

What is here runs where host code may run: in the process that describes a problem, and in those that evaluate.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.problems.base import Infeasible, Problem, WrongShape, describe
from ttc_esopt.problems.hosts.templates import NUMPY, Template, take_apart

_GETTERS = (
    "get_task", "get_func_name", "get_func_inputs", "get_func_outputs", "get_inout_inf", "get_other_inf",
)  # fmt: skip
_HOW = {
    "eoh": "set PYTHONPATH to the folder eoh/src of your EoH checkout",
    "llm4ad": "set PYTHONPATH to your LLM4AD checkout",
    "joblib": "pip install joblib (EoH needs it)",
    "requests": "pip install requests (EoH needs it)",
    "hydra": "pip install hydra-core (ReEvo needs it)",
}
_QUICK = 3.0  # seconds, and a share of the limit, after which a swallowed fault is not looked for: tracing is slow
_SHARE = 0.1


def load(place: str, name: str, arguments: dict[str, Any]) -> Host | None:
    """The problem of a class in FILE.py or in a module; None if the class is a problem of ours.

    Raises
    ------
    ConfigurationError
        It cannot be found, made or recognised; the message says what is missing.
    """
    module = _module(place)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        there = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        known = f" The classes there are: {', '.join(there)}." if there else ""
        raise ConfigurationError(f"There is no class {name} in {place} (--problem).{known}")
    if issubclass(found, Problem):
        return None
    kind = next((kind for kind in (EoH2, LLM4AD, EoH1) if kind.fits(found)), None)
    if kind is None:
        raise ConfigurationError(
            f"{place}:{name} is no problem that is known here: expected a class derived from "
            "ttc_esopt.problems.Problem, eoh.BaseProblem or llm4ad.base.Evaluation, or one with evaluate() whose "
            "objects have prompts, as EoH 0.1 wants (--problem)."
        )
    try:
        made = found(**arguments)
    except ModuleNotFoundError as error:
        raise missing_module(place, error) from error
    except Exception as error:
        hint = ", --problem-arg" if arguments or isinstance(error, TypeError) else ""
        raise ConfigurationError(f"{place}:{name} cannot be made: {describe(error)} (--problem{hint}).") from error
    return kind(made, f"{place}:{name}")


def _module(place: str) -> types.ModuleType:
    """The user's module, found the way his own script finds it: beside itself, in its package, on the path."""
    name = place
    if place.endswith(".py"):
        path = Path(place).resolve()
        folder, name = path.parent, path.stem
        os.chdir(folder)  # scripts of hosts are started in their own folder, and open files by relative names
        root, parts = folder, [name]
        while (root / "__init__.py").is_file() and root.name.isidentifier() and root != root.parent:
            parts.insert(0, root.name)
            root = root.parent
        name = ".".join(parts)
        for one in (root, folder):
            if str(one) not in sys.path:
                sys.path.insert(0, str(one))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_module(place, error) from error
    except Exception as error:
        raise ConfigurationError(f"{place} cannot be loaded: {describe(error)} (--problem).") from error


def missing_module(place: str, error: ModuleNotFoundError) -> ConfigurationError:
    name = (error.name or "").partition(".")[0]
    how = _HOW.get(name, "install it into this Python, or put its folder on PYTHONPATH")
    return ConfigurationError(f"{place} needs the module {error.name}, which is not found: {how} (--problem).")


class Host:
    """A live problem of a host; the attributes are what its description holds.

    Attributes
    ----------
    host : name of the framework
    template, task : see `Template`; what is to be designed, in the host's words
    timeout : seconds for one program
    maximise : whether a larger value is better
    seeds : programs to start from, as (description, code)
    digits : decimals to which the host rounds objectives; None: it does not
    read : folders that programs' processes must see
    """

    host: str
    template: Template
    task: str
    timeout: float = 30.0
    maximise: bool = False
    digits: int | None = None

    def __init__(self) -> None:
        self.seeds: list[tuple[str, str]] = []
        self.read = [os.getcwd(), *(path for path in sys.path if path)]

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        """The text to execute for a program, and the names that it finds."""
        return code, {}

    def value(self, function: Callable[..., Any], code: str) -> float:
        """What the host says of a program that has been executed; raises `Rejected`, or what the host raises."""
        raise NotImplementedError

    def warm(self) -> None:
        """Called in a process that will evaluate, before the first program."""

    def _completed(self, code: str) -> str:
        """A program under those of the template's imports that it lacks, as hosts put them."""
        missing = [line for line in self.template.imports.splitlines() if line not in code]
        return "\n".join([*missing, code])

    def _number(self, value: Any, what: str) -> float:
        """A host's answer as a number."""
        if value is None:
            raise Infeasible(f"{what} returned None: the problem does not accept the program's answers")
        number = np.asarray(value)
        if number.size != 1 or number.dtype.kind not in "biuf":
            got = type(value).__name__ if number.size == 1 else f"{number.size} values"
            raise WrongShape(f"expected one number from {what}, got {got}")
        number = float(number.reshape(()) if number.ndim == 0 else number.ravel()[0])
        return number if self.digits is None else float(np.round(number, self.digits))

    def _asked(self, call: Callable[[], Any], method: Callable[..., Any], what: str) -> float:
        """Call the host; a None behind which it hides an exception becomes that exception."""
        began = time.monotonic()
        value = call()
        soon = time.monotonic() - began < min(_QUICK, _SHARE * self.timeout)
        if value is None and soon and (error := _swallowed(call, method)) is not None:
            raise error
        return self._number(value, what)


def _swallowed(call: Callable[[], Any], method: Callable[..., Any]) -> BaseException | None:
    """The last exception that arrives in a method's own frame while it is called once more."""
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    seen: list[BaseException] = []

    def inside(frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and isinstance(argument[1], BaseException):
            seen.append(argument[1])
        return inside

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_lines = False
        return inside

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen[-1] if seen else None


def _of_template(where: str, template: Any, **how: bool) -> Template:
    if not str(template or "").strip():
        raise ConfigurationError(f"{where} has no template_program (--problem).")
    return take_apart(str(template), f"The template_program of {where}", **how)


def _imported(lines: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(lines, names)
    names.pop("__builtins__", None)
    return names


class EoH2(Host):
    """EoH 0.2: a class with template_program, task_description, evaluate_program and evaluate, minimised."""

    host, digits = "EoH 0.2", 5

    @staticmethod
    def fits(found: type) -> bool:
        return hasattr(found, "evaluate_program") and hasattr(found, "evaluate") and not _is_llm4ad(found)

    def __init__(self, problem: Any, where: str) -> None:
        super().__init__()
        self.problem = problem
        self.template = _of_template(where, getattr(problem, "template_program", ""))
        self.task = str(getattr(problem, "task_description", "") or "")
        self.timeout = float(getattr(problem, "timeout", None) or 40.0)
        base = next((c for c in type(problem).__mro__ if c.__name__ == "BaseProblem"), None)
        own = getattr(type(problem), "evaluate", None)
        self.direct = base is not None and own is getattr(base, "evaluate", None)  # its own evaluate() must be called
        self.names: dict[str, Any] = {}

    def warm(self) -> None:
        self.names = _imported(f"{NUMPY}\n{self.template.imports}")

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        return code, dict(self.names)

    def value(self, function: Callable[..., Any], code: str) -> float:
        code = self._completed(code)
        if not self.direct:
            return self._asked(lambda: self.problem.evaluate(code), self.problem.evaluate, "evaluate()")
        method = self.problem.evaluate_program
        return self._asked(lambda: method(code, function), method, "evaluate_program()")


class EoH1(Host):
    """EoH 0.1: an object with prompts (six getters) and evaluate(code), minimised; it executes programs itself."""

    host, digits = "EoH 0.1", 5

    @staticmethod
    def fits(found: type) -> bool:
        return callable(getattr(found, "evaluate", None)) and not hasattr(found, "evaluate_program")

    def __init__(self, problem: Any, where: str) -> None:
        super().__init__()
        self.problem = problem
        prompts = getattr(problem, "prompts", None)
        missing = [getter for getter in _GETTERS if not callable(getattr(prompts, getter, None))]
        if missing:
            raise ConfigurationError(
                f"{where} has no prompts.{missing[0]}(): expected an object whose prompts have "
                f"{', '.join(_GETTERS)} (--problem)."
            )
        task, name, inputs, outputs, about, more = (getattr(prompts, getter)() for getter in _GETTERS)
        self.task = str(task)
        said = " ".join(str(part).strip() for part in (about, more) if part).replace('"""', "'''").replace("\\", "\\\\")
        signature = f"def {name}({', '.join(inputs)}):"
        text = f'{NUMPY}\n\n{signature}\n    """{said}\n\n    Returns {", ".join(outputs)}.\n    """\n'
        self.template = take_apart(text, f"What the prompts of {where} describe")

    def value(self, function: Callable[..., Any], code: str) -> float:
        return self._asked(lambda: self.problem.evaluate(code), self.problem.evaluate, "evaluate()")


class LLM4AD(Host):
    """LLM4AD: an Evaluation, maximised; its three modifications of programs are made by its own functions."""

    host, maximise = "LLM4AD", True

    @staticmethod
    def fits(found: type) -> bool:
        return hasattr(found, "evaluate_program") and _is_llm4ad(found)

    def __init__(self, problem: Any, where: str) -> None:
        super().__init__()
        self.problem = problem
        self.template = _of_template(where, problem.template_program, last=False)
        self.task = str(problem.task_description or "")
        self.timeout = float(problem.timeout_seconds or 60.0)  # None: the host would wait for ever
        self.names: dict[str, Any] = {}
        self.executed = ""

    def warm(self) -> None:
        self.names = _imported(self.template.imports)
        if self._modifies():
            self.modify = importlib.import_module(_base_of(type(self.problem)).__module__.rpartition(".")[0]).ModifyCode

    def prepare(self, code: str) -> tuple[str, dict[str, Any]]:
        """The program, completed by the template's imports, as the host would have pasted it into the template."""
        self.executed = code if code.lstrip().startswith("from __future__") else self._completed(code)
        if not self._modifies():
            return code, dict(self.names)  # the same program, with the model's own line numbers
        problem, entry = self.problem, self.template.entry
        if problem.use_numba_accelerate:
            self.executed = self.modify.add_numba_decorator(self.executed, function_name=entry)
        if problem.use_protected_div:
            self.executed = self.modify.replace_div_with_protected_div(
                self.executed, problem.protected_div_delta, problem.use_numba_accelerate
            )
        if problem.random_seed is not None:
            self.executed = self.modify.add_numpy_random_seed_to_func(self.executed, entry, problem.random_seed)
        return self.executed, dict(self.names)

    def value(self, function: Callable[..., Any], code: str) -> float:
        method = self.problem.evaluate_program
        given = function if getattr(self.problem, "exec_code", True) else None
        return self._asked(lambda: method(self.executed, given), method, "evaluate_program()")

    def _modifies(self) -> bool:
        problem = self.problem
        return bool(problem.use_numba_accelerate or problem.use_protected_div or problem.random_seed is not None)


def _base_of(found: type) -> type | None:
    return next((c for c in found.__mro__ if c.__name__ == "Evaluation" and c.__module__.startswith("llm4ad.")), None)


def _is_llm4ad(found: type) -> bool:
    return _base_of(found) is not None
