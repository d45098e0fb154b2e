"""Effects: rows under seal that outlive everything else, and what stays open of them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from store_rows import an_effect, digest, open_store

from assay.engine.effects import EffectRow, settled
from assay.engine.states import (
    ABSENT,
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    RunId,
    State,
)
from assay.engine.store import Store
from assay.plans.model import NodeName, RelPath, Tier

PLAN = "plan.toml"
PUB = NodeName("pub")
A, B, C = RunId("aaaaaaaa"), RunId("bbbbbbbb"), RunId("cccccccc")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def get(store: Store, attempt: str) -> EffectRow:
    found = store.effects.get(AttemptId(attempt))
    assert found is not None
    return found


# One row.


FULL = EffectRow(
    attempt=AttemptId("aaaaaaaa-7"),
    run=A,
    node=NodeName("pub[é\udcff]"),
    plan_file="d/\udcfe.toml",
    tier=Tier.COMPENSABLE,
    state=EffectState.SUCCEEDED,
    number=3,
    action_key=ActionKey(digest(1)),
    content_key=ActionKey(digest(2)),
    recipe='{"argv":["\udcff"]}',
    idempotency_key="k\udcff\n",
    undo='{"argv":["undo"]}',
    is_open=False,
    begun_seq=11,
    settled_seq=12,
    end=AttemptEnd.SUCCEEDED,
    outputs=((RelPath("d/\udcff\n"), State(f"exec:{digest(3)}")), (RelPath("gone"), ABSENT)),
    value='{"a":"\u00e9"}',
    accepts_any=True,
    asked=ActionKey(digest(4)),
    accepted=ActionKey(digest(5)),
    detail="it was \udcff\nso",
)
"""A row in which no field has its default or the value of a neighbour."""


def test_an_effect_comes_back_as_it_was_put(store: Store) -> None:
    """Every field, names of any bytes included; a row nobody filled in as well."""
    plain = dataclasses.replace(
        FULL,
        attempt=AttemptId("aaaaaaaa-8"),
        idempotency_key=None,
        undo=None,
        is_open=True,
        begun_seq=0,
        settled_seq=None,
        end=None,
        outputs=(),
        value=None,
        accepts_any=False,
        asked=None,
        accepted=None,
        detail="",
    )
    for row in (FULL, plain):
        store.effects.put(row)
        assert get(store, row.attempt) == row
    assert store.effects.get(AttemptId("aaaaaaaa-9")) is None


def test_no_field_of_a_row_is_forgotten() -> None:
    """A field added to the row without a value in the row above fails here."""
    plain = an_effect("bbbbbbbb", 1)
    for field in dataclasses.fields(EffectRow):
        if field.name != "is_sound":
            assert getattr(FULL, field.name) != getattr(plain, field.name), field.name


def test_every_state_and_end_comes_back(store: Store) -> None:
    """The words in the store are those of the code."""
    for tier, state, end in product(Tier, EffectState, (None, *AttemptEnd)):
        row = an_effect(A, 1, tier=tier, state=state, end=end)
        store.effects.put(row)
        assert get(store, row.attempt) == row


def test_an_effect_replaces_what_was_known_of_its_attempt(store: Store) -> None:
    """One row an attempt, the last that was put."""
    row = an_effect(A, 1)
    store.effects.put(row)
    known = settled(
        row, EffectState.UNKNOWN, 9, end=AttemptEnd.EXITED, detail="ended with exit code 1"
    )
    store.effects.put(known)
    assert store.effects.of_run(A) == [known]
    assert (known.state, known.settled_seq, known.end) == (
        EffectState.UNKNOWN,
        9,
        AttemptEnd.EXITED,
    )


@pytest.mark.parametrize(
    "change",
    [
        "data = replace(data, 'irreversible', 'compensable')",
        "data = replace(data, '\"number\":1', '\"number\":2')",
        "data = data || ' '",
        "data = ''",
        "data = '[['",
        "data = CAST(data AS BLOB)",
        "data = x'00ff'",
        "seal = 'x'",
        "seal = ''",
        "seal = CAST(seal AS BLOB)",
        "state = 'succeeded'",
        "state = 'no such state'",
        "state = ''",
        "begun_seq = begun_seq + 1",
        "settled_seq = 77",
        "settled_seq = NULL",
        "run = 'cccccccc'",
        "node = 'other'",
        "plan_file = 'other.toml'",
    ],
)
def test_a_row_that_is_not_what_was_put_is_unknown(store: Store, change: str) -> None:
    """C87: whatever it says, it is told as irreversible, unknown and unsound, and the rows
    beside it are as they were."""
    store.effects.put(an_effect(A, 1, tier=Tier.IRREVERSIBLE, settled_seq=5))
    beside = an_effect(A, 2, node="beside")
    store.effects.put(beside)
    store.database.execute(f"UPDATE effects SET {change} WHERE attempt = 'aaaaaaaa-1'")
    found = get(store, "aaaaaaaa-1")
    assert not found.is_sound
    assert (found.tier, found.state) == (Tier.IRREVERSIBLE, EffectState.UNKNOWN)
    assert found.attempt == "aaaaaaaa-1"
    assert found.is_open
    assert (found.idempotency_key, found.undo, found.outputs) == (None, None, ())
    assert get(store, "aaaaaaaa-2") == beside


def test_a_row_put_again_by_hand_is_sound(store: Store) -> None:
    """What an operator says of a damaged row is believed from then on."""
    store.effects.put(an_effect(A, 1))
    store.database.execute("UPDATE effects SET data = ''")
    store.effects.put(
        dataclasses.replace(
            get(store, "aaaaaaaa-1"), state=EffectState.NOTHING, settled_seq=9, is_sound=True
        )
    )
    found = get(store, "aaaaaaaa-1")
    assert (found.is_sound, found.state) == (True, EffectState.NOTHING)


# Several rows.


def test_effects_of_a_run_come_in_the_order_they_began(store: Store) -> None:
    """Number 10 after number 9, and none of a run whose id begins alike."""
    for number in range(1, 13):
        store.effects.put(an_effect(A, number, node=f"n{number}"))
    store.effects.put(an_effect("aaaaaaaab", 1))
    store.effects.put(an_effect(B, 1))
    assert [row.attempt for row in store.effects.of_run(A)] == [
        f"aaaaaaaa-{number}" for number in range(1, 13)
    ]
    assert store.effects.of_run(C) == []


def test_what_begins_closes_nothing(store: Store) -> None:
    """C95: until it has come to something, what was open before is asked for as well."""
    for row in (an_effect(A, 1), an_effect(B, 2), an_effect(B, 3)):
        store.effects.put(row)
    assert [row.attempt for row in store.effects.kept()] == [
        "aaaaaaaa-1",
        "bbbbbbbb-2",
        "bbbbbbbb-3",
    ]


@pytest.mark.parametrize("state", list(EffectState))
def test_ending_closes_what_it_takes_the_place_of(store: Store, state: EffectState) -> None:
    """Older effects of the same node of the same plan, in whichever run and in any state;
    nobody else's, and none where it did nothing."""
    older = an_effect(A, 1, state=EffectState.UNKNOWN, settled_seq=2)
    other_node = an_effect(A, 2, node="deploy")
    other_plan = an_effect(A, 3, plan_file="other.toml")
    same_run = an_effect(B, 4, state=EffectState.SUCCEEDED)
    newer = an_effect(A, 6)
    beside = an_effect(C, 7, begun_seq=5)
    for row in (older, other_node, other_plan, same_run, newer, beside, an_effect(B, 5)):
        store.effects.put(row)
    ended = an_effect(B, 5, state=state, settled_seq=8, end=AttemptEnd.EXITED)
    store.effects.end(ended)
    stays = state is EffectState.NOTHING
    # All else of a closed row is as it was.
    expected = [
        dataclasses.replace(older, is_open=stays),
        other_node,
        other_plan,
        dataclasses.replace(same_run, is_open=stays),
        newer,
        beside,
        ended,
    ]
    assert [get(store, row.attempt) for row in expected] == expected


