"""What a host's template program says: which name a reply must define, and how a reply may be started for a model."""

from __future__ import annotations

import ast


def entry(template: str) -> tuple[str, str]:
    """Name and kind (`function` or `class`) of what is looked up: the first class, else the last function.

    Raises
    ------
    ValueError
        The template defines neither.
    """
    tree = ast.parse(template)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            return node.name, "class"
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not functions:
        raise ValueError("Expected a function or a class in the template program.")
    return functions[-1], "function"


def prefill_of(template: str) -> str:
    """A started reply, fence, imports and signature; empty where there is more than one function to be written.

    It ends at the colon, because tokenizers join the line break and the indentation that follow into one token.
    """
    tree = ast.parse(template)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if len(defined) != 1 or not isinstance(defined[0], ast.FunctionDef):
        return ""
    function = defined[0]
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join(["```python", *(imports or ["import numpy as np"]), "", header(function)])


def header(function: ast.FunctionDef) -> str:
    """A function's first line, up to the colon; decorators aside."""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"def {function.name}({ast.unparse(function.args)}){returns}:"
