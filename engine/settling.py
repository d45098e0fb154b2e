"""What an operator says of an effect whose outcome nobody else can know.

Does not know who is asked, nor how that is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from assay.engine import preimages
from assay.engine.blobs import Blobs, Moved, StorageFull
from assay.engine.clock import Clock
from assay.engine.compensation import is_undo_alive
from assay.engine.effects import EffectRow, find_speaker
from assay.engine.filesystem import FilesystemError
from assay.engine.intentions import identity_of, may_be_done
from assay.engine.journal import Fact
from assay.engine.kept_plans import read_nodes
from assay.engine.measuring import Measurer
from assay.engine.neighbours import describe_holder
from assay.engine.outputs import states_before
from assay.engine.preimages import DamagedPreimage
from assay.engine.runs import RunRow
from assay.engine.states import NOTHING_LEFT, EffectState, RunId, RunStatus, State
from assay.engine.store import Store
from assay.plans.model import Node, NodeName, RelPath


@dataclass(frozen=True, slots=True)
class Said:
    """What an operator said of an effect, when, and who that was, in words."""

    at: float
    by: str
    done: bool
    value: str | None = None
    """The node's result as canonical JSON."""


class NoSuchNode(Exception):
    """The plan of the run has no such node."""

    def __init__(self, run: RunId, node: str) -> None:
        super().__init__(f"run {run} has no node `{node}`")
        self.run = run


class NoEffect(Exception):
    """The run has recorded no effect of the node; `there` are the nodes it has some of."""

    def __init__(self, run: RunId, node: str, there: tuple[NodeName, ...]) -> None:
        super().__init__(f"run {run} has recorded no effect of `{node}`")
        self.there = there


class StillRuns(Exception):
    """Its attempt, or what takes it back, has not ended: nobody can say yet how it will stand."""

    def __init__(self, row: EffectRow, what: str) -> None:
        super().__init__(f"`{row.node}` of run {row.run} {what}")
        self.row = row


class IsClosed(Exception):
    """No later run asks for this effect, so nothing that is said of it changes anything."""

    def __init__(self, row: EffectRow) -> None:
        super().__init__(
            f"no run asks for what `{row.node}` did in run {row.run} any more: a later one has"
            " completed or was told to start over"
        )
        self.row = row


def find_effect(store: Store, run: RunRow, name: str) -> EffectRow:
    """The newest effect of the node in the run or, where that has none, the one that it asks
    about. Raises NoSuchNode, NoEffect, StillRuns and IsClosed."""
    rows = store.effects.of_run(run.id)
    mine = [row for row in rows if row.node == name]
    if not mine:
        # The run that asks about it is often not the one that did it.
        identity = identity_of(run.plan_file, run.plan_name)
        mine = [row for row in store.effects.open_of(identity) if row.node == name]
    if not mine:
        nodes = read_nodes(store, run)
        if nodes and name not in nodes:
            raise NoSuchNode(run.id, name)
        raise NoEffect(run.id, name, tuple(dict.fromkeys(row.node for row in rows)))
    found = find_speaker(mine[::-1])
    assert found is not None
    _refuse_moving(store, found)
    if is_undo_alive(store, found.attempt):
        raise StillRuns(found, "is being taken back: its `undo` still runs")
    # Whoever goes on with the run itself asks about it still.
    is_asked = found.run == run.id and run.status is not RunStatus.COMPLETED
    stands = found.state is EffectState.SUCCEEDED or found.state in NOTHING_LEFT
    if not found.is_open and (stands or not is_asked):
        raise IsClosed(found)
    return found


def read_said(store: Store, row: EffectRow) -> tuple[Said, ...]:
    """All that operators have said of the effect, in that order."""
    return tuple(said for _, said in _read_said(store, row))


def _read_said(store: Store, row: EffectRow, after: int = 0) -> Iterator[tuple[int, Said]]:
    """With the position of each record."""
    for record in store.journal.read(run=row.run, node=row.node, after=after):
        told = record.data
        if record.kind != Fact.EFFECT_SETTLED or not isinstance(told, dict):
            continue
        by, done, value = told.get("by"), told.get("done"), told.get("value")
        if told.get("attempt") == row.attempt and isinstance(done, bool):
            value = value if isinstance(value, str) else None
            yield record.seq, Said(record.at, str(by), done, value)


