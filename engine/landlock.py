"""Landlock: what the kernel lets a command reach, and the one door to it.

A domain belongs to a *thread* and is inherited by whatever that thread starts, for good: enter
one on a thread made for it. Rules only allow; what no rule names is refused. A rule on a folder
covers all below it and cannot be narrowed. Needs no privileges and no helper.

What the kernel does not restrict (and nobody here can): `stat`, `access`, `chmod`, `chown`,
`utime` and extended attributes; descriptors that are open already. Does not know nodes, nor which
paths they declare.

Layouts and numbers are those of the kernel's `include/uapi/linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from stat import S_ISDIR, S_ISLNK
from typing import Final

from assay.engine import network_filter
from assay.engine.filesystem import explain_error


class Access(IntFlag):
    """What a rule allows. Rights of folders hold for all that lies in them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    LIST = 1 << 3
    REMOVE_FOLDER = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_DEVICE = 1 << 6
    MAKE_FOLDER = 1 << 7
    MAKE_FILE = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_PIPE = 1 << 10
    MAKE_BLOCK_DEVICE = 1 << 11
    MAKE_LINK = 1 << 12
    RENAME = 1 << 13
    """Into or out of another folder, as links are made there."""
    TRUNCATE = 1 << 14


READ: Final = Access.EXECUTE | Access.READ_FILE | Access.LIST
"""To read and to execute, and to list where it is a folder."""

WRITE: Final = (
    Access.WRITE_FILE
    | Access.TRUNCATE
    | Access.REMOVE_FOLDER
    | Access.REMOVE_FILE
    | Access.MAKE_FOLDER
    | Access.MAKE_FILE
    | Access.MAKE_SOCKET
    | Access.MAKE_PIPE
    | Access.MAKE_LINK
    | Access.RENAME
)
"""All that changes a folder and what is in it, devices aside: those nobody may make."""

NEEDED_ABI: Final = 3
"""The first that can refuse to truncate a file, without which nothing is held."""

_ALL: Final = READ | WRITE | Access.MAKE_DEVICE | Access.MAKE_BLOCK_DEVICE
_OF_FILES: Final = Access.EXECUTE | Access.READ_FILE | Access.WRITE_FILE | Access.TRUNCATE
_TCP_ABI: Final = 4
_SCOPE_ABI: Final = 6
_BIND_AND_CONNECT_TCP: Final = 0b11
_ABSTRACT_SOCKETS: Final = 1 << 0
_SIGNALS: Final = 1 << 1

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_RULE: Final = struct.Struct("=Qi")
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SET_NO_NEW_PRIVS: Final = 38
_DROP_CAPABILITY: Final = 24

_CAPABILITIES: Final = (21, 38)
"""CAP_SYS_ADMIN and CAP_PERFMON: with either root reads the memory and the environment of any
process, whatever domain it is in."""


class Unavailable(Exception):
    """This host cannot hold what was asked for; the text is a clause that says what is
    missing."""


@dataclass(frozen=True, slots=True)
class Support:
    """What this kernel can hold. `abi` 0: nothing, for `reason`."""

    abi: int
    reason: str = ""

    @property
    def holds_files(self) -> bool:
        return self.abi >= NEEDED_ABI

    @property
    def holds_tcp(self) -> bool:
        """Whether it can refuse TCP connections and listeners."""
        return self.abi >= _TCP_ABI

    @property
    def holds_network(self) -> bool:
        """Whether nothing leads to other machines."""
        return self.holds_files and network_filter.is_available()

    @property
    def holds_processes(self) -> bool:
        """Whether it can refuse signals to processes outside, and their abstract sockets."""
        return self.abi >= _SCOPE_ABI


@dataclass(frozen=True, slots=True)
class Rule:
    """`path` is absolute. What is not there, and a link, allows nothing."""

    path: str
    access: Access
    is_file: bool = False
    """A folder that stands there instead allows nothing."""


class OpenRules:
    """Rules for many domains: what they name is looked up once. Each holds a descriptor, which is
    closed when nobody refers to them any more. Any thread may use them."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Raises OSError for want of descriptors or memory."""
        self.places: list[tuple[int, int]] = []
        """Descriptor and rights."""
        self._closing = weakref.finalize(self, _close_all, self.places)
        for rule in rules:
            found = _open(rule)
            if found is not None:
                self.places.append(found)


@dataclass(frozen=True, slots=True)
class Domain:
    """Everything a command may reach."""

    rules: tuple[Rule, ...]
    network: bool
    """Whether sockets to elsewhere, and the abstract ones of others, are left alone."""
    find_further: Callable[[], OpenRules | Iterable[Rule]] | None = None
    """Further rules, asked for when it is entered."""


