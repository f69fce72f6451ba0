"""Append-only JSON lines that survive a kill at any moment: each append is one write, flushed to the disk.

A torn last line (the process died while writing) is ignored when reading and cut off before the next append; a broken line
anywhere else means that the file was damaged or edited, and is an error that names the line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ttc_esopt.errors import DataError


class JsonLines:
    """One append-only file of JSON objects, one per line, keys in the order in which they were given."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def read(self) -> list[dict]:
        """All whole lines. Raises DataError for a broken line that is not the last."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        records = []
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise DataError(
                    f"{self.path}, line {number}: expected a JSON object, got {line[:60]!r}; the file is damaged."
                )
            records.append(record)
        return records

    def append(self, *records: dict) -> None:
        """Write the records in one piece and force them to the disk; a torn line before them is cut off first."""
        if not records:
            return
        text = "".join(line + "\n" for line in lines_of(records))
        with open(self.path, "ab") as file:
            if file.tell():
                file.truncate(self._end_of_last_line())
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _end_of_last_line(self) -> int:
        """Bytes up to and with the last newline; whole lines are never cut."""
        with open(self.path, "rb") as file:
            position = file.seek(0, os.SEEK_END)
            while position > 0:
                block = min(65536, position)
                file.seek(position - block)
                found = file.read(block).rfind(b"\n")
                if found >= 0:
                    return position - block + found + 1
                position -= block
        return 0


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader or a kill never sees half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def lines_of(records: Iterable[dict]) -> list[str]:
    """Records as the lines that `append` writes, to compare what was stored with what was made again."""
    return [json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records]
