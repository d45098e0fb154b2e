"""`assay show`: one run, how its nodes settled, and the attempts it took."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.history import read_kept, read_settlements, reading_store, status_of
from assay.cli.render.owners import describe_holder, render_holders
from assay.cli.render.runs import describe_run, render_counts
from assay.cli.render.tables import render_table
from assay.cli.render.text import duration, moment, one_line, paint, signal_name
from assay.engine.attempts import AttemptRow
from assay.engine.ownership import read_holders
from assay.engine.runs import Cancel, RunRow
from assay.engine.states import AttemptEnd, RunStatus
from assay.plans.canonical import JsonValue


def perform(call: Call) -> int:
    with reading_store() as store:
        row = store.runs.find(call.values.words[0] if call.values.words else "last")
        status = status_of(store, row)
        settlements = list(read_settlements(store, row))
        attempts = store.attempts.of_run(row.id)
        kept = list(read_kept(store, row))
        cancel = store.runs.cancel_of(row.id)
        holders = read_holders(store, row)
    if call.values.flag("json"):
        described: dict[str, JsonValue] = {
            **describe_run(row, status),
            "cancelled_by": None if cancel is None else cancel.by,
            "nodes": [
                {"node": each.node, "outcome": each.outcome, "detail": each.detail}
                for each in settlements
            ],
            "attempts": [_describe_attempt(each) for each in attempts],
            "kept_running": [{"node": node, "pid": pid} for node, pid in kept],
            "owners": [describe_holder(each) for each in holders],
        }
        call.out.write(json.dumps(described, indent=2) + "\n")
        return ExitCode.DONE
    call.out.write(_render_head(row, status, cancel, call.out.colour))
    if len(holders) > 1:
        call.out.write("\n" + render_holders(holders, colour=call.out.colour))
    if settlements:
        table = [(each.outcome, each.node, each.detail) for each in settlements]
        call.out.write("\n" + render_table(("outcome", "node", ""), table, colour=call.out.colour))
    if attempts:
        call.out.write("\n" + _render_attempts(attempts, call.out.colour))
    if kept:
        pairs = [(node, str(pid)) for node, pid in kept]
        call.out.write("\n" + render_table(("left running", "pid"), pairs, colour=call.out.colour))
    return ExitCode.DONE


def _render_head(row: RunRow, status: RunStatus, cancel: Cancel | None, colour: bool) -> str:
    took = "" if row.settled_at is None else f", took {duration(row.settled_at - row.created_at)}"
    lines = [
        f"{paint(f'run {row.id}', 'bold', colour)}  {status.value}: {render_counts(row)}",
        f"plan      {one_line(row.plan_name)} ({one_line(row.plan_file)}, {row.plan_digest[:12]})",
        f"began     {moment(row.created_at)}{took}",
        f"by        pid {row.owner.pid} on {one_line(row.owner.host)}",
    ]
    if cancel is not None:
        lines.append(f"cancelled {moment(cancel.at)} by {one_line(cancel.by)}")
    if row.targets:
        lines.append(f"selected  {one_line(' '.join(row.targets))}")
    if row.params:
        lines.append(f"params    {one_line(' '.join(f'{k}={v}' for k, v in row.params))}")
    if row.parent_attempt is not None:
        lines.append(f"inside    attempt {row.parent_attempt}")
    if status is RunStatus.RUNNING:
        lines.append(f"last sign of life  {moment(row.heartbeat_at)}")
    return "\n".join(lines) + "\n"


def _render_attempts(attempts: Iterable[AttemptRow], colour: bool) -> str:
    table = [
        (
            each.id,
            each.node,
            str(each.number) if each.number else "restore",
            _ending(each),
            "" if each.settled_at is None else duration(each.settled_at - each.began_at),
            # A log that stayed empty is not kept.
            each.log if os.path.exists(each.log) else "",
        )
        for each in attempts
    ]
    return render_table(("attempt", "node", "try", "ended", "took", "log"), table, colour=colour)


def _ending(attempt: AttemptRow) -> str:
    if attempt.end is None:
        return "running"
    if attempt.end is AttemptEnd.EXITED:
        return f"exit code {attempt.exit_code}"
    if attempt.end is AttemptEnd.SIGNALLED and attempt.signal is not None:
        return signal_name(attempt.signal)
    return attempt.end.value


def _describe_attempt(attempt: AttemptRow) -> dict[str, JsonValue]:
    return {
        "attempt": attempt.id,
        "node": attempt.node,
        "number": attempt.number,
        "action_key": attempt.action_key,
        "state": attempt.state.value,
        "end": None if attempt.end is None else attempt.end.value,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "detail": attempt.detail,
        "began_at": attempt.began_at,
        "settled_at": attempt.settled_at,
        "pid": attempt.pid,
        "log": attempt.log,
    }
