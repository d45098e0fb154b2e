"""Measuring: what stands at a path, as one comparable `State`.

Reads a file only when the stat cache does not vouch for it, and each file once. Does not
know why a path matters, which node reads or writes it, or what anyone expects there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISLNK, S_ISREG
from typing import Final, Protocol

from assay.engine.filesystem import (
    ChangedMeanwhile,
    NotAPlainFile,
    digest_bytes,
    explain_error,
    look,
    look_through,
    read_link,
    read_plain_file,
)
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.model import Digest, RelPath

LARGE_FILE_BYTES: Final = 4 << 20
"""Files from this size on are digested side by side when there are several."""

TRIES: Final = 5
"""How often a file that changes while it is read is read again."""


class StatCache(Protocol):
    """States of files by their stat. `remember` may be called from any thread, and does
    not keep what a later write could leave looking the same."""

    def lookup(self, path: RelPath, stat: os.stat_result, /) -> State | None: ...

    def remember(
        self, path: RelPath, stat: os.stat_result, state: State, measured_at_ns: int, /
    ) -> None: ...


class Unmeasurable(Exception):
    """No state can be given for `path`; `reason` continues a sentence about it."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"`{path}` {reason}")


class Measurer:
    """Measures paths of one workspace. Any thread may ask."""

    def __init__(self, root: str, stats: StatCache, now_ns: Callable[[], int]) -> None:
        """`root` is absolute and resolved; `now_ns` is on the scale of file time stamps."""
        self.root = root
        self._prefix = root.rstrip("/") + "/"
        self._stats = stats
        self._now_ns = now_ns

    def state_of(self, path: RelPath) -> State:
        """What stands at `path` now: FOLDER for any folder, ABSENT for nothing.

        Raises Unmeasurable for a pipe, socket or device, for what may not be read, and
        for a file that never holds still.
        """
        info = self.look(path)
        if info is None:
            return ABSENT
        if S_ISREG(info.st_mode):
            known = self._stats.lookup(path, info)
            if known is not None:
                return known
        return self.measure(path, info)[0]

    def states_of(
        self, paths: Iterable[RelPath]
    ) -> tuple[dict[RelPath, State], dict[RelPath, str]]:
        """The states of many paths, and for those that have none the reason why not."""
        states: dict[RelPath, State] = {}
        unmeasurable: dict[RelPath, str] = {}
        large: list[RelPath] = []
        for path in paths:
            try:
                info = self.look(path)
                if info is None:
                    states[path] = ABSENT
                elif not S_ISREG(info.st_mode):
                    states[path] = self.measure(path, info)[0]
                elif (known := self._stats.lookup(path, info)) is not None:
                    states[path] = known
                elif info.st_size >= LARGE_FILE_BYTES:
                    large.append(path)
                else:
                    states[path] = self.measure(path, info)[0]
            except Unmeasurable as error:
                unmeasurable[path] = error.reason
        if large:
            self._measure_side_by_side(large, states, unmeasurable)
        return states, unmeasurable

    def tool_digest(self, absolute_path: str) -> Digest:
        """The content of an executable anywhere on the host, links followed.

        Raises Unmeasurable when it is gone or cannot be read.
        """
        try:
            info = look_through(absolute_path)
        except OSError as error:
            raise Unmeasurable(absolute_path, _unreachable(error)) from error
        if info is None:
            raise Unmeasurable(absolute_path, "does not exist")
        if not S_ISREG(info.st_mode):
            raise Unmeasurable(absolute_path, _name_kind(info.st_mode))
        state = self._state_behind(RelPath(absolute_path), absolute_path, info)
        if state is None:
            raise Unmeasurable(absolute_path, "does not exist")
        return Digest(state[5:])

    def look(self, path: RelPath) -> os.stat_result | None:
        """The stat of what stands at `path`, None for nothing. Raises Unmeasurable."""
        try:
            return look(self._prefix + path)
        except OSError as error:
            raise Unmeasurable(path, _unreachable(error)) from error

    def measure(self, path: RelPath, info: os.stat_result) -> tuple[State, bytes | None]:
        """The state of what `look` found, and the bytes of a file that had to be read and
        is small: whoever stores it need not read it again. Raises Unmeasurable."""
        absolute = self._prefix + path
        found: os.stat_result | None = info
        for _ in range(TRIES):
            if found is None:
                return ABSENT, None
            mode = found.st_mode
            try:
                if S_ISREG(mode):
                    known = self._stats.lookup(path, found)
                    return (known, None) if known else self._read(path, absolute, follow=False)
                if S_ISDIR(mode):
                    return FOLDER, None
                if S_ISLNK(mode):
                    return self._measure_link(path, absolute), None
                raise Unmeasurable(path, _name_kind(mode))
            except (ChangedMeanwhile, NotAPlainFile, FileNotFoundError, NotADirectoryError):
                # Replaced or written to since it was looked at.
                pass
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EINVAL):
                    raise Unmeasurable(path, _unreadable(error)) from error
            found = self.look(path)
        raise Unmeasurable(path, "changes while it is read")

    def _read(self, path: RelPath, absolute: str, *, follow: bool) -> tuple[State, bytes | None]:
        # The time is taken before the first byte is read: a write that comes later has a
        # stamp no older than this, which is how the cache tells a racy entry.
        measured_at_ns = self._now_ns()
        info, digest, data = read_plain_file(absolute, follow=follow)
        state = State(("exec:" if info.st_mode & 0o111 else "file:") + digest)
        self._stats.remember(path, info, state, measured_at_ns)
        return state, data

    def _measure_link(self, path: RelPath, absolute: str) -> State:
        """The file a link leads to is cached under the link's own path with the file's
        stat: what a plain file of that stat would hold there is the same."""
        state = "link:" + digest_bytes(read_link(absolute))
        try:
            behind = look_through(absolute)
        except OSError as error:
            raise Unmeasurable(path, _unreachable(error)) from error
        if behind is None or not S_ISREG(behind.st_mode):
            return State(state)
        content = self._state_behind(path, absolute, behind)
        return State(state if content is None else f"{state}>{content}")

    def _state_behind(self, path: RelPath, absolute: str, info: os.stat_result) -> State | None:
        """The state of the plain file `absolute` leads to; None when it is gone by now."""
        known = self._stats.lookup(path, info)
        if known is not None:
            return known
        for _ in range(TRIES):
            try:
                return self._read(path, absolute, follow=True)[0]
            except ChangedMeanwhile:
                continue
            except (NotAPlainFile, FileNotFoundError):
                return None
            except OSError as error:
                raise Unmeasurable(path, _unreadable(error)) from error
        raise Unmeasurable(path, "changes while it is read")

    def _measure_side_by_side(
        self,
        paths: list[RelPath],
        states: dict[RelPath, State],
        unmeasurable: dict[RelPath, str],
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:
            for path, future in [(path, pool.submit(self.state_of, path)) for path in paths]:
                try:
                    states[path] = future.result()
                except Unmeasurable as error:
                    unmeasurable[path] = error.reason


def _unreachable(error: OSError) -> str:
    return f"cannot be reached: {explain_error(error)}"


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {explain_error(error)}"


def _name_kind(mode: int) -> str:
    if S_ISFIFO(mode):
        return "is a named pipe"
    if S_ISCHR(mode) or S_ISBLK(mode):
        return "is a device"
    if S_ISDIR(mode):
        return "is a folder"
    return "is a socket"
