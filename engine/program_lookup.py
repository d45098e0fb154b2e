"""The door to PATH: which file a command's first word leads to, as exec would find it."""

from __future__ import annotations

import os
import stat


def find_program(root: str, name: str, path: str, workdir: str) -> str | None:
    """The absolute path, or None. `path` is the PATH to search, `workdir` where relative
    names and empty entries start from, itself relative to `root`."""
    folder = os.path.normpath(os.path.join(root, workdir))
    places = [""] if "/" in name else path.split(":")
    for place in places:
        candidate = os.path.normpath(os.path.join(folder, place, name))
        if is_executable(candidate):
            return candidate
    return None


def is_executable(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and os.access(path, os.X_OK)
