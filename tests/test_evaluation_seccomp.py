"""The system-call filter, run in a small interpreter: both architectures on any machine."""

import errno
import os
import struct

import pytest

from ttc_esopt.evaluation import seccomp

PID = 4242
KILL, ALLOW = "kill", "allow"
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine, number, arguments=(), *, allow_writing=True, audit=None):
    """What the filter says to a call: kill, allow, or the name of an error."""
    data = struct.pack("=iIQ6Q", number, audit or AUDIT[machine], 0, *[*arguments, *[0] * 6][:6])
    code = list(struct.iter_unpack("=HBBI", seccomp.program(PID, allow_writing=allow_writing, machine=machine)))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x20:  # load a word
            (value,) = struct.unpack_from("=I", data, k)
        elif operation == 0x54:
            value &= k
        elif operation == 0x06:
            if k >> 16 == 0x0005:
                return errno.errorcode[k & 0xFFFF]
            return {0x80000000: KILL, 0x7FFF0000: ALLOW}[k]
        else:
            taken = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
            at += if_true if taken else if_false


def numbers(machine, x86_64, aarch64):
    return x86_64 if machine == "x86_64" else aarch64


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ((0, 63), (), ALLOW),  # read
        ((9, 222), (), ALLOW),  # mmap
        ((231, 94), (), ALLOW),  # exit_group
        ((202, 98), (), ALLOW),  # futex
        ((59, 221), (), KILL),  # execve
        ((41, 198), (), KILL),  # socket
        ((101, 117), (), KILL),  # ptrace
        ((112, 157), (), KILL),  # setsid
        ((56, 220), (17,), KILL),  # clone: a process
        ((56, 220), (0x4000 | 0x100,), KILL),  # clone as vfork does it
        ((56, 220), (0x3D0F00,), ALLOW),  # clone: a thread
        ((435, 435), (), "ENOSYS"),  # clone3
        ((62, 129), (PID, 9), ALLOW),  # kill
        ((62, 129), (1, 9), KILL),
        ((62, 129), (0, 9), KILL),
        ((62, 129), (2**64 - 1, 9), KILL),
        ((234, 131), (PID, PID, 6), ALLOW),  # tgkill
        ((234, 131), (PID + 1, PID, 6), KILL),
        ((302, 261), (0, 9, 0, 12345), ALLOW),  # prlimit64: asking
        ((302, 261), (0, 9, 12345, 0), "EPERM"),
        ((302, 261), (0, 9, 1 << 32, 0), "EPERM"),
        ((160, 164), (), "EPERM"),  # setrlimit
        ((157, 167), (15,), ALLOW),  # prctl: thread name
        ((157, 167), (1, 0), "EPERM"),  # prctl: signal at the parent's death
        ((72, 25), (3, 2), ALLOW),  # fcntl: close on exec
        ((72, 25), (3, 8, 1), "EPERM"),  # fcntl: owner
        ((16, 29), (0, 0x5401), ALLOW),  # ioctl: isatty
        ((16, 29), (0, 0x5412), "EPERM"),
        ((90, 52), (), "EPERM"),  # chmod, fchmod
        ((76, 45), (), "EPERM"),  # truncate
        ((257, 56), (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW),  # openat
        ((257, 56), (0, 0, os.O_RDONLY | os.O_TRUNC), "EACCES"),
        ((463, 463), (), "ENOSYS"),  # younger than the filter
        ((0x40000000, 0x40000000), (), "ENOSYS"),  # x32
    ],
)
def test_the_filter_says_what_it_should(machine, call, arguments, expected):
    assert verdict(machine, numbers(machine, *call), arguments) == expected


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE | os.O_RDWR])
def test_opening_for_writing_is_left_to_landlock_or_refused(machine, flags):
    openat = numbers(machine, 257, 56)
    assert verdict(machine, openat, (0, 0, flags), allow_writing=False) == "EACCES"
    assert verdict(machine, openat, (0, 0, os.O_RDONLY), allow_writing=False) == ALLOW
    unlinkat = numbers(machine, 263, 35)
    assert [verdict(machine, unlinkat, allow_writing=w) for w in (True, False)] == [ALLOW, "EACCES"]


@pytest.mark.parametrize("machine", AUDIT)
def test_calls_of_another_architecture_end_the_process(machine):
    assert verdict(machine, 1, audit=0x40000003) == KILL
