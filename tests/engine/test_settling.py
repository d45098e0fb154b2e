"""What an operator says of an effect: whose it is, and what is recorded of it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ground import Ground, node, open_ground
from store_rows import a_run, an_attempt, an_effect

from assay.engine.clock import SystemClock
from assay.engine.effects import EffectRow
from assay.engine.intentions import Done, Evidence, Stop, judge
from assay.engine.journal import Fact
from assay.engine.settling import IsClosed, NoEffect, StillRuns, find_effect, settle_effect
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, EffectState, RunId, RunStatus
from assay.plans.model import Node, RelPath, Tier

RUN, LATER = RunId("aaaaaaaa"), RunId("bbbbbbbb")


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        for run in (RUN, LATER):
            ground.store.runs.create(a_run(run))
        yield ground


def find(ground: Ground, name: str = "pub", run: RunId = RUN) -> EffectRow:
    return find_effect(ground.store, ground.store.runs.get(run), name)


def settle(
    ground: Ground,
    row: EffectRow,
    declared: Node | None = None,
    *,
    done: bool,
    value: str | None = None,
) -> EffectRow:
    """The row once somebody has spoken."""
    settle_effect(
        ground.store, row, declared, done=done, value=value, by="eva", clock=SystemClock()
    )
    found = ground.store.effects.get(row.attempt)
    assert found is not None
    return found


# Which one is meant.


def test_the_newest_effect_of_the_node_is_meant(ground: Ground) -> None:
    """In that run: neither that of another node or run, nor an older one of its own."""
    effects = ground.store.effects
    for number, (run, name, is_open) in enumerate(
        [(RUN, "pub", False), (RUN, "pub", True), (RUN, "other", True), (LATER, "pub", True)], 1
    ):
        effects.put(an_effect(run, number, node=name, is_open=is_open))
    assert find(ground).attempt == "aaaaaaaa-2"
    assert find(ground, "other").attempt == "aaaaaaaa-3"
    assert find(ground, run=LATER).attempt == "bbbbbbbb-4"


def test_a_node_without_an_effect_is_told_with_those_that_have_one(ground: Ground) -> None:
    """Each once, in the order they began."""
    for number, name in enumerate(("b", "a", "b"), 1):
        ground.store.effects.put(an_effect(RUN, number, node=name))
    with pytest.raises(NoEffect, match="run aaaaaaaa has recorded no effect of `pub`") as caught:
        find(ground)
    assert caught.value.there == ("b", "a")
    with pytest.raises(NoEffect, match="run bbbbbbbb has") as caught:
        find(ground, run=LATER)
    assert caught.value.there == ()


def test_a_run_that_asks_about_what_another_did_names_it_as_well(ground: Ground) -> None:
    """The newest that is open of that node of the same plan, where the run has none itself."""
    effects = ground.store.effects
    for number, (name, plan_file, is_open) in enumerate(
        [
            ("pub", "plan.toml", True),
            ("pub", "plan.toml", True),
            ("pub", "plan.toml", False),
            ("pub", "other.toml", True),
            ("other", "plan.toml", True),
        ],
        1,
    ):
        effects.put(an_effect(RUN, number, node=name, plan_file=plan_file, is_open=is_open))
    assert find(ground, run=LATER).attempt == "aaaaaaaa-2"
    effects.close([AttemptId("aaaaaaaa-2")])
    assert find(ground, run=LATER).attempt == "aaaaaaaa-1"
    effects.close([AttemptId("aaaaaaaa-1")])
    effects.put(an_effect(LATER, 6, node="third"))
    with pytest.raises(NoEffect) as caught:
        find(ground, run=LATER)
    assert caught.value.there == ("third",)


def test_what_the_run_did_itself_is_meant_before_what_others_did(ground: Ground) -> None:
    """Though theirs is newer, and its own is closed."""
    ground.store.effects.put(an_effect(RUN, 1, state=EffectState.SUCCEEDED, is_open=False))
    ground.store.effects.put(an_effect(LATER, 2))
    with pytest.raises(IsClosed):
        find(ground)


def test_plans_from_standard_input_are_told_apart_by_name(ground: Ground) -> None:
    """C103: the effect of another plan that came the same way is not meant."""
    run = RunId("cccccccc")
    ground.store.runs.create(a_run(run, plan_file="-"))
    ground.store.effects.put(an_effect(RUN, 1, plan_file="- other"))
    with pytest.raises(NoEffect):
        find(ground, run=run)
    ground.store.effects.put(an_effect(RUN, 2, plan_file="- site"))
    assert find(ground, run=run).attempt == "aaaaaaaa-2"


def test_of_an_attempt_that_runs_nobody_can_say_anything(ground: Ground) -> None:
    """C97: until it has ended, however that is told."""
    ground.store.effects.put(an_effect(RUN, 1))
    ground.store.attempts.begin(an_attempt(RUN, 1, node="pub"))
    with pytest.raises(StillRuns, match=r"`pub` of run aaaaaaaa still runs, though"):
        find(ground)
    with pytest.raises(StillRuns, match=r"`pub` of run aaaaaaaa still runs"):
        find(ground, run=LATER)
    ground.store.attempts.settle(AttemptId("aaaaaaaa-1"), AttemptEnd.LOST, None, None, "", 2.0)
    assert find(ground).attempt == "aaaaaaaa-1"


def test_what_nobody_asks_for_is_not_settled(ground: Ground) -> None:
    """It would change nothing, and the operator is told why; unless its own run can still be gone
    on with, which asks."""
    row = an_effect(RUN, 1, state=EffectState.UNKNOWN, is_open=False)
    ground.store.effects.put(row)
    assert find(ground) == row
    ground.store.runs.settle(RUN, 1, RunStatus.COMPLETED, {})
    with pytest.raises(IsClosed, match="no run asks for what `pub` did in run aaaaaaaa any more"):
        find(ground)


def test_a_damaged_record_is_found(ground: Ground) -> None:
    """C87: an operator is the only one who can say what it was."""
    ground.store.effects.put(an_effect(RUN, 1))
    ground.store.database.execute("UPDATE effects SET data = ''")
    assert not find(ground).is_sound


# What is recorded.


@pytest.mark.parametrize("state", list(EffectState))
@pytest.mark.parametrize("done", [True, False])
def test_what_is_said_is_recorded(ground: Ground, state: EffectState, done: bool) -> None:
    """The state, by whom, since which record and for which content that was asked of; all that
    was known of the attempt stays."""
    before = dataclasses.replace(
        an_effect(RUN, 1, state=state, end=AttemptEnd.EXITED, undo="{}"),
        idempotency_key="k",
        asked=ActionKey("asked"),
        accepted=ActionKey("before"),
        detail="ended with exit code 1",
    )
    ground.store.effects.put(before)
    row = settle(ground, before, done=done, value='{"a":1}')
    (record,) = ground.store.journal.read(run=RUN)
    assert (record.kind, record.node) == (Fact.EFFECT_SETTLED, "pub")
    assert record.data == {
        "attempt": "aaaaaaaa-1",
        "by": "eva",
        "done": done,
        "value": '{"a":1}',
    }
    assert row == dataclasses.replace(
        before,
        state=EffectState.SUCCEEDED if done else EffectState.NOTHING,
        end=None,
        accepted=ActionKey("asked") if done else None,
        value='{"a":1}' if done else None,
        settled_seq=record.seq,
        detail="settled by eva",
    )


def test_saying_it_again_is_another_record(ground: Ground) -> None:
    """The last word counts, both are kept."""
    asked = ActionKey("asked")
    row = dataclasses.replace(an_effect(RUN, 1, state=EffectState.UNKNOWN), asked=asked)
    ground.store.effects.put(row)
    row = settle(ground, row, done=True, value="1")
    assert (row.state, row.value, row.accepted) == (EffectState.SUCCEEDED, "1", asked)
    row = settle(ground, row, done=False)
    assert (row.state, row.value, row.accepted) == (EffectState.NOTHING, None, None)
    assert len(list(ground.store.journal.read(run=RUN))) == 2


def test_what_was_written_is_kept_with_it(ground: Ground) -> None:
    """Its declared writes as they stand, in the store too, and known as the node's own."""
    declared = node(writes=["o", "d/", "none"], removes=["gone"])
    ground.write("o", "out", 0o755)
    ground.write("d/x", "in")
    ground.link("d/l", "x")
    ground.write("mine", "not its")
    ground.store.effects.put(an_effect(RUN, 1))
    row = settle(ground, find(ground), declared, done=True)
    assert row.outputs == tuple((RelPath(path), ground.state(path)) for path in ("d/l", "d/x", "o"))
    assert ground.store.results.knows(RelPath("o"), ground.state("o"))
    expected = ground.tree()
    shutil.rmtree(ground.root / "d")
    (ground.root / "o").unlink()
    ground.restore(row.outputs, declared.writes)
    assert ground.tree() == expected


