"""What is known of a node's effects beside what the node consumes now: the facts that
`intentions` judges by.

Asks the store and the plan; changes nothing. The run loop and the dry run ask the same.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from assay.engine import preimages
from assay.engine.attempts import Claims
from assay.engine.clock import local_time
from assay.engine.decision import Gathered
from assay.engine.effects import EffectRow
from assay.engine.intentions import Evidence, Judgement, judge, plan_identity
from assay.engine.keys import Recipe, content_key_over, find_changes, summarize
from assay.engine.preimages import DamagedPreimage
from assay.engine.states import ABSENT, ActionKey, EffectState, RunId, State
from assay.engine.store import Store
from assay.plans.entries import matches
from assay.plans.model import Entry, EntryKind, Kind, Node, NodeName, Plan, RelPath
from assay.plans.nodes import declared_name


def find_evidence(
    store: Store,
    identity: str,
    node: Node,
    run: RunId,
    created_seq: int,
    *,
    is_new: bool,
    retry_failed: bool,
) -> Evidence:
    """What the store knows of the node's effects; inside or outside a transaction."""
    own, other = store.effects.of_node(identity, node.name, run, created_seq)
    lost = None
    unrecorded = None if is_new else store.effects.unrecorded_of(identity, node.name)
    if own is None and other is None and not is_new:
        lost = store.effects.lost()
        if lost is not None and store.effects.knows(identity, node.name):
            lost = None
    attempt = None
    if other is not None and other.state is EffectState.INTENDED:
        attempt = store.attempts.get(other.attempt)
    return Evidence(
        created_seq=created_seq,
        own=own,
        other=other,
        lost=lost,
        unrecorded=unrecorded,
        retry_failed=retry_failed,
        is_under_way=attempt is not None and attempt.end is None,
    )


def judge_with(
    store: Store, plan: Plan, index: int, gathered: Gathered, evidence: Evidence
) -> Judgement:
    """What is to become of the node with what it consumes now."""
    now = cast(Recipe, json.loads(gathered.recipe_text))

    def explain(row: EffectRow) -> str:
        return summarize(find_changes(cast(Recipe, json.loads(row.recipe)), now))

    def key_now(row: EffectRow) -> ActionKey:
        return key_over(store, plan, index, gathered, row)

    def began(row: EffectRow) -> str:
        attempt = store.attempts.get(row.attempt)
        return "" if attempt is None else f" at {local_time(attempt.began_at)}"

    return judge(plan.nodes[index], evidence, key_now, explain, began)


def key_over(store: Store, plan: Plan, index: int, gathered: Gathered, row: EffectRow) -> ActionKey:
    """The content key of what is consumed now, as the effect `row` sees it."""
    # Those that follow may have rewritten the same files since: that is no edit either.
    names = find_followers(plan, index)
    identity = plan_identity(plan)
    effects = [row]
    effects += [
        each
        for each in store.effects.open_of(identity)
        if each.begun_seq > row.begun_seq
        and each.state is EffectState.SUCCEEDED
        and each.node in names
    ]
    left = {item for each in effects for item in each.outputs}
    kept = {path for path, _ in left}
    attempts = [store.attempts.get(each.attempt) for each in effects]
    written = [each.claims.writes for each in attempts if each is not None]

    def is_gone(path: RelPath) -> bool:
        return path not in kept and any(matches(entries, path) for entries in written)

    def is_left(path: RelPath, state: State) -> bool:
        if (path, state) in left or (state == ABSENT and is_gone(path)):
            return True
        return any(
            (file, at) == (plan.file, state) and node in names
            for file, node, at in store.results.writers_of(path)
        )

    now = cast(Recipe, json.loads(gathered.recipe_text))
    before = cast(Recipe, json.loads(row.recipe))
    return content_key_over(now, before, is_left, is_gone)


def claims_of_effect(store: Store, row: EffectRow) -> Claims:
    """What its attempt could change: what it claimed, and files behind links there."""
    attempt = store.attempts.get(row.attempt)
    if attempt is None:
        return Claims()
    path = preimages.path_of(store.preimages, row.attempt)
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        return Claims(writes=attempt.claims.writes)
    return Claims(writes=attempt.claims.writes + _find_behind(path, stamp))


@lru_cache(maxsize=4096)
def _find_behind(path: str, _stamp: int) -> tuple[Entry, ...]:
    """The files behind links that a pre-image has. It is never written again: of many effects that
    are compared again and again each is read once."""
    with suppress(DamagedPreimage):  # whoever needs it is told
        preimage = preimages.load(path)
        if preimage is not None:
            return tuple(Entry(EntryKind.FILE, path) for path, _, _ in preimage.behind)
    return ()


@dataclass(frozen=True, slots=True)
class Followers:
    """The nodes that follow one, by name. An instance of a template among them does, whether
    that has expanded by now or not."""

    names: frozenset[str]
    templates: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.names or (
            isinstance(name, str) and declared_name(NodeName(name)) in self.templates
        )


def find_followers(plan: Plan, index: int) -> Followers:
    """Every node that follows this one, however far, selected or not. What follows a template
    follows its instances."""
    successors: dict[int, list[int]] = {}
    templates: dict[str, list[int]] = {}
    for each, node in enumerate(plan.nodes):
        for dependency in plan.dependencies[each]:
            successors.setdefault(dependency, []).append(each)
        if node.kind is Kind.TEMPLATE:
            templates.setdefault(declared_name(node.name), []).append(each)
    for each in range(plan.base_size, len(plan.nodes)):
        owners = templates.get(declared_name(plan.nodes[each].name), ())
        successors.setdefault(each, []).extend(owners)
    found: set[int] = set()
    pending = [index]
    while pending:
        for follower in successors.get(pending.pop(), ()):
            if follower not in found:
                found.add(follower)
                pending.append(follower)
    nodes = [plan.nodes[i] for i in found - {index}]
    return Followers(
        frozenset(node.name for node in nodes),
        frozenset(declared_name(node.name) for node in nodes if node.kind is Kind.TEMPLATE),
    )
