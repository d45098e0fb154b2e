"""Reads that nothing provides: no node writes them and they are not on disk.

A literal path is an error, a glob a warning. Each path and each glob is looked for once,
however many nodes read it. Contents are never read.
"""

from __future__ import annotations

import os.path
import stat
import unicodedata
from collections.abc import Sequence
from typing import Final

from assay.plans.diagnostics import Note, Severity, shown, suggest
from assay.plans.edges import Edges
from assay.plans.entries import ROOT, Extent, is_below
from assay.plans.findings import Findings
from assay.plans.folders import FileType, Folders, UnreadableFolder
from assay.plans.model import Argv, Entry, EntryKind, Kind, Node, Origin, RelPath
from assay.plans.producers import Bucket, WriteIndex

MAX_SUGGESTIONS: Final = 20
"""How many absent paths get a search for the nearest written one; each is linear."""


class SourceCheck:
    """One look at everything `nodes` read."""

    def __init__(
        self,
        nodes: Sequence[Node],
        edges: Edges,
        index: WriteIndex,
        folders: Folders,
        findings: Findings,
    ) -> None:
        self._nodes = nodes
        self._edges = edges
        self._index = index
        self._folders = folders
        self._findings = findings
        self._states: dict[Entry, str] = {}
        self._matched: dict[tuple[Extent, tuple[str, ...]], bool] = {}
        self._consumers: dict[int, int] | None = None
        self._suggestions = 0
        self._ordered = False

    def run(self, *, ordered: bool) -> None:
        """Reports what is absent, and folders that cannot be listed.

        `ordered`: the edges are final, so that a writer which does not come before is none.
        """
        self._ordered = ordered
        for index, node in enumerate(self._nodes):
            if node.kind is Kind.TEMPLATE:
                # What it would read is a guess from its pattern, which another node writes.
                continue
            for extent in self._index.extents(node.reads):
                self._check(index, node, extent)

    def _check(self, index: int, node: Node, extent: Extent) -> None:
        entry = extent.entry
        if entry.optional or (node.removes and entry.path in node.removes):
            return
        try:
            if entry.kind is EntryKind.GLOB:
                self._check_glob(index, node, extent)
            else:
                self._check_literal(index, node, extent)
        except UnreadableFolder as error:
            self._findings.add(
                index,
                f"Node `{shown(node.name)}` reads `{shown(str(entry))}`, but the folder "
                f"`{shown(error.path)}` cannot be listed: {error.reason}",
                _origin_of_read(node, entry),
                about=f"list {error.path}",
            )

    def _check_glob(self, index: int, node: Node, extent: Extent) -> None:
        if any(bucket.writers != [index] for bucket in self._index.find(extent)):
            return
        key = (extent, node.ignore)
        matched = self._matched.get(key)
        if matched is None:
            matched = self._matched[key] = self._folders.has_member(extent, node.ignore)
        if matched:
            return
        pattern = extent.entry.path
        literal = self._folders.lstat(pattern)
        self._findings.add(
            index,
            f"Node `{shown(node.name)}` reads `{shown(pattern)}`, which matches nothing",
            _origin_of_read(node, extent.entry),
            about=f"match {extent.entry}",
            hint=None
            if literal is None
            else f'For the file of exactly that name write {{ path = "{shown(pattern)}" }}.',
            severity=Severity.WARNING,
        )

    def _check_literal(self, index: int, node: Node, extent: Extent) -> None:
        entry = extent.entry
        state = self._state_of(entry)
        writers = [b for b in self._index.find(extent) if b.writers != [index]]
        tree = next((b for b in writers if _is_tree_at(b, entry)), None)
        if state == "right" and tree is None:
            return
        before = self._edges[index]
        if tree is None and any(
            w in before or not self._ordered for bucket in writers for w in bucket.writers
        ):
            return
        path = shown(entry.path)
        origin = _origin_of_read(node, entry)
        reads = f"Node `{shown(node.name)}` reads `{shown(str(entry))}`"
        if _is_program(node, entry):
            origin = node.origin.at("run", 0)
            reads = f"Node `{shown(node.name)}` runs `{path}`"
        hint = None
        notes: list[Note] = []
        if tree is not None:
            first = self._nodes[_other_writer(tree, index)]
            message = f"{reads} as a file, but `{shown(first.name)}` writes it as a folder"
            hint = f"Write `{path}/` for everything in it."
        elif state == "folder":
            message = f"{reads} as a file, but it is a folder"
            hint = f"Write `{path}/` for everything in it."
        elif state == "file":
            message = f"{reads} as a folder, but it is a file"
            hint = f"Write `{path}`."
        elif writers:
            first = self._nodes[_other_writer(writers[0], index)]
            message = (
                f"{reads}, which does not exist before `{shown(first.name)}` writes it, but "
                f"`{shown(first.name)}` comes after `{shown(node.name)}`"
            )
        else:
            others = "no other node" if self._index.find(extent) else "no node"
            message = f"{reads}, but {others} writes it and it does not exist"
            hint, notes = self._suggest(entry)
        if not self._findings.has(origin, f"absent {entry}"):
            self._findings.add(
                index,
                message,
                origin,
                about=f"absent {entry}",
                hint=hint,
                notes=notes + self._wanted_by(index),
            )

    def _state_of(self, entry: Entry) -> str:
        """`right`, `absent`, or what stands there instead: `folder`, `file`."""
        known = self._states.get(entry)
        if known is None:
            known = self._states[entry] = self._look_at(entry)
        return known

    def _look_at(self, entry: Entry) -> str:
        if entry.path == ROOT:
            return "right"
        status = self._folders.lstat(entry.path)
        if status is None:
            return "absent"
        if stat.S_ISLNK(status.st_mode):
            return "right"
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder is (entry.kind is EntryKind.TREE):
            return "right"
        return "folder" if is_folder else "file"

    def _wanted_by(self, index: int) -> list[Note]:
        if self._consumers is None:
            self._consumers = {}
            for consumer, before in enumerate(self._edges):
                for other in before:
                    self._consumers.setdefault(other, consumer)
        if index not in self._consumers:
            return []
        node = self._nodes[self._consumers[index]]
        return [Note(f"wanted by `{shown(node.name)}`", node.origin)]

    # Near misses

    def _suggest(self, entry: Entry) -> tuple[str | None, list[Note]]:
        if self._suggestions == MAX_SUGGESTIONS:
            return None, []
        self._suggestions += 1
        written = {str(e): i for e, i in self._index.written_paths()}
        beside = self._names_beside(entry)
        text = str(entry)
        for find in (_find_other_form, _find_below, _find_same_name, _find_similar):
            near = find(text, [*written, *beside])
            if near is None:
                continue
            form = ", which differs only in Unicode form" if find is _find_other_form else ""
            if near not in written:
                return f"Did you mean `{shown(near)}`{form}?", []
            writer = self._nodes[written[near]]
            position = next(n for n, e in enumerate(writer.writes) if str(e) == near)
            note = Note(
                f"`{shown(writer.name)}` writes `{shown(near)}`",
                writer.origin.at("writes", position),
            )
            hint = f"Did you mean `{shown(near)}`, written by `{shown(writer.name)}`{form}?"
            return hint, [note]
        return None, []

    def _names_beside(self, entry: Entry) -> list[str]:
        """What stands in the folder of an absent path, as entries of the same kind."""
        folder = RelPath(os.path.dirname(entry.path) or ROOT)
        wanted = FileType.FOLDER if entry.kind is EntryKind.TREE else FileType.OTHER
        prefix = "" if folder == ROOT else folder + "/"
        suffix = "/" if entry.kind is EntryKind.TREE else ""
        return [
            prefix + name + suffix
            for name, file_type in self._folders.list_folder(folder).names
            if file_type is wanted
        ]


