"""Text files read line by line, and errors that name the file, the line, what was expected and what was found."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from ttc_esopt.errors import DataError

LARGEST_FILE = 256 * 2**20  # bytes; the largest published instance files are a tenth of it
LARGEST_NUMBER = 1e15  # whole numbers up to here are exact in float64
MOST_DIGITS = 40  # longest number that is looked at


def shown(text: object, most: int = 40) -> str:
    """A piece of a file for an error message: quoted, on one line, at most `most` characters."""
    text = str(text)
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def shown_path(path: str | os.PathLike) -> str:
    """A path for an error message, always on one line."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


class TextFile:
    """The lines of a text file that hold something.

    Attributes
    ----------
    path : the file
    lines : (line number from 1, stripped text) of every line that is not blank
    last : number of the last line

    Raises
    ------
    DataError
        There is no such file, or it is a folder, too large, binary or empty.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        text = _read(self.path)
        every = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.last = len(every) - (len(every) > 1 and not every[-1])
        self.lines = [(number, line.strip()) for number, line in enumerate(every, 1) if line and not line.isspace()]
        if not self.lines:
            raise DataError(f"{shown_path(path)}, line 1: expected an instance or a solution, got an empty file.")

    def fault(self, line: int, expected: str, got: str) -> DataError:
        """The error to raise for a line; `got` is quoted already where it is a piece of the file."""
        return DataError(f"{shown_path(self.path)}, line {line}: expected {expected}, got {got}.")

    def ended(self, expected: str) -> DataError:
        """The error to raise where the file stops too early."""
        return self.fault(self.last, expected, "the end of the file")

    def number(self, token: str, line: int, what: str = "a number") -> float:
        """One finite number.

        Raises
        ------
        DataError
            It is none, it is NaN or infinite, or above 1e15.
        """
        plain = token.isascii() and "_" not in token and len(token) <= MOST_DIGITS
        try:
            value = float(token) if plain else math.nan
        except ValueError:
            value = math.nan
        if not abs(value) <= LARGEST_NUMBER:
            raise self.fault(line, f"{what} (finite, at most 1e15)", shown(token))
        return value

    def integer(self, token: str, line: int, what: str = "a whole number", least: int | None = None) -> int:
        """One whole number, also written as 100.0; at least `least`.

        Raises
        ------
        DataError
            It is no such number.
        """
        value = self.number(token, line, what)
        if not value.is_integer():
            raise self.fault(line, f"{what} (whole)", shown(token))
        if least is not None and value < least:
            raise self.fault(line, f"{what} of at least {least}", shown(token))
        return int(value)

    def numbers(self, tokens: Sequence[str], line: int, what: str = "a number") -> list[float]:
        """All numbers of a line; as `number`, but faster where nothing is wrong."""
        try:
            values = [float(token) for token in tokens]
        except ValueError:
            values = [math.nan]
        good = all(abs(value) <= LARGEST_NUMBER for value in values)
        if good and all(token.isascii() and "_" not in token and len(token) <= MOST_DIGITS for token in tokens):
            return values
        return [self.number(token, line, what) for token in tokens]


class Tokens:
    """The numbers of a text file one after the other, wherever its lines break."""

    def __init__(self, text: TextFile, lines: Sequence[tuple[int, str]] | None = None) -> None:
        self.text = text
        lines = text.lines if lines is None else lines
        self._all = [(token, line) for line, content in lines for token in content.split()]
        self._next = 0

    @property
    def left(self) -> int:
        """How many tokens have not been taken."""
        return len(self._all) - self._next

    def take(self, what: str) -> tuple[str, int]:
        """The next token and its line; `what` is expected there."""
        if not self.left:
            raise self.text.ended(what)
        self._next += 1
        return self._all[self._next - 1]

    def some(self, count: int, what: str) -> list[tuple[str, int]]:
        """The next `count` tokens, refused at once where the file is too short to hold them."""
        if count > self.left:
            raise self.text.ended(f"{count} {what}, {self.left} of them found")
        return [self.take(what) for _ in range(count)]

    def number(self, what: str) -> float:
        """The next token as a number."""
        token, line = self.take(what)
        return self.text.number(token, line, what)

    def integer(self, what: str, least: int | None = None) -> int:
        """The next token as a whole number."""
        token, line = self.take(what)
        return self.text.integer(token, line, what, least)

    def finish(self, what: str) -> None:
        """Nothing may be left; `what` is what the file has held so far."""
        if self.left:
            token, line = self._all[self._next]
            raise self.text.fault(line, f"nothing after {what}", shown(token))


def _read(path: Path) -> str:
    place = shown_path(path)
    try:
        if path.is_dir():
            raise DataError(f"{place}: expected a text file, got a folder.")
        if not path.is_file():
            found = "something that is no file" if path.exists() else "nothing there"
            raise DataError(f"{place}: expected a text file, got {found}.")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise DataError(f"{place}: expected a file of at most {LARGEST_FILE} bytes, got {size}.")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise DataError(f"{place}: expected a readable text file, got: {error}.") from None
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        raise DataError(f"{place}, line {line}: expected text, got a binary file (a null byte).")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
