"""Marks of effects: whole or not there, the newest kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from damages import DAMAGES, make_a_folder

from assay.engine import effect_marks
from assay.engine.effect_marks import SLOT_BYTES, SLOTS, Mark
from assay.engine.states import AttemptId

NODE = "0123456789abcdef" * 4


def test_what_was_put_is_read(tmp_path: Path) -> None:
    """A mark is found by its attempt; where there is no file there are none."""
    path = str(tmp_path / "marks")
    assert effect_marks.read(path) == []
    effect_marks.put(path, AttemptId("aaaaaaaa-1"), 7, NODE)
    effect_marks.put(path, AttemptId("aaaaaaaa-12"), 9, NODE)
    assert effect_marks.read(path) == [
        Mark(AttemptId("aaaaaaaa-1"), NODE),
        Mark(AttemptId("aaaaaaaa-12"), NODE),
    ]
    assert effect_marks.has(path, AttemptId("aaaaaaaa-12"))
    assert not effect_marks.has(path, AttemptId("aaaaaaaa-2"))


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    """The newest positions have a mark each, whoever puts theirs first."""
    path = tmp_path / "marks"
    for seq in range(3 * SLOTS, 0, -1):
        effect_marks.put(str(path), AttemptId(f"aaaaaaaa-{seq}"), seq, NODE)
    for seq in range(5 * SLOTS, 6 * SLOTS):
        effect_marks.put(str(path), AttemptId(f"aaaaaaaa-{seq}"), seq, NODE)
    found = {mark.attempt for mark in effect_marks.read(str(path))}
    assert found == {f"aaaaaaaa-{seq}" for seq in range(5 * SLOTS, 6 * SLOTS)}
    assert path.stat().st_size == SLOTS * SLOT_BYTES


def test_long_names_have_room(tmp_path: Path) -> None:
    """The longest numbers there can be do not run into the next slot."""
    path = tmp_path / "marks"
    most = 2**59
    effect_marks.put(str(path), AttemptId(f"aaaaaaaa-{most}"), most, NODE)
    assert path.stat().st_size == SLOT_BYTES
    assert effect_marks.has(str(path), AttemptId(f"aaaaaaaa-{most}"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_says_nothing(tmp_path: Path, damage: object) -> None:
    """C87: a slot that is not whole is none; the next mark is put all the same where there can be
    a file."""
    path = tmp_path / "marks"
    effect_marks.put(str(path), AttemptId("aaaaaaaa-1"), 0, NODE)
    assert callable(damage)
    damage(path)
    assert effect_marks.read(str(path)) == []
    if damage is make_a_folder or path.is_symlink():
        with pytest.raises(OSError, match="marks"):
            effect_marks.put(str(path), AttemptId("aaaaaaaa-2"), 1, NODE)
    else:
        effect_marks.put(str(path), AttemptId("aaaaaaaa-2"), 1, NODE)
        assert effect_marks.has(str(path), AttemptId("aaaaaaaa-2"))
