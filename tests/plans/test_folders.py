"""What entries name on disk."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from handmade import ROOT, entries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.plans.entries import extents_of, literal_entry, matches
from assay.plans.folders import (
    BUILT_IN_IGNORE,
    FileType,
    Folders,
    UnreadableFolder,
    _compile_ignore,
    _is_built_in,
)
from assay.plans.model import RelPath


def grow(root: Path, *names: str) -> None:
    """Makes files, and folders for names that end in `/`."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def members(root: Path, *texts: str, ignore: Sequence[str] = ()) -> list[str]:
    return list(Folders(str(root)).members(entries(*texts), ignore))


def written(root: Path, *texts: str) -> list[str]:
    return list(Folders(str(root)).members(entries(*texts), (), in_writes=True))


def test_a_double_star_matches_no_folder_too(tmp_path: Path) -> None:
    """C11: `src/**/*.t` names direct children of `src`, and new and deleted files count."""
    grow(tmp_path, "src/a.t", "src/d/e/b.t", "src/c.x", "other/a.t")
    assert members(tmp_path, "src/**/*.t") == ["src/a.t", "src/d/e/b.t"]
    grow(tmp_path, "src/new.t")
    (tmp_path / "src/a.t").unlink()
    assert members(tmp_path, "src/**/*.t") == ["src/d/e/b.t", "src/new.t"]


def test_dotfiles_are_members(tmp_path: Path) -> None:
    """C13: `conf/*` and a literal `.env` name dotfiles."""
    grow(tmp_path, ".env", "conf/.hidden", "conf/.d/x")
    assert members(tmp_path, ".env", "conf/*") == [".env", "conf/.hidden"]
    assert members(tmp_path, "**") == [".env", "conf/.d/x", "conf/.hidden"]


def test_git_decides_nothing(tmp_path: Path) -> None:
    """C12: files that git ignores are members like all others."""
    grow(tmp_path, "gen/f", "src/a")
    (tmp_path / ".gitignore").write_text("gen/\n")
    assert members(tmp_path, "gen/f", "**") == [".gitignore", "gen/f", "src/a"]


def test_every_name_is_found_as_it_is(tmp_path: Path) -> None:
    """C121, C124: no byte in a name is special, valid UTF-8 or not, by literal or by glob."""
    names = ["a b", 'q"q', "it's", "$HOME", "[slug].ts", "*", "?", "a\nb", "tab\t", "back\\slash"]
    names += ["#x", "~", "!x", "-rf", "x" * 255, "e\u0301", "\u00e9", os.fsdecode(b"\xff\xfe")]
    for name in names:
        (tmp_path / name).write_text("")
    by_name = [literal_entry(name, ROOT, optional=False) for name in names]
    folders = Folders(str(tmp_path))
    assert folders.members(by_name, ()) == tuple(sorted(names))
    assert folders.members(entries("*"), ()) == tuple(sorted(names))
    assert folders.members(entries("[[]s*].ts"), ()) == ("[slug].ts",)
    assert folders.members(entries("[slug].ts"), ()) == ()


def test_a_name_too_long_to_exist_names_nothing(tmp_path: Path) -> None:
    """C121: 256 bytes are no file name, so there is none."""
    assert members(tmp_path, "x" * 256, "y" * 256 + "/z", "y" * 256 + "/*") == []


def test_link_cycles_end(tmp_path: Path) -> None:
    """C120: links to folders are members and never entered; each real file comes once."""
    grow(tmp_path, "in/d/f", "in/g")
    os.symlink("..", tmp_path / "in/d/up")
    os.symlink(".", tmp_path / "in/self")
    os.symlink("two", tmp_path / "in/one")
    os.symlink("one", tmp_path / "in/two")
    os.symlink("/", tmp_path / "in/slash")
    expected = ["in/d/f", "in/d/up", "in/g", "in/one", "in/self", "in/slash", "in/two"]
    assert members(tmp_path, "in/**") == expected
    assert members(tmp_path, "in/") == expected
    assert written(tmp_path, "in/") == expected


def test_excluded_folders_are_not_entered(tmp_path: Path) -> None:
    """C120, C118: exclusions and ignore rules hold before a folder is listed."""
    grow(tmp_path, "in/a", "in/big/x/y", "in/tmp/x", "in/keep/tmp/x", "node_modules/m/x")
    folders = Folders(str(tmp_path))
    listed = entries("**", "!in/big/", "!in/tmp/**")
    assert folders.members(listed, ("node_modules/",)) == ("in/a", "in/keep/tmp/x")
    assert set(folders.visited) == {".", "in", "in/keep", "in/keep/tmp"}


