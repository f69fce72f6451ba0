"""What a child sends back: one JSON line and raw array bytes, never a pickle.

The sender may be a hostile program, so the reader believes nothing: sizes, types and words are checked, and text is
cleaned before anyone prints it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LARGEST = 64 << 20  # bytes of one frame
_LONGEST_HEADER = 1 << 20
_LONGEST_DETAIL = 500  # characters
_ALIGNED = 64  # bytes
_DTYPES = {"int64": np.dtype("<i8"), "float64": np.dtype("<f8")}
# The failures that a child itself reports; all others are seen from outside.
REPORTED = frozenset({"syntax", "name", "exception", "memory", "crash", "infeasible", "nonfinite", "shape"})


class BadFrame(ValueError):
    """The bytes are no frame that a child of ours would send."""


@dataclass(frozen=True)
class Failure:
    """A failure word and one line about it."""

    word: str
    detail: str


@dataclass(frozen=True)
class Frame:
    """Either what each instance gave (an array, or its own failure), or a failure of the whole program.

    `compiled` and `compile_seconds` are what the child says of itself: good for a display, not for a decision.
    """

    outputs: tuple[np.ndarray | Failure, ...] = ()
    failure: Failure | None = None
    compiled: bool = False
    compile_seconds: float = 0.0


_CHANCE = re.compile(r"0x[0-9a-fA-F]+|/\S*/ttc-esopt-\w+")


def clean(text: str) -> str:
    """One printable line of at most 500 characters: no control characters, no lone surrogates.

    Addresses and the name of the scratch folder are taken out: two equal runs must write the same lines.
    """
    text = _CHANCE.sub("...", " ".join(text[: 4 * _LONGEST_DETAIL].split()))
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 3] + "..."


def encode_failure(failure: str, detail: str) -> bytes:
    return json.dumps({"failure": failure, "detail": clean(detail)}).encode() + b"\n"


def encode(
    outputs: Sequence[np.ndarray | Failure], *, compile_seconds: float | None = None
) -> list[bytes | memoryview]:
    """A frame of outputs, in pieces that are to be sent one after another (outputs can be large: none is copied).

    `compile_seconds` is None where the program ran in plain Python. The header is filled up with blanks, so that the
    numbers after it lie as a processor wants them.

    Raises
    ------
    ValueError
        An array is neither int64 nor float64.
    """
    entries, body = [], []
    for output in outputs:
        if isinstance(output, Failure):
            entries.append({"failure": output.word, "detail": clean(output.detail)})
            continue
        if output.dtype.name not in _DTYPES:
            raise ValueError(f"expected int64 or float64, got {output.dtype}")
        entries.append([output.dtype.name, list(output.shape)])
        array = np.ascontiguousarray(output, dtype=_DTYPES[output.dtype.name])
        body.append(memoryview(array.reshape(-1).view(np.uint8)))
    header = json.dumps({"outputs": entries, "compile_seconds": compile_seconds}).encode()
    return [header + b" " * (-(len(header) + 1) % _ALIGNED) + b"\n", *body]


def decode(data: bytes | bytearray) -> Frame:
    """Read a frame; the arrays of a bytearray share its memory.

    Raises
    ------
    BadFrame
        Anything at all is not as `encode` and `encode_failure` write it.
    """
    end = data.find(b"\n", 0, _LONGEST_HEADER)
    if end < 0:
        raise BadFrame("no header")
    try:
        header = json.loads(data[:end])
    except (ValueError, RecursionError):
        raise BadFrame("the header is not JSON") from None
    if not isinstance(header, dict):
        raise BadFrame("the header is no object")
    body = memoryview(data)[end + 1 :]
    if header.keys() == {"failure", "detail"}:
        if len(body):
            raise BadFrame("more than a failure")
        return Frame(failure=_failure(header))
    if header.keys() != {"outputs", "compile_seconds"} or not isinstance(header["outputs"], list):
        raise BadFrame("neither outputs nor a failure")
    seconds = header["compile_seconds"]
    if not (seconds is None or (isinstance(seconds, int | float) and 0 <= seconds < 1e6)):
        raise BadFrame("not a time")
    outputs: list[np.ndarray | Failure] = []
    for entry in header["outputs"]:
        if isinstance(entry, dict) and entry.keys() == {"failure", "detail"}:
            outputs.append(_failure(entry))
            continue
        dtype, shape = _array_entry(entry)
        size = math.prod(shape) * dtype.itemsize
        # numpy multiplies the lengths up even where one of them is zero
        if size > len(body) or math.prod(max(1, length) for length in shape) > LARGEST:
            raise BadFrame("less data than announced")
        array = np.frombuffer(body[:size], dtype).reshape(shape)
        # A sender of ours sends it aligned, but compiled code must never get another.
        outputs.append(array if array.flags.aligned and array.flags.writeable else array.copy())
        body = body[size:]
    if len(body):
        raise BadFrame("more data than announced")
    return Frame(outputs=tuple(outputs), compiled=seconds is not None, compile_seconds=float(seconds or 0.0))


def _failure(header: dict) -> Failure:
    failure, detail = header["failure"], header["detail"]
    if not (isinstance(failure, str) and failure in REPORTED and isinstance(detail, str)):
        raise BadFrame("not a failure")
    return Failure(failure, clean(detail))


def _array_entry(entry: object) -> tuple[np.dtype, tuple[int, ...]]:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)):
        raise BadFrame("not an array's header")
    name, shape = entry
    if name not in _DTYPES or len(shape) > 4:
        raise BadFrame("not an array's type or shape")
    # bool is an int to Python, but not a length
    if not all(type(length) is int and 0 <= length <= LARGEST for length in shape):
        raise BadFrame("not an array's shape")
    return _DTYPES[name], tuple(shape)
