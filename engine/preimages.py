"""Pre-images: how the writes and removes of a compensable attempt were before it, and how
they come to be so again.

Kept in `.assay/preimages/ATTEMPT`, whole and on disk with every blob it names before the
command starts: where there is none, the command has not started. The file is a magic line, the
BLAKE3 digest of the rest in hex, a line end, and JSON:

    {"entries": [[PATH, STATE, MODE], ...], "folders": [[PATH, MODE], ...],
     "missing": [FOLDER, ...], "places": [[KIND, PATH, EXCLUDE, OPTIONAL], ...],
     "behind": [[PATH, STATE, MODE], ...]}

`entries` are files, links and empty folders; what lies at `places` and is none of them was not
there. `missing` are folders above declared writes that were not there either, `behind` files of
the workspace that links among the entries led to: an attempt that failed may have written through
those.

Does not know why something is rolled back, nor what an attempt meant to do.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import Any, Final

from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs, Moved
from assay.engine.columns import from_json, to_json
from assay.engine.filesystem import (
    FilesystemError,
    Obstacles,
    cannot_write,
    digest_bytes,
    explain_error,
    leads_outside,
    look,
    make_folders,
    remove_empty_folder,
    sync,
    temporary_name,
    write_new_file,
)
from assay.engine.materialize import CannotRestore, restore
from assay.engine.measuring import TRIES, Measurer, Unmeasurable
from assay.engine.outputs import remove_emptied_folders
from assay.engine.states import ABSENT, FOLDER, State, stored_digest
from assay.plans.entries import fixed_folder, matches
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.model import Digest, Entry, EntryKind, Node, RelPath

_MAGIC: Final = b"assay preimage 1\n"
_LINK_LENGTH: Final = len("link:") + 64
_DIGEST_LENGTH: Final = 64


class DamagedPreimage(Exception):
    """A kept pre-image that is not what was written. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Preimage:
    entries: tuple[tuple[RelPath, State, int], ...]
    """Path, state and permission bits of every file, link and empty folder."""
    folders: tuple[tuple[RelPath, int], ...]
    """The folders among the places and their permission bits, parents first."""
    missing: tuple[str, ...]
    places: tuple[Entry, ...]
    behind: tuple[tuple[RelPath, State, int], ...] = ()

    @property
    def digests(self) -> frozenset[Digest]:
        """The blobs that bring it back."""
        found = {stored_digest(state) for _, state, _ in (*self.entries, *self.behind)}
        return frozenset(digest for digest in found if digest is not None)


@dataclass(frozen=True, slots=True)
class RolledBack:
    put_back: tuple[RelPath, ...] = ()
    removed: tuple[RelPath, ...] = ()
    trashed: tuple[tuple[RelPath, str], ...] = ()
    """What stood there that nobody recorded, with the absolute path where it is now."""
    left: tuple[RelPath, ...] = ()
    """Files of somebody else's that came since the attempt had ended: they stay."""


def path_of(folder: str, attempt: str) -> str:
    """Where the pre-image of an attempt is kept; `folder` is the store's."""
    return f"{folder}/{attempt}"


def take(node: Node, measurer: Measurer, blobs: Blobs, path: str) -> Preimage:
    """Keeps at the absolute `path` how everything `node` may write or remove is now; all of
    it is on disk when this returns.

    Raises FilesystemError, also for what cannot be kept (a socket, a file nobody may read).
    """
    try:
        return _take(node, measurer, blobs, path)
    except OSError as error:
        raise _unreadable(measurer.root, error) from error


def _take(node: Node, measurer: Measurer, blobs: Blobs, path: str) -> Preimage:
    root = measurer.root
    places = _places(node, root)
    _refuse_links(root, places)
    entries: list[tuple[RelPath, State, int]] = []
    for member in _list(root, places):
        info = look(f"{root}/{member}")
        if info is not None:
            entries.append((member, _keep(member, measurer, blobs), _mode_of(info)))
    found = Preimage(
        tuple(entries),
        _folders(root, places, entries),
        _missing_folders(root, node),
        places,
        _behind_links(root, entries, measurer, blobs),
    )
    _secure(found, root, blobs)
    _write(path, found)
    return found


