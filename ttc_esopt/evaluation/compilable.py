"""Which programs may be compiled, and the form in which they are.

Compiled code must give the same answers as Python or raise, so that Python can be asked instead. What cannot promise
that (random numbers, state that outlives a call, orders that depend on hashing) is refused here, by looking at the
source alone; what differs in rare cases only is replaced by the stand-ins of `stand_ins`.
"""

from __future__ import annotations

import ast
import builtins
from types import ModuleType
from typing import Any

from ttc_esopt.evaluation.stand_ins import HELPERS, MODULES, NUMPY

FILE = "<heuristic>"  # what programs are called in tracebacks
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "enumerate", "float", "int", "len", "list", "max", "min", "range", "reversed",
    "sorted", "sum", "tuple", "zip",
})  # fmt: skip
_REFUSED_NODES = (
    ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await, ast.ClassDef, ast.Delete, ast.Dict, ast.DictComp,
    ast.Global, ast.JoinedStr, ast.Match, ast.NamedExpr, ast.Nonlocal, ast.Set, ast.SetComp, ast.Try, ast.TryStar,
    ast.With, ast.Yield, ast.YieldFrom,
)  # fmt: skip
# Methods of arrays whose order of equals, or whose bits, are numpy's own affair.
_REFUSED_METHODS = frozenset({
    "argpartition", "argsort", "byteswap", "ctypes", "data", "flags", "partition", "setflags", "std", "tofile",
    "var", "view",
})  # fmt: skip
_IGNORED = frozenset({"typing", "__future__", "collections.abc"})  # only annotations need them, which are dropped
_REDUCTIONS = {"sum": "total", "mean": "mean", "min": "least", "max": "most", "amin": "least", "amax": "most"}


class NotCompilable(Exception):
    """The program stays in Python; the message says why."""


