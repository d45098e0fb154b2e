"""What to do about runs whose assay died: end what they left running, settle their attempts
as lost, put back the inputs those may have half rewritten, and mark the runs interrupted.

Every step may be repeated: a recovery that is killed half-way is done again by the next
run. Runs with a living owner, a stopped one included, are never touched.
"""

from __future__ import annotations

import os
from contextlib import suppress

from assay.engine import temporary
from assay.engine.attempts import AttemptRow
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.clock import Clock
from assay.engine.filesystem import FilesystemError
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.materialize import CannotRestore, restore
from assay.engine.measuring import Measurer
from assay.engine.orphans import Trace, end_survivors, find_all_survivors
from assay.engine.runs import LostFence, RunRow
from assay.engine.states import ABSENT, FOLDER, AttemptEnd, RunStatus
from assay.engine.store import Store
from assay.plans.entries import matches


def recover(store: Store, measurer: Measurer, blobs: Blobs, clock: Clock) -> tuple[str, ...]:
    """Deals with every run whose owner is gone; sentences that tell the user."""
    told: list[str] = []
    for run in store.runs.unsettled():
        if not store.runs.is_alive(run.id):
            told.extend(_recover_run(store, measurer, blobs, clock, run))
    return tuple(told)


def _recover_run(
    store: Store, measurer: Measurer, blobs: Blobs, clock: Clock, run: RunRow
) -> list[str]:
    told: list[str] = []
    attempts = [row for row in store.attempts.of_run(run.id) if row.end is None]
    traces = [_trace_of(store, row) for row in attempts]
    survivors = find_all_survivors(traces) if traces else {}
    ended = sorted(pid for pids in survivors.values() for pid in pids)
    if ended:
        for trace in traces:
            end_survivors(trace.attempt, trace.lease, trace.session)
    put_back: list[str] = []
    for row in attempts:
        put_back.extend(_put_back(store, measurer, blobs, row))
        if row.temp:
            temporary.remove(row.temp)
    # Another assay may be doing the same: the fence lets one of the two record it.
    with suppress(LostFence), store.transaction():
        fence = store.runs.claim(run.id, run.fence, this_owner())
        for number, row in enumerate(attempts, 1):
            store.attempts.settle(
                row.id, AttemptEnd.LOST, None, None, "its assay ended first", clock.now()
            )
            store.journal.append(
                f"recovery:{run.id}",
                number,
                Fact.ATTEMPT_SETTLED,
                run=run.id,
                node=row.node,
                data={
                    "attempt": row.id,
                    "end": AttemptEnd.LOST.value,
                    "ended": list(survivors.get(row.id, ())),
                    "put_back": put_back,
                },
            )
        store.runs.settle(run.id, fence, RunStatus.INTERRUPTED, {})
        store.journal.append(
            f"recovery:{run.id}",
            0,
            Fact.RUN_SETTLED,
            run=run.id,
            data={"status": RunStatus.INTERRUPTED.value, "by": os.getpid()},
        )
    for row in attempts:
        with suppress(FileNotFoundError):
            os.unlink(_lease_of(store, row))
    with suppress(FileNotFoundError):
        os.unlink(store.runs.lease_path(run.id))
    text = f"run {run.id} was interrupted: its assay (pid {run.owner.pid}) is gone"
    if ended:
        text += f"; ended what it left running (pid {', '.join(map(str, ended))})"
    told.append(text)
    if put_back:
        told.append("put back what it may have half rewritten: " + ", ".join(put_back))
    return told


def _put_back(store: Store, measurer: Measurer, blobs: Blobs, row: AttemptRow) -> list[str]:
    """The files this attempt both read and wrote, as they stood before it. What stands
    there instead may be an edit of the user's since: it goes to the trash."""
    kept = [
        (path, state)
        for path, state in row.before.items()
        if state not in (ABSENT, FOLDER) and matches(row.claims.reads, path)
    ]
    if not kept:
        return []
    try:
        restored = restore(
            store.root,
            kept,
            (),
            measurer=measurer,
            blobs=blobs,
            staging=os.path.join(store.tmp, f"{row.id}.stage"),
            trash=os.path.join(store.trash, row.id),
            knows=lambda path, state: False,
        )
    except (BlobMissing, BlobCorrupt):
        # Nothing was stored, so the command was not started: the file is as it was.
        return []
    except (CannotRestore, FilesystemError) as error:
        return [f"not possible: {error}"]
    return [f"`{path}`" for path in restored.put_back]


def _trace_of(store: Store, row: AttemptRow) -> Trace:
    return Trace(row.id, _lease_of(store, row), row.pid)


def _lease_of(store: Store, row: AttemptRow) -> str:
    return os.path.join(store.tmp, f"{row.id}.lease")
