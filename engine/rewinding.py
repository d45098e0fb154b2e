"""Taking a run back to where one of its nodes had settled.

The run is owned while that lasts, as by whoever goes on with it, and left suspended: it can be
gone on with from there. What is begun is recorded first, so that a rewind that is killed is
completed by the next one, or by the run that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Final, cast

from assay.engine import lock_files, preimages
from assay.engine.attempts import row_of_restore
from assay.engine.blobs import Blobs
from assay.engine.claims import claims_of_undoing, find_conflict
from assay.engine.clock import Clock
from assay.engine.comparing import claims_of_effect
from assay.engine.compensation import UNDO_SUFFIX, Compensated, compensate
from assay.engine.effects import EffectRow, settled
from assay.engine.environment import CallerEnvironment, find_parent
from assay.engine.identity import this_owner
from assay.engine.intentions import UNDOABLE, describe, identity_of
from assay.engine.journal import Fact
from assay.engine.kept_plans import read_nodes
from assay.engine.measuring import Measurer
from assay.engine.ownership import SETTLED, Purpose, note_claim
from assay.engine.preimages import DamagedPreimage
from assay.engine.process import Processes
from assay.engine.resumption import OwnerLives, read_history
from assay.engine.rolling_back import describe_fact
from assay.engine.run_request import Cancellation
from assay.engine.runs import RunRow
from assay.engine.states import (
    NOTHING_LEFT,
    TAKEN_BACK,
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    Outcome,
    RunId,
    RunStatus,
)
from assay.engine.store import Store
from assay.engine.workers import Crashed, Workers
from assay.plans.canonical import JsonValue
from assay.plans.model import NodeName, Tier

_LOOK_AGAIN_SECONDS: Final = 0.1
"""A signal that comes just before a wait begins does not end that."""

_THERE: Final = frozenset({EffectState.SUCCEEDED, EffectState.UNKNOWN, EffectState.INTENDED})


class CannotRewind(Exception):
    """Nothing was touched. The text is one clause. Only a person can say how to go on where it
    `has_irreversible` effects in the way, or one that is `broken`: half there, perhaps."""

    def __init__(
        self, why: str, *, has_irreversible: bool = False, broken: EffectRow | None = None
    ) -> None:
        super().__init__(why)
        self.has_irreversible = has_irreversible
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Rewound:
    """What was taken back, in that order, and which irreversible effects were left."""

    done: tuple[tuple[EffectRow, Compensated], ...]
    left: tuple[EffectRow, ...]
    problem: str | None
    """Why it was not taken back to the end."""
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Nodes after it whose work was taken over from other runs, and how: that stands."""
    standing: tuple[EffectRow, ...] = ()
    """What was to be taken back and was not begun, since it was asked to stop: that stands."""


def rewind(
    store: Store,
    run: RunRow,
    to: NodeName,
    *,
    leave_effects: bool,
    caller: CallerEnvironment,
    by: str,
    clock: Clock,
    tell: Callable[[EffectRow, Compensated], None],
    cancellation: Cancellation,
    tell_stopping: Callable[[EffectRow], None],
) -> Rewound:
    """Takes back, the newest first, what compensable nodes of the run did after `to` had
    settled. Asked to stop it tells what it is about to complete, and begins nothing more; asked
    again it ends that undo at once. Raises CannotRewind and OwnerLives."""
    later = _find_later(store, run, to)
    left = [row for row in later if row.tier is Tier.IRREVERSIBLE and row.state in _THERE]
    if left and not leave_effects:
        names = ", ".join(f"`{row.node}`" for row in left)
        raise CannotRewind(f"{names} cannot be taken back", has_irreversible=True)
    broken = [r for r in later if r.tier is Tier.COMPENSABLE and r.state is EffectState.UNKNOWN]
    if broken:
        raise CannotRewind(
            f"what `{broken[0].node}` did in run {broken[0].run} is not known, so it cannot be"
            f" taken back: {broken[0].detail}",
            broken=broken[0],
        )
    undoes = [r for r in later if r.tier is Tier.COMPENSABLE and r.state in UNDOABLE]
    for row in undoes:
        _check_nothing_on_top(store, run, row)
    _check_preimages(store, undoes)
    try:
        lease = store.runs.take_lease(run.id)
    except lock_files.HeldElsewhere:
        raise OwnerLives(store.runs.get(run.id)) from None
    try:
        rewind = _Rewind(store, run, caller, clock, tell, cancellation, tell_stopping)
        done = rewind.carry_out(to, undoes, left, by)
        return replace(done, elsewhere=tuple(_find_taken_over(store, run)))
    finally:
        lease.release(remove=True)