def load(path: str) -> Preimage | None:
    """What `take` kept; None when it never did. Raises DamagedPreimage."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedPreimage(f"`{path}` cannot be read: {error.strerror}") from error
    rest = data[len(_MAGIC) + _DIGEST_LENGTH + 1 :]
    head = _MAGIC + digest_bytes(rest).encode() + b"\n"
    if not data.startswith(head):
        raise DamagedPreimage(f"`{path}` is not as it was written")
    told: dict[str, list[Any]] = from_json(rest.decode("ascii"))
    return Preimage(
        entries=tuple((RelPath(p), State(s), m) for p, s, m in told["entries"]),
        folders=tuple((RelPath(p), m) for p, m in told["folders"]),
        missing=tuple(told["missing"]),
        places=tuple(Entry(EntryKind(k), RelPath(p), x, o) for k, p, x, o in told["places"]),
        behind=tuple((RelPath(p), State(s), m) for p, s, m in told["behind"]),
    )


def drop(path: str) -> None:
    """Nobody will ask for this pre-image again. One that cannot be removed is collected."""
    with suppress(OSError):
        os.unlink(path)


def roll_back(
    preimage: Preimage,
    made: Mapping[RelPath, State] | None,
    *,
    measurer: Measurer,
    blobs: Blobs,
    staging: str,
    trash: str,
    stays: Mapping[RelPath, State],
) -> RolledBack:
    """Makes everything as `preimage` says, byte for byte and mode for mode, and checks it. What
    stands as `stays` says is left alone: others have made it so since.

    What stands there instead goes if it is what the attempt is known to have `made`, else to
    the folder `trash` (as `restore` uses it). None: that is not known, so whatever came since
    may be its work; otherwise what it did not make and was not there before stays.

    May be repeated after a crash at any line, and is on disk when it returns. Raises
    FilesystemError, BlobMissing, BlobCorrupt.
    """
    try:
        return _roll_back(preimage, made, measurer, blobs, staging, trash, stays)
    except OSError as error:
        raise _unreadable(measurer.root, error) from error


def is_put_back(preimage: Preimage, made: Collection[RelPath], measurer: Measurer) -> bool:
    """Whether everything is as `preimage` says and nothing of what the attempt `made` is left
    beside that. Raises FilesystemError."""
    root = measurer.root
    try:
        wanted = {path: state for path, state, _ in preimage.entries}
        left = [path for path in _list(root, preimage.places) if path not in wanted]
        return not any(path in made for path in left) and all(
            _stands(path, state, measurer) for path, state in wanted.items()
        )
    except OSError as error:
        raise _unreadable(root, error) from error


def _unreadable(root: str, error: OSError) -> FilesystemError:
    return FilesystemError(str(error.filename or root), f"cannot be used: {explain_error(error)}")


def _roll_back(
    preimage: Preimage,
    made: Mapping[RelPath, State] | None,
    measurer: Measurer,
    blobs: Blobs,
    staging: str,
    trash: str,
    stays: Mapping[RelPath, State],
) -> RolledBack:
    root = measurer.root
    standing = {path for path, state in stays.items() if _stands(path, state, measurer)}
    own = {path: _own_part(state) for path, state in (made or {}).items()}
    behind = preimage.behind
    if made is not None:
        written = _find_written_through(root, preimage, made)
        own |= written
        behind = tuple(item for item in behind if item[0] in written)
    # What stands excludes what would be put back at, below or, where that is a file, above it.
    taken = standing | _folders_above(path for path in standing if stays[path] != ABSENT)
    entries = tuple(
        item
        for item in preimage.entries + behind
        if item[0] not in taken and standing.isdisjoint(_folders_above([item[0]]))
    )
    preimage = replace(preimage, entries=entries)
    wanted = {path: state for path, state, _ in preimage.entries}
    needed = _folders_above(wanted) | {path for path, _ in preimage.folders}
    needed |= _folders_above(standing) | standing
    extra = [
        path for path in _list(root, preimage.places) if path not in wanted and path not in needed
    ]
    left = tuple(path for path in extra if made is not None and _is_foreign(root, path, made))
    extra = [path for path in extra if path not in left]
    outputs = [(path, ABSENT) for path in extra]
    outputs += [item for item in wanted.items() if not _stands(*item, measurer)]
    try:
        done = restore(
            root,
            outputs,
            (),
            measurer=measurer,
            source=blobs,
            staging=staging,
            trash=trash,
            knows=lambda path, state: own.get(path) == _own_part(state),
            only_texts=True,
        )
    except CannotRestore as error:
        raise FilesystemError(f"{root}/{error.path}", error.reason) from error
    gone = [*extra, *done.removed]
    remove_emptied_folders(root, gone, preimage.places, needed | wanted.keys())
    for folder in sorted(preimage.missing, key=len, reverse=True):
        remove_empty_folder(f"{root}/{folder}")
    _restore_modes(root, preimage)
    for path, state in outputs:
        if state != ABSENT and not state.startswith("link:"):
            sync(f"{root}/{path}")
    for folder in {os.path.dirname(f"{root}/{path}") for path, _ in outputs}:
        if os.path.isdir(folder) and not os.path.islink(folder):
            sync(folder)
    for path, state in (*wanted.items(), *((path, ABSENT) for path in extra)):
        if not _stands(path, state, measurer):
            raise FilesystemError(f"{root}/{path}", "changes while it is put back")
    # What had to make way with the folder it was put into is in the trash with that.
    left = tuple(path for path in left if look(f"{root}/{path}") is not None)
    return RolledBack(done.put_back, done.removed, done.trashed, left)


def _find_written_through(
    root: str, preimage: Preimage, made: Mapping[RelPath, State]
) -> dict[RelPath, State]:
    """Files behind links that the attempt has changed by writing to the link, and to what."""
    before = {path: state for path, state, _ in preimage.entries}
    kept = {path: state for path, state, _ in preimage.behind}
    found: dict[RelPath, State] = {}
    for path, state in made.items():
        text, _, content = state.partition(">")
        if not content or before.get(path, ABSENT).partition(">")[0] != text:
            continue
        target = RelPath(os.path.relpath(os.path.realpath(f"{root}/{path}"), root))
        if target in kept and kept[target] != content:
            found[target] = State(content)
    return found


def _own_part(state: State) -> State:
    """Of a link, its text: what that leads to is no part of it."""
    return State(state[:_LINK_LENGTH]) if state.startswith("link:") else state


def _is_foreign(root: str, path: RelPath, made: Mapping[RelPath, State]) -> bool:
    """Whether somebody else put it there; an empty folder holds nobody's work."""
    info = look(f"{root}/{path}")
    return path not in made and info is not None and not S_ISDIR(info.st_mode)