@pytest.mark.parametrize("declared", [None, node(writes=["o"])])
def test_what_was_not_done_wrote_nothing(ground: Ground, declared: Node | None) -> None:
    """And where the run's plan is not kept nobody knows what it wrote."""
    ground.write("o", "out")
    ground.store.effects.put(an_effect(RUN, 1, outputs={"o": "absent"}))
    row = find(ground)
    assert settle(ground, row, declared, done=False).outputs == ()
    assert settle(ground, row, None, done=True).outputs == ()
    assert not ground.store.results.knows(RelPath("o"), ground.state("o"))


def test_what_cannot_be_measured_or_stored_is_no_reason_to_refuse(ground: Ground) -> None:
    """What the operator says is recorded all the same."""
    ground.write("o", "out")
    (ground.root / "d").mkdir()
    ground.store.effects.put(an_effect(RUN, 1))
    shutil.rmtree(ground.store.cas)
    Path(ground.store.cas).write_text("no folder")
    row = settle(ground, find(ground), node(writes=["o", "d/"]), done=True)
    assert row.state is EffectState.SUCCEEDED
    assert [path for path, _ in row.outputs] == ["d", "o"]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("with_node", [True, False])
def test_a_damaged_record_is_sound_again(ground: Ground, done: bool, with_node: bool) -> None:
    """C87: what is said of it is believed, and of which tier it is tells the plan of its run."""
    ground.store.effects.put(an_effect(RUN, 1, tier=Tier.COMPENSABLE))
    ground.store.database.execute("UPDATE effects SET data = ''")
    declared = dataclasses.replace(node(), tier=Tier.COMPENSABLE) if with_node else None
    row = settle(ground, find(ground), declared, done=done)
    assert row.is_sound
    assert row.accepts_any is done
    assert row.state is (EffectState.SUCCEEDED if done else EffectState.NOTHING)
    assert row.tier is (Tier.COMPENSABLE if with_node else Tier.IRREVERSIBLE)
    assert (row.is_open, row.begun_seq) == (True, 1)


