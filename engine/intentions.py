"""What is to become of a node that is not sealed, given what is known of its effects.

Pure: every fact arrives as an argument. `judge` is asked when the node is ready, and again
inside the transaction that records its intent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from assay.engine.effects import EffectRow, find_speaker
from assay.engine.events import Question
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, EffectState
from assay.plans.model import Kind, Node, NodeName, Plan, Tier, When
from assay.plans.nodes import declared_name

FAILURES: Final = frozenset(
    {
        AttemptEnd.EXITED,
        AttemptEnd.SIGNALLED,
        AttemptEnd.TIMED_OUT,
        AttemptEnd.NOT_STARTED,
        AttemptEnd.BROKE_BOUNDARY,
    }
)
"""Ends that are the node's own: a resumed run does not try them again by itself."""

AWAITED: Final = frozenset(
    {
        EffectState.INTENDED,
        EffectState.SUCCEEDED,
        EffectState.UNKNOWN,
        EffectState.ROLLING_BACK,
        EffectState.COMPENSATING,
    }
)
"""States in which an open effect is more than history: something is, or may be, in the world."""


UNDOABLE: Final = frozenset(
    {EffectState.SUCCEEDED, EffectState.ROLLING_BACK, EffectState.COMPENSATING}
)
"""States of compensable work that there is something left of to take back."""


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is there: its record settles the node."""

    row: EffectRow
    how: str


@dataclass(frozen=True, slots=True)
class Rethrow:
    """It failed in this run, which is a result like any other."""

    row: EffectRow


@dataclass(frozen=True, slots=True)
class Stop:
    """An operator must decide; `detail` says what is not known. `row` is the effect to be
    settled, None when there is no record of any."""

    detail: str
    row: EffectRow | None


@dataclass(frozen=True, slots=True)
class RollBack:
    """What an earlier run did is undone first, then it is judged again."""

    row: EffectRow


@dataclass(frozen=True, slots=True)
class Perform:
    """The command runs. `number`: it repeats that try, whose outcome nobody knows, under its
    own number and key."""

    reason: str
    number: int | None = None
    is_retry: bool = False
    """This run has just tried it, and that did not stand."""


Judgement = Done | Rethrow | Stop | RollBack | Perform


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the effects of one node.

    `own` is this run's newest effect, `other` the newest of another run that is open or was
    achieved since this run was created (`created_seq`, a journal position). `lost` tells what
    is left of effects that can no longer be read, when the node may be among them.
    """

    created_seq: int
    own: EffectRow | None
    other: EffectRow | None
    lost: str | None
    unrecorded: AttemptId | None
    """An attempt of which nothing but its begin is known: the store has lost its record, and that
    of whatever was done before it came to that."""
    retry_failed: bool
    is_under_way: bool = False
    """Whether the attempt of `other` has not settled: its claims hold this node back."""


def judge(
    node: Node,
    evidence: Evidence,
    key_over: Callable[[EffectRow], ActionKey],
    explain: Callable[[EffectRow], str],
    began: Callable[[EffectRow], str],
) -> Judgement:
    """What is to become of `node`. `key_over` gives its content key now as an earlier effect
    would see it, `explain` what differs from then in a few words, `began` when that began."""
    own, other = evidence.own, evidence.other
    if evidence.unrecorded is not None and not _takes_a_repeat(node):
        return Stop(
            f"was begun as attempt {evidence.unrecorded}, and its record is lost: it may have"
            " happened",
            None,
        )
    found = None if own is None else _judge_own(node, own, evidence.retry_failed, began)
    if found is not None and not isinstance(found, Perform | Stop):
        return found
    if other is not None and (own is None or other.begun_seq > own.begun_seq):
        theirs = _judge_other(node, other, evidence, key_over, explain, began)
        # What another run has achieved since answers what this one would ask, nothing less.
        if theirs is not None and (not isinstance(found, Stop) or isinstance(theirs, Done)):
            return theirs
    if found is not None:
        return found
    is_irreversible = node.tier is Tier.IRREVERSIBLE
    if evidence.lost is not None and is_irreversible and not _takes_a_repeat(node):
        return Stop(
            f"whether it was done before is not known: the record of effects is lost"
            f" ({evidence.lost})",
            None,
        )
    return Perform("has an effect")