def prepare(code: str, gives_numpy: bool = False) -> tuple[dict[str, Any], frozenset[str]]:
    """Execute a checked and rewritten copy of a program.

    Parameters
    ----------
    code : the program
    gives_numpy : whether it finds `np` without importing it

    Returns
    -------
    (namespace, growing): what the copy defined, its functions not compiled yet, and the names of variables that are
    multiplied onto themselves: as integers they might outgrow 64 bits

    Raises
    ------
    NotCompilable
        The program does what compiled code cannot do in the same way.
    """
    try:
        tree = ast.parse(code, FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotCompilable(str(error)) from None
    rewriter = _Rewriter({"np": NUMPY} if gives_numpy else {})
    tree = ast.fix_missing_locations(rewriter.visit_program(tree))
    namespace: dict[str, Any] = {**rewriter.imported, **HELPERS}
    exec(compile(tree, FILE, "exec", dont_inherit=True), namespace)
    return namespace, frozenset(rewriter.growing)


class _Rewriter(ast.NodeTransformer):
    """Checks every node and rewrites a few."""

    def __init__(self, imported: dict[str, Any]) -> None:
        self.imported = imported
        self.growing: set[str] = set()

    def visit_program(self, tree: ast.Module) -> ast.Module:
        defined: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                defined.append(node.name)
                for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self._constant(default)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if len(targets) != 1 or not isinstance(targets[0], ast.Name) or node.value is None:
                    raise NotCompilable("a module-level statement that sets more than one name")
                defined.append(targets[0].id)
                self._constant(node.value)
            elif not isinstance(node, ast.Import | ast.ImportFrom) and not _is_docstring(node):
                raise NotCompilable(f"a module-level {type(node).__name__}")
        for node in ast.walk(tree):  # all of them first: a function may use what is imported after it
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} | set(defined)
        if len(defined) != len(set(defined)) or stored & (self.imported.keys() | vars(builtins).keys()):
            raise NotCompilable("a name that is set twice, or hides a module or a built-in one")
        return self.visit(tree)

    def _constant(self, node: ast.expr) -> None:
        allowed = (
            ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop,
            ast.expr_context,
        )  # fmt: skip
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and _is_float_of_text(part) or isinstance(part, ast.Name):
                continue
            if not isinstance(part, allowed):
                raise NotCompilable(f"a module-level value or default with a {type(part).__name__}")

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name in _IGNORED:
                continue
            if alias.name not in MODULES:
                raise NotCompilable(f"imports {alias.name}")
            self._bind(alias.asname or alias.name, MODULES[alias.name])

    def _import_from(self, node: ast.ImportFrom) -> None:
        if node.module in _IGNORED:
            return
        if node.level or node.module not in MODULES:
            raise NotCompilable(f"imports from {node.module}")
        for alias in node.names:
            if alias.name not in vars(MODULES[node.module]):
                raise NotCompilable(f"imports {alias.name}")
            self._bind(alias.asname or alias.name, getattr(MODULES[node.module], alias.name))

    def _bind(self, name: str, value: Any) -> None:
        if self.imported.setdefault(name, value) is not value:
            raise NotCompilable(f"{name} means two things")

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _REFUSED_NODES):
            raise NotCompilable(f"a {type(node).__name__}")
        return super().visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.AST:
        return ast.Pass()  # bound already, in the namespace

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.decorator_list or node.args.vararg or node.args.kwarg:
            raise NotCompilable("a decorator, *arguments or **keywords")
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        if _is_docstring(node.body[0]):
            node.body[0] = ast.Pass()
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.visit(ast.Assign([node.target], node.value))

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise(ast.Name("ValueError", ast.Load()), None)  # whatever it is: Python will raise the right one

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Assert(self.visit(node.test), None)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, bool | int | float | None):
            raise NotCompilable(f"a constant {type(node.value).__name__}")
        if isinstance(node.value, int) and abs(node.value) >= 2**62:
            raise NotCompilable("an integer of more than 62 bits")
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id.startswith("__") or (hasattr(builtins, node.id) and node.id not in _BUILTINS):
            raise NotCompilable(f"uses {node.id}")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or node.attr.startswith("__"):
            raise NotCompilable(f"the attribute {node.attr}")
        module = self.imported.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(module, ModuleType):
            if not hasattr(module, node.attr):
                raise NotCompilable(f"{module.__name__}.{node.attr}")
        elif node.attr in _REFUSED_METHODS:
            raise NotCompilable(f"the method {node.attr}")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _is_float_of_text(node):
            return ast.Constant(float(node.args[0].value))
        if any(keyword.arg in (None, "key") for keyword in node.keywords):
            raise NotCompilable("a call with a key or **keywords")
        function = node.func
        if isinstance(function, ast.Name) and function.id == "int" and len(node.args) == 1:
            return _helper("exact_int", self.visit(node.args[0]))
        if isinstance(function, ast.Attribute) and function.attr in _REDUCTIONS:
            return self._reduction(node, function)
        return self.generic_visit(node)

    def _reduction(self, node: ast.Call, function: ast.Attribute) -> ast.AST:
        arguments = list(node.args)
        if not self._is_numpy(function.value):
            arguments.insert(0, function.value)
        arguments += [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
        if not 1 <= len(arguments) <= 2 or any(keyword.arg != "axis" for keyword in node.keywords):
            raise NotCompilable(f"{function.attr} with other arguments than an axis")
        name = _REDUCTIONS[function.attr]
        if len(arguments) == 2:
            return _helper(f"{name}_axis", *map(self.visit, arguments))
        if name in ("least", "most"):  # without an axis numba's own will do
            return self.generic_visit(node)
        return _helper(name, *map(self.visit, arguments))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        index = node.slice
        if isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute) and index.func.attr == "ix_":
            if len(index.args) != 2 or index.keywords or not isinstance(node.ctx, ast.Load):
                raise NotCompilable("np.ix_ other than to read from a matrix")
            return _helper("grid", self.visit(node.value), *map(self.visit, index.args))
        return self.generic_visit(node)

    def _is_numpy(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self.imported.get(node.id) is NUMPY

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.op, ast.Mult) and isinstance(node.target, ast.Name):
            self.growing.add(node.target.id)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        targets = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        for part in ast.walk(node.value):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
                self.growing |= targets & {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        return self.generic_visit(node)


def _helper(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"__{name}", ast.Load()), list(arguments), [])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_float_of_text(node: ast.Call) -> bool:
    """`float("inf")` and its like, the one use of text in heuristics."""
    if not (isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1 and not node.keywords):
        return False
    text = node.args[0]
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return False
    try:
        float(text.value)
    except ValueError:
        return False
    return True