def _find_standing(store: Store, row: EffectRow) -> Said | None:
    """What an operator said, where the effect is as it is for that."""
    if row.settled_seq is None:
        return None
    found = next(_read_said(store, row, row.settled_seq - 1), None)
    return found[1] if found is not None and found[0] == row.settled_seq else None


def _refuse_moving(store: Store, row: EffectRow) -> None:
    """Raises StillRuns while its attempt, or whoever takes it back, is on record as running."""
    moving = describe_holder(store, row.attempt)
    if moving is not None:
        raise StillRuns(row, moving)
    now = store.effects.get(row.attempt)
    if now is not None and now.state is not row.state and not may_be_done(now):
        raise StillRuns(row, "has been taken back just now: look again")


def is_half_taken_back(store: Store, row: EffectRow, clock: Clock) -> bool:
    """Whether its files are being put back and are not all as they were: to say that it is not
    done would leave them so."""
    if row.state is not EffectState.ROLLING_BACK:
        return False
    try:
        preimage = preimages.load(preimages.path_of(store.preimages, row.attempt))
        measurer = Measurer(store.root, store.stats, clock.now_ns)
        made = {path for path, _ in row.outputs}
        return preimage is not None and not preimages.is_put_back(preimage, made, measurer)
    except (DamagedPreimage, FilesystemError):
        return False  # nobody will complete it


def settle_effect(
    store: Store,
    row: EffectRow,
    node: Node | None,
    *,
    done: bool,
    value: str | None,
    by: str,
    clock: Clock,
) -> tuple[Said | None, bool]:
    """Records that the effect is done, with `value` (canonical JSON) as the node's result, or
    that it is not. `node` is as its run had it, None when that is not kept: what it has written
    is then not known. Raises StillRuns.

    Returns what an operator had said before, where that stood until now, and whether anything is
    said anew: to say the same again is no record."""
    outputs: tuple[tuple[RelPath, State], ...] = ()
    if done and row.state is EffectState.SUCCEEDED and row.is_sound:
        # What it left is on record; what stands there by now may be somebody's edit.
        outputs = row.outputs
    elif done and node is not None:
        outputs = _measure(store, node, clock)
    with store.transaction():
        # Somebody may have begun to take it back since it was found.
        _refuse_moving(store, row)
        now = store.effects.get(row.attempt) or row
        earlier = _find_standing(store, now)
        # What was said of one content says nothing of another that is asked about since.
        is_answered = not done or row.accepted == row.asked
        if earlier is not None and is_answered and (earlier.done, earlier.value) == (done, value):
            return earlier, False
        position = store.journal.append(
            f"operator:{os.urandom(8).hex()}",
            1,
            Fact.EFFECT_SETTLED,
            run=row.run,
            node=row.node,
            data={"attempt": row.attempt, "by": by, "done": done, "value": value},
        )
        if node is not None and outputs:
            # A plan from standard input records its outputs under that.
            plan_file = "-" if row.plan_file.startswith("- ") else row.plan_file
            store.results.note_outputs(plan_file, node.name, outputs)
        store.effects.put(
            replace(
                row,
                state=EffectState.SUCCEEDED if done else EffectState.NOTHING,
                tier=row.tier if node is None else node.tier,
                end=None,
                accepts_any=done and (row.accepts_any or not row.is_sound),
                accepted=row.asked if done else None,
                outputs=outputs,
                value=value if done else None,
                settled_seq=position,
                is_open=now.is_open,  # a run may have completed meanwhile
                detail=f"settled by {by}",
                is_sound=True,
            )
        )
    return earlier, True


def _measure(store: Store, node: Node, clock: Clock) -> tuple[tuple[RelPath, State], ...]:
    """Its declared writes as they stand, kept so that they can be put back."""
    measurer = Measurer(store.root, store.stats, clock.now_ns)
    blobs = Blobs(store.cas, store.tmp)
    found = sorted(states_before(node, measurer).items())
    for path, state in found:
        with suppress(Moved, StorageFull):
            blobs.put_state(store.root, path, state)
    return tuple(found)
