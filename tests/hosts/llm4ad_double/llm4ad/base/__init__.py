"""Functions, programs, the model's and the problem's base classes, and the evaluation in a process."""

from __future__ import annotations

import ast
import copy
import multiprocessing
import time
from dataclasses import dataclass


@dataclass(eq=False)
class Function:
    algorithm = ""
    name: str
    args: str
    body: str
    return_type: str | None = None
    docstring: str | None = None
    score: float | None = None
    evaluate_time: float | None = None
    sample_time: float | None = None

    def __str__(self):
        returns = f" -> {self.return_type}" if self.return_type else ""
        docstring = f'    """{self.docstring}"""\n' if self.docstring else ""
        body = self.body.strip("\n")
        return f"def {self.name}({self.args}){returns}:\n{docstring}{body}\n\n"


@dataclass(frozen=True)
class Program:
    preface: str
    functions: list

    def __str__(self):
        return "\n".join([self.preface, *map(str, self.functions)])


class TextFunctionProgramConverter:
    @classmethod
    def text_to_program(cls, text):
        try:
            defs = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        except SyntaxError:
            return None
        lines, functions = text.splitlines(), []
        for node in defs:
            docstring, start = ast.get_docstring(node, clean=False), node.body[0].lineno - 1
            if docstring is not None:
                start = node.body[0].end_lineno
            returns = ast.unparse(node.returns) if node.returns else None
            body = "\n".join(lines[start : node.end_lineno])
            functions.append(Function(node.name, ast.unparse(node.args), body, returns, docstring))
        return Program("\n".join(lines[: defs[0].lineno - 1]) if defs else "", functions)

    @classmethod
    def text_to_function(cls, text):
        program = cls.text_to_program(text)
        if program is None:
            return None
        if len(program.functions) != 1:
            raise ValueError("only one function expected")
        return program.functions[0]

    @classmethod
    def function_to_program(cls, function, template):
        program = copy.deepcopy(template if isinstance(template, Program) else cls.text_to_program(template))
        program.functions[0].body = function.body
        return program


class LLM:
    def __init__(self, *, do_auto_trim=True, debug_mode=False):
        self.do_auto_trim = do_auto_trim
        self.debug_mode = debug_mode

    def draw_sample(self, prompt, *args, **kwargs):
        raise NotImplementedError

    def close(self):
        pass


class SampleTrimmer:
    """Takes the body of the first function at column 0, as far as it is Python."""

    @classmethod
    def trim_preface_of_function(cls, text):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if line.startswith("def"):
                return "\n".join(lines[number + 1 :]) + "\n"
        return text

    @classmethod
    def sample_to_function(cls, text, template):
        lines = text.split("\n")
        while lines:
            try:
                tree = ast.parse("\n".join(["def f():", *lines]))
                break
            except SyntaxError as error:
                lines = lines[: max(0, min(error.lineno - 2, len(lines) - 1))]
        else:
            return None
        function = TextFunctionProgramConverter.text_to_function(template)
        function.body = "\n".join(lines[: tree.body[0].end_lineno - 1])
        return function if function.body.strip() else None


class Evaluation:
    def __init__(
        self, template_program, task_description="", use_numba_accelerate=False, use_protected_div=False,
        protected_div_delta=1e-5, random_seed=None, timeout_seconds=None, *, exec_code=True, safe_evaluate=True,
        daemon_eval_process=False, fork_proc="auto",
    ):  # fmt: skip
        self.template_program = template_program
        self.task_description = task_description
        self.use_protected_div = use_protected_div
        self.protected_div_delta = protected_div_delta
        self.timeout_seconds = timeout_seconds
        self.exec_code = exec_code
        self.safe_evaluate = safe_evaluate

    def evaluate_program(self, program_str, callable_func, **kwargs):
        raise NotImplementedError


class SecureEvaluator:
    def __init__(self, evaluator, debug_mode=False, **kwargs):
        self._evaluator = evaluator

    def _modify_program_code(self, text):
        if not self._evaluator.use_protected_div:
            return text
        return text.replace(" / (", f" / ({self._evaluator.protected_div_delta} + ")

    def evaluate_program(self, program, **kwargs):
        text = self._modify_program_code(str(program))
        if not self._evaluator.safe_evaluate:
            return self._score(text)
        queue = multiprocessing.Queue()
        process = multiprocessing.Process(target=lambda: queue.put(self._score(text)))
        process.start()
        try:
            return queue.get(timeout=self._evaluator.timeout_seconds)
        except Exception:
            return None
        finally:
            process.kill()
            process.join()

    def _score(self, text):
        try:
            namespace = {}
            exec(text, namespace)
            name = TextFunctionProgramConverter.text_to_function(text).name
            return self._evaluator.evaluate_program(text, namespace[name])
        except Exception:
            return None

    def evaluate_program_record_time(self, program, **kwargs):
        start = time.time()
        return self.evaluate_program(program), time.time() - start
