"""Taking back what earlier runs did, so that a node can do it anew: one undoing at a time, in
files that nobody is at work in meanwhile.

Knows the state of the run; not what is to be taken back (`undo_order`), nor how one effect is
(`compensation`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from assay.engine import preimages
from assay.engine.attempts import AttemptRow, Claims
from assay.engine.claims import claims_of, find_conflict
from assay.engine.compensation import Compensated, compensate
from assay.engine.decision import Gathered
from assay.engine.effects import EffectRow, settled
from assay.engine.events import Question
from assay.engine.journal import Fact
from assay.engine.restoring import Restoring
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.run_state import RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    NOTHING_LEFT,
    AttemptEnd,
    AttemptId,
    EffectState,
    NodeState,
    Outcome,
    State,
)
from assay.plans.entries import matches
from assay.plans.model import NodeName, RelPath


@dataclass(slots=True)
class UndoJob:
    """Effects to be taken back before the node `index` is looked at again."""

    index: int
    row: AttemptRow
    undoes: tuple[EffectRow, ...]
    """In this order."""
    find_undoes: Callable[[], tuple[EffectRow, ...]]
    """What `undoes` would be now."""
    stays: Mapping[RelPath, State] = field(default_factory=dict)
    """What nodes of this run have made of the same files by now."""


@dataclass(frozen=True, slots=True)
class UndoReport:
    undoing: UndoJob
    end: AttemptEnd
    """Succeeded; cancelled, with the rest left to stand; or what was begun last is broken off."""
    problem: str
    """Why it is broken off; else empty."""
    compensated: tuple[tuple[EffectRow, Compensated], ...]
    """What was begun."""


class Undoing:
    """What is being undone, and the nodes that wait for that."""

    def __init__(self, run: RunState, settlement: Settlement, restoring: Restoring) -> None:
        self._run = run
        self._settlement = settlement
        self._restoring = restoring
        self.to_undo: list[UndoJob] = []
        self.undoing: dict[AttemptId, UndoJob] = {}
        self._after_undoing: list[int] = []
        """Nodes to be judged again once what is being undone is."""
        self._after_others: list[tuple[int, Claims]] = []
        """Nodes that something is undone for, with what that holds, which others of this run are at
        work in."""

    def find_undone(self) -> list[AttemptId]:
        """The attempts whose effects are being taken back just now."""
        return [effect.attempt for item in self.undoing.values() for effect in item.undoes]

    def queue(
        self,
        index: int,
        undoes: tuple[EffectRow, ...],
        gathered: Gathered,
        claims: Claims,
        find_undoes: Callable[[], tuple[EffectRow, ...]],
    ) -> None:
        """What these effects did is taken back, then the node is ready again. `find_undoes`
        tells, inside the transaction that begins it, what they would be by then."""
        self._run.graph.move(index, NodeState.QUEUED)
        row = self._run.row_of_restore(self._run.plan.nodes[index], claims, gathered.key)
        self.to_undo.append(UndoJob(index, row, undoes, find_undoes))

    def is_undoing(self, node: NodeName | None = None) -> bool:
        """Whether something is about to be undone, or being so; of `node`, where that is given."""
        return any(node in (None, effect.node) for item in self._jobs() for effect in item.undoes)

    def is_in_the_way(self, index: int) -> bool:
        """Whether something is being undone, or about to be, in what the node reads or writes."""
        jobs = self._jobs()
        if not jobs:
            return False
        claims = claims_of(self._run.plan.nodes[index], self._run.plan.file)
        return any(find_conflict(claims, item.row.claims) is not None for item in jobs)

    def _jobs(self) -> tuple[UndoJob, ...]:
        return (*self.to_undo, *self.undoing.values())

    def waits_for_others(self, index: int, claims: Claims) -> bool:
        """Whether a node of this run works just now in what is to be undone for `index`, or has its
        outputs put back there; `index` is ready again after that."""
        if not self._has_others(index, claims):
            return False
        self._after_others.append((index, claims))
        return True

    def _has_others(self, index: int, claims: Claims) -> bool:
        plan, graph = self._run.plan, self._run.graph
        return self._restoring.is_at_work_in(claims) or any(
            other != index
            and (graph.state(other) is NodeState.RUNNING or other in self._run.rerunning)
            and find_conflict(claims, claims_of(plan.nodes[other], plan.file)) is not None
            for other in graph.selected
        )

    def park(self, index: int) -> None:
        """The node is ready again once nothing is being undone."""
        self._after_undoing.append(index)

    def release_parked(self) -> None:
        """Whatever became of what they waited for."""
        if self._after_others:
            waiting, self._after_others = self._after_others, []
            for index, claims in waiting:
                if self._has_others(index, claims):
                    self._after_others.append((index, claims))
                else:
                    self._run.ready.append(index)
        if self._after_undoing and not self.is_undoing():
            waiting_too, self._after_undoing = self._after_undoing, []
            for index in waiting_too:
                if self._run.graph.is_settled(index):
                    self._restoring.rerun(index)  # its outputs are wanted once more
                else:
                    self._run.ready.append(index)

    def still_stands(self, item: UndoJob) -> bool:
        """Whether the effects to be taken back are as they were when that was decided; inside
        the transaction that records it. Another run may have done it, and built upon it."""
        return item.find_undoes() == item.undoes

    def judge_again(self, item: UndoJob) -> None:
        """It was outdated before it began."""
        self._run.graph.move(item.index, NodeState.READY)
        self._run.ready.append(item.index)

    def begin(self, item: UndoJob) -> None:
        """Records that it begins; inside the transaction that has looked for conflicts."""
        self._run.store.attempts.begin(item.row)
        item.stays = self._run.observations.made_within(item.row.claims.writes)
        for effect in item.undoes:
            if effect.state is EffectState.SUCCEEDED:
                self._run.store.effects.put(replace(effect, state=EffectState.ROLLING_BACK))

    def take_queued(self) -> list[UndoJob]:
        queued, self.to_undo = self.to_undo, []
        return queued

    def start(self, item: UndoJob) -> None:
        self.undoing[item.row.id] = item
        self._run.workers.submit(partial(self.take_back, item))

    def take_back(self, item: UndoJob) -> UndoReport:
        """Worker thread: one effect after the other, up to the first that cannot be taken back
        wholly."""
        done: list[tuple[EffectRow, Compensated]] = []
        for effect in item.undoes:
            if self._run.stopping:
                return UndoReport(item, AttemptEnd.CANCELLED, "", tuple(done))
            begun = effect
            if effect.state is EffectState.SUCCEEDED:
                begun = replace(effect, state=EffectState.ROLLING_BACK)
            compensated = compensate(
                begun,
                store=self._run.store,
                measurer=self._run.measurer,
                blobs=self._run.blobs,
                processes=self._run.bench.processes,
                caller=self._run.caller,
                is_hurried=lambda: self._run.killing,
                stays=item.stays,
            )
            done.append((begun, compensated))
            if compensated.problem is not None:
                end = AttemptEnd.BROKE_BOUNDARY
                return UndoReport(item, end, compensated.problem, tuple(done))
        return UndoReport(item, AttemptEnd.SUCCEEDED, "", tuple(done))

    def end(self, message: UndoReport) -> None:
        item, index = message.undoing, message.undoing.index
        node = self._run.plan.nodes[index]
        del self.undoing[item.row.id]
        self._settlement.mark_uncommitted(index)
        for effect, done in message.compensated:
            _note_compensated(self._run, effect, done, f"`{node.name}` is to be done anew")
        detail = "restored" if message.end is AttemptEnd.SUCCEEDED else message.problem
        now = self._run.clock.now()
        self._run.ledger.write(
            lambda: self._run.store.attempts.settle(
                item.row.id, message.end, None, None, detail, now
            )
        )
        self._let_stand(message)
        self._run.ledger.commit()  # for the judgement that follows
        for effect, done in message.compensated:
            if done.state in NOTHING_LEFT:
                preimages.drop(preimages.path_of(self._run.store.preimages, effect.attempt))
        if message.end is AttemptEnd.SUCCEEDED:
            self._go_on(index, message.compensated)
            return
        if message.end is AttemptEnd.CANCELLED:
            self._settlement.settle_unstarted(index)
            return
        effect, last = message.compensated[-1]
        problem, asks = message.problem, None
        if last.state is EffectState.ROLLING_BACK or (
            last.state is EffectState.COMPENSATING and self._run.killing
        ):
            problem += " (`assay run` goes on with it)"
        else:
            if last.state is EffectState.COMPENSATING:
                problem += " (`assay run` tries that again)"
            asks = Question(effect.run, node=effect.node, may_be_done=False)
        self._settlement.settle(
            index,
            Outcome.AMBIGUOUS,
            detail=f"what `{effect.node}` did in run {effect.run} is not rolled back"
            f" wholly: {problem}",
            asks=asks,
        )

    def _go_on(self, index: int, done: tuple[tuple[EffectRow, Compensated], ...]) -> None:
        """All is undone: the node is judged again, over what is there now."""
        used = self._look_again(done)
        if used is not None:
            self._settlement.settle(
                index,
                Outcome.FAILED,
                detail=f"{used} before that was put back: `assay run` makes it right",
            )
        elif self._settlement.may_start(index):
            self._run.graph.move(index, NodeState.READY)
            self._run.ready.append(index)
        else:
            self._settlement.settle_unstarted(index)

    def _let_stand(self, message: UndoReport) -> None:
        """Effects that were to be taken back and were not begun are as they were."""
        begun = {effect.attempt for effect, _ in message.compensated}
        for effect in message.undoing.undoes:
            if effect.attempt not in begun and effect.state is EffectState.SUCCEEDED:
                self._run.ledger.write(partial(self._run.store.effects.put, effect))

    def _look_again(self, done: tuple[tuple[EffectRow, Compensated], ...]) -> str | None:
        """The run saw what an earlier one had made of its sources: what it reads is what has
        been put back. A clause on who has read the other already, None for nobody."""
        changed = {
            path
            for _, compensated in done
            for path in (*compensated.files.put_back, *compensated.files.removed)
        }
        changed |= {path for _, each in done for path, _ in each.files.trashed}
        used = self._find_reader(changed)
        if used is not None:
            return used
        if self._run.is_resumed:
            # What an earlier owner of the run has put back already is not among `changed`.
            rows = [self._run.store.attempts.get(effect.attempt) for effect, _ in done]
            entries = tuple(e for row in rows if row is not None for e in row.claims.writes)
            self._run.observations.look_again_within(entries)
            self._run.observations.pin(self._run.graph.selected)
            self._run.pins_due = True
            return None
        if not changed:
            return None
        self._run.observations.look_again(changed)
        self._run.observations.pin(self._run.graph.selected)
        self._run.pins_due = True
        return None

    def _find_reader(self, changed: Collection[RelPath]) -> str | None:
        """A clause on who has read what was there before, None for nobody."""
        graph = self._run.graph
        for index in graph.selected:
            if graph.state(index) is not NodeState.RUNNING and graph.outcomes.get(index) not in (
                Outcome.BUILT,
                Outcome.CLEAN,
            ):
                continue
            node = self._run.plan.nodes[index]
            path = next((path for path in changed if matches(node.reads, path)), None)
            if path is not None and node.command is not None:
                return f"`{node.name}` has read `{path}`"
        return None

    def drop(self, ended: Collection[int]) -> None:
        """Forgets what was to be undone for nodes that ended before it began."""
        self.to_undo = [item for item in self.to_undo if item.index not in ended]


def _note_compensated(run: RunState, row: EffectRow, done: Compensated, why: str) -> None:
    """For the next commit of `run`; the effect's state from then on is that of `done`."""

    def settle(position: int) -> None:
        run.store.effects.put(
            settled(row, done.state, position, detail=done.problem or row.detail, end=None)
        )

    fact = describe_fact(row, done, why)
    run.ledger.note(Fact.ROLLED_BACK, row.node, fact, then=settle)
    for text in describe_changes(row, done):
        run.warn(text, row.node)
