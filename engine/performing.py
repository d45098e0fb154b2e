"""Nodes that are not sealed, from ready to the end of their attempt: what was done before is
looked up, what must be undone is undone, and each effect is recorded before it starts.

Decides nothing itself: `intentions` judges, and is asked again inside the transaction that
records the intent.
"""

from __future__ import annotations

from dataclasses import replace
from signal import Signals
from typing import assert_never

from assay.engine.admission import demand_of
from assay.engine.bench import Assignment, Executed, attempt_id
from assay.engine.comparing import find_evidence, judge_with, key_over
from assay.engine.compensation import describe_undo
from assay.engine.decision import Gathered, Serve
from assay.engine.effects import EffectRow
from assay.engine.intentions import (
    AWAITED,
    Done,
    Judgement,
    Perform,
    Rethrow,
    RollBack,
    Stop,
    describe,
    performers_of,
    question_about,
)
from assay.engine.journal import Fact
from assay.engine.keys import effect_key
from assay.engine.materialize import find_differences
from assay.engine.measuring import Unmeasurable
from assay.engine.restoring import Restoring
from assay.engine.results import ResultRow
from assay.engine.run_state import Queued, RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    NodeState,
    Outcome,
    RunStatus,
)
from assay.engine.undo_order import find_claims, find_objection, find_undoes
from assay.engine.undoing import Undoing
from assay.plans.model import RelPath

UNRECORDED = "was not started: where the store cannot be written its effect would not be recorded"


