"""A private tree: a folder that holds what one node declares to read, where its command works
in place of the workspace.

Files are copies, verified as they are made, with mode and times of the originals. A large one
shares its blocks where the file system can do that; else it is a second name for the original
wherever the kernel lets the command only read it, which the caller sees to for all but the
folders `opened`. What the command left is found by comparing the whole tree with what was put
there. Nothing here writes to the workspace. After a crash the tree is a left-over below the
store's `tmp`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from assay.engine.confinement import is_within
from assay.engine.filesystem import (
    FilesystemError,
    NotAPlainFile,
    cannot_write,
    copy_new_file,
    explain_error,
    look,
    make_folders,
)
from assay.engine.measuring import Measurer
from assay.engine.states import ABSENT, FOLDER, State
from assay.engine.temporary import remove_tree
from assay.plans.model import RelPath

SHARED_BYTES: Final = 1 << 18
"""From this size on a file is shared with the workspace where that is safe: to make and drop a
second name and to measure the original again, whose ctime that moves, costs as much as to copy
this much."""

_CLONE: Final = 0x40049409  # FICLONE of linux/fs.h
_MOST_LINKS: Final = 40
"""In a row, as the kernel follows them."""

_NOT_TAKEN: Final = ("..", ".", ".assay")
"""Where links out of the tree, to its root and into the store lead."""

_Says = Callable[[RelPath], bool]


@dataclass(frozen=True, slots=True)
class Strays:
    """What a command did in its tree beyond what is declared; sorted."""

    created: tuple[RelPath, ...]
    changed: tuple[RelPath, ...]
    removed: tuple[RelPath, ...]


@dataclass(frozen=True, slots=True)
class _Placed:
    """What was put at a path: enough to tell whether it was touched since."""

    inode: int
    size: int
    mtime_ns: int
    mode: int

    @classmethod
    def of(cls, info: os.stat_result) -> _Placed:
        size = 0 if S_ISDIR(info.st_mode) else info.st_size
        mtime_ns = 0 if S_ISDIR(info.st_mode) else info.st_mtime_ns
        return cls(info.st_ino, size, mtime_ns, info.st_mode)


class PrivateTree:
    """See the module. One thread at a time."""

    def __init__(self, root: str, path: str, opened: tuple[str, ...]) -> None:
        """`path` is absolute and does not exist; `opened` are the folders, relative, in which
        the command may write."""
        self._root = root
        self.path = path
        self._opened = opened
        self._placed: dict[str, _Placed] = {}
        self._shared: dict[RelPath, os.stat_result] = {}
        self._is_written: _Says = lambda path: False
        self.moved: list[RelPath] = []
        """What was no longer as the key says when it was put here."""

    @property
    def shared(self) -> frozenset[RelPath]:
        """Files that are second names of those in the workspace: what changes those while the
        command runs, it sees."""
        return frozenset(self._shared)

    def stage(
        self,
        states: Mapping[RelPath, State],
        more: Iterable[RelPath] = (),
        folders: Iterable[str] = (),
        is_written: _Says = lambda path: False,
    ) -> None:
        """Makes the tree: `states` are the reads as the key has them, `more` what is copied
        however it stands (a folder with all it holds), `folders` are made, `is_written` tells of
        what the node may write. Raises FilesystemError."""
        self._is_written = is_written
        try:
            os.mkdir(self.path, 0o700)
        except FileNotFoundError:
            make_folders(self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._place(self.path, "")
        for path, state in sorted(states.items()):  # links to folders before what lies behind
            if state == FOLDER:
                self._make_folder(path)
            elif state != ABSENT:
                self._put(path, state)
        for path in more:
            for each in self._list(path):
                if each not in self._placed:
                    self._put(each, None)
        for folder in folders:
            self._make_folder(folder)

    def find_strays(self, is_declared: _Says) -> Strays:
        """Compares the tree with what was put there. `is_declared` tells of paths that the node
        may make, change and remove."""
        created: list[RelPath] = []
        changed: list[RelPath] = []
        seen: set[str] = set()
        for path, info in walk(self.path):
            seen.add(path)
            placed = self._placed.get(path)
            if placed is None:
                # A folder counts only where nothing lies in it: files tell of themselves.
                if not is_declared(path) and not S_ISDIR(info.st_mode):
                    created.append(path)
            elif placed != _Placed.of(info) and not is_declared(path):
                changed.append(path)
        removed = [
            RelPath(path)
            for path in self._placed.keys() - seen
            if path and not is_declared(RelPath(path)) and not self._is_folder(path)
        ]
        return Strays(tuple(sorted(created)), tuple(sorted(changed)), tuple(sorted(removed)))

    def find_removed(self, is_declared: _Says) -> tuple[RelPath, ...]:
        """What was put there and the command removed, of what it may."""
        return tuple(
            sorted(
                RelPath(path)
                for path in self._placed
                if path and is_declared(RelPath(path)) and look(f"{self.path}/{path}") is None
            )
        )

    def mend_shared(self) -> None:
        """Gives files in the workspace that are shared with the tree the mode back they had: the
        kernel keeps a command from writing to them, not from that."""
        for path, was in self._shared.items():
            absolute = f"{self._root}/{path}"
            now = look(absolute)
            if now is not None and now.st_ino == was.st_ino and now.st_mode != was.st_mode:
                with suppress(OSError):  # removed meanwhile, or given to somebody else
                    os.chmod(absolute, S_IMODE(was.st_mode))

    def find_misleading(
        self, outputs: Iterable[tuple[RelPath, State]], workspace: Measurer
    ) -> tuple[tuple[RelPath, str], ...]:
        """Links among `outputs`, as measured here, that will lead to something else once all of
        them are in the workspace, each with its text. Raises Unmeasurable."""
        states = dict(outputs)
        return tuple(
            (path, os.readlink(f"{self.path}/{path}"))
            for path, state in states.items()
            if state.startswith("link:")
            and self._find_behind(path, states, workspace) != state.partition(">")[2]
        )

    def _find_behind(
        self, path: RelPath, states: Mapping[RelPath, State], workspace: Measurer
    ) -> str | None:
        """The state of the file that a link will lead to, "" for anything else; None when it leads
        into this tree by an absolute path."""
        following = path
        for _ in range(_MOST_LINKS):
            state = states.get(following)
            if state is None:
                state = workspace.state_of(following)
                return state.partition(">")[2] if state.startswith("link:") else _plain(state)
            if not state.startswith("link:"):
                return _plain(state)
            text = os.readlink(f"{self.path}/{following}")
            if is_within(os.path.normpath(text), self.path):
                return None
            absolute = os.path.join(self._root, os.path.dirname(following), text)
            following = RelPath(os.path.relpath(absolute, self._root))
        return ""

    @property
    def needs_folder(self) -> bool:
        return False

    def stage_output(self, path: RelPath, _state: State, _place: str) -> str:
        """Where what the command left at `path` is, as `materialize` asks for it."""
        return f"{self.path}/{path}"

    def remove(self) -> None:
        """Removes the tree. What cannot be removed is swept with the left-overs of dead runs."""
        remove_tree(self.path)

    def _put(self, path: RelPath, state: State | None) -> None:
        """What stands at the path in the workspace, and what it leads to if that is a link."""
        following: RelPath | None = path
        for _ in range(_MOST_LINKS):
            if following is None or following in self._placed:
                return
            following = self._put_one(following, state)
            state = None

    def _put_one(self, path: RelPath, state: State | None) -> RelPath | None:
        """The path that it leads to, when it is a link with a relative text; where it lies really,
        when it is behind a link that is in the tree."""
        source = f"{self._root}/{path}"
        if self._is_behind_link(path):
            real = os.path.relpath(os.path.realpath(source), self._root)
            return None if real.split("/", 1)[0] in _NOT_TAKEN else RelPath(real)
        info = look(source)
        if info is None:
            if state is not None:
                self.moved.append(path)
            return None
        self._make_folder(os.path.dirname(path))
        if S_ISLNK(info.st_mode):
            return self._put_link(path, source)
        if S_ISDIR(info.st_mode):
            self._make_folder(path)
        elif S_ISREG(info.st_mode):
            self._put_file(path, source, info, state)
        elif state is not None:
            self.moved.append(path)
        return None

    def _is_behind_link(self, path: RelPath) -> bool:
        folder = os.path.dirname(path)
        while folder:
            placed = self._placed.get(folder)
            if placed is not None:
                return S_ISLNK(placed.mode)
            folder = os.path.dirname(folder)
        return False

    def _put_link(self, path: RelPath, source: str) -> RelPath | None:
        text = os.readlink(source)
        place = f"{self.path}/{path}"
        following = os.path.normpath(os.path.join(os.path.dirname(path), text))
        if following.startswith("../") and not self._is_written(path):
            # It leads out of the workspace, from where this tree is not.
            text = os.path.normpath(f"{self._root}/{following}")
        try:
            os.symlink(text, place)
        except OSError as error:
            raise cannot_write(place, error) from error
        self._place(place, path)
        if text.startswith("/"):
            return None
        if following.split("/", 1)[0] in _NOT_TAKEN:
            return None
        behind = look(f"{self._root}/{following}")
        # A link to a folder is recorded as a link: what lies in that is declared, or not there.
        return None if behind is None or S_ISDIR(behind.st_mode) else RelPath(following)

    def _put_file(
        self, path: RelPath, source: str, info: os.stat_result, state: State | None
    ) -> None:
        place = f"{self.path}/{path}"
        if info.st_size >= SHARED_BYTES and self._share(path, source, place, info):
            return
        try:
            digest = copy_new_file(source, place, S_IMODE(info.st_mode) & 0o777)
            os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
        except (NotAPlainFile, FileNotFoundError):
            self.moved.append(path)
            return
        except OSError as error:
            raise FilesystemError(source, f"cannot be copied: {explain_error(error)}") from error
        if state is not None and not state.startswith("link:") and state[5:] != digest:
            self.moved.append(path)
        self._place(place, path)

    def _share(self, path: RelPath, source: str, place: str, info: os.stat_result) -> bool:
        """Without copying: by the same blocks, or by a second name where it is only read."""
        try:
            if _clone(source, place, info):
                self._place(place, path)
                return True
            if any(is_within(path, folder) for folder in self._opened):
                return False
            os.link(source, place, follow_symlinks=False)
        except OSError:
            return False  # another file system, too many names, a file of somebody else's
        self._shared[path] = info
        self._place(place, path)
        return True

    def _make_folder(self, folder: str) -> None:
        if not folder or folder in self._placed:
            return
        self._make_folder(os.path.dirname(folder))
        place = f"{self.path}/{folder}"
        try:
            os.mkdir(place)
        except OSError as error:
            raise cannot_write(place, error) from error
        self._place(place, folder)

    def _place(self, place: str, path: str) -> None:
        self._placed[path] = _Placed.of(os.lstat(place))

    def _is_folder(self, path: str) -> bool:
        return S_ISDIR(self._placed[path].mode)

    def _list(self, path: RelPath) -> Iterator[RelPath]:
        info = look(f"{self._root}/{path}")
        if info is None:
            return
        yield path
        if S_ISDIR(info.st_mode):
            for below, _ in walk(f"{self._root}/{path}"):
                yield RelPath(f"{path}/{below}")


def _plain(state: State) -> str:
    return state if state.startswith(("file:", "exec:")) else ""


def walk(top: str) -> Iterator[tuple[RelPath, os.stat_result]]:
    """Everything below `top` with its stat; paths are relative to it, folders before what they
    hold. Raises FilesystemError."""
    pending = [""]
    while pending:
        folder = pending.pop()
        place = f"{top}/{folder}" if folder else top
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    yield RelPath(path), entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(path)
        except OSError as error:
            raise FilesystemError(place, f"cannot be listed: {explain_error(error)}") from error


def _clone(source: str, place: str, info: os.stat_result) -> bool:
    """Whether the file system has made `place` of the very blocks of `source`."""
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = S_IMODE(info.st_mode) & 0o777
        writing = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.ioctl(writing, _CLONE, reading)
        except OSError as error:
            os.unlink(place)
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL):
                return False
            raise
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
    return True
