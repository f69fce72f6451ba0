"""Namespaces of the zygote's own: no network, no shared memory of others, for it and every child it forks.

Entered once, before anything is imported that might start a thread; a candidate then costs no more than before.
Needs a kernel that lets ordinary users make user namespaces. bubblewrap does all this and more where it is installed.
"""

from __future__ import annotations

import ctypes
import os

_USER, _NETWORK, _IPC, _UTS, _CGROUP = 0x10000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Move the calling process (of one thread) into new namespaces, under the user id that it has.

    Raises
    ------
    OSError
        The kernel or its administrator does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(ctypes.c_int(_USER | _NETWORK | _IPC | _UTS | _CGROUP)):
        code = ctypes.get_errno()
        raise OSError(code, f"namespaces: {os.strerror(code)}")
    # The kernel takes an ordinary user's map of groups only after setgroups is given up.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def network_devices() -> list[str]:
    """Names of the network devices that this process sees (the loopback alone in a new namespace)."""
    with open("/proc/self/net/dev") as file:
        return [line.partition(":")[0].strip() for line in file if ":" in line]
