"""What ended attempts leave for the next ones, and that nothing of it stays behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.engine import temporary
from assay.engine.spares import Spares


@pytest.fixture
def place() -> Iterator[str]:
    """The path of a private folder that does not exist yet."""
    path = f"/tmp/assay-{os.getpid():08x}-7"
    yield path
    temporary.remove(path)
    temporary.remove(f"{path}x")


def names(tmp_path: Path, number: int) -> tuple[str, str]:
    return str(tmp_path / f"{number}.lease"), str(tmp_path / f"{number}.log")


def test_the_next_attempt_gets_them_under_its_own_names(tmp_path: Path, place: str) -> None:
    """The files and the folder of an attempt that left them empty, each only once."""
    lease, log = names(tmp_path, 1)
    spares = Spares()
    for path in (lease, log):
        Path(path).touch()
    temporary.make(place)
    kept = {os.stat(path).st_ino for path in (lease, log, place)}
    spares.give_lease(lease)
    spares.give_log(log)
    spares.give_folder(place)
    second = (*names(tmp_path, 2), f"{place}x")
    spares.prepare(*second)
    assert {os.stat(path).st_ino for path in second} == kept
    assert not os.path.lexists(place)
    spares.give_folder(second[2])
    spares.remove_all()
    assert not os.path.lexists(second[2])


def test_a_folder_that_was_used_is_no_spare(place: str) -> None:
    """What a command left in its TMPDIR or beside it never reaches the next one."""
    for left in (temporary.tmpdir_of(place) + "/x", temporary.result_of(place)):
        spares = Spares()
        temporary.make(place)
        Path(left).touch()
        spares.give_folder(place)
        assert not os.path.lexists(place)


def test_a_spare_that_cannot_be_renamed_is_removed_at_the_end(tmp_path: Path, place: str) -> None:
    """A name that cannot be had costs the reuse, and leaves nothing behind."""
    lease, log = names(tmp_path, 1)
    Path(lease).touch()
    temporary.make(place)
    spares = Spares()
    spares.give_lease(lease)
    spares.give_folder(place)
    (tmp_path / "taken").mkdir()
    Path(f"{place}x").touch()
    with pytest.raises(FileExistsError):
        spares.prepare(str(tmp_path / "taken"), log, f"{place}x")
    assert os.path.exists(lease)
    spares.remove_all()
    assert not os.path.exists(lease)
    assert not os.path.lexists(place)
    os.unlink(f"{place}x")
