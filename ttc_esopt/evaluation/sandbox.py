"""What a forked child does to itself before it runs a candidate, and which of it this machine's kernel offers.

No privilege is needed, and none is kept: the child gives up what it can for good. Nothing heavy is imported here.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ttc_esopt.evaluation import landlock, seccomp

KERNEL_LAYERS = ("seccomp", "landlock")
_SET_PDEATHSIG, _SET_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 36, 38
_LIBC = ctypes.CDLL(None, use_errno=True)
_LARGEST_FILE = 16 << 20  # bytes


@dataclass(frozen=True)
class Limits:
    """What one candidate may use: bytes of memory beyond the zygote's own, and seconds of processor time."""

    memory: int
    cpu_seconds: int


def prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def adopt_orphans() -> None:
    """Make the calling process the parent of whatever its dead children leave behind."""
    prctl(_SET_SUBREAPER, 1)


def address_space() -> int:
    """Bytes of address space in use by this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def enter(parent: int, scratch: str, limits: Limits, layers: Sequence[str], read: Sequence[str]) -> None:
    """Confine the calling process, for good.

    Parameters
    ----------
    parent : process id of the zygote; the child dies with it
    scratch : current folder from now on, the only one to write in
    limits : memory and processor time
    layers : the kernel layers to use, of `KERNEL_LAYERS`
    read : folders and files that stay readable

    Raises
    ------
    OSError
        The kernel refused a step.
    """
    os.setsid()
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the zygote died before the line above took effect
        os._exit(1)
    os.chdir(scratch)
    os.environ.update(HOME=scratch, TMPDIR=scratch, USER="candidate", LOGNAME="candidate")
    space = address_space() + limits.memory
    for what, limit in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        # One second more for the hard limit on processor time: at the soft one the signal says what happened.
        bounds = (limit, limit + (what == resource.RLIMIT_CPU))
        resource.setrlimit(what, bounds if hard == resource.RLIM_INFINITY else [min(b, hard) for b in bounds])
    prctl(_SET_NO_NEW_PRIVS, 1)
    if "landlock" in layers:
        landlock.restrict(scratch, read)
    if "seccomp" in layers:
        seccomp.install(allow_writing="landlock" in layers)


def kernel_layers() -> list[str]:
    """The kernel layers that work here, found out by trying them in a forked child (call it from one thread only)."""
    found = []
    if seccomp.machine_supported() and _dies_of_a_socket():
        found.append("seccomp")
    if landlock.version() and _cannot_open_a_folder():
        found.append("landlock")
    return found


def _status_of_child(work) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            prctl(_SET_NO_NEW_PRIVS, 1)
            work()
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def _dies_of_a_socket() -> bool:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seccomp.install(allow_writing=False)
        _LIBC.socket(1, 1, 0)

    status = _status_of_child(work)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def _cannot_open_a_folder() -> bool:
    def work() -> None:
        landlock.restrict("/nonexistent", [])
        try:
            os.listdir("/")
        except PermissionError:
            os._exit(0)

    return _status_of_child(work) == 0


def sandbox_layers() -> list[str]:
    """What protects this machine from candidates, one phrase per layer, strongest kernel layers last."""
    # In a process of its own: this one may have threads, with which forking is unsafe.
    code = "import json; from ttc_esopt.evaluation.sandbox import kernel_layers; print(json.dumps(kernel_layers()))"
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    kernel = json.loads(answer.stdout) if answer.returncode == 0 else []
    found = [
        "one process per candidate, killed with its group",
        "limits on time, memory, file size and output",
        "no inherited environment, files or input",
    ]
    if "seccomp" in kernel:
        found.append("seccomp: no new processes, no network, no signals to others")
    if "landlock" in kernel:
        found.append(f"Landlock version {landlock.version()}: writes in a scratch folder only, home not readable")
    elif "seccomp" in kernel:
        found.append("seccomp: no writing to any file")
    return found
