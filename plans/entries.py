"""Entries of `reads` and `writes`: from text to `Entry`, which paths they name, and
whether two of them can name one path.

Does not know the disk: `assay.plans.folders` says what an entry names there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from assay.plans.model import Entry, EntryKind, RelPath
from assay.plans.patterns import (
    ANY_DEPTH,
    ANY_NAME,
    WILDCARDS,
    Parts,
    PatternError,
    escape,
    find_common_path,
    find_common_path_without,
    has_match,
    literal_of,
    parts_of,
)

ROOT: Final = RelPath(".")

BELOW: Final = (ANY_DEPTH, ANY_NAME)
"""What a tree adds to its path to name everything below it."""


class EntryError(ValueError):
    """Text that is no entry. The message is one sentence; `hint` says how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def parse_entry(text: str, base: RelPath) -> Entry:
    """The entry a string in `reads`, `writes` or `foreach` stands for.

    `base` is the folder the text is relative to; the entry is relative to the workspace
    root. `!` in front excludes, a trailing `/` makes a tree, `*?[` a glob. A class of one
    character (`[[]id].ts`) stands for that character, so `escape_entry` makes any path
    come back as the literal it was. Raises EntryError.
    """
    exclude = text.startswith("!")
    body = text[1:] if exclude else text
    _refuse_unusable(body, text)
    _refuse_braces(body)
    tree = body.endswith("/")
    try:
        literals = [literal_of(component) for component in body.split("/")]
    except PatternError as error:
        raise EntryError(
            f"`{text}` is no pattern: {error}.",
            f'For a path of exactly that name write {{ path = "{_toml(body)}" }}.',
        ) from None
    names = [name for name in literals if name is not None]
    if len(names) == len(literals):
        return _literal("/".join(names), base, tree, text, exclude=exclude)
    components = _normalise(body.split("/"), literals, base, text)
    pattern = "/".join(components) + ("/**" if tree else "")
    return Entry(EntryKind.GLOB, RelPath(pattern), exclude)


def literal_entry(path: str, base: RelPath, optional: bool) -> Entry:
    """The entry of the form `{ path = "…" }`: always literal, a trailing `/` makes a tree.

    Raises EntryError.
    """
    _refuse_unusable(path, path)
    return _literal(path, base, path.endswith("/"), path, optional=optional)


def escape_entry(path: str) -> str:
    """Text that `parse_entry` reads as exactly this path or part of a path.

    For values substituted into entries. A text that would start with `!` needs `./` in
    front, which the caller adds: only the caller knows where the text starts.
    """
    return "".join(f"[{c}]" if c in "{}" else c for c in escape(path))


def rebase(entry: str, folder: str) -> str:
    """The text of an entry relative to the workspace root, as a file in `folder` writes it."""
    return entry if not folder else posixpath.relpath(entry, folder) + "/" * entry.endswith("/")


def _literal(
    path: str,
    base: RelPath,
    tree: bool,
    text: str,
    *,
    exclude: bool = False,
    optional: bool = False,
) -> Entry:
    names = path.split("/")
    joined = "/".join(_normalise(names, names, base, text, escaped=False)) or ROOT
    if joined == ROOT and not tree:
        raise EntryError(
            f"`{text}` is the workspace itself, not a file.", "Write `./` for everything in it."
        )
    kind = EntryKind.TREE if tree else EntryKind.FILE
    return Entry(kind, RelPath(joined), exclude, optional)


def _refuse_unusable(body: str, text: str) -> None:
    if not body:
        raise EntryError("An entry is empty." if not text else f"`{text}` names no path.")
    if "\0" in body:
        shown = text.replace("\0", "\\0")
        raise EntryError(f"`{shown}` holds a NUL, which no path can.")
    if body.startswith("/"):
        raise EntryError(
            f"`{text}` is absolute; entries are relative to the workspace.",
            "Only paths inside the workspace can be read or written.",
        )