def _check_nothing_on_top(store: Store, run: RunRow, row: EffectRow) -> None:
    """Raises CannotRewind where another run, of whichever plan, has done it again since, or
    changed the same files."""
    later = [
        other
        for other in store.effects.begun_after(row.begun_seq)
        if other.run != run.id and other.tier is Tier.COMPENSABLE and other.state in UNDOABLE
    ]
    for other in later:
        if (other.plan_file, other.node) == (row.plan_file, row.node):
            raise CannotRewind(
                f"run {other.run} has done `{row.node}` again since: rewind that first"
            )
    claims = claims_of_effect(store, row)
    for other in later:
        path = find_conflict(claims, claims_of_effect(store, other))
        if path is not None:
            raise CannotRewind(
                f"`{other.node}` of run {other.run} has changed `{path}` since: rewind that first"
            )


def _find_later(store: Store, run: RunRow, to: NodeName) -> list[EffectRow]:
    """The run's effects that began after `to` had settled, the newest first."""
    rows = store.effects.of_run(run.id)
    own = [row for row in rows if row.node == to]
    if own and own[-1].state is not EffectState.SUCCEEDED:
        raise CannotRewind(f"`{to}` is not done: it {describe(own[-1])}")
    position = (own[-1].settled_seq or 0) if own else _find_settlement(store, run, to)
    return [row for row in reversed(rows) if row.begun_seq > position]


def _find_settlement(store: Store, run: RunRow, to: NodeName) -> int:
    """The journal position at which `to` came to be done: that it was served again when the run
    was gone on with makes it no later. Raises CannotRewind."""
    position: int | None = None
    outcome = ""
    for seq, each in _read_outcomes(store, run):
        if each[0] == to:
            outcome = each[1]
            if outcome == Outcome.BUILT or (outcome == Outcome.CLEAN and position is None):
                position = seq
    if position is not None and outcome in (Outcome.BUILT, Outcome.CLEAN):
        return position
    if outcome:
        raise CannotRewind(f"`{to}` did not settle well in run {run.id}: {outcome}")
    nodes = read_nodes(store, run)
    if nodes and to not in nodes:
        raise CannotRewind(f"run {run.id} has no node `{to}`")
    raise CannotRewind(f"`{to}` has not settled in run {run.id}")


def _read_outcomes(store: Store, run: RunRow) -> Iterator[tuple[int, list[str]]]:
    """How its nodes settled, as (position, [node, outcome, detail, ...]), in that order."""
    for record in store.journal.read(run=run.id):
        if record.kind == Fact.NODES_SETTLED:
            for each in cast("dict[str, list[list[str]]]", record.data)["outcomes"]:
                yield record.seq, each


def _find_taken_over(store: Store, run: RunRow) -> Iterator[tuple[str, str]]:
    """Nodes that settled by what other runs had done."""
    found: dict[str, str] = {}
    for _, each in _read_outcomes(store, run):
        found[each[0]] = each[2]
    for name, detail in found.items():
        if detail.startswith(("done earlier in run ", "done meanwhile by run ")):
            yield name, detail


