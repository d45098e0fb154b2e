"""Putting recorded outputs back: for a node that a recorded result serves, and for a reader
whose produced input is no longer as recorded.

A restore claims what it writes as an execution does, so that no other run executes into it.
What the store cannot give back is executed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from assay.engine.admission import demand_of
from assay.engine.attempts import AttemptRow, Claims
from assay.engine.blobs import BlobCorrupt, BlobMissing
from assay.engine.claims import claims_of, find_conflict
from assay.engine.decision import Gathered, Serve
from assay.engine.environment import Refused
from assay.engine.filesystem import FilesystemError
from assay.engine.journal import Fact
from assay.engine.known_outputs import KnownOutputs
from assay.engine.materialize import CannotRestore, Restored, find_differences, restore
from assay.engine.run_state import Queued, RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    AttemptId,
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


@dataclass(frozen=True, slots=True)
class RestoreReport:
    restoring: RestoreJob
    restored: Restored | None
    broken: str | None
    """Why the store could not give them back; None also for a restore that did not begin,
    because the run was cancelled."""


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

    def is_at_work_in(self, claims: Claims) -> bool:
        """Whether something is put back, or about to be, in what is claimed here."""
        jobs = (*self.to_restore, *self.restoring.values())
        return any(find_conflict(claims, item.row.claims) is not None for item in jobs)

    def queue_restore(self, index: int, serve: Serve, gathered: Gathered) -> None:
        node = self._run.plan.nodes[index]
        self._run.graph.move(index, NodeState.QUEUED)
        later = frozenset(
            path for path, _ in serve.row.outputs if self.is_rewritten_later(index, path)
        )
        self.to_restore.append(
            RestoreJob(
                index,
                self._run.row_of_restore(node, claims_of(node, self._run.plan.file), gathered.key),
                tuple(item for item in serve.row.outputs if item[0] not in later),
                later | gathered.reads.states.keys() | self._made_by_others(node),
                serve,
                gathered,
            )
        )

    def _made_by_others(self, node: Node) -> frozenset[RelPath]:
        """What other nodes of the run have left where an effect may have written as well."""
        if node.tier is Tier.SEALED:
            return frozenset()
        return frozenset(self._run.observations.made_within(node.writes))

    def take_queued(self) -> list[RestoreJob]:
        queued, self.to_restore = self.to_restore, []
        return queued

    def start(self, item: RestoreJob) -> None:
        self.restoring[item.row.id] = item
        self._run.workers.submit(partial(self.restore, item))

    def restore(self, item: RestoreJob) -> RestoreReport:
        """Worker thread: stages, verifies and swaps."""
        node = self._run.plan.nodes[item.index]
        serves = item.serve is not None
        if serves and self._run.stopping:
            return RestoreReport(item, None, None)
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

    def _known_for(self, node: Node, known: KnownOutputs) -> Callable[[RelPath, State], bool]:
        """What a result of `node` may replace without being kept: recorded content, and the
        text that a rewriter started from, which executing it would have replaced as well."""
        pinned = self._run.observations.pins.states

        def knows(path: RelPath, state: State) -> bool:
            is_input = pinned.get(path) == state and matches(node.reads, path)
            return is_input or known.knows(path, state)

        return knows

    def end(self, message: RestoreReport) -> None:
        item, restored = message.restoring, message.restored
        index, node = item.index, self._run.plan.nodes[item.index]
        del self.restoring[item.row.id]
        self._settlement.mark_uncommitted(index)
        now = self._run.clock.now()
        if restored is None:
            broken = message.broken
            end = AttemptEnd.CANCELLED if broken is None else AttemptEnd.BROKE_BOUNDARY
            self._run.ledger.write(
                lambda: self._run.store.attempts.settle(
                    item.row.id, end, None, None, broken or "", now
                )
            )
            if broken is None:
                self._settlement.settle_unstarted(index)
            else:
                self._restore_failed(item, broken)
            return
        self._run.ledger.write(
            lambda: self._run.store.attempts.settle(
                item.row.id, AttemptEnd.SUCCEEDED, None, None, "restored", now
            )
        )
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

    def _queue_repair(self, producer: int, outputs: list[tuple[RelPath, State]]) -> None:
        node = self._run.plan.nodes[producer]
        claims = Claims(writes=tuple(Entry(EntryKind.FILE, path) for path, _ in outputs))
        row = self._run.row_of_restore(node, claims, ActionKey(""))
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
            if item.index not in (ended if item.serve is not None else unwanted)
        ]

    def fail_queued(self, index: int, detail: str) -> None:
        """A node that was admitted turns out not to be startable."""
        del self._run.queued[index]
        if self._run.graph.is_settled(index):
            self.fail_readers(index, detail)
        else:
            self._settlement.settle(index, Outcome.FAILED, detail=detail)
