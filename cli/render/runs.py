"""One recorded run in words and as JSON: its head, whose it was, its nodes, its attempts.

Does not know where it was read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from assay.cli.history import Story
from assay.cli.render.journal import explain_record
from assay.cli.render.standings import describe_pids, describe_said
from assay.cli.render.tables import render_table
from assay.cli.render.text import count, duration, moment, one_line, paint, signal_name
from assay.engine.attempts import AttemptRow
from assay.engine.journal import Fact, Record
from assay.engine.ownership import Holder
from assay.engine.runs import Cancel, RunRow
from assay.engine.standing import Standing
from assay.engine.states import TAKEN_BACK, AttemptEnd, AttemptId, Outcome, RunStatus
from assay.plans.canonical import JsonValue


def render_counts(row: RunRow, status: RunStatus) -> str:
    """`3 built, 1 failed`; a run that has not settled tells what it selected, one that nobody has
    dealt with since its assay died says so."""
    if status is RunStatus.INTERRUPTED and row.settled_at is None:
        return f"its assay (pid {row.owner.pid}) is gone"
    told = ", ".join(
        f"{row.counts[outcome]:,} {outcome.value}" for outcome in Outcome if row.counts.get(outcome)
    )
    if row.counts.get(TAKEN_BACK):
        told = ", ".join(filter(None, (told, f"{row.counts[TAKEN_BACK]:,} taken back")))
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
        "boot": row.owner.boot,
        "fence": row.fence,
    }


def render_head(
    row: RunRow,
    status: RunStatus,
    story: Story,
    taken_back: Mapping[str, str],
    cancel: Cancel | None,
    waits: Sequence[AttemptRow],
    began_by: Holder,
    colour: bool,
) -> str:
    """What the run is, whose it is, and how far it came."""
    took = "" if row.settled_at is None else f", took {duration(row.settled_at - row.created_at)}"
    counts = render_counts(row, status)
    if not row.counts and story.settlements:
        counts += f", {_count_settlements(story, taken_back)}"
    lines = [
        f"{paint(f'run {row.id}', 'bold', colour)}  {status.value}: {counts}",
        f"plan      {one_line(row.plan_name)} ({one_line(row.plan_file)}, {row.plan_digest[:12]})",
        f"began     {moment(row.created_at)}{took}",
        f"by        pid {began_by.pid} on {one_line(began_by.host)}",
    ]
    if cancel is not None:
        lines.append(f"cancelled {moment(cancel.at)} by {one_line(cancel.by)}")
    if row.targets:
        lines.append(f"selected  {one_line(' '.join(row.targets))}")
    if row.params:
        lines.append(f"params    {one_line(' '.join(f'{k}={v}' for k, v in row.params))}")
    if row.parent_attempt is not None:
        lines.append(f"inside    attempt {row.parent_attempt}")
    if status is RunStatus.RUNNING or (status is RunStatus.INTERRUPTED and row.settled_at is None):
        lines.append(f"last sign of life  {moment(row.heartbeat_at)}")
    lines += [f"waits     for `{one_line(each.node)}` (attempt {each.id})" for each in waits]
    return "\n".join(lines) + "\n"


def _count_settlements(story: Story, taken_back: Mapping[str, str]) -> str:
    words = [taken_back.get(each.node, each.outcome) for each in story.settlements]
    order = [*(outcome.value for outcome in Outcome), *dict.fromkeys(taken_back.values())]
    return ", ".join(f"{words.count(word):,} {word}" for word in order if word in words)


_ORDINARY: Final = (Fact.RUN_CREATED, Fact.RUN_SETTLED, Fact.CANCEL_REQUESTED)


def render_turns(
    story: Story, standings: Iterable[Standing], names: Mapping[AttemptId, str]
) -> list[tuple[str, str]]:
    """Who had the run, what people did with it, and what they said of effects of other runs that
    it asks about, as (when, what); nothing where one owner began and ended it. `names` are the
    nodes of its attempts."""
    said = [
        (said.at, f"`{each.node}`: attempt {each.row.attempt} settled {describe_said(said)}")
        for each in standings
        for said in each.said
        if each.row is not None and not any(each.row.run == turn.run for turn in story.turns)
    ]
    if not said and all(
        each.kind in _ORDINARY and not _is_by_another(each) for each in story.turns
    ):
        return []
    told = [
        (record.at, _name_attempts(f"`{node}`: {text}" if node else text, record, names))
        for record in story.turns
        if record.kind != Fact.RUN_CREATED  # the head says so
        for node, text in explain_record(record)
    ]
    rows: list[tuple[str, str]] = []
    for at, text in sorted([*told, *said], key=lambda each: each[0]) if said else told:
        first, *more = text.split("; ")
        rows.append((moment(at), first))
        rows += [("", f"  {each}") for each in more]
    return rows


def _is_by_another(record: Record) -> bool:
    """Whether it tells of somebody who found the run without its owner."""
    return isinstance(record.data, dict) and record.kind == Fact.RUN_SETTLED and "by" in record.data


def _name_attempts(text: str, record: Record, names: Mapping[AttemptId, str]) -> str:
    """What a rewind took back, by the nodes that it is of."""
    if record.kind != Fact.REWOUND:
        return text

    def name(found: re.Match[str]) -> str:
        node = names.get(AttemptId(found[0]))
        return found[0] if node is None else f"`{node}`"

    return re.sub(rf"\b{record.run}-\d+\b", name, text)


def render_settlements(story: Story, taken_back: Mapping[str, str], colour: bool) -> str:
    """How each node settled; of one whose work was taken back since, that."""
    table = []
    for each in story.settlements:
        word, detail = each.outcome, each.detail
        if each.node in taken_back:
            word, detail = taken_back[each.node], f"was {', '.join(filter(None, (word, detail)))}"
        table.append((word, each.node, detail))
    return render_table(("outcome", "node", ""), table, colour=colour)


def render_attempts(
    attempts: Iterable[AttemptRow],
    status: RunStatus,
    living: Mapping[AttemptId, tuple[int, ...]],
    colour: bool,
) -> str:
    """`living` is what those of a run without an owner have left running."""
    table = [
        (
            each.id,
            each.node,
            str(each.number) if each.number else "restore",
            _ending(each, status, living),
            "" if each.settled_at is None else duration(each.settled_at - each.began_at),
            # A log that stayed empty is not kept.
            each.log if os.path.exists(each.log) else "",
        )
        for each in attempts
    ]
    return render_table(("attempt", "node", "try", "ended", "took", "log"), table, colour=colour)


def _ending(
    attempt: AttemptRow, status: RunStatus, living: Mapping[AttemptId, tuple[int, ...]]
) -> str:
    if attempt.end is None:
        if attempt.id in living:
            return f"still runs{describe_pids(living[attempt.id])}"
        if status is not RunStatus.INTERRUPTED:
            return "running"
        return "not known" if attempt.number else "broken off"
    if attempt.end is AttemptEnd.EXITED:
        return f"exit code {attempt.exit_code}"
    if attempt.end is AttemptEnd.SIGNALLED and attempt.signal is not None:
        return signal_name(attempt.signal)
    return attempt.end.value


def describe_attempt(
    attempt: AttemptRow, living: Mapping[AttemptId, tuple[int, ...]]
) -> dict[str, JsonValue]:
    """For `--json`."""
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
        "living": list(living.get(attempt.id, ())),
        "log": attempt.log,
    }
