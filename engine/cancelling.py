"""Cancelling a run of another process, for good: asked in the store, which its owner heeds.

A run whose owner is gone is ended here, as recovery ends it. Does not know who asks, nor how
that is shown.
"""

from __future__ import annotations

import os

from assay.engine import recovery
from assay.engine.blobs import Blobs
from assay.engine.clock import Clock
from assay.engine.journal import Fact
from assay.engine.measuring import Measurer
from assay.engine.neighbours import find_ancestors
from assay.engine.runs import RunRow
from assay.engine.states import RunId
from assay.engine.store import Store


def request_cancel(store: Store, run: RunId, by: str) -> tuple[RunId, ...]:
    """Asks an unsettled run, and every run that its nodes and undos started, to stop; the runs
    that had not been asked before. `by` says who asks, in words."""
    asked: list[RunId] = []
    source = f"cancel:{os.urandom(8).hex()}"
    with store.transaction():
        for each in (run, *_find_inside(store, run)):
            around = None if each == run else run
            if store.runs.cancel(each, by, around):
                asked.append(each)
                store.journal.append(
                    source,
                    len(asked),
                    Fact.CANCEL_REQUESTED,
                    run=each,
                    data={"by": by, "around": around},
                )
    return tuple(asked)


def _find_inside(store: Store, run: RunId) -> list[RunId]:
    """The unsettled runs that nodes of this one started, and undos that it executes."""
    return [
        each.id
        for each in store.runs.unsettled()
        if each.id != run
        and any(row.run == run for row in find_ancestors(store, each.parent_attempt))
    ]


def end_if_dead(store: Store, run: RunRow, clock: Clock) -> tuple[str, ...]:
    """Ends a run whose owner is gone, as every recovery does; sentences that tell of it."""
    if run.settled_at is not None or store.runs.find_death(run) is None:
        return ()
    found = recover_all(store, clock)
    return found.told + recovery.describe_awaited(found)


def recover_all(store: Store, clock: Clock) -> recovery.Recovered:
    """Deals with every run whose owner is gone, as far as that can be done now."""
    measurer = Measurer(store.root, store.stats, clock.now_ns)
    return recovery.recover(store, measurer, Blobs(store.cas, store.tmp), clock)
