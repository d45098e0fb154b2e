"""`assay cancel`: asks a run of another process to stop, and waits until it has."""

from __future__ import annotations

import os
import time
from typing import Final

from assay.cli.call import Call
from assay.cli.caller import describe_me
from assay.cli.errors import ExitCode, HostError
from assay.cli.history import reading_store
from assay.cli.render.stream import Stream
from assay.cli.render.text import one_line
from assay.engine.cancelling import end_if_dead, request_cancel
from assay.engine.clock import SystemClock
from assay.engine.environment import find_parent
from assay.engine.identity import this_host
from assay.engine.neighbours import find_ancestors
from assay.engine.runs import LEASE_SECONDS, RunRow
from assay.engine.states import RunId
from assay.engine.store import Store

_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 1.5
"""How long it waits before it says for whom."""


def perform(call: Call) -> int:
    with reading_store() as asked:
        run, root = asked.runs.find(call.values.words[0]), asked.root
    if run.settled_at is not None:
        call.err.write(f"run {run.id} has ended already: {run.status.value}\n")
        return ExitCode.DONE
    store = Store.open_for_run(root, now=time.time)
    try:
        for notice in store.notices:
            call.err.write(f"warning: {one_line(notice)}\n")
        if not store.recorded:
            raise HostError(
                f"The store of `{root}` cannot be written, so run {run.id} cannot be told",
                hint=f"`kill {run.owner.pid}` cancels it as well",
            )
        for each in request_cancel(store, run.id, describe_me()):
            if each != run.id:
                call.err.write(f"run {each}, which run {run.id} started, is cancelled with it\n")
        if _is_inside(store, run.id):
            call.err.write(f"run {run.id} is cancelled; not waiting, since this is part of it\n")
            return ExitCode.DONE
        settled = _wait_for_end(store, run.id, call.err)
    finally:
        store.close()
    call.err.write(f"run {settled.id} has ended: {settled.status.value}\n")
    return ExitCode.DONE


def _is_inside(store: Store, run: RunId) -> bool:
    """Whether a node of that run, or of one that it started, runs this command: it would wait
    for itself."""
    ancestors = find_ancestors(store, find_parent(os.environ))
    return any(row.run == run for row in ancestors)


def _wait_for_end(store: Store, run: RunId, err: Stream) -> RunRow:
    since = time.monotonic()
    told = False
    said: set[str] = set()
    while True:
        row = store.runs.get(run)
        if row.settled_at is not None:
            return row
        for text in end_if_dead(store, row, SystemClock()):
            if text not in said:
                said.add(text)
                err.write(f"{one_line(text)}\n")
        if not told and time.monotonic() - since > _PATIENCE_SECONDS:
            told = True
            if not store.runs.is_alive(run):
                err.write(f"waiting until what run {run} has left running has ended\n")
                continue
            way = f", and `kill {row.owner.pid}` asks that process itself"
            if row.owner.host != this_host():
                way = f"; without a sign of life for {LEASE_SECONDS:g}s that process counts as gone"
            stop = ""
            if store.runs.is_stopped(row):
                stop = f", stopped: `kill -CONT {row.owner.pid}` lets it go on"
            err.write(
                f"waiting until run {run} has ended (pid {row.owner.pid} on"
                f" {one_line(row.owner.host)}{stop}); Ctrl-C ends the waiting, not"
                f" the cancel{way}\n"
            )
        time.sleep(_POLL_SECONDS)
