"""From expanded nodes to a compiled plan: resolve, infer edges, verify, key.

Conducts the passes and assembles the plan; each rule lives with its pass. Does not know
plan files, templates or how a generation's nodes are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from assay.plans.diagnostics import Diagnostic, Mark, Note, Severity, shown, suggest
from assay.plans.edges import (
    AFTER,
    PATH,
    infer_edges,
    report_cycles,
    resolve_references,
    resolve_value,
)
from assay.plans.entries import is_below
from assay.plans.findings import Findings
from assay.plans.folders import STORE_FOLDER, Folders
from assay.plans.identity import make_plan_digest, make_plan_keys
from assay.plans.model import (
    EdgeKind,
    EntryKind,
    Node,
    NodeName,
    Origin,
    Plan,
    RelPath,
    Resource,
    ValueRef,
)
from assay.plans.names import NodeNames
from assay.plans.ordering import sort_topologically
from assay.plans.overlaps import find_quarrels
from assay.plans.producers import WriteIndex, file_extent
from assay.plans.sources import SourceCheck

_KINDS: Final = tuple(EdgeKind(bits) for bits in range(8))


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything of the top plan file that is not a node."""

    name: str
    file: str
    default: tuple[str, ...] | None
    steps: int | None
    agents: int | None
    resources: tuple[Resource, ...]
    outputs: tuple[tuple[str, ValueRef], ...]
    params: tuple[tuple[str, str], ...]
    plan_files: tuple[RelPath, ...]
    """The plan file and included ones within the root."""
    root: str
    """Absolute: whether sources exist is looked up below it."""


