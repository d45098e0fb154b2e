"""`assay journal`: every recorded fact, of the store, of a run or of a node, in order."""

from __future__ import annotations

import json

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.history import read_settlements, reading_store
from assay.cli.render.journal import render_record
from assay.cli.render.stream import Stream
from assay.cli.render.text import one_line
from assay.engine.journal import Fact, Record
from assay.engine.store import Store
from assay.plans.canonical import JsonValue


def perform(call: Call) -> int:
    with reading_store() as store:
        run = store.runs.find(call.values.words[0]).id if call.values.words else None
        node = call.values.text("node") or None
        found = False
        for record in store.journal.read(run=run, node=node):
            found = True
            if call.out.failure is not None:
                break
            if call.values.flag("json"):
                call.out.write(_as_json(record))
                continue
            for line in render_record(record, with_run=run is None, colour=call.out.colour):
                call.out.write(line)
            if record.kind == Fact.AGREED and run is not None:
                _expand(store, record, call.out)
        if node is not None and not found:
            of_run = "" if run is None else f" in run {run}"
            call.err.write(
                f"no record is of `{one_line(node)}` alone{of_run}: it was never executed there, or"
                " is spelt otherwise\n"
            )
    return ExitCode.DONE


def _expand(store: Store, record: Record, out: Stream) -> None:
    """A run that dispatched nothing has one record: what it stands for."""
    assert record.run is not None
    for each in read_settlements(store, store.runs.get(record.run)):
        out.write(f"        {each.outcome:<9} {one_line(each.node)}  {one_line(each.detail)}\n")


def _as_json(record: Record) -> str:
    described: dict[str, JsonValue] = {
        "seq": record.seq,
        "at": record.at,
        "run": record.run,
        "node": record.node,
        "kind": record.kind,
        "source": record.source,
        "sequence": record.sequence,
        "data": record.data,
    }
    return json.dumps(described) + "\n"
