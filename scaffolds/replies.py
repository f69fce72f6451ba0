"""From a model's reply to a program: find the code, keep what it needs, and take the description.

Models answer in many shapes: thinking first, several fences, no fence, a fence inside a docstring, a reply cut at the
token limit, prose after the code. The parser therefore never trusts one pattern. It collects *pieces* (runs of lines
that compile as Python), takes the last one that defines the wanted name, adds from other pieces exactly the top-level
statements whose names it still lacks, and drops example calls after it. What is returned compiles.

Nothing here executes model-written code, and nothing raises: a reply without a usable program is data.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ttc_esopt.scaffolds.programs import FENCE, MAX_PROGRAM, Compiler, Piece, assemble, defined_as, fenced, scan

MAX_DESCRIPTION = 1_000
_MAX_BRACES = 200  # pairs of braces looked at as a description

_THINK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_INLINE_FENCE = re.compile(r"(`{3,}+)((?:python3?|py)\b|\w+(?=[ \t]*(?:\n|\Z)))?", re.IGNORECASE)


@dataclass(frozen=True)
class Parsed:
    """What one reply yields.

    Attributes
    ----------
    ok : bool
        Whether `code` holds a program that compiles and defines the wanted name.
    code : str or None
        The program, ending in a newline; None if rejected.
    description : str or None
        The sentence in braces outside the code, or the prose around the code, on one line; None if there is neither.
    truncated : bool
        Whether the caller said that the reply was cut at the token limit.
    reason : str or None
        One sentence that says why the reply was rejected.
    failure : str or None
        The same as a word: "reply" (no program in it), "syntax" or "name".
    """

    ok: bool
    code: str | None
    description: str | None
    truncated: bool
    reason: str | None
    failure: str | None = None


def parse_reply(
    text: str, function: str, *, kind: str = "function", prefill: str = "", truncated: bool = False
) -> Parsed:
    """Find the program and its description in a reply.

    Parameters
    ----------
    text : str
        What the model wrote.
    function : str
        The name that the program must bind at module level.
    kind : {"function", "class"}
        A function is a plain `def` or a lambda bound to the name; an `async def` is none.
    prefill : str
        Text that the prompt had already started for the model. The reply continues it, or starts again.
    truncated : bool
        Whether the engine's finish reason was "length". What stands there is then accepted or rejected as always: a
        function that ends inside a statement does not compile, and is not repaired.

    Returns
    -------
    Parsed
        Never raises on any text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like in model-written code concern nobody
            found = _parse(text, function, kind, prefill)
    except Exception as error:  # the parser's own limits (recursion, memory) on hostile text
        found = Parsed(False, None, None, False, f"The reply could not be read: {type(error).__name__}.", "reply")
    if truncated and not found.ok and found.failure == "syntax":
        found = replace(found, reason=f"The reply was cut at the token limit. {found.reason}")
    return replace(found, truncated=truncated)


def _parse(text: str, function: str, kind: str, prefill: str) -> Parsed:
    compiler = Compiler(function)
    text, prefill = (part.replace("\r\n", "\n").replace("\r", "\n") for part in (text, prefill))
    if not text.strip():
        return _rejected("The reply is empty.", "reply")
    continued = _strip_thinking((prefill + text).lstrip("\ufeff"))
    if not prefill:
        if not continued.strip():
            return _rejected("The reply holds nothing but thinking.", "reply")
        return _read(continued, function, kind, compiler)
    # A model that starts again defines the name by itself; only the started imports are still wanted then. Read alone
    # first: glued to the started signature, a second `def` may compile as an inner function that is never called.
    alone = _read(_strip_thinking(text.lstrip("\ufeff")), function, kind, Compiler(function), started=prefill)
    whole = _read(continued, function, kind, compiler)
    if not alone.ok:
        return whole
    if whole.ok and whole.code == alone.code:
        return whole
    return replace(alone, description=alone.description or whole.description)


def _rejected(reason: str, failure: str) -> Parsed:
    return Parsed(False, None, None, False, reason, failure)


def _strip_thinking(text: str) -> str:
    """Drop what stands between thinking tags, before a lone closing tag, and after a lone opening one."""
    kept: list[str] = []
    depth = position = 0
    for tag in _THINK.finditer(text):
        closing = bool(tag.group(1))
        if not depth:
            if closing:  # the chat template had opened the tag: all so far was thinking
                kept.clear()
            else:
                kept.append(text[position : tag.start()])
        depth = 0 if closing else 1
        position = tag.end()
    if not depth:
        kept.append(text[position:])
    return "".join(kept)


