"""A private tree holds what one node reads, and tells what became of it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from assay.engine.measuring import Measurer
from assay.engine.private_tree import SHARED_BYTES, PrivateTree, Strays, walk
from assay.engine.states import ABSENT, State
from assay.engine.workplace import Unremembered
from assay.plans.model import RelPath

LARGE = "x" * SHARED_BYTES


class Bench:
    """A workspace and the tree of one node."""

    def __init__(self, folder: Path, opened: tuple[str, ...]) -> None:
        self.root = folder / "w"
        self.root.mkdir()
        self.measurer = Measurer(str(self.root), Unremembered(), time.time_ns)
        self.place = self.root / ".assay/tmp/1.tree"
        self.tree = PrivateTree(str(self.root), str(self.place), opened)

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def link(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).symlink_to(text)

    def states(self, *names: str) -> dict[RelPath, State]:
        return {RelPath(name): self.measurer.state_of(RelPath(name)) for name in names}

    def stage(self, *names: str) -> None:
        self.tree.stage(self.states(*names))

    def listing(self) -> dict[str, str]:
        found = {}
        for path, info in walk(str(self.place)):
            full = self.place / path
            if stat.S_ISLNK(info.st_mode):
                found[str(path)] = f"-> {os.readlink(full)}"
            else:
                found[str(path)] = "folder" if full.is_dir() else full.read_text()
        return found

    def strays(self, *declared: str) -> Strays:
        return self.tree.find_strays(lambda path: path in declared)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, ("out",))


def test_holds_what_is_read_and_nothing_else(bench: Bench) -> None:
    """Copies with modes and times of the originals, folders, and links as they are."""
    bench.write("a/f", "f", 0o750)
    bench.write("a/other", "other")
    os.utime(bench.root / "a/f", ns=(5_000_000_001, 7_000_000_001))
    (bench.root / "e").mkdir()
    bench.link("l", "a/f")
    bench.stage("a/f", "e", "l", "none")
    assert bench.listing() == {"a": "folder", "a/f": "f", "e": "folder", "l": "-> a/f"}
    info = (bench.place / "a/f").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime_ns) == (0o750, 7_000_000_001)
    assert info.st_ino != (bench.root / "a/f").stat().st_ino
    assert bench.tree.moved == []
    assert bench.strays() == Strays((), (), ())


def test_links_bring_what_they_lead_to(bench: Bench) -> None:
    """C30: one after the other, but nothing of the store, no folder, and no loop for ever."""
    bench.write("x/f", "f")
    bench.write(".assay/db", "db")
    bench.link("a", "b")
    bench.link("b", "x/f")
    bench.link("dangling", "nowhere")
    bench.link("loop", "pool")
    bench.link("pool", "loop")
    bench.link("folder", "x")
    bench.link("store", ".assay/db")
    bench.link("absolute", f"{bench.root}/x/f")
    bench.link("outside", "../outside")
    names = ("a", "dangling", "loop", "folder", "store", "absolute", "outside")
    bench.tree.stage(dict.fromkeys(map(RelPath, names), State("link:")))
    assert bench.listing() == {
        "a": "-> b",
        "b": "-> x/f",
        "x": "folder",
        "x/f": "f",
        "dangling": "-> nowhere",
        "loop": "-> pool",
        "pool": "-> loop",
        "folder": "-> x",
        "store": "-> .assay/db",
        "absolute": f"-> {bench.root}/x/f",
        "outside": f"-> {bench.root.parent}/outside",
    }


def test_files_behind_a_link_to_a_folder(bench: Bench) -> None:
    """C30: with the link in the tree what is declared behind it lies where it really is; without
    it the folder is one."""
    bench.write("d/f", "f")
    bench.write("d/g", "g")
    bench.link("l", "d")
    bench.link("m", "d")
    bench.stage("l/f", "l", "m/g")
    assert bench.listing() == {
        "d": "folder",
        "d/f": "f",
        "l": "-> d",
        "m": "folder",
        "m/g": "g",
    }
    assert bench.strays() == Strays((), (), ())


def test_link_that_is_written_keeps_its_text(bench: Bench) -> None:
    """C30: what the node may write lands again, and is what it was."""
    bench.link("outside", "../outside")
    bench.tree.stage({RelPath("outside"): State("link:")}, is_written=lambda path: True)
    assert bench.listing() == {"outside": "-> ../outside"}


def test_large_files_are_shared_where_they_are_only_read(bench: Bench) -> None:
    """A second name of the original, or the same blocks; never in a folder that is opened."""
    bench.write("in/large", LARGE)
    bench.write("in/small", LARGE[1:])
    bench.write("out/large", LARGE)
    bench.stage("in/large", "in/small", "out/large")
    inodes = {name: (bench.root / name).stat().st_ino for name in ("in/large", "out/large")}
    shared = bench.tree.shared
    assert shared <= {"in/large"}
    assert ((bench.place / "in/large").stat().st_ino == inodes["in/large"]) == bool(shared)
    assert (bench.place / "out/large").stat().st_ino != inodes["out/large"]
    assert bench.strays() == Strays((), (), ())
    (bench.place / "in/large").chmod(0o600)
    if shared:
        assert bench.strays().changed == ("in/large",)
    bench.tree.mend_shared()
    assert stat.S_IMODE((bench.root / "in/large").stat().st_mode) == 0o644
    bench.tree.remove()
    assert not bench.place.exists()
    assert (bench.root / "in/large").read_text() == LARGE
    assert (bench.root / "in/large").stat().st_nlink == 1


def test_files_of_others_are_not_mended(bench: Bench) -> None:
    """What somebody put at the place of a shared file meanwhile is left alone."""
    bench.write("in/large", LARGE)
    bench.stage("in/large")
    (bench.root / "in/large").unlink()
    bench.tree.mend_shared()
    bench.write("in/large", "new", 0o600)
    bench.tree.mend_shared()
    assert stat.S_IMODE((bench.root / "in/large").stat().st_mode) == 0o600


def test_what_moved_since_the_key_was_made(bench: Bench) -> None:
    """C03: gone, edited, or something else by now: it is told."""
    for name in ("gone", "edited", "pipe", "same"):
        bench.write(name, "1")
    states = bench.states("gone", "edited", "pipe", "same")
    (bench.root / "gone").unlink()
    bench.write("edited", "2")
    (bench.root / "pipe").unlink()
    os.mkfifo(bench.root / "pipe")
    bench.tree.stage(states)
    assert sorted(bench.tree.moved) == ["edited", "gone", "pipe"]
    assert bench.listing() == {"edited": "2", "same": "1"}


def test_strays(bench: Bench) -> None:
    """C47: whatever was made, changed or removed beyond what is declared, however it was done."""
    for name in ("a", "b", "c", "d", "e", "keep", "mine", "gone"):
        bench.write(f"in/{name}", name * 2)
    bench.stage(*(f"in/{name}" for name in ("a", "b", "c", "d", "e", "keep", "mine", "gone")))
    place = bench.place / "in"
    (place / "a").write_text("AA")
    os.utime(place / "b", ns=(0, 0))
    (place / "c").unlink()
    (place / "c").symlink_to("d")
    (place / "d").unlink()
    (place / "e").chmod(0o755)
    (place / "mine").write_text("changed")
    (place / "gone").unlink()
    (place / "new").mkdir()
    (place / "new/empty").mkdir()
    (place / "new/f").write_text("")
    os.mkfifo(bench.place / "pipe")
    (bench.place / "link").symlink_to("/")
    found = bench.strays("in/mine", "in/gone")
    assert found == Strays(
        created=(RelPath("in/new/f"), RelPath("link"), RelPath("pipe")),
        changed=(RelPath("in/a"), RelPath("in/b"), RelPath("in/c"), RelPath("in/e")),
        removed=(RelPath("in/d"),),
    )
    assert found
    assert bench.tree.find_removed(lambda path: path in ("in/gone", "in/keep", "in/d")) == (
        RelPath("in/d"),
        RelPath("in/gone"),
    )


def test_links_that_would_mislead(bench: Bench) -> None:
    """C30: links that lead to something else once they are in the workspace; what lands with
    them counts as being there."""
    bench.write("read", "read")
    bench.write("undeclared", "u")
    bench.write("o", "old")
    (bench.root.parent / "outside").write_text("outside")
    bench.stage("read")
    (bench.place / "o").write_text("new")
    links = {
        "to read": ("read", True),
        "to output": ("o", True),
        "to link": ("to output", True),
        "nowhere": ("none", True),
        "folder": (".", True),
        "host": ("/etc/passwd", True),
        "undeclared": ("undeclared", False),
        "tree": (f"{bench.place}/o", False),
        "old output": (f"{bench.root}/o", False),
        "outside": ("../outside", False),
    }
    measurer = Measurer(str(bench.place), Unremembered(), time.time_ns)
    for name, (text, _) in links.items():
        if name != "undeclared":
            (bench.place / name).symlink_to(text)
    (bench.place / "to undeclared").symlink_to("undeclared")
    names = ["o", *(name for name in links if name != "undeclared"), "to undeclared"]
    outputs = [(RelPath(name), measurer.state_of(RelPath(name))) for name in names]
    outputs.append((RelPath("optional"), ABSENT))
    found = bench.tree.find_misleading(outputs, bench.measurer)
    assert {path for path, _ in found} == {"tree", "old output", "outside", "to undeclared"}


def test_outputs_are_moved_out(bench: Bench) -> None:
    """A file or a link is moved from where it is, without a place in between."""
    bench.stage()
    (bench.place / "f").write_text("f")
    (bench.place / "l").symlink_to("f")
    for name in ("f", "l"):
        target = bench.root.parent / f"staged-{name}"
        place = bench.tree.stage_output(RelPath(name), State(""), "/nowhere")
        assert place == str(bench.place / name)
        os.rename(place, target)
    assert not bench.tree.needs_folder
    assert (bench.root.parent / "staged-f").read_text() == "f"
    assert os.readlink(bench.root.parent / "staged-l") == "f"
    assert bench.listing() == {}


def test_more_is_copied_as_it_stands(bench: Bench) -> None:
    """Whole folders with all they hold, and folders that are only to be there."""
    bench.write("old/a", "a")
    bench.write("old/deep/b", "b")
    bench.tree.stage({}, [RelPath("old"), RelPath("none")], ["x/y", "old"])
    assert bench.listing() == {
        "old": "folder",
        "old/a": "a",
        "old/deep": "folder",
        "old/deep/b": "b",
        "x": "folder",
        "x/y": "folder",
    }
    assert bench.tree.moved == []


def test_walk_does_not_follow(tmp_path: Path) -> None:
    """C120: links are named, not entered."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/up").symlink_to("..")
    (tmp_path / "self").symlink_to(".")
    assert sorted(path for path, _ in walk(str(tmp_path))) == ["d", "d/up", "self"]
