"""Pieces of Python in text: finding runs of lines that compile, and joining those that belong together.

A *piece* is a run of lines that compiles. The last piece that defines the wanted name is the program; from the others
it gets exactly the top-level statements whose names it lacks. Compiling has a budget per reply, so that hostile text
(thousands of fences, unclosed brackets) costs a bounded time. Nothing is executed.
"""

from __future__ import annotations

import ast
import builtins
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_PROGRAM = 50_000  # characters; longer programs are rejected rather than compiled
_MAX_ATTEMPTS = 300  # compilations per reply: enough for any honest reply, and a bound for a hostile one
_MAX_COMPILED = 500_000  # characters compiled per reply
_MAX_CLOSINGS = 8  # fences tried as the end of one block

FENCE = re.compile(r"([ \t]*)(`{3,}+|~{3,}+)([^`]*+)\Z")  # possessive: linear on any line
_START = re.compile(
    r"[ \t]*(?:import\s+\w|from\s+[\w.]+\s+import\b|(?:async\s+)?def\s+\w+\s*[(\[]|class\s+\w+\s*[(:\[]|@\w"
    r"|[^\W\d]\w*\s*(?::[^=]+)?=[^=])"
)
_OPENER = re.compile(r"(?:class|def|async|if|elif|else|for|while|with|try|except|finally)\b.*:[ \t]*(?:#.*)?\Z")


@dataclass(frozen=True)
class Piece:
    """Lines start..stop (exclusive, fences included) of the text, which compile as `code`."""

    code: str
    body: list[ast.stmt]
    start: int
    stop: int


