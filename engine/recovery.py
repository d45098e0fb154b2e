"""What to do about runs whose assay died: end what their sealed attempts left running, settle
those as lost, put back the inputs they may have half rewritten; wait until the processes of
all others are gone, take back what compensable ones did, and leave what irreversible ones did
unknown; then mark the runs interrupted.

Every step may be repeated: a recovery that is killed half-way is done again by the next
run. Runs with a living owner, a stopped one included, are never touched. Nothing here waits:
an attempt whose processes live on is told of and left as it is, and so is its run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from assay.engine import lock_files, orphans, preimages, temporary
from assay.engine.attempts import AttemptRow
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.clock import Clock
from assay.engine.compensation import UNDO_SUFFIX, Compensated, roll_back_files
from assay.engine.effects import EffectRow
from assay.engine.filesystem import FilesystemError
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.materialize import CannotRestore, Restored, restore
from assay.engine.measuring import Measurer
from assay.engine.orphans import Trace, end_survivors, find_all_survivors
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.runs import LostFence, RunRow
from assay.engine.states import (
    NOTHING_LEFT,
    AttemptEnd,
    AttemptId,
    EffectState,
    RunId,
    RunStatus,
    stored_digest,
)
from assay.engine.store import Store
from assay.plans.canonical import JsonValue
from assay.plans.entries import matches
from assay.plans.model import Background, Digest, Node, NodeName, RelPath, Tier
from assay.plans.stored import DamagedPlan, plan_from_bytes


@dataclass(frozen=True, slots=True)
class Awaited:
    """An attempt of a dead run whose processes are to end by themselves."""

    run: RunId
    attempt: AttemptId
    node: NodeName
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """Sentences that tell the user, and what is left for later."""

    told: tuple[str, ...] = ()
    awaited: tuple[Awaited, ...] = ()


def recover(store: Store, measurer: Measurer, blobs: Blobs, clock: Clock) -> Recovered:
    """Deals with every run whose owner is gone, as far as that can be done now.

    One process at a time: another that begins meanwhile waits, so that it neither looks at
    a half rewritten input nor puts one back that has gone on since.
    """
    if not _find_dead(store):
        return Recovered()
    told: list[str] = []
    awaited: list[Awaited] = []
    with lock_files.wait_for(os.path.join(store.tmp, "recovery.lock")):
        for run in _find_dead(store):
            recovery = _Recovery(store, measurer, blobs, clock, run)
            recovery.run()
            told += recovery.told
            awaited += recovery.awaited
    return Recovered(tuple(told), tuple(awaited))


def describe_awaited(found: Recovered) -> tuple[str, ...]:
    """Sentences on what is left to end by itself."""
    return tuple(
        f"`{each.node}` of run {each.run} still runs (pid {', '.join(map(str, each.pids)) or '?'})"
        f" although its assay is gone: waiting until it ends (`assay cancel {each.run}` ends it)"
        for each in found.awaited
    )


def _find_dead(store: Store) -> list[RunRow]:
    return [run for run in store.runs.unsettled() if not store.runs.is_alive(run.id)]


@dataclass(slots=True)
class _Lost:
    """What became of one attempt."""

    row: AttemptRow
    ended: tuple[int, ...] = ()
    put_back: tuple[RelPath, ...] = ()
    effect: EffectRow | None = None
    """As it is to be recorded."""
    compensated: Compensated | None = None


class _Recovery:
    """That of one dead run."""

    def __init__(
        self,
        store: Store,
        measurer: Measurer,
        blobs: Blobs,
        clock: Clock,
        run: RunRow,
    ) -> None:
        self._store = store
        self._measurer = measurer
        self._blobs = blobs
        self._clock = clock
        self._dead = run
        self.told: list[str] = []
        self.awaited: list[Awaited] = []

    def run(self) -> None:
        store = self._store
        every = store.attempts.of_run(self._dead.id)
        attempts = [row for row in every if row.end is None]
        effects = {row.attempt: row for row in store.effects.of_run(self._dead.id)}
        sealed = [row for row in attempts if row.id not in effects]
        lost = self._end_sealed(sealed)
        # Their processes are not ended, unless the run was cancelled: what they do to the world
        # would be cut in half.
        others = [row for row in attempts if row.id in effects]
        if others:
            self._end_overdue(others)
        waits = self._find_awaited(others)
        for row in attempts:
            if row.id in effects and row.id not in waits:
                lost.append(self._decide_effect(row, effects[row.id]))
        self.awaited.extend(waits.values())
        is_over = not waits
        if lost or is_over:
            self._record(lost, is_over=is_over)
        for each in lost:
            if each.effect is not None and each.effect.state in NOTHING_LEFT:
                preimages.drop(preimages.path_of(store.preimages, each.row.id))
        if not is_over:
            return
        for row in every:
            _remove_empty(store, row)
        # Somebody may go on with the run already, and hold that file.
        with suppress(lock_files.HeldElsewhere):
            store.runs.take_lease(self._dead.id).release(remove=True)
        self._tell(lost)

    def _end_sealed(self, rows: list[AttemptRow]) -> list[_Lost]:
        traces = [_trace_of(self._store, row) for row in rows]
        survivors = find_all_survivors(traces) if traces else {}
        if survivors:
            for trace in traces:
                end_survivors(trace.attempt, trace.lease, trace.session)
        found: list[_Lost] = []
        for row in rows:
            lost = _Lost(row, tuple(survivors.get(row.id, ())))
            found.append(lost)
            try:
                restored = _put_back(self._store, self._measurer, self._blobs, row)
            except (BlobMissing, BlobCorrupt, CannotRestore, FilesystemError) as error:
                self.told.append(
                    f"what `{row.node}` may have half rewritten cannot be put back: {error}"
                )
            else:
                lost.put_back = restored.put_back
                self.told.extend(
                    f"what stood at `{path}` is in {to}" for path, to in restored.trashed
                )
        return found

    def _end_overdue(self, rows: list[AttemptRow]) -> None:
        """Ends what its own assay would have ended by now: attempts past their timeout, and, once
        the run is cancelled, those that a cancel does not wait for; with their undos."""
        is_cancelled = self._store.runs.cancel_of(self._dead.id) is not None
        for row in rows:
            node = self._nodes.get(row.node)
            limit = None if node is None else node.timeout_seconds
            is_late = (
                limit is not None
                and node is not None
                and (self._clock.now() > row.began_at + limit + node.grace_seconds)
            )
            if is_late or (is_cancelled and (node is None or node.cancellable)):
                undo = AttemptId(f"{row.id}{UNDO_SUFFIX}")
                trace = _trace_of(self._store, row)
                end_survivors(trace.attempt, trace.lease, trace.session)
                end_survivors(undo, os.path.join(self._store.tmp, f"{undo}.lease"))

    def _is_kept(self, row: AttemptRow) -> bool:
        """Whether only the main process counts: what it leaves behind may live for ever."""
        node = self._nodes.get(row.node)
        return node is not None and node.background is Background.KEEP and row.pid is not None

    @cached_property
    def _nodes(self) -> dict[NodeName, Node]:
        """The run's nodes by name, as far as its plan can be read."""
        stored = self._store.runs.load_plan(self._dead.plan_digest)
        if stored is None:
            return {}
        try:
            plan = plan_from_bytes(stored, Digest(self._dead.plan_digest))
        except DamagedPlan:
            return {}
        return {node.name: node for node in plan.nodes}

    def _find_awaited(self, rows: list[AttemptRow]) -> dict[AttemptId, Awaited]:
        """The attempts, of these, whose processes or whose undo live on."""
        traces: list[Trace] = []
        for row in rows:
            undo = AttemptId(f"{row.id}{UNDO_SUFFIX}")
            traces.append(_trace_of(self._store, row))
            traces.append(Trace(undo, os.path.join(self._store.tmp, f"{undo}.lease")))
        living = find_all_survivors(traces) if traces else {}
        mine = orphans.ancestors(os.getpid())
        found: dict[AttemptId, Awaited] = {}
        for number, row in enumerate(rows):
            own = traces[2 * number : 2 * number + 2]
            pids = {pid for each in own for pid in living.get(each.attempt, ())} - mine
            if self._is_kept(row):
                pids &= {row.pid}
            # A lease that is held by what cannot be seen from here lives as well.
            if pids or any(lock_files.is_held(each.lease) for each in own):
                found[row.id] = Awaited(row.run, row.id, row.node, tuple(sorted(pids)))
        return found

    def _decide_effect(self, row: AttemptRow, effect: EffectRow) -> _Lost:
        lost = _Lost(row)
        how = "began, and how it ended is not on record"
        if effect.tier is Tier.COMPENSABLE and effect.is_sound:
            done = roll_back_files(
                effect, store=self._store, measurer=self._measurer, blobs=self._blobs
            )
            lost.compensated = done
            self.told.extend(f"`{row.node}`: {text}" for text in describe_changes(effect, done))
            detail = how if done.problem is None else f"{how}; {done.problem}"
            lost.effect = replace(effect, state=done.state, end=AttemptEnd.LOST, detail=detail)
        elif effect.is_sound:
            state = EffectState.UNKNOWN
            lost.effect = replace(effect, state=state, end=AttemptEnd.LOST, detail=how)
        return lost

    def _record(self, lost: list[_Lost], *, is_over: bool) -> None:
        # On another host another assay may be doing the same: the fence lets one of the two
        # record it.
        store, run = self._store, self._dead
        with suppress(LostFence), store.transaction():
            fence = store.runs.claim(run.id, run.fence, this_owner())
            source = f"recovery:{run.id}:{fence}"
            number = 0
            for each in lost:
                number += 1
                self._settle_attempt(source, number, each)
                if each.compensated is not None and each.effect is not None:
                    number += 1
                    store.journal.append(
                        source,
                        number,
                        Fact.ROLLED_BACK,
                        run=run.id,
                        node=each.row.node,
                        data=describe_fact(each.effect, each.compensated, "its assay ended first"),
                    )
            if not is_over:
                return
            status = RunStatus.INTERRUPTED
            if store.runs.cancel_of(run.id) is not None:
                status = RunStatus.CANCELLED
            store.runs.settle(run.id, fence, status, {})
            store.journal.append(
                source,
                0,
                Fact.RUN_SETTLED,
                run=run.id,
                data={"status": status.value, "by": os.getpid()},
            )

    def _settle_attempt(self, source: str, number: int, lost: _Lost) -> None:
        row = lost.row
        self._store.attempts.settle(
            row.id, AttemptEnd.LOST, None, None, "its assay ended first", self._clock.now()
        )
        fact: dict[str, JsonValue] = {
            "attempt": row.id,
            "number": row.number,
            "end": AttemptEnd.LOST.value,
            "ended": list(lost.ended),
            "put_back": list(lost.put_back),
        }
        if lost.effect is not None:
            fact["effect"] = lost.effect.state.value
        position = self._store.journal.append(
            source, number, Fact.ATTEMPT_SETTLED, run=row.run, node=row.node, data=fact
        )
        if lost.effect is not None:
            self._store.effects.end(replace(lost.effect, settled_seq=position))

    def _tell(self, lost: list[_Lost]) -> None:
        run = self._dead
        text = f"run {run.id} was interrupted: its assay (pid {run.owner.pid}) is gone"
        ended = sorted(pid for each in lost for pid in each.ended)
        if ended:
            text += f"; ended what it left running (pid {', '.join(map(str, ended))})"
        names = ", ".join(f"`{path}`" for each in lost for path in each.put_back)
        first = [f"put back what it may have half rewritten: {names}"] if names else []
        self.told[:0] = [text, *first]


