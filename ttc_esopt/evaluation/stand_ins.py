"""What compiled programs find in place of `numpy`, `math` and a few built-in functions.

Each stand-in gives Python's answer to the last bit, or raises so that Python can be asked: `int` of a huge number, a
function of `math` outside its domain, `np.argsort` of equal numbers. Sums and means add in numpy's own order, and also
take an axis, as does `np.ix_` as an index; numba has neither. What is left out here cannot be compiled.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

# Random numbers, orders of equals that are numpy's own affair, numbers of other widths (which follow other rules of
# promotion in compiled code), memory that nobody has written to, settings and files.
_NOT_OF_NUMPY = frozenset({
    "argpartition", "partition", "random", "half", "single", "float16", "float32", "longdouble", "complex64",
    "complex128", "csingle", "cdouble", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "uint",
    "uintp", "byte", "ubyte", "short", "ushort", "intc", "uintc", "average", "std", "var", "seterr", "seterrcall",
    "errstate", "setbufsize", "load", "save", "savez", "savetxt", "loadtxt", "fromfile", "memmap", "empty",
    "empty_like",
})  # fmt: skip


@njit
def exact_int(value):
    """`int(value)` for numbers of at most 62 bits."""
    if not -4e18 < value < 4e18:  # NaN too
        raise OverflowError("no 64-bit integer")
    return int(value)


@njit
def argsort(values):
    """`np.argsort` of an array without equal numbers."""
    order = np.argsort(values)
    for i in range(1, len(order)):
        if not values[order[i - 1]] < values[order[i]]:
            raise ValueError("equal numbers, which numpy orders in its own way")
    return order


@njit
def _pairwise(values, first, count):
    """The sum of `count` values in the order of numpy's additions."""
    if count < 8:
        total = 0.0
        for i in range(first, first + count):
            total += values[i]
        return total
    if count <= 128:
        a, b, c, d = values[first], values[first + 1], values[first + 2], values[first + 3]
        e, f, g, h = values[first + 4], values[first + 5], values[first + 6], values[first + 7]
        whole = count - count % 8
        for i in range(first + 8, first + whole, 8):
            a += values[i]
            b += values[i + 1]
            c += values[i + 2]
            d += values[i + 3]
            e += values[i + 4]
            f += values[i + 5]
            g += values[i + 6]
            h += values[i + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
        for i in range(first + whole, first + count):
            total += values[i]
        return total
    half = count // 2
    half -= half % 8
    return _pairwise(values, first, half) + _pairwise(values, first + half, count - half)


def total(values):
    """`np.sum(values)`."""
    raise NotImplementedError("for compiled code")


def total_axis(values, axis):
    """`np.sum(values, axis=axis)` of a matrix."""
    raise NotImplementedError("for compiled code")


def _is_float_array(kind: types.Type, dimensions: tuple[int, ...]) -> bool:
    return (
        isinstance(kind, types.Array)
        and kind.dtype == types.float64
        and kind.ndim in dimensions
        # other layouts are added in an order that depends on their strides
        and (kind.ndim == 1 or kind.layout == "C")
    )


@overload(total)
def _total(values):
    if _is_float_array(values, (1,)):
        return lambda values: _pairwise(values, 0, len(values))
    if _is_float_array(values, (2,)):
        return lambda values: _pairwise(values.ravel(), 0, values.size)
    if isinstance(values, types.Array) and isinstance(values.dtype, types.Integer | types.Boolean):

        def integers(values):
            result = 0
            for value in values.flat:
                result += value
            return result

        return integers
    if isinstance(values, types.List | types.UniTuple) and values.dtype == types.float64:
        return lambda values: _pairwise(np.array(values), 0, len(values))
    return None


@overload(total_axis)
def _total_axis(values, axis):
    if not _is_float_array(values, (2,)):
        return None

    def matrix(values, axis):
        rows, columns = values.shape
        if axis == 1 or axis == -1:
            result = np.empty(rows)
            for i in range(rows):
                result[i] = _pairwise(values[i], 0, columns)
            return result
        if axis != 0 and axis != -2:
            raise ValueError("no such axis")
        result = np.zeros(columns)
        for i in range(rows):
            for j in range(columns):
                result[j] += values[i, j]
        return result

    return matrix


@njit
def mean(values):
    """`np.mean(values)`."""
    if len(values) == 0:
        raise ValueError("the mean of nothing")
    return total(values) / np.float64(np.asarray(values).size)


@njit
def mean_axis(values, axis):
    """`np.mean(values, axis=axis)` of a matrix."""
    if values.size == 0:
        raise ValueError("the mean of nothing")
    return total_axis(values, axis) / np.float64(values.shape[axis])


@njit
def least_axis(values, axis):
    """`np.min(values, axis=axis)` of a matrix without NaN."""
    return _extreme_axis(values, axis, 1.0)


@njit
def most_axis(values, axis):
    """`np.max(values, axis=axis)` of a matrix without NaN."""
    return _extreme_axis(values, axis, -1.0)


@njit
def _extreme_axis(values, axis, sign):
    rows, columns = values.shape
    if values.size == 0 or not (axis == 0 or axis == 1 or axis == -1):
        raise ValueError("no numbers, or another axis")
    result = values[0].copy() if axis == 0 else values[:, 0].copy()
    for i in range(rows):
        for j in range(columns):
            k = j if axis == 0 else i
            if np.isnan(values[i, j]):
                raise ValueError("not a number")
            if sign * values[i, j] < sign * result[k]:
                result[k] = values[i, j]
    return result


@njit
def grid(matrix, rows, columns):
    """`matrix[np.ix_(rows, columns)]` of a matrix and two arrays of integers."""
    result = np.empty((len(rows), len(columns)), matrix.dtype)
    for i in range(len(rows)):
        for j in range(len(columns)):
            if not (0 <= rows[i] < matrix.shape[0] and 0 <= columns[j] < matrix.shape[1]):
                raise IndexError("no place from 0 on")
            result[i, j] = matrix[rows[i], columns[j]]
    return result


def _finite(function: Any) -> Any:
    """A function of `math` that raises where Python's would (and in a few more cases)."""

    @njit
    def checked(value):
        result = function(value)
        if not -4e18 < result < 4e18:
            raise ValueError("outside the domain")
        return result

    return checked


def _whole(function: Any) -> Any:
    @njit
    def checked(value):
        if not -4e18 < value < 4e18:
            raise OverflowError("no 64-bit integer")
        return function(value)

    return checked


def _proxy(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    return module


_ANYWHERE = ("pi", "e", "tau", "inf", "nan", "isnan", "isinf", "isfinite", "hypot", "atan2", "fabs", "copysign")
_SOMEWHERE = (
    "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh",
)  # fmt: skip
_MATH = {name: getattr(math, name) for name in _ANYWHERE}
_MATH |= {name: _finite(getattr(math, name)) for name in _SOMEWHERE}
_MATH |= {name: _whole(getattr(math, name)) for name in ("floor", "ceil", "trunc")}
# Without numpy's own __getattr__, which would bring back what is left out.
_NUMPY = {name: value for name, value in vars(np).items() if name not in _NOT_OF_NUMPY and not name.startswith("_")}
NUMPY = _proxy("numpy", _NUMPY | {"argsort": argsort})
MODULES = {"numpy": NUMPY, "math": _proxy("math", _MATH)}
# What rewritten programs call, under names that no program can use.
_REPLACED = (exact_int, total, total_axis, mean, mean_axis, least_axis, most_axis, grid)
HELPERS = {f"__{function.__name__}": function for function in _REPLACED}