def test_only_folders_that_can_hold_a_match_are_listed(tmp_path: Path) -> None:
    """A pattern costs the folders along it, not the whole workspace."""
    grow(tmp_path, "src/a/include/x.h", "src/b/other/deep/x.h", "lib/x.h")
    folders = Folders(str(tmp_path))
    assert folders.members(entries("src/*/include/*.h"), ()) == ("src/a/include/x.h",)
    assert set(folders.visited) == {"src", "src/a", "src/a/include", "src/b"}


def test_later_entries_win(tmp_path: Path) -> None:
    """C118: every negation has effect, and a later entry brings back."""
    grow(tmp_path, "src/a/x", "src/a/x.snap", "src/a/tmp/x", "src/a/tmp/keep", "src/b/y", "src/c")
    listed = ["src/a/**", "src/b/**", "!**/*.snap", "!src/a/tmp/**", "src/a/tmp/keep"]
    assert members(tmp_path, *listed) == ["src/a/tmp/keep", "src/a/x", "src/b/y"]


def test_built_in_ignore_holds_for_reads_of_globs_and_trees_only(tmp_path: Path) -> None:
    """C36: nothing is ignored inside declared writes, nor a literal path."""
    names = ["d/.git/c", "d/.DS_Store", "d/__pycache__/p", "d/node_modules/m", "d/m.pyc", "d/x"]
    grow(tmp_path, *names)
    assert members(tmp_path, "d/") == ["d/node_modules/m", "d/x"]
    assert members(tmp_path, "d/**") == ["d/node_modules/m", "d/x"]
    assert members(tmp_path, "d/m.pyc", "d/.git/c") == ["d/.git/c", "d/m.pyc"]
    assert written(tmp_path, "d/") == sorted(names)
    assert written(tmp_path, "d/**") == sorted(names)


def test_ignore_patterns_are_gitignore_patterns(tmp_path: Path) -> None:
    """`ignore` comes on top of the built-in patterns and may take them back."""
    grow(tmp_path, "a.swp", "d/b.swp", "d/keep.swp", "build/x", "d/build/y", "m.pyc", "z")
    ignore = ("*.swp", "!keep.swp", "/build/")
    assert members(tmp_path, "**", ignore=ignore) == ["d/build/y", "d/keep.swp", "z"]
    assert members(tmp_path, "**", ignore=("!*.pyc", "*.swp", "build")) == ["m.pyc", "z"]
    assert members(tmp_path, "a.swp", ignore=ignore) == ["a.swp"]


