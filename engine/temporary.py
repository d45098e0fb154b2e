"""The private folder of an attempt: its TMPDIR and the file its result is written to.

    D          0700, below the system's temporary folder
    D/t        TMPDIR, 0700, under 60 bytes (Unix sockets are made below it)
    D/result   ASSAY_RESULT, made by the command

The path is chosen before anything exists, so that it can be recorded first; whoever finds
the record of a dead attempt removes the folder. Knows nothing of runs and records.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

from assay.engine.states import AttemptId

LONGEST_BYTES: Final = 59
"""Of `D/t`. A socket's path has 108; what programs make below TMPDIR needs the rest."""

_FIXED: Final = ("/tmp", "/var/tmp")  # noqa: S108 -- a folder of our own, 0700, is made there


def plan_temp(attempt: AttemptId, environ: Mapping[str, str]) -> str:
    """The absolute path D for an attempt; nothing is made, nothing stands there now.

    Below the caller's TMPDIR, or below /tmp where that is missing, too long, or no folder.
    """
    name = f"assay-{attempt}"
    for folder in (environ.get("TMPDIR", ""), *_FIXED):
        if not folder.startswith("/") or not os.access(folder, os.W_OK | os.X_OK):
            continue
        place = folder.rstrip("/")
        path = f"{place}/{name}"
        number = 1
        # Ids are unique within one store; another workspace's left-over may bear this one.
        while os.path.lexists(path):
            number += 1
            path = f"{place}/{name}-{number}"
        if len(os.fsencode(tmpdir_of(path))) <= LONGEST_BYTES:
            return path
    return f"{_FIXED[0]}/{name}"


def tmpdir_of(path: str) -> str:
    """TMPDIR of the attempt whose folder is `path`."""
    return path + "/t"


def result_of(path: str) -> str:
    """ASSAY_RESULT of the attempt whose folder is `path`."""
    return path + "/result"


def make(path: str) -> None:
    """Make the folder, empty. Raises OSError, FileExistsError when something stands there;
    nothing is left then."""
    os.mkdir(path, 0o700)
    try:
        os.mkdir(tmpdir_of(path), 0o700)
    except OSError:
        os.rmdir(path)
        raise


def remove(path: str) -> str | None:
    """Remove the folder and all that is in it, read-only folders and any depth included.

    Returns None once nothing stands at `path`, else one sentence with what remains and
    why. Links are removed, never followed. Whatever is not a folder of this user named
    like one of ours is left alone.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"`{path}` cannot be removed: {_reason(error)}"
    named = os.path.basename(path).startswith("assay-")
    if not named or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return f"`{path}` is not a temporary folder of this user's attempts"
    try:
        _remove_usual(path)
    except OSError:
        return _remove_thoroughly(path)
    return None


def remove_tree(path: str) -> str | None:
    """As `remove`, for a folder of any name that assay has made in its own store."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return f"`{path}` is no folder"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"`{path}` cannot be removed: {_reason(error)}"
    return _remove_thoroughly(path)


def _remove_usual(path: str) -> None:
    """What most commands leave: an empty TMPDIR and perhaps a result."""
    os.rmdir(tmpdir_of(path))
    try:
        os.rmdir(path)
    except OSError:
        os.unlink(result_of(path))
        os.rmdir(path)


def _remove_thoroughly(path: str) -> str | None:
    """Empty folder after folder, moving the folders found in each up to the top.

    So neither depth nor the length of paths nor the number of open descriptors grows.
    """
    problem: str | None = None
    try:
        os.chmod(path, 0o700)
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"`{path}` cannot be removed: {_reason(error)}"
    try:
        taken = set(os.listdir(top))
        pending = ["."]
        moved = 0
        while pending:
            name = pending.pop()
            try:
                folder = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top
                )
            except OSError as error:
                problem = problem or f"`{path}/{name}` cannot be removed: {_reason(error)}"
                continue
            try:
                for entry in os.listdir(folder):
                    try:
                        mode = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
                        if not stat.S_ISDIR(mode):
                            os.unlink(entry, dir_fd=folder)
                            continue
                        # Moving a folder rewrites its `..`: it must be writable itself.
                        os.chmod(entry, 0o700, dir_fd=folder)
                        target = entry
                        if name != ".":
                            while target in taken:
                                moved += 1
                                target = f"moved-{moved}"
                            os.rename(entry, target, src_dir_fd=folder, dst_dir_fd=top)
                            taken.add(target)
                        pending.append(target)
                    except OSError as error:
                        problem = problem or f"`{path}/{entry}` cannot be removed: {_reason(error)}"
            finally:
                os.close(folder)
            if name != ".":
                try:
                    os.rmdir(name, dir_fd=top)
                except OSError as error:
                    problem = problem or f"`{path}/{name}` cannot be removed: {_reason(error)}"
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError as error:
        return problem or f"`{path}` cannot be removed: {_reason(error)}"
    return None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
