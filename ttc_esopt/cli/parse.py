"""`ttc-esopt parse`: what the reply parser makes of replies saved in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ttc_esopt.errors import ConfigurationError

if TYPE_CHECKING:
    from ttc_esopt.scaffolds.replies import Parsed

KINDS = ("function", "class")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("parse")(parse)


def parse(
    files: list[Path] = typer.Argument(..., metavar="FILE", help="Files that hold one reply each (UTF-8)."),
    function: str = typer.Option(..., "--function", metavar="NAME", help="The name that the program must define."),
    kind: str = typer.Option("function", "--kind", help="What NAME must be: function or class."),
    prefill_file: Path | None = typer.Option(
        None, "--prefill-file", metavar="FILE", help="The text that the prompt had started for the model."
    ),
    truncated: bool = typer.Option(False, "--truncated", help="The replies were cut at the token limit."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per file, in order."),
) -> None:
    """Show which program and description a model's reply yields. Nothing is executed or written; no model is needed.

    A rejected reply is a result, not an error: the exit status is 0 if all files could be read.

    \b
    Examples:
      ttc-esopt parse --function select_next_node reply.txt
      ttc-esopt parse --function f --prefill-file started.txt --json replies/*.txt
    """
    from ttc_esopt.scaffolds.replies import parse_reply

    if kind not in KINDS:
        raise ConfigurationError(f"Expected one of {', '.join(KINDS)}, got {kind!r} (--kind).")
    if not function.isidentifier():
        raise ConfigurationError(f"Expected the name of a {kind}, got {function!r} (--function).")
    prefill = "" if prefill_file is None else _text(prefill_file, "--prefill-file")
    replies = [_text(path, "FILE") for path in files]  # all read first: a missing file gives no half result
    for path, reply in zip(files, replies, strict=True):
        parsed = parse_reply(reply, function, kind=kind, prefill=prefill, truncated=truncated)
        typer.echo(_json(parsed) if as_json else _readable(path, parsed))


def _text(path: Path, option: str) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror or error} ({option}).") from None


def _json(parsed: Parsed) -> str:
    keys = ("ok", "code", "description", "truncated", "reason")
    return json.dumps({key: getattr(parsed, key) for key in keys})


def _readable(path: Path, parsed: Parsed) -> str:
    """A few lines for people; control characters, which could steer a terminal, are shown as U+FFFD."""
    if parsed.ok:
        described = parsed.description if parsed.description is not None else "(none)"
        text = f"{path}: accepted\ndescription: {described}\n\n{parsed.code}"
    else:
        text = f"{path}: rejected. {parsed.reason}\n"
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