def plan_identity(plan: Plan) -> str:
    """What makes two runs runs of the same plan, whatever is in it: its file's path within the
    root, or its name for one that came by standard input."""
    return identity_of(plan.file, plan.name)


def identity_of(plan_file: str, plan_name: str) -> str:
    """As `plan_identity`, from what a run keeps of its plan."""
    return plan_file if plan_file != "-" else f"- {plan_name}"


def may_be_done(row: EffectRow) -> bool:
    """Whether an operator can say that the effect stands: one whose files have been put back
    does not."""
    return row.state not in (
        EffectState.ROLLING_BACK,
        EffectState.COMPENSATING,
        EffectState.ROLLED_BACK,
    )


def may_be_not_done(row: EffectRow) -> bool:
    """Whether an operator can say that it is not done: what a compensable node wrote and still
    stands is taken back by a rewind, not by a word."""
    return not (row.tier is Tier.COMPENSABLE and stands(row))


def stands(row: EffectRow) -> bool:
    """Whether it is on record as done."""
    return row.is_sound and row.state is EffectState.SUCCEEDED


def question_about(row: EffectRow, node: Node | None) -> Question:
    """What an operator is asked about the effect, and which answers `settle` takes; `node` is that
    of the effect, where its plan is kept."""
    return Question(
        row.run,
        needs_value=node is not None and node.result is not None,
        node=row.node,
        may_be_done=may_be_done(row),
        may_be_not_done=may_be_not_done(row),
        stands=stands(row),
    )


def performs(node: Node) -> bool:
    """Whether the node has effects of its own, or its instances have: a group that bears the
    name of one that had does not."""
    return node.tier is not Tier.SEALED and (node.command is not None or node.kind is Kind.TEMPLATE)


def performers_of(plan: Plan) -> Callable[[NodeName], bool]:
    """Tells by its name whether the plan has a node with effects, or may come to have it, as an
    instance of a template."""
    nodes = [node for node in plan.nodes if performs(node)]
    names = {node.name for node in nodes}
    bases = {declared_name(node.name) for node in nodes if node.kind is Kind.TEMPLATE}
    return lambda name: name in names or declared_name(name) in bases


def find_vanished(rows: list[EffectRow], has: Callable[[NodeName], bool]) -> list[EffectRow]:
    """Open effects whose nodes the plan no longer has, one of each node. `rows` are in the order
    in which they began."""
    by_node: dict[NodeName, list[EffectRow]] = {}
    for row in reversed(rows):
        by_node.setdefault(row.node, []).append(row)
    speakers = [find_speaker(each) for each in by_node.values()]
    return [
        row
        for row in reversed(speakers)
        if row is not None and row.state in AWAITED and not _is_answered(row) and not has(row.node)
    ]


def _is_answered(row: EffectRow) -> bool:
    """Whether an operator has said that it is done, which is all that can be asked of it."""
    return row.state is EffectState.SUCCEEDED and row.end is None


def describe(row: EffectRow, began: str = "") -> str:
    """What is known of an effect, as a clause about its node; `began` tells when that was, as
    ` at 2025-01-31 12:00:00`, where it is known."""
    if not row.is_sound:
        return f"its record in the store is damaged (run {row.run})"
    match row.state:
        case EffectState.SUCCEEDED:
            return f"was done in run {row.run}"
        case EffectState.UNKNOWN | EffectState.INTENDED:
            if row.end is AttemptEnd.LOST or not row.detail:
                how = f"was started in run {row.run}{began}, then its assay was killed"
                # A rollback that could not be completed is told behind what recovery says itself.
                problem = row.detail.partition("; ")[2]
                return f"{how}: {_MAYBE}" + (f"; {problem}" if problem else "")
            return f"{row.detail} in run {row.run}: {_MAYBE}"
        case EffectState.ROLLING_BACK:
            return f"is being rolled back since run {row.run}"
        case EffectState.COMPENSATING:
            return f"its `undo` has yet to end well since run {row.run}" + (
                f": {row.detail}" if row.detail else ""
            )
        case EffectState.NOTHING:
            return f"did nothing in run {row.run}"
        case EffectState.ROLLED_BACK:
            return f"was rolled back in run {row.run}"
        case _:
            assert_never(row.state)


