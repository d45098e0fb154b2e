"""`assay show`: one run, whose it was, how its nodes settled, the attempts it took, how its effects
stand, and what is asked of an operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.history import Story, read_story, reading_store, status_of
from assay.cli.location import current_folder
from assay.cli.render.json_events import question_as_json
from assay.cli.render.owners import describe_holder, render_holders
from assay.cli.render.runs import (
    describe_attempt,
    describe_run,
    render_attempts,
    render_head,
    render_settlements,
    render_turns,
)
from assay.cli.render.standings import (
    as_json,
    describe_standing,
    render_question,
    render_ways,
)
from assay.cli.render.tables import render_table
from assay.engine.attempts import AttemptRow
from assay.engine.ownership import Holder, read_holders
from assay.engine.resumption import may_be_gone_on_with
from assay.engine.runs import Cancel, RunRow
from assay.engine.standing import Standing, find_living, find_standings
from assay.engine.states import AttemptId, EffectState, Outcome, RunStatus
from assay.engine.store import Store
from assay.plans.canonical import JsonValue

_HALTED = (RunStatus.INTERRUPTED, RunStatus.SUSPENDED, RunStatus.CANCELLED)
_TAKEN_BACK = {
    EffectState.ROLLED_BACK: "taken back",
    EffectState.ROLLING_BACK: "being taken back",
    EffectState.COMPENSATING: "not taken back wholly",
}


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is shown of one run."""

    root: str
    row: RunRow
    status: RunStatus
    story: Story
    attempts: list[AttemptRow]
    living: Mapping[AttemptId, tuple[int, ...]]
    """What its attempts have left running, where its assay is gone."""
    standings: tuple[Standing, ...]
    taken_back: Mapping[str, str]
    cancel: Cancel | None
    may_resume: bool
    waits: list[AttemptRow]
    """Attempts of other runs that it waits for."""
    holders: list[Holder]


def perform(call: Call) -> int:
    with reading_store() as store:
        shown = _read(store, call.values.words[0] if call.values.words else "last")
    if call.values.flag("json"):
        call.out.write(json.dumps(_describe(shown), indent=2) + "\n")
    else:
        call.out.write("\n".join(_render(shown, colour=call.out.colour)))
    return ExitCode.DONE


def _read(store: Store, wanted: str) -> _Shown:
    row = store.runs.find(wanted)
    status = status_of(store, row)
    story = read_story(store, row)
    attempts = store.attempts.of_run(row.id)
    standings = find_standings(store, row)
    return _Shown(
        store.root,
        row,
        status,
        story,
        attempts,
        _find_living(store, status, attempts),
        standings,
        _find_taken_back(row, story, standings),
        store.runs.cancel_of(row.id),
        may_be_gone_on_with(store, row),
        [each for each in map(store.attempts.get, store.runs.waiting(row.id)) if each],
        read_holders(store, row),
    )


def _describe(shown: _Shown) -> dict[str, JsonValue]:
    """For `--json`."""
    is_taken_back = _TAKEN_BACK[EffectState.ROLLED_BACK]
    return {
        **describe_run(shown.row, shown.status),
        "cancelled_by": None if shown.cancel is None else shown.cancel.by,
        "nodes": [
            {
                "node": each.node,
                "outcome": each.outcome,
                "detail": each.detail,
                "taken_back": shown.taken_back.get(each.node) == is_taken_back,
            }
            for each in shown.story.settlements
        ],
        "attempts": [describe_attempt(each, shown.living) for each in shown.attempts],
        "effects": [as_json(each) for each in shown.standings],
        "questions": [
            question_as_json(each.node, each.question)
            for each in shown.standings
            if each.question is not None
        ],
        "owners": [describe_holder(each) for each in shown.holders],
        "waits_for": [each.id for each in shown.waits],
        "kept_running": [{"node": node, "pid": pid} for node, pid in shown.story.kept],
        "history": [
            {"at": each.at, "kind": each.kind, "node": each.node, "data": each.data}
            for each in shown.story.turns
        ],
    }


def _render(shown: _Shown, *, colour: bool) -> Iterator[str]:
    """The parts, each of which ends its last line."""
    row, story, standings = shown.row, shown.story, shown.standings
    yield render_head(
        row,
        shown.status,
        story,
        shown.taken_back,
        shown.cancel,
        shown.waits,
        shown.holders[0],
        colour,
    )
    if len(shown.holders) > 1:
        yield render_holders(shown.holders, colour=colour)
    turns = render_turns(story, standings, {each.id: each.node for each in shown.attempts})
    if turns:
        yield render_table(("when", "what"), turns, colour=colour)
    if story.settlements:
        yield render_settlements(story, shown.taken_back, colour)
    if shown.attempts:
        yield render_attempts(shown.attempts, shown.status, shown.living, colour)
    if standings:
        told = [
            (each.node, "" if each.row is None else each.row.attempt, describe_standing(each))
            for each in standings
        ]
        yield render_table(("effect of", "attempt", "is"), told, colour=colour)
    if story.kept:
        pairs = [(node, str(pid)) for node, pid in story.kept]
        yield render_table(("left running", "pid"), pairs, colour=colour)
    asked = [line for each in standings for line in render_question(each)]
    if asked:
        yield "".join(f"{line}\n" for line in asked)
    is_stuck = any(each.outcome == Outcome.AMBIGUOUS for each in story.settlements)
    if asked or is_stuck or shown.status in _HALTED:
        ways = render_ways(
            shown.root,
            current_folder(),
            row,
            may_resume=shown.may_resume,
            is_living=bool(shown.living),
        )
        yield "".join(f"{line}\n" for line in ways)


def _find_living(
    store: Store, status: RunStatus, attempts: list[AttemptRow]
) -> dict[AttemptId, tuple[int, ...]]:
    if status is not RunStatus.INTERRUPTED:
        return {}
    return find_living(store, [each for each in attempts if each.end is None])


def _find_taken_back(
    row: RunRow, story: Story, standings: tuple[Standing, ...]
) -> Mapping[str, str]:
    """Nodes that had settled well and whose work was taken back since, by a rewind or by a later
    run: how far, in words."""
    well = {
        each.node for each in story.settlements if each.outcome in (Outcome.BUILT, Outcome.CLEAN)
    }
    return {
        each.node: _TAKEN_BACK[each.row.state]
        for each in standings
        if each.row is not None
        and each.row.is_sound
        and each.row.run == row.id
        and each.row.state in _TAKEN_BACK
        and each.node in well
    }