CONTENT, ASKED, ANOTHER = ActionKey("content"), ActionKey("asked"), ActionKey("another")


@pytest.mark.parametrize(
    ("asked", "is_damaged", "now", "expected"),
    [
        (None, False, CONTENT, Done),
        (None, False, ANOTHER, Stop),
        (ASKED, False, CONTENT, Done),
        (ASKED, False, ASKED, Done),
        (ASKED, False, ANOTHER, Stop),
        # Nobody knows with which content it was done.
        (None, True, CONTENT, Done),
        (None, True, ANOTHER, Done),
    ],
)
def test_what_an_operator_says_is_done_holds_for_what_was_asked(
    ground: Ground,
    asked: ActionKey | None,
    is_damaged: bool,
    now: ActionKey,
    expected: type[Done | Stop],
) -> None:
    """C95: the next run does not ask again, unless it is about other content."""
    row = an_effect(RUN, 1, state=EffectState.UNKNOWN)
    ground.store.effects.put(dataclasses.replace(row, content_key=CONTENT, asked=asked))
    if is_damaged:
        ground.store.database.execute("UPDATE effects SET data = ''")
    row = settle(ground, find(ground), done=True)
    evidence = Evidence(10, None, row, None, None, retry_failed=False)
    found = judge(node(), evidence, lambda each: now, lambda each: "", lambda each: "")
    assert isinstance(found, expected)
    assert found.row == row
