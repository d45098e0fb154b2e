"""The coordinator: takes one run of a plan from its first pin to its last settlement.

The only writer of scheduling state. Workers carry out what blocks and report to the
inbox; every report opens an admission pass; there are no waves. One turn of the loop:

1. take every report and due timer that is there, settle what they end;
2. take up nodes that became ready: decide, settle what a recorded result serves;
3. admit queued nodes under their permits;
4. commit the intents of what starts, then start it;
5. commit settlements with their journal in groups, and tell (emit) what is committed.

A group waits at most `COMMIT_SECONDS`, and not at all where what starts builds on it. Nodes
that a recorded result serves are held back until something is dispatched or the run ends, so
that a run with nothing to do writes one record.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Final

from assay.engine.admission import demand_of
from assay.engine.bench import Assignment, Executed
from assay.engine.certify import write_certificate
from assay.engine.clock import Clock, SystemClock
from assay.engine.compensation import UNDO_SUFFIX
from assay.engine.decision import Decision, Gathered, Serve
from assay.engine.dispatch import Dispatch
from assay.engine.endings import Endings
from assay.engine.environment import Refused
from assay.engine.events import (
    CancelRequested,
    Event,
    RunLost,
    RunSettled,
)
from assay.engine.expansion import Expansion
from assay.engine.graph import Verdict
from assay.engine.journal import Fact
from assay.engine.ledger import HEARTBEAT_SECONDS
from assay.engine.observations import pins_as_json
from assay.engine.opening import Opening
from assay.engine.ownership import RunTaken, find_taker, note_loss
from assay.engine.performing import Performing
from assay.engine.restoring import RestoreJob, RestoreReport, Restoring
from assay.engine.resumption import Resumption
from assay.engine.run_request import Cancellation, RunRequest
from assay.engine.run_state import Queued, RunState
from assay.engine.runs import LostFence
from assay.engine.settlement import Settlement
from assay.engine.states import (
    AttemptEnd,
    AttemptId,
    NodeState,
    Outcome,
    RunStatus,
)
from assay.engine.store import Store
from assay.engine.undoing import Undoing, UndoJob, UndoReport
from assay.engine.workers import Crashed
from assay.plans.model import (
    Kind,
    Plan,
    RelPath,
    Tier,
    When,
)
from assay.plans.selection import Selection

COMMIT_SECONDS: Final = 0.05
"""The longest a settlement waits for its commit."""


LISTEN_SECONDS: Final = 0.3
"""How often a run looks whether another process has cancelled it."""


class _Wake:
    """A message that only ends the wait for messages."""


_WAKE: Final = _Wake()


class RunLoop:
    """One run. Build one, call `run` once, on one thread."""

    def __init__(self, run: RunState, cancellation: Cancellation) -> None:
        self._run = run
        self._settlement = Settlement(run)
        self._restoring = Restoring(run, self._settlement)
        self._undoing = Undoing(run, self._settlement, self._restoring)
        self._performing = Performing(run, self._settlement, self._restoring, self._undoing)
        self._dispatch = Dispatch(
            run, self._settlement, self._restoring, self._undoing, self._performing
        )
        self._endings = Endings(
            run, self._settlement, self._restoring, self._dispatch, self._performing
        )
        self._opening = Opening(run, self._performing, cancellation)
        self._expansion = Expansion(run, self._settlement, self._performing)
        self._cancellation = cancellation
        self._group_is_timed = False
        self._group_is_due = False
        self._heard_version = -1
        self._cancels_seen = 0
        self._has_stopped = False

    def run(self) -> RunSettled:
        """Carries the run to its end. Raises StoreError when the store or RunTaken when
        the run's ownership is lost; no process of the run is left behind either way."""
        began = self._run.clock.monotonic()
        resumption = self._run.resumption
        lease = None if resumption is None else resumption.lease
        if lease is None and self._run.store.recorded:
            lease = self._run.store.runs.take_lease(self._run.id)
        self._cancellation.wake = lambda: self._run.inbox.put(_WAKE)
        try:
            self._open()
            self._loop()
            return self._finish(began)
        except LostFence:
            self._end_processes()
            raise self._tell_loss() from None
        finally:
            self._end_processes()
            if lease is not None:
                lease.release(remove=True)

    def _end_processes(self) -> None:
        """Harmless twice. No undo is begun any more: whoever has the run now, or goes on with it,
        does that."""
        self._run.killing = True
        for attempt in (*self._dispatch.running, *self._undoing.find_undone()):
            self._run.bench.processes.kill(attempt)
            self._run.bench.processes.kill(AttemptId(f"{attempt}{UNDO_SUFFIX}"))
        self._run.workers.stop()
        self._run.bench.processes.close()
        self._run.bench.spares.remove_all()

    def _tell_loss(self) -> RunTaken:
        """Records that this owner has stopped, which is no part of what the run came to."""
        store, row = self._run.store, self._run.row
        taker = find_taker(store, row.id, row.fence)
        note_loss(store, row)
        if taker is None:
            self._run.emit(RunLost(row.id, None, None, None))
        else:
            self._run.emit(RunLost(row.id, taker.pid, taker.host, taker.since))
        return RunTaken(row.id, taker)

    def _open(self) -> None:
        # Before anything is waited for: that counts.
        deadline = self._run.request.deadline_seconds
        if deadline is not None:
            text = f"the deadline of {deadline:g}s has passed"
            left = max(0.0, deadline - self._run.request.waited_seconds)
            self._run.after(left, lambda: self._cancellation.request_once(text))
        self._opening.open(self._pause)
        self._run.observations.pin(self._run.graph.selected)
        self._expansion.tell_left_over()
        self._run.ready.extend(self._run.graph.ready_at_start())
        self._run.after(HEARTBEAT_SECONDS, self._beat)
        self._run.after(LISTEN_SECONDS, self._listen)

    def _finish(self, began: float) -> RunSettled:
        # While the run is still open: a crash in here is then somebody's to clean up after.
        self._run.bench.spares.remove_all()
        self._settlement.flush_held()
        outcomes = self._run.graph.outcomes
        counts: dict[str, int] = {}
        for outcome in outcomes.values():
            counts[outcome.value] = counts.get(outcome.value, 0) + 1
        status = self._settlement.judge(outcomes)
        outputs = self._settlement.project_outputs()
        settled = RunSettled(
            run=self._run.id,
            status=status,
            counts=counts,
            duration_seconds=self._run.clock.monotonic() - began,
            outputs=outputs,
            store_failed=self._run.store_failed,
            gave_up_waiting=self._run.gave_up_waiting,
        )
        self._run.ledger.note(
            Fact.RUN_SETTLED,
            data={
                "status": status.value,
                "counts": counts,
                "duration_seconds": round(settled.duration_seconds, 6),
                "outputs": outputs,
            },
        )
        self._performing.close_completed(status)
        self._run.ledger.settle(status, counts, self._run.plan.digest)
        certificate = self._certify() if status is RunStatus.COMPLETED else None
        if certificate is not None:
            address, blob = certificate
            self._run.ledger.write(
                lambda: self._run.store.agreements.put(address, self._run.id, blob)
            )
        self._run.ledger.announce(settled)
        self._run.ledger.commit()
        return settled

    def _loop(self) -> None:
        while True:
            self._heed_cancellation()
            if self._run.stopped_by is not None and not self._has_stopped:
                self._has_stopped = True
                self._settle_unstarted()
            self._take_up_ready()
            starting = self._dispatch.admit()
            self._commit(starting)
            self._undoing.release_parked()
            if len(self._run.graph.outcomes) == len(self._run.graph.selected) and not self._busy():
                return
            self._take_reports(waits=not self._run.ready)

    def _busy(self) -> bool:
        return bool(
            self._dispatch.running
            or self._restoring.restoring
            or self._restoring.to_restore
            or self._undoing.undoing
            or self._undoing.to_undo
        )

    def _take_reports(self, *, waits: bool) -> None:
        """Takes every report and every due timer; `waits` until there is one of either."""
        try:
            if not waits:
                message = self._run.inbox.get_nowait()
            elif self._run.timers:
                pause = max(0.0, self._run.timers[0][0] - self._run.clock.monotonic())
                message = self._run.inbox.get(timeout=pause)
            else:
                message = self._run.inbox.get()
            while True:
                self._take(message)
                message = self._run.inbox.get_nowait()
        except Empty:
            pass
        self._fire_timers()

    def _fire_timers(self) -> None:
        now = self._run.clock.monotonic()
        while self._run.timers and self._run.timers[0][0] <= now:
            heapq.heappop(self._run.timers)[2]()

    def _take(self, message: object) -> None:
        """Messages are a `_WAKE` or what `Workers` report."""
        match message:
            case _Wake():
                return
            case Crashed():
                raise message.error
            case Executed():
                self._run.workers.finished()
                self._endings.end_attempt(message)
            case RestoreReport():
                self._run.workers.finished()
                self._restoring.end(message)
            case UndoReport():
                self._run.workers.finished()
                self._undoing.end(message)
            case _:
                raise AssertionError(f"nobody sends {message!r}")

    def _pause(self, seconds: float) -> None:
        """Waits, but not past a message or a timer, and hears of a cancel."""
        if self._run.timers:
            seconds = min(seconds, self._run.timers[0][0] - self._run.clock.monotonic())
        with suppress(Empty):
            self._take(self._run.inbox.get(timeout=max(0.0, seconds)))
        self._fire_timers()
        self._hear(self._run.store.database.version())

    def _beat(self) -> None:
        self._run.ledger.heartbeat()
        self._run.after(HEARTBEAT_SECONDS, self._beat)

    def _listen(self) -> None:
        self._hear(self._run.store.database.version())
        self._run.after(LISTEN_SECONDS, self._listen)

    def _hear(self, version: int) -> None:
        """Hears of a cancel that another process has written to the store, and whether the run
        is still this one's; `version` is that of the store."""
        if version == self._heard_version:
            return
        runs = self._run.store.runs
        runs.check_fence(self._run.id, self._run.row.fence)
        asked = runs.cancel_of(self._run.id)
        # As long as the run around this one lives, it ends the node that this one is: to be
        # faster would look like a failure of that node.
        if asked is None or asked.around is None or not runs.is_alive(asked.around):
            self._heard_version = version
            if asked is not None:
                self._cancellation.request_once(f"cancelled by {asked.by}")

    def _hears(self) -> bool:
        """Whether the run is to stop, as the transaction that is open sees it."""
        self._hear(self._run.ledger.version)
        return len(self._cancellation.causes) > self._cancels_seen

    def _commit(self, starting: list[Assignment]) -> None:
        """Records the intents of what starts and starts it; commits the settlements that
        wait when their time has come, and tells them."""
        jobs: list[RestoreJob | UndoJob] = [
            *self._restoring.take_queued(),
            *self._undoing.take_queued(),
        ]
        if starting or jobs:
            self._run.dispatched = True
        if not self._run.dispatched and not self._cancels_seen:
            return  # held back: perhaps nothing will be dispatched at all
        is_whole = self._is_group_due(starting, has_jobs=bool(jobs))
        if is_whole:
            self._collect_group(pins=bool(starting or jobs))
        still_waiting = frozenset(conflict.attempt for conflict in self._dispatch.blocked.values())
        if starting or jobs or still_waiting != self._run.neighbours.waits:
            self._dispatch.begin(
                starting, jobs, still_waiting, is_whole=is_whole, is_cancelled=self._hears
            )
        elif is_whole:
            self._run.ledger.commit()
        begins_effect = any(assignment.effect is not None for assignment in starting)
        if self._settlement.has_held or self._run.ledger.has_pending or begins_effect:
            # An effect's process is to be found by whoever comes after a crash.
            self._time_group()

    def _is_group_due(self, starting: list[Assignment], *, has_jobs: bool) -> bool:
        """Whether what has settled is to be committed now, not some milliseconds later."""
        return (
            self._group_is_due
            or self._run.pins_due
            or has_jobs
            or self._run.stopping
            or self._run.stopped_by is not None
            or not (starting or self._busy())
            or any(
                assignment.effect is not None
                or self._settlement.is_uncommitted(assignment.index)
                or assignment.gathered.address in self._run.made
                for assignment in starting
            )
        )

    def _collect_group(self, *, pins: bool) -> None:
        """Everything that waits becomes part of the next commit."""
        self._group_is_due = False
        self._settlement.flush_held()
        if pins and self._run.pins_due:
            self._run.pins_due = False
            states, members = pins_as_json(self._run.observations.pins)
            surroundings = self._opening.describe_surroundings()
            self._run.ledger.note(
                Fact.SOURCES_PINNED,
                data={"paths": len(states), "patterns": len(members)},
                then=lambda _: self._run.store.pins.save(
                    self._run.id, states, members, surroundings
                ),
            )
        while self._dispatch.started_pids:
            attempt, pid = self._dispatch.started_pids.popleft()
            if attempt in self._dispatch.running:  # one that has ended needs no finding
                self._run.ledger.write(partial(self._run.store.attempts.record_pid, attempt, pid))

    def _time_group(self) -> None:
        if not self._group_is_timed:
            self._group_is_timed = True
            self._run.after(COMMIT_SECONDS, self._end_group)

    def _end_group(self) -> None:
        self._group_is_timed = False
        self._group_is_due = True

    def _take_up_ready(self) -> None:
        deadline = self._run.clock.monotonic() + COMMIT_SECONDS
        while self._run.ready:
            index = self._run.ready.popleft()
            if self._run.graph.state(index) is NodeState.READY:
                self._take_up(index)
            if self._run.clock.monotonic() > deadline:
                return

    def _take_up(self, index: int) -> None:
        node = self._run.plan.nodes[index]
        verdict = self._run.graph.verdict(index)
        if self._run.stopping and not self._settlement.may_start(index):
            self._settlement.settle_unstarted(index)
            return
        if verdict is Verdict.SKIP:
            self._settlement.skip(index)
            return
        if verdict is Verdict.NOT_NEEDED:
            self._settlement.settle(index, Outcome.SKIPPED, detail="not needed", not_needed=True)
            return
        if not self._settlement.may_start(index):
            self._settlement.settle_unstarted(index)
            return
        if node.kind is Kind.TEMPLATE and index not in self._run.instances:
            self._expansion.expand(index)
            return
        if node.command is None:
            self._run.observations.gather_outputs(index, self._run.instances.get(index, ()))
            self._settlement.settle_clean(index, None, None)
            return
        if self._undoing.is_in_the_way(index):
            self._undoing.park(index)
            return
        try:
            gathered = self._run.decider.gather(index)
            if node.tier is not Tier.SEALED:
                self._performing.take_up(index, gathered)
                return
            decision = self._decide(index, gathered)
        except Refused as error:
            self._settlement.settle(index, Outcome.FAILED, detail=str(error))
            return
        failed = self._run.find_failure(node.name, gathered.key)
        if failed is not None:
            self._settlement.settle(
                index,
                Outcome.FAILED,
                detail=failed,
                key=gathered.key,
            )
            return
        if isinstance(decision, Serve):
            if decision.differences:
                self._restoring.queue_restore(index, decision, gathered)
            else:
                self._settlement.serve(index, decision, gathered, restored=0)
            return
        if decision.expired is not None:
            self._settlement.mark_uncommitted(index)
            self._run.ledger.note(
                Fact.RESULT_EXPIRED,
                node.name,
                {"key": gathered.key, "recorded_by": decision.expired.run},
            )
        self._run.graph.move(index, NodeState.QUEUED)
        self._run.queued[index] = Queued(
            gathered, decision.reason, decision.seen, self._run.ledger.version
        )
        self._run.admission.enter(index, node.priority, demand_of(node))

    def _decide(self, index: int, gathered: Gathered) -> Decision:
        def is_rewritten_later(path: RelPath) -> bool:
            return self._restoring.is_rewritten_later(index, path)

        node, resumption = self._run.plan.nodes[index], self._run.resumption
        if (
            resumption is not None
            and node.when is When.SUCCESS
            and not self._run.observations.is_looked_at_again(node)
        ):
            settled = resumption.history.settled
            followed = self._run.graph.dependencies(index)
            # Other tools and variables by now make nothing of what is done undone.
            if node.name in settled and all(
                self._run.graph.outcomes[each] is Outcome.CLEAN for each in followed
            ):
                found = self._run.decider.replay(index, settled[node.name], is_rewritten_later)
                if found is not None:
                    return found
        return self._run.decider.decide(index, gathered, is_rewritten_later)

    def _heed_cancellation(self) -> None:
        asked = len(self._cancellation.causes)
        if asked == self._cancels_seen:
            return
        first = self._cancels_seen == 0
        self._cancels_seen = asked
        self._run.certifies = False
        immediate = not first or asked > 1
        cause = self._cancellation.causes[-1]
        self._run.ledger.note(
            Fact.CANCEL_REQUESTED,
            data={"signal": cause.signal, "immediate": immediate, "cause": cause.text},
        )
        running = self._dispatch.running
        awaited = (
            ()
            if immediate
            else tuple(each.node.name for each in running.values() if not _may_stop(each))
        )
        self._run.ledger.announce(
            CancelRequested(cause.signal, immediate, len(running), cause.text, awaited)
        )
        self._run.stopping = True
        if immediate:
            self._run.killing = True
            for effect in self._undoing.find_undone():
                self._run.bench.processes.kill(AttemptId(f"{effect}{UNDO_SUFFIX}"))
        for assignment in list(running.values()):
            if immediate:
                if assignment.interrupted is None:
                    assignment.interrupted_detail = "killed"
                    assignment.interrupted = AttemptEnd.CANCELLED
                self._run.bench.processes.kill(assignment.row.id)
                self._run.bench.processes.kill(AttemptId(f"{assignment.row.id}{UNDO_SUFFIX}"))
            elif _may_stop(assignment) and assignment.interrupted is None:
                self._dispatch.interrupt(assignment, AttemptEnd.CANCELLED, "cancelled")
        self._settle_unstarted()

    def _settle_unstarted(self) -> None:
        """Nothing new starts: what has not begun ends here, handlers aside."""
        under_way = {job.index for job in self._restoring.restoring.values()}
        under_way |= {job.index for job in self._undoing.undoing.values()}
        ended: set[int] = set()
        for index in self._run.graph.unsettled():
            state = self._run.graph.state(index)
            is_under_way = state is NodeState.RUNNING or index in under_way
            if is_under_way or self._settlement.may_start(index):
                continue
            ended.add(index)
            self._run.queued.pop(index, None)
            self._dispatch.blocked.pop(index, None)
            self._dispatch.awaits_host.discard(index)
            if state is NodeState.BACKING_OFF and not self._run.stopping:
                self._endings.give_up(index)
            else:
                self._settlement.settle_unstarted(index)
        self._run.admission.leave(ended)
        self._restoring.drop(ended)
        self._undoing.drop(ended)

    def _certify(self) -> tuple[str, bytes] | None:
        """What lets the next run with nothing to do say so at once."""
        basis = self._run.request.basis
        if not self._run.certifies or basis is None or not self._run.store.recorded:
            return None
        certificate = write_certificate(
            basis=basis,
            run=self._run.id,
            plan=self._run.plan,
            selected=self._run.graph.selected,
            counts={Outcome.CLEAN.value: len(self._run.graph.selected)},
            outputs=self._settlement.project_outputs(),
            expires_at=self._run.first_expiry,
            root=self._run.store.root,
            observations=self._run.observations,
            toolchain=self._run.toolchain,
            caller=self._run.caller,
            measurer=self._run.measurer,
            stats=self._run.store.stats,
            clock=self._run.clock,
        )
        return None if certificate is None else (basis.question.address, certificate.pack())


def _may_stop(assignment: Assignment) -> bool:
    """Whether a first cancel ends it."""
    return assignment.node.cancellable and assignment.node.when is not When.ALWAYS


def run_plan(
    store: Store,
    plan: Plan,
    selection: Selection,
    request: RunRequest,
    emit: Callable[[Event], None],
    cancellation: Cancellation,
    clock: Clock | None = None,
    resumption: Resumption | None = None,
) -> RunSettled:
    """Runs the selected nodes of `plan` to their end and returns how the run settled.

    With `resumption` it goes on with that run. Events arrive on the calling thread, after what
    they tell is committed. Raises UnsettledEffects and VanishedRuns before anything has begun.
    """
    clock = clock or SystemClock()
    run = RunState(store, plan, selection, request, emit, clock, resumption)
    return RunLoop(run, cancellation).run()