class Performing:
    """The effects of one run."""

    def __init__(
        self, run: RunState, settlement: Settlement, restoring: Restoring, undoing: Undoing
    ) -> None:
        self._run = run
        self._settlement = settlement
        self._restoring = restoring
        self._undoing = undoing

    def take_up(self, index: int, gathered: Gathered) -> None:
        """The node is ready: settles, queues, or has something undone first."""
        node = self._run.plan.nodes[index]
        self._run.certifies = False
        if not self._run.store.recorded:
            self.refuse(index)
            return
        if self._undoing.is_undoing(node.name):
            # Whether it is done is not known before that has ended.
            self._undoing.park(index)
            return
        gathered = replace(gathered, key=self._key_of(index))
        found = self._judge(index, gathered, is_retry=index in self._run.retrying)
        match found:
            case Done():
                self._settle_done(index, found, gathered)
            case Rethrow():
                row = found.row
                self._settlement.settle(
                    index,
                    Outcome.FAILED,
                    detail=f"failed earlier in this run ({row.detail or 'it did not end well'});"
                    " `--retry-failed` tries it again",
                    key=gathered.key,
                )
            case Stop():
                self._stop(index, found, gathered)
            case RollBack():
                self._roll_back(index, found.row, gathered)
            case Perform():
                self._run.graph.move(index, NodeState.QUEUED)
                self._run.queued[index] = Queued(
                    gathered, found.reason, None, self._run.ledger.version, found
                )
                self._run.admission.enter(index, node.priority, demand_of(node))
            case _:
                assert_never(found)

    def _roll_back(self, index: int, row: EffectRow, gathered: Gathered) -> None:
        """Has it undone, one node's after the other: what one undoes another may be about to."""
        if self._undoing.is_undoing():
            self._undoing.park(index)
            return
        undoes = find_undoes(self._run, index, row)
        objection = None if not undoes else find_objection(self._run, index, undoes)
        if undoes != find_undoes(self._run, index, row) or not undoes:
            # Another run is at it just now: what it has made of it is judged.
            self._run.ready.append(index)
            return
        if objection is not None:
            outcome, detail = objection
            self._settlement.settle(index, outcome, detail=detail, key=gathered.key)
            return
        claims = find_claims(self._run, index, undoes)
        if self._undoing.waits_for_others(index, claims):
            return
        self._undoing.queue(
            index,
            undoes,
            gathered,
            claims,
            lambda: find_undoes(self._run, index, row),
        )

    def refuse(self, index: int) -> None:
        """Where its effect cannot be recorded it is not started."""
        self._run.store_failed = True
        self._settlement.settle(index, Outcome.FAILED, detail=UNRECORDED)

    def plan_effect(self, index: int, gathered: Gathered, number: int) -> EffectRow:
        """What will be recorded before the attempt that is about to be planned."""
        node = self._run.plan.nodes[index]
        return EffectRow(
            attempt=attempt_id(self._run.id, self._run.attempt_ordinal),
            run=self._run.id,
            node=node.name,
            plan_file=self._run.plan_identity,
            tier=node.tier,
            state=EffectState.INTENDED,
            number=number,
            action_key=gathered.key,
            content_key=gathered.content,
            recipe=gathered.recipe_text,
            idempotency_key=node.idempotency_key,
            undo=describe_undo(node, self._run.caller, gathered.values),
        )

    def find_moved_source(self, gathered: Gathered) -> RelPath | None:
        """A source the node reads that is not as it was when the run began."""
        produced = frozenset(gathered.reads.produced)
        for path, state in gathered.reads.states.items():
            if path in produced:
                continue
            try:
                if self._run.measurer.state_of(path) != state:
                    return path
            except Unmeasurable:
                return path
        return None

    def stop_over_source(self, index: int, path: RelPath) -> None:
        """What it reads has changed since the run looked: it is not started over that."""
        del self._run.queued[index]
        self._settlement.settle(
            index,
            Outcome.AMBIGUOUS,
            detail=f"`{path}` changed since the run began, and an effect is not started over"
            " that: `assay run` observes afresh",
        )

    def still_stands(self, assignment: Assignment) -> bool:
        """Whether what was judged when the node was queued is still so; inside the transaction
        that records the intent."""
        queued = self._run.queued[assignment.index]
        if queued.version == self._run.ledger.version:
            return True
        judged = queued.judgement
        assert isinstance(judged, Perform)
        found = self._judge(assignment.index, assignment.gathered, is_retry=judged.is_retry)
        return isinstance(found, Perform) and found.number == judged.number

    def begin(self, assignment: Assignment, begun_seq: int) -> None:
        """Records the intent; inside that transaction."""
        assert assignment.effect is not None
        assignment.effect = replace(assignment.effect, begun_seq=begun_seq)
        self._run.store.effects.put(assignment.effect)
        self._run.store.effects.answer_unrecorded(
            assignment.effect.plan_file, assignment.effect.node
        )

    def end(self, executed: Executed) -> EffectRow:
        """What is known of the effect now that its attempt has ended."""
        effect = executed.assignment.effect
        assert effect is not None
        state, detail = _judge_end(executed)
        return replace(
            effect,
            state=state,
            end=executed.end,
            detail=detail,
            outputs=executed.outputs,
            value=executed.value,
        )

    def close_completed(self, status: RunStatus) -> None:
        """A run that completed settles the intentions of all whose nodes it had selected, as far
        as the plan still has them."""
        effects = self._run.store.effects
        rows = effects.open_of(self._run.plan_identity)
        if not rows or status is not RunStatus.COMPLETED:
            return
        there = {node.name for node in self._run.plan.nodes}
        mine = {self._run.plan.nodes[index].name for index in self._run.graph.selected}
        closed: list[AttemptId] = []
        for row in rows:
            selected = effects.selection_of(row.run)
            # Where that is not known any more, whatever there is.
            wanted = there if selected is None else selected & there
            if row.node in there and wanted <= mine:
                closed.append(row.attempt)
        if closed:
            self._close(closed, "the run completed")

    def start_over(self) -> None:
        """`--new`: what earlier runs left open is asked for no more."""
        begun = (EffectState.ROLLING_BACK, EffectState.COMPENSATING)
        is_there = performers_of(self._run.plan)
        rows = [
            row
            for row in self._run.store.effects.open_of(self._run.plan_identity)
            # What is half taken back is taken back first, if there is who does it anew.
            if row.state not in begun or not is_there(row.node)
        ]
        if rows:
            self.leave_behind(rows)

    def leave_behind(self, rows: list[EffectRow]) -> None:
        """Nobody asks for these any more, however far they are done or taken back."""
        self._close([row.attempt for row in rows], "asked to start over")
        for row in rows:
            if row.state in AWAITED:
                self._run.warn(f"starts over: `{row.node}` {describe(row)}")

    def _close(self, attempts: list[AttemptId], why: str) -> None:
        self._run.ledger.note(
            Fact.EFFECTS_CLOSED,
            data={"why": why, "attempts": list(attempts)},
            then=lambda _: self._run.store.effects.close(attempts),
        )

    def _key_of(self, index: int) -> ActionKey:
        plan = self._run.plan
        return effect_key(self._run.id, plan.base_digest, plan.nodes[index], plan.plan_keys[index])

    def _judge(self, index: int, gathered: Gathered, *, is_retry: bool = False) -> Judgement:
        node = self._run.plan.nodes[index]
        evidence = find_evidence(
            self._run.store,
            self._run.plan_identity,
            node,
            self._run.id,
            self._run.created_seq,
            is_new=self._run.request.new,
            retry_failed=self._run.retry_failed or is_retry,
        )
        return judge_with(self._run.store, self._run.plan, index, gathered, evidence)

    def _settle_done(self, index: int, done: Done, gathered: Gathered) -> None:
        row = done.row
        result = ResultRow(
            address=row.action_key,
            action_key=row.action_key,
            node=row.node,
            plan_file=self._run.plan.file,
            run=row.run,
            journal_seq=row.settled_seq or 0,
            recorded_at=0.0,
            outputs=row.outputs,
            value=row.value,
            recipe=row.recipe,
            evidence={},
            serves=False,
            expires_at=None,
            duration_seconds=0.0,
            log=None,
        )
        now = [
            item for item in row.outputs if not self._restoring.is_rewritten_later(index, item[0])
        ]
        serve = Serve(result, find_differences(now, self._run.measurer), done.how)
        if serve.differences:
            self._restoring.queue_restore(index, serve, gathered)
        else:
            self._settlement.serve(index, serve, gathered, restored=0)

    def _note_asked(self, index: int, row: EffectRow, gathered: Gathered) -> None:
        """An operator who says that this counts all the same says so of this content."""
        if row.is_sound and row.state is EffectState.SUCCEEDED:
            store = self._run.store
            key = key_over(store, self._run.plan, index, gathered, row)

            def note() -> None:
                # An operator may have spoken meanwhile.
                if store.effects.get(row.attempt) == row:
                    store.effects.put(replace(row, asked=key))

            self._run.ledger.write(note)

    def _stop(self, index: int, stop: Stop, gathered: Gathered) -> None:
        """Nobody but a person can say how to go on: the effect in question is recorded, so that
        `settle` finds it, and the node is ambiguous."""
        row = stop.row
        if row is not None:
            self._note_asked(index, row, gathered)
        else:
            self._run.attempt_ordinal += 1
            number = self._run.tries.get(index, 0)
            row = self.plan_effect(index, gathered, number)
            row = replace(row, state=EffectState.UNKNOWN, detail=stop.detail)
            effects = self._run.store.effects
            self._run.ledger.write(lambda: effects.put(row))
            self._run.ledger.write(lambda: effects.answer_unrecorded(row.plan_file, row.node))
        question = question_about(row, self._run.plan.nodes[index])
        self._settlement.settle(
            index, Outcome.AMBIGUOUS, detail=stop.detail, key=gathered.key, asks=question
        )
        self._settlement.mark_uncommitted(index)


