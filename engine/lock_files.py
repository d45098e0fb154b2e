"""The door to locks between processes: files held with flock.

A lock ends with its last open descriptor, so with the process that holds it, however that
dies. Knows nothing of what a lock stands for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_PROBE_SECONDS: Final = 0.002
_PROBES: Final = 50


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
        one who finds it by name afterwards can take it for a held one. Harmless twice."""
        if self.descriptor < 0:
            return
        descriptor, self.descriptor = self.descriptor, -1
        try:
            if remove:
                with suppress(FileNotFoundError):
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


def is_held(path: str) -> bool:
    """Whether anyone holds the lock on `path`; False when there is no such file, or a link,
    which is never one of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(path: str, how: int) -> LockFile | None:
    """None: the file was removed by its holder while we waited; what we locked has no name."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        ours = os.fstat(descriptor)
        try:
            named = os.stat(path)
        except FileNotFoundError:
            named = None
        if named is not None and (named.st_ino, named.st_dev) == (ours.st_ino, ours.st_dev):
            held = LockFile(path, descriptor)
            descriptor = -1
            return held
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
