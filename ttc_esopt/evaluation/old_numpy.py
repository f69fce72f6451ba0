"""Names that numpy 2 took away, for programs: language models learnt numpy from code that is older than that.

Published figures come from such programs too. What numpy 1.24 and earlier releases removed stays away.
"""

from __future__ import annotations

import numpy as np

_RENAMED = {
    "Inf": "inf", "Infinity": "inf", "infty": "inf", "PINF": "inf", "NaN": "nan", "float_": "float64",
    "complex_": "complex128", "longfloat": "longdouble", "singlecomplex": "complex64", "cfloat": "complex128",
    "clongfloat": "clongdouble", "longcomplex": "clongdouble", "string_": "bytes_", "unicode_": "str_",
    "trapz": "trapezoid", "row_stack": "vstack", "product": "prod", "cumproduct": "cumprod", "sometrue": "any",
    "alltrue": "all", "round_": "round", "mat": "asmatrix",
}  # fmt: skip


def restore() -> None:
    """Give this process's numpy the old names that it lacks."""
    for old, new in _RENAMED.items():
        if old not in np.__dict__ and new in np.__dict__:
            setattr(np, old, getattr(np, new))
    np.__dict__.setdefault("NINF", -np.inf)
    np.__dict__.setdefault("NZERO", -0.0)
    np.__dict__.setdefault("PZERO", 0.0)
    np.__dict__.setdefault("in1d", _in1d)
    np.__dict__.setdefault("msort", lambda a: np.sort(a, axis=0))
    np.__dict__.setdefault("asfarray", lambda a, dtype=np.float64: np.asarray(a, dtype=dtype))


def _in1d(ar1, ar2, assume_unique=False, invert=False):
    return np.isin(ar1, ar2, assume_unique=assume_unique, invert=invert).ravel()
