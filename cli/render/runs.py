"""One recorded run in words and as JSON. Does not know where it was read."""

from __future__ import annotations

from assay.cli.render.text import count
from assay.engine.runs import RunRow
from assay.engine.states import Outcome, RunStatus
from assay.plans.canonical import JsonValue


def render_counts(row: RunRow) -> str:
    """`3 built, 1 failed`; a run that has not settled tells what it selected."""
    told = ", ".join(
        f"{row.counts[outcome]:,} {outcome.value}" for outcome in Outcome if row.counts.get(outcome)
    )
    if told and row.agreed_with is not None:
        return f"{told}, as in run {row.agreed_with}"
    return told or f"{count(row.selected, 'node')} selected"


def describe_run(row: RunRow, status: RunStatus) -> dict[str, JsonValue]:
    """For `--json`. Times are seconds since the epoch."""
    return {
        "run": row.id,
        "status": status.value,
        "plan": row.plan_name,
        "file": row.plan_file,
        "plan_digest": row.plan_digest,
        "created_at": row.created_at,
        "settled_at": row.settled_at,
        "selected": row.selected,
        "counts": dict(row.counts),
        "agreed_with": row.agreed_with,
        "targets": list(row.targets),
        "params": dict(row.params),
        "parent_attempt": row.parent_attempt,
        "pid": row.owner.pid,
        "host": row.owner.host,
    }
