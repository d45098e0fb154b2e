"""What the store tells of earlier runs, put together for the commands that ask.

Does not know how answers are shown. Reads only; nothing here makes a `.assay/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from assay.cli.errors import HostError, UsageError
from assay.cli.location import current_folder, find_root
from assay.engine.journal import Fact
from assay.engine.runs import RunRow
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
def writing_store(root: str, on_wait: Callable[[], None] | None = None) -> Iterator[Store]:
    """The store of that workspace, for a command whose answer is worth nothing unless it is on
    record; `on_wait` is called while others keep it waiting, and may raise. Raises HostError
    where nothing can be written."""
    store = Store.open_for_run(root, now=time.time, on_wait=on_wait)
    try:
        if not store.recorded:
            raise HostError(
                f"The store of `{root}` cannot be written", hint="; ".join(store.notices)
            )
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


def read_settlements(store: Store, row: RunRow) -> Iterator[Settlement]:
    """How the run's nodes settled, in that order. A run that agreed with an earlier one
    settled every node of that one `clean`."""
    told_by = follow_agreement(store, row)
    agreed = told_by.id != row.id
    # In a run that was gone on with a node settles more than once: the last time counts.
    found: dict[str, Settlement] = {}
    for record in store.journal.read(run=told_by.id):
        if record.kind != Fact.NODES_SETTLED:
            continue
        for node, outcome, detail in _outcomes(record.data):
            found.pop(node, None)
            found[node] = Settlement(node, outcome, detail)
    for each in found.values():
        if agreed and each.outcome in (Outcome.BUILT, Outcome.CLEAN):
            yield Settlement(each.node, Outcome.CLEAN, f"as in run {told_by.id}")
        else:
            yield each


def read_kept(store: Store, row: RunRow) -> Iterator[tuple[str, int]]:
    """Node and pid of each process that a node with `background = "keep"` left running when
    it ended; whether they still run is not known."""
    for record in store.journal.read(run=row.id):
        if record.kind == Fact.ATTEMPT_SETTLED and record.node is not None:
            told = cast("dict[str, list[int]]", record.data)
            for pid in told.get("kept_running", ()):
                yield record.node, pid


def follow_agreement(store: Store, row: RunRow) -> RunRow:
    """The run whose records tell what happened: the earliest that `row` agrees with."""
    seen: set[RunId] = set()
    while row.agreed_with is not None and row.id not in seen:
        seen.add(row.id)
        row = store.runs.get(row.agreed_with)
    return row


def _outcomes(data: JsonValue) -> Iterator[tuple[str, str, str]]:
    told = cast("dict[str, list[list[str]]]", data)
    for node, outcome, *rest in told["outcomes"]:
        yield node, outcome, rest[0] if rest else ""
