"""How the effects of a run stand: what is told of each, and what is asked of whom."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from ground import Ground, open_ground
from store_rows import a_run, an_attempt, an_effect

from assay.engine.attempts import Claims, row_of_restore
from assay.engine.claims import claims_of_undoing
from assay.engine.clock import SystemClock
from assay.engine.effects import EffectRow
from assay.engine.intentions import may_be_done, may_be_not_done
from assay.engine.journal import Fact
from assay.engine.settling import IsClosed, StillRuns, find_effect, settle_effect
from assay.engine.standing import Standing, find_living, find_standing, find_standings, read_settled
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, EffectState, RunId, RunStatus
from assay.plans.canonical import JsonValue
from assay.plans.model import NodeName, Tier

RUN, LATER = RunId("aaaaaaaa"), RunId("bbbbbbbb")


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        for run in (RUN, LATER):
            ground.store.runs.create(a_run(run))
        yield ground


def put(ground: Ground, row: EffectRow, *, is_running: bool = False) -> EffectRow:
    """The effect with its attempt, which nobody runs."""
    number = int(row.attempt.rpartition("-")[2])
    ground.store.attempts.begin(an_attempt(row.run, number, node=row.node))
    if not is_running:
        ground.store.attempts.settle(row.attempt, AttemptEnd.EXITED, 1, None, "", 2.0)
    ground.store.effects.put(row)
    return row


def only(ground: Ground, run: RunId = RUN) -> Standing:
    (found,) = find_standings(ground.store, ground.store.runs.get(run))
    return found


@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.FAILED, RunStatus.COMPLETED])
@pytest.mark.parametrize("is_open", [True, False])
def test_what_is_asked_can_be_answered(ground: Ground, status: RunStatus, is_open: bool) -> None:
    """C95: of any effect in any state, a question is there only where `settle` takes each answer
    that it names."""
    if status is not RunStatus.RUNNING:
        ground.store.runs.settle(RUN, 1, status, {})
    asked = 0
    cases = product(EffectState, (Tier.IRREVERSIBLE, Tier.COMPENSABLE), (None, "k"), (None, "b"))
    for number, (state, tier, key, other) in enumerate(cases, 1):
        row = an_effect(RUN, number, node=f"n{number}", tier=tier, state=state, is_open=is_open)
        asks = None if other is None else ActionKey(other)
        put(ground, dataclasses.replace(row, idempotency_key=key, asked=asks))
    for row in ground.store.effects.of_run(RUN):
        standing = find_standing(ground.store, row)
        if standing.question is None:
            continue
        asked += 1
        assert find_effect(ground.store, ground.store.runs.get(RUN), row.node) == row
        assert standing.question.may_be_done is may_be_done(row)
        assert may_be_not_done(row) or row.state is EffectState.SUCCEEDED
    assert bool(asked) is (is_open or status is not RunStatus.COMPLETED)


@pytest.mark.parametrize(
    ("state", "is_asked"),
    [
        (EffectState.INTENDED, True),
        (EffectState.UNKNOWN, True),
        (EffectState.COMPENSATING, False),
        (EffectState.SUCCEEDED, False),
        (EffectState.NOTHING, False),
        (EffectState.ROLLED_BACK, False),
        (EffectState.ROLLING_BACK, False),
    ],
)
def test_only_what_nobody_else_can_know_is_asked(
    ground: Ground, state: EffectState, is_asked: bool
) -> None:
    """What is done, did nothing or is rolled back by whoever goes on is no question."""
    put(ground, an_effect(RUN, 1, state=state))
    assert (only(ground).question is not None) is is_asked


@pytest.mark.parametrize(("undo", "is_asked"), [(None, False), ("ended with exit code 1", True)])
def test_an_undo_that_failed_is_a_question(
    ground: Ground, undo: str | None, is_asked: bool
) -> None:
    """One that was never tried is run by whoever goes on."""
    put(ground, an_effect(RUN, 1, tier=Tier.COMPENSABLE, state=EffectState.COMPENSATING))
    for number in (1, 2):
        data: JsonValue = {"attempt": "aaaaaaaa-1", "undo": undo}
        ground.store.journal.append("t", number, Fact.ROLLED_BACK, run=LATER, node="pub", data=data)
    assert (only(ground).question is not None) is is_asked


def test_what_has_a_key_is_asked_about_once_a_run_has_stopped_over_it(ground: Ground) -> None:
    """Until then it is repeated under its key."""
    row = an_effect(RUN, 1, state=EffectState.UNKNOWN)
    put(ground, dataclasses.replace(row, idempotency_key="k"))
    assert only(ground).question is None
    outcome: JsonValue = ["pub", "ambiguous", "", None, None, [RUN, "pub"]]
    ground.store.journal.append("t", 1, Fact.NODES_SETTLED, run=LATER, data={"outcomes": [outcome]})
    asked = only(ground, LATER)
    assert asked.row is not None
    assert (asked.row.run, asked.question is not None) == (RUN, True)


def test_a_run_that_was_recorded_without_saying_whom_it_asks(ground: Ground) -> None:
    """An older record: what is open of the same node is meant."""
    put(ground, an_effect(RUN, 1, state=EffectState.UNKNOWN))
    outcomes: JsonValue = [["pub", "ambiguous", "", None, None]]
    ground.store.journal.append("t", 1, Fact.NODES_SETTLED, run=LATER, data={"outcomes": outcomes})
    asked = only(ground, LATER)
    assert asked.row is not None
    assert asked.row.attempt == "aaaaaaaa-1"
    assert asked.question is not None


@pytest.mark.parametrize(
    ("tier", "key", "is_asked"),
    [
        (Tier.IRREVERSIBLE, None, True),
        (Tier.IRREVERSIBLE, "k", False),
        (Tier.COMPENSABLE, None, False),
    ],
)
def test_what_a_dead_run_left_is_foreseen(
    ground: Ground, tier: Tier, key: str | None, is_asked: bool
) -> None:
    """C97: `settle` deals with the dead run first, and then finds what is told here."""
    row = an_effect(RUN, 1, tier=tier)
    put(ground, dataclasses.replace(row, idempotency_key=key), is_running=True)
    found = only(ground)
    assert (found.is_lost, found.is_living, found.living) == (True, False, ())
    assert (found.question is not None) is is_asked
    rows = ground.store.attempts.of_run(RUN)
    assert find_living(ground.store, rows) == {}
    assert find_living(ground.store, []) == {}


def test_what_had_ended_well_in_its_private_tree_is_no_question(ground: Ground) -> None:
    """That it made something is on record: whoever goes on completes it."""
    put(ground, an_effect(RUN, 1), is_running=True)
    ground.store.journal.append(
        "t", 1, Fact.BUNDLE_MADE, run=RUN, node="pub", data={"attempt": "aaaaaaaa-1"}
    )
    assert only(ground).question is None


def test_what_lives_on_is_named(ground: Ground) -> None:
    """C97: its lease says that it lives, and who holds that which process it is."""
    put(ground, an_effect(RUN, 1), is_running=True)
    lease = Path(ground.store.tmp) / "aaaaaaaa-1.lease"
    lease.parent.mkdir(exist_ok=True)
    with open(lease, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = only(ground)
    assert (found.is_lost, found.is_living, found.question) == (True, True, None)
    assert found.living == (os.getpid(),)


def test_what_operators_said_is_told_in_order(ground: Ground) -> None:
    """C95: each answer with when, by whom and what; one that repeats what stands is none."""
    row = put(ground, an_effect(RUN, 1, state=EffectState.UNKNOWN))
    clock = SystemClock()

    def say(done: bool, value: str | None = None) -> tuple[bool | None, bool]:
        now = ground.store.effects.get(AttemptId("aaaaaaaa-1"))
        assert now is not None
        earlier, is_new = settle_effect(
            ground.store, now, None, done=done, value=value, by="eva", clock=clock
        )
        return None if earlier is None else earlier.done, is_new

    assert say(done=True) == (None, True)
    assert say(done=True) == (True, False)
    assert say(done=True, value="1") == (True, True)
    assert say(done=False) == (True, True)
    assert say(done=False) == (False, False)
    told = [(each.done, each.value, each.by) for each in find_standing(ground.store, row).said]
    assert told == [(True, None, "eva"), (True, "1", "eva"), (False, None, "eva")]


def test_the_same_answer_to_another_question_is_a_new_one(ground: Ground) -> None:
    """C95: what was said of one content says nothing of another that is asked about since."""
    row = put(ground, an_effect(RUN, 1, state=EffectState.UNKNOWN))
    clock = SystemClock()
    settle_effect(ground.store, row, None, done=True, value=None, by="eva", clock=clock)
    said = ground.store.effects.get(row.attempt)
    assert said is not None
    ground.store.effects.put(dataclasses.replace(said, asked=ActionKey("other")))
    now = ground.store.effects.get(row.attempt)
    assert now is not None
    again = settle_effect(ground.store, now, None, done=True, value=None, by="eva", clock=clock)
    assert again[1]
    last = ground.store.effects.get(row.attempt)
    assert last is not None
    assert last.accepted == "other"


def test_what_was_rolled_back_names_who_did_so(ground: Ground) -> None:
    """Another run, and why."""
    position = ground.store.journal.append(
        "t", 1, Fact.ROLLED_BACK, run=LATER, node="pub", data={"why": "so"}
    )
    row = an_effect(
        RUN, 1, tier=Tier.COMPENSABLE, state=EffectState.ROLLED_BACK, settled_seq=position
    )
    put(ground, row)
    assert only(ground).taken_back == (LATER, "so")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, []),
        ({"outcomes": "no"}, []),
        ({"outcomes": [1, [], ["a"], [1, 2]]}, []),
        ({"outcomes": [["a", "built"]]}, [("a", "built", "", None)]),
        ({"outcomes": [["a", "built", 5, None, None, [1]]]}, [("a", "built", "", None)]),
        (
            {"outcomes": [["a", "ambiguous", "why", None, None, ["q", "b"], "more"]]},
            [("a", "ambiguous", "why", ("q", "b"))],
        ),
    ],
)
def test_settlements_are_read_as_far_as_they_are_told(
    data: JsonValue, expected: list[tuple[object, ...]]
) -> None:
    """An older or a damaged record costs what it lacks, nothing else."""
    found = [(each.node, each.outcome, each.detail, each.asks) for each in read_settled(data)]
    assert found == expected


def test_of_what_moves_nobody_is_asked(ground: Ground) -> None:
    """C97: who executes it, or takes it back, is told instead."""
    put(ground, an_effect(RUN, 1), is_running=True)
    lease = ground.store.runs.take_lease(RUN)
    try:
        found = only(ground)
        with pytest.raises(StillRuns):
            find_effect(ground.store, ground.store.runs.get(RUN), "pub")
    finally:
        lease.release()
    assert found.question is None
    assert found.moving is not None
    assert found.moving.startswith(f"still runs: run {RUN} (pid ")


def test_what_is_closed_is_not_asked(ground: Ground) -> None:
    """C95: no run asks for it any more."""
    put(ground, an_effect(RUN, 1, state=EffectState.UNKNOWN, is_open=False))
    ground.store.runs.settle(RUN, 1, RunStatus.COMPLETED, {})
    with pytest.raises(IsClosed):
        find_effect(ground.store, ground.store.runs.get(RUN), "pub")
    assert only(ground).question is None
    assert only(ground).node == NodeName("pub")


@pytest.mark.parametrize("is_running", [True, False])
def test_an_effect_whose_run_is_lost_is_told_and_asks_nobody(
    ground: Ground, is_running: bool
) -> None:
    """C87: of a damaged database the effects may be left without their run."""
    row = an_effect("cccccccc", 1, state=EffectState.UNKNOWN)
    put(ground, row, is_running=is_running)
    found = find_standing(ground.store, row)
    assert (found.row, found.question) == (row, None)


def test_what_takes_back_the_work_of_others_lives_by_their_undos(ground: Ground) -> None:
    """C97: a rewind that was killed, whose `undo` lives on."""
    undone = an_effect(RUN, 1, tier=Tier.COMPENSABLE, state=EffectState.ROLLING_BACK)
    put(ground, undone)
    claims = claims_of_undoing([(undone, Claims())], "plan.toml")
    restore = row_of_restore(
        AttemptId("aaaaaaaa-2"), RUN, NodeName("one"), ActionKey(""), claims, 1.0
    )
    lease = Path(ground.store.tmp) / "aaaaaaaa-1.undo.lease"
    lease.parent.mkdir(exist_ok=True)
    assert find_living(ground.store, [restore]) == {}
    with open(lease, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert find_living(ground.store, [restore]) == {"aaaaaaaa-2": (os.getpid(),)}
