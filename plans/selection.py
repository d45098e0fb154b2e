"""Which nodes a command line means: targets and tags, what they need, and the handlers that
join them.

Does not know what would run: a selected node may well be up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.plans.diagnostics import Diagnostic, PlanError, shown, suggest
from assay.plans.model import Kind, NodeName, Plan, Tier, When
from assay.plans.names import NodeNames, is_pattern
from assay.plans.ordering import successors_of


@dataclass(frozen=True, slots=True)
class Selection:
    """`indices` ascend and hold every dependency of their members; `targets` are those that
    were asked for, ascending.

    `left_out` are the nodes that a pattern or a tag chose, or that would have joined, but
    that need a node which is not sealed and which nobody named: each with that node, or
    with itself when it is one, in plan order.
    """

    indices: tuple[int, ...]
    targets: tuple[int, ...]
    left_out: tuple[tuple[NodeName, NodeName], ...] = ()


def select(plan: Plan, targets: Sequence[str], tags: Sequence[str]) -> Selection:
    """The nodes that `targets` or `tags` name, with everything they need.

    A target is an exact name, the name before `[…]` for all instances, or a pattern over
    names. Without targets and tags the plan's default is meant, or all nodes. A `failure` or
    `always` node whose followed nodes are all selected joins. Raises PlanError when a target
    or a tag matches nothing.

    A node that is not sealed has an effect, and nobody has one by accident: it is selected
    when it, or what needs it, is named exactly or is part of the default. What only a
    pattern or a tag chose is left out when it needs another one, so that `indices` may be
    empty; and then no handler that is not sealed joins.
    """
    named, matched = _find_targets(plan, targets, tags)
    needed = _close(plan, named)
    matched -= needed
    barred = _find_barred(plan, needed) if matched else {}
    chosen = named | (matched - barred.keys())
    selected = _close(plan, chosen)
    joined = _find_handlers(plan, selected)
    left_out = sorted((matched | joined) & barred.keys())
    return Selection(
        tuple(sorted(selected | (joined - barred.keys()))),
        tuple(sorted(chosen)),
        tuple((plan.nodes[i].name, plan.nodes[barred[i]].name) for i in left_out),
    )


def _find_targets(
    plan: Plan, targets: Sequence[str], tags: Sequence[str]
) -> tuple[set[int], set[int]]:
    """Nodes meant by their names, and nodes that a pattern or a tag matches."""
    if not plan.nodes:
        raise PlanError((Diagnostic(f"The plan `{shown(plan.name)}` has no nodes"),), {})
    is_plain = not targets and not tags
    if is_plain:
        if plan.default is None:
            return set(range(len(plan.nodes))), set()
        targets = plan.default
    names = NodeNames(plan.nodes, plan.base_size)
    named: set[int] = set()
    matched: set[int] = set()
    problems: list[Diagnostic] = []
    for text in targets:
        found = names.find(text)
        if not found:
            found = tuple(_find_template(plan, names, text))
            effects = [i for i in found if plan.nodes[i].tier is not Tier.SEALED]
            if effects and not any(sign in text for sign in "*?"):
                base = shown(plan.nodes[effects[0]].name)
                problems.append(
                    Diagnostic(
                        f"`{shown(text)}` is made when `{base}` expands, with others that have"
                        " effects as well",
                        hint=f"`{base}` names all of them.",
                    )
                )
                continue
        is_name = is_plain or not is_pattern(text) or names.find_exact(text)
        chosen = named if is_name else matched
        chosen.update(found)
        for index in found:
            if plan.nodes[index].kind is Kind.TEMPLATE:
                chosen.update(names.find_grown(plan.nodes[index]))
        if not found:
            problems.append(_complain(f"There is no node `{shown(text)}`", names.suggest(text)))
    if tags:
        tagged: dict[str, list[int]] = {}
        for index, node in enumerate(plan.nodes):
            for tag in node.tags:
                tagged.setdefault(tag, []).append(index)
        for tag in tags:
            matched.update(tagged.get(tag, ()))
            if tag not in tagged:
                problems.append(
                    _complain(f"No node has the tag `{shown(tag)}`", suggest(tag, tagged))
                )
    if problems:
        raise PlanError(problems, {})
    return named, matched


def _find_template(plan: Plan, names: NodeNames, text: str) -> Iterable[int]:
    """The template whose instance `text` names: which instances there are shows only when
    it expands, so all of them are meant."""
    base = text.partition("[")[0]
    found = names.find(base) if text.endswith("]") and base else ()
    return [index for index in found if plan.nodes[index].kind is Kind.TEMPLATE]


def _complain(message: str, near: str | None) -> Diagnostic:
    return Diagnostic(
        message, hint=f"Did you mean `{shown(near)}`?" if near else "`assay plan` shows all nodes"
    )


def _close(plan: Plan, chosen: Iterable[int]) -> set[int]:
    selected = set(chosen)
    pending = list(selected)
    while pending:
        for dependency in plan.dependencies[pending.pop()]:
            if dependency not in selected:
                selected.add(dependency)
                pending.append(dependency)
    return selected


def _find_barred(plan: Plan, needed: set[int]) -> Mapping[int, int]:
    """Every node that is, or needs, one that is neither sealed nor `needed`, with the nearest
    such node."""
    barred = {
        index: index
        for index, node in enumerate(plan.nodes)
        if node.tier is not Tier.SEALED and index not in needed
    }
    if not barred:
        return {}
    successors = successors_of(plan.dependencies)
    pending = deque(barred)
    while pending:
        index = pending.popleft()
        for successor in successors[index]:
            if successor not in barred:
                barred[successor] = barred[index]
                pending.append(successor)
    return barred


def _find_handlers(plan: Plan, selected: set[int]) -> set[int]:
    """The handlers that join. One that follows nothing belongs to nothing and does not."""
    joined: set[int] = set()
    handlers = {
        index: set(plan.dependencies[index]) - selected
        for index, node in enumerate(plan.nodes)
        if node.when is not When.SUCCESS and index not in selected and plan.dependencies[index]
    }
    if not handlers:
        return joined
    successors = successors_of(plan.dependencies)
    ready = deque(index for index, missing in handlers.items() if not missing)
    while ready:
        handler = ready.popleft()
        joined.add(handler)
        for successor in successors[handler]:
            missing = handlers.get(successor)
            if missing:
                missing.discard(handler)
                if not missing:
                    ready.append(successor)
    return joined
