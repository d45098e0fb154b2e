"""Resources of the machine, counted across every assay of this user: the one door to them.

FOLDER/resource-NAME/N is the N-th unit of a resource: a file that its holder keeps locked with
flock. A holder that ends, however it ends, has given its units back. Nothing is written
into the files, and they are never removed: a removed file could still be locked.

Waiting, and telling for whom, is the caller's.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

_GATE: Final = "gate"
_GATE_TRIES: Final = 100


class UnsafeFolder(Exception):
    """The folder for locks is not this user's alone. The text is one sentence."""


@dataclass(slots=True)
class Held:
    """Units of one resource, held until `release` or the end of this process."""

    name: str
    _locks: list[int]

    def release(self) -> None:
        """Give the units back; a second call does nothing."""
        while self._locks:
            os.close(self._locks.pop())


def folder_for(environ: Mapping[str, str], uid: int) -> str:
    """The one folder where the runs of a user meet: `assay` in the session's runtime folder,
    else `/tmp/assay-UID`.

    A node sees neither XDG_RUNTIME_DIR nor the system's TMPDIR, so an assay inside one
    looks where systemd puts the former, and TMPDIR has no say.
    """
    named = environ.get("XDG_RUNTIME_DIR", "")
    for runtime in (named, f"/run/user/{uid}"):
        if runtime.startswith("/") and os.access(runtime, os.W_OK | os.X_OK):
            return os.path.join(runtime, "assay")
    return f"/tmp/assay-{uid}"  # noqa: S108 -- its owner and mode are checked before use


class HostResources:
    def __init__(self, folder: str) -> None:
        """`folder` is made when first needed, 0700."""
        self._folder = folder

    def try_take(self, name: str, amount: int, total: int) -> Held | None:
        """`amount` units of a resource of which the machine has `total`, or None at once.

        Plans that disagree on `total` share the units all the same: it counts how many
        are held, by whomever. Raises UnsafeFolder, and OSError when the file system
        refuses.
        """
        own = os.path.join(self._folder, "resource-" + quote(name, safe=""))
        for folder in (self._folder, own):
            _make_private(folder)
        gate = _enter(os.path.join(own, _GATE))
        if gate is None:
            return None
        try:
            return _take(own, name, amount, total)
        finally:
            os.close(gate)


def _take(folder: str, name: str, amount: int, total: int) -> Held | None:
    numbers = {int(entry) for entry in os.listdir(folder) if entry.isdecimal()}
    locks: list[int] = []
    busy = 0
    try:
        for number in sorted(numbers | set(range(total))):
            unit = os.open(
                os.path.join(folder, str(number)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(unit, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(unit)
                busy += 1
                continue
            if len(locks) < amount:
                # Cleaners of /tmp go by age.
                os.utime(unit)
                locks.append(unit)
            else:
                os.close(unit)
        if len(locks) == amount and busy + amount <= total:
            held = Held(name, locks)
            locks = []
            return held
        return None
    finally:
        for unit in locks:
            os.close(unit)


def _enter(path: str) -> int | None:
    """The lock under which units are counted. It is held for microseconds; a holder that
    was stopped in between must not stop everyone, so giving up is an answer."""
    gate = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_GATE_TRIES):
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.001)
        else:
            return gate
    os.close(gate)
    return None


def _make_private(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise UnsafeFolder(f"`{os.path.dirname(folder)}` does not exist") from None
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolder(f"`{folder}` is not a folder")
    if found.st_uid != os.geteuid():
        raise UnsafeFolder(f"`{folder}` belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o077:
        raise UnsafeFolder(f"`{folder}` is open to others (mode {found.st_mode & 0o777:04o})")