def _places(node: Node, root: str) -> tuple[Entry, ...]:
    removes: list[Entry] = []
    for path in node.removes:
        info = look(f"{root}/{path}")
        is_folder = info is not None and S_ISDIR(info.st_mode)
        removes.append(Entry(EntryKind.TREE if is_folder else EntryKind.FILE, path))
    writes: list[Entry] = []
    for entry in node.writes:
        info = look(f"{root}/{entry.path}") if entry.kind is EntryKind.FILE else None
        if info is not None and S_ISDIR(info.st_mode) and not os.listdir(f"{root}/{entry.path}"):
            # It may be filled.
            entry = replace(entry, kind=EntryKind.TREE)
        writes.append(entry)
    return (*writes, *removes)


def _refuse_links(root: str, places: tuple[Entry, ...]) -> None:
    """A path behind a link has a second name, under which it would not be put back."""
    obstacles = Obstacles(root)
    for entry in places:
        path = f"{fixed_folder(entry.path)}/_" if entry.kind is EntryKind.GLOB else entry.path
        if entry.kind is EntryKind.TREE:
            path = f"{entry.path}/_"
        absolute = f"{root}/{entry.path}"
        if (
            entry.kind is EntryKind.FILE
            and not entry.exclude
            and os.path.islink(absolute)
            and os.path.isfile(absolute)
            and leads_outside(root, absolute)
        ):
            raise FilesystemError(
                absolute,
                f"leads out of the workspace to `{os.path.realpath(absolute)}`, which could not be"
                " rolled back",
            )
        obstacle = obstacles.find(path.removeprefix("./"))
        if obstacle is not None and not entry.exclude:
            raise FilesystemError(
                f"{root}/{obstacle}", f"stands above `{entry}`, which could not be rolled back"
            )


