"""bubblewrap: the zygote and its children see only the folders that they need, and no network or process of others.

Everything is mounted read-only except the scratch folder. Folders in which numba keeps compiled code can be written by
the zygote, which needs that to start at all; candidates are kept from them by Landlock or by the system-call filter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ttc_esopt.evaluation import landlock

NOT_INSTALLED = "bubblewrap is not installed"
_SECONDS = 60.0  # imports on a slow network disk
_CACHE = "/tmp/cache"  # inside; lost at the end


def program() -> str | None:
    """Path of the installed bubblewrap, None if there is none."""
    return shutil.which("bwrap")


def _users_cache() -> Path:
    return landlock.home() / ".cache" / "numba"


def compiled_code() -> list[str]:
    """Existing folders in which numba may keep this package's compiled kernels; the user's own are made if need be."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        with contextlib.suppress(OSError):
            os.makedirs(chosen, exist_ok=True)
        return [os.path.abspath(chosen)]
    found = [path for folder in landlock.package_folders() for path in sorted(Path(folder).rglob("__pycache__"))]
    with contextlib.suppress(OSError):  # a home that cannot be written to; the folder inside must do
        _users_cache().mkdir(parents=True, exist_ok=True)
        found.append(_users_cache())
    return [str(path) for path in found]


def command(
    arguments: Sequence[str],
    *,
    read: Sequence[str],
    write: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """A command line that runs `arguments` inside.

    Parameters
    ----------
    arguments : what to run
    read, write : folders and files to show under their own names; those that do not exist are left out
    environment : variables to set; whoever starts the command must pass these alone

    Raises
    ------
    FileNotFoundError
        bubblewrap is not installed.
    """
    bubblewrap = program()
    if bubblewrap is None:
        raise FileNotFoundError(NOT_INSTALLED)
    # No --die-with-parent: it means the thread that started the command, and such threads come and go. The zygote
    # watches its parent itself, and its end is the end of all in here. As the first process it is alone with its
    # children: one of bubblewrap's own would hold the zygote's pipes, open to be read under /proc.
    result = [bubblewrap, "--unshare-all", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"]
    result += ["--tmpfs", "/tmp"]
    for option, paths in (("--ro-bind-try", read), ("--bind-try", write)):
        for path in dict.fromkeys(map(os.path.abspath, paths)):
            if not path.startswith(("/proc/", "/dev/")):
                result += [option, path, path]
    result += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in environment.items():
        result += ["--setenv", name, value]
    if str(_users_cache()) not in write:
        # Where numba finds no folder at all to keep compiled code in, it refuses to load a kernel.
        result += ["--setenv", "XDG_CACHE_HOME", _CACHE]
    return [*result, *arguments]


def fault() -> str:
    """Why this process's interpreter, in its environment, does not start under bubblewrap; empty if it does."""
    if program() is None:
        return NOT_INSTALLED
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return "bubblewrap is of use here from Linux 5.3 on"
    test = "import numpy, ttc_esopt.evaluation.landlock, os; print(sorted(os.listdir('/proc')))"
    inside = command(
        [sys.executable, "-P", "-c", test], read=landlock.readable(), write=compiled_code(), environment=os.environ
    )
    try:
        answer = subprocess.run(
            inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    if answer.returncode == 0:
        return ""
    said = [line.partition(", likely")[0].strip() for line in answer.stderr.splitlines() if line.strip()]
    return f"bubblewrap does not work here ({said[-1][:200] if said else f'exit status {answer.returncode}'})"
