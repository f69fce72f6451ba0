"""Landlock: which files a candidate may read, and the one folder in which it may write (Linux 5.13 and later).

The folder is kept flat (no sub-folders, links or sockets), so that emptying it afterwards is simple and sure.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8, 1 << 14
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_LIBC = ctypes.CDLL(None, use_errno=True)
_FILE_RIGHTS = _WRITE_FILE | _READ_FILE | _TRUNCATE

# Programs, libraries and what Python and the C library look up; nothing that holds a secret.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/opt", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/mime.types",
    "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg",
)  # fmt: skip


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result


def version() -> int:
    """Version of the kernel's Landlock interface, 0 where there is none."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def home() -> Path:
    """The user's home; for a user of whom the system knows none, a folder that does not exist."""
    return Path(os.path.expanduser("~")).resolve()


def readable() -> list[str]:
    """What a candidate may read: the system's programs, and where Python finds its modules (but no home folder)."""
    own = home()
    python = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)]
    python += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    python += package_folders()
    # A module folder that is or holds the whole home (a PYTHONPATH of ~) opens nothing.
    return [*_SYSTEM, *(path for path in dict.fromkeys(python) if not own.is_relative_to(Path(path).resolve()))]


def package_folders() -> list[str]:
    """Where this package's own modules lie: apart from all others in an editable install."""
    found = []
    for name in ("ttc_esopt", "ttc_esopt.problems", "ttc_esopt.solvers"):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            found += spec.submodule_search_locations or []
    return found


def restrict(scratch: str, read: Sequence[str]) -> None:
    """Confine the calling process, for good, to reading `read` and writing in `scratch` (needs no_new_privs).

    Raises
    ------
    OSError
        The kernel has no Landlock.
    """
    abi = version()
    rights = _RIGHTS.get(abi, _RIGHTS[5])
    attributes = struct.pack("=Q", rights)
    if abi >= 4:
        attributes += struct.pack("=Q", 3)  # no binding or connecting of TCP sockets
    if abi >= 6:
        attributes += struct.pack("=Q", 3)  # no abstract sockets of others, no signals to others
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    inside = _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
    rules = [(path, _READ_FILE | _READ_DIR) for path in read]
    for path, allowed in [*rules, ("/dev/null", _READ_FILE | _WRITE_FILE | _TRUNCATE), (scratch, inside)]:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # this system has no such folder
            continue
        if not os.path.isdir(path):
            allowed &= _FILE_RIGHTS
        rule = struct.pack("=Qi", allowed & rights, beneath)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
        os.close(beneath)
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
