"""The private folder of an attempt: where it is, and that nothing of it stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.engine import temporary
from assay.engine.states import AttemptId

ATTEMPT = AttemptId(f"{os.getpid():08x}-12")


def test_planning_makes_nothing_and_making_is_private(tmp_path: Path) -> None:
    """The path is known before anything exists; then it is a 0700 folder with a TMPDIR."""
    path = temporary.plan_temp(ATTEMPT, {})
    assert path == f"/tmp/assay-{ATTEMPT}"
    assert not os.path.lexists(path)
    old = os.umask(0)
    try:
        temporary.make(path)
    finally:
        os.umask(old)
    for folder in (path, temporary.tmpdir_of(path)):
        assert os.stat(folder).st_mode & 0o7777 == 0o700
    assert temporary.remove(path) is None
    assert not os.path.lexists(path)
    assert temporary.remove(path) is None


def test_callers_temporary_folder_is_used_while_short(tmp_path: Path) -> None:
    """TMPDIR of the caller counts unless it is missing, relative or too long."""
    short = Path("/tmp", f"t{os.getpid()}")
    short.mkdir()
    try:
        assert temporary.plan_temp(ATTEMPT, {"TMPDIR": f"{short}/"}) == f"{short}/assay-{ATTEMPT}"
        for unfit in (tmp_path / ("x" * 60), short / "nowhere"):
            if unfit.parent == tmp_path:
                unfit.mkdir()
            path = temporary.plan_temp(ATTEMPT, {"TMPDIR": str(unfit)})
            assert path == f"/tmp/assay-{ATTEMPT}"
        assert temporary.plan_temp(ATTEMPT, {"TMPDIR": "."}) == f"/tmp/assay-{ATTEMPT}"
    finally:
        short.rmdir()


def test_tmpdir_is_short_for_any_attempt() -> None:
    """TMPDIR stays under 60 bytes, in nested runs too."""
    environ: dict[str, str] = {}
    made = []
    for number in range(4):
        path = temporary.plan_temp(AttemptId(f"0{os.getpid():07x}-{number}00000"), environ)
        temporary.make(path)
        made.append(path)
        environ = {"TMPDIR": temporary.tmpdir_of(path)}
        assert len(environ["TMPDIR"]) < 60
    for path in reversed(made):
        assert temporary.remove(path) is None


def test_what_stands_there_already_is_not_used(tmp_path: Path) -> None:
    """Another workspace's folder of the same name is neither used nor removed."""
    folder = Path("/tmp", f"u{os.getpid()}")
    folder.mkdir()
    try:
        (folder / f"assay-{ATTEMPT}").write_text("someone's")
        path = temporary.plan_temp(ATTEMPT, {"TMPDIR": str(folder)})
        assert path == f"{folder}/assay-{ATTEMPT}-2"
        with pytest.raises(FileExistsError):
            temporary.make(f"{folder}/assay-{ATTEMPT}")
        assert temporary.remove(f"{folder}/assay-{ATTEMPT}") == (
            f"`{folder}/assay-{ATTEMPT}` is not a temporary folder of this user's attempts"
        )
        (folder / f"assay-{ATTEMPT}").unlink()
    finally:
        folder.rmdir()


def make(tmp_path: Path) -> Path:
    path = tmp_path / "assay-1-1"
    temporary.make(str(path))
    return path


def test_usual_leavings_are_removed(tmp_path: Path) -> None:
    """A result, a half-made folder, or nothing at all: gone afterwards."""
    path = make(tmp_path)
    Path(temporary.result_of(str(path))).write_text("42")
    assert temporary.remove(str(path)) is None
    path.mkdir()
    assert temporary.remove(str(path)) is None
    assert list(tmp_path.iterdir()) == []


def test_anything_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    """Read-only folders, sockets, odd names and links go; what links lead to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    path = make(tmp_path)
    work = path / "t" / "work"
    (work / "t").mkdir(parents=True)
    (work / "moved-1").mkdir()
    (work / "t" / "moved-1").mkdir()
    (work / "-rf\n").write_text("")
    (work / "link").symlink_to(outside)
    (path / "t" / "file").symlink_to(outside / "file")
    os.mkfifo(work / "t" / "pipe")
    (path / "result").mkdir()
    for folder in (work / "t" / "moved-1", work / "t", work, path / "t", path):
        folder.chmod(0o500)
    assert temporary.remove(str(path)) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").read_text() == "kept"


def test_depth_has_no_limit(tmp_path: Path) -> None:
    """Folders nested deeper than any path can say are removed."""
    path = make(tmp_path)
    start = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path / "t")
        for _ in range(1500):
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.fchdir(start)
        os.close(start)
    assert temporary.remove(str(path)) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["assay-link", "other"])
def test_only_own_folders_are_removed(tmp_path: Path, name: str) -> None:
    """A record that names something else removes nothing."""
    precious = tmp_path / "precious"
    precious.mkdir()
    target = tmp_path / name
    if name == "other":
        target.mkdir()
    else:
        target.symlink_to(precious)
    message = temporary.remove(str(target))
    assert message == f"`{target}` is not a temporary folder of this user's attempts"
    assert target.exists()
    assert precious.exists()
