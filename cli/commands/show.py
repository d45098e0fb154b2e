"""`assay show`: one run, whose it was, how its nodes settled, the attempts it took, how its effects
stand, and what is asked of an operator."""

from __future__ import annotations

import json
from collections.abc import Mapping

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.history import Story, read_story, reading_store, status_of
from assay.cli.location import current_folder
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
    question_as_json,
    render_question,
    render_ways,
)
from assay.cli.render.tables import render_table
from assay.engine.attempts import AttemptRow
from assay.engine.resumption import may_be_gone_on_with
from assay.engine.runs import RunRow
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


def perform(call: Call) -> int:
    with reading_store() as store:
        row = store.runs.find(call.values.words[0] if call.values.words else "last")
        status = status_of(store, row)
        story = read_story(store, row)
        attempts = store.attempts.of_run(row.id)
        living = _find_living(store, status, attempts)
        standings = find_standings(store, row)
        cancel = store.runs.cancel_of(row.id)
        may_resume = may_be_gone_on_with(store, row)
        waits = [each for each in map(store.attempts.get, store.runs.waiting(row.id)) if each]
        root = store.root
    taken_back = _find_taken_back(row, story, standings)
    if call.values.flag("json"):
        described: dict[str, JsonValue] = {
            **describe_run(row, status),
            "cancelled_by": None if cancel is None else cancel.by,
            "nodes": [
                {
                    "node": each.node,
                    "outcome": each.outcome,
                    "detail": each.detail,
                    "taken_back": taken_back.get(each.node) == _TAKEN_BACK[EffectState.ROLLED_BACK],
                }
                for each in story.settlements
            ],
            "attempts": [describe_attempt(each, living) for each in attempts],
            "effects": [as_json(each) for each in standings],
            "questions": [
                question_as_json(each, each.question)
                for each in standings
                if each.question is not None
            ],
            "waits_for": [each.id for each in waits],
            "kept_running": [{"node": node, "pid": pid} for node, pid in story.kept],
            "history": [
                {"at": each.at, "kind": each.kind, "node": each.node, "data": each.data}
                for each in story.turns
            ],
        }
        call.out.write(json.dumps(described, indent=2) + "\n")
        return ExitCode.DONE
    colour = call.out.colour
    parts = [render_head(row, status, story, taken_back, cancel, waits, colour)]
    turns = render_turns(story, standings, {each.id: each.node for each in attempts})
    if turns:
        parts.append(render_table(("when", "what"), turns, colour=colour))
    if story.settlements:
        parts.append(render_settlements(story, taken_back, colour))
    if attempts:
        parts.append(render_attempts(attempts, status, living, colour))
    if standings:
        told = [
            (
                each.node,
                "" if each.row is None else each.row.attempt,
                describe_standing(each),
            )
            for each in standings
        ]
        parts.append(render_table(("effect of", "attempt", "is"), told, colour=colour))
    if story.kept:
        pairs = [(node, str(pid)) for node, pid in story.kept]
        parts.append(render_table(("left running", "pid"), pairs, colour=colour))
    asked = [line for each in standings for line in render_question(each)]
    if asked:
        parts.append("".join(f"{line}\n" for line in asked))
    is_stuck = any(each.outcome == Outcome.AMBIGUOUS for each in story.settlements)
    if asked or is_stuck or status in _HALTED:
        lines = render_ways(
            root, current_folder(), row, may_resume=may_resume, is_living=bool(living)
        )
        parts.append("".join(f"{line}\n" for line in lines))
    call.out.write("\n".join(parts))
    return ExitCode.DONE


def _find_living(
    store: Store, status: RunStatus, attempts: list[AttemptRow]
) -> dict[AttemptId, tuple[int, ...]]:
    """Of a run whose assay is gone: what its attempts have left running."""
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