def _judge_end(executed: Executed) -> tuple[EffectState, str]:
    """The state of the effect and a clause on how the attempt ended."""
    node = executed.assignment.node
    detail = _describe_end(executed)
    if executed.end is AttemptEnd.SUCCEEDED:
        return EffectState.SUCCEEDED, ""
    if executed.compensated is not None:
        done = executed.compensated
        return done.state, f"{detail}; {done.problem}" if done.problem else detail
    if not executed.has_started or executed.end is AttemptEnd.NOT_STARTED:
        return EffectState.NOTHING, detail
    if executed.end is AttemptEnd.EXITED and executed.exit_code in node.retry.exit_codes:
        return EffectState.NOTHING, detail
    return EffectState.UNKNOWN, detail


def _describe_end(executed: Executed) -> str:
    match executed.end:
        case AttemptEnd.SUCCEEDED:
            return ""
        case AttemptEnd.EXITED:
            return f"ended with exit code {executed.exit_code}"
        case AttemptEnd.SIGNALLED:
            return f"was ended by {Signals(executed.signal or 0).name}"
        case AttemptEnd.CANCELLED:
            return "was cancelled"
        case AttemptEnd.TIMED_OUT | AttemptEnd.NOT_STARTED | AttemptEnd.BROKE_BOUNDARY:
            return executed.detail or executed.end.value
        case AttemptEnd.LOST:
            return "ran while its assay ended"
        case _:
            assert_never(executed.end)
