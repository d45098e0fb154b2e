"""Which nodes a command line means: targets and tags, what they need, and the handlers that
join them.

Does not know what would run: a selected node may well be up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.plans.diagnostics import Diagnostic, PlanError, shown, suggest
from assay.plans.model import Kind, Plan, When
from assay.plans.names import NodeNames
from assay.plans.ordering import successors_of


@dataclass(frozen=True, slots=True)
class Selection:
    """`indices` ascend and hold every dependency of their members; `targets` are those that
    were asked for, ascending."""

    indices: tuple[int, ...]
    targets: tuple[int, ...]


def select(plan: Plan, targets: Sequence[str], tags: Sequence[str]) -> Selection:
    """The nodes that `targets` or `tags` name, with everything they need.

    A target is an exact name, the name before `[…]` for all instances, or a pattern over
    names. Without targets and tags the plan's default is meant, or all nodes. A `failure` or
    `always` node whose followed nodes are all selected joins. Raises PlanError when a target
    or a tag selects nothing.
    """
    chosen = _find_targets(plan, targets, tags)
    selected = _close(plan, chosen)
    _join_handlers(plan, selected)
    return Selection(tuple(sorted(selected)), tuple(sorted(chosen)))


def _find_targets(plan: Plan, targets: Sequence[str], tags: Sequence[str]) -> set[int]:
    if not plan.nodes:
        raise PlanError((Diagnostic(f"The plan `{shown(plan.name)}` has no nodes"),), {})
    if not targets and not tags:
        if plan.default is None:
            return set(range(len(plan.nodes)))
        targets = plan.default
    names = NodeNames(plan.nodes, plan.base_size)
    chosen: set[int] = set()
    problems: list[Diagnostic] = []
    for text in targets:
        found = names.find(text) or _find_template(plan, names, text)
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
            chosen.update(tagged.get(tag, ()))
            if tag not in tagged:
                problems.append(
                    _complain(f"No node has the tag `{shown(tag)}`", suggest(tag, tagged))
                )
    if problems:
        raise PlanError(problems, {})
    return chosen


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


def _join_handlers(plan: Plan, selected: set[int]) -> None:
    """A handler that follows nothing belongs to nothing and does not join."""
    handlers = {
        index: set(plan.dependencies[index]) - selected
        for index, node in enumerate(plan.nodes)
        if node.when is not When.SUCCESS and index not in selected and plan.dependencies[index]
    }
    if not handlers:
        return
    successors = successors_of(plan.dependencies)
    ready = deque(index for index, missing in handlers.items() if not missing)
    while ready:
        joined = ready.popleft()
        selected.add(joined)
        for successor in successors[joined]:
            missing = handlers.get(successor)
            if missing:
                missing.discard(joined)
                if not missing:
                    ready.append(successor)