class Compiler:
    """Compiles within a budget and remembers the most telling error."""

    def __init__(self, function: str) -> None:
        self.mentions = re.compile(rf"\b{re.escape(function)}\b")
        self.attempts, self.characters = _MAX_ATTEMPTS, _MAX_COMPILED
        self.error: str | None = None
        self._named = False  # whether `error` is about code that mentions the function
        self._last = ("", "")  # code and message of the last failure
        self.too_long = False

    @property
    def exhausted(self) -> bool:
        return self.attempts <= 0 or self.characters <= 0

    def body(self, code: str) -> tuple[list[ast.stmt] | None, int | None]:
        """The statements of `code`, or None and the number (from 1) of the line that does not compile, if known."""
        if self.exhausted:
            return None, None
        self.attempts -= 1
        if len(code) > MAX_PROGRAM:
            self.too_long = True
            return None, None
        self.characters -= len(code)
        try:
            tree = ast.parse(code)
            compile(tree, "<reply>", "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f" (line {error.lineno} of the program)" if error.lineno else ""
            self._last = (code, f"{error.msg}{where}")
            return None, error.lineno
        except Exception as error:  # null bytes, lone surrogates, nesting beyond what the compiler bears
            self._last = (code, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return None, None
        return tree.body, None

    def failure(self) -> tuple[str, str]:
        """The last failure, to `blame` later if nothing better comes of its code."""
        return self._last

    def blame(self, failure: tuple[str, str]) -> None:
        """Keep the first failure whose code mentions the function; else the first one."""
        code, message = failure
        if message and not self._named:
            named = bool(self.mentions.search(code))
            if named or self.error is None:
                self.error, self._named = message, named


def fenced(lines: list[str], compiler: Compiler) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Pieces inside fences, and the spans of all fenced blocks."""
    fences = [(row, found) for row, line in enumerate(lines) if (found := FENCE.match(line))]
    bare = [index for index, (_, found) in enumerate(fences) if not found.group(3).strip()]
    sizes = [0, *accumulate(len(line) + 1 for line in lines)]
    pieces: list[Piece] = []
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(fences) and not compiler.exhausted:
        row, opening = fences[at]
        indent, mark, info = opening.groups()
        first = re.sub(r"\A\s*(?:python3?|py)\s+", "", info, flags=re.IGNORECASE)
        head = [first] if _START.match(first) else []  # code on the fence's own line
        next_bare = bisect_right(bare, at)
        closings = [  # (index of the fence, row); the end of the text counts as one
            (index, fences[index][0])
            for index in bare[next_bare : next_bare + _MAX_CLOSINGS]
            if fences[index][1].group(2).startswith(mark)
        ]
        closings.append((len(fences), len(lines)))
        after, stop = closings[0]
        first_failure: tuple[str, str] | None = None
        for index, end in closings:  # the first end that compiles: an earlier one may stand inside a docstring
            if sizes[end] - sizes[row + 1] > MAX_PROGRAM:
                compiler.too_long = True
                continue
            inside = [line.removeprefix(indent) for line in lines[row + 1 : end]]
            code = "\n".join(head + inside)
            body = compiler.body(code)[0] if code.strip() else []
            if body is None and (level := _indent(inside)):
                code = "\n".join(line.removeprefix(level) for line in inside)
                body = compiler.body(code)[0]
            first_failure = first_failure or compiler.failure()
            if body is not None or compiler.exhausted:
                pieces += [Piece(code, body, row, end + 1)] if body else []
                after, stop = index, end
                break
        else:  # prose inside the fence, or a cut: what compiles in it, up to the first end
            inside = [line.removeprefix(indent) for line in lines[row + 1 : stop]]
            compiler.attempts -= 1
            found = scan(head + inside, row + 1 - len(head), compiler, indented=False)
            pieces += found
            if not found and first_failure:
                compiler.blame(first_failure)
        spans.append((row, stop + 1))
        at = after + 1
    return pieces, spans


def _indent(lines: Sequence[str]) -> str:
    first = next((line for line in lines if line.strip()), "")
    return first[: len(first) - len(first.lstrip(" \t"))]


def scan(lines: Sequence[str], offset: int, compiler: Compiler, indented: bool) -> list[Piece]:
    """Pieces in text without fences: from each line that looks like code, the longest run that compiles.

    A run ends only before a line without indentation (or a fence): a function is never cut inside.
    """
    pieces: list[Piece] = []
    row, outer = 0, ""
    while row < len(lines) and not compiler.exhausted:
        line = lines[row]
        level = _indent([line])
        stop = None
        if _START.match(line) and (not level or (indented and not _OPENER.match(outer))):
            stop = _run(lines, row, level, compiler, offset, pieces)
        if line.strip() and not level:
            outer = line
        row = stop or row + 1
    return pieces


def _run(
    lines: Sequence[str], row: int, level: str, compiler: Compiler, offset: int, pieces: list[Piece]
) -> int | None:
    """Add the longest piece that begins at `row` and return the row after it, or None."""
    run: list[str] = []
    size = 0
    for at in range(row, len(lines)):
        line = lines[at]
        size += len(line) + 1
        if level and line.strip() and not line.startswith(level):
            break
        run.append(line.removeprefix(level))
        if size > MAX_PROGRAM:
            compiler.too_long = True
            del run[_boundary(run, len(run) - 1) :]
            break
    first_failure: tuple[str, str] | None = None
    for _ in range(12):
        code = "\n".join(run)
        body, wrong = compiler.body(code)
        if body:
            pieces.append(Piece(code, body, offset + row, offset + row + len(run)))
            return row + len(run)
        first_failure = first_failure or compiler.failure()
        cut = _boundary(run, min(wrong or 0, len(run)) - 1)
        if not cut:
            break
        del run[cut:]
    if first_failure:
        compiler.blame(first_failure)
    return None


def _boundary(run: Sequence[str], last: int) -> int:
    """The last row up to `last` at which a run may end, or 0."""
    while last > 0 and not (run[last][:1].strip() or FENCE.match(run[last])):
        last -= 1
    return max(last, 0)


def defined_as(body: Sequence[ast.stmt], name: str) -> str | None:
    """How the last definition of `name` at module level is made: def, lambda, async, class, or None."""
    kinds = {ast.FunctionDef: "def", ast.AsyncFunctionDef: "async", ast.ClassDef: "class"}
    for statement in reversed(body):
        if type(statement) in kinds and statement.name == name:
            return kinds[type(statement)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Lambda):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return "lambda"
    return None


def _binds(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds or changes; a star import binds "*"."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            root: ast.expr = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            names |= {root.id} if isinstance(root, ast.Name) else set()
    return names


def _uses(statement: ast.stmt) -> set[str]:
    """Module-level names that a top-level statement reads (a name that it also binds inside itself counts as local)."""
    loads: set[str] = set()
    inner: set[str] = set()
    shared: set[str] = set()
    scoped = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) or not scoped else inner).add(node.id)
        elif isinstance(node, ast.arg):
            inner.add(node.arg)
        elif isinstance(node, ast.Global):
            shared.update(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            inner |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not statement:
            inner.add(node.name)
    return (loads - inner) | shared


def _rows(statement: ast.stmt) -> range:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first - 1, statement.end_lineno or first)


def assemble(main: Piece, pieces: Sequence[Piece], function: str, compiler: Compiler) -> str:
    """The main piece without prose and example calls, with the statements that it lacks from the other pieces."""
    needed = _needed(main, function)
    own = _clean(main, needed)
    bound = {name for statement in main.body for name in _binds(statement)}
    known = bound | set(dir(builtins)) | {function}
    providers: dict[str, tuple[int, ast.stmt]] = {}
    for index, piece in enumerate(pieces):
        for statement in piece.body if piece is not main else ():
            names = _binds(statement)
            if function not in names:
                providers |= dict.fromkeys(names, (index, statement))  # the last version wins
    chosen: dict[tuple[int, int], str] = {}
    wanted = needed - known
    while wanted:
        name = wanted.pop()
        known.add(name)
        index, statement = providers.get(name) or providers.get("*") or (-1, None)
        if statement is None:
            continue
        rows = _rows(statement)
        if (index, rows.start) not in chosen:
            chosen[index, rows.start] = "\n".join(pieces[index].code.split("\n")[rows.start : rows.stop])
            wanted |= _uses(statement) - known
    place = next(index for index, piece in enumerate(pieces) if piece is main)
    before = [text for (index, _), text in sorted(chosen.items()) if index < place]
    after = [text for (index, _), text in sorted(chosen.items()) if index > place]
    for parts in ([*before, own, *after], [own, *before, *after], [own]):
        code = "\n".join(part.strip("\n") for part in parts) + "\n"
        body = compiler.body(code)[0]
        if body and defined_as(body, function) == defined_as(main.body, function):
            return code
    return main.code.strip("\n") + "\n"  # compiled before


def _needed(main: Piece, function: str) -> set[str]:
    """Names that the function reaches through the top-level statements of its piece."""
    by_name: dict[str, list[ast.stmt]] = {}
    for statement in main.body:
        for name in _binds(statement):
            by_name.setdefault(name, []).append(statement)
    needed, queue = {function}, [function]
    while queue:
        for statement in by_name.pop(queue.pop(), []):
            fresh = _uses(statement) - needed
            needed |= fresh
            queue += fresh
    return needed


def _clean(main: Piece, needed: set[str]) -> str:
    """Cut what follows the last statement that the function may need, and bare expressions (prose that compiles)."""
    last = max(index for index, item in enumerate(main.body) if not _binds(item).isdisjoint(needed | {"*"}))
    lines = main.code.split("\n")
    kept_rows = {row for item in main.body[: last + 1] if not _is_prose(item) for row in _rows(item)}
    end = _rows(main.body[last]).stop
    prose = {row for item in main.body[: last + 1] if _is_prose(item) for row in _rows(item)} - kept_rows
    return "\n".join(line for row, line in enumerate(lines[:end]) if row not in prose)


def _is_prose(statement: ast.stmt) -> bool:
    """Whether a top-level statement does nothing when executed, or fails: a bare name, a tuple of names ..."""
    return isinstance(statement, ast.Expr) and not isinstance(
        statement.value, ast.Call | ast.Constant | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr
    )
