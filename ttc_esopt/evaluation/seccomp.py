"""The system calls that a candidate may not make, as a seccomp filter written by hand for x86-64 and AArch64.

Attempts that no heuristic makes by accident (a new process, a socket, a signal to someone else) end the process with
SIGSYS, so that they are seen and reported; what a library may try in good faith only fails. The filter lists what is
forbidden: an allow-list would break on the next _LIBC. Calls younger than the list do not exist for the candidate.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_NEWEST = 462  # mseal; both architectures number new calls alike

# name -> (x86-64, AArch64); None: the architecture has no such call.
_KILL = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "socketpair": (53, 199),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "setsid": (112, 157), "setpgid": (109, 154),
    "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
_REFUSE = {
    "setrlimit": (160, 164), "seccomp": (317, 277), "truncate": (76, 45),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "pidfd_open": (434, 434),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "personality": (135, 92),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "mknod": (133, None), "mknodat": (259, 33), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "vhangup": (153, 58), "ioperm": (173, None), "iopl": (172, None),
    "modify_ldt": (154, None), "fanotify_init": (300, 262), "uselib": (134, None),
}  # fmt: skip
# Refused as well where Landlock cannot confine them to the scratch folder.
_CHANGE_FILES = {
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
}  # fmt: skip
# clone3 passes its flags, openat2 its mode, in memory that a filter cannot read: libc falls back to the older call.
_ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000  # the last one is O_TMPFILE's own bit
# Reading one's state and naming a thread; not: undoing what the sandbox set (the signal at the parent's death).
_PRCTL = (3, 15, 16, 21, 23, 30, 38, 39, 0x53564D41)
_FCNTL_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would send a signal to anyone
_IOCTL_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal

_ALLOW, _KILL_PROCESS, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_OWN_PID = 0x7FFFFFFD  # stands for the process id (which is always smaller) until that is known
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are 8 bytes each


def machine_supported() -> bool:
    """Whether the filter knows this machine's system calls."""
    return platform.machine() in _ARCHITECTURES and struct.calcsize("P") == 8


def program(pid: int, *, allow_writing: bool, machine: str | None = None) -> bytes:
    """The filter for the process `pid` on this or another kind of machine, as an array of struct sock_filter."""
    return _pattern(allow_writing, machine or platform.machine()).replace(
        struct.pack("=I", _OWN_PID), struct.pack("=I", pid)
    )


@functools.cache
def _pattern(allow_writing: bool, machine: str) -> bytes:
    column, audit = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]

    def refuse(calls: dict[str, tuple[int | None, int | None]], action: int) -> None:
        for numbers in calls.values():
            if numbers[column] is not None:
                code.extend([(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, action)])

    def guard(numbers: tuple[int | None, int | None], *body: tuple[int, int, int, int]) -> None:
        if numbers[column] is not None:
            code.extend([(_EQUAL, 0, len(body), numbers[column]), *body])

    def argument(i: int, high: bool = False) -> tuple[int, int, int, int]:
        return (_LOAD, 0, 0, _ARGUMENT + 8 * i + 4 * high)

    allow, kill, fail = ((_RETURN, 0, 0, action) for action in (_ALLOW, _KILL_PROCESS, _FAIL | errno.EPERM))
    denied = (_RETURN, 0, 0, _FAIL | errno.EACCES)

    def only(i: int, values: tuple[int, ...], inside: tuple, outside: tuple) -> list[tuple[int, int, int, int]]:
        tests = [(_EQUAL, len(values) - k, 0, value) for k, value in enumerate(values)]
        return [argument(i), *tests, outside, inside]

    # The 32-bit calls of x86-64 (x32) carry bit 30, so this refuses them too.
    code.extend([(_GREATER_EQUAL, 0, 1, _NEWEST + 1), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)])
    guard((56, 220), argument(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), kill, allow)  # clone: threads only
    guard((62, 129), *only(0, (_OWN_PID,), allow, kill))  # kill
    guard((234, 131), *only(0, (_OWN_PID,), allow, kill))  # tgkill
    guard((200, 130), *only(0, (_OWN_PID,), allow, kill))  # tkill
    guard((157, 167), *only(0, _PRCTL, allow, fail))
    guard((72, 25), *only(1, _FCNTL_OWNER, fail, allow))  # fcntl
    guard((16, 29), *only(1, _IOCTL_TERMINAL, fail, allow))  # ioctl
    # prlimit64: asking for limits, not setting them (the pointer to new limits is null)
    guard((302, 261), argument(2), (_EQUAL, 0, 3, 0), argument(2, high=True), (_EQUAL, 0, 1, 0), allow, fail)
    for numbers, flags in (((2, None), 1), ((257, 56), 2)):  # open, openat
        if allow_writing:  # Landlock decides, but before its version 3 it overlooks truncation by a read-only open
            mode = (_AND, 0, 0, os.O_ACCMODE | os.O_TRUNC)
            guard(numbers, argument(flags), mode, (_EQUAL, 0, 1, os.O_TRUNC), denied, allow)
        else:
            guard(numbers, argument(flags), (_ANY_BIT, 0, 1, _WRITING), denied, allow)
    refuse(_KILL, _KILL_PROCESS)
    refuse(_REFUSE, _FAIL | errno.EPERM)
    refuse(_ABSENT, _FAIL | errno.ENOSYS)
    if not allow_writing:
        refuse(_CHANGE_FILES, _FAIL | errno.EACCES)
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install(*, allow_writing: bool) -> None:
    """Put the calling process under the filter, for good (needs no_new_privs).

    Raises
    ------
    OSError
        The kernel takes no filter.
    """
    code = program(os.getpid(), allow_writing=allow_writing)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    set_seccomp, mode_filter = 22, 2
    if _LIBC.prctl(set_seccomp, mode_filter, ctypes.byref(fprog), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