def _read(text: str, function: str, kind: str, compiler: Compiler, started: str | None = None) -> Parsed:
    """Try the readings of the text, the most literal one first, until one yields a piece that defines the name."""
    accepted = {"function": ("def", "lambda"), "class": ("class",)}[kind]
    other: str | None = None
    any_code = False
    for reading in _readings(text, compiler, indented=started is None):
        lines, pieces, spans = reading
        for piece in reversed(pieces):
            what = defined_as(piece.body, function)
            any_code = any_code or any(not isinstance(statement, ast.Expr) for statement in piece.body)
            if what in accepted:
                helpers = scan(started.split("\n"), 0, compiler, indented=False) if started else []
                code = assemble(piece, [*helpers, *pieces], function, compiler)
                return Parsed(True, code, _describe(lines, spans, piece), False, None)
            other = other or what
    if other is not None:
        found = {"async": "an async function", "class": "a class", "def": "a function", "lambda": "a function"}[other]
        return _rejected(f"{function} is {found} in the reply; a plain {kind} of that name is needed.", "name")
    if compiler.too_long:
        return _rejected(f"The program is longer than {MAX_PROGRAM:,} characters.", "reply")
    if compiler.error is not None and compiler.mentions.search(text):
        return _rejected(f"No program that defines {function} compiles: {compiler.error}.", "syntax")
    if any_code:
        return _rejected(f"The program defines no {kind} named {function}.", "name")
    return _rejected("The reply holds no Python program.", "reply")


def _readings(
    text: str, compiler: Compiler, indented: bool
) -> Iterator[tuple[list[str], list[Piece], list[tuple[int, int]]]]:
    """Yield (lines, pieces, line spans that are not prose): fences as written, no fences, fences within lines."""
    for version in (text, _INLINE_FENCE.sub(lambda found: f"\n{found.group(1)}{found.group(2) or ''}\n", text)):
        lines = version.split("\n")
        yield lines, *fenced(lines, compiler)
        pieces = scan(lines, 0, compiler, indented)
        fences = [(row, row + 1) for row, line in enumerate(lines) if FENCE.match(line)]
        yield lines, pieces, sorted([(piece.start, piece.stop) for piece in pieces] + fences)


def _describe(lines: Sequence[str], spans: Sequence[tuple[int, int]], main: Piece) -> str | None:
    """The description: braces before the code, after it, in its comments; else the prose before or after it."""
    code_rows = bytearray(len(lines) + 1)
    for start, stop in spans:
        code_rows[start:stop] = b"\1" * (min(stop, len(lines) + 1) - start)
    before = "\n".join("" if code_rows[row] else lines[row] for row in range(min(main.start, len(lines))))
    after = "\n".join("" if code_rows[row] else lines[row] for row in range(main.start, len(lines)))
    comments = "\n".join(line.strip() for line in main.code.split("\n") if line.lstrip().startswith("#"))
    for text, middle in ((f"{before}\n{after}", len(before)), (comments, len(comments))):
        if (braced := _braced(text, middle)) is not None:
            return braced
    opened = before.rfind("{")
    if opened >= 0 and (cut := _one_line(before[opened + 1 :].split("\n\n")[0])):
        return cut  # a brace that was never closed
    for prose in (before, after):
        for paragraph in re.split(r"\n\s*\n", prose):
            line = _one_line(paragraph.strip().lstrip("#>*- ").rstrip("* "))
            if any(letter.isalpha() for letter in line) and not line.endswith(":"):
                return line
    return None


def _braced(text: str, middle: int) -> str | None:
    """The outermost pair of braces that is best placed, or None.

    One before `middle` (where the code stood) before one after it; then one that begins a line; a LaTeX argument last.
    """
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for found in re.finditer(r"[{}]", text):
        if found.group() == "{":
            opened.append(found.start())
        elif opened:
            start = opened.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, found.start()))
    best: tuple[int, str] | None = None
    for start, stop in pairs[:_MAX_BRACES]:
        content = _one_line(text[start + 1 : stop])
        if not any(letter.isalpha() for letter in content):
            continue
        lead = text[max(0, start - 100) : start].split("\n")[-1]
        begins_line = re.fullmatch(r"[\s\d.)(#>*:`\"'-]*", lead)
        latex = re.search(r"\\\w+(?:\{[^{}]*\})*\Z", lead)
        rank = 2 if latex else 0 if begins_line else 1
        rank += 3 * (start >= middle)
        if best is None or rank < best[0]:
            best = (rank, content)
    return best[1] if best else None


def _one_line(text: str) -> str:
    line = " ".join(text[: 4 * MAX_DESCRIPTION].split())
    return line if len(line) <= MAX_DESCRIPTION else line[: MAX_DESCRIPTION - 1] + "…"
