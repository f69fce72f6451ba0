"""What a forked child does to itself before it runs a candidate, and which of it this machine offers.

No privilege is needed, and none is kept: the child gives up what it can for good. Nothing heavy is imported here.

Two strengths have names. `full`: the kernel keeps candidates from others' files, processes and the network, which takes
the system-call filter (seccomp) and either Landlock or bubblewrap. `limits`: only those on time, memory and output.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ttc_esopt.errors import ConfigurationError, EvaluationError
from ttc_esopt.evaluation import bubblewrap, landlock, namespaces, seccomp

KERNEL_LAYERS = ("seccomp", "landlock", "namespaces", "bubblewrap")
_READ_ANY_FILE = 1 << 2  # CAP_DAC_READ_SEARCH
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 4, 36, 38
_LIBC = ctypes.CDLL(None, use_errno=True)
_LARGEST_FILE = 16 << 20  # bytes
# A candidate's process sees nothing of the user's environment but where Python and its modules are.
_KEPT = (
    "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUSERBASE", "NUMBA_CACHE_DIR", "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)  # fmt: skip
_PATHS = {"LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUSERBASE", "NUMBA_CACHE_DIR"}
_SET = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
}


@dataclass(frozen=True)
class Limits:
    """What one candidate may use: bytes of memory beyond its parent's own, seconds of processor time, descriptors."""

    memory: int
    cpu_seconds: int
    descriptors: int = 64


def prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def adopt_orphans() -> None:
    """Make the calling process the parent of whatever its dead children leave behind."""
    prctl(_SET_SUBREAPER, 1)


def hide() -> None:
    """Keep other processes of this user from the calling one's memory, environment and descriptors."""
    prctl(_SET_DUMPABLE, 0)


def drop_privileges() -> None:
    """Give up root's capabilities, for good, but for reading: Python's modules may lie in another user's home."""
    header = struct.pack("=Ii", 0x20080522, 0)
    held = ctypes.create_string_buffer(24)  # twice: effective, permitted, inheritable
    if _LIBC.capget(header, held) == 0 and any(held.raw):
        kept = struct.unpack("=6I", held.raw)[1] & _READ_ANY_FILE
        _LIBC.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0))


def address_space() -> int:
    """Bytes of address space in use by this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def detach(parent: int) -> None:
    """Give the calling process a session of its own, and an end with its parent (a process id); it leaves no core."""
    os.setsid()
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above took effect
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def enter(
    parent: int,
    scratch: str,
    limits: Limits,
    layers: Sequence[str],
    read: Sequence[str],
    *,
    folder: str | None = None,
) -> None:
    """Confine the calling process, for good.

    Parameters
    ----------
    parent : process id of the zygote; the child dies with it
    scratch : the only folder to write in
    limits : memory, processor time, descriptors
    layers : the kernel layers to use, of `KERNEL_LAYERS`
    read : folders and files that stay readable
    folder : current folder from now on; the scratch folder unless given

    Raises
    ------
    OSError
        The kernel refused a step.
    """
    detach(parent)
    os.chdir(folder or scratch)
    os.environ.update(HOME=scratch, TMPDIR=scratch, USER="candidate", LOGNAME="candidate")
    space = address_space() + limits.memory
    for what, limit in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE),
        (resource.RLIMIT_NOFILE, limits.descriptors),
    ):
        hard = resource.getrlimit(what)[1]
        # One second more for the hard limit on processor time: at the soft one the signal says what happened.
        bounds = (limit, limit + (what == resource.RLIMIT_CPU))
        resource.setrlimit(what, bounds if hard == resource.RLIM_INFINITY else [min(b, hard) for b in bounds])
    prctl(_SET_NO_NEW_PRIVS, 1)
    drop_privileges()
    if "landlock" in layers:
        landlock.restrict(scratch, read)
    if "seccomp" in layers:
        seccomp.install(allow_writing="landlock" in layers)


def kernel_layers() -> list[str]:
    """The layers that work inside one process here, found out by trying them (call it from one thread only)."""
    found = []
    if seccomp.machine_supported() and _dies_of_a_socket():
        found.append("seccomp")
    if landlock.version() and _cannot_open_a_folder():
        found.append("landlock")
    if _reaches_no_network():
        found.append("namespaces")
    return found


def _status_of_child(work: Callable[[], None]) -> int:
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


def _reaches_no_network() -> bool:
    def work() -> None:
        network = os.stat("/proc/self/ns/net").st_ino
        before = [path for path in landlock.readable() if os.access(path, os.R_OK)]
        namespaces.enter()
        # Root in a user namespace cannot read what belongs to others: Python may lie there.
        if os.stat("/proc/self/ns/net").st_ino != network and all(os.access(path, os.R_OK) for path in before):
            os._exit(0)

    with open(os.devnull, "w") as quiet:  # the traceback of a refusal is no news
        kept = os.dup(2)
        os.dup2(quiet.fileno(), 2)
        try:
            return _status_of_child(work) == 0
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@dataclass(frozen=True)
class Found:
    """What works on this machine.

    Attributes
    ----------
    layers : of `KERNEL_LAYERS`
    missing : layer -> why it does not work, one phrase
    read, write : what a zygote needs to see of the file system, for bubblewrap
    """

    layers: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


def probe() -> None:
    """Print what `found` is to return, as JSON; for a process of its own, which has no threads."""
    layers = kernel_layers()
    fault = bubblewrap.fault()
    missing = {"bubblewrap": fault} if fault else {}
    layers += [] if fault else ["bubblewrap"]
    if "seccomp" not in layers:
        known = (
            "the kernel has no seccomp filters" if seccomp.machine_supported() else "this processor is not supported"
        )
        missing["seccomp"] = f"no seccomp: {known}"
    if "landlock" not in layers:
        missing["landlock"] = "the kernel has no Landlock (Linux 5.13 or later with landlock in its lsm= list)"
    if "namespaces" not in layers:
        missing["namespaces"] = "this user may not make user namespaces"
    print(json.dumps([layers, missing, landlock.readable(), bubblewrap.compiled_code()]))


def environment() -> dict[str, str]:
    """What zygotes get of this process's environment, and what is set for them."""
    kept = {name: os.environ[name] for name in _KEPT if os.environ.get(name)}
    for name in _PATHS & kept.keys():  # the current folder may be another one inside
        kept[name] = os.pathsep.join(os.path.abspath(path) for path in kept[name].split(os.pathsep) if path)
    return kept | _SET


