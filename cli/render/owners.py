"""Who has had a run, one after the other, in words and as JSON. Does not know where it was read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from assay.cli.render.tables import render_table
from assay.cli.render.text import moment
from assay.engine.ownership import Holder, Purpose
from assay.plans.canonical import JsonValue


def render_holders(holders: Iterable[Holder], *, colour: bool) -> str:
    """A table: each with its process, what it had the run for, since when, until when and why it
    has it no more."""
    table = [
        (
            f"pid {each.pid} on {each.host}",
            _describe_purpose(each.purpose),
            moment(each.since),
            "" if each.until is None else moment(each.until),
            each.ended or "",
        )
        for each in holders
    ]
    return render_table(("owner", "", "since", "until", "ended"), table, colour=colour)


def describe_holder(holder: Holder) -> dict[str, JsonValue]:
    """For `--json`. Times are seconds since the epoch."""
    return {
        "pid": holder.pid,
        "host": holder.host,
        "fence": holder.fence,
        "purpose": "run" if holder.purpose is None else holder.purpose.value,
        "since": holder.since,
        "until": holder.until,
        "ended": holder.ended,
    }


def _describe_purpose(purpose: Purpose | None) -> str:
    match purpose:
        case None:
            return "began it"
        case Purpose.RECOVERY:
            return "dealt with what was left"
        case Purpose.RESUME:
            return "went on with it"
        case Purpose.REWIND:
            return "took it back"
        case _:
            assert_never(purpose)
