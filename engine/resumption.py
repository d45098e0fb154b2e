"""Going on with a run that did not complete: taking it over, and what it saw and did so far.

A live owner is never robbed: on one kernel whoever holds the lease of a run owns it, whatever
pids show; an owner on another host is watched until its heartbeat moves, or has stood still for
so long that it counts as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from assay.engine import lock_files, recovery
from assay.engine.blobs import Blobs
from assay.engine.clock import Clock
from assay.engine.environment import CallerEnvironment
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.measuring import Measurer
from assay.engine.ownership import SETTLED, Purpose, note_claim
from assay.engine.pins import PinSet
from assay.engine.results import ResultRow
from assay.engine.run_request import RunRequest
from assay.engine.runs import LEASE_SECONDS, Lease, RunRow, describe_owner
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    Outcome,
    RunId,
    RunStatus,
    State,
)
from assay.engine.store import Store
from assay.engine.surroundings import describe_surroundings, find_differences
from assay.engine.toolchain import Toolchain
from assay.engine.version_probe import print_version
from assay.plans.canonical import JsonValue
from assay.plans.model import NodeName, Plan, RelPath
from assay.plans.selection import Selection, select

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_MOST_RUNS: Final = 1000
"""How far back `find_unfinished` looks."""


class OwnerLives(Exception):
    """The run is somebody's: it is not taken from them."""

    def __init__(self, row: RunRow, *, is_stopped: bool = False) -> None:
        text = f"run {row.id} is running: pid {row.owner.pid} on {row.owner.host}"
        if is_stopped:
            text += f", stopped: `kill -CONT {row.owner.pid}` lets it go on"
        super().__init__(text)
        self.row = row


class IsAround(Exception):
    """What is left of the run is not over before this process is, which is part of it."""

    def __init__(self, run: RunId) -> None:
        super().__init__(f"run {run} has not ended: this command is part of it")


class IsComplete(Exception):
    """There is nothing to go on with."""

    def __init__(self, row: RunRow) -> None:
        super().__init__(f"run {row.id} has completed")
        self.row = row


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run as it is taken over. Everything is that of its earlier owners; `row` is already
    this process's."""

    row: RunRow
    was: RunStatus
    lease: Lease
    created_seq: int
    pins: PinSet | None
    history: History
    retry_failed: bool = False
    accepted: tuple[tuple[str, str, str], ...] = ()
    """Changes of the surroundings that the caller accepts: (what, before, now)."""


@dataclass(slots=True)
class History:
    """What the journal tells of a run so far."""

    tags: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    jobs: int | None = None
    done: dict[NodeName, ResultRow] = field(default_factory=dict)
    """Results of successful attempts, the latest of each node."""
    failed: dict[NodeName, tuple[ActionKey, str]] = field(default_factory=dict)
    """Nodes that settled as failed after an attempt: their key then, and why."""
    settled: dict[NodeName, ActionKey | None] = field(default_factory=dict)
    """Nodes that are done, with their keys: what they depend on of this machine plays no part
    any more."""
    tries: dict[NodeName, int] = field(default_factory=dict)
    ordinal: int = 0
    """The highest number of an attempt of the run."""
    taken_back: set[AttemptId] = field(default_factory=set)
    """Attempts of earlier runs whose effects the run has taken back after its pins were kept."""
    expanded: dict[NodeName, tuple[NodeName, ...]] = field(default_factory=dict)
    """Template to its instances, in the order they expanded."""


def find_selection(plan: Plan, row: RunRow, history: History) -> Selection:
    """What the run had selected when it began: nodes of the first generation. Raises
    PlanError."""
    found = select(plan, row.targets, history.tags)
    bases = {plan.nodes[index].name: index for index in range(plan.base_size)}
    templates = {
        instance: bases[template]
        for template, instances in history.expanded.items()
        for instance in instances
    }
    chosen = {index for index in found.indices if index < plan.base_size}
    open_ends = [
        templates[plan.nodes[index].name] for index in found.indices if index >= plan.base_size
    ]
    while open_ends:
        index = open_ends.pop()
        if index < plan.base_size and index not in chosen:
            chosen.add(index)
            open_ends.extend(plan.dependencies[index])
    targets = tuple(index for index in found.targets if index < plan.base_size)
    return Selection(tuple(sorted(chosen)), targets, found.left_out)