def test_ending_is_all_or_nothing(store: Store) -> None:
    """C95: an end that cannot be recorded closes nothing."""
    store.effects.put(an_effect(A, 1))
    ended = an_effect(B, 2, state=EffectState.SUCCEEDED)
    broken = dataclasses.replace(ended, attempt=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="NOT NULL"):
        store.effects.end(broken)
    assert get(store, "aaaaaaaa-1").is_open

    def end_and_fail() -> None:
        with store.transaction():
            store.effects.end(ended)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        end_and_fail()
    assert get(store, "aaaaaaaa-1").is_open
    assert store.effects.of_run(B) == []


def told(store: Store, run: RunId = C, since: int = 100) -> tuple[str | None, str | None]:
    """The attempts that speak for `pub` in the run."""
    own, other = store.effects.of_node(PLAN, PUB, run, since)
    return own.attempt if own else None, other.attempt if other else None


def test_nothing_speaks_for_a_node_that_never_began(store: Store) -> None:
    """Nor does what the same node did in another plan, or another node in this one."""
    store.effects.put(an_effect(A, 1, plan_file="other.toml"))
    store.effects.put(an_effect(A, 2, node="pub[x]"))
    store.effects.put(an_effect(C, 3, node="pub2"))
    assert told(store) == (None, None)


