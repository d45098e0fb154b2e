"""Files and folders of ended attempts, kept for the next ones under a new name.

Every attempt needs a lease, a log and a private folder, and most leave all three empty.
Making and removing them anew costs more than the rest of an attempt: a file system that
has just freed thousands of inodes looks long for one it may give out (ext4 does not
reuse what was freed within the last seconds). A spare keeps the name its last attempt
recorded until the next takes it, so whoever cleans up after a crash finds it.

Any thread may take and give.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress

from assay.engine import temporary


class Spares:
    """The spares of one run. Whatever does not look untouched is no spare."""

    def __init__(self) -> None:
        self._leases: deque[str] = deque()
        self._logs: deque[str] = deque()
        self._folders: deque[str] = deque()

    def prepare(self, lease: str, log: str, folder: str) -> None:
        """Puts a spare under each of these names, as far as there is one. The folder is made
        where there is none; raises OSError when it cannot be."""
        _take(self._leases, lease)
        _take(self._logs, log)
        if not _take(self._folders, folder):
            temporary.make(folder)

    def give_lease(self, path: str) -> None:
        """A lease that nothing living holds any more."""
        self._leases.append(path)

    def give_log(self, path: str) -> None:
        """A log that stayed empty and that nothing living writes to any more."""
        self._logs.append(path)

    def give_folder(self, path: str) -> None:
        """An attempt's private folder: kept when it is as it was made, else removed."""
        if _is_untouched(path):
            self._folders.append(path)
        else:
            temporary.remove(path)

    def remove_all(self) -> None:
        """At the end of the run."""
        for pool in (self._leases, self._logs):
            while pool:
                with suppress(FileNotFoundError):
                    os.unlink(pool.pop())
        while self._folders:
            temporary.remove(self._folders.pop())


def _take(pool: deque[str], path: str) -> bool:
    try:
        spare = pool.pop()
    except IndexError:
        return False
    try:
        os.rename(spare, path)
    except FileNotFoundError:
        return False  # somebody removed it
    except OSError:
        pool.appendleft(spare)  # to be removed at the end
        return False
    return True


def _is_untouched(path: str) -> bool:
    """Whether the folder holds an empty TMPDIR and nothing else, both private still."""
    try:
        tmpdir = temporary.tmpdir_of(path)
        return (
            os.listdir(path) == [os.path.basename(tmpdir)]
            and not os.listdir(tmpdir)
            and _is_private(path)
            and _is_private(tmpdir)
        )
    except OSError:
        return False


def _is_private(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
