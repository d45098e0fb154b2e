"""The door to locks between processes: files held with flock.

A lock ends with its last open descriptor, so with the process that holds it, however that
dies. Knows nothing of what a lock stands for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

_PROBE_SECONDS: Final = 0.002
_PROBES: Final = 50


class Lock(Enum):
    """What is found of a lock: by whom it is held is not known."""

    HELD = auto()
    FREE = auto()
    MISSING = auto()
    """There is no such file, or a link, which is never one of ours."""


class HeldElsewhere(Exception):
    """Another process (or another descriptor of this one) holds the lock."""

    def __init__(self, path: str) -> None:
        super().__init__(f"`{path}` is locked by another process")
        self.path = path


class LockFile:
    """A held lock. Closed on exec; released by `release`, leaving the context, or death."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def release(self, *, remove: bool = False) -> None:
        """Let go; with `remove` the file goes first, while it is still locked, so that no
        one who finds it by name afterwards can take it for a held one. Another file that has
        its name by now stays. Harmless twice."""
        if self.descriptor < 0:
            return
        descriptor, self.descriptor = self.descriptor, -1
        try:
            if remove and _is_named(descriptor, self.path):
                os.unlink(self.path)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def wait_for(path: str) -> LockFile:
    """The lock on `path`, made when missing, once whoever holds it lets go. A signal
    handler that raises ends the wait. OSError when the file cannot be made."""
    while True:
        held = _lock(path, fcntl.LOCK_EX)
        if held is not None:
            return held


def take(path: str) -> LockFile:
    """The lock on `path` now, or HeldElsewhere.

    A probe (`is_held`) of another process locks for microseconds; so a few milliseconds
    pass before a lock counts as held.
    """
    for _ in range(_PROBES):
        try:
            held = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PROBE_SECONDS)
            continue
        if held is not None:
            return held
    raise HeldElsewhere(path)


def look_at(path: str) -> Lock:
    """Whether anyone holds the lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return Lock.MISSING
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Lock.HELD
    finally:
        os.close(descriptor)
    return Lock.FREE


def is_held(path: str) -> bool:
    """Whether anyone holds the lock on `path`; False when there is no such file."""
    return look_at(path) is Lock.HELD


def _lock(path: str, how: int) -> LockFile | None:
    """None: the file was removed by its holder while we waited; what we locked has no name."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        if _is_named(descriptor, path):
            held = LockFile(path, descriptor)
            descriptor = -1
            return held
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_named(descriptor: int, path: str) -> bool:
    """Whether the open file is the one that has this name."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))