def _list(root: str, places: tuple[Entry, ...]) -> tuple[RelPath, ...]:
    """Files, links and empty folders at these places now, sorted."""
    found: set[RelPath] = set()
    for entry in places:
        if entry.kind is EntryKind.FILE and not entry.exclude and matches(places, entry.path):
            info = look(f"{root}/{entry.path}")
            if info is not None:
                found.add(entry.path)
    if any(entry.kind is not EntryKind.FILE for entry in places):
        try:
            found.update(Folders(root).members(places, (), in_writes=True))
        except UnreadableFolder as error:
            raise FilesystemError(
                f"{root}/{error.path}", f"cannot be listed: {error.reason}"
            ) from error
    return tuple(sorted(found))


def _keep(path: RelPath, measurer: Measurer, blobs: Blobs) -> State:
    for _ in range(TRIES):
        try:
            state = measurer.state_of(path)
            if state == FOLDER and os.listdir(f"{measurer.root}/{path}"):
                raise FilesystemError(
                    f"{measurer.root}/{path}",
                    f"is a folder that could not be rolled back: declare it as `{path}/`",
                )
            blobs.put_state(measurer.root, path, state)
        except (Moved, FileNotFoundError):
            continue
        except Unmeasurable as error:
            raise FilesystemError(f"{measurer.root}/{path}", error.reason) from error
        return state
    raise FilesystemError(f"{measurer.root}/{path}", "changes while it is stored")


def _behind_links(
    root: str,
    entries: list[tuple[RelPath, State, int]],
    measurer: Measurer,
    blobs: Blobs,
) -> tuple[tuple[RelPath, State, int], ...]:
    """Files of the workspace that links among the entries lead to: a command that writes to the
    link changes them."""
    known = {path for path, _, _ in entries}
    found: list[tuple[RelPath, State, int]] = []
    for path, state, _ in entries:
        if not state.startswith("link:") or leads_outside(root, f"{root}/{path}"):
            continue
        target = RelPath(os.path.relpath(os.path.realpath(f"{root}/{path}"), root))
        info = look(f"{root}/{target}")
        if target not in known and info is not None and S_ISREG(info.st_mode):
            known.add(target)
            found.append((target, _keep(target, measurer, blobs), _mode_of(info)))
    return tuple(found)


def _secure(preimage: Preimage, root: str, blobs: Blobs) -> None:
    for _ in range(TRIES + len(preimage.digests)):
        try:
            blobs.secure(sorted(preimage.digests))
            return
        except BlobMissing as error:
            digest = error.digest
        except BlobCorrupt as error:
            digest = error.digest
            blobs.set_aside(digest)
        for path, state, _ in (*preimage.entries, *preimage.behind):
            if stored_digest(state) == digest:
                try:
                    blobs.put_state(root, path, state)
                except Moved as error:
                    raise FilesystemError(f"{root}/{path}", "changes while it is stored") from error
    raise FilesystemError(blobs.folder, "does not keep what is stored in it")


