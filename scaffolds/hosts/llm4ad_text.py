"""From our parser's program to a reply that LLM4AD reads as the same program, and back to plain text.

LLM4AD takes the first braces on one line as the description, and of the program nothing but the body of the first
function at column 0, which it puts under the template's own header. Imports, constants and helper functions that a
program needs therefore have to move into that body, and its parameters have to be called what the template calls them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ttc_esopt.scaffolds.hosts.templates import header

_INDENT = "    "
_OTHER_LINE_BREAKS = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # lines to str.splitlines, none to Python


class CannotSplice(Exception):
    """The program cannot live inside one function; the text says why."""


def description_of(thought: str | None) -> str:
    """A description without the braces that LLM4AD keeps around it."""
    text = (thought or "").strip()
    return text[1:-1].strip() if text.startswith("{") and text.endswith("}") else text


def as_reply(code: str, description: str | None, template: str) -> str:
    """The reply from which LLM4AD takes this description, and a function that does what the program does.

    Parameters
    ----------
    code : compiles, and defines the function of the template's name
    template : the problem's `template_program`

    Raises
    ------
    CannotSplice
        The program keeps state in global variables, or imports names that cannot be told.
    """
    before, function = _template(template)
    idea = " ".join((description or "").replace("{", "(").replace("}", ")").split()) or "No description."
    return f"{{{idea}}}\n\n{header(function)}\n{_body(code, before, function)}\n"


def _template(template: str) -> tuple[list[ast.stmt], ast.FunctionDef]:
    body = ast.parse(template).body
    [place] = [place for place, statement in enumerate(body) if isinstance(statement, ast.FunctionDef)]
    return body[:place], body[place]


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def _body(code: str, before: Sequence[ast.stmt], function: ast.FunctionDef) -> str:
    """The lines under the template's header."""
    program = ast.parse(code).body
    place, main = _main(program, function.name)
    others = [other for at, other in enumerate(program) if at != place and not _defines(other, function.name)]
    for node in ast.walk(ast.Module(program, [])):
        if isinstance(node, ast.Global):
            raise CannotSplice(
                f"The program keeps state in global variables ({', '.join(node.names)}); LLM4AD keeps the body of one "
                "function only."
            )
    there = {_bound(alias) for statement in before if _is_import(statement) for alias in _aliases(statement)}
    moved = list(_moved(others, there, ast.Module(program, [])))
    given = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    renamed = _renamed(main, given)
    if renamed is None or _is_wrapped(main) or _names(moved) & (set(given) | _stored(main)):
        return _nested(moved, main, given)
    first = [*renamed, *moved, *(main.body if isinstance(main, ast.FunctionDef) else [])][:1]
    if first and getattr(first[0], "decorator_list", None):
        # LLM4AD looks for a body at the line of its first statement's `def`, and loses the decorators above
        moved.insert(0, ast.Pass())
    before_it = [_lines([*renamed, *moved])] if renamed or moved else []
    return "\n".join([*before_it, _source(code, main)])


def _is_wrapped(main: ast.FunctionDef | ast.Lambda) -> bool:
    return isinstance(main, ast.FunctionDef) and not all(_compiles(one) for one in main.decorator_list)


def _main(program: Sequence[ast.stmt], name: str) -> tuple[int, ast.FunctionDef | ast.Lambda]:
    for place in range(len(program) - 1, -1, -1):
        statement = program[place]
        if _defines(statement, name):
            return place, statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else statement
    raise CannotSplice(f"The program defines no function {name}.")


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name == name
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
        return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    is_lambda = isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Lambda)
    return is_lambda and isinstance(statement.target, ast.Name) and statement.target.id == name


def _aliases(statement: ast.stmt) -> Iterator[tuple[str, ast.alias]]:
    module = f"{'.' * statement.level}{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
    for alias in statement.names:
        yield module, alias


def _bound(found: tuple[str, ast.alias]) -> tuple[str, str]:
    module, alias = found
    return f"{module}{alias.name}", alias.asname or alias.name


