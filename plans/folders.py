"""What entries name on disk: listings of folders and the members of globs and trees.

Besides the reading of plan files this is the only look the plans take at the workspace.
Contents are never read. Git decides nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from assay.plans.entries import (
    ROOT,
    Extent,
    excluded_parts,
    extents_of,
    fixed_folder,
    pattern_parts,
)
from assay.plans.model import Entry, EntryKind, RelPath
from assay.plans.patterns import Parts, Positions, advance, covers_everything_below, start

BUILT_IN_IGNORE: Final = (".git/", ".assay/", "__pycache__/", "*.py[co]", ".DS_Store")
"""gitignore patterns that every read of a glob or a tree obeys."""

STORE_FOLDER: Final = RelPath(".assay")
"""Belongs to assay; no walk enters it, not even one over declared writes."""

# BUILT_IN_IGNORE by hand, for plans that add nothing to it: pathspec takes longer to
# import than a small run takes, and a test holds the two to the same answers.
_IGNORED_FOLDERS: Final = frozenset((".git", ".assay", "__pycache__"))
_IGNORED_NAMES: Final = frozenset((".DS_Store",))
_IGNORED_SUFFIXES: Final = (".pyc", ".pyo")


IsIgnored = Callable[[str, bool], bool]
"""Whether a path, which is a folder or not, is ignored."""

# Errors that say that nothing stands at a path, rather than that nobody may look.
_NOTHING_THERE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))

LONGEST_NAME_BYTES: Final = 255


class UnreadableFolder(Exception):
    """A folder that a walk had to enter could not be listed, so no answer is known.

    `path` is relative to the root, `reason` one clause.
    """

    def __init__(self, path: RelPath, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"The folder `{path}` cannot be listed: {reason}.")


class FileType(StrEnum):
    """What a listing knows of a name without another look at the disk."""

    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    """A file; also a named pipe, a socket or a device, which measuring refuses."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One folder as it stood when listed.

    `signature` is (mtime_ns, ctime_ns, inode) of the folder, taken before it was listed;
    None when there is no such folder.
    """

    names: tuple[tuple[str, FileType], ...]
    """Sorted."""
    signature: tuple[int, int, int] | None


class Folders:
    """The workspace's folders, each listed at most once during this object's life.

    Answers are therefore of one moment: make a new one to look again. Not thread-safe.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.visited: dict[RelPath, Listing] = {}
        """Every folder listed so far, those that were looked for and not found included."""
        self._members: dict[
            tuple[tuple[Entry, ...], tuple[str, ...], bool], tuple[RelPath, ...]
        ] = {}
        self._extents: dict[tuple[Extent, tuple[str, ...], bool], tuple[RelPath, ...]] = {}
        self._ignored: dict[tuple[str, ...], IsIgnored] = {}

    def members(
        self, entries: Sequence[Entry], ignore: Sequence[str], *, in_writes: bool = False
    ) -> tuple[RelPath, ...]:
        """The paths on disk that `entries` name, sorted, each once.

        Links are members and never entered, except where the fixed part of a read names
        one. Folders are members only when `in_writes` and empty. `ignore` (gitignore
        patterns, on top of the built-in ones) holds for globs and trees, and not at all
        when `in_writes`. Excluded and ignored folders are not entered. Raises
        UnreadableFolder.
        """
        key = (tuple(entries), () if in_writes else tuple(ignore), in_writes)
        found = self._members.get(key)
        if found is None:
            extents = extents_of(key[0])
            parts = [self._members_of_extent(extent, key[1], in_writes) for extent in extents]
            if len(parts) == 1:
                found = parts[0]
            else:
                found = tuple(sorted({path for part in parts for path in part}))
            self._members[key] = found
        return found

    def has_member(self, extent: Extent, ignore: Sequence[str]) -> bool:
        """Whether a read of `extent` names anything on disk; looks no further than the first.

        Raises UnreadableFolder.
        """
        known = self._extents.get((extent, tuple(ignore), False))
        if known is not None:
            return bool(known)
        return next(self._find(extent, tuple(ignore), False), None) is not None

    def list_folder(self, path: RelPath) -> Listing:
        """The names in a folder; none when there is no such folder. Raises UnreadableFolder."""
        listing = self.visited.get(path)
        if listing is None:
            listing = self.visited[path] = self._list(path)
        return listing

    def _list(self, path: RelPath) -> Listing:
        absolute = self.root if path == ROOT else f"{self.root}/{path}"
        try:
            status = os.stat(absolute)
            with os.scandir(absolute) as entries:
                names = sorted((entry.name, _type_of(entry)) for entry in entries)
        except OSError as error:
            if _says_absent(error, path):
                return Listing((), None)
            raise UnreadableFolder(path, _reason(error)) from error
        return Listing(tuple(names), (status.st_mtime_ns, status.st_ctime_ns, status.st_ino))

    def _members_of_extent(
        self, extent: Extent, ignore: tuple[str, ...], in_writes: bool
    ) -> tuple[RelPath, ...]:
        if extent.entry.kind is EntryKind.FILE:
            return tuple(self._find(extent, ignore, in_writes))
        key = (extent, ignore, in_writes)
        found = self._extents.get(key)
        if found is None:
            found = self._extents[key] = tuple(sorted(self._find(extent, ignore, in_writes)))
        return found

    def _find(self, extent: Extent, ignore: tuple[str, ...], in_writes: bool) -> Iterator[RelPath]:
        entry = extent.entry
        if entry.kind is EntryKind.FILE:
            status = self.lstat(entry.path)
            if status is None:
                return
            if not stat.S_ISDIR(status.st_mode) or (in_writes and self._is_empty(entry.path)):
                yield entry.path
            return
        top = entry.path if entry.kind is EntryKind.TREE else fixed_folder(entry.path)
        patterns = (pattern_parts(entry), *(p for e in extent.excludes for p in excluded_parts(e)))
        state = tuple(start(parts) for parts in patterns)
        for name in () if top == ROOT else top.split("/"):
            state = _step(patterns, state, name)
        if in_writes:
            is_tree = entry.kind is EntryKind.TREE and not _is_excluded(patterns, state)
            # Nothing is ever written through a link: one that stands where a written tree
            # should be is itself what was written.
            link = self._find_link_along(top)
            if link is not None:
                if link == top and is_tree:
                    yield top
                return
            if is_tree and self._is_empty(top):
                yield top
        is_ignored = None if in_writes else self._ignore(ignore)
        yield from self._walk(top, patterns, state, is_ignored, in_writes)

    def _walk(
        self,
        top: RelPath,
        patterns: tuple[Parts, ...],
        state: tuple[Positions, ...],
        is_ignored: IsIgnored | None,
        in_writes: bool,
    ) -> Iterator[RelPath]:
        end = len(patterns[0])
        pending = [(top, state)]
        while pending:
            folder, state = pending.pop()
            if _nothing_below(patterns, state):
                continue
            prefix = "" if folder == ROOT else folder + "/"
            for name, file_type in self.list_folder(folder).names:
                positions = advance(patterns[0], state[0], name)
                if not positions:
                    continue
                path = RelPath(prefix + name)
                is_folder = file_type is FileType.FOLDER
                if path == STORE_FOLDER or (is_ignored and is_ignored(path, is_folder)):
                    continue
                below = (positions, *_step(patterns[1:], state[1:], name))
                if is_folder:
                    pending.append((path, below))
                    if not in_writes or not self._is_empty(path):
                        continue
                if end in positions and not _is_excluded(patterns, below):
                    yield path

    def _is_empty(self, path: RelPath) -> bool:
        listing = self.list_folder(path)
        return listing.signature is not None and not listing.names

    def _find_link_along(self, path: RelPath) -> RelPath | None:
        names = [] if path == ROOT else path.split("/")
        for count in range(1, len(names) + 1):
            part = RelPath("/".join(names[:count]))
            status = self.lstat(part)
            if status is None:
                return None
            if stat.S_ISLNK(status.st_mode):
                return part
        return None

    def lstat(self, path: RelPath) -> os.stat_result | None:
        """How a path stands, links not followed; None when nothing stands there.

        Raises UnreadableFolder.
        """
        try:
            return os.lstat(f"{self.root}/{path}")
        except OSError as error:
            if _says_absent(error, path):
                return None
            folder = RelPath(path.rpartition("/")[0] or ROOT)
            raise UnreadableFolder(folder, _reason(error)) from error

    def _ignore(self, ignore: tuple[str, ...]) -> IsIgnored:
        """Made once for each list of patterns."""
        found = self._ignored.get(ignore)
        if found is None:
            found = self._ignored[ignore] = _compile_ignore(ignore) if ignore else _is_built_in
        return found