def find_changes(
    store: Store,
    run: RunId,
    plan: Plan,
    selection: Selection,
    pins: PinSet | None,
    history: History,
    environ: Mapping[str, str],
    clock: Clock,
) -> list[tuple[str, str, str]]:
    """(what, before, now) for everything on this machine that the nodes yet to settle are
    bound to and that is another one now."""
    if pins is None:
        return []
    instances = {name for names in history.expanded.values() for name in names}
    done = {
        effect.node for effect in store.effects.of_run(run) if effect.state is EffectState.SUCCEEDED
    }
    nodes = [
        node
        for index, node in enumerate(plan.nodes)
        if (index in selection.indices or node.name in instances)
        and node.name not in history.settled
        and node.name not in done
    ]
    caller = CallerEnvironment(environ)
    toolchain = Toolchain(
        store.root,
        Measurer(store.root, store.stats, clock.now_ns),
        caller,
        lambda command, environ: print_version(command, store.root, environ),
    )
    now = describe_surroundings(nodes, toolchain, caller)
    return find_differences(pins.surroundings, now, nodes)


def find_unfinished(store: Store, plan: Plan, request: RunRequest) -> RunId | None:
    """The newest run of this plan that was asked for the same and did not complete; None when
    a later one did, or when its owner seems to live."""
    for row in store.runs.list(_MOST_RUNS, plan.file):
        is_same = (row.plan_name, row.targets, row.params) == (
            plan.name,
            request.targets,
            request.params,
        )
        if not is_same or read_history(store, row)[1].tags != request.tags:
            continue
        if row.status is RunStatus.COMPLETED or store.runs.seems_alive(row.id):
            return None
        return row.id
    return None


def may_be_gone_on_with(store: Store, row: RunRow) -> bool:
    """Whether `claim` would take the run, once what dead ones left has been dealt with, and its
    plan is there to go on with."""
    return (
        row.status is not RunStatus.COMPLETED
        and not store.runs.seems_alive(row.id)
        and store.runs.load_plan(row.plan_digest) is not None
    )


def wait_for_dead(
    store: Store,
    run: RunId,
    clock: Clock,
    tell: Callable[[str], None],
    pause: Callable[[float], None],
) -> None:
    """Deals with dead owners, until what the last one of `run`, or any that was taking back what
    `run` did, left to end by itself has ended. `pause` sleeps for seconds and may raise. Raises
    IsAround instead of waiting for oneself."""
    told: set[str] = set()
    seconds = _FIRST_PAUSE_SECONDS
    while True:
        found = recovery.recover(
            store,
            Measurer(store.root, store.stats, clock.now_ns),
            Blobs(store.cas, store.tmp),
            clock,
        )
        for text in found.told + recovery.describe_awaited(found):
            if text not in told:
                told.add(text)
                tell(text)
        awaited = [each for each in found.awaited if each.concerns(run)]
        if not awaited:
            return
        if any(each.is_around for each in awaited):
            raise IsAround(run)
        for each in awaited:
            _note_wait(store, run, each)
        pause(seconds)
        seconds = min(2 * seconds, _LONGEST_PAUSE_SECONDS)


def refuse_living(
    store: Store, run: RunId, tell: Callable[[str], None], pause: Callable[[float], None]
) -> None:
    """Returns once the run has no living owner. Raises OwnerLives when it has one: on this
    kernel at once, for one on another host, which is watched, when its heartbeat moves. A refusal
    is journalled once for each owner. `pause` sleeps for seconds and may raise."""
    row = first = store.runs.get(run)
    seconds = _FIRST_PAUSE_SECONDS
    while row.settled_at is None and store.runs.find_death(row) is None:
        has_moved = (row.fence, row.heartbeat_at) != (first.fence, first.heartbeat_at)
        if has_moved or not store.runs.is_remote(row):
            _note_refusal(store, row)
            raise OwnerLives(row, is_stopped=store.runs.is_stopped(row))
        if seconds == _FIRST_PAUSE_SECONDS:
            tell(
                f"run {run} is one of another host ({describe_owner(row)}): waiting up to"
                f" {LEASE_SECONDS:g}s for a sign of life"
            )
        pause(seconds)
        seconds = min(2 * seconds, _LONGEST_PAUSE_SECONDS)
        row = store.runs.get(run)


def claim(store: Store, run: RunId, parent: AttemptId | None) -> tuple[RunRow, Lease]:
    """The run, which has settled, owned by this process from now on, and nested in `parent`.
    Raises OwnerLives, IsComplete, LostFence."""
    try:
        lease = store.runs.take_lease(run)
    except lock_files.HeldElsewhere:
        found = store.runs.get(run)
        _note_refusal(store, found)
        raise OwnerLives(found, is_stopped=store.runs.is_stopped(found)) from None
    is_taken = False
    try:
        with store.transaction():
            found = store.runs.get(run)
            if found.status is RunStatus.COMPLETED:
                raise IsComplete(found)
            if found.settled_at is None:
                raise OwnerLives(found)  # of another host
            owner = this_owner()
            fence = store.runs.reopen(run, found.fence, owner, parent=parent)
            note_claim(store, found, fence, owner, SETTLED, Purpose.RESUME)
        is_taken = True
    finally:
        if not is_taken:
            lease.release(remove=True)
    return replace(found, fence=fence, owner=owner, parent_attempt=parent), lease