def found() -> Found:
    """What works on this machine for zygotes; tried once, then known.

    Raises
    ------
    EvaluationError
        The trial itself failed.
    """
    return _found(tuple(sorted(environment().items())))


@functools.cache
def _found(variables: tuple[tuple[str, str], ...]) -> Found:
    # In a process of its own: this one may have threads, with which forking is unsafe.
    code = "from ttc_esopt.evaluation import sandbox; sandbox.probe()"
    said = ""
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True, text=True, errors="replace", env=dict(variables), timeout=120, check=False,
        )  # fmt: skip
        said = answer.stderr.strip().rpartition("\n")[2]
        layers, missing, read, write = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise EvaluationError(f"What the sandbox offers here cannot be found out: {said or error}") from error
    return Found(tuple(layers), missing, tuple(read), tuple(write))


def usable(layers: Sequence[str] = KERNEL_LAYERS) -> tuple[str, ...]:
    """Which of these layers work here; bubblewrap makes namespaces of its own, so the latter go without it only."""
    works = [layer for layer in found().layers if layer in layers]
    # Only the filter or Landlock keep a candidate from the folders that bubblewrap leaves open to the zygote.
    if "bubblewrap" in works and not {"seccomp", "landlock"} & set(works):
        works.remove("bubblewrap")
    return tuple(layer for layer in works if layer != "namespaces" or "bubblewrap" not in works)


def strength(layers: Sequence[str] = KERNEL_LAYERS) -> str:
    """`full` or `limits`: what the working ones of these layers come to."""
    works = usable(layers)
    return "full" if "seccomp" in works and ("landlock" in works or "bubblewrap" in works) else "limits"


def require(layers: Sequence[str] = KERNEL_LAYERS) -> None:
    """Insist on a full sandbox.

    Raises
    ------
    ConfigurationError
        There is none here; the message says what is missing and how to get it.
    """
    if strength(layers) != "full":
        raise ConfigurationError(f"Expected a full sandbox (--sandbox required), but {_lacking(layers)}. {_HOW}")


def warning(layers: Sequence[str] = KERNEL_LAYERS) -> str | None:
    """One line for the user where candidates are only limited, not shut in; None where the sandbox is full."""
    if strength(layers) == "full":
        return None
    works = usable(layers)
    if "seccomp" in works:
        can = "read your files"
    else:
        can = "reach the network" if "landlock" in works else "read and change your files and reach the network"
    return f"Model-written programs can {can} on this machine: {_lacking(layers)}. {_HOW}"


_HOW = (
    "Install bubblewrap (apt install bubblewrap, dnf install bubblewrap) or use Linux 5.13 or later with Landlock "
    "on x86-64 or AArch64; ttc-esopt doctor says what works."
)


def _lacking(layers: Sequence[str]) -> str:
    here, works = found(), usable(layers)
    needed = ["seccomp"] if "seccomp" not in works else ["landlock", "bubblewrap"]
    return " and ".join(here.missing.get(layer, f"{layer} is switched off") for layer in needed)


def sandbox_layers() -> list[str]:
    """What protects this machine from candidates, one phrase per layer, strongest kernel layers last."""
    works = usable()
    phrases = [
        "one process per candidate, killed with its group",
        "limits on time, memory, file size and output",
        "no inherited environment, files or input",
    ]
    if "seccomp" in works:
        phrases.append("seccomp: no new processes, no network, no signals to others")
    if "landlock" in works:
        phrases.append(f"Landlock version {landlock.version()}: writes in a scratch folder only, home not readable")
    elif "seccomp" in works:
        phrases.append("seccomp: no writing to any file")
    if "namespaces" in works:
        phrases.append("namespaces: no network devices, no shared memory of others")
    if "bubblewrap" in works:
        phrases.append("bubblewrap: no network, no sight of other processes, only the needed folders, read-only")
    return phrases


def advice() -> list[str]:
    """What would make the sandbox of this machine stronger, one phrase each; empty if nothing is missing."""
    missing = found().missing
    phrases = [missing[layer] for layer in ("seccomp", "landlock", "bubblewrap") if layer in missing]
    if missing.get("bubblewrap") == bubblewrap.NOT_INSTALLED:
        phrases[-1] += " (apt install bubblewrap, dnf install bubblewrap)"
    if {"namespaces", "bubblewrap"} <= missing.keys():  # the zygote's own only stand in for bubblewrap
        settings = (
            "sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns; in a container, its rules"
        )
        phrases.append(f"{missing['namespaces']} ({settings})")
    return phrases
