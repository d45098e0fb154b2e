"""The journal: identity, order, and reading it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import finish, open_store, start_python

from assay.engine.journal import Fact, JournalConflict
from assay.engine.states import RunId
from assay.engine.store import Store
from assay.engine.store_errors import StoreDamaged
from assay.plans.canonical import JsonValue

RUN = RunId("aaaaaaaa")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_a_record_comes_back_as_it_was_said(store: Store) -> None:
    """Kind, run, node, identity and data survive; order is the order of saying."""
    first = store.journal.append("run:aaaaaaaa", 1, Fact.RUN_CREATED, run=RUN)
    second = store.journal.append(
        "run:aaaaaaaa", 2, Fact.ATTEMPT_BEGUN, run=RUN, node="cc[\udcff.c]", data={"é": [1, None]}
    )
    assert second > first
    one, two = store.journal.read()
    assert (one.seq, one.run, one.node, one.kind, one.data) == (
        first,
        RUN,
        None,
        "run-created",
        None,
    )
    assert (two.source, two.sequence, two.node, two.data) == (
        "run:aaaaaaaa",
        2,
        "cc[\udcff.c]",
        {"é": [1, None]},
    )


def test_saying_the_same_again_is_one_record(store: Store) -> None:
    """Whoever repeats itself after a crash adds nothing."""
    data: JsonValue = {"b": 1, "a": (2, 3)}
    first = store.journal.append("s", 1, "k", run=RUN, node="n", data=data)
    again = store.journal.append("s", 1, "k", run=RUN, node="n", data={"a": [2, 3], "b": 1})
    assert again == first
    assert len(list(store.journal.read())) == 1


@pytest.mark.parametrize(
    ("kind", "run", "node", "data"),
    [
        ("other", RUN, "n", 1),
        ("k", RunId("bbbbbbbb"), "n", 1),
        ("k", None, "n", 1),
        ("k", RUN, "m", 1),
        ("k", RUN, None, 1),
        ("k", RUN, "n", 2),
        ("k", RUN, "n", None),
    ],
)
def test_saying_something_else_is_a_conflict(
    store: Store, kind: str, run: RunId | None, node: str | None, data: JsonValue
) -> None:
    """One identity never stands for two facts; the first stays."""
    store.journal.append("s", 1, "k", run=RUN, node="n", data=1)
    with pytest.raises(JournalConflict):
        store.journal.append("s", 1, kind, run=run, node=node, data=data)
    (record,) = store.journal.read()
    assert (record.kind, record.run, record.node, record.data) == ("k", RUN, "n", 1)


def test_data_that_is_not_json_is_refused(store: Store) -> None:
    """A record is readable by anyone, NaN is not JSON."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.journal.append("s", 1, "k", run=None, data=float("nan"))


def test_reading_narrows_and_continues(store: Store) -> None:
    """By run, by node, after a position; over more records than one batch holds."""
    with store.transaction():
        for number in range(2500):
            store.journal.append(
                "s", number, "k", run=RunId(f"{number % 2:08x}"), node=f"n{number % 5}"
            )
    everything = list(store.journal.read())
    assert [record.sequence for record in everything] == list(range(2500))
    odd = list(store.journal.read(run=RunId("00000001")))
    assert [record.sequence for record in odd] == list(range(1, 2500, 2))
    both = list(store.journal.read(run=RunId("00000001"), node="n3"))
    assert [record.sequence for record in both] == list(range(3, 2500, 10))
    assert [r.sequence for r in store.journal.read(after=everything[2400].seq)] == list(
        range(2401, 2500)
    )


def test_reading_sees_what_is_appended_meanwhile(store: Store) -> None:
    """A reader that follows holds no lock between records."""
    for number in range(1000):
        store.journal.append("s", number, "k", run=None)
    reader = store.journal.read()
    first = next(reader)
    store.journal.append("s", 1000, "k", run=None)
    assert first.sequence == 0
    assert sum(1 for _ in reader) == 1000


def test_records_of_a_transaction_that_fails_are_gone(store: Store) -> None:
    """A record stands and falls with the rows it describes."""

    def fail() -> None:
        with store.transaction():
            store.journal.append("s", 1, "k", run=None)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(store.journal.read()) == []
    assert store.journal.append("s", 1, "other", run=None) == 1


def test_a_record_that_cannot_be_read_is_damage(store: Store) -> None:
    """Nothing is guessed from half a record."""
    store.journal.append("s", 1, "k", run=None, data=[1])
    store.database.execute("UPDATE journal SET data = '[1'")
    with pytest.raises(StoreDamaged, match="journal record 1"):
        list(store.journal.read())


APPENDER = """
import sys, store_rows
store = store_rows.open_store(sys.argv[1])
sys.stdin.readline()
for number in range(200):
    store.journal.append(sys.argv[2], number, "k", run=None, data=number)
store.close()
"""


def test_many_processes_append_to_one_journal(store: Store, tmp_path: Path) -> None:
    """C85: every record of every process is there once, in the order each said them."""
    writers = [start_python(APPENDER, str(tmp_path), f"w{n}") for n in range(6)]
    for writer in writers:
        finish(writer, "go\n")
    records = list(store.journal.read())
    assert len({record.seq for record in records}) == len(records) == 1200
    for n in range(6):
        said = [record.sequence for record in records if record.source == f"w{n}"]
        assert said == list(range(200))


def test_a_record_is_found_by_its_identity(store: Store) -> None:
    """None before it was said."""
    assert store.journal.find("run:aaaaaaaa", 1) is None
    position = store.journal.append("run:aaaaaaaa", 1, Fact.RUN_CREATED, run=RUN, data=[1])
    found = store.journal.find("run:aaaaaaaa", 1)
    assert found is not None
    assert (found.seq, found.kind, found.data) == (position, Fact.RUN_CREATED, [1])
    assert store.journal.find("run:aaaaaaaa", 2) is None
