"""What must be taken back before an earlier effect is done anew: in which order, and what
forbids it.

Asks the store and the plans of then and now; changes nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from assay.engine.attempts import Claims
from assay.engine.claims import (
    claims_of,
    claims_of_undoing,
    find_conflict,
    find_undone,
    lock_of_node,
)
from assay.engine.comparing import claims_of_effect, find_followers
from assay.engine.effects import EffectRow
from assay.engine.intentions import UNDOABLE, identity_of
from assay.engine.kept_plans import read_plan
from assay.engine.resumption import read_history
from assay.engine.run_state import RunState
from assay.engine.runs import NoSuchRun, RunRow
from assay.engine.states import EffectState, Outcome
from assay.plans.model import Tier


def find_undoes(run: RunState, index: int, row: EffectRow) -> tuple[EffectRow, ...]:
    """What is to be undone, in this order: what was done after `row`, the effect of the node
    `index`, by nodes that follow it or wrote the same files, the newest first, and `row` last.

    What followed when `row` was done, and by the plan of now does not, is among it unless this
    run has taken it over already."""
    store = run.store
    current = store.effects.get(row.attempt)
    if current != row:
        return ()
    now = find_followers(run.plan, index)
    then = _followers_then(run, row)
    taken_over = set(_settled_names(run))
    undone = [row]
    claims = [claims_of_effect(store, row)]
    for other in store.effects.open_of(run.plan_identity):
        is_later = other.begun_seq > row.begun_seq and other.attempt != row.attempt
        if not is_later or other.tier is not Tier.COMPENSABLE or other.state not in UNDOABLE:
            continue
        theirs = claims_of_effect(store, other)
        follows = other.node in now or (other.node in then and other.node not in taken_over)
        if follows or any(find_conflict(theirs, each) for each in claims):
            undone.append(other)
            claims.append(theirs)
    return tuple(reversed(undone))


def find_objection(
    run: RunState, index: int, undoes: tuple[EffectRow, ...]
) -> tuple[Outcome, str] | None:
    """Why these are not taken back: how the node ends instead, and what is said of it."""
    row = undoes[-1]
    names = {each.node for each in undoes}
    mine = run.plan.nodes[index].name
    taken_over = [name for name in _settled_names(run) if name in names and name != mine]
    if taken_over:
        return (
            Outcome.FAILED,
            f"is to be done anew, and what `{taken_over[0]}` did after it undone before; but"
            f" this run has taken that over: `assay run --new` does it on top of that,"
            f" `assay rewind {row.run} --to NODE` goes back",
        )
    foreign = _find_foreign(run, undoes)
    if foreign is not None:
        return (
            Outcome.AMBIGUOUS,
            f"is to be done anew, but `{foreign.node}` of {foreign.plan_file} has changed the"
            f" same files since (run {foreign.run}): `assay run --new` does it on top of that,"
            f" unless that is taken back first (`assay rewind {foreign.run} --to NODE`)",
        )
    other = _find_builder(run, undoes)
    if other is not None:
        return (
            Outcome.FAILED,
            f"is to be done anew, but run {other.id} of the same plan is on (pid"
            f" {other.owner.pid}) and builds on what would be taken back: `assay run` again"
            " once that has ended",
        )
    return None


def find_claims(run: RunState, index: int, undoes: tuple[EffectRow, ...]) -> Claims:
    """What is held meanwhile: all that was written, and every node whose effects may be among
    it, so that none of them is under way in another run."""
    plan, store = run.plan, run.store
    own = claims_of(plan.nodes[index], plan.file)
    theirs = claims_of_undoing(
        ((each, claims_of_effect(store, each)) for each in undoes), plan.file
    )
    followers = find_followers(plan, index)
    names = sorted(node.name for node in plan.nodes if node.name in followers)
    locks = (*own.locks, *theirs.locks, *(lock_of_node(name, plan.file) for name in names))
    return Claims(own.writes + theirs.writes, own.reads, tuple(dict.fromkeys(locks)))


def _settled_names(run: RunState) -> Iterator[str]:
    for index in run.graph.selected:
        if run.graph.outcomes.get(index) in (Outcome.BUILT, Outcome.CLEAN):
            yield run.plan.nodes[index].name


def _followers_then(run: RunState, row: EffectRow) -> Container[str]:
    """The nodes that followed that of `row` in the plan of its run, as far as it is kept."""
    try:
        digest = run.store.runs.get(row.run).plan_digest
    except NoSuchRun:
        return ()
    plan = None if digest == run.plan.digest else read_plan(run.store, digest)
    if plan is None:
        return ()
    index = next((i for i, node in enumerate(plan.nodes) if node.name == row.node), None)
    return () if index is None else find_followers(plan, index)


def _find_foreign(run: RunState, undoes: tuple[EffectRow, ...]) -> EffectRow | None:
    """What another plan did in the same files after the oldest of these: putting the files back
    would take that away, and this run does not do it again."""
    store = run.store
    # Of those whose files are back already only the `undo` is left to do.
    undoes = tuple(each for each in undoes if each.state is not EffectState.COMPENSATING)
    claims = [claims_of_effect(store, each) for each in undoes]
    first = min((each.begun_seq for each in undoes), default=None)
    for other in () if first is None else store.effects.begun_after(first):
        if other.plan_file == run.plan_identity or other.tier is not Tier.COMPENSABLE:
            continue
        theirs = claims_of_effect(store, other)
        if other.state in UNDOABLE and any(find_conflict(theirs, each) for each in claims):
            return other
    return None


def _find_builder(run: RunState, undoes: tuple[EffectRow, ...]) -> RunRow | None:
    """Another run of the plan that is on and has done, or taken over, one of these."""
    names = {each.node for each in undoes}
    for other in run.store.runs.unsettled():
        is_same = identity_of(other.plan_file, other.plan_name) == run.plan_identity
        if not is_same or other.id == run.id or not run.store.runs.is_alive(other.id):
            continue
        attempts = run.store.attempts.of_run(other.id)
        taken_back = {a for row in attempts if row.end is None for a in find_undone(row.claims)}
        if any(each.attempt in taken_back for each in undoes):
            continue  # what it holds is waited for
        if any(each.run == other.id for each in undoes):
            return other
        if names & read_history(run.store, other)[1].settled.keys():
            return other
    return None