def _type_of(entry: os.DirEntry[str]) -> FileType:
    if entry.is_symlink():
        return FileType.LINK
    return FileType.FOLDER if entry.is_dir(follow_symlinks=False) else FileType.OTHER


def _step(
    patterns: Sequence[Parts], state: Sequence[Positions], name: str
) -> tuple[Positions, ...]:
    return tuple(advance(p, s, name) for p, s in zip(patterns, state, strict=True))


def _nothing_below(patterns: Sequence[Parts], state: Sequence[Positions]) -> bool:
    """Whether a folder need not be entered: the pattern ends above, or all is excluded."""
    if all(position == len(patterns[0]) for position in state[0]):
        return True
    return any(covers_everything_below(p, s) for p, s in zip(patterns[1:], state[1:], strict=True))


def _is_excluded(patterns: Sequence[Parts], state: Sequence[Positions]) -> bool:
    return any(len(p) in s for p, s in zip(patterns[1:], state[1:], strict=True))


def _is_built_in(path: str, is_folder: bool) -> bool:
    name = path.rpartition("/")[2]
    if is_folder and name in _IGNORED_FOLDERS:
        return True
    return name in _IGNORED_NAMES or name.endswith(_IGNORED_SUFFIXES)


def _compile_ignore(ignore: tuple[str, ...]) -> IsIgnored:
    from pathspec import GitIgnoreSpec

    spec = GitIgnoreSpec.from_lines((*BUILT_IN_IGNORE, *ignore))
    return lambda path, is_folder: spec.match_file(path + "/" if is_folder else path)


def _says_absent(error: OSError, path: RelPath) -> bool:
    """A name that is too long to exist names nothing; a path that is too long may well."""
    if error.errno == errno.ENAMETOOLONG:
        return any(len(os.fsencode(name)) > LONGEST_NAME_BYTES for name in path.split("/"))
    return error.errno in _NOTHING_THERE


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