def _find_other_form(text: str, known: Sequence[str]) -> str | None:
    """The same text in another Unicode normal form."""
    if text.isascii():
        return None
    form = unicodedata.normalize("NFC", text)
    return next((k for k in known if unicodedata.normalize("NFC", k) == form), None)


def _find_below(text: str, known: Sequence[str]) -> str | None:
    """The tree of that name, for a path written without its slash; or the file."""
    other = text[:-1] if text.endswith("/") else text + "/"
    if other in known:
        return other
    if not text.endswith("/") and any(is_below(k, text) for k in known):
        return text + "/"
    return None


def _find_same_name(text: str, known: Sequence[str]) -> str | None:
    """The only path elsewhere with the same last name."""
    tail = "/" + text.rstrip("/").rpartition("/")[2] + ("/" if text.endswith("/") else "")
    found = [k for k in known if ("/" + k).endswith(tail)]
    return found[0] if len(found) == 1 else None


def _find_similar(text: str, known: Sequence[str]) -> str | None:
    return suggest(text, known)


def _is_tree_at(bucket: Bucket, entry: Entry) -> bool:
    """Whether what `entry` reads as a file is written as a folder."""
    written = bucket.extent.entry
    return entry.kind is EntryKind.FILE and written == Entry(EntryKind.TREE, entry.path)


def _other_writer(bucket: Bucket, index: int) -> int:
    return next(writer for writer in bucket.writers if writer != index)


def _is_program(node: Node, entry: Entry) -> bool:
    """Whether the entry stands for argv[0], which nobody wrote among the reads."""
    if not isinstance(node.command, Argv) or entry is not node.reads[-1]:
        return False
    return os.path.normpath(os.path.join(node.workdir, node.command.argv[0])) == entry.path


def _origin_of_read(node: Node, entry: Entry) -> Origin:
    return node.origin.at("reads", node.reads.index(entry))
