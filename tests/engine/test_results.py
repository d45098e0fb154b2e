"""The action cache: rows under seal, provenance, and what was ever recorded for a path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import a_result, digest, open_store

from assay.engine.states import ABSENT, State
from assay.engine.store import Store
from assay.plans.model import NodeName, RelPath


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_a_result_comes_back_as_it_was_put(store: Store) -> None:
    """Every field, names of any bytes and the empty value included."""
    row = dataclasses.replace(
        a_result("k1", outputs={"out/\udcff": f"exec:{digest(1)}", "none": ABSENT, "d": "folder"}),
        node=NodeName("n\udcff"),
        plan_file="é.toml",
        recipe='{"argv":["\udcff"]}',
        log="/w\udcff.log",
        expires_at=2000,
        recorded_at=7,
        duration_seconds=1,
    )
    store.results.put(row)
    assert store.results.get("k1") == row
    store.results.put(dataclasses.replace(row, address="k2", value=None, log=None, serves=False))
    assert store.results.get("k2") is not None
    assert store.results.get("k3") is None


def test_a_result_replaces_the_one_under_its_address(store: Store) -> None:
    """The new row stands with its own provenance."""
    store.results.put(a_result("k", journal_seq=1))
    other = a_result("k", journal_seq=9, outputs={"x": f"file:{digest(2)}"}, run="bbbbbbbb")
    store.results.put(other)
    assert store.results.get("k") == other


def test_eviction_compares_the_provenance(store: Store) -> None:
    """Whoever judged an earlier row does not take away its successor."""
    store.results.put(a_result("k", journal_seq=9))
    assert not store.results.evict("k", 1)
    assert store.results.get("k") is not None
    assert store.results.evict("k", 9)
    assert not store.results.evict("k", 9)
    assert store.results.get("k") is None


@pytest.mark.parametrize(
    "change",
    [
        "outputs = replace(outputs, 'file:', 'exec:')",
        "value = '1'",
        "serves = 0",
        "recipe = recipe || ' '",
        "expires_at = 5.0",
        "outputs = '[['",
        "address = 'other'",
        "seal = 'x'",
        "node = NULL || node || x'ff'",
    ],
)
def test_a_row_that_is_not_what_was_put_is_evicted(store: Store, change: str) -> None:
    """It counts as none, and the journal says so."""
    store.results.put(a_result("k"))
    store.results.put(a_result("sound"))
    if "NULL" in change:
        change = "node = CAST(node || x'ff' AS TEXT)"
        store.database.execute("UPDATE results SET node = CAST(node AS BLOB) WHERE address = 'k'")
    else:
        store.database.execute(f"UPDATE results SET {change} WHERE address = 'k'")
    address = "other" if "address" in change else "k"
    assert store.results.get("sound") is not None
    assert store.results.get(address) is None
    (record,) = store.journal.read()
    assert record.kind == "result-evicted"
    assert record.data == {
        "address": address,
        "recorded_by": "aaaaaaaa",
        "recorded_seq": 1,
        "why": "the row is not what was recorded",
    }
    assert store.database.query_one("SELECT count(*) FROM results") == (1,)


def test_a_store_that_is_only_read_evicts_nothing(store: Store, tmp_path: Path) -> None:
    """C133: a question passes over an unreadable row."""
    store.results.put(a_result("k"))
    store.database.execute("UPDATE results SET value = '1'")
    reader = Store.open_for_reading(str(tmp_path))
    assert reader is not None
    assert reader.results.get("k") is None
    reader.close()
    assert store.database.query_one("SELECT count(*) FROM results") == (1,)


def test_an_unreadable_row_is_evicted_inside_a_transaction_too(store: Store) -> None:
    """The eviction is then part of it."""
    store.results.put(a_result("k"))
    store.database.execute("UPDATE results SET value = '1'")
    with store.transaction():
        assert store.results.get("k") is None
    assert len(list(store.journal.read())) == 1


def test_what_was_recorded_stays_known(store: Store) -> None:
    """Through replacements and evictions; absent paths were never there."""
    store.results.put(a_result("k", outputs={"o": f"file:{digest(1)}", "none": ABSENT}))
    store.results.put(a_result("k", outputs={"o": f"file:{digest(2)}"}))
    store.results.evict("k", 1)
    path = RelPath("o")
    assert all(store.results.knows(path, State(f"file:{digest(n)}")) for n in (1, 2))
    assert not store.results.knows(path, State(f"file:{digest(3)}"))
    assert not store.results.knows(RelPath("none"), ABSENT)


def test_the_writers_of_a_path_newest_first(store: Store) -> None:
    """Each with the state it recorded last, an old one recorded again counts as new."""
    for at, (node, number) in enumerate([("gen", 1), ("fmt", 2), ("fmt", 3), ("fmt", 2)]):
        store.results.put(
            a_result(
                f"k{at}", node=node, outputs={"o": f"file:{digest(number)}"}, recorded_at=float(at)
            )
        )
    assert store.results.writers_of(RelPath("o")) == (
        ("plan.toml", "fmt", f"file:{digest(2)}"),
        ("plan.toml", "gen", f"file:{digest(1)}"),
    )
    assert store.results.writers_of(RelPath("other")) == ()


def test_paths_a_plan_file_ever_recorded(store: Store) -> None:
    """By node, also of nodes the plan no longer has, with every state."""
    store.results.put(a_result("a", node="x", outputs={"o": f"file:{digest(1)}"}))
    store.results.put(a_result("b", node="x", outputs={"o": f"file:{digest(2)}", "p": "folder"}))
    store.results.put(a_result("c", node="y", plan_file="other.toml"))
    assert store.results.paths_of("plan.toml") == {
        "x": {"o": {f"file:{digest(1)}", f"file:{digest(2)}"}, "p": {"folder"}}
    }


def test_the_last_result_of_a_node(tmp_path: Path) -> None:
    """The one recorded or served last, of that plan file."""
    now = [1000.0]
    store = Store.open_for_run(str(tmp_path), now=lambda: now[0])
    node = NodeName("n")
    assert store.results.last_of("plan.toml", node) is None
    store.results.put(a_result("old", node=node, recorded_at=1000.0))
    store.results.put(a_result("new", node=node, recorded_at=1001.0))
    store.results.put(a_result("foreign", node=node, plan_file="x.toml", recorded_at=1009.0))
    last = store.results.last_of("plan.toml", node)
    assert last is not None
    assert last.address == "new"
    now[0] = 1005.0
    store.results.mark_used(["old"])
    last = store.results.last_of("plan.toml", node)
    assert last is not None
    assert last.address == "old"
    store.close()