@cache
def find_support() -> Support:
    """What this kernel can hold, asked once: it does not change."""
    if not sys.platform.startswith("linux"):
        return Support(0, f"Landlock is part of Linux, and this is {platform.system()}")
    abi = _libc().syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if abi >= NEEDED_ABI:
        return Support(abi)
    if abi > 0:
        return Support(
            abi,
            f"this kernel ({platform.release()}) has version {abi} of Landlock, which cannot"
            f" refuse to truncate files: version {NEEDED_ABI} comes with Linux 6.2",
        )
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return Support(
            0,
            f"this kernel ({platform.release()}) has no Landlock, or a container forbids to ask"
            " for it: it comes with Linux 5.13",
        )
    if number == errno.EOPNOTSUPP:
        return Support(
            0, "Landlock is part of this kernel but switched off: boot with `lsm=landlock,...`"
        )
    return Support(0, f"Landlock cannot be used: {os.strerror(number).lower()}")


def enter(domain: Domain) -> None:
    """Restricts the calling thread, and all it starts from now on, to `domain`. Raises
    Unavailable, or OSError for want of descriptors or memory; the thread is then as it was, or at
    most can gain no privileges any more."""
    support = find_support()
    if not support.holds_files:
        raise Unavailable(support.reason)
    libc = _libc()
    refused_tcp = _BIND_AND_CONNECT_TCP if support.holds_tcp and not domain.network else 0
    scopes = 0
    if support.holds_processes:
        scopes = _SIGNALS if domain.network else _SIGNALS | _ABSTRACT_SOCKETS
    fields = [int(_ALL)]
    if support.holds_tcp:
        fields.append(refused_tcp)
    if support.holds_processes:
        fields.append(scopes)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise _refused("no rules can be made")
    try:
        further = () if domain.find_further is None else domain.find_further()
        if isinstance(further, OpenRules):
            for place, access in further.places:
                _allow(libc, ruleset, place, access)
            further = ()
        for rule in (*domain.rules, *further):
            found = _open(rule)
            if found is not None:
                try:
                    _allow(libc, ruleset, *found)
                finally:
                    os.close(found[0])
        for capability in _CAPABILITIES:
            # Of a user who is not root there is nothing to drop.
            libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
        if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise _refused("privileges cannot be renounced")
        if not domain.network:
            network_filter.enter(libc)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            raise _refused("the rules cannot be put in force")
    finally:
        os.close(ruleset)


def find_fault(folder: str) -> str | None:
    """Why nothing can be held in the absolute `folder`, as a clause; None when it is. Tries it: who
    may reach nothing must not be able to list it."""
    support = find_support()
    if not support.holds_files:
        return support.reason

    def look() -> None:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    try:
        look()
    except OSError as error:
        return f"`{folder}` cannot be listed: {explain_error(error)}"
    try:
        call_within(Domain((), network=True), look)
    except PermissionError:
        return None
    except OSError as error:
        return f"it cannot be tried in `{folder}`: {explain_error(error)}"
    except Unavailable as error:
        return str(error)
    return f"the file system of `{folder}` lets through what the kernel is told to refuse"


def call_within(domain: Domain, action: Callable[[], None]) -> None:
    """Calls `action` on a thread of its own, restricted to `domain`; raises what it raises,
    Unavailable, or OSError (EAGAIN) where there is no thread to be had."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            enter(domain)
            action()
        except BaseException as error:  # noqa: BLE001 -- raised again on the caller's thread
            raised.append(error)

    thread = threading.Thread(target=call, name="assay-confined")
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    thread.join()
    if raised:
        raise raised[0]


def _open(rule: Rule) -> tuple[int, int] | None:
    """A descriptor of what it names, with the rights that this can have."""
    try:
        place = os.open(rule.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise
        return None  # not there, or nobody could reach it anyway
    try:
        mode = os.fstat(place).st_mode
    except OSError:  # mounted from a server that is gone
        os.close(place)
        return None
    access = rule.access if S_ISDIR(mode) else rule.access & _OF_FILES
    if (
        S_ISLNK(mode) or not access or (rule.is_file and S_ISDIR(mode))
    ):  # also a file where there was a folder
        os.close(place)
        return None
    return place, int(access)


def _allow(libc: ctypes.CDLL, ruleset: int, place: int, access: int) -> None:
    if _rule_adder(libc)(_ADD_RULE, ruleset, _PATH_BENEATH, _RULE.pack(access, place), 0):
        if ctypes.get_errno() in (errno.EBADFD, errno.EINVAL):
            return  # of a file system without paths, such as /proc/self/ns
        raise _refused("a rule cannot be made")


def _close_all(places: list[tuple[int, int]]) -> None:
    for place, _ in places:
        os.close(place)


def _refused(what: str) -> Unavailable:
    return Unavailable(f"{what}: {os.strerror(ctypes.get_errno()).lower()}")


@cache
def _rule_adder(libc: ctypes.CDLL) -> Callable[[int, int, int, bytes, int], int]:
    """`syscall` with the types that this one call takes, which is called most: that they are
    known halves its time."""
    adder = libc["syscall"]
    adder.restype = ctypes.c_long
    adder.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return adder


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