def _refuse_braces(body: str) -> None:
    opened = _find_outside_classes(body, "{}")
    if opened is None:
        return
    closed = body.find("}", opened)
    inner = body[opened + 1 : closed]
    if body[opened] == "{" and closed > 0 and "," in inner:
        head, tail = body[:opened], body[closed + 1 :]
        listed = ", ".join(f'"{head}{choice}{tail}"' for choice in inner.split(","))
        hint = f"Write one entry for each: {listed}."
    else:
        hint = f'For a path of exactly that name write {{ path = "{_toml(body)}" }}.'
    raise EntryError(f"`{body}` has braces, which are no pattern syntax.", hint)


def _find_outside_classes(body: str, wanted: str) -> int | None:
    at = 0
    while at < len(body):
        if body[at] == "[":
            end = body.find("]", at + 2)
            at = end if end > 0 else at
        elif body[at] in wanted:
            return at
        at += 1
    return None


def _toml(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _normalise(
    components: Sequence[str],
    literals: Sequence[str | None],
    base: RelPath,
    text: str,
    escaped: bool = True,
) -> list[str]:
    """The components from the workspace root, without `.`, `..` and empty ones."""
    found = [] if base == ROOT else [escape(n) if escaped else n for n in base.split("/")]
    wild = [False] * len(found)
    for component, literal in zip(components, literals, strict=True):
        if literal in ("", "."):
            continue
        if literal == "..":
            if not found:
                raise EntryError(f"`{text}` leads outside the workspace.")
            if wild.pop():
                raise EntryError(f"`{text}` goes up from a wildcard, so it names no one folder.")
            found.pop()
            continue
        if literal is None and component != ANY_DEPTH:
            component = _collapse_stars(component)
        found.append(component if escaped or literal is None else literal)
        wild.append(literal is None)
    return found


def _collapse_stars(component: str) -> str:
    """`a**b` as `a*b`: `**` glued to other characters acts as `*`."""
    while "**" in component:
        component = component.replace("**", "*")
    return component


# Which paths an entry names


def pattern_parts(entry: Entry) -> Parts:
    """The paths an entry names, as one pattern: a tree names everything below it."""
    return _pattern_parts(entry.kind, entry.path)


@cache
def _pattern_parts(kind: EntryKind, path: RelPath) -> Parts:
    if kind is EntryKind.GLOB:
        return parts_of(path)
    parts = () if path == ROOT else tuple(map(escape, path.split("/")))
    return parts + BELOW if kind is EntryKind.TREE else parts


@cache
def excluded_parts(entry: Entry) -> tuple[Parts, ...]:
    """The paths an exclusion takes away: a literal path goes with everything below it."""
    if entry.kind is EntryKind.GLOB:
        return (parts_of(entry.path),)
    parts = () if entry.path == ROOT else tuple(map(escape, entry.path.split("/")))
    return (parts, parts + BELOW)


def matches(entries: Sequence[Entry], path: RelPath) -> bool:
    """Whether `entries` name `path`: the last entry that matches decides.

    A tree names its own path and everything below; an excluded literal path likewise.
    """
    return any(
        _matches_one(entry, path) and not _is_excluded(entries, position + 1, path)
        for position, entry in enumerate(entries)
        if not entry.exclude
    )


def _is_excluded(entries: Sequence[Entry], after: int, path: RelPath) -> bool:
    return any(e.exclude and _matches_one(e, path) for e in entries[after:])


def _matches_one(entry: Entry, path: RelPath) -> bool:
    if entry.kind is EntryKind.GLOB:
        return has_match(parts_of(entry.path), path.split("/"))
    if path == entry.path:
        return True
    below = entry.kind is EntryKind.TREE or entry.exclude
    return below and is_below(path, entry.path)


def is_below(path: str, folder: str) -> bool:
    """Whether `path` lies inside `folder` (which it is not itself)."""
    if folder == ROOT:
        return path != ROOT
    return path.startswith(folder) and path[len(folder) : len(folder) + 1] == "/"


@dataclass(frozen=True, slots=True)
class Extent:
    """One entry that brings paths, with the later exclusions that take some away.

    A list of entries names exactly the union of its extents.
    """

    entry: Entry
    excludes: tuple[Entry, ...] = ()


def extents_of(entries: Sequence[Entry]) -> tuple[Extent, ...]:
    """What a list of entries names, without exclusions that cannot touch an entry."""
    excludes = [(n, e) for n, e in enumerate(entries) if e.exclude]
    if not excludes:
        return tuple(Extent(entry) for entry in entries)
    found = []
    for position, entry in enumerate(entries):
        if entry.exclude:
            continue
        later = tuple(e for n, e in excludes if n > position and _can_exclude(e, entry))
        if entry.kind is not EntryKind.FILE:
            found.append(Extent(entry, later))
        elif not later:
            found.append(Extent(entry))
    return tuple(found)


@lru_cache(maxsize=1 << 16)
def _can_exclude(exclude: Entry, entry: Entry) -> bool:
    """Whether `exclude` takes away anything that `entry` brings."""
    if entry.kind is not EntryKind.GLOB and _matches_one(exclude, entry.path):
        return True
    parts = pattern_parts(entry)
    return any(find_common_path(parts, gone) is not None for gone in excluded_parts(exclude))


# Whether two entries can name one path


def overlap(a: Entry, b: Entry) -> str | None:
    """A path, or the text of a pattern, that both can name; None when there is none.

    Exact. A path that is a file for the one and a folder for the other counts (`d` and
    `d/x`). A glob names files, so it does not overlap a tree at the tree's own path.
    `exclude` and `optional` play no part.
    """
    if a.kind is not EntryKind.GLOB and b.kind is not EntryKind.GLOB:
        return _overlap_literals(a, b)
    if a.kind is EntryKind.FILE or b.kind is EntryKind.FILE:
        file, glob = (a.path, b.path) if a.kind is EntryKind.FILE else (b.path, a.path)
        return file if _overlaps_file(glob, file) else None
    if a.kind is b.kind and a.path == b.path:
        return a.path
    return _overlap_patterns(a.kind, a.path, b.kind, b.path)


def _overlap_literals(a: Entry, b: Entry) -> str | None:
    outer, inner = (a, b) if is_below(b.path, a.path) else (b, a)
    if is_below(inner.path, outer.path):
        return str(Entry(inner.kind, inner.path))
    if outer.path == inner.path:
        kind = EntryKind.TREE if outer.kind is inner.kind is EntryKind.TREE else EntryKind.FILE
        return str(Entry(kind, outer.path))
    return None


def _overlaps_file(glob: RelPath, file: RelPath) -> bool:
    folder = fixed_folder(glob)
    return folder == file or is_below(folder, file) or has_match(parts_of(glob), file.split("/"))


@lru_cache(maxsize=1 << 16)
def _overlap_patterns(
    a_kind: EntryKind, a_path: RelPath, b_kind: EntryKind, b_path: RelPath
) -> str | None:
    return find_common_path(_pattern_parts(a_kind, a_path), _pattern_parts(b_kind, b_path))


def overlap_extents(a: Extent, b: Extent) -> str | None:
    """As `overlap`, for what the exclusions of both leave."""
    found = overlap(a.entry, b.entry)
    excludes = a.excludes + b.excludes
    if found is None or not excludes:
        return found
    for extent in (a, b):
        if extent.entry.kind is EntryKind.FILE:
            gone = any(_matches_one(e, extent.entry.path) for e in excludes)
            return None if gone else found
    parts = tuple(parts for entry in excludes for parts in excluded_parts(entry))
    return find_common_path_without(pattern_parts(a.entry), pattern_parts(b.entry), parts)


@cache
def fixed_folder(pattern: RelPath) -> RelPath:
    """The folder a pattern's matches all lie in, by its leading literal components."""
    names: list[str] = []
    for component in parts_of(pattern)[:-1]:
        literal = literal_of(component)
        if literal is None:
            break
        names.append(literal)
    return RelPath("/".join(names)) if names else ROOT


@cache
def fixed_prefix(pattern: RelPath) -> str:
    """The text every match of a pattern starts with; it may end within a name."""
    folder = fixed_folder(pattern)
    head = "" if folder == ROOT else folder + "/"
    component = parts_of(pattern)[0 if folder == ROOT else folder.count("/") + 1]
    cut = next((n for n, c in enumerate(component) if c in WILDCARDS), len(component))
    return head + component[:cut]
