"""The boundary of one node: what it declares is there, measured, stored, and cleared in time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ground import Ground, entries, node, open_ground, run_python

from assay.engine.outputs import (
    BrokenBoundary,
    Cleared,
    capture_outputs,
    clear_outputs,
    states_before,
)
from assay.engine.states import ABSENT, FOLDER
from assay.plans.model import Entry, EntryKind, Node, RelPath


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def broken(ground: Ground, declared: Node) -> tuple[str, ...]:
    with pytest.raises(BrokenBoundary) as caught:
        capture_outputs(declared, str(ground.root), ground.measurer, ground.blobs)
    return caught.value.sentences


def clear(ground: Ground, declared: Node, recorded: object = (), before: object = None) -> Cleared:
    return clear_outputs(
        declared,
        dict(recorded),  # type: ignore[call-overload]
        before,  # type: ignore[arg-type]
        ground.measurer,
        f"{ground.store.trash}/attempt",
    )


def test_every_declared_write_is_captured(ground: Ground) -> None:
    """Files, trees, globs, links and empty folders: sorted, each once, all of them stored."""
    ground.write("b", "1")
    ground.write("a", "2", 0o755)
    ground.write("d/x", "3")
    ground.write("g/y.o", "4")
    ground.write("g/z.c", "5")
    ground.link("d/l", "x")
    (ground.root / "d/e").mkdir()
    outputs = ground.capture(node(writes=["b", "a", "d/", "g/*.o", "d/x"]))
    assert outputs == tuple(
        (RelPath(path), ground.state(path)) for path in ("a", "b", "d/e", "d/l", "d/x", "g/y.o")
    )
    assert {path.read_bytes() for path in ground.blob_paths()} == {b"1", b"2", b"3", b"4", b"x"}


def test_without_a_store_nothing_is_stored(ground: Ground) -> None:
    """An unrecorded run or `cache = false` measures only."""
    ground.write("a", "1")
    declared = node(writes=["a"])
    captured = capture_outputs(declared, str(ground.root), ground.measurer, None)
    assert captured.outputs == ((RelPath("a"), ground.state("a")),)
    assert ground.blob_paths() == []


def test_missing_writes_break_the_boundary(ground: Ground) -> None:
    """C45: each missing write is named, a folder for a file gets the way to declare it, an
    empty glob and a removal still there too; nothing is stored."""
    ground.write("x", "1")
    ground.write("folder/f", "1")
    ground.write("file", "1")
    ground.write("gone", "1")
    declared = node(
        writes=["x", "y", "folder", "file/", "tree/", "d/*.o", "folder/*.o"], removes=["gone"]
    )
    assert broken(ground, declared) == (
        "`y` is declared in `writes` but was not written",
        "`folder` is a folder: declare it as `folder/`",
        "`file/` is a file: declare it as `file`",
        "`tree/` is declared in `writes` but was not written",
        "nothing matches `d/*.o`, which is declared in `writes`",
        "nothing matches `folder/*.o`, which is declared in `writes`",
        "`gone` is declared in `removes` but is still there",
    )
    assert ground.blob_paths() == []


def test_optional_writes_may_be_missing(ground: Ground) -> None:
    """An optional file is recorded as absent; an optional tree or glob as nothing."""
    maybe = Entry(EntryKind.GLOB, RelPath("*.map"), optional=True)
    declared = node(writes=["o", "d/", maybe], optional=["o", "d/"], removes=["gone"])
    assert ground.capture(declared) == ((RelPath("o"), ABSENT),)


def test_a_dangling_link_is_still_there(ground: Ground) -> None:
    """`removes` means the name is gone, not only what it leads to."""
    ground.link("gone", "nowhere")
    assert broken(ground, node(removes=["gone"])) == (
        "`gone` is declared in `removes` but is still there",
    )


def test_outputs_outside_the_workspace_break_the_boundary(ground: Ground) -> None:
    """C38: a file, a tree, a glob through a link to the parent, and a tree that is one."""
    ground.write("../o", "1")
    ground.write("../sub/o", "1")
    ground.link("lnk", "..")
    ground.link("out", "../sub")
    assert broken(ground, node(writes=["lnk/o", "lnk/sub/", "lnk/*", "out/"])) == (
        "`lnk/o` leads outside the workspace through the link `lnk`",
        "`lnk/sub/` leads outside the workspace through the link `lnk`",
        "`lnk/*` leads outside the workspace through the link `lnk`",
        "`out/` leads outside the workspace through the link `out`",
    )
    assert ground.blob_paths() == []


def test_outputs_behind_a_link_have_a_name_of_their_own(ground: Ground) -> None:
    """A second name would escape claims and overlap checks: the first is what to declare."""
    ground.write("v1/bin/app", "1")
    ground.link("current", "v1")
    assert broken(ground, node(writes=["current/bin/app", "current/bin/*"])) == (
        "`current/bin/app` lies behind the link `current`: declare it as `v1/bin/app`",
        "`current/bin/*` lies behind the link `current`: declare it as `v1/bin/*`",
    )


def test_links_in_a_tree_are_captured_as_links(ground: Ground) -> None:
    """C30: dangling, to itself, to a folder, out of the workspace: stored by their text."""
    ground.write("d/f", "1")
    (ground.root / "d/k").mkdir()
    targets = {"l": "f", "dang": "nowhere", "self": ".", "dl": "k", "out": "/usr"}
    for name, target in targets.items():
        ground.link(f"d/{name}", target)
    outputs = dict(ground.capture(node(writes=["d/"])))
    assert set(outputs) == {RelPath(f"d/{name}") for name in (*targets, "f", "k")}
    assert outputs[RelPath("d/k")] == FOLDER
    stored = {path.read_bytes() for path in ground.blob_paths()}
    assert stored == {b"1", *(target.encode() for target in targets.values())}


def test_a_tree_that_is_a_link_is_captured_as_one(ground: Ground) -> None:
    """C30: an output folder that is itself a link can be stored."""
    ground.write("k/f", "1")
    ground.link("d", "k")
    assert ground.capture(node(writes=["d/"])) == ((RelPath("d"), ground.state("d")),)


def test_no_name_is_ignored_in_declared_writes(ground: Ground) -> None:
    """C36: node_modules, .git, .DS_Store and __pycache__ inside a tree are outputs, and
    `d/**` equals `d/`."""
    names = ["d/node_modules/m", "d/.git/c", "d/.DS_Store", "d/__pycache__/p.pyc"]
    for name in names:
        ground.write(name, name)
    by_tree = ground.capture(node(writes=["d/"]))
    assert [path for path, _ in by_tree] == sorted(names)
    assert ground.capture(node(writes=["d/**"])) == by_tree


def test_excluded_files_are_no_outputs(ground: Ground) -> None:
    """C35: what `!pattern` takes away is neither measured nor stored."""
    ground.write("d/x", "1")
    ground.write("d/keep/k", "2")
    outputs = ground.capture(node(writes=["d/**", "!d/keep/**"]))
    assert [path for path, _ in outputs] == ["d/x"]


def test_odd_names_are_captured(ground: Ground) -> None:
    """C121, C124: literally and by glob, whatever the name."""
    names = ["a b", 'q"q', "$HOME", "[slug].ts", "*", "a\nb", "é", "e\u0301", "#x", "x" * 255]
    for name in names:
        ground.write(f"d/{name}", name)
    outputs = ground.capture(node(writes=["d/*"]))
    assert [path for path, _ in outputs] == sorted(f"d/{name}" for name in names)
    for name in names:
        declared = node(writes=[Entry(EntryKind.FILE, RelPath(f"d/{name}"))])
        assert ground.capture(declared) == ((f"d/{name}", ground.state(f"d/{name}")),)


def test_what_cannot_be_measured_breaks_the_boundary(ground: Ground) -> None:
    """A pipe as an output is named and nobody waits for it."""
    ground.write("d/x", "1")
    os.mkfifo(ground.root / "d/pipe")
    assert broken(ground, node(writes=["d/"])) == ("`d/pipe` is a named pipe",)


def test_a_closed_folder_breaks_the_boundary(ground: Ground) -> None:
    """A folder in a written tree that may not be listed is named, not passed over."""
    ground.write("d/sub/x", "1")
    (ground.root / "d/sub").chmod(0o000)
    code = """if True:
        import sys
        from pathlib import Path
        from ground import node, open_ground
        from assay.engine.outputs import BrokenBoundary, clear_outputs, states_before
        with open_ground(Path(sys.argv[1])) as ground:
            try:
                ground.capture(node(writes=["d/"]))
            except BrokenBoundary as error:
                print(error)
            print(states_before(node(writes=["d/"]), ground.measurer))
            print(clear_outputs(node(writes=["d/"]), {}, {}, ground.measurer, "/nowhere"))
    """
    done = run_python(code, str(ground.root), obeys_modes=True)
    (ground.root / "d/sub").chmod(0o755)
    assert done.stdout.splitlines() == [
        "`d/sub/` cannot be listed: permission denied",
        "{}",
        "Cleared(removed=(), trashed={})",
    ], done.stderr


def test_states_before_are_those_of_what_exists(ground: Ground) -> None:
    """Files and members of trees and globs; absent and unmeasurable ones are left out."""
    ground.write("a", "1")
    ground.write("d/x", "2")
    os.mkfifo(ground.root / "pipe")
    declared = node(writes=["a", "b", "d/", "pipe"])
    assert states_before(declared, ground.measurer) == {
        path: ground.state(path) for path in ("a", "d/x")
    }
    assert states_before(node(writes=["a", "b"]), ground.measurer) == {"a": ground.state("a")}


def test_recorded_outputs_are_removed_before_an_attempt(ground: Ground) -> None:
    """With the folders of a tree this leaves empty; the folder of a declared file stays."""
    ground.write("out/a", "1")
    ground.write("d/sub/deep/x", "2")
    ground.link("d/l", "sub")
    (ground.root / "d/empty").mkdir()
    declared = node(writes=["out/a", "d/"])
    cleared = clear(ground, declared, ground.capture(declared))
    assert cleared.removed == ("d/empty", "d/l", "d/sub/deep/x", "out/a")
    assert cleared.trashed == {}
    assert ground.tree() == {"out": "folder"}


def test_only_what_the_node_owns_is_removed(ground: Ground) -> None:
    """C35: edited, excluded, read and unknown files stay, and so do their folders."""
    declared = node(writes=["d/**", "!d/keep/**", "f"], reads=["f"])
    for path in ("d/x", "d/edited", "d/sub/y", "f"):
        ground.write(path, path)
    recorded = ground.capture(declared)
    ground.write("d/edited", "by hand")
    ground.write("d/mine", "by hand")
    ground.write("d/keep/k", "by hand")
    assert clear(ground, declared, recorded).removed == ("d/sub/y", "d/x")
    assert ground.tree() == {
        "d": "folder",
        "d/edited": "by hand",
        "d/keep": "folder",
        "d/keep/k": "by hand",
        "d/mine": "by hand",
        "f": "f",
    }
    assert ground.waste() == {}


def test_outputs_no_longer_declared_stay(ground: Ground) -> None:
    """Another node may write them by now."""
    ground.write("old", "1")
    recorded = ground.capture(node(writes=["old"]))
    assert clear(ground, node(writes=["new"]), recorded) == Cleared((), {})
    assert ground.tree() == {"old": "1"}


def test_nothing_is_removed_through_a_link(ground: Ground) -> None:
    """A folder replaced by a link to equal files elsewhere: those files stay."""
    ground.write("d/x", "1")
    declared = node(writes=["d/x"])
    recorded = ground.capture(declared)
    os.rename(ground.root / "d", ground.root / "elsewhere")
    ground.link("d", "elsewhere")
    assert clear(ground, declared, recorded, {}) == Cleared((), {})
    assert ground.read("elsewhere/x") == "1"


def test_left_overs_of_a_failed_attempt_go_to_the_trash(ground: Ground) -> None:
    """C83: what differs from before the attempt goes, what was there before stays."""
    declared = node(writes=["d/", "o", "p/*.o", "n"], reads=["n"])
    ground.write("d/mine", "before")
    ground.write("d/changed", "before")
    ground.write("n", "before")
    before = states_before(declared, ground.measurer)
    ground.write("d/changed", "after")
    ground.write("d/sub/half", "after")
    ground.write("o", "after")
    ground.write("n", "after")
    ground.write("p/y.o", "after")
    ground.write("p/y.c", "after")
    os.mkfifo(ground.root / "d/pipe")
    (ground.root / "d/new").mkdir()
    cleared = clear(ground, declared, (), before)
    trash = f"{ground.store.trash}/attempt"
    assert cleared.trashed == {
        path: f"{trash}/{path}" for path in ("d/changed", "d/pipe", "d/sub/half", "o", "p/y.o")
    }
    assert cleared.removed == ("d/new",)
    assert ground.tree() == {
        "d": "folder",
        "d/mine": "before",
        "n": "after",
        "p": "folder",
        "p/y.c": "after",
    }
    assert {path: text for path, text in ground.waste().items() if text != "folder"} == {
        "attempt/d/changed": "after",
        "attempt/d/pipe": "special",
        "attempt/d/sub/half": "after",
        "attempt/o": "after",
        "attempt/p/y.o": "after",
    }


def test_a_folder_left_where_a_file_is_declared_goes_to_the_trash(ground: Ground) -> None:
    """Whole, with what is in it."""
    declared = node(writes=["o"])
    ground.write("o/half", "after")
    assert clear(ground, declared, (), {}).trashed == {"o": f"{ground.store.trash}/attempt/o"}
    assert ground.tree() == {}


def test_clearing_without_a_failed_attempt_trashes_nothing(ground: Ground) -> None:
    """Files nobody recorded stay where they are."""
    ground.write("o", "by hand")
    assert clear(ground, node(writes=["o"])) == Cleared((), {})
    assert ground.tree() == {"o": "by hand"}


def test_an_output_that_never_holds_still_breaks_the_boundary(ground: Ground) -> None:
    """A process that goes on writing an output: a sentence, not a mixture in the store."""
    import threading

    place = ground.write("log", b"x" * (9 << 20))
    stop = threading.Event()

    def disturb() -> None:
        with open(place, "r+b", buffering=0) as file:
            number = 0
            while not stop.is_set():
                number += 1
                file.seek(0)
                file.write(b"%d" % number)

    writer = threading.Thread(target=disturb)
    writer.start()
    try:
        (sentence,) = broken(ground, node(writes=["log"]))
    finally:
        stop.set()
        writer.join()
    assert sentence in {
        "`log` changes while it is read",
        "`log` changes while it is stored",
    }
    assert ground.blob_paths() == []
    assert ground.temporary_files() == []


def test_excluded_literal_files_are_no_outputs(ground: Ground) -> None:
    """A file taken away by a later exclusion need not be written."""
    ground.write("a", "1")
    declared = Node(name=node().name, origin=node().origin, writes=entries("a", "b", "!b"))
    assert [path for path, _ in ground.capture(declared)] == ["a"]