def _put_back(store: Store, measurer: Measurer, blobs: Blobs, row: AttemptRow) -> Restored:
    """The files this attempt both read and wrote, as they stood before it. What stands
    there instead may be an edit of the user's since: it goes to the trash."""
    # What is not in the store was not kept: the command was not started, or it held a secret.
    kept = [
        (path, state)
        for path, state in row.before.items()
        if matches(row.claims.reads, path)
        and (digest := stored_digest(state)) is not None
        and blobs.has(digest)
    ]
    return restore(
        store.root,
        kept,
        (),
        measurer=measurer,
        blobs=blobs,
        staging=os.path.join(store.tmp, f"{row.id}.stage"),
        trash=os.path.join(store.trash, row.id),
        knows=lambda path, state: False,
    )


def _remove_empty(store: Store, row: AttemptRow) -> None:
    """Lease, private folder and a log that stayed empty: settled attempts leave theirs for
    the next ones of their run."""
    if row.temp:
        temporary.remove(row.temp)
        temporary.remove(row.temp + UNDO_SUFFIX)
    with suppress(FileNotFoundError):
        os.unlink(_lease_of(store, row))
    with suppress(FileNotFoundError):
        if row.log and not os.path.getsize(row.log):
            os.unlink(row.log)


def _trace_of(store: Store, row: AttemptRow) -> Trace:
    return Trace(row.id, _lease_of(store, row), row.pid)


def _lease_of(store: Store, row: AttemptRow) -> str:
    return os.path.join(store.tmp, f"{row.id}.lease")
