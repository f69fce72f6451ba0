import ast
import types


def _get_entry_name(template_program):
    return [node.name for node in ast.parse(template_program).body if isinstance(node, ast.FunctionDef)][-1]


class BaseProblem:
    template_program = ""
    task_description = ""

    def __init__(self, timeout=40, n_processes=1):
        self.timeout, self.n_processes = timeout, n_processes

    def evaluate(self, code_string):
        try:
            module = types.ModuleType("heuristic")
            exec(code_string, module.__dict__)
            return self.evaluate_program(code_string, getattr(module, _get_entry_name(self.template_program)))
        except Exception:
            return None

    def evaluate_program(self, program_str, callable_func):
        raise NotImplementedError
