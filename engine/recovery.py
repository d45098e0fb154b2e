"""What to do about runs whose assay died: end what they left running, settle their attempts
as lost, put back the inputs those may have half rewritten, and mark the runs interrupted.

Every step may be repeated: a recovery that is killed half-way is done again by the next
run. Runs with a living owner, a stopped one included, are never touched.
"""

from __future__ import annotations

import os
from contextlib import suppress

from assay.engine import lock_files, temporary
from assay.engine.attempts import AttemptRow
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.clock import Clock
from assay.engine.filesystem import FilesystemError
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.materialize import CannotRestore, Restored, restore
from assay.engine.measuring import Measurer
from assay.engine.orphans import Trace, end_survivors, find_all_survivors
from assay.engine.runs import LostFence, RunRow
from assay.engine.states import AttemptEnd, AttemptId, RunStatus, stored_digest
from assay.engine.store import Store
from assay.plans.entries import matches
from assay.plans.model import RelPath


def recover(store: Store, measurer: Measurer, blobs: Blobs, clock: Clock) -> tuple[str, ...]:
    """Deals with every run whose owner is gone; sentences that tell the user.

    One process at a time: another that begins meanwhile waits, so that it neither looks at
    a half rewritten input nor puts one back that has gone on since.
    """
    if not _find_dead(store):
        return ()
    told: list[str] = []
    with lock_files.wait_for(os.path.join(store.tmp, "recovery.lock")):
        for run in _find_dead(store):
            told.extend(_recover_run(store, measurer, blobs, clock, run))
    return tuple(told)


def _find_dead(store: Store) -> list[RunRow]:
    return [run for run in store.runs.unsettled() if not store.runs.is_alive(run.id)]


def _recover_run(
    store: Store, measurer: Measurer, blobs: Blobs, clock: Clock, run: RunRow
) -> list[str]:
    told: list[str] = []
    every = store.attempts.of_run(run.id)
    attempts = [row for row in every if row.end is None]
    traces = [_trace_of(store, row) for row in attempts]
    survivors = find_all_survivors(traces) if traces else {}
    ended = sorted(pid for pids in survivors.values() for pid in pids)
    if ended:
        for trace in traces:
            end_survivors(trace.attempt, trace.lease, trace.session)
    put_back: dict[AttemptId, tuple[RelPath, ...]] = {}
    for row in attempts:
        try:
            restored = _put_back(store, measurer, blobs, row)
        except (BlobMissing, BlobCorrupt, CannotRestore, FilesystemError) as error:
            told.append(f"what `{row.node}` may have half rewritten cannot be put back: {error}")
        else:
            put_back[row.id] = restored.put_back
            told.extend(f"what stood at `{path}` is in {to}" for path, to in restored.trashed)
    # On another host another assay may be doing the same: the fence lets one of the two
    # record it.
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
                    "put_back": list(put_back.get(row.id, ())),
                },
            )
        status = RunStatus.INTERRUPTED
        if store.runs.cancel_of(run.id) is not None:
            status = RunStatus.CANCELLED
        store.runs.settle(run.id, fence, status, {})
        store.journal.append(
            f"recovery:{run.id}",
            0,
            Fact.RUN_SETTLED,
            run=run.id,
            data={"status": status.value, "by": os.getpid()},
        )
    for row in every:
        _remove_empty(store, row)
    with suppress(FileNotFoundError):
        os.unlink(store.runs.lease_path(run.id))
    text = f"run {run.id} was interrupted: its assay (pid {run.owner.pid}) is gone"
    if ended:
        text += f"; ended what it left running (pid {', '.join(map(str, ended))})"
    names = ", ".join(f"`{path}`" for paths in put_back.values() for path in paths)
    if names:
        told.insert(0, f"put back what it may have half rewritten: {names}")
    return [text, *told]


def _put_back(store: Store, measurer: Measurer, blobs: Blobs, row: AttemptRow) -> Restored:
    """The files this attempt both read and wrote, as they stood before it. What stands
    there instead may be an edit of the user's since: it goes to the trash."""
    # What is not in the store was not kept: the command was not started, or it held a secret.
    kept = [
        (path, state)
        for path, state in row.before.items()
        if matches(row.claims.reads, path)
        and (digest := stored_digest(state)) is not None
        and blobs.has(digest)
    ]
    return restore(
        store.root,
        kept,
        (),
        measurer=measurer,
        blobs=blobs,
        staging=os.path.join(store.tmp, f"{row.id}.stage"),
        trash=os.path.join(store.trash, row.id),
        knows=lambda path, state: False,
    )


def _remove_empty(store: Store, row: AttemptRow) -> None:
    """Lease, private folder and a log that stayed empty: settled attempts leave theirs for
    the next ones of their run."""
    if row.temp:
        temporary.remove(row.temp)
    with suppress(FileNotFoundError):
        os.unlink(_lease_of(store, row))
    with suppress(FileNotFoundError):
        if row.log and not os.path.getsize(row.log):
            os.unlink(row.log)


def _trace_of(store: Store, row: AttemptRow) -> Trace:
    return Trace(row.id, _lease_of(store, row), row.pid)


def _lease_of(store: Store, row: AttemptRow) -> str:
    return os.path.join(store.tmp, f"{row.id}.lease")
