"""Putting recorded outputs back: for a node that a recorded result serves, and for a reader
whose produced input is no longer as recorded.

A restore claims what it writes as an execution does, so that no other run executes into it.
What the store cannot give back is executed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from assay.engine import preimages
from assay.engine.admission import demand_of
from assay.engine.attempts import AttemptRow, Claims, row_of_restore
from assay.engine.blobs import BlobCorrupt, BlobMissing
from assay.engine.claims import claims_of, find_conflict
from assay.engine.compensation import Compensated, compensate
from assay.engine.decision import Gathered, Serve
from assay.engine.effects import EffectRow, settled
from assay.engine.environment import Refused
from assay.engine.events import Question
from assay.engine.filesystem import FilesystemError
from assay.engine.journal import Fact
from assay.engine.known_outputs import KnownOutputs
from assay.engine.materialize import CannotRestore, Restored, find_differences, restore
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.run_state import Queued, RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    NOTHING_LEFT,
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    NodeState,
    Outcome,
    State,
    stored_digest,
)
from assay.plans.entries import matches
from assay.plans.model import (
    Entry,
    EntryKind,
    Node,
    NodeName,
    RelPath,
    Tier,
)

MOST_REPAIRS: Final = 3
"""How often a produced read is put back before its reader fails."""


@dataclass(slots=True)
class RestoreJob:
    """Outputs on their way back from the store, for `index` itself or (`for_reader`) for
    a reader that was about to start."""

    index: int
    row: AttemptRow
    outputs: tuple[tuple[RelPath, State], ...]
    keep: frozenset[RelPath]
    """Paths that are no left-overs although `outputs` lacks them."""
    serve: Serve | None
    gathered: Gathered | None
    undoes: tuple[EffectRow, ...] = ()
    """Effects to be taken back, in this order, before `index` is looked at again; nothing else
    is restored then."""
    find_undoes: Callable[[], tuple[EffectRow, ...]] = tuple
    """What `undoes` would be now."""
    stays: Mapping[RelPath, State] = field(default_factory=dict)
    """What nodes of this run have made of the same files by now."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    restoring: RestoreJob
    restored: Restored | None
    broken: str | None
    """Why the store could not give them back; None also for a restore that did not begin,
    because the run was cancelled."""
    compensated: tuple[tuple[EffectRow, Compensated], ...] = ()


def knows_all(_path: RelPath, _state: State) -> bool:
    """For a restore that goes over whatever version stands there."""
    return True