QUIET = (EffectState.NOTHING,)


@pytest.mark.parametrize("run", [A, C])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("state", list(EffectState))
def test_what_is_open_and_came_to_something_speaks_first(
    store: Store, run: RunId, is_open: bool, state: EffectState
) -> None:
    """C95: a later try that did nothing, or is asked for no more, does not hide what an earlier
    one did, or may have done; so for the run itself and for others."""
    speaks = is_open and state not in QUIET
    for number in (1, 2, 10):
        store.effects.put(
            an_effect(run, number, state=state, is_open=is_open, settled_seq=number + 100)
        )
    for quiet, closed in product((*QUIET, EffectState.UNKNOWN), (True, False)):
        if quiet in QUIET or closed:
            later = an_effect(run, 11, state=quiet, is_open=not closed, settled_seq=120)
            store.effects.put(later)
            found = f"{run}-10" if speaks else f"{run}-11"
            assert told(store) == ((found, None) if run == C else (None, found))


@pytest.mark.parametrize("run", [A, C])
@pytest.mark.parametrize("state", list(EffectState))
def test_of_equals_the_newest_speaks(store: Store, run: RunId, state: EffectState) -> None:
    """Among all that came to something, and where nothing did."""
    for number, is_open in product((1, 2, 10), (True, False)):
        store.effects.put(
            an_effect(run, number, state=state, is_open=is_open, settled_seq=number + 100)
        )
        assert told(store)[run == A] == f"{run}-{number}"


def test_a_speaker_of_others_may_be_older_than_that_of_the_run(store: Store) -> None:
    """Each is found among its own: neither hides the other."""
    store.effects.put(an_effect(A, 1, state=EffectState.UNKNOWN))
    store.effects.put(an_effect(B, 2, state=EffectState.NOTHING))
    store.effects.put(an_effect(C, 3, state=EffectState.ROLLED_BACK))
    assert told(store) == ("cccccccc-3", "aaaaaaaa-1")


def test_an_open_effect_of_another_run_speaks_for_its_node(store: Store) -> None:
    """However long ago it was settled; the newest where there are several."""
    store.effects.put(an_effect(A, 1, settled_seq=2))
    assert told(store) == (None, "aaaaaaaa-1")
    store.effects.put(an_effect(B, 3, settled_seq=4))
    assert told(store) == (None, "bbbbbbbb-3")


def test_a_closed_effect_speaks_only_for_runs_that_were_there(store: Store) -> None:
    """C96: what another run achieved after this one was created is done for it too; what was
    closed before is asked for anew."""
    store.effects.put(an_effect(A, 1, is_open=False, settled_seq=100))
    assert told(store, since=100) == (None, None)
    assert told(store, since=99) == (None, "aaaaaaaa-1")
    store.effects.put(an_effect(B, 2, is_open=False))
    assert told(store, since=99) == (None, "aaaaaaaa-1")


def test_own_and_other_effects_are_told_apart(store: Store) -> None:
    """Whichever began first."""
    store.effects.put(an_effect(C, 5, is_open=False))
    store.effects.put(an_effect(A, 9))
    store.effects.put(an_effect(B, 1))
    assert told(store) == ("cccccccc-5", "aaaaaaaa-9")


def test_rows_of_equal_position_keep_an_order(store: Store) -> None:
    """Position 0: no journal record tells of the begin."""
    store.effects.put(an_effect(A, 1, begun_seq=0))
    store.effects.put(an_effect(A, 2, begun_seq=0))
    assert told(store) == (None, "aaaaaaaa-2")
    assert [row.attempt for row in store.effects.of_run(A)] == ["aaaaaaaa-1", "aaaaaaaa-2"]