@given(
    st.lists(
        st.sampled_from(
            [".git", ".assay", "__pycache__", "a.pyc", "b.pyo", ".DS_Store", "x", "py"]
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_the_quick_ignore_test_equals_the_gitignore_one(names: list[str], is_folder: bool) -> None:
    """The built-in patterns mean the same with and without further ones, step by step down."""
    spec = _compile_ignore(("no such pattern",))
    for count in range(1, len(names) + 1):
        path, folder = "/".join(names[:count]), is_folder or count < len(names)
        quick = _is_built_in(path, folder)
        assert quick is spec(path, folder), (path, folder, BUILT_IN_IGNORE)
        if quick:
            break


def test_the_store_is_never_entered(tmp_path: Path) -> None:
    """`.assay/` at the root belongs to assay, even where the whole workspace is written."""
    grow(tmp_path, ".assay/assay.db", "sub/.assay/x", "a")
    assert written(tmp_path, "./") == ["a", "sub/.assay/x"]
    assert members(tmp_path, "**") == ["a"]


def test_empty_folders_are_members_of_writes_only(tmp_path: Path) -> None:
    """Empty folders inside a written tree are recorded; a source tree has files only."""
    grow(tmp_path, "d/e/", "d/f/g/", "d/x", "empty/")
    assert written(tmp_path, "d/") == ["d/e", "d/f/g", "d/x"]
    assert written(tmp_path, "d/**") == ["d/e", "d/f/g", "d/x"]
    assert written(tmp_path, "empty/") == ["empty"]
    assert written(tmp_path, "absent/") == []
    assert members(tmp_path, "d/", "empty/") == ["d/x"]


def test_writes_are_not_looked_for_behind_a_link(tmp_path: Path) -> None:
    """A link where a written tree should be is the output itself; a read goes through it."""
    grow(tmp_path, "real/x")
    os.symlink("real", tmp_path / "out")
    assert written(tmp_path, "out/") == ["out"]
    assert written(tmp_path, "out/*") == []
    assert written(tmp_path, "out/sub/") == []
    assert members(tmp_path, "out/") == ["out/x"]


def test_special_files_are_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a socket is not passed over in silence; whoever measures refuses it."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert members(tmp_path, "*") == ["pipe", "socket"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    """A folder that cannot be listed is an error, never an empty one."""
    grow(tmp_path, "src/locked/x", "src/a")
    (tmp_path / "src/locked").chmod(0)
    try:
        with pytest.raises(UnreadableFolder) as caught:
            members(tmp_path, "src/**")
        assert members(tmp_path, "src/**", "!src/locked/") == ["src/a"]
    finally:
        (tmp_path / "src/locked").chmod(0o755)
    assert caught.value.path == "src/locked"
    assert str(caught.value) == "The folder `src/locked` cannot be listed: permission denied."


def test_a_folder_whose_listing_fails_is_named(tmp_path: Path) -> None:
    """Whatever the reason: here its path is longer than the system takes."""
    deep = tmp_path
    names = ["d" * 250] * 17
    descriptor = os.open(deep, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with pytest.raises(UnreadableFolder) as caught:
        members(tmp_path, "**/x")
    assert caught.value.path.startswith("d" * 250 + "/")
    assert caught.value.reason == "file name too long"


def test_each_folder_is_listed_once_and_remembered(tmp_path: Path) -> None:
    """`visited` holds every folder looked at with its signature, absent ones too."""
    grow(tmp_path, "src/a.c", "src/d/b.c")
    folders = Folders(str(tmp_path))
    first = folders.members(entries("src/**/*.c", "gone/*"), ())
    grow(tmp_path, "src/late.c")
    assert folders.members(entries("src/**/*.c", "gone/*"), ()) is first
    assert folders.members(entries("src/*"), ()) == ("src/a.c",)
    status = (tmp_path / "src/d").stat()
    assert folders.visited[RelPath("src/d")].signature == (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )
    assert folders.visited[RelPath("src")].names == (
        ("a.c", FileType.OTHER),
        ("d", FileType.FOLDER),
    )
    assert folders.visited[RelPath("gone")].signature is None


def test_has_member_looks_no_further_than_it_must(tmp_path: Path) -> None:
    """Whether anything matches is known at the first match."""
    grow(tmp_path, "src/a.c", "src/d/e/f/b.c")
    folders = Folders(str(tmp_path))
    assert folders.has_member(extents_of(entries("src/**/*.c"))[0], ())
    assert set(folders.visited) == {"src"}
    assert not folders.has_member(extents_of(entries("src/**/*.x"))[0], ())


BROUGHT = ("a", "b/", "a/", "./", "*", "**", "a/*", "*/a", "**/a", "a/**", "a*", "?", "[!a]")
EXCLUDED = ("!a", "!b/", "!*", "!**/b", "!a/*", "!a/a/", "!*/a/**", "!link")

listed_entries = st.lists(st.sampled_from(BROUGHT + EXCLUDED), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=listed_entries)
def test_members_are_the_files_that_match(tmp_path: Path, texts: list[str]) -> None:
    """The walk with its shortcuts finds exactly the files for which `matches` holds."""
    grow(tmp_path, "ab", "b/a", "b/b/b", "a/a/a", "a/a/b", "a/b", "c/", "a/c/a")
    if not (tmp_path / "link").is_symlink():
        os.symlink("a", tmp_path / "link")
    listed = entries(*texts)
    everything = [
        RelPath(os.path.relpath(os.path.join(folder, name), tmp_path))
        for folder, folders, files in os.walk(tmp_path)
        for name in (*files, *(f for f in folders if os.path.islink(os.path.join(folder, f))))
    ]
    expected = tuple(sorted(path for path in everything if matches(listed, path)))
    assert Folders(str(tmp_path)).members(listed, ()) == expected
    found = Folders(str(tmp_path)).members(listed, (), in_writes=True)
    assert tuple(p for p in found if p != "c") == expected
    assert ("c" in found) is matches(listed, RelPath("c"))
