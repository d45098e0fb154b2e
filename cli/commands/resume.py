"""`assay resume`: goes on with a run that did not complete, with its own plan and pins."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from assay.cli.call import Call
from assay.cli.errors import DeadlinePassed, ExitCode, HostError, Interrupted
from assay.cli.execution import choose_stored_renderer, execute_run, listen_to_signals
from assay.cli.history import reading_store
from assay.cli.options import Values
from assay.cli.render.stream import Stream
from assay.cli.render.text import one_line
from assay.cli.requests import read_deadline
from assay.engine import resumption
from assay.engine.clock import SystemClock
from assay.engine.environment import find_parent
from assay.engine.resumption import History, IsComplete, Resumption
from assay.engine.run_request import Cancellation, RunRequest
from assay.engine.runs import RunRow
from assay.engine.states import RunId, RunStatus
from assay.engine.store import Store
from assay.plans.model import Digest, Plan
from assay.plans.stored import DamagedPlan, plan_from_bytes


def perform(call: Call) -> int:
    values, out, err = call
    with reading_store() as asked:
        row, root = asked.runs.find(values.words[0]), asked.root
    if row.status is RunStatus.COMPLETED:
        return tell_complete(row.id, err)
    return resume(root, row.id, values, out, err)


def tell_complete(run: RunId, err: Stream) -> int:
    """Before it was asked for, or while it was waited for: the same answer."""
    err.write(f"run {run} has completed: there is nothing to go on with\n")
    return ExitCode.DONE


def resume(root: str, run: RunId, values: Values, out: Stream, err: Stream) -> int:
    """Goes on with the run; the exit code."""
    cancellation = Cancellation()
    received = listen_to_signals(cancellation)
    deadline = read_deadline(values.text("deadline"))
    began = time.monotonic()

    def stop_waiting() -> None:
        if received:
            raise Interrupted(received[0])

    def pause(seconds: float) -> None:
        stop_waiting()
        if deadline is not None:
            left = began + deadline - time.monotonic()
            if left <= 0:
                raise DeadlinePassed(deadline)
            seconds = min(seconds, left)
        time.sleep(seconds)

    store = Store.open_for_run(root, now=time.time, on_wait=stop_waiting)
    try:
        if not store.recorded:
            raise HostError(
                f"The store of `{root}` cannot be written, so run {run} cannot be gone on with",
                hint="; ".join(store.notices),
            )
        for notice in store.notices:
            err.write(f"warning: {one_line(notice)}\n")
        clock = SystemClock()

        def tell(text: str) -> None:
            err.write(f"warning: {one_line(text)}\n")
            err.flush()

        try:
            resumption.refuse_living(store, run, tell, pause)
            resumption.wait_for_dead(store, run, clock, tell, pause)
        except (Interrupted, DeadlinePassed) as error:
            what = "interrupted" if isinstance(error, Interrupted) else "the deadline has passed"
            err.write(f"{what} while waiting: nothing was begun\n")
            return ExitCode.OPERATOR
        row = store.runs.get(run)
        if row.status is RunStatus.COMPLETED:
            return tell_complete(run, err)
        plan = load_stored(store, row)
        created_seq, history = resumption.read_history(store, row)
        if not created_seq:
            raise HostError(
                f"What was asked of run {run} is lost: its first record is not in the journal",
                hint="`assay run` begins a new run, and asks for what this one did",
            )
        selection = resumption.find_selection(plan, row, history)
        pins = store.pins.load(run)
        changes = resumption.find_changes(
            store, run, plan, selection, pins, history, dict(os.environ), clock
        )
        if changes and not values.flag("accept_environment"):
            return refuse_changes(row, changes, err)
        request = replace(
            make_request(values, row, history), waited_seconds=time.monotonic() - began
        )
        tell_event = choose_stored_renderer(values, row, out, err)
        try:
            claimed, lease = resumption.claim(store, run, find_parent(request.environ))
        except IsComplete:
            return tell_complete(run, err)
        resumed = Resumption(
            row=claimed,
            was=row.status,
            lease=lease,
            created_seq=created_seq,
            pins=pins,
            history=history,
            retry_failed=values.flag("retry_failed"),
            accepted=tuple(changes),
        )
        return execute_run(
            store, plan, selection, request, tell_event, cancellation, received, resumed
        )
    finally:
        store.close()


def load_stored(store: Store, row: RunRow) -> Plan:
    """The plan of the run as it was kept. Raises HostError when it cannot be had."""
    stored = store.runs.load_plan(row.plan_digest)
    hint = "`assay run` begins a new run, and asks for what this one did"
    if stored is None:
        raise HostError(f"The plan of run {row.id} is not kept", hint=hint)
    try:
        return plan_from_bytes(stored, Digest(row.plan_digest))
    except DamagedPlan as error:
        raise HostError(str(error).removesuffix("."), hint=hint) from None


def make_request(values: Values, row: RunRow, history: History) -> RunRequest:
    """What is asked of the run: as when it was begun, but for what is said anew."""
    return RunRequest(
        environ=dict(os.environ),
        jobs=values.number("jobs") or history.jobs or len(os.sched_getaffinity(0)),
        agents=values.number("agents"),
        fail_fast="fail_fast" in history.flags,
        strict="strict" in history.flags,
        fresh="fresh" in history.flags,
        new="new" in history.flags,
        deadline_seconds=read_deadline(values.text("deadline")),
        targets=row.targets,
        tags=history.tags,
        params=row.params,
    )


def refuse_changes(row: RunRow, changes: list[tuple[str, str, str]], err: Stream) -> int:
    """What the nodes to come are bound to is not what it was."""
    err.write(
        f"error: run {row.id} cannot go on as it began: this machine has changed for the nodes"
        " that are still to come\n"
    )
    for what, before, now in changes:
        err.write(f"   = {one_line(what)}: was {_shorten(before)}, is {_shorten(now)}\n")
    err.write(
        f"\nhint: `assay resume {row.id} --accept-environment` goes on with what is there now;"
        " `assay run` begins a new run\n"
    )
    return ExitCode.OPERATOR


def _shorten(text: str) -> str:
    shown = one_line(text)
    if len(shown) == 64 and set(shown) <= set("0123456789abcdef"):
        return shown[:12]  # a digest
    return f"`{shown[:80]}`" if shown != "unset" else shown


def find_unfinished(root: str, plan: Plan, request: RunRequest) -> RunId | None:
    """The run that `assay run --resume` goes on with; None when there is none."""
    store = Store.open_for_reading(root)
    if store is None:
        return None
    try:
        return resumption.find_unfinished(store, plan, request)
    finally:
        store.close()
