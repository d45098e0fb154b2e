"""Agreements: certificates as they were put, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import open_store

from assay.engine.agreements import KEPT
from assay.engine.states import RunId
from assay.engine.store import Store

RUN = RunId("aaaaaaaa")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_a_certificate_comes_back_bit_by_bit(store: Store) -> None:
    """The latest under an address; an empty one is one."""
    assert store.agreements.get("a") is None
    store.agreements.put("a", RUN, b"one")
    store.agreements.put("a", RUN, b"")
    store.agreements.put("b", RUN, b"\0" * 100_000)
    assert store.agreements.get("a") == b""
    assert store.agreements.get("b") == b"\0" * 100_000


def test_a_certificate_that_rotted_is_none(store: Store) -> None:
    """A run then looks at every record itself."""
    store.agreements.put("a", RUN, b"x" * 5000)
    store.database.execute("UPDATE agreements SET data = CAST(replace(data, x'78', x'79') AS BLOB)")
    assert store.agreements.get("a") is None


def test_the_latest_certificates_are_kept(store: Store) -> None:
    """Putting one again makes it the latest."""
    for number in range(KEPT):
        store.agreements.put(str(number), RUN, b"x")
    store.agreements.put("0", RUN, b"y")
    store.agreements.put("new", RUN, b"x")
    assert store.agreements.get("0") == b"y"
    assert store.agreements.get("1") is None
    assert store.agreements.get("2") == b"x"
    store.agreements.clear()
    assert store.agreements.get("0") is None
