"""What becomes of a node that is not sealed: one table over all that can be known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import pytest
from handmade import node
from store_rows import an_effect, digest

from assay.engine.effects import EffectRow
from assay.engine.intentions import (
    AWAITED,
    FAILURES,
    Done,
    Evidence,
    Judgement,
    Perform,
    Rethrow,
    RollBack,
    Stop,
    describe,
    find_vanished,
    judge,
    may_be_done,
    plan_identity,
)
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, EffectState, RunId
from assay.plans.model import Digest, Node, NodeName, Plan, Tier, When

RUN: Final = RunId("cccccccc")
CREATED: Final = 100
"""Journal position at which the run that asks was created."""
OLDER, BEGUN, NEWER = 10, 200, 300
"""Positions at which the own effect began, and others before and after it."""

COMPENSABLE: Final = node("pub", tier=Tier.COMPENSABLE)
ONCE: Final = node("pub", tier=Tier.IRREVERSIBLE)
KEYED: Final = node("pub", tier=Tier.IRREVERSIBLE, idempotency_key="k")
OTHERWISE_KEYED: Final = node("pub", tier=Tier.IRREVERSIBLE, idempotency_key="l")

NODES: Final = {
    "compensable": COMPENSABLE,
    "once": ONCE,
    "keyed": KEYED,
    "otherwise keyed": OTHERWISE_KEYED,
}

INTENDED, SUCCEEDED, UNKNOWN = (
    EffectState.INTENDED,
    EffectState.SUCCEEDED,
    EffectState.UNKNOWN,
)
NOTHING, ROLLED_BACK = EffectState.NOTHING, EffectState.ROLLED_BACK
ROLLING_BACK, COMPENSATING = EffectState.ROLLING_BACK, EffectState.COMPENSATING
LOST, CANCELLED, EXITED = AttemptEnd.LOST, AttemptEnd.CANCELLED, AttemptEnd.EXITED


def own(state: EffectState, end: AttemptEnd | None, tier: Tier = Tier.IRREVERSIBLE) -> EffectRow:
    """What the run itself did at its third try."""
    row = an_effect(RUN, 1, tier=tier, state=state, end=end, begun_seq=BEGUN)
    return dataclasses.replace(row, number=3, idempotency_key="k")


def other(
    state: EffectState,
    *,
    tier: Tier = Tier.IRREVERSIBLE,
    is_open: bool = True,
    settled_seq: int | None = 50,
    end: AttemptEnd | None = None,
) -> EffectRow:
    row = an_effect(
        "aaaaaaaa",
        1,
        tier=tier,
        state=state,
        end=end,
        begun_seq=OLDER,
        is_open=is_open,
        settled_seq=settled_seq,
    )
    return dataclasses.replace(row, idempotency_key="k")


def same(row: EffectRow) -> ActionKey:
    return row.content_key


NOW: Final = ActionKey(digest(99))


def different(row: EffectRow) -> ActionKey:
    return NOW


def explain(row: EffectRow) -> str:
    return "read changed: in"


def ask(
    subject: Node,
    *,
    mine: EffectRow | None = None,
    theirs: EffectRow | None = None,
    lost: str | None = None,
    retry_failed: bool = False,
    is_under_way: bool = False,
    unrecorded: AttemptId | None = None,
    key_over: Callable[[EffectRow], ActionKey] = different,
) -> Judgement:
    evidence = Evidence(CREATED, mine, theirs, lost, unrecorded, retry_failed, is_under_way)
    return judge(subject, evidence, key_over, explain, lambda row: " at noon")


def told(found: Judgement) -> str:
    """A judgement in one word or two, for the tables."""
    match found:
        case Done(how=how):
            return how
        case Rethrow():
            return "rethrow"
        case Stop(row=row):
            return "stop" if row is not None else "stop without a record"
        case RollBack():
            return "roll back"
        case Perform(reason=reason, number=number):
            return f"{reason} as {number}" if number is not None else reason


DONE = "done earlier in this run"
AGAIN = "has an effect that did not stand"
REPEAT, REPEAT_SAME = "repeats it under its key", "repeats it under its key as 3"
ANEW = "has an effect"


# What this run itself did. For each state and end: for a node that is compensable, has no key,
# the same key, another key; then the same where failures are to be tried again.

OWN: dict[tuple[EffectState, AttemptEnd | None], tuple[tuple[str, ...], tuple[str, ...]]] = {
    (SUCCEEDED, AttemptEnd.SUCCEEDED): ((DONE,) * 4, (DONE,) * 4),
    # An operator says that it is done.
    (SUCCEEDED, None): ((DONE,) * 4, (DONE,) * 4),
    (INTENDED, None): (("stop", "stop", REPEAT_SAME, "stop"),) * 2,
    (INTENDED, LOST): (("stop", "stop", REPEAT_SAME, "stop"),) * 2,
    (UNKNOWN, None): (("stop", "stop", REPEAT_SAME, "stop"),) * 2,
    (UNKNOWN, LOST): (("stop", "stop", REPEAT_SAME, "stop"),) * 2,
    # How a cancelled one ended is known: the next is another try.
    (UNKNOWN, CANCELLED): (("stop", "stop", REPEAT, "stop"),) * 2,
    **{
        (UNKNOWN, end): (("rethrow",) * 4, ("stop", "stop", REPEAT, "stop"))
        for end in sorted(FAILURES)
    },
    (NOTHING, None): ((AGAIN,) * 4, (AGAIN,) * 4),
    (NOTHING, LOST): ((AGAIN,) * 4, (AGAIN,) * 4),
    (NOTHING, CANCELLED): ((AGAIN,) * 4, (AGAIN,) * 4),
    **{(NOTHING, end): (("rethrow",) * 4, (AGAIN,) * 4) for end in sorted(FAILURES)},
    (ROLLED_BACK, None): ((AGAIN,) * 4, (AGAIN,) * 4),
    (ROLLED_BACK, LOST): ((AGAIN,) * 4, (AGAIN,) * 4),
    (ROLLED_BACK, CANCELLED): ((AGAIN,) * 4, (AGAIN,) * 4),
    **{(ROLLED_BACK, end): (("rethrow",) * 4, (AGAIN,) * 4) for end in sorted(FAILURES)},
    **{
        (state, end): (("roll back",) * 4, ("roll back",) * 4)
        for state in (ROLLING_BACK, COMPENSATING)
        for end in (None, LOST, CANCELLED)
    },
    **{
        (state, end): (("rethrow",) * 4, ("roll back",) * 4)
        for state in (ROLLING_BACK, COMPENSATING)
        for end in sorted(FAILURES)
    },
}


def own_cases() -> Iterator[tuple[EffectState, AttemptEnd | None, str, bool, str]]:
    for (state, end), (plainly, when_retried) in OWN.items():
        for retry_failed, expected in ((False, plainly), (True, when_retried)):
            for name, judgement in zip(NODES, expected, strict=True):
                yield state, end, name, retry_failed, judgement


@pytest.mark.parametrize(("state", "end", "name", "retry_failed", "expected"), list(own_cases()))
def test_what_this_run_did_decides(
    state: EffectState, end: AttemptEnd | None, name: str, retry_failed: bool, expected: str
) -> None:
    """C95, C98: a run replays what it did; a failure is one until it is to be tried again, and
    what nobody knows is asked about unless the world takes a repeat for the same."""
    mine = own(state, end)
    for when in When:
        subject = dataclasses.replace(NODES[name], when=when)
        assert told(ask(subject, mine=mine, retry_failed=retry_failed)) == expected
        # Nothing else that is known plays a part.
        for key_over, theirs in product(
            (same, different), (None, other(SUCCEEDED), other(UNKNOWN), other(ROLLING_BACK))
        ):
            found = ask(
                subject,
                mine=mine,
                theirs=theirs,
                lost="`x` is gone",
                retry_failed=retry_failed,
                key_over=key_over,
                is_under_way=True,
            )
            assert told(found) == expected


def test_every_state_and_end_of_this_run_is_in_the_table() -> None:
    """But for an attempt that succeeded whose effect is something else than done or taken back
    since, and ends that no record of the state has."""
    missing = set(product(EffectState, (None, *AttemptEnd))) - OWN.keys()
    assert missing == {
        *((state, AttemptEnd.SUCCEEDED) for state in EffectState if state is not SUCCEEDED),
        *((SUCCEEDED, end) for end in AttemptEnd if end is not AttemptEnd.SUCCEEDED),
        *((INTENDED, end) for end in (*FAILURES, CANCELLED)),
    }


# What another run did.


@dataclasses.dataclass(frozen=True)
class Case:
    """What the columns have in common: a row of another run, and whether content is as then."""

    theirs: EffectRow
    is_same: bool
    expected: tuple[str, str, str, str]
    """For a node that is compensable, has no key, the same key, another key."""
    is_under_way: bool = False

    def expect(self, name: str, when: When) -> str:
        """For a handler what was done by another run does not count: that was its occasion."""
        is_passed_over = when is not When.SUCCESS and self.theirs.is_sound
        if is_passed_over and self.theirs.state is SUCCEEDED:
            return ANEW
        return self.expected[list(NODES).index(name)]


EARLIER = "done earlier in run aaaaaaaa"
MEANWHILE = "done meanwhile by run aaaaaaaa"
BOTH: Final = (True, False)


def other_cases() -> Iterator[tuple[str, Case]]:
    for is_open in BOTH:
        opened = "open" if is_open else "closed"
        for settled_seq, how in ((50, EARLIER), (CREATED, EARLIER), (101, MEANWHILE)):
            yield (
                f"{opened}, done at {settled_seq}, equal",
                Case(other(SUCCEEDED, is_open=is_open, settled_seq=settled_seq), True, (how,) * 4),
            )
        for tier, open_answer in (
            (Tier.COMPENSABLE, "roll back"),
            (Tier.IRREVERSIBLE, "stop"),
        ):
            for settled_seq in (50, 101):
                yield (
                    f"{opened}, {tier} done at {settled_seq}, different",
                    Case(
                        other(SUCCEEDED, tier=tier, is_open=is_open, settled_seq=settled_seq),
                        False,
                        (open_answer if is_open else ANEW,) * 4,
                    ),
                )
            for accepted, answer in (
                (NOW, EARLIER),
                (ActionKey(digest(98)), open_answer if is_open else ANEW),
            ):
                row = dataclasses.replace(
                    other(SUCCEEDED, tier=tier, is_open=is_open), accepted=accepted
                )
                yield (
                    f"{opened}, {tier} done, accepted as {int(accepted, 16)}, different",
                    Case(row, False, (answer,) * 4),
                )
                yield (
                    f"{opened}, {tier} done, accepted as {int(accepted, 16)}, equal",
                    Case(row, True, (EARLIER,) * 4),
                )
        for is_same in BOTH:
            content = "equal" if is_same else "different"
            anyhow = dataclasses.replace(
                other(SUCCEEDED, is_open=is_open), accepts_any=True, content_key=ActionKey("")
            )
            yield f"{opened}, accepts any, {content}", Case(anyhow, is_same, (EARLIER,) * 4)
            for state in (ROLLING_BACK, COMPENSATING):
                row = other(state, tier=Tier.COMPENSABLE, is_open=is_open)
                yield f"{opened}, {state}, {content}", Case(row, is_same, ("roll back",) * 4)
            for state in (NOTHING, ROLLED_BACK):
                row = other(state, is_open=is_open)
                yield f"{opened}, {state}, {content}", Case(row, is_same, (ANEW,) * 4)
            unknown = "stop" if is_open else ANEW
            # The other side takes a repeat under the same key for the same request.
            repeat = REPEAT if is_same else unknown
            for state, end in product((INTENDED, UNKNOWN), (None, LOST, EXITED, CANCELLED)):
                for tier in (Tier.COMPENSABLE, Tier.IRREVERSIBLE):
                    row = other(state, tier=tier, is_open=is_open, end=end)
                    yield (
                        f"{opened}, {tier} {state} {end}, {content}",
                        Case(row, is_same, (unknown, unknown, repeat, unknown)),
                    )
            yield (
                f"{opened}, under way, {content}",
                Case(
                    other(INTENDED, is_open=is_open, settled_seq=None),
                    is_same,
                    (ANEW,) * 4,
                    is_under_way=True,
                ),
            )
            unsound = dataclasses.replace(other(UNKNOWN, is_open=is_open), is_sound=False)
            yield f"{opened}, unsound, {content}", Case(unsound, is_same, ("stop",) * 4)


CASES: Final = dict(other_cases())


@pytest.mark.parametrize("name", CASES)
def test_what_another_run_did_decides_where_this_one_did_nothing(name: str) -> None:
    """C96: what is there with equal content is done; what is there otherwise, or may be, is
    rolled back, repeated under its key or asked about, and never done twice."""
    case = CASES[name]
    for called, when, retry_failed in product(NODES, When, BOTH):
        found = ask(
            dataclasses.replace(NODES[called], when=when),
            theirs=case.theirs,
            retry_failed=retry_failed,
            is_under_way=case.is_under_way,
            key_over=same if case.is_same else different,
        )
        assert told(found) == case.expect(called, when)
        if isinstance(found, (Done, RollBack, Stop)):
            assert found.row == case.theirs
        if isinstance(found, Perform):
            # A new try of this run, whatever number the other had.
            assert found.number is None
            assert not found.is_retry


def test_every_state_of_another_run_is_in_the_table() -> None:
    """Open and closed, with equal and other content."""
    assert {(case.theirs.state, case.theirs.is_open, case.is_same) for case in CASES.values()} == (
        set(product(EffectState, BOTH, BOTH))
    )


PERFORMS: Final = frozenset({AGAIN, REPEAT, REPEAT_SAME})


@pytest.mark.parametrize("name", CASES)
def test_what_another_run_did_since_comes_before_another_try(name: str) -> None:
    """C96: where this run would try again, what another did after its own last try is judged
    first, and what another has achieved since answers what this one would ask; where that says
    nothing, or began before, its own stands."""
    case = CASES[name]
    for state, end, called, retry_failed, mine in own_cases():
        for when, begun_seq in product(When, (OLDER, BEGUN, NEWER)):
            theirs = dataclasses.replace(case.theirs, begun_seq=begun_seq)
            found = ask(
                dataclasses.replace(NODES[called], when=when),
                mine=own(state, end),
                theirs=theirs,
                lost="`x` is gone",
                retry_failed=retry_failed,
                is_under_way=case.is_under_way,
                key_over=same if case.is_same else different,
            )
            expected = mine
            since = case.expect(called, when)
            if mine == "stop" and begun_seq == NEWER and since.startswith("done "):
                expected = since
            counts = since != ANEW or case.is_under_way
            if mine in PERFORMS and begun_seq == NEWER and counts:
                expected = since
                assert isinstance(found, Perform) or found.row == theirs
            assert told(found) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("compensable", ANEW), ("once", "stop without a record"), ("keyed", ANEW)],
)
@pytest.mark.parametrize("retry_failed", BOTH)
def test_where_records_are_lost_only_a_repeat_that_is_safe_is_made(
    name: str, expected: str, retry_failed: bool
) -> None:
    """C87: what cannot be taken back and has no key is asked about, and the answer names what
    is left of the records."""
    found = ask(NODES[name], lost="`assay.db` is gone", retry_failed=retry_failed)
    assert told(found) == expected
    if isinstance(found, Stop):
        assert found.detail == (
            "whether it was done before is not known: the record of effects is lost"
            " (`assay.db` is gone)"
        )


@pytest.mark.parametrize("mine", [None, *EffectState])
@pytest.mark.parametrize("name", NODES)
def test_what_began_and_is_not_on_record_is_asked_about(
    name: str, mine: EffectState | None
) -> None:
    """C87: whatever is on record from before it says nothing of it; only what takes a repeat for
    the same is performed."""
    subject = NODES[name]
    found = ask(
        subject,
        mine=None if mine is None else own(mine, None),
        unrecorded=AttemptId("aaaaaaaa-9"),
    )
    if subject.idempotency_key is None:
        assert isinstance(found, Stop)
        assert found.row is None
        assert found.detail == (
            "was begun as attempt aaaaaaaa-9, and its record is lost: it may have happened"
        )
    else:
        assert not isinstance(found, Stop) or "aaaaaaaa-9" not in found.detail


@pytest.mark.parametrize("name", NODES)
def test_what_nobody_did_is_performed(name: str) -> None:
    """As the first try of this run."""
    assert ask(NODES[name]) == Perform(ANEW)


@pytest.mark.parametrize("name", NODES)
def test_a_damaged_record_of_this_run_stops_it(name: str) -> None:
    """C87: however it is asked, the effect may have happened."""
    for state, end, retry_failed in product(EffectState, (None, EXITED), BOTH):
        mine = dataclasses.replace(own(state, end), is_sound=False)
        found = ask(NODES[name], mine=mine, retry_failed=retry_failed, key_over=same)
        assert found == Stop("its record in the store is damaged (run cccccccc)", mine)


def test_a_stop_over_other_content_says_what_differs() -> None:
    """The operator reads what was done, where, and what is different now."""
    found = ask(ONCE, theirs=other(SUCCEEDED))
    assert isinstance(found, Stop)
    assert found.detail == "was done in run aaaaaaaa with other content: read changed: in"


def test_a_stop_over_other_content_under_the_same_key_says_so() -> None:
    """It is not repeated, for the other side would take it for the same request."""
    found = ask(KEYED, theirs=other(UNKNOWN))
    assert isinstance(found, Stop)
    assert found.detail == (
        "was started in run aaaaaaaa at noon, then its assay was killed: its effect may or may not"
        " have happened; its key is the same, but its content is not: read changed: in"
    )


@pytest.mark.parametrize(
    ("subject", "accepts_any", "mine", "expected"),
    [
        (ONCE, False, None, {SUCCEEDED}),
        (ONCE, True, None, set()),
        (COMPENSABLE, False, None, {SUCCEEDED}),
        (OTHERWISE_KEYED, False, None, {SUCCEEDED}),
        (KEYED, False, None, {SUCCEEDED, INTENDED, UNKNOWN}),
        (dataclasses.replace(ONCE, when=When.ALWAYS), False, None, set()),
        (ONCE, False, own(NOTHING, CANCELLED), set()),
    ],
)
def test_content_is_asked_of_the_row_that_is_judged(
    subject: Node, accepts_any: bool, mine: EffectRow | None, expected: set[EffectState]
) -> None:
    """And only where it decides anything."""
    asked: list[EffectRow] = []

    def key_over(row: EffectRow) -> ActionKey:
        asked.append(row)
        return row.content_key

    rows = [dataclasses.replace(other(state), accepts_any=accepts_any) for state in EffectState]
    for row in rows:
        ask(subject, mine=mine, theirs=row, key_over=key_over)
    assert asked == [row for row in rows if row.state in expected]


MAY_BE_DONE: Final = {
    INTENDED: True,
    SUCCEEDED: True,
    UNKNOWN: True,
    NOTHING: True,
    ROLLING_BACK: False,
    COMPENSATING: False,
    ROLLED_BACK: False,
}


@pytest.mark.parametrize("state", list(EffectState))
def test_what_has_been_put_back_cannot_be_said_to_stand(state: EffectState) -> None:
    """Nor what is half put back; of all else an operator may say so."""
    for is_open, end in product(BOTH, (None, LOST, EXITED)):
        assert may_be_done(other(state, is_open=is_open, end=end)) is MAY_BE_DONE[state]


# Words.


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (other(SUCCEEDED), "was done in run aaaaaaaa"),
        (
            other(INTENDED),
            "was started in run aaaaaaaa, then its assay was killed: its effect may or may not have"
            " happened",
        ),
        (
            dataclasses.replace(other(UNKNOWN), detail="was ended by SIGKILL"),
            "was ended by SIGKILL in run aaaaaaaa: its effect may or may not have happened",
        ),
        (other(ROLLING_BACK), "is being rolled back since run aaaaaaaa"),
        (other(COMPENSATING), "its `undo` has yet to end well since run aaaaaaaa"),
        (
            dataclasses.replace(other(COMPENSATING), detail="its `undo` ended with exit code 1"),
            "its `undo` has yet to end well since run aaaaaaaa: its `undo` ended with exit code 1",
        ),
        (other(NOTHING), "did nothing in run aaaaaaaa"),
        (other(ROLLED_BACK), "was rolled back in run aaaaaaaa"),
        (
            dataclasses.replace(other(SUCCEEDED), is_sound=False),
            "its record in the store is damaged (run aaaaaaaa)",
        ),
    ],
)
def test_what_is_known_of_an_effect_is_a_clause(row: EffectRow, expected: str) -> None:
    """It goes on after the name of the node."""
    assert describe(row) == expected


# What the plan no longer has.


@pytest.mark.parametrize("state", list(EffectState))
@pytest.mark.parametrize("end", [None, *AttemptEnd])
def test_an_effect_without_its_node_is_found_while_something_may_be_there(
    state: EffectState, end: AttemptEnd | None
) -> None:
    """C103: what did nothing or is taken back is history, and what an operator says is done is
    not asked about again."""
    row = other(state, end=end)
    is_answered = state is SUCCEEDED and end is None
    expected = [row] if state in AWAITED and not is_answered else []
    assert find_vanished([row], lambda name: False) == expected
    assert find_vanished([row], lambda name: name == "pub") == []


def test_of_each_vanished_node_the_newest_effect_counts() -> None:
    """One taken back or settled by an operator since is no matter; the others keep their order."""
    ended = AttemptEnd.SUCCEEDED
    rows = [
        an_effect("aaaaaaaa", 1, node="a", state=SUCCEEDED, end=ended),
        an_effect("aaaaaaaa", 2, node="b", state=UNKNOWN),
        an_effect("aaaaaaaa", 3, node="c", state=SUCCEEDED, end=ended),
        an_effect("bbbbbbbb", 4, node="a", state=ROLLED_BACK),
        an_effect("bbbbbbbb", 5, node="b", state=SUCCEEDED, end=ended),
        an_effect("aaaaaaaa", 6, node="d", state=UNKNOWN),
        an_effect("bbbbbbbb", 7, node="d", state=SUCCEEDED),
    ]
    found = find_vanished(rows, lambda name: name == "c")
    assert [row.attempt for row in found] == ["bbbbbbbb-5"]


def test_a_damaged_record_without_its_node_is_found() -> None:
    """C87: it is unknown, whatever it was."""
    row = dataclasses.replace(other(UNKNOWN), node=NodeName("gone"), is_sound=False)
    assert find_vanished([row], lambda name: name != "gone") == [row]


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("plan.toml", "site", "plan.toml"),
        ("sub/plan.toml", "site", "sub/plan.toml"),
        ("-", "site", "- site"),
        ("-", "other", "- other"),
    ],
)
def test_a_plan_is_known_by_its_file_or_its_name(file: str, name: str, expected: str) -> None:
    """C103: over standard input by the name, which no file has."""
    plan = Plan(name, (), (), (), (), Digest(""), Digest(""), file=file)
    assert plan_identity(plan) == expected
