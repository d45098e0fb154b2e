"""Nodes that write the same paths: an error, unless they are ordered and meant to.

Two nodes may write one path when an explicit order stands between them and both read what
they rewrite (formatters in a row), or when the later one is not sealed: it is never clean by
what stands there, so nothing is mistaken for its result. Does not know the disk: two
patterns overlap when some path could match both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.plans.diagnostics import Note, shown
from assay.plans.edges import Edges
from assay.plans.entries import Extent, excluded_parts, overlap_extents, pattern_parts
from assay.plans.findings import Findings
from assay.plans.model import Entry, Node, Origin, Tier
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
        meetings += (
            _Meeting(a, b, bucket.extent, bucket.extent) for a, b in _find_pairs(nodes, ordered)
        )
        for other in index.find(bucket.extent):
            pair = min(bucket.number, other.number), max(bucket.number, other.number)
            if other is not bucket and not other.template and pair not in compared:
                compared.add(pair)
                meetings += _meetings_between(nodes, bucket, other, position)
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
        if is_ordered and (rewrite or not _is_sealed(nodes[meeting.second])):
            continue
        quarrels.add((min(meeting.first, meeting.second), max(meeting.first, meeting.second)))
        _report(nodes, meeting, is_ordered, rewrite, findings)
    return frozenset(quarrels)


def _find_pairs(nodes: Sequence[Node], ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours, and a sealed node with each before it up to the last sealed one: those that
    are not sealed may follow anything, so what they get on with proves nothing for it."""
    for place in range(1, len(ordered)):
        second = ordered[place]
        before = place - 1
        yield ordered[before], second
        while before and _is_sealed(nodes[second]) and not _is_sealed(nodes[ordered[before]]):
            before -= 1
            yield ordered[before], second


def _is_sealed(node: Node) -> bool:
    return node.tier is Tier.SEALED


def _meetings_between(
    nodes: Sequence[Node], bucket: Bucket, other: Bucket, position: dict[int, int]
) -> list[_Meeting]:
    here, there = set(bucket.writers), set(other.writers)
    merged = sorted(here | there, key=position.__getitem__)
    found = []
    for first, second in _find_pairs(nodes, merged):
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


def _report(
    nodes: Sequence[Node], meeting: _Meeting, is_ordered: bool, rewrite: bool, findings: Findings
) -> None:
    (a, extent_a), (b, extent_b) = sorted(
        ((meeting.first, meeting.first_extent), (meeting.second, meeting.second_extent)),
        key=lambda side: side[0],
    )
    first, second = nodes[a], nodes[b]
    later, earlier = (first, second) if _is_sealed(second) else (second, first)
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
    elif not is_ordered and not _is_sealed(later):
        hint = f'Say that it comes later: after = ["{earlier.name}"] in `{shown(later.name)}`.'
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
