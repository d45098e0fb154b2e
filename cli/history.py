"""What the store tells of earlier runs, put together for the commands that ask.

Does not know how answers are shown. Reads only; nothing here makes a `.assay/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from assay.cli.errors import HostError, UsageError
from assay.cli.location import current_folder, find_root
from assay.cli.render.stream import Stream
from assay.cli.render.text import one_line
from assay.engine.journal import Fact, Record
from assay.engine.runs import RunRow
from assay.engine.standing import read_settled
from assay.engine.states import Outcome, RunId, RunStatus
from assay.engine.store import Store
from assay.plans.canonical import JsonValue

_NOTHING_YET = "No runs are recorded in `{root}`"


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one node of a run settled."""

    node: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True)
class Story:
    """What the journal tells of one run. `kept` has node and pid of each process that a node with
    `background = "keep"` left running; whether they still run is not known."""

    settlements: tuple[Settlement, ...]
    kept: tuple[tuple[str, int], ...] = ()
    turns: tuple[Record, ...] = ()
    """The records of who had the run, and what people did with it (TURNS)."""


TURNS: Final = frozenset(
    {
        Fact.RUN_CREATED,
        Fact.RUN_RESUMED,
        Fact.RUN_SETTLED,
        Fact.CLAIM_REFUSED,
        Fact.SURVIVORS_ASKED,
        Fact.CANCEL_REQUESTED,
        Fact.EFFECT_SETTLED,
        Fact.REWOUND,
    }
)
"""Facts about a run as a whole: how it was had, and what people did with it. By whom one after
the other, and why each had it no more, is told by `ownership`."""


@contextmanager
def reading_store() -> Iterator[Store]:
    """The store of the workspace around the current folder. Raises UsageError when nothing
    was ever recorded there."""
    root = find_root(current_folder())
    store = Store.open_for_reading(root)
    if store is None:
        raise UsageError(_NOTHING_YET.format(root=root), hint="`assay run` makes the first one")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def writing_store(
    root: str, err: Stream, on_wait: Callable[[], None] | None = None
) -> Iterator[Store]:
    """The store of that workspace, for a command whose answer is worth nothing unless it is on
    record; what is to be known of it goes to `err`. `on_wait` is called while others keep it
    waiting, and may raise. Raises HostError where nothing can be written."""
    store = Store.open_for_run(root, now=time.time, on_wait=on_wait)
    try:
        if not store.recorded:
            raise HostError(
                f"The store of `{root}` cannot be written", hint="; ".join(store.notices)
            )
        for notice in store.notices:
            err.write(f"warning: {one_line(notice)}\n")
        yield store
    finally:
        store.close()


def status_of(store: Store, row: RunRow) -> RunStatus:
    """The run's status as it is: one that claims to be running without a living owner was
    interrupted, even if no later run has noted it yet."""
    open_states = (RunStatus.RUNNING, RunStatus.PENDING)
    if row.status in open_states and not store.runs.seems_alive(row.id):
        return RunStatus.INTERRUPTED
    return row.status


def read_settlements(store: Store, row: RunRow) -> tuple[Settlement, ...]:
    """How the run's nodes settled, in that order. A run that agreed with an earlier one
    settled every node of that one `clean`."""
    return read_story(store, row).settlements


def read_story(store: Store, row: RunRow) -> Story:
    """What the journal tells of a run as a whole."""
    told_by = follow_agreement(store, row)
    # In a run that was gone on with a node settles more than once: the last time counts.
    found: dict[str, Settlement] = {}
    kept: list[tuple[str, int]] = []
    turns: list[Record] = []
    for record in store.journal.read(run=told_by.id):
        if record.kind == Fact.NODES_SETTLED:
            for each in read_settled(record.data):
                found.pop(each.node, None)
                found[each.node] = Settlement(each.node, each.outcome, each.detail)
        elif record.kind == Fact.ATTEMPT_SETTLED and record.node is not None:
            kept += [(record.node, pid) for pid in _read_kept(record.data)]
        elif record.kind in TURNS:
            turns.append(record)
    if told_by.id == row.id:
        return Story(tuple(found.values()), tuple(kept), tuple(turns))
    settlements = (
        Settlement(each.node, Outcome.CLEAN, f"as in run {told_by.id}")
        if each.outcome in (Outcome.BUILT, Outcome.CLEAN)
        else each
        for each in found.values()
    )
    return Story(tuple(settlements))


def _read_kept(data: JsonValue) -> Iterator[int]:
    pids = data.get("kept_running") if isinstance(data, dict) else None
    for pid in pids if isinstance(pids, list) else ():
        if isinstance(pid, int):
            yield pid


def follow_agreement(store: Store, row: RunRow) -> RunRow:
    """The run whose records tell what happened: the earliest that `row` agrees with."""
    seen: set[RunId] = set()
    while row.agreed_with is not None and row.id not in seen:
        seen.add(row.id)
        row = store.runs.get(row.agreed_with)
    return row
