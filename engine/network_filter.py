"""Without a network: a filter of system calls that lets a thread, and all it starts, make no
socket that leads anywhere but to processes of this machine.

Landlock holds TCP as the kernel knows it by that name; other ways to the same (MPTCP, UDP, raw
sockets, a connection made while sending) it does not. So what can make such a socket is refused.
A program in the language of `bpf(2)`, put in force by `prctl`; layouts and numbers are those of
`linux/filter.h`, `linux/seccomp.h` and `linux/audit.h`.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import threading
from functools import cache
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000  # SECCOMP_RET_ERRNO, with the number in its low half

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_DOMAIN_AT: Final = 16  # the low half of the first argument, on little-endian machines

_SET_NO_NEW_PRIVS: Final = 38
_SET_SECCOMP: Final = 22
_FILTER: Final = 2

_LOCAL: Final = (1, 16)
"""AF_UNIX; AF_NETLINK, by which programs ask the kernel for names of interfaces."""

_MACHINES: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Architecture, and the number of `socket` there."""

_IO_URING_SETUP: Final = 425
"""Another way to make any socket."""
_I386: Final = 0x40000003
_I386_SOCKETCALL: Final = 102
_I386_SOCKET: Final = 359
_X32: Final = 0x40000000
"""From here on the calls of x86_64 have other numbers for the same."""


@cache
def is_available() -> bool:
    """Whether there is such a filter for this machine and its kernel takes it; tried on a thread of
    its own, once."""
    taken: list[bool] = []

    def attempt() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        taken.append(enter(libc))

    thread = threading.Thread(target=attempt, name="assay-filter")
    thread.start()
    thread.join()
    return taken == [True]


def enter(libc: ctypes.CDLL) -> bool:
    """Puts the filter in force for the calling thread, which can gain no privileges any more.
    False where the machine is not known or the kernel has no filters."""
    if platform.machine() not in _MACHINES:
        return False
    program = _make_program(*_MACHINES[platform.machine()])
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, described, 0, 0) == 0)


def _make_program(architecture: int, socket: int) -> bytes:
    """Steps with the names of those that a test goes on with; otherwise it is the next one."""
    steps: list[tuple[str, int, int, str]] = [
        ("", _LOAD, _ARCHITECTURE_AT, ""),
        ("", _IF_EQUAL, architecture, "own"),
        ("", _IF_EQUAL, _I386, "i386"),
        ("", _RETURN, _REFUSE | errno.ENOSYS, ""),
        # One call for all sockets, whose arguments a filter cannot see.
        ("i386", _LOAD, _NUMBER_AT, ""),
        ("", _IF_EQUAL, _I386_SOCKETCALL, "refused"),
        ("", _IF_EQUAL, _I386_SOCKET, "refused"),
        ("", _IF_EQUAL, _IO_URING_SETUP, "missing"),
        ("", _RETURN, _ALLOW, ""),
        ("own", _LOAD, _NUMBER_AT, ""),
        ("", _IF_EQUAL, _IO_URING_SETUP, "missing"),
        ("", _IF_AT_LEAST, _X32, "missing"),
        ("", _IF_EQUAL, socket, "socket"),
        ("", _RETURN, _ALLOW, ""),
        ("socket", _LOAD, _DOMAIN_AT, ""),
        *(("", _IF_EQUAL, domain, "local") for domain in _LOCAL),
        ("refused", _RETURN, _REFUSE | errno.EACCES, ""),
        ("local", _RETURN, _ALLOW, ""),
        ("missing", _RETURN, _REFUSE | errno.ENOSYS, ""),
    ]
    return b"".join(
        struct.pack("=HBBI", code, _distance(steps, position, target), 0, value)
        for position, (_, code, value, target) in enumerate(steps)
    )


def _distance(steps: list[tuple[str, int, int, str]], position: int, target: str) -> int:
    """How many steps a test skips, forwards."""
    if not target:
        return 0
    for later in range(position + 1, len(steps)):
        if steps[later][0] == target:
            return later - position - 1
    raise AssertionError(f"no step `{target}` follows")
