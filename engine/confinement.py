"""What a node whose boundary is held may reach, as rules for the kernel.

Beside the workspace everything may be read: what a toolchain needs is not for a plan to list.
Inside it a node reads what it declares, and lists the folders that hold what it declares: that
right cannot be narrowed to one level, so below such a folder names show, never contents. It
writes in its own folders, its temporary folder and its log.

Asks the disk where things lie. Does not know how rules are put in force, nor whether the node
works in the workspace or in a private tree; that is decided in `workplace`.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from assay.engine.landlock import READ, WRITE, Access, OpenRules, Rule
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.entries import fixed_folder
from assay.plans.model import Entry, EntryKind, RelPath

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
"""Below /dev: where every program may write. `shm` holds what processes share as memory."""

_OF_ASSAY: Final = ".assay"

_KEPT_OPEN: Final = 1 / 4
"""The largest share of the descriptors this process may have that rules are kept open with."""


def find_outside(root: str) -> Iterator[Rule]:
    """Read everything that does not lie in the folder `root` (absolute, links resolved).

    Rules only allow, so all that stands beside the way to `root` is named. Links are left out:
    what they lead to has a path of its own. A folder that may not be listed gives nothing.
    """
    folder = ""
    for name in root.strip("/").split("/"):
        try:
            with os.scandir(folder or "/") as entries:
                for entry in entries:
                    if entry.name != name and not entry.is_symlink():
                        yield Rule(entry.path, READ)
        except PermissionError:
            pass
        folder = f"{folder}/{name}"


class Outside:
    """The same, looked up once for many nodes, as long as nothing comes or goes beside the way to
    `root`. Any thread may ask."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders = ["/"]
        for name in root.strip("/").split("/")[:-1]:
            self._folders.append(f"{self._folders[-1].rstrip('/')}/{name}")
        self._lock = threading.Lock()
        self._signature: list[tuple[int, int]] = []
        self._rules: OpenRules | tuple[Rule, ...] = ()

    def find(self) -> OpenRules | tuple[Rule, ...]:
        """Open, unless they would take the descriptors that commands are started with. Raises
        OSError for want of descriptors right now."""
        with self._lock:
            signature = [self._sign(folder) for folder in self._folders]
            if signature != self._signature:
                rules = (*find_outside(self._root), *find_devices(self._root))
                most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                is_many = most != resource.RLIM_INFINITY and len(rules) > most * _KEPT_OPEN
                self._rules = rules if is_many else OpenRules(rules)
                self._signature = signature
            return self._rules

    @staticmethod
    def _sign(folder: str) -> tuple[int, int]:
        info = os.stat(folder)
        return info.st_ino, info.st_mtime_ns


def find_devices(root: str) -> Iterator[Rule]:
    """Write to what is nobody's file, unless the workspace `root` lies there."""
    write = READ | Access.WRITE_FILE
    for name in _DEVICES:
        path = f"/dev/{name}"
        if not is_within(root, path):
            yield Rule(path, READ | WRITE if name == "shm" else write)


def find_private(folder: str, log: str | None) -> Iterator[Rule]:
    """The attempt's own: its temporary folder with the file for its result, and its log, which
    commands open again as /dev/stdout. `log` None: it is no file."""
    yield Rule(folder, READ | WRITE)
    if log is not None:
        yield Rule(log, Access.READ_FILE | Access.WRITE_FILE | Access.TRUNCATE)


def find_reads(
    root: str, reads: tuple[Entry, ...], states: Mapping[RelPath, State]
) -> Iterator[Rule]:
    """Read, in the workspace itself, what is declared and was found: `states`. A link gives
    what it leads to, whose content is in the key as well, unless that is assay's own."""
    own = f"{root.rstrip('/')}/{_OF_ASSAY}"
    for folder in folders_listed(reads):
        yield Rule(f"{root}/{folder}" if folder else root, Access.LIST)
    for path, state in states.items():
        if state == ABSENT:
            continue
        absolute = f"{root}/{path}"
        if state == FOLDER:
            yield Rule(absolute, Access.LIST)
        elif state.startswith("link:"):
            real = os.path.realpath(absolute)
            if ">" in state and real != own and not real.startswith(f"{own}/"):
                yield Rule(real, READ, is_file=True)
        else:
            yield Rule(absolute, READ, is_file=True)


def folders_listed(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """The folders, "" for the root, that hold what the entries name: each may be listed."""
    found: dict[str, None] = {}
    for entry in entries:
        if entry.exclude:
            continue
        match entry.kind:
            case EntryKind.FILE:
                folder = os.path.dirname(entry.path)
            case EntryKind.TREE:
                folder = entry.path
            case EntryKind.GLOB:
                folder = fixed_folder(entry.path)
        found["" if folder == "." else folder] = None
    return tuple(found)


def folders_opened(writes: tuple[Entry, ...], removes: tuple[RelPath, ...]) -> tuple[str, ...]:
    """The folders, "" for the root, in which a command makes, replaces and removes what these
    name: that of a file or tree, the fixed part of a glob. Without those that lie in others."""
    found = {os.path.dirname(path) for path in removes}
    for entry in writes:
        if not entry.exclude:
            is_glob = entry.kind is EntryKind.GLOB
            folder = fixed_folder(entry.path) if is_glob else os.path.dirname(entry.path)
            found.add("" if folder == "." else folder)
    outer: list[str] = []
    for folder in sorted(found):
        if not any(is_within(folder, other) for other in outer):
            outer.append(folder)
    return tuple(outer)


def is_within(path: str, folder: str) -> bool:
    """Whether `path` is the folder ("" for the root) or lies in it; both relative, or neither."""
    return not folder or path == folder or path.startswith(f"{folder}/")