def _moved(others: Sequence[ast.stmt], there: set[tuple[str, str]], program: ast.Module) -> Iterator[ast.stmt]:
    """What the function needs beside itself, without what the template has already."""
    for statement in others:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if _is_import(statement):
            names = [alias for module, alias in _aliases(statement) if _bound((module, alias)) not in there]
            if any(alias.name == "*" for alias in names):
                names = [ast.alias(name) for name in _starred(statement.module or "", program)]
            if names:
                statement.names = names
                yield statement
            continue
        for node in ast.walk(statement):  # compiling at every call would take longer than it saves
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = [one for one in node.decorator_list if not _compiles(one)]
        yield statement


def _compiles(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target).rpartition(".")[2] in ("jit", "njit")


def _starred(module: str, program: ast.Module) -> list[str]:
    """The names of a star import that the program uses; inside a function there are no star imports."""
    if module != "math":  # of others, importing them to look would run who knows what
        raise CannotSplice(f"The program has `from {module} import *`, which no function can hold.")
    import math

    used = {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
    return sorted(name for name in used if hasattr(math, name) and not name.startswith("_"))


def _names(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that statements bind where they stand; imports aside, which bind the same thing anywhere."""
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif not _is_import(statement):
            found |= _stored(statement)
    return found


def _stored(tree: ast.AST) -> set[str]:
    """Names that are assigned, defined or taken as parameters anywhere inside."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node is not tree:
            found.add(node.name)
    return found


def _renamed(main: ast.FunctionDef | ast.Lambda, given: Sequence[str]) -> list[ast.stmt] | None:
    """Assignments after which the template's parameters have the program's names; None if that is not enough."""
    own = main.args
    names = [argument.arg for argument in (*own.posonlyargs, *own.args)]
    if own.vararg or own.kwarg or own.kwonlyargs or len(names) != len(given):
        return None
    pairs = [(name, there) for name, there in zip(names, given, strict=True) if name != there]
    if not pairs:
        return []
    left, right = (", ".join(side) for side in zip(*pairs, strict=True))
    return ast.parse(f"{left} = {right}").body


def _nested(moved: Sequence[ast.stmt], main: ast.FunctionDef | ast.Lambda, given: Sequence[str]) -> str:
    """The whole program inside the function, called at its end: for names that would get into each other's way."""
    begin = ast.parse(f"_given = ({', '.join(given)}{',' if given else ''})").body
    if isinstance(main, ast.Lambda):
        return _lines([*begin, *moved, *ast.parse(f"return ({ast.unparse(main)})(*_given)").body])
    main.decorator_list = [one for one in main.decorator_list if not _compiles(one)]
    return _lines([*begin, *moved, main, *ast.parse(f"return {main.name}(*_given)").body])


def _lines(statements: Sequence[ast.stmt]) -> str:
    """Statements as the lines of a function's body; written as one, so that multi-line texts stay what they are."""
    function = ast.parse("def _(): pass").body[0]
    function.body = list(statements)
    return ast.unparse(function).partition("\n")[2]


def _source(code: str, main: ast.FunctionDef | ast.Lambda) -> str:
    """The function's body, with its comments where its lines can be taken as they are."""
    if isinstance(main, ast.Lambda):
        return _lines([ast.Return(main.body)])
    body = list(main.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):  # the docstring; there is another
        body = body[1:] or [ast.Pass()]
    first, lines = body[0], code.split("\n")
    start = min([getattr(first, "lineno", 0), *(one.lineno for one in getattr(first, "decorator_list", []))])
    plain = start > main.lineno and not _OTHER_LINE_BREAKS.search(code)
    if not plain or lines[start - 1][: first.col_offset] != _INDENT:
        return _lines(body)
    while start - 1 > main.lineno and re.match(r"\s*(#.*)?\Z", lines[start - 2]):
        start -= 1
    return "\n".join(lines[start - 1 : main.end_lineno]).strip("\n")
