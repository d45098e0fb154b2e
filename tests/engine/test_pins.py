"""Pins: one sealed blob per run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from store_rows import digest, open_store

from assay.engine.pins import PinSet
from assay.engine.states import RunId, State
from assay.engine.store import Store
from assay.engine.store_errors import StoreDamaged
from assay.plans.model import RelPath

RUN = RunId("aaaaaaaa")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_pins_come_back_as_they_were_saved(store: Store) -> None:
    """States and memberships, names of any bytes; saving again replaces them."""
    pins = {RelPath("a\udcff"): State(f"file:{digest(1)}"), RelPath("é"): State("absent")}
    members = {"src/**": (RelPath("a\udcff"), RelPath("é")), "none/*": ()}
    assert store.pins.load(RUN) is None
    store.pins.save(RUN, {}, {}, {})
    store.pins.save(RUN, pins, members, {"tool cc": "d"})
    found = store.pins.load(RUN)
    assert found is not None
    assert found.pins == pins
    assert found.members == members
    assert found.surroundings == {"tool cc": "d"}


def test_surroundings_come_back_as_they_were_saved(store: Store) -> None:
    """Texts of any bytes; saving again replaces them."""
    known = {"env LANG": "\udcff\n", "tool é in /b:\udcfe": "missing", "platform": ""}
    store.pins.save(RUN, {}, {}, {"env LANG": "C"})
    store.pins.save(RUN, {}, {}, known)
    found = store.pins.load(RUN)
    assert found is not None
    assert (found.pins, found.members, found.surroundings) == ({}, {}, known)


def test_pins_of_an_older_assay_tell_no_surroundings(store: Store) -> None:
    """They were saved without; all else of them counts."""
    pins, members = {"a": "absent"}, {"src/*": ["b"]}
    packed = zlib.compress(json.dumps([pins, members]).encode())
    store.database.execute(
        "INSERT INTO pins (run, data) VALUES (?, ?)", (RUN, blake3(packed).digest() + packed)
    )
    assert store.pins.load(RUN) == PinSet(pins, {"src/*": ("b",)}, {})  # type: ignore[arg-type,dict-item]


def test_pins_that_rotted_are_damage(store: Store) -> None:
    """A resumed run never believes a pin that was not written."""
    store.pins.save(RUN, {RelPath("a"): State("absent")}, {}, {})
    store.database.execute("UPDATE pins SET data = substr(data, 1, length(data) - 1)")
    with pytest.raises(StoreDamaged, match="pins of run aaaaaaaa"):
        store.pins.load(RUN)
