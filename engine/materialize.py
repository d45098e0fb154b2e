"""Materializing: putting recorded outputs back into the workspace, all or nothing.

A restore first finds what differs, then stages every blob verified below the store's
`tmp`, and only then swaps by rename. After a crash at any line each path is as it was or
as recorded (where a folder had to make way for a file: gone, and whole in the trash),
staged left-overs lie below `tmp`, and the next restore completes the work. Does not know
why a result is put back or who recorded it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final, Protocol

from assay.engine.filesystem import (
    FilesystemError,
    Obstacles,
    Trash,
    leads_outside,
    look,
    make_folder,
    make_private_folder,
    remove,
    remove_empty_folder,
    remove_hollow_folder,
    remove_private_folder,
    replace,
)
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.outputs import remove_emptied_folders
from assay.engine.states import ABSENT, FOLDER, State, stored_digest
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.model import Entry, EntryKind, RelPath

Outputs = Sequence[tuple[RelPath, State]]

_STATE: Final = re.compile(
    r"absent|folder|(?:file|exec):[0-9a-f]{64}|link:[0-9a-f]{64}(?:>(?:file|exec):[0-9a-f]{64})?"
)
_UNUSABLE_NAMES: Final = frozenset(("", ".", ".."))
_LINK_LENGTH: Final = len("link:") + 64


class CannotRestore(Exception):
    """The record cannot be made true at `path`, whatever the store holds; `reason` continues
    a sentence. To the caller the result does not exist."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"`{path}` {reason}")