def _find_effects_taken_over(store: Store, run: RunRow) -> Iterator[EffectRow]:
    for name, detail in _find_taken_over(store, run):
        # `done earlier in run RUN, restored 1`
        taken_from = RunId(detail.partition(",")[0].rpartition(" ")[2])
        for row in store.effects.of_run(taken_from):
            if row.node == name:
                yield row


def _check_preimages(store: Store, undoes: list[EffectRow]) -> None:
    """Raises CannotRewind before anything has changed."""
    for row in undoes:
        if row.state is EffectState.COMPENSATING:
            continue
        try:
            preimage = preimages.load(preimages.path_of(store.preimages, row.attempt))
        except DamagedPreimage as error:
            raise CannotRewind(f"`{row.node}` cannot be taken back: {error}") from None
        if preimage is None:
            raise CannotRewind(
                f"`{row.node}` cannot be taken back: how its files were before is not kept any more"
            )


class _Rewind:
    """The part that changes something."""

    def __init__(
        self,
        store: Store,
        run: RunRow,
        caller: CallerEnvironment,
        clock: Clock,
        tell: Callable[[EffectRow, Compensated], None],
        cancellation: Cancellation,
        tell_stopping: Callable[[EffectRow], None],
    ) -> None:
        self._store = store
        self._run = run
        self._caller = caller
        self._clock = clock
        self._tell = tell
        self._cancellation = cancellation
        self._tell_stopping = tell_stopping
        self._inbox: SimpleQueue[object] = SimpleQueue()
        self._workers = Workers(1, self._inbox)
        self._processes = Processes()
        self._fence = 0
        self._number = 0

    def carry_out(
        self, to: NodeName, undoes: list[EffectRow], left: list[EffectRow], by: str
    ) -> Rewound:
        attempt = self._begin(to, undoes, left, by)
        done: list[tuple[EffectRow, Compensated]] = []
        problem: str | None = None
        standing: list[EffectRow] = []
        self._cancellation.wake = lambda: self._inbox.put(None)
        try:
            for number, row in enumerate(undoes):
                if self._cancellation.causes:
                    standing = undoes[number:]
                    break
                if row.state is EffectState.SUCCEEDED:
                    row = replace(row, state=EffectState.ROLLING_BACK, is_open=True)
                compensated = self._take_back(row)
                self._record(row, compensated)
                done.append((row, compensated))
                self._tell(row, compensated)
                problem = compensated.problem
                if problem is not None:
                    standing = undoes[number + 1 :]
                    break
        finally:
            self._workers.stop()
            self._processes.close()
        self._end(attempt, done, standing)
        return Rewound(tuple(done), tuple(left), problem, standing=tuple(standing))

    def _take_back(self, row: EffectRow) -> Compensated:
        """On another thread, so that this one, which signals come to, can end the undo."""
        self._workers.submit(
            lambda: compensate(
                row,
                store=self._store,
                measurer=Measurer(self._store.root, self._store.stats, self._clock.now_ns),
                blobs=Blobs(self._store.cas, self._store.tmp),
                processes=self._processes,
                caller=self._caller,
                is_hurried=lambda: len(self._cancellation.causes) > 1,
            )
        )
        undo = AttemptId(f"{row.attempt}{UNDO_SUFFIX}")
        message: object = None
        told = False
        while message is None:
            causes = self._cancellation.causes
            is_hurried = len(causes) > 1
            if causes and not told:
                told = True
                self._tell_stopping(row)
            if is_hurried:
                # Again and again: it may be about to start.
                self._processes.kill(undo)
            with suppress(Empty):
                message = self._inbox.get(timeout=_LOOK_AGAIN_SECONDS)
        self._workers.finished()
        if isinstance(message, Crashed):
            raise message.error
        assert isinstance(message, Compensated)
        return message

    def _begin(
        self, to: NodeName, undoes: list[EffectRow], left: list[EffectRow], by: str
    ) -> AttemptId:
        """Owns the run, claims what it takes back, and records that it is about to."""
        store, run = self._store, self._run
        _, history = read_history(store, run)
        attempt = AttemptId(f"{run.id}-{history.ordinal + 1}")
        claims = claims_of_undoing(
            ((row, claims_of_effect(store, row)) for row in undoes), run.plan_file
        )
        mine = identity_of(run.plan_file, run.plan_name)
        with store.transaction():
            for each in store.runs.unsettled():
                is_same = identity_of(each.plan_file, each.plan_name) == mine
                if is_same and each.id != run.id and store.runs.is_alive(each.id):
                    raise CannotRewind(f"run {each.id} of the same plan is on, and builds on it")
            for other in store.attempts.running(excluding_run=run.id):
                what = find_conflict(claims, other.claims)
                if what is not None:
                    raise CannotRewind(f"run {other.run} works on `{what}` just now")
            former, owner = store.runs.get(run.id), this_owner()
            self._fence = store.runs.reopen(
                run.id,
                former.fence,
                owner,
                parent=find_parent(self._caller.variables),
                even_completed=True,
            )
            note_claim(store, former, self._fence, owner, SETTLED, Purpose.REWIND)
            self._append(
                Fact.REWOUND,
                None,
                {
                    "to": to,
                    "by": by,
                    "rolled_back": [row.attempt for row in undoes],
                    "left": [row.attempt for row in left],
                },
            )
            # The run is not complete any more: what it did, or has taken over, is asked for again.
            for row in (*store.effects.of_run(run.id), *_find_effects_taken_over(store, run)):
                if row.is_sound and row.state in _THERE:
                    store.effects.put(replace(row, is_open=True))
            for row in undoes:
                if row.state is EffectState.SUCCEEDED:
                    begun = replace(row, state=EffectState.ROLLING_BACK, is_open=True)
                    store.effects.put(begun)
            store.attempts.begin(
                row_of_restore(attempt, run.id, to, ActionKey(""), claims, self._clock.now())
            )
        return attempt

    def _record(self, row: EffectRow, done: Compensated) -> None:
        with self._store.transaction():
            self._store.runs.check_fence(self._run.id, self._fence)
            position = self._append(
                Fact.ROLLED_BACK, row.node, describe_fact(row, done, "the run was rewound")
            )
            detail = done.problem or row.detail
            self._store.effects.put(settled(row, done.state, position, detail=detail, end=None))
        if done.state is EffectState.ROLLED_BACK:
            preimages.drop(preimages.path_of(self._store.preimages, row.attempt))

    def _end(
        self,
        attempt: AttemptId,
        done: list[tuple[EffectRow, Compensated]],
        standing: list[EffectRow],
    ) -> None:
        store = self._store
        counts = self._count([row.node for row, each in done if each.state in NOTHING_LEFT])
        with store.transaction():
            for row in standing:
                store.effects.put(replace(row, is_open=True))
            store.attempts.settle(
                attempt, AttemptEnd.SUCCEEDED, None, None, "rewound", self._clock.now()
            )
            status = RunStatus.SUSPENDED
            store.runs.settle(self._run.id, self._fence, status, counts)
            fact: JsonValue = {"status": status.value, "counts": dict(counts)}
            self._append(Fact.RUN_SETTLED, None, fact)

    def _count(self, nodes: list[NodeName]) -> Mapping[str, int]:
        """How many nodes of the run came to what, now that what these did is taken back."""
        outcomes = {each[0]: each[1] for _, each in _read_outcomes(self._store, self._run)}
        counts = dict(self._run.counts)
        for node in nodes:
            outcome = outcomes.get(node, "")
            if counts.get(outcome):
                counts[outcome] -= 1
                counts[TAKEN_BACK] = counts.get(TAKEN_BACK, 0) + 1
        return {outcome: number for outcome, number in counts.items() if number}

    def _append(self, kind: Fact, node: NodeName | None, data: JsonValue) -> int:
        self._number += 1
        source = f"rewind:{self._run.id}:{self._fence}"
        return self._store.journal.append(
            source, self._number, kind, run=self._run.id, node=node, data=data
        )
