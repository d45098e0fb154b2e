"""Nodes that write the same paths: an error, unless they are ordered rewriters.

Two sealed nodes may write one path when an explicit order stands between them and both
read what they rewrite (formatters in a row). Does not know the disk: two patterns overlap
when some path could match both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from assay.plans.diagnostics import Note, shown
from assay.plans.edges import Edges
from assay.plans.entries import Extent, excluded_parts, overlap_extents, pattern_parts
from assay.plans.findings import Findings
from assay.plans.model import Entry, Node, Origin
from assay.plans.ordering import find_ordered_pairs
from assay.plans.patterns import find_common_path_without
from assay.plans.producers import Bucket, WriteIndex


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Two writers next to each other in explicit order, and what each writes there."""

    first: int
    second: int
    first_extent: Extent
    second_extent: Extent


def find_quarrels(
    nodes: Sequence[Node],
    explicit: Edges,
    order: Sequence[int],
    index: WriteIndex,
    findings: Findings,
    since: int = 0,
) -> frozenset[tuple[int, int]]:
    """Reports writers of one path that may not both write it; gives the pairs, lower index
    first.

    Only pairs with a node from `since` on are looked at. Writers that are all in one order
    need be compared with their neighbours in it only, so a thousand formatters in a row
    cost a thousand comparisons. Templates are left out: their instances are checked.
    """
    position = {node: place for place, node in enumerate(order)}
    meetings: list[_Meeting] = []
    compared: set[tuple[int, int]] = set()
    for bucket in index.buckets:
        if bucket.template:
            continue
        ordered = sorted(bucket.writers, key=position.__getitem__)
        meetings += (_Meeting(a, b, bucket.extent, bucket.extent) for a, b in pairwise(ordered))
        for other in index.find(bucket.extent):
            pair = min(bucket.number, other.number), max(bucket.number, other.number)
            if other is not bucket and not other.template and pair not in compared:
                compared.add(pair)
                meetings += _meetings_between(bucket, other, position)
    meetings = [m for m in meetings if max(m.first, m.second) >= since]
    wanted = {(m.first, m.second) for m in meetings}
    ordered_pairs = find_ordered_pairs(explicit, order, wanted)
    quarrels = set()
    for meeting in meetings:
        is_ordered = (meeting.first, meeting.second) in ordered_pairs
        rewrite = all(
            _reads_all(nodes[w].reads, meeting.first_extent, meeting.second_extent)
            for w in (meeting.first, meeting.second)
        )
        if is_ordered and rewrite:
            continue
        quarrels.add((min(meeting.first, meeting.second), max(meeting.first, meeting.second)))
        _report(nodes, meeting, rewrite, findings)
    return frozenset(quarrels)


def _meetings_between(bucket: Bucket, other: Bucket, position: dict[int, int]) -> list[_Meeting]:
    here, there = set(bucket.writers), set(other.writers)
    merged = sorted(here | there, key=position.__getitem__)
    found = []
    for first, second in pairwise(merged):
        if first in here and second in there:
            pair = _Meeting(first, second, bucket.extent, other.extent)
        else:
            pair = _Meeting(first, second, other.extent, bucket.extent)
        same = (first in here and second in here) or (first in there and second in there)
        if not same:
            found.append(pair)
    return found


def _reads_all(reads: tuple[Entry, ...], a: Extent, b: Extent) -> bool:
    """Whether `reads` name every path that `a` and `b` both write."""
    if all(e in reads for e in (a.entry, b.entry)) and not any(e.exclude for e in reads):
        return True
    excluded = [parts for e in a.excludes + b.excludes for parts in excluded_parts(e)]
    read = [pattern_parts(e) for e in reads if not e.exclude]
    parts_a, parts_b = pattern_parts(a.entry), pattern_parts(b.entry)
    # A file that is a folder for the other is nothing both could read.
    shared = find_common_path_without(parts_a, parts_b, excluded)
    return shared is not None and (
        find_common_path_without(parts_a, parts_b, excluded + read) is None
    )


def _report(nodes: Sequence[Node], meeting: _Meeting, rewrite: bool, findings: Findings) -> None:
    (a, extent_a), (b, extent_b) = sorted(
        ((meeting.first, meeting.first_extent), (meeting.second, meeting.second_extent)),
        key=lambda side: side[0],
    )
    first, second = nodes[a], nodes[b]
    path = overlap_extents(extent_a, extent_b)
    assert path is not None, "buckets meet because they overlap"
    elsewhere = Note(
        f"`{shown(first.name)}` writes `{shown(str(extent_a.entry))}`",
        _origin_of_write(first, extent_a),
    )
    if first.origin == second.origin:
        hint = "Make the path differ for each node, with `{{each.stem}}` or `{{matrix.NAME}}`."
    elif rewrite:
        hint = f'Say which comes first: after = ["{first.name}"] in `{shown(second.name)}`.'
    else:
        hint = "Let one of them write elsewhere; only nodes that read what they rewrite may share."
    findings.add(
        b,
        f"Nodes `{shown(first.name)}` and `{shown(second.name)}` both write `{shown(path)}`",
        _origin_of_write(second, extent_b),
        about=f"write {path}",
        hint=hint,
        notes=() if first.origin == second.origin else (elsewhere,),
    )


def _origin_of_write(node: Node, extent: Extent) -> Origin:
    return node.origin.at("writes", node.writes.index(extent.entry))