def _note_wait(store: Store, run: RunId, awaited: recovery.Awaited) -> None:
    """Once, whoever waits for it before the run is gone on with."""
    source = f"awaited:{run}:{awaited.attempt}"
    if store.journal.find(source, 1) is not None:
        return
    data: JsonValue = {
        "for": awaited.run,
        "attempt": awaited.attempt,
        "what": awaited.what,
        "pids": list(awaited.pids),
    }
    # Another one that waits may say it just now, of other processes.
    with store.transaction():
        if store.journal.find(source, 1) is None:
            store.journal.append(source, 1, Fact.WAITED, run=run, data=data)


def _note_refusal(store: Store, row: RunRow) -> None:
    store.journal.append(
        f"refusal:{row.id}:{row.fence}",
        1,
        Fact.CLAIM_REFUSED,
        run=row.id,
        data={"why": "its owner lives", "pid": row.owner.pid, "host": row.owner.host},
    )


def read_history(store: Store, row: RunRow) -> tuple[int, History]:
    """The journal position at which the run was created, and its history."""
    history = History()
    created = 0
    keys: dict[str, tuple[NodeName, ActionKey, str | None]] = {}
    for record in store.journal.read(run=row.id):
        told = cast("dict[str, Any]", record.data if isinstance(record.data, dict) else {})
        node = NodeName(record.node or "")
        match record.kind:
            case Fact.RUN_CREATED:
                created = record.seq
                history.tags = tuple(told.get("tags", ()))
                history.flags = frozenset(told.get("flags", ()))
                history.jobs = told.get("jobs")
            case Fact.ATTEMPT_BEGUN:
                keys[told["attempt"]] = (node, ActionKey(told["action_key"]), told.get("log"))
                history.tries[node] = max(history.tries.get(node, 0), told["number"])
            case Fact.ATTEMPT_SETTLED:
                _read_end(row, history, keys, record.seq, record.at, told)
            case Fact.NODES_SETTLED:
                for name, outcome, detail, key, *_ in told["outcomes"]:
                    _read_outcome(history, NodeName(name), outcome, detail, key)
            case Fact.SOURCES_PINNED:
                history.taken_back.clear()
            case Fact.ROLLED_BACK if not told["attempt"].startswith(f"{row.id}-"):
                history.taken_back.add(AttemptId(told["attempt"]))
            case Fact.GENERATION_APPENDED:
                history.expanded[node] = tuple(map(NodeName, told["nodes"]))
            case _:
                pass
    for attempt in store.attempts.of_run(row.id):
        history.ordinal = max(history.ordinal, int(attempt.id.rpartition("-")[2]))
    for effect in store.effects.of_run(row.id):
        history.ordinal = max(history.ordinal, int(effect.attempt.rpartition("-")[2]))
    return created, history


def _read_end(
    row: RunRow,
    history: History,
    keys: Mapping[str, tuple[NodeName, ActionKey, str | None]],
    seq: int,
    at: float,
    told: dict[str, Any],
) -> None:
    recorded = told.get("recorded")
    if told.get("end") != AttemptEnd.SUCCEEDED or recorded is None or "effect" in told:
        return
    begun = keys.get(told["attempt"])
    if begun is None:
        return  # a damaged journal has lost its begin
    node, key, log = begun
    history.done[node] = ResultRow(
        address=recorded["address"],
        action_key=key,
        node=node,
        plan_file=row.plan_file,
        run=row.id,
        journal_seq=seq,
        recorded_at=at,
        outputs=tuple((RelPath(path), State(state)) for path, state in recorded["outputs"]),
        value=recorded["value"],
        recipe="{}",
        evidence={},
        serves=False,
        expires_at=None,
        duration_seconds=told.get("duration_seconds", 0.0),
        log=log,
    )


def _read_outcome(
    history: History, node: NodeName, outcome: str, detail: str, key: str | None
) -> None:
    history.failed.pop(node, None)
    history.settled.pop(node, None)
    if outcome in (Outcome.BUILT, Outcome.CLEAN):
        history.settled[node] = None if key is None else ActionKey(key)
    elif outcome == Outcome.FAILED and key is not None:
        history.failed[node] = (ActionKey(key), detail)
