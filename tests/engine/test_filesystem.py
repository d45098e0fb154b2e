"""The door to files: moves that lose nothing, trash that never overwrites, no followed links."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from ground import describe_tree, run_python

from assay.engine.filesystem import (
    DiskFull,
    FilesystemError,
    Obstacles,
    Trash,
    cannot_write,
    leads_outside,
    look,
    make_private_folder,
    remove_private_folder,
    replace,
    write_new_file,
)


@pytest.fixture
def other_disk(tmp_path: Path) -> Path:
    """A folder on another file system than `tmp_path`."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    return Path(make_private_folder(str(shared), "assay-test"))


def test_trash_names_never_collide(tmp_path: Path) -> None:
    """The same name trashed again and again, by one and by several, is kept each time."""
    folder = tmp_path / "trash" / "attempt"
    for number in range(3):
        waste = Trash(str(folder))
        for copy in range(2):
            place = tmp_path / "a"
            place.write_text(f"{number}{copy}")
            waste.move(str(place), "d/a")
    kept = [text for text in describe_tree(tmp_path / "trash").values() if text != "folder"]
    assert sorted(kept) == ["00", "01", "10", "11", "20", "21"]


def test_trash_keeps_a_file_where_a_folder_is_wanted_too(tmp_path: Path) -> None:
    """`a` and later `a/b` both find room."""
    waste = Trash(str(tmp_path / "trash"))
    for name in ("a", "a/b", "a"):
        place = tmp_path / "x"
        place.write_text(name)
        assert Path(waste.move(str(place), name)).read_text() == name


def test_trash_is_made_on_demand(tmp_path: Path) -> None:
    """Nothing is made before something is thrown away."""
    Trash(str(tmp_path / "trash"))
    assert list(tmp_path.iterdir()) == []


def test_trash_on_another_disk(tmp_path: Path, other_disk: Path) -> None:
    """EXDEV: whole folders, links included, are copied over and then gone."""
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/file").write_text("x")
    (tmp_path / "d/link").symlink_to("nowhere")
    (tmp_path / "file").write_text("y")
    try:
        waste = Trash(str(other_disk / "trash"))
        moved = Path(waste.move(str(tmp_path / "d"), "d"))
        kept = Path(waste.keep(str(tmp_path / "file"), "file"))
        assert describe_tree(moved) == {"sub": "folder", "sub/file": "x", "link": "-> nowhere"}
        assert kept.read_text() == "y"
        assert list(tmp_path.iterdir()) == []
    finally:
        import shutil

        shutil.rmtree(other_disk)


def test_keeping_leaves_the_original_in_place(tmp_path: Path) -> None:
    """A file about to be replaced gets a second name and is never missing."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    waste = Trash(str(tmp_path / "trash"))
    assert Path(waste.keep(str(tmp_path / "file"), "file")).read_text() == "x"
    assert Path(waste.keep(str(tmp_path / "link"), "link")).readlink() == Path("file")
    assert (tmp_path / "file").exists()
    assert (tmp_path / "link").is_symlink()


def test_replacing_from_another_disk(tmp_path: Path, other_disk: Path) -> None:
    """EXDEV: a file with its mode and a link land by rename from beside their place."""
    try:
        source = other_disk / "program"
        source.write_text("new")
        source.chmod(0o755)
        (other_disk / "link").symlink_to("target")
        (tmp_path / "program").write_text("old")
        replace(str(source), str(tmp_path / "program"))
        replace(str(other_disk / "link"), str(tmp_path / "link"))
        found = {"program": "new (executable)", "link": "-> target"}
        assert describe_tree(tmp_path) == found
        assert list(other_disk.iterdir()) == []
    finally:
        remove_private_folder(str(other_disk))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A new file where a link stands is refused, dangling or not; a replacement replaces it."""
    (tmp_path / "victim").write_text("mine")
    for name, target in (("a", "victim"), ("b", "nothing")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(FileExistsError):
            write_new_file(str(tmp_path / name), b"x", 0o666)
        (tmp_path / "new").write_text("new")
        replace(str(tmp_path / "new"), str(tmp_path / name))
    assert describe_tree(tmp_path) == {"a": "new", "b": "new", "victim": "mine"}


def test_read_only_folders_of_ours_are_opened_for_the_moment(tmp_path: Path) -> None:
    """Files in them are replaced and removed, folders moved, and their modes come back."""
    code = """if True:
        import os, sys
        from assay.engine.filesystem import Trash, remove, replace
        root = sys.argv[1]
        replace(root + "/new", root + "/d/file")
        remove(root + "/d/other")
        place = Trash(root + "/trash").move(root + "/d/sub", "sub")
        for path in (root + "/d", place):
            print(sorted(os.listdir(path)), oct(os.stat(path).st_mode & 0o777))
    """
    (tmp_path / "d/sub").mkdir(parents=True)
    for name in ("new", "d/file", "d/other", "d/sub/x"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d/sub").chmod(0o555)
    (tmp_path / "d").chmod(0o555)
    done = run_python(code, str(tmp_path), obeys_modes=True)
    (tmp_path / "d").chmod(0o755)
    assert done.stdout.splitlines() == ["['file'] 0o555", "['x'] 0o555"], done.stderr
    assert (tmp_path / "d/file").read_text() == "new"


def test_obstacles_are_found_from_the_top(tmp_path: Path) -> None:
    """The first parent that is no folder is named; folders and gaps are none."""
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/file").write_text("x")
    (tmp_path / "d/link").symlink_to("sub")
    obstacles = Obstacles(str(tmp_path))
    for _ in range(2):
        assert obstacles.find("top") is None
        assert obstacles.find("d/sub/x") is None
        assert obstacles.find("d/none/x/y/z") is None
        assert obstacles.find("d/file/x/y") == "d/file"
        assert obstacles.find("d/link/x/y") == "d/link"
        assert obstacles.find("d/link/x/z") == "d/link"


def test_leading_outside_is_decided_by_where_links_end(tmp_path: Path) -> None:
    """Up and down again stays inside; a sibling with the root's name as prefix does not."""
    root = tmp_path / "w"
    for folder in (root / "in", tmp_path / "w2"):
        folder.mkdir(parents=True)
    (root / "back").symlink_to("../w/in")
    (root / "up").symlink_to("..")
    (root / "sibling").symlink_to("../w2")
    assert not leads_outside(str(root), str(root / "back"))
    assert not leads_outside(str(root), str(root))
    assert leads_outside(str(root), str(root / "up"))
    assert leads_outside(str(root), str(root / "sibling"))


def test_errors_of_writing_are_typed() -> None:
    """No space, quota and size limits are a full disk; the sentence says where and why."""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert isinstance(cannot_write("x", OSError(number, "")), DiskFull)
    other = cannot_write("x", OSError(errno.EROFS, ""))
    assert type(other) is FilesystemError
    assert str(other) == "`x` cannot be written: read-only file system"


def test_private_folders_differ_and_go(tmp_path: Path) -> None:
    """Two of one name are two folders, for their owner only; the parent is made when missing."""
    first = make_private_folder(str(tmp_path / "tmp"), "x")
    second = make_private_folder(str(tmp_path / "tmp"), "x")
    assert first != second
    info = look(first)
    assert info is not None
    assert info.st_mode & 0o777 == 0o700
    Path(first, "file").write_text("x")
    remove_private_folder(first)
    assert [str(path) for path in (tmp_path / "tmp").iterdir()] == [second]
