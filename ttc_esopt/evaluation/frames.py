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
_DTYPES = {"int64": np.dtype("<i8"), "float64": np.dtype("<f8")}
# The failures that a child itself reports; all others are seen from outside.
REPORTED = frozenset({"syntax", "name", "exception", "memory", "crash", "infeasible", "nonfinite", "shape"})


class BadFrame(ValueError):
    """The bytes are no frame that a child of ours would send."""


@dataclass(frozen=True)
class Frame:
    """Either arrays, one per instance, or a failure word with its detail."""

    arrays: tuple[np.ndarray, ...] = ()
    failure: str | None = None
    detail: str = ""


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


def encode(arrays: Sequence[np.ndarray]) -> bytes:
    """A frame of arrays.

    Raises
    ------
    ValueError
        An array is neither int64 nor float64.
    """
    for array in arrays:
        if array.dtype.name not in _DTYPES:
            raise ValueError(f"expected int64 or float64, got {array.dtype}")
    header = json.dumps({"arrays": [[array.dtype.name, list(array.shape)] for array in arrays]})
    body = (array.astype(_DTYPES[array.dtype.name], copy=False).tobytes() for array in arrays)
    return b"".join([header.encode(), b"\n", *body])


def decode(data: bytes) -> Frame:
    """Read a frame; the arrays are read-only.

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
        failure, detail = header["failure"], header["detail"]
        if not (isinstance(failure, str) and failure in REPORTED and isinstance(detail, str)) or len(body):
            raise BadFrame("not a failure")
        return Frame(failure=failure, detail=clean(detail))
    if header.keys() != {"arrays"} or not isinstance(header["arrays"], list):
        raise BadFrame("neither arrays nor a failure")
    arrays = []
    for entry in header["arrays"]:
        dtype, shape = _array_entry(entry)
        size = math.prod(shape) * dtype.itemsize
        # numpy multiplies the lengths up even where one of them is zero
        if size > len(body) or math.prod(max(1, length) for length in shape) > LARGEST:
            raise BadFrame("less data than announced")
        arrays.append(np.frombuffer(bytes(body[:size]), dtype).reshape(shape))
        body = body[size:]
    if len(body):
        raise BadFrame("more data than announced")
    return Frame(arrays=tuple(arrays))


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
