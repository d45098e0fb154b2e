"""Who has had a run, and how it passed from one to the next: told by the journal.

Every claim is recorded in the transaction that makes it, by whoever takes the run; an owner that
finds out that it has lost its run records that it has stopped. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, cast

from assay.engine.identity import Owner
from assay.engine.journal import Fact, Record
from assay.engine.runs import Death, RunRow
from assay.engine.states import RunId
from assay.engine.store import Store
from assay.plans.canonical import JsonValue

SETTLED: Final = "settled"
"""The evidence of who claims a run that has ended: nobody has it."""


class Purpose(StrEnum):
    """What a run was claimed for."""

    RECOVERY = "recovery"
    """To deal with what a dead owner has left, and to settle the run."""
    RESUME = "resume"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that has had a run. `ended` says in words why it has it no more; None while it
    has it, or when nobody has told yet."""

    pid: int
    host: str
    fence: int
    since: float
    purpose: Purpose | None
    """None: it began the run."""
    until: float | None = None
    ended: str | None = None


class RunTaken(Exception):
    """Another process has the run now, `taker` where that is known: this one has ended what it
    ran of it, and writes nothing more."""

    def __init__(self, run: RunId, taker: Holder | None) -> None:
        super().__init__(f"run {run} was taken over")
        self.run = run
        self.taker = taker


def note_claim(
    store: Store,
    former: RunRow,
    fence: int,
    owner: Owner,
    evidence: Death | str,
    purpose: Purpose,
) -> None:
    """Records, in the open transaction, that `owner` has the run under `fence` from now on.
    `former` is the run as it was before."""
    store.journal.append(
        _source(former.id, fence),
        1,
        Fact.RUN_CLAIMED,
        run=former.id,
        data={
            "from": _describe(former.owner, former.fence),
            "to": _describe(owner, fence),
            "evidence": str(evidence),
            "purpose": purpose.value,
        },
    )


def note_loss(store: Store, row: RunRow) -> None:
    """Records that the owner in `row` has stopped, since the run is not its any more."""
    store.journal.append(
        f"abandoned:{row.id}:{row.fence}",
        1,
        Fact.RUN_ABANDONED,
        run=row.id,
        data=_describe(row.owner, row.fence),
    )


def find_taker(store: Store, run: RunId, fence: int) -> Holder | None:
    """Who took the run from the owner that had it under `fence`; None when that is not known."""
    record = store.journal.find(_source(run, fence + 1), 1)
    return None if record is None else _read_claim(record)


def read_holders(store: Store, row: RunRow) -> list[Holder]:
    """Everyone who has had the run, in order. One that agreed with another run tells of its owner
    alone, and so does one whose first records are lost."""
    found: list[Holder] = []
    for record in store.journal.read(run=row.id):
        told = cast("dict[str, Any]", record.data if isinstance(record.data, dict) else {})
        match record.kind:
            case Fact.RUN_CREATED:
                found.append(Holder(told["pid"], told["host"], 1, record.at, None))
            case Fact.RUN_CLAIMED:
                if found and found[-1].ended is None:
                    is_gone = found[-1].purpose is not Purpose.RECOVERY
                    how = (
                        f"counted as gone: {told['evidence']}"
                        if is_gone
                        else "left the rest to the next"
                    )
                    _end(found, record.at, how)
                found.append(_read_claim(record))
            case Fact.RUN_SETTLED if found:
                _end(found, record.at, told["status"])
            case Fact.RUN_ABANDONED:
                found[:] = _with_loss(found, told["fence"])
            case _:
                pass
    return found or [Holder(row.owner.pid, row.owner.host, row.fence, row.created_at, None)]


def _with_loss(found: list[Holder], fence: int) -> Iterator[Holder]:
    for each in found:
        is_it = each.fence == fence and each.ended is not None
        yield replace(each, ended=f"{each.ended}; it has stopped since") if is_it else each


def _end(found: list[Holder], at: float, how: str) -> None:
    found[-1] = replace(found[-1], until=at, ended=how)


def _read_claim(record: Record) -> Holder:
    told = cast("dict[str, Any]", record.data)
    to = told["to"]
    return Holder(to["pid"], to["host"], to["fence"], record.at, Purpose(told["purpose"]))


def _describe(owner: Owner, fence: int) -> dict[str, JsonValue]:
    return {
        "host": owner.host,
        "boot": owner.boot,
        "pid": owner.pid,
        "nonce": owner.nonce,
        "fence": fence,
    }


def _source(run: RunId, fence: int) -> str:
    """A run is claimed once under each fence."""
    return f"claim:{run}:{fence}"
