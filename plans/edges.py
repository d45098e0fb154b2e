"""Who follows whom: explicit edges from `after` and value references, inferred ones from
writes that overlap reads, and the rules by which inferred ones give way.

- An inferred edge A -> B is dropped where explicit edges already order B before A: B then
  reads the version before A's.
- Of several writers of the same entry, which have to be in an explicit order, a reader
  follows the last that it does not itself precede; the others come before that one.
- A node's own writes never make it follow itself.

Knows neither the disk nor how a plan is keyed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from assay.plans.diagnostics import Mark, Note, shown
from assay.plans.findings import Findings
from assay.plans.model import (
    EdgeKind,
    EnvValue,
    Kind,
    Node,
    NodeName,
    Origin,
    ValueRef,
)
from assay.plans.names import NodeNames, is_pattern, scope_of
from assay.plans.ordering import (
    find_cycle,
    find_knots,
    find_ordered_pairs,
    sort_topologically,
)
from assay.plans.producers import Bucket, WriteIndex, find_common_entry

AFTER: Final = EdgeKind.AFTER.value
VALUE: Final = EdgeKind.VALUE.value
PATH: Final = EdgeKind.PATH.value
# Plain integers while edges are gathered: IntFlag arithmetic costs a microsecond each.

Edges = list[dict[int, int]]
"""For every node the nodes it follows and why, as bits of EdgeKind."""

SHOWN_IN_TRAIL: Final = 12
"""Names of a longer cycle are cut in the middle; so are its explanations."""


# Explicit edges


def resolve_references(
    nodes: Sequence[Node],
    names: NodeNames,
    findings: Findings,
    since: int = 0,
    template: int | None = None,
) -> tuple[list[Node], Edges]:
    """The nodes from `since` on with every name in `after` and `env` resolved, and the
    edges these make.

    A pattern in `after` that no name matches is following nothing, and one that matches its
    own node (or the `template` it is an instance of) means the others.
    """
    resolved: list[Node] = []
    edges: Edges = []
    spelled: dict[tuple[int, ...], tuple[NodeName, ...]] = {}
    for index in range(since, len(nodes)):
        node = nodes[index]
        before: dict[int, int] = {}
        if node.after:
            _follow(index, node, names, template, before, findings)
            key = tuple(sorted(before))
            after = spelled.get(key)
            if after is None:
                after = spelled[key] = tuple(sorted(nodes[i].name for i in key))
            if after != node.after:
                node = replace(node, after=after)
        env = _resolve_env(index, node, nodes, names, before, findings)
        if env is not None:
            node = replace(node, env=env)
        resolved.append(node)
        edges.append(before)
    return resolved, edges


def _follow(
    index: int,
    node: Node,
    names: NodeNames,
    template: int | None,
    before: dict[int, int],
    findings: Findings,
) -> None:
    scope = scope_of(node.name)
    for position, text in enumerate(node.after):
        found = names.find(text, scope)
        selects = is_pattern(text) and text not in names.indices
        for other in found:
            if not selects or other not in (index, template):
                before[other] = AFTER
        if not found and not selects:
            _report_unknown(
                index,
                f"Node `{shown(node.name)}` comes after `{shown(text)}`, but",
                text,
                scope,
                node.origin.at("after", position),
                names,
                findings,
            )


def _resolve_env(
    index: int,
    node: Node,
    nodes: Sequence[Node],
    names: NodeNames,
    before: dict[int, int],
    findings: Findings,
) -> tuple[tuple[str, EnvValue], ...] | None:
    """The environment with full node names, or None when nothing had to change."""
    changed = False
    env: list[tuple[str, EnvValue]] = []
    for variable, value in node.env:
        if isinstance(value, ValueRef):
            subject = f"Node `{shown(node.name)}` takes the value of `{variable}` from"
            origin = node.origin.at("env", variable)
            source = resolve_value(
                index, subject, value, scope_of(node.name), origin, nodes, names, findings
            )
            if source is not None:
                before[source] = before.get(source, 0) | VALUE
                if nodes[source].name != value.node:
                    value = ValueRef(nodes[source].name, value.path)
                    changed = True
        env.append((variable, value))
    return tuple(env) if changed else None


def resolve_value(
    index: int,
    subject: str,
    value: ValueRef,
    scope: str,
    origin: Origin,
    nodes: Sequence[Node],
    names: NodeNames,
    findings: Findings,
) -> int | None:
    """The one node a value reference means; None after reporting what is wrong with it."""
    selects = is_pattern(value.node) and value.node not in names.indices
    found = () if selects else names.find(value.node, scope)
    if not found:
        _report_unknown(
            index,
            f"{subject} `{shown(value.node)}`, but",
            value.node,
            scope,
            origin,
            names,
            findings,
        )
        return None
    first = nodes[found[0]]
    if len(found) > 1 or first.kind is Kind.TEMPLATE:
        count = f"{len(found)} nodes" if len(found) > 1 else "as many nodes as there are matches"
        findings.add(
            index,
            f"{subject} `{shown(value.node)}`, but that stands for {count}",
            origin,
            hint=None if first.kind is Kind.TEMPLATE else f'Name one of them: "{first.name}".',
        )
        return None
    if first.result is None:
        findings.add(
            index,
            f"{subject} `{shown(first.name)}`, but that node declares no `result`",
            origin,
            hint=f'Add result = "text" to `{shown(first.name)}`; its value is what it writes to '
            "$ASSAY_RESULT.",
            notes=(Note(f"`{shown(first.name)}` is declared here", first.origin),),
        )
        return None
    return found[0]


def _report_unknown(
    index: int,
    subject: str,
    text: str,
    scope: str,
    origin: Origin,
    names: NodeNames,
    findings: Findings,
) -> None:
    if findings.has(origin, text):
        return
    near = names.suggest(text, scope)
    hint = None if near is None else f"Did you mean `{shown(near)}`?"
    findings.add(index, f"{subject} there is no such node", origin, about=text, hint=hint)


# Inferred edges


@dataclass(frozen=True, slots=True)
class Wiring:
    """What inferring found. `order` is topological; None when there are cycles, which are
    then reported."""

    edges: Edges
    order: list[int] | None


def infer_edges(
    nodes: Sequence[Node],
    explicit: Edges,
    order: Sequence[int],
    index: WriteIndex,
    quarrels: frozenset[tuple[int, int]],
    findings: Findings,
    settled: Edges | None = None,
) -> Wiring:
    """Explicit and inferred edges together.

    `order` is the topological order of `explicit`. `quarrels` are pairs of writers (lower
    index first) already reported: no edge is inferred between them. `settled` are the
    final edges of the first nodes, which keep them.
    """
    position = {node: place for place, node in enumerate(order)}
    for bucket in index.buckets:
        bucket.writers.sort(key=position.__getitem__)
    ranks = {
        b.number: {w: place for place, w in enumerate(b.writers)}
        for b in index.buckets
        if len(b.writers) > 1
    }
    since = 0 if settled is None else len(settled)
    edges = [dict(before) for before in (*(settled or ()), *explicit[since:])]
    for reader in range(since, len(nodes)):
        before = edges[reader]
        for bucket in find_read_buckets(index, nodes[reader]):
            writer = _latest_writer(bucket, reader, ranks)
            if writer is None or (min(reader, writer), max(reader, writer)) in quarrels:
                continue
            before[writer] = before.get(writer, 0) | PATH
    if len(sort_topologically(edges)) < len(edges):
        _drop_contradicted(nodes, explicit, order, index, edges, since)
    final = sort_topologically(edges)
    if len(final) == len(edges):
        return Wiring(edges, final)
    report_cycles(nodes, edges, final, index, findings)
    return Wiring(edges, None)


def find_read_buckets(index: WriteIndex, node: Node) -> tuple[Bucket, ...]:
    """What `node` reads of what others (and it) write; a template reads its pattern."""
    if node.template is None:
        return index.find_list(node.reads) if node.reads else ()
    return index.find_list(node.reads + node.template.pattern)


def _latest_writer(bucket: Bucket, reader: int, ranks: dict[int, dict[int, int]]) -> int | None:
    """The last writer, or the one before `reader` where it writes the entry itself."""
    if len(bucket.writers) == 1:
        return bucket.writers[0] if bucket.writers[0] != reader else None
    own = ranks[bucket.number].get(reader)
    if own is None:
        return bucket.writers[-1]
    return bucket.writers[own - 1] if own else None


def _drop_contradicted(
    nodes: Sequence[Node],
    explicit: Edges,
    order: Sequence[int],
    index: WriteIndex,
    edges: Edges,
    since: int,
) -> None:
    """Takes away the inferred edges against which there is an explicit order, and lets
    their readers (from `since` on) follow the last earlier writer of the same entry, if
    there is one.

    An edge that is contradicted closes a cycle, so only those on cycles are looked at.
    """
    stuck = set(range(len(edges))) - set(sort_topologically(edges))
    knot_of = {
        node: number for number, knot in enumerate(find_knots(edges, stuck)) for node in knot
    }
    suspects = [
        (reader, writer)
        for reader in knot_of
        for writer, kind in edges[reader].items()
        if reader >= since and kind == PATH and knot_of.get(writer) == knot_of[reader]
    ]
    contradicted = find_ordered_pairs(explicit, order, suspects)
    searches: list[_EarlierWriter] = []
    for reader, writer in sorted(contradicted):
        del edges[reader][writer]
        searches += (
            _EarlierWriter(reader, bucket)
            for bucket in find_read_buckets(index, nodes[reader])
            if len(bucket.writers) > 1 and bucket.writers[-1] == writer
        )
    # All searches halve together, so that each round asks one batch of questions.
    while any(s.low < s.high for s in searches):
        asked = [s for s in searches if s.low < s.high]
        after_reader = find_ordered_pairs(explicit, order, [s.question() for s in asked])
        for search in asked:
            search.learn(search.question() in after_reader)
    for search in searches:
        if search.low:
            writer = search.bucket.writers[search.low - 1]
            edges[search.reader][writer] = edges[search.reader].get(writer, 0) | PATH


class _EarlierWriter:
    """Binary search for the first writer of `bucket` that `reader` precedes, which it does
    the last one; `low` counts the writers known not to be preceded."""

    __slots__ = ("bucket", "high", "low", "reader")

    def __init__(self, reader: int, bucket: Bucket) -> None:
        self.reader = reader
        self.bucket = bucket
        self.low = 0
        self.high = len(bucket.writers) - 1

    def question(self) -> tuple[int, int]:
        return self.reader, self.bucket.writers[(self.low + self.high) // 2]

    def learn(self, reader_precedes: bool) -> None:
        middle = (self.low + self.high) // 2
        if reader_precedes:
            self.high = middle
        else:
            self.low = middle + 1


# Cycles


def report_cycles(
    nodes: Sequence[Node],
    edges: Edges,
    order: Sequence[int],
    index: WriteIndex,
    findings: Findings,
) -> None:
    """One error for every knot of nodes that wait for each other, with a shortest trail.

    `order` is as much of `edges` as can be sorted topologically.
    """
    for knot in find_knots(edges, set(range(len(nodes))).difference(order)):
        trail = find_cycle(edges, knot)
        names = [shown(nodes[i].name) for i in trail]
        steps = list(pairwise(trail))
        if len(names) > SHOWN_IN_TRAIL:
            half = SHOWN_IN_TRAIL // 2
            left_out = len(names) - 2 * half
            names[half:-half] = [f"({left_out} more)"]
            steps = steps[:half]
        notes = [_explain(nodes, edges, index, *step) for step in steps]
        findings.add(
            trail[0],
            f"Nodes wait for each other in a cycle: `{' -> '.join(names)}`",
            nodes[trail[0]].origin,
            mark=Mark.KEY,
            notes=notes,
        )


def _explain(
    nodes: Sequence[Node], edges: Edges, index: WriteIndex, first: int, second: int
) -> Note:
    """Why `second` follows `first`."""
    before, node = nodes[first], nodes[second]
    kind = edges[second][first]
    if kind & AFTER and before.name not in node.after:
        text = f"`{shown(before.name)}` belongs to `{shown(node.name)}`"
        return Note(text, node.origin)
    if kind & AFTER:
        return Note(
            f"`{shown(node.name)}` comes after `{shown(before.name)}`", node.origin.at("after")
        )
    if kind & VALUE:
        return Note(
            f"`{shown(node.name)}` takes a value from `{shown(before.name)}`", node.origin.at("env")
        )
    common = find_common_entry(
        index.extents(node.reads), index.extents(before.writes)
    ) or find_common_entry(
        index.extents(node.template.pattern if node.template else ()),
        index.extents(before.writes),
    )
    assert common is not None, "an inferred edge comes from an overlap"
    extent, path = common
    text = f"`{shown(node.name)}` reads `{shown(path)}`, which `{shown(before.name)}` writes"
    if extent.entry not in node.reads:
        return Note(text, node.origin.at("foreach"))
    return Note(text, node.origin.at("reads", node.reads.index(extent.entry)))
