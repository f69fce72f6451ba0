"""The history of a run: one JSON object per line, append-only, on the disk before `append` returns.

The process may be killed, or the disk may fill, at any byte. A torn last line (no newline at its end, or no valid
JSON) is therefore not an error: reading ignores it, and opening for append cuts it off. A broken line with others
after it is one. Records are written with sorted keys, without spaces and with floats by `repr`, so that the same
records are the same bytes and every float is read back exactly.
"""

import json
import os
from pathlib import Path

from ttc_esopt.errors import DataError


class History:
    """An append-only file of JSON records (`history.jsonl`); the file is opened at the first `append`.

    Parameters
    ----------
    path : the file; its folder must exist, the file need not

    Use as a context manager, or call `close`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._fd: int | None = None

    def append(self, record: dict) -> None:
        """Write one record and wait until it is on the disk.

        Raises
        ------
        DataError
            If the file has a broken line before its last, or cannot be written (after a failed write the file holds
            the records before it, and nothing of this one).
        ValueError
            If the record holds NaN or an infinite number: JSON has none.
        """
        line = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if self._fd is None:
                self._open()
            end = os.lseek(self._fd, 0, os.SEEK_END)
            try:
                _write_all(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, end)
                raise
        except OSError as error:
            raise DataError(f"Cannot write {self.path}: {error.strerror}.") from error

    def read(self) -> list[dict]:
        """All whole records in order; an absent file holds none. Raises DataError for a broken line before the last."""
        return self._scan()[0]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self) -> None:
        created = not self.path.exists()
        whole = self._scan()[1]
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        if os.fstat(self._fd).st_size > whole:
            os.ftruncate(self._fd, whole)
        if created:  # the name of a new file is on the disk only once its folder is
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

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
            record = _parsed(line)
            if record is None:
                if any(piece for piece in lines[number:]):
                    raise DataError(f"Expected a JSON object in line {number} of {self.path}, got {line[:60]!r}.")
                break
            records.append(record)
            position += len(line) + 1
        return records, position


def _parsed(line: bytes) -> dict | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