def compile_plan(
    draft: Draft, nodes: Sequence[Node], sources: dict[str, str]
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan of generation 0 and the warnings about it.

    `nodes` carry `after` and value references as written. Nothing but the existence of
    what is read is looked up on disk. Raises PlanError with everything that is wrong;
    `sources` (plan file to text) goes along with it.
    """
    findings = Findings()
    names = NodeNames(nodes)
    _check_names(nodes, names, findings)
    nodes, explicit = resolve_references(nodes, names, findings)
    default = _resolve_default(draft, nodes, names, findings)
    outputs = _resolve_outputs(draft, nodes, names, findings)
    index = WriteIndex(nodes)
    _check_protected_paths(draft, nodes, index, findings)
    _check_resources(nodes, draft.resources, findings)
    _check_idempotency_keys(nodes, findings)
    order = sort_topologically(explicit)
    edges, final, quarrels = explicit, None, frozenset[tuple[int, int]]()
    if len(order) < len(nodes):
        report_cycles(nodes, explicit, order, index, findings)
    else:
        quarrels = find_quarrels(nodes, explicit, order, index, findings)
        wiring = infer_edges(nodes, explicit, order, index, quarrels, findings)
        edges, final = wiring.edges, wiring.order
    # Without a settled order, any writer of a path will do as its source.
    check = SourceCheck(nodes, edges, index, Folders(draft.root), findings)
    check.run(ordered=final is not None and not quarrels)
    findings.raise_errors(sources)
    assert final is not None, "cycles are errors"
    dependencies, edge_kinds = _freeze(edges)
    plan_keys = make_plan_keys(nodes, dependencies, final)
    digest = make_plan_digest(
        name=draft.name,
        nodes=nodes,
        plan_keys=plan_keys,
        default=default,
        steps=draft.steps,
        agents=draft.agents,
        resources=draft.resources,
        outputs=outputs,
        params=draft.params,
        generation=0,
    )
    plan = Plan(
        name=draft.name,
        nodes=tuple(nodes),
        dependencies=dependencies,
        edge_kinds=edge_kinds,
        plan_keys=plan_keys,
        digest=digest,
        base_digest=digest,
        file=draft.file,
        default=default,
        steps=draft.steps,
        agents=draft.agents,
        resources=draft.resources,
        outputs=outputs,
        params=draft.params,
        base_size=len(nodes),
    )
    return plan, findings.diagnostics(Severity.WARNING)


def append_nodes(plan: Plan, template: int, nodes: Sequence[Node]) -> Plan:
    """The next generation of `plan`, with the instances of one template appended.

    They follow what the template follows and what their own declarations say. Nodes that
    were there keep dependencies, plan keys and indices; who follows the template follows
    its instances through it. The disk is not looked at. Raises PlanError.
    """
    findings = Findings()
    first = len(plan.nodes)
    everyone = [*plan.nodes, *nodes]
    names = NodeNames(everyone, plan.base_size)
    _check_names(everyone, names, findings)
    everyone[first:], own = resolve_references(everyone, names, findings, first, template)
    index = WriteIndex(everyone)
    _check_resources(everyone, plan.resources, findings, first)
    _check_idempotency_keys(everyone, findings)
    settled = [_thaw(plan, i) for i in range(first)]
    inherited = settled[template]
    joined = [_merge(inherited, edges) for edges in own]
    # The template has settled when its instances have, so for the order they come before it.
    settled[template] = inherited | dict.fromkeys(range(first, len(everyone)), AFTER)
    explicit = [_explicit_part(edges) for edges in (*settled, *joined)]
    order = sort_topologically(explicit)
    if len(order) < len(everyone):
        report_cycles(everyone, explicit, order, index, findings)
        findings.raise_errors({})
    quarrels = find_quarrels(everyone, explicit, order, index, findings, first)
    wiring = infer_edges(
        everyone, [*explicit[:first], *joined], order, index, quarrels, findings, settled
    )
    findings.raise_errors({})
    assert wiring.order is not None, "cycles are errors"
    dependencies, edge_kinds = _freeze(wiring.edges[first:])
    dependencies = plan.dependencies + dependencies
    plan_keys = make_plan_keys(everyone, dependencies, wiring.order, plan.plan_keys)
    generation = plan.generation + 1
    digest = make_plan_digest(
        name=plan.name,
        nodes=everyone,
        plan_keys=plan_keys,
        default=plan.default,
        steps=plan.steps,
        agents=plan.agents,
        resources=plan.resources,
        outputs=plan.outputs,
        params=plan.params,
        generation=generation,
    )
    return replace(
        plan,
        nodes=tuple(everyone),
        dependencies=dependencies,
        edge_kinds=plan.edge_kinds + edge_kinds,
        plan_keys=plan_keys,
        digest=digest,
        generation=generation,
    )


# Edges between their two forms


def _freeze(
    edges: Sequence[dict[int, int]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[EdgeKind, ...], ...]]:
    """Dependencies ascending, and their kinds; equal rows are one object."""
    dependencies: list[tuple[int, ...]] = []
    edge_kinds: list[tuple[EdgeKind, ...]] = []
    known_rows: dict[tuple[int, ...], tuple[int, ...]] = {}
    known_kinds: dict[tuple[EdgeKind, ...], tuple[EdgeKind, ...]] = {}
    for before in edges:
        row = tuple(sorted(before))
        kinds = tuple(_KINDS[before[i]] for i in row)
        dependencies.append(known_rows.setdefault(row, row))
        edge_kinds.append(known_kinds.setdefault(kinds, kinds))
    return tuple(dependencies), tuple(edge_kinds)


def _thaw(plan: Plan, index: int) -> dict[int, int]:
    kinds = plan.edge_kinds[index]
    return {d: k.value for d, k in zip(plan.dependencies[index], kinds, strict=True)}


def _merge(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {i: a.get(i, 0) | b.get(i, 0) for i in a.keys() | b.keys()}


def _explicit_part(edges: dict[int, int]) -> dict[int, int]:
    return {i: kind & ~PATH for i, kind in edges.items() if kind & ~PATH}


# Checks of single declarations


def _check_names(nodes: Sequence[Node], names: NodeNames, findings: Findings) -> None:
    if len(names.indices) == len(nodes):
        return
    for index, node in enumerate(nodes):
        first = names.indices[node.name]
        if first != index:
            findings.add(
                index,
                f"Two nodes are both named `{shown(node.name)}`",
                node.origin,
                mark=Mark.KEY,
                notes=(Note("the first one is declared here", nodes[first].origin),),
            )


def _check_idempotency_keys(nodes: Sequence[Node], findings: Findings) -> None:
    """Two effects under one key are one to the other side."""
    first: dict[str, int] = {}
    for index, node in enumerate(nodes):
        key = node.idempotency_key
        if key is None:
            continue
        other = first.setdefault(key, index)
        if other != index:
            findings.add(
                index,
                f"Nodes `{shown(nodes[other].name)}` and `{shown(node.name)}` have the same"
                f" `idempotency_key`, `{shown(key)}`: the second would be taken for a repeat of"
                " the first",
                node.origin.at("idempotency_key"),
                about="same idempotency key",
                hint="`{{each}}`, `{{matrix.NAME}}` or the node's own name in it tells them apart.",
            )


def _resolve_default(
    draft: Draft, nodes: Sequence[Node], names: NodeNames, findings: Findings
) -> tuple[NodeName, ...] | None:
    if draft.default is None:
        return None
    chosen: set[int] = set()
    for position, text in enumerate(draft.default):
        found = names.find(text)
        chosen.update(found)
        if not found:
            near = names.suggest(text)
            findings.add(
                -1,
                f"`default` names `{shown(text)}`, but there is no such node",
                Origin(draft.file, ("default", position)),
                hint=None if near is None else f"Did you mean `{shown(near)}`?",
            )
    return tuple(nodes[i].name for i in sorted(chosen))


def _resolve_outputs(
    draft: Draft, nodes: Sequence[Node], names: NodeNames, findings: Findings
) -> tuple[tuple[str, ValueRef], ...]:
    found = []
    for name, value in draft.outputs:
        subject = f"The output `{shown(name)}` takes its value from"
        origin = Origin(draft.file, ("outputs", name))
        source = resolve_value(-1, subject, value, "", origin, nodes, names, findings)
        if source is not None:
            found.append((name, ValueRef(nodes[source].name, value.path)))
    return tuple(found)


def _check_protected_paths(
    draft: Draft, nodes: Sequence[Node], index: WriteIndex, findings: Findings
) -> None:
    """What no node may write or remove: the plan's own files, and assay's folder."""
    for path in draft.plan_files:
        for bucket in index.find(file_extent(path)):
            for writer in bucket.writers:
                node = nodes[writer]
                entry = bucket.extent.entry
                findings.add(
                    writer,
                    f"Node `{shown(node.name)}` writes `{shown(str(entry))}`, which matches the "
                    f"plan file `{shown(path)}`",
                    node.origin.at("writes", node.writes.index(entry)),
                    hint=None
                    if entry.kind is EntryKind.FILE
                    else f'Add "!{path}" behind it to leave the plan file out.',
                )
    for bucket in index.buckets:
        entry = bucket.extent.entry
        if _is_in_store(entry.path):
            node = nodes[bucket.writers[0]]
            findings.add(
                bucket.writers[0],
                f"Node `{shown(node.name)}` writes `{shown(str(entry))}` in assay's own folder",
                node.origin.at("writes", node.writes.index(entry)),
            )
    for place, node in enumerate(nodes):
        for position, path in enumerate(node.removes):
            if path in draft.plan_files or _is_in_store(path):
                what = "assay's own folder" if _is_in_store(path) else "the plan's own file"
                findings.add(
                    place,
                    f"Node `{shown(node.name)}` removes `{shown(path)}`, {what}",
                    node.origin.at("removes", position),
                )
            elif any(e.path == path and e.kind is EntryKind.FILE for e in node.writes):
                findings.add(
                    place,
                    f"Node `{shown(node.name)}` both writes and removes `{shown(path)}`",
                    node.origin.at("removes", position),
                )


def _is_in_store(path: str) -> bool:
    return path == STORE_FOLDER or is_below(path, STORE_FOLDER)


def _check_resources(
    nodes: Sequence[Node], resources: Sequence[Resource], findings: Findings, since: int = 0
) -> None:
    """Demands that no limit can ever satisfy."""
    supply = {resource.name: resource.amount for resource in resources}
    for index in range(since, len(nodes)):
        node = nodes[index]
        for name, demand in node.resources:
            if demand <= supply.get(name, 0):
                continue
            needs = f"Node `{shown(node.name)}` needs {demand} of the resource `{shown(name)}`, but"
            origin = node.origin.at("resources", name)
            if name in supply:
                findings.add(index, f"{needs} there is only {supply[name]}", origin)
                continue
            near = suggest(name, supply)
            findings.add(
                index,
                f"{needs} no such resource is declared",
                origin,
                mark=Mark.KEY,
                hint=f"Did you mean `{shown(near)}`?"
                if near
                else f"Declare it: [resources] {name} = {demand}",
            )
