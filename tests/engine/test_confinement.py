"""Which rules a node's declarations make, checked by what the kernel then lets through."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import entries
from held import needs_landlock

from assay.engine.confinement import (
    find_devices,
    find_outside,
    find_private,
    find_reads,
    folders_listed,
    folders_opened,
    is_within,
)
from assay.engine.landlock import WRITE, Access, Domain, Rule, call_within
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.model import RelPath

FILE = State("file:" + "0" * 64)
LINK = State("link:" + "0" * 64)
LINK_TO_FILE = State(f"{LINK}>{FILE}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a neighbour, and links of several kinds."""
    found = tmp_path / "w"
    for name in ("src/a", "src/deep/b", "other/c", ".assay/db", "../w2/n"):
        path = found / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    links = {"rel": "other/c", "abs": str(found / "other/c"), "store": ".assay/db", "dir": "other"}
    for name, text in links.items():
        (found / name).symlink_to(text)
    return found


def allowed(rules: list[Rule], action: Callable[[], object]) -> bool:
    try:
        call_within(Domain(tuple(rules), network=True), lambda: action() and None)
    except PermissionError:
        return False
    return True


def reads(root: Path, texts: list[str], states: dict[str, State]) -> list[Rule]:
    found = {RelPath(path): state for path, state in states.items()}
    return list(find_reads(str(root), entries(*texts), found))


@needs_landlock
def test_outside_is_all_but_the_workspace(root: Path) -> None:
    """Neighbours at every level can be read, not written; a name that starts like the
    workspace's is a neighbour."""
    rules = list(find_outside(str(root)))
    assert allowed(rules, (root.parent / "w2/n").read_text)
    assert allowed(rules, lambda: os.listdir("/usr"))
    assert not allowed(rules, (root / "src/a").read_text)
    assert not allowed(rules, lambda: os.listdir(root))
    assert not allowed(rules, lambda: (root.parent / "w2/n").write_text("x"))
    # By a link outside, too.
    (root.parent / "link").symlink_to(root)
    assert not allowed(list(find_outside(str(root))), (root.parent / "link/src/a").read_text)


@needs_landlock
def test_reads_are_what_was_found(root: Path) -> None:
    """Files that are declared, the lists of the folders that hold them, and nothing beside."""
    rules = reads(root, ["src/a"], {"src/a": FILE, "src/none": ABSENT})
    assert allowed(rules, (root / "src/a").read_text)
    assert allowed(rules, lambda: os.listdir(root / "src"))
    assert not allowed(rules, (root / "src/deep/b").read_text)
    assert not allowed(rules, lambda: (root / "src/a").write_text("x"))
    assert not allowed(rules, lambda: os.listdir(root))
    assert allowed(reads(root, [], {"src": FOLDER}), lambda: os.listdir(root / "src"))
    assert not allowed(reads(root, [], {"src": FOLDER}), (root / "src/a").read_text)


@needs_landlock
@pytest.mark.parametrize(
    ("name", "state", "is_read"),
    [
        ("rel", LINK_TO_FILE, True),
        ("abs", LINK_TO_FILE, True),
        ("rel", LINK, False),
        ("dir/c", LINK, False),
        ("store", LINK_TO_FILE, False),
    ],
)
def test_links_give_the_file_behind(root: Path, name: str, state: State, is_read: bool) -> None:
    """C14: of a link whose file is in the key; never what is assay's own, never a folder."""
    rules = reads(root, [name], {name.partition("/")[0]: state})
    assert allowed(rules, (root / name).read_text) == is_read


@needs_landlock
def test_private_and_devices(root: Path) -> None:
    """The temporary folder and the log are its own; what is nobody's file can be written."""
    folder, log = root.parent / "t", root.parent / "log"
    folder.mkdir()
    log.write_text("")
    rules = [*find_private(str(folder), str(log)), *find_devices(str(root))]
    assert allowed(rules, lambda: (folder / "x").write_text("x"))
    assert allowed(rules, lambda: log.write_text("x"))
    assert not allowed(rules, log.unlink)
    assert allowed(rules, lambda: Path("/dev/null").write_text("x"))
    assert not allowed(list(find_private(str(folder), None)), log.read_text)


def test_shared_memory_that_holds_the_workspace_is_not_opened() -> None:
    """C127: /dev/shm is for everybody, but for a node whose workspace lies there."""
    assert Rule("/dev/shm", READ_WRITE) in list(find_devices("/home/w"))
    assert Rule("/dev/shm", READ_WRITE) in list(find_devices("/dev/shmw"))
    assert "/dev/shm" not in {rule.path for rule in find_devices("/dev/shm/w")}


READ_WRITE = Access.EXECUTE | Access.READ_FILE | Access.LIST | WRITE


@pytest.mark.parametrize(
    ("texts", "folders"),
    [
        (["a"], ("",)),
        (["a/b"], ("a",)),
        (["a/"], ("a",)),
        (["a/*.c", "!x/y"], ("a",)),
        (["*.c"], ("",)),
        (["a/b/**/c"], ("a/b",)),
        (["a/b", "a/c", "d/e/"], ("a", "d/e")),
        ([], ()),
    ],
)
def test_folders_that_are_listed(texts: list[str], folders: tuple[str, ...]) -> None:
    """Those that hold what is named, each once."""
    assert folders_listed(entries(*texts)) == folders


@pytest.mark.parametrize(
    ("texts", "removes", "folders"),
    [
        (["a"], [], ("",)),
        (["a/b"], [], ("a",)),
        (["a/"], [], ("",)),
        (["a/b/"], [], ("a",)),
        (["a/b/*.o"], [], ("a/b",)),
        (["a/b", "a/c/d", "!e/f"], [], ("a",)),
        (["ab/c", "a/c"], [], ("a", "ab")),
        (["a/b"], ["c/d"], ("a", "c")),
        (["a/b"], ["c"], ("",)),
        (["a-b/x", "a/b/c", "a/d"], [], ("a", "a-b")),
        ([], [], ()),
    ],
)
def test_folders_that_are_opened(
    texts: list[str], removes: list[str], folders: tuple[str, ...]
) -> None:
    """Those in which things are made and removed, outermost only."""
    assert folders_opened(entries(*texts), tuple(map(RelPath, removes))) == folders


def test_within() -> None:
    """By whole names."""
    assert is_within("a/b", "a")
    assert is_within("a", "a")
    assert is_within("a", "")
    assert not is_within("ab", "a")
    assert not is_within("a", "a/b")
