"""What a process does about a candidate that it has forked: look at its folder, end it, and say how it ended.

Shared by all that watch candidates, ours and those of other frameworks. Nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from typing import Any

SCRATCH, FILES = 64 << 20, 1000  # bytes and files that a candidate may leave in its scratch folder
TOO_MUCH = f"wrote more than {SCRATCH >> 20} MiB or {FILES} files"


def scratch_is_full(folder: str) -> bool:
    """Whether a candidate has left too much in its folder, which is flat; looked at several times a second."""
    used = files = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            files += 1
            with contextlib.suppress(OSError):
                used += 512 * entry.stat(follow_symlinks=False).st_blocks
            if files > FILES or used > SCRATCH:
                return True
    return False


def end_group(pid: int) -> tuple[int, Any]:
    """Kill a child that has not been waited for, with its group; its wait status and its use of resources."""
    # The child is not waited for yet, so its number cannot belong to another process.
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may not have come to setsid()
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def end_orphans(seconds: float | None = None) -> bool:
    """Kill children of this process until there are none, or for so long; whether there were any.

    Those of a dead child become the calling process's own (`sandbox.adopt_orphans`), whatever sessions they have made
    for themselves.
    """
    give_up = None if seconds is None else time.monotonic() + seconds
    any_left = False
    while give_up is None or time.monotonic() < give_up:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        any_left = True
        if not ended:
            for orphan in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.001)
    return any_left


def ended_by(number: int, memory: int, limit: int) -> tuple[str, str]:
    """Cause and detail of a child that a signal has ended.

    Parameters
    ----------
    number : the signal
    memory : the child's largest memory, in bytes
    limit : what it might use beyond this process's own, in bytes
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if number == signal.SIGSYS:
        return "forbidden", "tried what the sandbox forbids (process, network, signal)"
    if number == signal.SIGXCPU:
        return "timeout", "used up its processor time"
    if number == signal.SIGKILL and memory - own > limit // 2:
        return "memory", "killed by the system, probably for want of memory"
    return "crash", f"ended by signal {number} ({signal.strsignal(number)})"


def _children() -> list[int]:
    """Process ids of this process's children."""
    own, found = os.getpid(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # the name in parentheses may hold anything; after it: state, parent
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == own:
            found.append(int(name))
    return found
