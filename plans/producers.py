"""Which nodes write what an entry names: an index over the writes of a whole plan.

Nodes whose writes say the same share a `Bucket`, and each distinct question is answered
once, so that a plan costs about as much as it has different entries. Does not know the
order of nodes nor the disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from assay.plans.entries import (
    ROOT,
    Extent,
    extents_of,
    fixed_folder,
    fixed_prefix,
    overlap_extents,
)
from assay.plans.model import Entry, EntryKind, Kind, Node, RelPath


class Bucket:
    """One extent and every node that writes it.

    `writers` ascend, or follow the explicit order once `assay.plans.edges` has sorted them.
    A template has buckets of its own, because what it writes is a guess from its pattern.
    """

    __slots__ = ("extent", "number", "template", "writers")

    def __init__(self, number: int, extent: Extent, template: bool) -> None:
        self.number = number
        self.extent = extent
        self.template = template
        self.writers: list[int] = []


class WriteIndex:
    """The writes of `nodes`, by the paths they name."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.buckets: list[Bucket] = []
        self._extents: dict[tuple[Entry, ...], tuple[Extent, ...]] = {}
        self._files: dict[str, list[Bucket]] = {}
        self._trees: dict[str, list[Bucket]] = {}
        self._globs: dict[str, list[Bucket]] = {}
        self._extent_answers: dict[Extent, tuple[Bucket, ...]] = {}
        self._list_answers: dict[tuple[Entry, ...], tuple[Bucket, ...]] = {}
        known: dict[tuple[Extent, int | None], Bucket] = {}
        for index, node in enumerate(nodes):
            template = node.kind is Kind.TEMPLATE
            for extent in self.extents(node.writes):
                key = (extent, index if template else None)
                bucket = known.get(key)
                if bucket is None:
                    bucket = known[key] = self._add(extent, template)
                if not bucket.writers or bucket.writers[-1] != index:
                    bucket.writers.append(index)
        anchors = sorted((_anchor(b.extent.entry), b.number) for b in self.buckets)
        self._anchors = [anchor for anchor, _ in anchors]
        self._anchored = [self.buckets[number] for _, number in anchors]
        self._glob_lengths = sorted({len(prefix) for prefix in self._globs})

    def _add(self, extent: Extent, template: bool) -> Bucket:
        bucket = Bucket(len(self.buckets), extent, template)
        self.buckets.append(bucket)
        entry = extent.entry
        if entry.kind is EntryKind.FILE:
            self._files.setdefault(entry.path, []).append(bucket)
        elif entry.kind is EntryKind.TREE:
            self._trees.setdefault(entry.path, []).append(bucket)
        else:
            self._globs.setdefault(fixed_prefix(entry.path), []).append(bucket)
        return bucket

    def extents(self, entries: tuple[Entry, ...]) -> tuple[Extent, ...]:
        found = self._extents.get(entries)
        if found is None:
            found = self._extents[entries] = extents_of(entries)
        return found

    def written_paths(self) -> Iterator[tuple[Entry, int]]:
        """Every file and tree written, with one node that writes it."""
        for bucket in self.buckets:
            if bucket.extent.entry.kind is not EntryKind.GLOB:
                yield bucket.extent.entry, bucket.writers[0]

    def find_list(self, entries: tuple[Entry, ...]) -> tuple[Bucket, ...]:
        """The buckets that overlap anything `entries` name, each once."""
        found = self._list_answers.get(entries)
        if found is None:
            merged = {b.number: b for e in self.extents(entries) for b in self.find(e)}
            found = self._list_answers[entries] = tuple(merged.values())
        return found

    def find(self, extent: Extent) -> tuple[Bucket, ...]:
        """The buckets that overlap `extent`.

        A file that stands where `extent` needs a folder counts; files below a path that
        `extent` names as a file do not.
        """
        found = self._extent_answers.get(extent)
        if found is None:
            found = self._extent_answers[extent] = tuple(
                bucket
                for bucket in {b.number: b for b in self._candidates(extent.entry)}.values()
                if overlap_extents(extent, bucket.extent) is not None
            )
        return found

    def _candidates(self, entry: Entry) -> Iterator[Bucket]:
        anchor = _anchor(entry)
        if entry.kind is EntryKind.FILE:
            own: str = entry.path
        else:
            own = entry.path if entry.kind is EntryKind.TREE else fixed_folder(entry.path)
            # Everything written whose text starts where this entry's does.
            at = bisect_left(self._anchors, anchor)
            while at < len(self._anchors) and self._anchors[at].startswith(anchor):
                yield self._anchored[at]
                at += 1
        for folder in _lineage(own):
            yield from self._files.get(folder, ())
            yield from self._trees.get(folder, ())
        for length in self._glob_lengths:
            if length > len(anchor):
                break
            yield from self._globs.get(anchor[:length], ())


def _anchor(entry: Entry) -> str:
    """The text that every path an entry names starts with."""
    if entry.kind is EntryKind.FILE:
        return entry.path
    if entry.kind is EntryKind.GLOB:
        return fixed_prefix(entry.path)
    return "" if entry.path == ROOT else entry.path + "/"


def _lineage(path: str) -> Iterator[str]:
    """The path and every folder above it, the root last."""
    while path and path != ROOT:
        yield path
        path = path.rpartition("/")[0]
    yield ROOT


def find_common_entry(
    reader: tuple[Extent, ...], writer: tuple[Extent, ...]
) -> tuple[Extent, str] | None:
    """An extent of `reader` that `writer` overlaps, and a path both name. Quadratic in the
    two lists: for messages."""
    for extent in reader:
        for other in writer:
            path = overlap_extents(extent, other)
            if path is not None:
                return extent, path
    return None


def file_extent(path: RelPath) -> Extent:
    return Extent(Entry(EntryKind.FILE, path))
