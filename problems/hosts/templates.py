"""What a host's template program says: the name to define, what the prompt shows, how a started reply begins."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ttc_esopt.errors import ConfigurationError

NUMPY = "import numpy as np"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Template:
    """A template program, taken apart.

    Attributes
    ----------
    kind : `function`, `functions` (the model writes several, one is called), or `class`
    entry : the name that programs must define
    imports : import lines; numpy's is among them where the template uses `np`
    shown : for the prompt: without bodies, but for a class, whose parts say nothing without them
    opening : how a started reply begins: all up to the signature of the last function or method, which is left to write
    program : the whole template as a program; None if its entry has no body
    """

    kind: str
    entry: str
    imports: str
    shown: str
    opening: str
    program: str | None


def take_apart(text: str, where: str, *, last: bool = True) -> Template:
    """A template program's parts; of several functions the last one is the entry, or the first one.

    Raises
    ------
    ConfigurationError
        The template is no Python, or defines no function or class; `where` says whose it is.
    """
    text = text.strip("\n").expandtabs().rstrip() + "\n"
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{where} is no Python program: {error} (--problem).") from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not classes and not functions:
        raise ConfigurationError(f"{where} defines no function and no class (--problem).")
    entry = classes[0] if classes else functions[-1 if last else 0]
    kind = "class" if classes else "functions" if len(functions) > 1 and last else "function"
    lines = text.split("\n")
    missing = _uses_np(tree) and not _binds_np(tree)
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if missing:
        imports.insert(0, NUMPY)
        text = f"{NUMPY}\n\n{text}"
    head = f"{NUMPY}\n\n" if missing else ""
    target: ast.AST = entry
    if isinstance(entry, ast.ClassDef):
        methods = [node for node in entry.body if isinstance(node, ast.FunctionDef)]
        target = methods[-1] if methods else entry
    opening = head + _until_body(lines, target)
    shown = text if kind == "class" else head + _without_bodies(lines, functions)
    program = text if _has_body(entry) else None
    return Template(kind, entry.name, "\n".join(imports), shown.rstrip() + "\n", opening.lstrip("\n"), program)


def _uses_np(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "np" for node in ast.walk(tree))


def _binds_np(tree: ast.Module) -> bool:
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return any((alias.asname or alias.name) == "np" for node in imports for alias in node.names)


def _until_body(lines: list[str], node: ast.AST) -> str:
    """The source up to the colon before the node's body."""
    first = node.body[0]
    if first.lineno == node.lineno:  # all on one line
        return "\n".join([*lines[: first.lineno - 1], lines[first.lineno - 1][: first.col_offset].rstrip()])
    row = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))]) - 1
    header = lines[:row]
    while header and (not header[-1].strip() or header[-1].lstrip().startswith("#")):
        header.pop()
    last = header.pop() if header else ""
    colon = last.rfind(":") if "#" in last else len(last.rstrip()) - 1
    return "\n".join([*header, last[: colon + 1]])


def _without_bodies(lines: list[str], functions: list[ast.FunctionDef]) -> str:
    kept: list[str] = []
    row = 0
    for function in functions:
        first = function.body[0]
        kept += lines[row : function.lineno - 1]
        if ast.get_docstring(function, clean=False) is not None:
            kept += lines[function.lineno - 1 : first.end_lineno]
        else:
            kept += _until_body(lines, function).split("\n")[function.lineno - 1 :]
        row = function.end_lineno
    return "\n".join([*kept, *lines[row:]])


def _has_body(entry: ast.AST) -> bool:
    """Whether a function, or any method of a class, does more than nothing."""
    functions = [entry] if isinstance(entry, _Function) else [n for n in entry.body if isinstance(n, _Function)]
    return any(not _does_nothing(statement) for function in functions for statement in function.body)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)  # a docstring, ...
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return False
