"""`assay runs`: the runs of this workspace, latest first."""

from __future__ import annotations

import json

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.history import reading_store, status_of
from assay.cli.render.runs import describe_run, render_counts
from assay.cli.render.tables import render_table
from assay.cli.render.text import duration, moment


def perform(call: Call) -> int:
    with reading_store() as store:
        rows = [
            (row, status_of(store, row))
            for row in store.runs.list(call.values.number("limit") or 20)
        ]
    if call.values.flag("json"):
        call.out.write(json.dumps([describe_run(*each) for each in rows], indent=2) + "\n")
        return ExitCode.DONE
    table = [
        (
            row.id,
            status.value,
            moment(row.created_at),
            "" if row.settled_at is None else duration(row.settled_at - row.created_at),
            row.plan_name,
            render_counts(row, status),
        )
        for row, status in rows
    ]
    heads = ("run", "status", "began", "took", "plan", "nodes")
    call.out.write(render_table(heads, table, colour=call.out.colour))
    return ExitCode.DONE