def _judge_own(
    node: Node, row: EffectRow, retry_failed: bool, began: Callable[[EffectRow], str]
) -> Judgement:
    failed = row.end in FAILURES
    if not row.is_sound:
        return Stop(describe(row), row)
    match row.state:
        case EffectState.SUCCEEDED:
            return Done(row, "done earlier in this run")
        case EffectState.ROLLING_BACK | EffectState.COMPENSATING:
            if failed and not retry_failed:
                return Rethrow(row)
            return RollBack(row)
        case EffectState.NOTHING | EffectState.ROLLED_BACK:
            return Rethrow(row) if failed and not retry_failed else Perform(_AGAIN)
        case EffectState.INTENDED | EffectState.UNKNOWN:
            if failed and not retry_failed:
                return Rethrow(row)
            if _repeats_safely(node, row):
                lost = row.end is None or row.end is AttemptEnd.LOST
                return Perform("repeats it under its key", row.number if lost else None)
            return Stop(describe(row, began(row)), row)
        case _:
            assert_never(row.state)


def _judge_other(
    node: Node,
    row: EffectRow,
    evidence: Evidence,
    key_over: Callable[[EffectRow], ActionKey],
    explain: Callable[[EffectRow], str],
    began: Callable[[EffectRow], str],
) -> Judgement | None:
    if not row.is_sound:
        return Stop(describe(row), row)
    match row.state:
        case EffectState.SUCCEEDED:
            if node.when is not When.SUCCESS:
                return None  # a handler runs on every occasion
            if row.accepts_any or key_over(row) in (row.content_key, row.accepted):
                is_new = row.settled_seq is not None and row.settled_seq > evidence.created_seq
                when = "meanwhile by" if is_new else "earlier in"
                return Done(row, f"done {when} run {row.run}")
            if not row.is_open:
                return None  # a later run of the plan asks for it anew
            if row.tier is Tier.COMPENSABLE:
                return RollBack(row)
            return Stop(f"{describe(row)} with other content: {explain(row)}", row)
        case EffectState.ROLLING_BACK | EffectState.COMPENSATING:
            return RollBack(row)
        case EffectState.NOTHING | EffectState.ROLLED_BACK:
            return None
        case EffectState.INTENDED | EffectState.UNKNOWN:
            if evidence.is_under_way:
                return Perform("has an effect")
            if _repeats_safely(node, row) and key_over(row) == row.content_key:
                return Perform("repeats it under its key")
            if _repeats_safely(node, row) and row.is_open:
                # The other side takes a repeat under the same key for the same request.
                text = f"{describe(row, began(row))}; its key is the same, but its content is not"
                return Stop(f"{text}: {explain(row)}", row)
            return Stop(describe(row, began(row)), row) if row.is_open else None
        case _:
            assert_never(row.state)


_MAYBE: Final = "its effect may or may not have happened"

_AGAIN: Final = "has an effect that did not stand"


def _takes_a_repeat(node: Node) -> bool:
    return node.tier is Tier.IRREVERSIBLE and node.idempotency_key is not None


def _repeats_safely(node: Node, row: EffectRow) -> bool:
    """Whether the world takes a repeat for the same effect: it is asked for under the same
    key."""
    key = node.idempotency_key
    return node.tier is Tier.IRREVERSIBLE and key is not None and key == row.idempotency_key