def test_a_damaged_row_still_speaks_for_its_node(store: Store) -> None:
    """C87: it is no row less, so nothing happens twice for it."""
    store.effects.put(an_effect(A, 1))
    store.database.execute("UPDATE effects SET data = substr(data, 2)")
    _, other = store.effects.of_node(PLAN, PUB, C, 100)
    assert other is not None
    assert not other.is_sound
    assert [row.is_sound for row in store.effects.open_of(PLAN)] == [False]


def test_whether_a_node_ever_had_an_effect_is_known(store: Store) -> None:
    """Closed ones count."""
    store.effects.put(an_effect(A, 1, is_open=False, settled_seq=2))
    assert store.effects.knows(PLAN, PUB)
    assert not store.effects.knows(PLAN, NodeName("other"))
    assert not store.effects.knows("other.toml", PUB)


def test_open_effects_are_listed_by_plan(store: Store) -> None:
    """In the order they began, until they are closed."""
    assert not store.effects.has_open()
    for number in (3, 1, 2):
        store.effects.put(an_effect(A, number, node=f"n{number}"))
    store.effects.put(an_effect(B, 4, plan_file="é\udcff.toml"))
    assert [row.node for row in store.effects.open_of(PLAN)] == ["n1", "n2", "n3"]
    assert [row.attempt for row in store.effects.open_of("é\udcff.toml")] == ["bbbbbbbb-4"]
    assert len(store.effects.kept()) == 4
    store.effects.close([AttemptId("aaaaaaaa-1"), AttemptId("aaaaaaaa-3"), AttemptId("no-1")])
    assert [row.node for row in store.effects.open_of(PLAN)] == ["n2"]
    assert store.effects.has_open()
    store.effects.close(row.attempt for row in store.effects.kept())
    assert not store.effects.has_open()
    store.effects.close([])
    # What is closed is not forgotten.
    assert len(store.effects.of_run(A)) == 3


# Selections, and what is lost.


def test_a_selection_comes_back_as_it_was_saved(store: Store) -> None:
    """Names of any bytes; saving again replaces it, an empty one is one."""
    names = [NodeName("é"), NodeName("a\udcff\n"), *(NodeName(f"n{i}") for i in range(2000))]
    assert store.effects.selection_of(A) is None
    store.effects.save_selection(A, [])
    assert store.effects.selection_of(A) == frozenset()
    store.effects.save_selection(A, names)
    assert store.effects.selection_of(A) == frozenset(names)
    assert store.effects.selection_of(B) is None


@pytest.mark.parametrize(
    "change",
    [
        "substr(data, 1, length(data) - 1)",
        "substr(data, 2)",
        "substr(data, 1, 32)",
        "substr(data, 1, 5)",
        "x''",
        "zeroblob(length(data))",
        "CAST(data || 'x' AS BLOB)",
        "CAST(x'7878' AS TEXT)",
    ],
)
def test_a_selection_that_rotted_is_not_known(store: Store, change: str) -> None:
    """C87: an effect is then never closed by mistake."""
    store.effects.save_selection(A, [PUB])
    store.database.execute(f"UPDATE selections SET data = {change}")
    assert store.effects.selection_of(A) is None


def test_that_effects_are_lost_is_remembered(tmp_path: Path) -> None:
    """Until another loss is told of, in every process."""
    store = open_store(tmp_path)
    assert store.effects.lost() is None
    store.effects.mark_lost("the old one is kept as `x`")
    store.effects.mark_lost("`y` is gone")
    store.close()
    store = open_store(tmp_path)
    assert store.effects.lost() == "`y` is gone"
    store.close()


def test_of_many_that_come_to_something_one_is_open(tmp_path: Path) -> None:
    """C96: whoever began last in the store has closed the others', whichever process it is."""
    open_store(tmp_path).close()
    ready = threading.Barrier(4)

    def perform(run: str) -> None:
        store = open_store(tmp_path)
        ready.wait()
        for number in range(1, 6):
            with store.transaction():
                begun = store.journal.append(f"run:{run}", number, "began", run=RunId(run))
                row = an_effect(run, number, begun_seq=begun)
                store.effects.put(row)
                store.effects.end(settled(row, EffectState.SUCCEEDED, begun))
        store.close()

    runs = [f"{letter * 8}" for letter in "abcd"]
    threads = [threading.Thread(target=perform, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = open_store(tmp_path)
    rows = [row for run in runs for row in store.effects.of_run(RunId(run))]
    assert len(rows) == 20
    assert store.effects.kept() == [max(rows, key=lambda row: row.begun_seq)]
    store.close()
