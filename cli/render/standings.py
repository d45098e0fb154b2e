"""How effects stand, in words and as JSON: what is known of each, what operators have said, and
the commands that answer what one is asked.

Does not know how that was found out.
"""

from __future__ import annotations

import os
from typing import Final, assert_never

from assay.cli.location import PLAN_FILE, is_plan_word
from assay.cli.render.failures import ways_on
from assay.cli.render.text import one_line, shell_word
from assay.engine.effects import EffectRow
from assay.engine.runs import RunRow
from assay.engine.settling import Said
from assay.engine.standing import Standing
from assay.engine.states import NOTHING_LEFT, AttemptEnd, EffectState
from assay.plans.canonical import JsonValue
from assay.plans.model import Tier

EFFECT_WORDS: Final[dict[EffectState, str]] = {
    EffectState.INTENDED: "under way",
    EffectState.SUCCEEDED: "done",
    EffectState.UNKNOWN: "may or may not have happened",
    EffectState.NOTHING: "did not happen",
    EffectState.ROLLED_BACK: "rolled back",
    EffectState.ROLLING_BACK: "being rolled back",
    EffectState.COMPENSATING: "files put back, its `undo` has yet to end well",
}
"""The state of an effect in a few words."""

_KILLED: Final = "its assay was killed while it ran"


def describe_standing(standing: Standing) -> str:
    """What is known of the effect."""
    row = standing.row
    if row is None:
        return f"not begun; the node is {standing.settled}" if standing.settled else "not begun"
    if not row.is_sound:
        return "its record in the store is damaged"
    if standing.is_living:
        return f"still runs{describe_pids(standing.living)}, though its assay is gone"
    if standing.is_lost:
        return _describe_lost(standing, row)
    if standing.moving is not None and row.state not in NOTHING_LEFT:
        return standing.moving
    words = EFFECT_WORDS[row.state]
    as_said = ", as settled" if standing.said and row.end is None else ""
    match row.state:
        case EffectState.SUCCEEDED:
            if standing.question is not None:
                return f"{words}, with other content than is asked for now"
            return words + as_said
        case EffectState.UNKNOWN | EffectState.INTENDED:
            how = _KILLED if row.end is AttemptEnd.LOST or not row.detail else row.detail
            return f"{EFFECT_WORDS[EffectState.UNKNOWN]}: {how}{_describe_key(standing, row)}"
        case EffectState.NOTHING:
            return f"{words}: {row.detail}" if row.detail and not as_said else words + as_said
        case EffectState.COMPENSATING if standing.question is None:
            return "files put back; its `undo` is run by whoever goes on"
        case EffectState.COMPENSATING:
            return f"{words}: {row.detail}" if row.detail else words
        case EffectState.ROLLED_BACK if standing.taken_back is not None:
            run, why = standing.taken_back
            return (
                f"{words}, since {why}" if run == row.run else f"{words} by run {run}, since {why}"
            )
        case EffectState.ROLLING_BACK | EffectState.ROLLED_BACK:
            return words
        case _:
            assert_never(row.state)


def _describe_lost(standing: Standing, row: EffectRow) -> str:
    """Nobody has dealt with it yet."""
    if row.tier is Tier.COMPENSABLE:
        return "not finished: it is rolled back by whoever goes on"
    if standing.question is None and row.idempotency_key is None:
        return "ended well, which is recorded by whoever goes on"
    words = EFFECT_WORDS[EffectState.UNKNOWN]
    return f"{words}: {_KILLED}{_describe_key(standing, row)}"


def _describe_key(standing: Standing, row: EffectRow) -> str:
    is_repeated = standing.question is None and row.idempotency_key is not None and row.is_open
    return "; repeated under its key" if is_repeated else ""


def describe_pids(pids: tuple[int, ...]) -> str:
    """` (pid 3, 5)`; empty where none is known."""
    return f" (pid {', '.join(map(str, pids))})" if pids else ""


def describe_said(said: Said) -> str:
    """`as done by ann on host (pid 7)`."""
    how = "done" if said.done else "not done"
    value = "" if said.value is None else f", with the result {one_line(said.value)}"
    return f"as {how} by {one_line(said.by)}{value}"


def render_question(standing: Standing) -> list[str]:
    """What an operator is asked about the effect, and each answer that `assay settle` takes."""
    question = standing.question
    if question is None:
        return []
    node = one_line(standing.node)
    if question.stands:
        asks = f"`{node}` was done with other content: does that stand?"
    elif question.may_be_done:
        asks = f"did the effect of `{node}` happen?"
    else:
        asks = f"what `{node}` did is not taken back wholly"
    return [f"open question: {asks}", *ways_on(standing.node, question)]


def render_ways(
    root: str, cwd: str, run: RunRow, *, may_resume: bool, is_living: bool
) -> list[str]:
    """How to go on from a run that did not complete, each way as a command."""
    lines = ["to go on:"]
    if is_living:
        lines.append(f"   = to end what still runs: assay cancel {run.id}")
    if may_resume:
        lines.append(f"   = this run: assay resume {run.id}")
    lines.append(f"   = a new one: {run_command(root, cwd, run)}")
    return lines


def run_command(root: str, cwd: str, run: RunRow) -> str:
    """The `assay run` that asks for the same, typed in the folder `cwd`."""
    words = ["assay", "run", *(f"-p{name}={value}" for name, value in run.params)]
    path = os.path.relpath(os.path.join(root, run.plan_file), cwd)
    # A first NODE that looks like a plan would be taken for one.
    is_plan = run.targets[:1] and is_plan_word(run.targets[0])
    if run.plan_file == "-" or path != PLAN_FILE or is_plan:
        words.append("-" if run.plan_file == "-" else path)
    return " ".join(map(shell_word, [*words, *run.targets]))


def as_json(standing: Standing) -> dict[str, JsonValue]:
    """For `--json`. Times are seconds since the epoch."""
    row = standing.row
    told: dict[str, JsonValue] = {"node": standing.node, "state": None}
    if row is not None:
        told |= {
            "run": row.run,
            "attempt": row.attempt,
            "tier": row.tier.value,
            "state": row.state.value,
            "is_open": row.is_open,
            "is_sound": row.is_sound,
            "detail": row.detail,
            "idempotency_key": row.idempotency_key,
            "began_at": standing.began_at,
            "is_lost": standing.is_lost,
            "living": list(standing.living),
            "settled": [
                {"at": said.at, "by": said.by, "done": said.done, "value": said.value}
                for said in standing.said
            ],
        }
    return told
