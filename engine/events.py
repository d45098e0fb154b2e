"""Everything that can happen in a run, as one closed union of typed events.

The engine emits them after the facts they tell are committed; renderers consume them
exhaustively. No event knows how it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.engine.states import ActionKey, AttemptEnd, AttemptId, Outcome, RunId, RunStatus
from assay.plans.model import NodeName


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: RunId
    plan_name: str
    plan_digest: str
    selected: int
    """How many nodes the run selected; expansion may add more (`NodesAppended`)."""
    jobs: int
    resumed: bool = False
    """Whether it goes on with a run that was begun earlier."""


@dataclass(frozen=True, slots=True)
class NodesAppended:
    """A template expanded into a new generation."""

    template: NodeName
    nodes: tuple[NodeName, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class NodeStarted:
    node: NodeName
    attempt: AttemptId
    number: int
    """1 for the first try in this run."""
    log: str
    """Absolute path of the attempt's log."""
    reason: str
    """Why it executes, in a few words: `reads changed: src/a.c`, `no recorded result`."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt ended without success; `retry_in_seconds` tells of the next try."""

    node: NodeName
    attempt: AttemptId
    number: int
    attempts: int
    """The declared maximum."""
    end: AttemptEnd
    exit_code: int | None
    signal: int | None
    detail: str
    """One sentence: what went wrong, e.g. `timed out after 1s`."""
    log: str
    duration_seconds: float
    retry_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator is asked: whether the effect of this node in `run` happened."""

    run: RunId
    needs_value: bool = False
    """Whether the node's result has to be said with a yes."""
    node: NodeName | None = None
    """The node that is meant, where that is another one."""
    may_be_done: bool = True
    """False: only a no is left, once what lies elsewhere has been taken back by hand."""
    may_be_not_done: bool = True
    """False: only a yes is left, since what was done stands."""
    stands: bool = False
    """It did happen, with other content than is asked for now: a yes lets that stand, with the
    result it had; a no has it performed again."""


@dataclass(frozen=True, slots=True)
class NodeSettled:
    node: NodeName
    outcome: Outcome
    attempts: int
    action_key: ActionKey | None
    duration_seconds: float
    restored: int = 0
    """How many paths were put back from the cache."""
    detail: str = ""
    """Why it failed or was skipped; empty otherwise."""
    log: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    value: str | None = None
    """The node's result as canonical JSON, masked, when it declares one."""
    asks: Question | None = None
    """Set where an operator is to settle an effect: now, of an ambiguous node, or before another
    run goes on, of one that did not end well."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know that fails nothing."""

    text: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class WaitingForRun:
    """Another run executes something that overlaps."""

    node: NodeName
    run: RunId
    pid: int
    since: float
    """Seconds since the epoch when that run's attempt began."""
    what: str
    """The path, lock or resource both want."""
    host: str | None = None
    """That of the pid, where it is another one."""
    is_stopped: bool = False
    """Whether the assay of that run is stopped, and goes on when it is continued."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The run is to stop: `signal` by number, or None for another cause, which `cause`
    tells."""

    signal: int | None
    immediate: bool
    running: int
    """How many nodes run, those that are awaited included."""
    cause: str = "cancelled"
    awaited: tuple[NodeName, ...] = ()
    """Running nodes that this does not end: they may not be cancelled."""


@dataclass(frozen=True, slots=True)
class RunSettled:
    run: RunId
    status: RunStatus
    counts: dict[str, int] = field(default_factory=dict)
    """Outcome name to number of nodes; only outcomes that occurred."""
    duration_seconds: float = 0.0
    outputs: dict[str, str] = field(default_factory=dict)
    """The plan's `[outputs]` as canonical JSON texts."""
    agreed_with: RunId | None = None
    """Set when nothing was dispatched: the earlier run every node agreed with."""
    store_failed: bool = False
    """Whether a node could not run because the store cannot record it."""
    gave_up_waiting: bool = False
    """Whether it was cancelled while it waited for what a dead run had left running."""


@dataclass(frozen=True, slots=True)
class RunLost:
    """Another process has taken the run: this one has ended what it ran of it, and tells nothing
    more. By whom, and when (seconds since the epoch); None when that is not known."""

    run: RunId
    pid: int | None
    host: str | None
    since: float | None


Event = (
    RunStarted
    | NodesAppended
    | NodeStarted
    | AttemptFailed
    | NodeSettled
    | Warned
    | WaitingForRun
    | CancelRequested
    | RunSettled
    | RunLost
)
