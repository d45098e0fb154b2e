"""From admitted to started: permits, the machine's resources, claims against other runs, and
the hand-over to a worker.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from assay.engine import preimages, recovery
from assay.engine.admission import demand_of
from assay.engine.attempt import carry_out, plan_attempt, prepare_attempt
from assay.engine.attempts import AttemptRow
from assay.engine.bench import Assignment
from assay.engine.decision import Gathered
from assay.engine.events import (
    NodeStarted,
    WaitingForRun,
)
from assay.engine.filesystem import FilesystemError
from assay.engine.host_resources import Held, HostResources, UnsafeFolder, folder_for
from assay.engine.intentions import Perform
from assay.engine.journal import Fact
from assay.engine.measuring import Unmeasurable
from assay.engine.neighbours import Blocked
from assay.engine.performing import Performing
from assay.engine.restoring import RestoreJob, Restoring
from assay.engine.run_state import RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    NOTHING_LEFT,
    AttemptEnd,
    AttemptId,
    NodeState,
    Outcome,
    RunId,
)
from assay.engine.undoing import Undoing, UndoJob
from assay.plans.canonical import JsonValue
from assay.plans.model import RelPath, ResourceScope, Tier

POLL_SECONDS: Final = 0.1
"""How often a node that waits for another run looks again."""


class Dispatch:
    """Starts what was admitted; holds back what must wait for others."""

    def __init__(
        self,
        run: RunState,
        settlement: Settlement,
        restoring: Restoring,
        undoing: Undoing,
        performing: Performing,
    ) -> None:
        self._run = run
        self._settlement = settlement
        self._restoring = restoring
        self._undoing = undoing
        self._performing = performing
        self.running: dict[AttemptId, Assignment] = {}
        self.started_pids: deque[tuple[AttemptId, int]] = deque()
        """Appended to by workers."""
        self.blocked: dict[int, Blocked] = {}
        self.awaits_host: set[int] = set()
        self._announced_waits: set[tuple[int, AttemptId]] = set()
        self._told_awaited: set[str] = set()
        self._told_stopped: set[RunId] = set()
        self._polls = False
        self._others: list[AttemptRow] = []
        """Running attempts of other runs, as of the last look."""
        self._others_version = -1
        self._host = HostResources(folder_for(run.request.environ, os.getuid()))
        self._host_held: dict[AttemptId, list[Held]] = {}
        self._host_amounts = {
            resource.name: resource.amount
            for resource in run.plan.resources
            if resource.scope is ResourceScope.HOST
        }

    def admit(self) -> list[Assignment]:
        """One admission pass; permits of what cannot start after all are given back."""
        starting: list[Assignment] = []
        for index in list(self._run.admission.admit()):
            assignment = self._plan_start(index)
            if assignment is None:
                self._run.admission.give_back(demand_of(self._run.plan.nodes[index]))
            else:
                starting.append(assignment)
        return starting

    def _plan_start(self, index: int) -> Assignment | None:
        node = self._run.plan.nodes[index]
        queued = self._run.queued[index]
        itself = self._run.neighbours.find_self(node.name)
        if itself is not None:
            self._restoring.fail_queued(
                index,
                f"runs inside itself: attempt {itself.id} of run {itself.run} started this run",
            )
            return None
        if self._undoing.is_in_the_way(index):
            del self._run.queued[index]
            if not self._run.graph.is_settled(index):
                self._run.graph.move(index, NodeState.READY)
            self._undoing.park(index)
            return None
        if not self._restoring.inputs_stand(index, queued.gathered):
            return None
        is_effect = node.tier is not Tier.SEALED
        if (is_effect or self._run.is_resumed) and not self._sources_stand(index, queued.gathered):
            return None
        self._run.attempt_ordinal += 1
        number = self._run.tries.get(index, 0) + 1
        effect = None
        if is_effect:
            if isinstance(queued.judgement, Perform) and queued.judgement.number is not None:
                number = queued.judgement.number
                # It is made again, so it is this run's own try.
                earlier = self._run.earlier_tries
                earlier[index] = min(earlier.get(index, 0), number - 1)
            effect = self._performing.plan_effect(index, queued.gathered, number)
        try:
            assignment = plan_attempt(
                self._run.bench,
                self._run.id,
                self._run.attempt_ordinal,
                number,
                index,
                node,
                queued.gathered,
                self._find_unfinished(index),
                self._run.clock.now(),
                partial(self._run.observations.is_of_another, index),
                effect,
                self._run.plan_workplace(index),
            )
        except Unmeasurable as error:
            self._restoring.fail_queued(index, f"writes `{error.path}`, which {error.reason}")
            return None
        if not self._take_host_resources(index, assignment):
            return None
        return assignment

    def _sources_stand(self, index: int, gathered: Gathered) -> bool:
        """Whether the sources are as the run saw them; if not, the node ends here."""
        path = self._performing.find_moved_source(gathered)
        if path is None:
            return True
        if self._run.plan.nodes[index].tier is Tier.SEALED:
            self._restoring.fail_queued(
                index, f"`{path}` changed since the run began: `assay run` observes afresh"
            )
        else:
            self._performing.stop_over_source(index, path)
        return False

    def _find_unfinished(self, index: int) -> AttemptRow | None:
        """The node's try before this one when that did not succeed, in whichever run."""
        node = self._run.plan.nodes[index]
        if not node.clean:
            return None
        if index in self._run.tries:
            self._run.ledger.commit()  # how this run's own try ended
        last = self._run.store.attempts.last_of(node.name, self._run.plan.file)
        if last is None or last.end is AttemptEnd.SUCCEEDED:
            return None
        effect = None if node.tier is Tier.SEALED else self._run.store.effects.get(last.id)
        has_left = effect is None or effect.state not in NOTHING_LEFT
        return last if has_left else None

    def _take_host_resources(self, index: int, assignment: Assignment) -> bool:
        held: list[Held] = []
        for name, amount in assignment.node.resources:
            total = self._host_amounts.get(name)
            if total is None:
                continue
            try:
                taken = self._host.try_take(name, amount, total)
            except (UnsafeFolder, OSError) as error:
                self._restoring.fail_queued(
                    index, f"needs the resource `{name}` of this machine: {error}"
                )
                taken = None
            else:
                if taken is None:
                    del self._run.queued[index]
                    self.awaits_host.add(index)
                    if not self._run.graph.is_settled(index):
                        self._run.graph.move(index, NodeState.READY)
                    self._poll_later()
            if taken is None:
                for other in held:
                    other.release()
                return False
            held.append(taken)
        if held:
            self._host_held[assignment.row.id] = held
        return True

    def release_host(self, attempt: AttemptId) -> None:
        for held in self._host_held.pop(attempt, ()):
            held.release()

    def begin(
        self,
        starting: list[Assignment],
        jobs: list[RestoreJob | UndoJob],
        still_waiting: frozenset[AttemptId],
        *,
        is_whole: bool,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """Claims, then starts, as far as no other run is in the way. `is_cancelled` is asked
        inside the transaction."""
        begun: list[Assignment] = []
        taken_up: list[RestoreJob | UndoJob] = []
        blocked: list[tuple[int, Assignment | RestoreJob | UndoJob, Blocked]] = []
        overtaken: list[Assignment] = []
        refused: list[Assignment] = []
        outdated: list[UndoJob] = []

        def begin() -> None:
            for outcome in (begun, taken_up, blocked, overtaken, refused, outdated):
                outcome.clear()
            others = self._look_at_others() if starting or jobs else []
            stops = is_cancelled()
            for assignment in starting:
                conflict = self._run.neighbours.find_blocking(assignment.row.claims, others)
                if stops or (conflict is None and self._is_overtaken(assignment)):
                    overtaken.append(assignment)
                elif conflict is None and assignment.effect is None:
                    self._run.store.attempts.begin(assignment.row, self._note_begun(assignment))
                    begun.append(assignment)
                elif conflict is None and not self._run.store.recorded:
                    refused.append(assignment)
                elif conflict is None:
                    position = self._note_begun(assignment)
                    self._run.store.attempts.begin(assignment.row, position)
                    self._performing.begin(assignment, position)
                    begun.append(assignment)
                else:
                    blocked.append((assignment.index, assignment, conflict))
            for job in jobs:
                conflict = self._run.neighbours.find_blocking(job.row.claims, others)
                if conflict is not None:
                    blocked.append((job.index, job, conflict))
                elif isinstance(job, RestoreJob):
                    self._run.store.attempts.begin(job.row)
                    taken_up.append(job)
                elif self._undoing.still_stands(job):
                    self._undoing.begin(job)
                    taken_up.append(job)
                else:
                    outdated.append(job)
            waits = {conflict.attempt for _, _, conflict in blocked}
            self._run.neighbours.wait_for(frozenset(waits | still_waiting))

        if is_whole:
            self._run.ledger.commit(begin)
        else:
            self._run.ledger.commit_ahead(begin)
        for index, item, conflict in blocked:
            self.hold_for_other(index, item, conflict)
        for assignment in overtaken:
            self.decide_again(assignment)
        for assignment in refused:
            self._let_go(assignment)
            self._performing.refuse(assignment.index)
        for undo in outdated:
            self._undoing.judge_again(undo)
        for assignment in begun:
            self.start(assignment)
        for job in taken_up:
            if isinstance(job, RestoreJob):
                self._restoring.start(job)
            else:
                self._undoing.start(job)

    def _look_at_others(self) -> list[AttemptRow]:
        """Running attempts of other runs; inside a transaction. None have appeared as long
        as nobody else has written to the store."""
        if self._others or self._others_version != self._run.ledger.version:
            self._others = self._run.neighbours.others()
            self._others_version = self._run.ledger.version
        return self._others

    def _is_overtaken(self, assignment: Assignment) -> bool:
        """Whether another run, or another node of this one that is made of the same, has recorded
        a result since it was decided that this one must execute."""
        if assignment.effect is not None:
            return not self._performing.still_stands(assignment)
        queued = self._run.queued[assignment.index]
        address = assignment.gathered.address
        is_untouched = queued.version == self._run.ledger.version and address not in self._run.made
        if queued.seen is None or is_untouched:
            return False
        return self._run.store.results.find_standing(address) not in {0, queued.seen}

    def _note_begun(self, assignment: Assignment) -> int:
        row, effect = assignment.row, assignment.effect
        more: dict[str, JsonValue] = {}
        if effect is not None:
            more = {
                "tier": effect.tier.value,
                "content_key": effect.content_key,
                "idempotency_key": effect.idempotency_key,
            }
            if effect.tier is Tier.COMPENSABLE:
                more["preimage"] = preimages.path_of(self._run.store.preimages, row.id)
        return self._run.ledger.append_now(
            Fact.ATTEMPT_BEGUN,
            assignment.node.name,
            {
                **more,
                "attempt": row.id,
                "number": row.number,
                "action_key": row.action_key,
                "reason": self._run.queued[assignment.index].reason,
                "argv": list(assignment.spawn.argv),
                "workdir": assignment.node.workdir,
                "log": row.log,
                "temp": row.temp,
            },
        )

    def start(self, assignment: Assignment) -> None:
        """The intent is committed: clear the way, tell, and hand over to a worker."""
        index, node, row = assignment.index, assignment.node, assignment.row
        queued = self._run.queued.pop(index)
        if self._run.graph.is_settled(index):
            self._run.rerunning.add(index)
        else:
            self._run.graph.move(index, NodeState.RUNNING)
        self._run.tries[index] = row.number
        self._run.retrying.discard(index)
        try:
            trashed = (
                {}  # once how everything stands is kept, which may take long
                if node.tier is Tier.COMPENSABLE
                else prepare_attempt(self._run.bench, assignment, self._run.store.results.knows)
            )
        except FilesystemError as error:
            self._run.warn(f"its old outputs could not be cleared: {error}", node.name)
            trashed = {}
        self.tell_cleared(assignment, trashed)
        self.running[row.id] = assignment
        self._run.emit(
            NodeStarted(
                node=node.name,
                attempt=row.id,
                number=row.number,
                log=row.log,
                reason=queued.reason,
            )
        )
        if node.timeout_seconds is not None:
            self._run.after(node.timeout_seconds, lambda: self._time_out(assignment))

        def started(pid: int) -> None:
            assignment.started_at = self._run.clock.monotonic()
            self.started_pids.append((row.id, pid))

        self._run.workers.submit(lambda: carry_out(self._run.bench, assignment, started))

    def tell_cleared(self, assignment: Assignment, trashed: Mapping[RelPath, str]) -> None:
        """What an earlier try had left was put into the trash."""
        name = assignment.node.name
        if trashed:
            self._run.ledger.note(
                Fact.OUTPUTS_CLEARED,
                name,
                {
                    "attempt": assignment.row.id,
                    "trashed": [list(item) for item in trashed.items()],
                },
            )
        for path, place in trashed.items():
            self._run.warn(
                f"moved `{path}`, which an earlier try left unfinished, to {place}", name
            )

    def decide_again(self, assignment: Assignment) -> None:
        """Another run was faster: nothing is held, and its result may serve."""
        self._let_go(assignment)
        self._run.graph.move(assignment.index, NodeState.READY)
        self._run.ready.append(assignment.index)

    def _let_go(self, assignment: Assignment) -> None:
        """It was admitted and does not start."""
        self._run.admission.give_back(demand_of(assignment.node))
        self.release_host(assignment.row.id)
        del self._run.queued[assignment.index]

    def hold_for_other(
        self, index: int, item: Assignment | RestoreJob | UndoJob, conflict: Blocked
    ) -> None:
        """Another run executes something that overlaps: wait without holding anything."""
        node = self._run.plan.nodes[index]
        if isinstance(item, Assignment):
            self._run.admission.give_back(demand_of(node))
            self.release_host(item.row.id)
        self._run.queued.pop(index, None)
        if conflict.is_hopeless is not None:
            if self._run.graph.is_settled(index):
                self._restoring.fail_readers(index, conflict.is_hopeless)
            else:
                self._settlement.settle(index, Outcome.FAILED, detail=conflict.is_hopeless)
            return
        if not self._run.graph.is_settled(index):
            self._run.graph.move(index, NodeState.READY)
        self.blocked[index] = conflict
        self._poll_later()
        if (index, conflict.attempt) not in self._announced_waits:
            self._announced_waits.add((index, conflict.attempt))
            self._run.ledger.note(
                Fact.WAITED,
                node.name,
                {"for": conflict.run, "attempt": conflict.attempt, "what": conflict.what},
            )
            self._run.ledger.announce(
                WaitingForRun(
                    node=node.name,
                    run=conflict.run,
                    pid=conflict.pid,
                    since=conflict.since,
                    what=conflict.what,
                    host=conflict.host,
                    is_stopped=conflict.is_stopped,
                )
            )
            if conflict.is_stopped:
                self._told_stopped.add(conflict.run)
            self._run.ledger.commit()

    def _poll_later(self) -> None:
        if not self._polls:
            self._polls = True
            self._run.after(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        """Looks again at nodes that wait for another run or a resource of the machine."""
        self._polls = False
        awaiting, self.awaits_host = sorted(self.awaits_host), set()
        for index in awaiting:
            if self._run.graph.is_settled(index):
                self._restoring.rerun(index)
            else:
                self._run.ready.append(index)
        # What is unrecorded sees no lease: it can tell nobody's death.
        if self._run.store.recorded and self._run.neighbours.has_dead():
            found = recovery.recover(
                self._run.store, self._run.measurer, self._run.blobs, self._run.clock
            )
            for text in found.told:
                self._run.warn(text)
            for text in recovery.describe_awaited(found):
                if text not in self._told_awaited:
                    self._told_awaited.add(text)
                    self._run.warn(text)
        running = {row.id for row in self._run.neighbours.others()} if self.blocked else set()
        for index, conflict in list(self.blocked.items()):
            if conflict.attempt in running:
                continue
            del self.blocked[index]
            if self._run.graph.is_settled(index):
                self._restoring.release_readers(index, is_repaired=False)
            else:
                self._run.ready.append(index)
        self._tell_stopped()
        if self.blocked:
            self._poll_later()

    def _tell_stopped(self) -> None:
        """Once for each run whose assay was stopped after it began to be waited for."""
        runs = self._run.store.runs
        for each in {conflict.run for conflict in self.blocked.values()} - self._told_stopped:
            row = runs.get(each)
            if runs.is_stopped(row):
                self._told_stopped.add(each)
                pid = row.owner.pid
                self._run.warn(
                    f"run {each} (pid {pid}), which is waited for, is stopped:"
                    f" `kill -CONT {pid}` lets it go on, `assay cancel {each}` before that ends it"
                )

    def _time_out(self, assignment: Assignment) -> None:
        if assignment.row.id in self.running and assignment.interrupted is None:
            seconds = assignment.node.timeout_seconds
            assert seconds is not None
            # To keep what it may change takes time, which is not the command's.
            began = assignment.started_at
            left = seconds if began is None else began + seconds - self._run.clock.monotonic()
            if assignment.node.tier is Tier.COMPENSABLE and left > 0:
                self._run.after(left, lambda: self._time_out(assignment))
                return
            self.interrupt(assignment, AttemptEnd.TIMED_OUT, f"timed out after {seconds:g}s")

    def interrupt(self, assignment: Assignment, end: AttemptEnd, detail: str) -> None:
        """SIGTERM to the node's processes, SIGKILL after its grace."""
        assignment.interrupted_detail = detail
        assignment.interrupted = end
        self._run.bench.processes.terminate(
            assignment.row.id, ask_seconds=assignment.node.grace_seconds
        )
        self._run.after(
            assignment.node.grace_seconds,
            lambda: self._run.bench.processes.kill(assignment.row.id),
        )
