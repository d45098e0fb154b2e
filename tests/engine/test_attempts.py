"""Attempts: begun before their process, settled once, found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import a_run, an_attempt, open_store

from assay.engine.attempts import AttemptState, NoSuchAttempt
from assay.engine.states import AttemptEnd, AttemptId, RunId, State
from assay.engine.store import Store
from assay.engine.store_errors import StoreDamaged
from assay.plans.model import NodeName, RelPath


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def settle(store: Store, attempt: str) -> None:
    store.attempts.settle(AttemptId(attempt), AttemptEnd.EXITED, 3, None, "exit status 3", 1002.0)


def test_an_attempt_comes_back_as_it_began(store: Store) -> None:
    """Claims and earlier states included, names of any bytes too."""
    row = dataclasses.replace(
        an_attempt("aaaaaaaa", 1, node="cc[\udcff]"),
        before={RelPath("out/\udcff"): State("absent")},
        log="/w\udcff/x.log",
        temp="/tmp/\udcfe",
    )
    store.attempts.begin(row)
    assert store.attempts.get(row.id) == row
    assert store.attempts.running() == [row]


def test_an_attempt_settles_once(store: Store) -> None:
    """How it ended is written once and ends its claims."""
    row = an_attempt("aaaaaaaa", 1)
    store.attempts.begin(row)
    store.attempts.record_pid(row.id, 4711)
    settle(store, row.id)
    found = store.attempts.get(row.id)
    assert found == dataclasses.replace(
        row,
        state=AttemptState.SETTLED,
        end=AttemptEnd.EXITED,
        exit_code=3,
        detail="exit status 3",
        settled_at=1002.0,
        pid=4711,
    )
    assert store.attempts.running() == []
    with pytest.raises(NoSuchAttempt):
        settle(store, row.id)
    with pytest.raises(NoSuchAttempt):
        settle(store, "aaaaaaaa-2")


def test_running_attempts_of_other_runs(store: Store) -> None:
    """Those whose claims this run must respect: its own are left out."""
    for run in ("aaaaaaaa", "bbbbbbbb"):
        for number in (1, 2):
            store.attempts.begin(an_attempt(run, number))
    settle(store, "bbbbbbbb-1")
    found = store.attempts.running(excluding_run=RunId("aaaaaaaa"))
    assert [row.id for row in found] == ["bbbbbbbb-2"]
    assert len(store.attempts.running()) == 3


def test_attempts_of_a_run_in_the_order_they_began(store: Store) -> None:
    """Number 10 after number 9, and none of a run whose id begins alike."""
    for number in range(1, 13):
        store.attempts.begin(an_attempt("aaaaaaaa", number))
    store.attempts.begin(an_attempt("aaaaaaaab", 1))
    found = store.attempts.of_run(RunId("aaaaaaaa"))
    assert [row.id for row in found] == [f"aaaaaaaa-{number}" for number in range(1, 13)]


def test_the_last_try_of_a_node(store: Store) -> None:
    """By plan file, over all runs; putting outputs back (number 0) is no try."""
    for at, run in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc")):
        store.runs.create(a_run(run, plan_file="other.toml" if run == "cccccccc" else "plan.toml"))
        # The clock was set back between them.
        store.attempts.begin(an_attempt(run, 1, began_at=1000.0 - at), 10 + at)
    restore = dataclasses.replace(an_attempt("bbbbbbbb", 2, began_at=1009.0), number=0)
    store.attempts.begin(restore, 20)
    node = NodeName("cc[src/main.c]")
    found = store.attempts.last_of(node, "plan.toml")
    assert found is not None
    assert found.id == "bbbbbbbb-1"
    assert store.attempts.last_of(NodeName("ld"), "plan.toml") is None


@pytest.mark.parametrize("column", ["claims", "before", "state"])
def test_a_row_that_cannot_be_read_is_damage(store: Store, column: str) -> None:
    """What an attempt claims is never guessed."""
    store.attempts.begin(an_attempt("aaaaaaaa", 1))
    store.database.execute(f"UPDATE attempts SET {column} = '[[1'")
    with pytest.raises(StoreDamaged, match="attempt aaaaaaaa-1"):
        store.attempts.get(AttemptId("aaaaaaaa-1"))
