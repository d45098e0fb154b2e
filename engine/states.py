"""How nodes and runs stand: closed sets and the moves allowed between them.

Pure words. The run loop changes a node's state through `RuntimeGraph`, nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NewType

from assay.plans.model import Digest

RunId = NewType("RunId", str)
"""8 lower-case hex digits, unique in the store."""

AttemptId = NewType("AttemptId", str)
"""`RUN-N`, unique in the store; what `ASSAY_ATTEMPT` carries."""

ActionKey = NewType("ActionKey", str)
"""Digest of a node's declaration and the content of everything it consumes."""

State = NewType("State", str)
"""What stands at a path, as one comparable token:

    absent                  nothing
    file:DIGEST             a plain file with these bytes
    exec:DIGEST             the same with an executable bit
    folder                  a folder that is empty (only inside trees)
    link:DIGEST             a link whose target text has this digest and that resolves to
                            no file; inside a tree walk also a link to a folder
    link:DIGEST>file:DIGEST a link that resolves to a file (or >exec:DIGEST)
"""

ABSENT: Final = State("absent")
FOLDER: Final = State("folder")


def stored_digest(state: State) -> Digest | None:
    """The blob that brings `state` back: a file's bytes or a link's target text.

    None for `absent` and `folder`, which need none. What a link resolves to is no part
    of the link and is stored only where it is an output itself.
    """
    return Digest(state[5:69]) if state[4:5] == ":" else None


class Outcome(StrEnum):
    """How a node settled."""

    BUILT = "built"
    CLEAN = "clean"
    FAILED = "failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    CANCELLED = "cancelled"
    AMBIGUOUS = "ambiguous"


TAKEN_BACK: Final = "taken-back"
"""Stands for nodes in the counts of a run that was rewound behind them."""


class NodeState(StrEnum):
    """Progress of a node within a run, apart from how it ended (`Outcome`)."""

    WAITING = "waiting"
    """Something it follows has not settled."""
    READY = "ready"
    """Its action key can be computed."""
    QUEUED = "queued"
    """It must execute and waits for permits."""
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    """An attempt failed; the next one is due later."""
    SETTLED = "settled"


MOVES: Final[dict[NodeState, frozenset[NodeState]]] = {
    NodeState.WAITING: frozenset({NodeState.READY, NodeState.SETTLED}),
    NodeState.READY: frozenset({NodeState.QUEUED, NodeState.SETTLED, NodeState.WAITING}),
    NodeState.QUEUED: frozenset({NodeState.RUNNING, NodeState.SETTLED, NodeState.READY}),
    NodeState.RUNNING: frozenset({NodeState.BACKING_OFF, NodeState.SETTLED, NodeState.READY}),
    NodeState.BACKING_OFF: frozenset({NodeState.QUEUED, NodeState.SETTLED}),
    NodeState.SETTLED: frozenset(),
}


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The owner died; a later run found it so."""


class EffectState(StrEnum):
    """What is known of the effect of one attempt of a node that is not sealed."""

    INTENDED = "intended"
    """On disk before the command starts. With a dead owner: nobody has looked yet."""
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"
    """It may have happened, wholly or in part: only an operator can say."""
    NOTHING = "nothing"
    """It did not happen: the command never started, said so, or an operator does."""
    ROLLED_BACK = "rolled-back"
    """Its files are as they were before it, and its `undo` ended well."""
    ROLLING_BACK = "rolling-back"
    """Its files are being put back; whoever finds it so completes that."""
    COMPENSATING = "compensating"
    """Its files are as they were before it; its `undo` has yet to end well."""


NOTHING_LEFT: Final = frozenset({EffectState.NOTHING, EffectState.ROLLED_BACK})
"""States in which nothing of an effect is in the world."""


class AttemptEnd(StrEnum):
    """How one try of a node ended."""

    SUCCEEDED = "succeeded"
    EXITED = "exited"
    """A non-zero exit status."""
    SIGNALLED = "signalled"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    NOT_STARTED = "not-started"
    """The command could not be started: no such program, no such folder."""
    BROKE_BOUNDARY = "broke-boundary"
    """It ended with 0 but a declared write is missing, a declared removal still stands,
    or its result cannot be read."""
    LOST = "lost"
    """Its assay died; a later one found it so."""
