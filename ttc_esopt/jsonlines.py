"""Append-only JSON lines that survive a kill or a full disk at any byte, and files that are replaced in one step.

A torn last line (no newline at its end, or no JSON) is no error: reading ignores it, and it is cut off before the
next append. A broken line with others after it is one. Floats are written by `repr`, so the same records are the same
bytes and every float is read back exactly.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ttc_esopt.errors import DataError


class JsonLines:
    """An append-only file of JSON objects; it is opened at the first `append`.

    Parameters
    ----------
    path : the file; its folder must exist, the file need not

    Use as a context manager, or call `close`.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def append(self, *records: dict) -> None:
        """Write the records in one piece and wait until they are on the disk.

        Raises
        ------
        DataError
            If the file has a broken line before its last, or cannot be written (after a failed write it holds what it
            held before).
        ValueError
            If a record holds NaN or an infinite number: JSON has none.
        """
        data = "".join(line + "\n" for line in lines_of(records)).encode()
        try:
            if self._fd is None:
                self._open()
            end = os.lseek(self._fd, 0, os.SEEK_END)
            try:
                _write_all(self._fd, data)
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, end)
                raise
        except OSError as error:
            raise DataError(f"Cannot write {self.path}: {error.strerror}.") from error

    def read(self) -> list[dict]:
        """All whole records in order; an absent file holds none. Raises DataError for a broken line before the last."""
        return self._scan()[0]

    def cut(self, count: int) -> None:
        """Keep the first `count` records. Raises DataError if the file cannot be written."""
        records = self._scan()[0]
        self.close()
        whole = sum(len(line.encode()) + 1 for line in self.path.read_text().split("\n")[: min(count, len(records))])
        try:
            os.truncate(self.path, whole)
        except OSError as error:
            raise DataError(f"Cannot write {self.path}: {error.strerror}.") from error

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        created = not self.path.exists()
        whole = self._scan()[1]
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        if os.fstat(self._fd).st_size > whole:
            os.ftruncate(self._fd, whole)
        if created:
            sync_folder(self.path.parent)

    def _scan(self) -> tuple[list[dict], int]:
        """The whole records and the number of bytes they take."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise DataError(f"Cannot read {self.path}: {error.strerror}.") from error
        records, position = [], 0
        lines = data.split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # the piece after the last newline is torn, or empty
            record = parsed(line)
            if record is None:
                if any(piece for piece in lines[number:]):
                    raise DataError(f"Expected a JSON object in line {number} of {self.path}, got {line[:60]!r}.")
                break
            records.append(record)
            position += len(line) + 1
        return records, position


def lines_of(records: Iterable[dict]) -> list[str]:
    """Records as `append` writes them (without the newline)."""
    return [json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that neither a reader nor a kill ever sees half of it; makes its folder.

    Raises DataError if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error.strerror}.") from error


def hold(path: Path) -> BinaryIO:
    """Open a file of a folder for this process alone, until it is closed; the file is made if it is not there.

    Raises
    ------
    DataError
        Another process holds it, or it cannot be written.
    """
    try:
        file = open(path, "ab")  # noqa: SIM115  held until the caller closes it
        sync_folder(path.parent)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise DataError(f"Another process is writing to {path.parent}; wait for it or stop it.") from None
    except OSError as error:
        raise DataError(f"Cannot write to {path.parent}: {error.strerror}.") from None
    return file


def sync_folder(folder: Path) -> None:
    """The name of a new file is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parsed(line: bytes | str) -> dict | None:
    """The object of a line; None where it holds none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