class Restoring:
    """Restores under way, and the readers that wait for repairs."""

    def __init__(self, run: RunState, settlement: Settlement) -> None:
        self._run = run
        self._settlement = settlement
        self.to_restore: list[RestoreJob] = []
        self.restoring: dict[AttemptId, RestoreJob] = {}
        self._repairs: dict[int, list[int]] = {}
        """Settled producer whose outputs are put back or made again -> who waits for it:
        nodes that were about to start, settled producers among them."""
        self._pending_reruns: dict[int, int] = {}
        """Settled producer that must run again -> how many repairs it waits for itself."""
        self._repair_counts: dict[int, int] = {}
        self._after_undoing: list[int] = []
        """Nodes to be judged again once what is being undone is."""
        self._after_others: list[tuple[int, Claims]] = []
        """Nodes that something is undone for, with what that holds, which others of this run are at
        work in."""

    def find_undone(self) -> list[AttemptId]:
        """The attempts whose effects are being taken back just now."""
        return [effect.attempt for item in self.restoring.values() for effect in item.undoes]

    def is_rewritten_later(self, index: int, path: RelPath) -> bool:
        """A writer or remover of `path` that has not settled when this one is taken up comes
        later: those of one path are ordered. A template stands for its instances until it
        has some, and settles after them."""
        return any(
            writer != index
            and writer not in self._run.instances
            and self._run.graph.is_selected(writer)
            and not self._run.graph.is_settled(writer)
            for writer in self._run.observations.changers(path)
        )

    def queue_restore(self, index: int, serve: Serve, gathered: Gathered) -> None:
        node = self._run.plan.nodes[index]
        self._run.graph.move(index, NodeState.QUEUED)
        later = frozenset(
            path for path, _ in serve.row.outputs if self.is_rewritten_later(index, path)
        )
        self.to_restore.append(
            RestoreJob(
                index,
                self._restore_row(node, claims_of(node, self._run.plan.file), gathered.key),
                tuple(item for item in serve.row.outputs if item[0] not in later),
                later | gathered.reads.states.keys(),
                serve,
                gathered,
            )
        )

    def queue_roll_back(
        self,
        index: int,
        effects: tuple[EffectRow, ...],
        gathered: Gathered,
        claims: Claims,
        find_undoes: Callable[[], tuple[EffectRow, ...]],
    ) -> None:
        """What these effects did is taken back, then the node is ready again. `find_undoes`
        tells, inside the transaction that begins it, what they would be by then."""
        node = self._run.plan.nodes[index]
        self._run.graph.move(index, NodeState.QUEUED)
        row = self._restore_row(node, claims, gathered.key)
        self.to_restore.append(
            RestoreJob(index, row, (), frozenset(), None, gathered, effects, find_undoes)
        )

    def is_undoing(self, node: NodeName | None = None) -> bool:
        """Whether something is about to be undone, or being so; of `node`, where that is given."""
        jobs = (*self.to_restore, *self.restoring.values())
        return any(node in (None, effect.node) for item in jobs for effect in item.undoes)

    def is_in_the_way(self, claims: Claims) -> bool:
        """Whether something is being undone, or about to be, in what is claimed here."""
        jobs = (*self.to_restore, *self.restoring.values())
        return any(
            item.undoes and find_conflict(claims, item.row.claims) is not None for item in jobs
        )

    def waits_for_others(self, index: int, claims: Claims) -> bool:
        """Whether a node of this run works just now in what is to be undone for `index`, or has its
        outputs put back there; `index` is ready again after that."""
        if not self._has_others(index, claims):
            return False
        self._after_others.append((index, claims))
        return True

    def _has_others(self, index: int, claims: Claims) -> bool:
        plan, graph = self._run.plan, self._run.graph
        jobs = (*self.to_restore, *self.restoring.values())
        if any(
            not item.undoes and find_conflict(claims, item.row.claims) is not None for item in jobs
        ):
            return True
        return any(
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
                    self.rerun(index)  # its outputs are wanted once more
                else:
                    self._run.ready.append(index)

    def still_stands(self, item: RestoreJob) -> bool:
        """Whether the effects to be taken back are as they were when that was decided; inside
        the transaction that records it. Another run may have done it, and built upon it."""
        return item.find_undoes() == item.undoes

    def judge_again(self, item: RestoreJob) -> None:
        """It was outdated before it began."""
        self._run.graph.move(item.index, NodeState.READY)
        self._run.ready.append(item.index)

    def begin(self, item: RestoreJob) -> None:
        """Records that it begins; inside the transaction that has looked for conflicts."""
        self._run.store.attempts.begin(item.row)
        if item.undoes:
            item.stays = self._run.observations.made_within(item.row.claims.writes)
        for effect in item.undoes:
            if effect.state is EffectState.SUCCEEDED:
                self._run.store.effects.put(replace(effect, state=EffectState.ROLLING_BACK))

    def _restore_row(self, node: Node, claims: Claims, key: ActionKey) -> AttemptRow:
        self._run.attempt_ordinal += 1
        attempt = AttemptId(f"{self._run.id}-{self._run.attempt_ordinal}")
        began_at = self._run.clock.now()
        return row_of_restore(attempt, self._run.id, node.name, key, claims, began_at)

    def restore(self, item: RestoreJob) -> RestoreReport:
        """Worker thread: stages, verifies and swaps."""
        node = self._run.plan.nodes[item.index]
        serves = item.serve is not None
        if (serves or item.undoes) and self._run.stopping:
            return RestoreReport(item, None, None)
        if item.undoes:
            return self._take_back(item)
        is_effect = node.tier is not Tier.SEALED
        try:
            with KnownOutputs(self._run.store) as known:
                restored = restore(
                    self._run.store.root,
                    item.outputs,
                    node.writes if serves else (),
                    measurer=self._run.measurer,
                    source=self._run.blobs,
                    staging=f"{self._run.store.tmp}/{item.row.id}.stage",
                    trash=f"{self._run.store.trash}/{item.row.id}",
                    # What a reader needs goes over whatever version stands there, unless only
                    # a person can have put it there: an effect is not made again.
                    knows=self._known_for(node, known) if serves or is_effect else knows_all,
                    keep=item.keep,
                )
        except (BlobMissing, BlobCorrupt) as error:
            if isinstance(error, BlobCorrupt):
                # All of them now: an execution does not store again what seems to be there.
                for digest in {stored_digest(state) for _, state in item.outputs}:
                    if digest is not None:
                        self._run.blobs.set_aside(digest)
            return RestoreReport(item, None, str(error))
        except (CannotRestore, FilesystemError) as error:
            return RestoreReport(item, None, str(error))
        return RestoreReport(item, restored, None)

    def _take_back(self, item: RestoreJob) -> RestoreReport:
        """One effect after the other, up to the first that cannot be taken back wholly."""
        done: list[tuple[EffectRow, Compensated]] = []
        for effect in item.undoes:
            if self._run.stopping:
                return RestoreReport(item, None, None, tuple(done))
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
                return RestoreReport(item, None, compensated.problem, tuple(done))
        return RestoreReport(item, Restored(), None, tuple(done))

    def _known_for(self, node: Node, known: KnownOutputs) -> Callable[[RelPath, State], bool]:
        """What a result of `node` may replace without being kept: recorded content, and the
        text that a rewriter started from, which executing it would have replaced as well."""
        pinned = self._run.observations.pins.states

        def knows(path: RelPath, state: State) -> bool:
            is_input = pinned.get(path) == state and matches(node.reads, path)
            return is_input or known.knows(path, state)

        return knows

    def end_restore(self, message: RestoreReport) -> None:
        item, restored = message.restoring, message.restored
        index, node = item.index, self._run.plan.nodes[item.index]
        del self.restoring[item.row.id]
        self._settlement.mark_uncommitted(index)
        now = self._run.clock.now()
        for effect, done in message.compensated:
            _note_compensated(self._run, effect, done, f"`{node.name}` is to be done anew")
        if restored is None:
            broken = message.broken
            end = AttemptEnd.CANCELLED if broken is None else AttemptEnd.BROKE_BOUNDARY
            self._run.ledger.write(
                lambda: self._run.store.attempts.settle(
                    item.row.id, end, None, None, broken or "", now
                )
            )
            self._let_stand(item, message)
            if broken is None:
                self._settlement.settle_unstarted(index)
            elif item.undoes:
                effect, last = message.compensated[-1]
                is_asked = last.state is not EffectState.ROLLING_BACK  # else the next run goes on
                question = Question(effect.run, node=effect.node, may_be_done=False)
                self._settlement.settle(
                    index,
                    Outcome.AMBIGUOUS,
                    detail=f"what `{effect.node}` did in run {effect.run} is not rolled back"
                    f" wholly: {broken}",
                    asks=question if is_asked else None,
                )
            else:
                self._restore_failed(item, broken)
            return
        self._run.ledger.write(
            lambda: self._run.store.attempts.settle(
                item.row.id, AttemptEnd.SUCCEEDED, None, None, "restored", now
            )
        )
        if item.undoes:
            self._run.ledger.commit()  # for the judgement that follows
            for effect, done in message.compensated:
                if done.state in NOTHING_LEFT:
                    preimages.drop(preimages.path_of(self._run.store.preimages, effect.attempt))
            used = self._look_again(message.compensated)
            if used is not None:
                self._settlement.settle(
                    index,
                    Outcome.FAILED,
                    detail=f"{used} before that was put back: `assay run` makes it right",
                )
                return
            if self._settlement.may_start(index):
                self._run.graph.move(index, NodeState.READY)
                self._run.ready.append(index)
            else:
                self._settlement.settle_unstarted(index)
            return
        for path, place in restored.trashed:
            self._run.warn(f"`{path}` held what nobody recorded: moved to {place}", node.name)
        if restored.unknown:
            names = ", ".join(f"`{path}`" for path in restored.unknown)
            self._run.warn(f"left files nobody declared where they are: {names}", node.name)
        self._run.ledger.note(
            Fact.RESULT_SERVED,
            node.name,
            {
                "restored": list(restored.put_back),
                "removed": list(restored.removed),
                "trashed": [list(pair) for pair in restored.trashed],
            },
        )
        if item.serve is None:
            self.release_readers(index)
        else:
            assert item.gathered is not None
            self._run.graph.move(index, NodeState.RUNNING)
            self._settlement.serve(index, item.serve, item.gathered, len(restored.put_back))

    def _let_stand(self, item: RestoreJob, message: RestoreReport) -> None:
        """Effects that were to be taken back and were not begun are as they were."""
        begun = {effect.attempt for effect, _ in message.compensated}
        for effect in item.undoes:
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
        if used is not None and changed:
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

    def _queue_repair(self, producer: int, outputs: list[tuple[RelPath, State]]) -> None:
        node = self._run.plan.nodes[producer]
        claims = Claims(writes=tuple(Entry(EntryKind.FILE, path) for path, _ in outputs))
        row = self._restore_row(node, claims, ActionKey(""))
        self.to_restore.append(RestoreJob(producer, row, tuple(outputs), frozenset(), None, None))

    def _restore_failed(self, item: RestoreJob, why: str) -> None:
        """A recorded result whose blobs are gone or damaged is a miss, never an empty hit."""
        node = self._run.plan.nodes[item.index]
        if item.serve is None:
            self.rerun(item.index)
            return
        row = item.serve.row
        if node.tier is not Tier.SEALED:
            self._run.graph.move(item.index, NodeState.RUNNING)
            self._settlement.fail_settled(
                item.index,
                f"was {item.serve.how}, but what it wrote cannot be put back, and an effect is"
                f" not repeated for that: {why}",
            )
            return
        self._run.ledger.note(
            Fact.RESULT_EVICTED,
            node.name,
            {
                "address": row.address,
                "recorded_by": row.run,
                "recorded_seq": row.journal_seq,
                "why": why,
            },
            then=lambda _: self._run.store.results.evict(row.address, row.journal_seq),
        )
        if self._run.request.strict:
            self._run.graph.move(item.index, NodeState.RUNNING)
            self._settlement.fail_settled(
                item.index, f"its recorded result cannot be restored: {why}"
            )
            return
        if not self._settlement.may_start(item.index):
            self._settlement.settle_unstarted(item.index)
            return
        self._run.warn(f"its recorded result cannot be restored ({why}): executed again", node.name)
        assert item.gathered is not None
        self._run.queued[item.index] = Queued(item.gathered, "recorded result damaged")
        self._run.admission.enter(item.index, node.priority, demand_of(node))

    def inputs_stand(self, index: int, gathered: Gathered) -> bool:
        """Whether every produced read is on disk in the version this node must read. If not,
        it is put back, or its producer runs again, and the node waits."""
        expected = [(path, gathered.reads.states[path]) for path in gathered.reads.produced]
        if not expected:
            return True
        missing = find_differences(expected, self._run.measurer)
        if not missing:
            return True
        count = self._repair_counts.get(index, 0) + 1
        self._repair_counts[index] = count
        if count > MOST_REPAIRS:
            self.fail_queued(
                index,
                f"`{missing[0]}` was put back {MOST_REPAIRS} times and is changed again each time",
            )
            return False
        wanted = set(missing)
        producers: dict[int, list[tuple[RelPath, State]]] = {}
        for path, state in expected:
            if path in wanted:
                writers = [
                    w
                    for w in self._run.observations.writers(path)
                    # A template tells of what its instances made; they make it again.
                    if self._run.graph.is_settled(w) and self._run.plan.nodes[w].command is not None
                ]
                owner = next(
                    (
                        w
                        for w in reversed(writers)
                        if (path, state) in self._run.observations.outputs_of(w)
                    ),
                    writers[-1],
                )
                producers.setdefault(owner, []).append((path, state))
        del self._run.queued[index]
        if self._run.graph.is_settled(index):
            self._pending_reruns[index] = len(producers)
        else:
            self._run.graph.move(index, NodeState.READY)
            self._run.graph.wait_again(index, len(producers))
        for producer, outputs in producers.items():
            readers = self._repairs.setdefault(producer, [])
            readers.append(index)
            if len(readers) > 1:
                continue  # under way already
            self._queue_repair(producer, outputs)
        return False

    def rerun(self, producer: int) -> None:
        """What others read of a settled `producer` is not in the store: it runs once more,
        unless nobody waits for it any longer."""
        if producer not in self._repairs or producer in self._run.rerunning:
            return
        node = self._run.plan.nodes[producer]
        if node.tier is not Tier.SEALED:
            self.fail_readers(producer, "an effect is not repeated for that")
            return
        try:
            gathered = self._run.decider.gather(producer)
        except Refused as error:
            self.fail_readers(producer, str(error))
            return
        self._run.queued[producer] = Queued(gathered, "its outputs are gone")
        self._run.admission.enter(producer, node.priority, demand_of(node))

    def release_readers(self, producer: int, *, is_repaired: bool = True) -> None:
        """Who waited for `producer` looks at its inputs afresh. Not repaired: nothing was
        done, and it counts as no attempt at it."""
        for reader in self._repairs.pop(producer, ()):
            if not is_repaired:
                self._repair_counts[reader] -= 1
            if reader in self._pending_reruns:
                self._pending_reruns[reader] -= 1
                if not self._pending_reruns[reader]:
                    del self._pending_reruns[reader]
                    self.rerun(reader)
            elif not self._run.graph.is_settled(reader) and self._run.graph.release(reader):
                self._run.ready.append(reader)

    def fail_readers(self, producer: int, why: str) -> None:
        """What `producer` wrote cannot be had: who waits for it fails, and who waits for that."""
        open_ends = [producer]
        while open_ends:
            failed = open_ends.pop()
            name = self._run.plan.nodes[failed].name
            for reader in self._repairs.pop(failed, ()):
                if self._pending_reruns.pop(reader, None) is not None:
                    open_ends.append(reader)
                elif not self._run.graph.is_settled(reader):
                    self._settlement.settle(
                        reader,
                        Outcome.FAILED,
                        detail=f"what `{name}` wrote is gone and cannot be made again: {why}",
                    )

    def drop(self, ended: Collection[int]) -> None:
        """Forgets restores of nodes that ended before they began, and repairs that nobody
        waits for any more."""
        awaited: dict[int, list[int]] = {}
        for producer, readers in self._repairs.items():
            for reader in readers:
                awaited.setdefault(reader, []).append(producer)
        wanted: set[int] = set()
        open_ends = [reader for reader in awaited if not self._run.graph.is_settled(reader)]
        while open_ends:
            for producer in awaited.get(open_ends.pop(), ()):
                if producer not in wanted:
                    wanted.add(producer)
                    open_ends.append(producer)
        unwanted = self._repairs.keys() - wanted
        for producer in unwanted:
            del self._repairs[producer]
            self._pending_reruns.pop(producer, None)
            self._run.queued.pop(producer, None)
        self._run.admission.leave(unwanted)
        self.to_restore = [
            item
            for item in self.to_restore
            if item.index not in (ended if item.serve is not None or item.undoes else unwanted)
        ]

    def fail_queued(self, index: int, detail: str) -> None:
        """A node that was admitted turns out not to be startable."""
        del self._run.queued[index]
        if self._run.graph.is_settled(index):
            self.fail_readers(index, detail)
        else:
            self._settlement.settle(index, Outcome.FAILED, detail=detail)


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
