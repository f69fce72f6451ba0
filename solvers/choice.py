"""Compiled heuristics that choose: what type they return, and one kernel-ready form of it.

A kernel that takes a heuristic as an argument wants a plain integer. Programs also return "an integer or None" (a loop
that starts with `best = None`) and, where a problem allows it, an array of one integer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types


def integer_choice(
    function: Any, arguments: tuple[types.Type, ...], *, arrays: bool = False
) -> Callable[..., Any] | None:
    """Compile a function for these argument types, in a form that returns an integer or raises.

    Parameters
    ----------
    function : a numba dispatcher
    arguments : numba types of its arguments
    arrays : whether it may return a one-dimensional array that holds one integer

    Returns
    -------
    a numba dispatcher; None if what the function returns is no integer

    Raises
    ------
    numba.core.errors.NumbaError
        The function cannot be compiled.
    """
    function.compile(arguments)
    result = function.overloads[arguments].signature.return_type
    if _is_integer(result):
        return function
    if isinstance(result, types.Optional) and _is_integer(result.type):
        return _never_none(function)
    if arrays and isinstance(result, types.Array) and result.ndim == 1 and _is_integer(result.dtype):
        return _only_element(function)
    return None


def _is_integer(kind: types.Type) -> bool:
    # the largest unsigned type does not fit into the int64 of the kernels
    return isinstance(kind, types.Integer) and (kind.signed or kind.bitwidth < 64)


def _never_none(function: Any) -> Any:
    @njit(nogil=True)
    def choose(*arguments):
        value = function(*arguments)
        if value is None:
            raise ValueError("nothing was chosen")
        return value

    @njit(nogil=True)
    def as_integer(*arguments):
        return 0 + choose(*arguments)  # the sum is an integer, where the value alone could still be None

    return as_integer


def _only_element(function: Any) -> Any:
    @njit(nogil=True)
    def choose(*arguments):
        value = function(*arguments)
        if value.size != 1:
            raise ValueError("expected one element")
        return value[0]

    return choose