def _folders(
    root: str, places: tuple[Entry, ...], entries: Iterable[tuple[RelPath, State, int]]
) -> tuple[tuple[RelPath, int], ...]:
    found: dict[RelPath, int] = {}
    candidates = _folders_above(path for path, _, _ in entries)
    candidates |= {e.path for e in places if e.kind is EntryKind.TREE and not e.exclude}
    for folder in sorted(candidates):
        info = look(f"{root}/{folder}")
        if matches(places, RelPath(folder)) and info is not None and S_ISDIR(info.st_mode):
            found[RelPath(folder)] = S_IMODE(info.st_mode)
    return tuple(found.items())


def _missing_folders(root: str, node: Node) -> tuple[str, ...]:
    """Folders above declared writes that are not there: they are made for the command."""
    missing: set[str] = set()
    for entry in node.writes:
        folder = fixed_folder(entry.path) if entry.kind is EntryKind.GLOB else entry.path
        if entry.kind is not EntryKind.GLOB:
            folder = RelPath(os.path.dirname(entry.path))
        while folder not in ("", ".") and look(f"{root}/{folder}") is None:
            missing.add(folder)
            folder = RelPath(os.path.dirname(folder))
    return tuple(sorted(missing))


def _folders_above(paths: Iterable[RelPath]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


def _stands(path: RelPath, state: State, measurer: Measurer) -> bool:
    """Whether `state` stands at the path; of a link only its own text counts."""
    try:
        info = measurer.look(path)
        found = ABSENT if info is None else measurer.measure(path, info)[0]
    except Unmeasurable:
        return False
    if state.startswith("link:"):
        return found[:_LINK_LENGTH] == state[:_LINK_LENGTH]
    return found == state


def _restore_modes(root: str, preimage: Preimage) -> None:
    # Folders last and from below: one that may not be searched would shut out what is in it.
    modes: list[tuple[str, int]] = [
        (path, mode) for path, state, mode in preimage.entries if not state.startswith("link:")
    ]
    modes += sorted(preimage.folders, key=lambda item: -len(item[0]))
    for path, mode in modes:
        absolute = f"{root}/{path}"
        info = look(absolute)
        if info is None or S_ISLNK(info.st_mode) or S_IMODE(info.st_mode) == mode:
            continue
        try:
            os.chmod(absolute, mode)
        except OSError as error:
            raise cannot_write(absolute, error) from error


def _mode_of(info: os.stat_result) -> int:
    return S_IMODE(info.st_mode)


def _write(path: str, preimage: Preimage) -> None:
    places = [[e.kind.value, e.path, e.exclude, e.optional] for e in preimage.places]
    rest = to_json(
        {
            "entries": preimage.entries,
            "folders": preimage.folders,
            "missing": preimage.missing,
            "places": places,
            "behind": preimage.behind,
        }
    ).encode("ascii")
    folder = os.path.dirname(path)
    if look(folder) is None:
        make_folders(folder)
        os.chmod(folder, 0o700)
        sync(os.path.dirname(folder))
    # Beside it, where a collection finds what a crash has left.
    temporary = temporary_name(os.path.join(os.path.dirname(folder), "tmp"), "preimage")
    try:
        write_new_file(temporary, _MAGIC + digest_bytes(rest).encode() + b"\n" + rest, 0o600)
        sync(temporary)
        os.rename(temporary, path)
    except OSError as error:
        drop(temporary)
        raise cannot_write(path, error) from error
    sync(folder)


def in_use(folder: str, attempts: Collection[str]) -> frozenset[Digest]:
    """The blobs that the pre-images of these attempts name."""
    found: set[Digest] = set()
    for attempt in attempts:
        with suppress(DamagedPreimage):
            preimage = load(path_of(folder, attempt))
            if preimage is not None:
                found |= preimage.digests
    return frozenset(found)
