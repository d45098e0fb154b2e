"""A node's declared writes: as they stand before an attempt, cleared for it, and captured
after it.

Knows the boundary of one node. Does not know why the attempt is made, whether its result
will be cached, or what earlier results there are beyond those it is handed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISLNK

from assay.engine.blobs import Blobs, Moved
from assay.engine.filesystem import (
    Obstacles,
    Trash,
    leads_outside,
    look,
    remove,
    remove_empty_folder,
)
from assay.engine.measuring import TRIES, Measurer, Unmeasurable
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.entries import fixed_folder, matches
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.model import Entry, EntryKind, Node, RelPath


class BrokenBoundary(Exception):
    """A command that ended well did not do what its node declares; one sentence each."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("; ".join(self.sentences))


@dataclass(frozen=True, slots=True)
class Captured:
    """What a successful attempt left: paths sorted, ABSENT for an optional file that was
    not written."""

    outputs: tuple[tuple[RelPath, State], ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was taken out of an attempt's way. `trashed` maps each path to where it is now,
    an absolute path."""

    removed: tuple[RelPath, ...]
    trashed: dict[RelPath, str]


def capture_outputs(node: Node, root: str, measurer: Measurer, blobs: Blobs | None) -> Captured:
    """Measures what `node` declares to write and stores it in `blobs`.

    Nothing is stored before everything declared was found. Raises BrokenBoundary, and
    StorageFull when the store takes no more: the outputs themselves are fine then, and
    can be captured with `blobs` None.
    """
    found, problems = _find_written(node, root, measurer)
    for path in node.removes:
        try:
            if measurer.look(path) is not None:
                problems.append(f"`{path}` is declared in `removes` but is still there")
        except Unmeasurable as error:
            problems.append(str(error))
    if problems:
        raise BrokenBoundary(problems)
    outputs: list[tuple[RelPath, State]] = []
    for path in sorted(found):
        info = found[path]
        try:
            outputs.append((path, ABSENT if info is None else _keep(path, info, measurer, blobs)))
        except Unmeasurable as error:
            problems.append(str(error))
    if problems:
        raise BrokenBoundary(problems)
    return Captured(tuple(outputs))


def states_before(node: Node, measurer: Measurer) -> dict[RelPath, State]:
    """The declared writes that exist now. What cannot be measured is left out."""
    states: dict[RelPath, State] = {}
    for path in _present(node, measurer):
        try:
            states[path] = measurer.state_of(path)
        except Unmeasurable:
            continue
    return states


def clear_outputs(
    node: Node,
    recorded: Mapping[RelPath, State],
    before_failed: Mapping[RelPath, State] | None,
    measurer: Measurer,
    trash: str,
) -> Cleared:
    """Takes old outputs of `node` away, so that left-overs never count as results.

    Of `recorded` (its last result) what it still declares and nobody modified is removed.
    When an earlier attempt failed or never settled, `before_failed` tells how the declared
    writes stood before it: what differs goes to the folder `trash`, made on demand. Paths
    the node also reads stay. Folders go when that leaves them empty. Nothing is touched
    behind a link. Raises FilesystemError.
    """
    root = measurer.root
    obstacles = Obstacles(root)
    removed: list[RelPath] = []
    for path, state in recorded.items():
        if state == ABSENT or not _may_clear(path, node, obstacles):
            continue
        if _find_state(path, measurer) == state:
            absolute = f"{root}/{path}"
            if remove_empty_folder(absolute) if state == FOLDER else remove(absolute):
                removed.append(path)
    trashed: dict[RelPath, str] = {}
    if before_failed is not None:
        waste = Trash(trash)
        for path in _present(node, measurer):
            if not _may_clear(path, node, obstacles):
                continue
            state_now = _find_state(path, measurer)
            if state_now in (ABSENT, before_failed.get(path, ABSENT)):
                continue
            absolute = f"{root}/{path}"
            if state_now == FOLDER and remove_empty_folder(absolute):
                removed.append(path)
            else:
                trashed[path] = waste.move(absolute, path)
    remove_emptied_folders(root, [*removed, *trashed], node.writes)
    return Cleared(tuple(sorted(removed)), trashed)


def remove_emptied_folders(
    root: str,
    gone: Iterable[RelPath],
    writes: Sequence[Entry],
    spare: Collection[str] = (),
) -> None:
    """Removes folders that lost their last file to the removal of `gone`, as far as they
    are themselves declared writes: an empty folder left in a tree would count as an
    output. The folder of a declared file is none."""
    seen: set[str] = set()
    folders = {os.path.dirname(path) for path in gone}
    for folder in sorted(folders, key=len, reverse=True):
        while folder and folder not in seen and folder not in spare:
            seen.add(folder)
            if not matches(writes, RelPath(folder)) or not remove_empty_folder(f"{root}/{folder}"):
                break
            folder = os.path.dirname(folder)
            # Its parent may have been tried while this one still stood in it.
            seen.discard(folder)


def _find_written(
    node: Node, root: str, measurer: Measurer
) -> tuple[dict[RelPath, os.stat_result | None], list[str]]:
    """Every declared write with its stat, None for an optional file that is absent; and a
    sentence for each that is missing or not what was declared."""
    found: dict[RelPath, os.stat_result | None] = {}
    problems: list[str] = []
    patterns: list[Entry] = []
    obstacles = Obstacles(root)
    has_exclusions = any(entry.exclude for entry in node.writes)
    for entry in node.writes:
        path = entry.path
        if entry.exclude:
            continue
        if has_exclusions and entry.kind is EntryKind.FILE and not matches(node.writes, path):
            continue
        link = _find_link(entry, root, obstacles)
        if link is not None:
            problems.append(_explain_link(entry, root, link))
            continue
        if entry.kind is EntryKind.GLOB:
            patterns.append(entry)
            continue
        try:
            info = measurer.look(path)
        except Unmeasurable as error:
            problems.append(str(error))
            continue
        if entry.kind is EntryKind.TREE:
            if info is None:
                if not entry.optional:
                    problems.append(_explain_missing(entry))
            elif S_ISDIR(info.st_mode):
                patterns.append(entry)
            elif not S_ISLNK(info.st_mode):
                problems.append(f"`{entry}` is a file: declare it as `{path}`")
            elif leads_outside(root, f"{root}/{path}"):
                problems.append(_explain_link(entry, root, path))
            else:
                found[path] = info
        elif info is None and not entry.optional:
            problems.append(_explain_missing(entry))
        elif info is not None and S_ISDIR(info.st_mode):
            problems.append(f"`{path}` is a folder: declare it as `{path}/`")
        else:
            found[path] = info
    if patterns:
        _find_members(node, root, measurer, patterns, found, problems)
    return found, problems


def _find_members(
    node: Node,
    root: str,
    measurer: Measurer,
    patterns: list[Entry],
    found: dict[RelPath, os.stat_result | None],
    problems: list[str],
) -> None:
    try:
        members = Folders(root).members(node.writes, (), in_writes=True)
    except UnreadableFolder as error:
        problems.append(f"`{error.path}/` cannot be listed: {error.reason}")
        return
    for entry in patterns:
        is_wanted = entry.kind is EntryKind.GLOB and not entry.optional
        if is_wanted and not any(matches((entry,), path) for path in members):
            problems.append(f"nothing matches `{entry}`, which is declared in `writes`")
    for path in members:
        if path not in found:
            try:
                info = measurer.look(path)
            except Unmeasurable as error:
                problems.append(str(error))
                continue
            if info is not None:
                found[path] = info


def _find_link(entry: Entry, root: str, obstacles: Obstacles) -> RelPath | None:
    """The link among the folders above an entry, if any.

    A path behind a link has a second name, which no claim and no check for overlapping
    writes would see, and a restore could not tell the link from one put in its way.
    """
    path = entry.path
    if entry.kind is EntryKind.GLOB:
        fixed = fixed_folder(path)
        path = RelPath("_" if fixed == "." else f"{fixed}/_")
    obstacle = obstacles.find(path)
    if obstacle is None:
        return None
    info = look(f"{root}/{obstacle}")
    return RelPath(obstacle) if info is not None and S_ISLNK(info.st_mode) else None


def _explain_link(entry: Entry, root: str, link: RelPath) -> str:
    if leads_outside(root, f"{root}/{link}"):
        return f"`{entry}` leads outside the workspace through the link `{link}`"
    real = os.path.relpath(os.path.realpath(f"{root}/{link}"), root)
    rest = str(entry)[len(link) :]
    return f"`{entry}` lies behind the link `{link}`: declare it as `{real}{rest}`"


def _explain_missing(entry: Entry) -> str:
    return f"`{entry}` is declared in `writes` but was not written"


def _keep(path: RelPath, info: os.stat_result, measurer: Measurer, blobs: Blobs | None) -> State:
    """Measures one output and stores the very bytes that were measured."""
    found: os.stat_result | None = info
    for _ in range(TRIES):
        if found is None:
            raise Unmeasurable(path, "disappeared while it was measured")
        state, data = measurer.measure(path, found)
        if blobs is None:
            return state
        try:
            blobs.put_state(measurer.root, path, state, data)
            return state
        except Moved:
            found = measurer.look(path)
    raise Unmeasurable(path, "changes while it is stored")


def _present(node: Node, measurer: Measurer) -> tuple[RelPath, ...]:
    """The paths on disk that `node` declares to write."""
    if all(entry.kind is EntryKind.FILE and not entry.exclude for entry in node.writes):
        return tuple(e.path for e in node.writes if look(f"{measurer.root}/{e.path}") is not None)
    try:
        return Folders(measurer.root).members(node.writes, (), in_writes=True)
    except UnreadableFolder:
        # Capturing will say so if it still stands.
        return ()


def _may_clear(path: RelPath, node: Node, obstacles: Obstacles) -> bool:
    return (
        matches(node.writes, path)
        and not matches(node.reads, path)
        and obstacles.find(path) is None
    )


def _find_state(path: RelPath, measurer: Measurer) -> State | None:
    try:
        return measurer.state_of(path)
    except Unmeasurable:
        return None