class Source(Protocol):
    """Where outputs come from."""

    def stage_output(self, path: RelPath, state: State, place: str) -> str:
        """Where the file or link is, absolute, ready to be moved into place: made at `place`, where
        nothing stands, or somewhere that it lies already."""
        ...

    @property
    def needs_folder(self) -> bool:
        """Whether anything is made at the places it is given."""
        ...


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did. Every tuple is sorted by path."""

    put_back: tuple[RelPath, ...] = ()
    removed: tuple[RelPath, ...] = ()
    """Left-overs of an earlier result that this one does not have."""
    trashed: tuple[tuple[RelPath, str], ...] = ()
    """What nobody recorded and stood in the way, with the absolute path where it is now."""
    unknown: tuple[RelPath, ...] = ()
    """Files inside written trees that nobody recorded; they were left alone."""


@dataclass(frozen=True, slots=True)
class _Difference:
    path: RelPath
    state: State
    found: os.stat_result | None
    """What stood there when it was looked at, which the swap compares."""
    is_recorded: bool
    """Whether what stood there is content some result recorded: no work is lost by
    replacing it."""


@dataclass(slots=True)
class _Survey:
    """Everything a restore will change, found before it changes anything."""

    differences: list[_Difference] = field(default_factory=list)
    obstacles: dict[RelPath, _Difference] = field(default_factory=dict)
    links: list[tuple[RelPath, State]] = field(default_factory=list)
    """Links to be checked at the end: they must lead to what they led to."""
    left_over: list[_Difference] = field(default_factory=list)
    unknown: list[RelPath] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)
    """Folders that recorded outputs lie in or are."""


def find_differences(outputs: Outputs, measurer: Measurer) -> tuple[RelPath, ...]:
    """The outputs that are not on disk as recorded, in the order given.

    A file its owner may not read and one behind a link where a folder was are not.
    """
    obstacles = Obstacles(measurer.root)
    return tuple(
        path
        for path, state in outputs
        if (state != ABSENT if obstacles.find(path) else not _compare(path, state, measurer)[1])
    )


def find_left_over(
    outputs: Outputs,
    writes: Sequence[Entry],
    measurer: Measurer,
    knows: Callable[[RelPath, State], bool],
    keep: Collection[RelPath] = (),
) -> tuple[RelPath, ...]:
    """What earlier results left in the written trees and globs and this one does not have:
    with it there the tree does not equal the recorded one, and `restore` removes it.

    A folder that cannot be listed is named in place of what may be in it.
    """
    survey = _Survey(needed=_folders_of(outputs))
    try:
        _survey_left_over(survey, outputs, writes, measurer, knows, keep)
    except CannotRestore as error:
        return (RelPath(error.path),)
    return tuple(item.path for item in survey.left_over)


def restore(
    root: str,
    outputs: Outputs,
    writes: Sequence[Entry],
    *,
    measurer: Measurer,
    source: Source,
    staging: str,
    trash: str,
    knows: Callable[[RelPath, State], bool],
    keep: Collection[RelPath] = (),
    only_texts: bool = False,
) -> Restored:
    """Makes the workspace hold `outputs` exactly as recorded; what is already right is not
    touched.

    `writes` are the declared writes they came from; () when only these paths matter.
    `knows` tells whether any result recorded a state for a path: such content goes,
    anything else is moved to `trash` first (paths of the record) or left and named (other
    files inside written trees). `keep` are paths to leave alone although the record lacks
    them. `only_texts`: of a link its own text counts, wherever that leads by now, and one that
    leads out of the workspace makes way like any other. What is not yet in place waits in a
    folder of its own whose path starts with `staging` and which should be on the workspace's
    file system. `trash` is a folder made on demand and never reused.

    Raises, before anything has changed: BlobMissing, BlobCorrupt; CannotRestore;
    FilesystemError (DiskFull). FilesystemError also half-way: then every path is old or
    as recorded, and a repetition completes it. CannotRestore comes last for a link whose
    target, no output itself, is not what it was.
    """
    survey = _survey(root, outputs, writes, measurer, knows, keep, only_texts)
    _check_permissions(root, survey)
    folder, staged = _stage(survey, source, staging)
    try:
        done = _swap(root, survey, staged, writes, trash)
    finally:
        if folder is not None:
            remove_private_folder(folder)
    for path, state in () if only_texts else survey.links:
        if not _compare(path, state, measurer)[1]:
            raise CannotRestore(path, "leads to a file that is not as recorded")
    return done


def _survey(
    root: str,
    outputs: Outputs,
    writes: Sequence[Entry],
    measurer: Measurer,
    knows: Callable[[RelPath, State], bool],
    keep: Collection[RelPath],
    only_texts: bool,
) -> _Survey:
    _check_record(outputs)
    survey = _Survey(needed=_folders_of(outputs))
    obstacles = Obstacles(root)
    for path, state in outputs:
        obstacle = obstacles.find(path)
        if obstacle is not None:
            if state != ABSENT:
                _add_obstacle(
                    survey, root, path, RelPath(obstacle), measurer, knows, may_leave=only_texts
                )
                survey.differences.append(_Difference(path, state, None, True))
                if state.startswith("link:"):
                    survey.links.append((path, state))
            continue
        found, is_right, info = _compare(path, state, measurer)
        if is_right:
            continue
        if state.startswith("link:"):
            survey.links.append((path, state))
            if found is not None and found[:_LINK_LENGTH] == state[:_LINK_LENGTH]:
                # The link itself is right.
                continue
        is_recorded = found is not None and (found == state or knows(path, found))
        survey.differences.append(_Difference(path, state, info, is_recorded))
    _survey_left_over(survey, outputs, writes, measurer, knows, keep)
    return survey


def _compare(
    path: RelPath, state: State, measurer: Measurer
) -> tuple[State | None, bool, os.stat_result | None]:
    """What stands at `path` (None when it cannot be measured), whether it is `state`, and
    its stat."""
    try:
        info = measurer.look(path)
        if info is None:
            return ABSENT, state == ABSENT, None
    except Unmeasurable:
        return None, False, None
    try:
        found = measurer.measure(path, info)[0]
    except Unmeasurable:
        return None, False, info
    # Other mode bits do not count, but a file its owner may not read is of no use to
    # whoever reads it next; root, whom it does not stop, shall see it mended as well.
    is_readable = not S_ISREG(info.st_mode) or bool(info.st_mode & 0o400)
    return found, found == state and is_readable, info


def _add_obstacle(
    survey: _Survey,
    root: str,
    path: RelPath,
    obstacle: RelPath,
    measurer: Measurer,
    knows: Callable[[RelPath, State], bool],
    *,
    may_leave: bool,
) -> None:
    if obstacle in survey.obstacles:
        return
    found, _, info = _compare(obstacle, FOLDER, measurer)
    is_link = info is not None and S_ISLNK(info.st_mode)
    if is_link and not may_leave and leads_outside(root, f"{root}/{obstacle}"):
        # Somebody moved the folder out of the workspace and left a link in its place.
        raise CannotRestore(path, f"leads outside the workspace through the link `{obstacle}`")
    is_recorded = found is not None and knows(obstacle, found)
    survey.obstacles[obstacle] = _Difference(obstacle, FOLDER, info, is_recorded)


def _survey_left_over(
    survey: _Survey,
    outputs: Outputs,
    writes: Sequence[Entry],
    measurer: Measurer,
    knows: Callable[[RelPath, State], bool],
    keep: Collection[RelPath],
) -> None:
    if all(entry.kind is EntryKind.FILE or entry.exclude for entry in writes):
        return
    try:
        members = Folders(measurer.root).members(writes, (), in_writes=True)
    except UnreadableFolder as error:
        raise CannotRestore(error.path, f"cannot be listed: {error.reason}") from error
    recorded = {path for path, _ in outputs}
    kept = frozenset(keep)
    for path in members:
        if path in recorded or path in kept or path in survey.needed or path in survey.obstacles:
            continue
        found, _, info = _compare(path, ABSENT, measurer)
        if info is None:
            continue
        # An empty folder holds no work, and a crash between the removal of a file and that
        # of its folder leaves one.
        if found is not None and (found == FOLDER or knows(path, found)):
            survey.left_over.append(_Difference(path, ABSENT, info, True))
        else:
            survey.unknown.append(path)


def _check_permissions(root: str, survey: _Survey) -> None:
    """Refuses before the first change what the host would refuse in the middle."""
    checked: set[str] = set()
    for item in (*survey.differences, *survey.left_over):
        folder = os.path.dirname(item.path)
        while folder not in checked:
            checked.add(folder)
            absolute = f"{root}/{folder}" if folder else root
            info = look(absolute)
            if info is None and folder:
                folder = os.path.dirname(folder)
                continue
            is_ours = info is not None and info.st_uid == os.geteuid()
            if not is_ours and not os.access(absolute, os.W_OK | os.X_OK, effective_ids=True):
                raise FilesystemError(absolute, "is a folder in which you may not write")


def _stage(survey: _Survey, source: Source, staging: str) -> tuple[str | None, dict[int, str]]:
    """Every file and link to be put in place, by its position in the survey; and the folder that
    was made for them."""
    wanted = [
        (position, item.path, item.state)
        for position, item in enumerate(survey.differences)
        if stored_digest(item.state) is not None
    ]
    if not wanted:
        return None, {}
    folder = None
    if source.needs_folder:
        folder = make_private_folder(os.path.dirname(staging), os.path.basename(staging))
    staged: dict[int, str] = {}
    is_complete = False
    try:
        for position, path, state in wanted:
            staged[position] = source.stage_output(path, state, f"{folder}/{position}")
        is_complete = True
    finally:
        if not is_complete and folder is not None:
            remove_private_folder(folder)
    return folder, staged


def _swap(
    root: str, survey: _Survey, staged: dict[int, str], writes: Sequence[Entry], trash: str
) -> Restored:
    """The only part that changes the workspace. First what stands where folders are
    needed, then left-overs, then path by path."""
    waste = Trash(trash)
    put_back: list[RelPath] = []
    removed: list[RelPath] = []
    trashed: dict[RelPath, str] = {}
    unknown = list(survey.unknown)
    made: set[str] = set()

    def clear(item: _Difference) -> None:
        absolute = f"{root}/{item.path}"
        now = look(absolute)
        if now is None:
            return
        if S_ISDIR(now.st_mode):
            if remove_hollow_folder(absolute):
                return
        elif item.is_recorded and _is_same(now, item.found):
            remove(absolute)
            if item.state == ABSENT:
                removed.append(item.path)
            return
        trashed[item.path] = waste.move(absolute, item.path)

    for item in survey.obstacles.values():
        clear(item)
    for item in survey.left_over:
        absolute = f"{root}/{item.path}"
        now = look(absolute)
        if now is None:
            continue
        if _is_same(now, item.found) and (
            remove_empty_folder(absolute) if S_ISDIR(now.st_mode) else remove(absolute)
        ):
            removed.append(item.path)
        else:
            unknown.append(item.path)
    remove_emptied_folders(root, removed, writes, survey.needed)
    for position, item in enumerate(survey.differences):
        absolute = f"{root}/{item.path}"
        if item.state == ABSENT:
            clear(item)
            continue
        _make_parents(root, item.path, made)
        now = look(absolute)
        if item.state == FOLDER:
            if now is None or not S_ISDIR(now.st_mode):
                clear(item)
                make_folder(absolute)
        else:
            if now is not None and S_ISDIR(now.st_mode):
                clear(item)
            elif now is not None and not (item.is_recorded and _is_same(now, item.found)):
                trashed[item.path] = waste.keep(absolute, item.path)
            replace(staged[position], absolute)
        put_back.append(item.path)
    return Restored(
        put_back=tuple(sorted(put_back)),
        removed=tuple(sorted(removed)),
        trashed=tuple(sorted(trashed.items())),
        unknown=tuple(sorted(path for path in unknown if not _lies_in(path, trashed))),
    )


def _make_parents(root: str, path: RelPath, made: set[str]) -> None:
    folder = os.path.dirname(path)
    missing: list[str] = []
    while folder and folder not in made:
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        absolute = f"{root}/{folder}"
        make_folder(absolute)
        info = look(absolute)
        if info is None or not S_ISDIR(info.st_mode):
            raise FilesystemError(absolute, "was replaced while outputs were put into it")
        made.add(folder)


def _is_same(now: os.stat_result, found: os.stat_result | None) -> bool:
    """Whether nobody touched a path since it was looked at."""
    return found is not None and (
        now.st_ino == found.st_ino
        and now.st_size == found.st_size
        and now.st_mtime_ns == found.st_mtime_ns
        and now.st_ctime_ns == found.st_ctime_ns
    )


def _folders_of(outputs: Iterable[tuple[RelPath, State]]) -> set[str]:
    folders: set[str] = set()
    for path, state in outputs:
        if state == ABSENT:
            continue
        folder = path if state == FOLDER else os.path.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    return folders


def _check_record(outputs: Outputs) -> None:
    """Refuses records that no capture makes: they would lead out of the workspace or into
    the store, or through a link of their own."""
    folders = _folders_of(outputs)
    for path, state in outputs:
        names = path.split("/")
        if not _UNUSABLE_NAMES.isdisjoint(names) or "\0" in path or names[0] == ".assay":
            raise CannotRestore(path, "is no path that a result can have")
        if _STATE.fullmatch(state) is None:
            raise CannotRestore(path, f"is recorded as `{state}`, which is no state")
        if path in folders and state != FOLDER:
            raise CannotRestore(path, "is recorded as a file with others below it")


def _lies_in(path: str, trashed: Collection[str]) -> bool:
    while path:
        if path in trashed:
            return True
        path = os.path.dirname(path)
    return False
