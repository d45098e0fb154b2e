"""A restored result equals the recorded one, and restoring it destroys nobody's work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from counted import Counted, restored, warnings

MIRROR = {"run": "rm -rf d; mkdir d; cp src/* d/", "reads": ["src/*"], "writes": ["d/"]}


def test_left_overs_of_another_result_go(counted: Counted) -> None:
    """C28: what another result left in a written tree is gone after a hit as after a run;
    a stray file of somebody else stays and is named."""
    counted.plan({"a": MIRROR})
    counted.write("src/p", "p")
    counted.write("src/q", "q")
    assert counted.ran() == ["a"]
    counted.remove("src/q")
    assert counted.ran() == ["a"]
    assert counted.files("d") == {"p": "p"}
    for _ in range(2):
        counted.write("src/q", "q")
        assert counted.ran() == []
        assert counted.files("d") == {"p": "p", "q": "q"}
        counted.rests()
        counted.remove("src/q")
        assert counted.ran() == []
        assert counted.files("d") == {"p": "p"}
        counted.rests()
    counted.write("d/stray", "mine")
    counted.write("src/q", "q")
    executed, done = counted.tried()
    assert (executed, done.code) == ([], 0)
    assert "`d/stray`" in warnings(done)
    assert counted.files("d") == {"p": "p", "q": "q", "stray": "mine"}


def test_left_over_alone_is_enough_for_a_restore(counted: Counted) -> None:
    """C28: a left-over goes also where every output of the result is right as it stands, and
    so does a folder that lost its last file."""
    counted.plan({"a": {**MIRROR, "run": "rm -rf d; cp -r src d", "reads": ["src/**"]}})
    counted.write("src/p", "p")
    counted.ran()
    counted.write("src/deep/er/q", "q")
    assert counted.ran() == ["a"]
    counted.remove("src/deep")
    assert counted.ran() == []
    assert counted.tree("d") == {"p": "p"}
    counted.rests()


def test_modes_come_back(counted: Counted) -> None:
    """C29: the executable bit is restored, other modes follow the umask, set-uid never comes
    back, and a read-only file in the way is no obstacle."""
    counted.plan(
        {
            "a": {
                "run": "mkdir -p bin; for f in bin/t o ro su; do echo $f > $f; done\n"
                "chmod 755 bin/t; chmod 444 ro; chmod 4755 su",
                "writes": ["bin/t", "o", "ro", "su"],
            }
        }
    )
    counted.ran()

    def modes() -> dict[str, str]:
        names = ("bin/t", "o", "ro", "su")
        return {name: oct(stat.S_IMODE(counted.path(name).stat().st_mode)) for name in names}

    assert modes() == {"bin/t": "0o755", "o": "0o644", "ro": "0o444", "su": "0o4755"}
    counted.rests()
    counted.remove("bin", "o", "ro", "su")
    assert counted.ran() == []
    assert modes() == {"bin/t": "0o755", "o": "0o644", "ro": "0o644", "su": "0o755"}
    counted.path("ro").write_text("mine")
    counted.path("ro").chmod(0o444)
    assert counted.ran() == []
    assert counted.read("ro") == "ro\n"
    counted.rests()


def test_links_come_back_as_links(counted: Counted) -> None:
    """C30: links in a tree, dangling ones and ones to folders or themselves too, come back
    with their texts; what they lead to is stored once."""
    counted.plan(
        {
            "a": {
                "run": "mkdir d; echo 1 > d/f; ln -s f d/l; ln -s nowhere d/dang; ln -s . d/self\n"
                "mkdir d/k; ln -s k d/dl; ln -s d/f top; ln -s d folder",
                "writes": ["d/", "top", "folder"],
            }
        }
    )
    counted.ran()
    tree = counted.tree()
    assert (tree["d/self"], tree["d/k"]) == ("-> .", "folder")
    counted.rests()
    counted.remove("d", "top", "folder")
    assert counted.ran() == []
    assert counted.tree() == tree
    counted.rests()
    assert sum(blob.read_bytes() == b"1\n" for blob in counted.blobs()) == 1


def test_link_in_the_way_is_not_written_through(counted: Counted, tmp_path: Path) -> None:
    """C30: a link that somebody put where an output or its folder belongs is replaced; what
    it leads to is not touched."""
    counted.plan({"a": {"run": "mkdir -p d; echo 1 > d/x; echo 2 > o", "writes": ["d/", "o"]}})
    counted.write("mine/x", "mine")
    counted.ran()
    counted.remove("d", "o")
    counted.path("d").symlink_to("mine")
    counted.path("o").symlink_to("mine/x")
    assert counted.ran() == []
    assert counted.files() == {
        "plan.toml": counted.read("plan.toml"),
        "d/x": "1\n",
        "mine/x": "mine",
        "o": "2\n",
    }
    # One that leads out of the workspace.
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    counted.remove("o")
    counted.path("o").symlink_to(outside / "x")
    assert counted.ran() == []
    assert counted.read("o") == "2\n"
    assert (outside / "x").read_text() == "outside"


def test_editing_an_output_in_place_does_not_change_the_cache(counted: Counted) -> None:
    """C34: what is appended to an output, or to a restored one, is not in the store."""
    counted.plan({"a": {"run": "echo 1 > o", "writes": ["o"]}})
    counted.ran()
    for _ in range(2):
        with open(counted.path("o"), "a") as file:
            file.write("x\n")
        counted.remove("o")
        assert counted.ran() == []
        assert counted.read("o") == "1\n"
    assert all(blob.stat().st_nlink == 1 for blob in counted.blobs())
    verified = counted.assay("cache", "verify")
    assert verified.code == 0, verified.out + verified.err


@pytest.mark.parametrize("writes", [["d/**", "!d/keep/**"], ["d/", "!d/keep/**"]], ids=str)
def test_excluded_files_below_a_written_tree_stay(counted: Counted, writes: list[str]) -> None:
    """C35: neither the cleaning before a run nor a restore touches what the writes exclude;
    folders go only when they are empty."""
    keep = {"keep/k": "mine", "keep/deep/k": "mine"}
    for name, text in keep.items():
        counted.write(f"d/{name}", text)
    counted.plan(
        {
            "a": {
                "run": "test ! -e d/x; mkdir -p d/e; cp src d/x; cp src d/e/y",
                "reads": ["src"],
                "writes": writes,
            }
        }
    )
    for text in ("1", "2"):
        counted.write("src", text)
        assert counted.ran() == ["a"]
        assert counted.files("d") == {"x": text, "e/y": text, **keep}
    assert counted.ran("--fresh") == ["a"]
    counted.remove("d/x", "d/e")
    counted.write("src", "1")
    assert counted.ran() == []
    assert counted.files("d") == {"x": "1", "e/y": "1", **keep}
    counted.rests()


def test_nested_exclusions(counted: Counted) -> None:
    """C35: a later entry takes back in what an earlier one left out."""
    writes = ["d/", "!d/a/**", "d/a/b/", "!d/a/b/no"]
    counted.plan(
        {
            "a": {
                "run": "mkdir -p d/a/b d/empty; cd d; touch 1 a/2 a/b/3 a/b/no",
                "writes": writes,
            }
        }
    )
    counted.ran()
    counted.remove("d")
    assert counted.ran() == []
    assert counted.tree("d") == {
        "1": "",
        "a": "folder",
        "a/b": "folder",
        "a/b/3": "",
        "empty": "folder",
    }
    counted.rests()


def test_cleaning_spares_what_the_node_reads_and_what_it_did_not_make(counted: Counted) -> None:
    """C35: before a run, recorded outputs go; paths the node reads, files of others and
    outputs that were edited since stay."""
    counted.plan(
        {
            "a": {
                "run": "ls d > list; cat src > d/made; cat src > d/edited; echo >> d/both",
                "reads": ["src", "d/both"],
                "writes": ["d/", "list"],
            }
        }
    )
    counted.write("src", "1")
    counted.write("d/both", "")
    assert counted.ran() == ["a"]
    counted.write("src", "2")
    counted.write("d/edited", "mine")
    counted.write("d/stray", "mine")
    assert counted.ran() == ["a"]
    assert counted.read("list").split() == ["both", "edited", "stray"]


def test_clean_false_lets_a_tool_find_its_outputs(counted: Counted) -> None:
    """C35: an incremental tool finds its earlier outputs where it says `clean = false`."""
    node = {"run": "cat src >> o", "reads": ["src"], "writes": ["o"]}
    counted.plan({"a": {**node, "clean": False}})
    for text in ("1", "2"):
        counted.write("src", text)
        counted.ran()
    assert counted.read("o") == "12"
    counted.plan({"a": node})
    assert counted.ran() == ["a"]
    counted.write("src", "3")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "3"


@pytest.mark.parametrize("writes", ["d/", "d/**"])
def test_no_name_is_special_inside_declared_writes(counted: Counted, writes: str) -> None:
    """C36: what is ignored among reads is an output like any other among writes."""
    names = ["node_modules/m", ".git/c", ".DS_Store", "__pycache__/p", "x.pyc", "y.swp", ".dot"]
    script = "\n".join(f"mkdir -p $(dirname d/{name}); echo {name} > d/{name}" for name in names)
    counted.plan({"a": {"run": script, "writes": [writes]}}, 'ignore = ["*.swp"]')
    counted.ran()
    counted.remove("d")
    assert counted.ran() == []
    assert counted.files("d") == {name: f"{name}\n" for name in names}


@pytest.mark.parametrize("entry", ["../out/o", "/tmp/x/o", "a/../../o", ".assay/o", "plan.toml"])
def test_writes_that_are_nobodys_are_refused(counted: Counted, entry: str) -> None:
    """C38: an output outside the workspace, or in place of assay's own files, is an error of
    the plan that names it; nothing runs and nothing is created."""
    counted.plan({"a": {"run": "true", "writes": [entry]}})
    executed, done = counted.tried()
    assert (executed, done.code) == ([], 2)
    assert entry in done.err
    assert not counted.path(".assay").exists()


def test_output_behind_a_link_out_of_the_workspace_is_refused(counted: Counted) -> None:
    """C38: a declared output that a link leads outside fails its node and is not recorded."""
    counted.path("lnk").symlink_to("..")
    counted.plan({"a": {"run": "echo 1 > lnk/o", "writes": ["lnk/o"]}})
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == (["a"], 1)
        assert "leads outside the workspace" in done.out


def test_empty_folders_of_a_tree_come_back(counted: Counted) -> None:
    """Empty folders are part of a written tree, and one that stands where the result has
    none goes."""
    counted.plan(
        {"a": {"run": "mkdir -p $(cat src); echo > d/f", "reads": ["src"], "writes": ["d/"]}}
    )
    counted.write("src", "d/one/two d/three")
    counted.ran()
    counted.write("src", "d")
    assert counted.ran() == ["a"]
    assert counted.tree("d") == {"f": "\n"}
    counted.write("src", "d/one/two d/three")
    assert counted.ran() == []
    assert set(counted.tree("d")) == {"f", "one", "one/two", "three"}
    counted.rests()
    counted.write("src", "d")
    assert counted.ran() == []
    assert counted.tree("d") == {"f": "\n"}
    counted.rests()


def test_empty_tree_is_a_result(counted: Counted) -> None:
    """A tree that the command made and put nothing into is restored as just that."""
    counted.plan({"a": {"run": "mkdir d", "writes": ["d/"]}})
    counted.ran()
    counted.rests()
    counted.remove("d")
    assert counted.ran() == []
    assert counted.path("d").is_dir()


def test_file_where_a_folder_was_and_back(counted: Counted) -> None:
    """Results of one node may differ in what is a file, a folder or a link."""
    counted.plan({"a": {"run": "rm -rf d; sh src", "reads": ["src"], "writes": ["d/"]}})
    shapes = [
        "mkdir -p d/x; echo 1 > d/x/y",
        "mkdir d; echo 2 > d/x",
        "mkdir d; ln -s nowhere d/x",
        "mkdir -p d/x",
    ]
    trees = []
    for shape in shapes:
        counted.write("src", shape)
        assert counted.ran() == ["a"]
        trees.append(counted.tree("d"))
    for turn in (0, 1, 0, 2, 0, 3, 1, 3, 2, 1):
        counted.write("src", shapes[turn])
        assert counted.ran() == []
        assert counted.tree("d") == trees[turn]
    counted.rests()


def test_optional_output_that_was_not_written(counted: Counted) -> None:
    """That an optional output is absent is part of the result: a later one's goes."""
    counted.plan(
        {
            "a": {
                "run": "echo > o; test ! -s src || cp src maybe",
                "reads": ["src"],
                "writes": ["o", {"path": "maybe", "optional": True}],
            },
            "b": {
                "run": "cat maybe > p || echo none > p",
                "reads": [{"path": "maybe", "optional": True}],
                "writes": ["p"],
            },
        }
    )
    counted.write("src", "")
    assert counted.ran() == ["a", "b"]
    counted.rests()
    counted.write("src", "yes")
    assert counted.ran() == ["a", "b"]
    for text, result in (("", "none\n"), ("yes", "yes"), ("", "none\n")):
        counted.write("src", text)
        assert counted.ran() == []
        assert counted.path("maybe").exists() == bool(text)
        assert counted.read("p") == result
        counted.rests()
    counted.write("maybe", "by hand")
    assert counted.ran() == []
    assert not counted.path("maybe").exists()
    assert counted.trash() == {"maybe": "by hand"}


def test_optional_source_that_comes_and_goes(counted: Counted) -> None:
    """Whether an optional input is there is part of the key."""
    counted.plan(
        {
            "a": {
                "run": "cat maybe > o || echo none > o",
                "reads": [{"path": "maybe", "optional": True}],
                "writes": ["o"],
            }
        }
    )
    for text, executed in ((None, ["a"]), ("1", ["a"]), (None, []), ("", ["a"]), ("1", [])):
        if text is not None:
            counted.write("maybe", text)
        elif counted.path("maybe").exists():
            counted.remove("maybe")
        assert counted.ran() == executed
        assert counted.read("o") == ("none\n" if text is None else text)
        counted.rests()


def test_removed_paths(counted: Counted) -> None:
    """A node that removes a file has nothing to do while it is gone, and runs when it is
    back; one that reads what it removes is keyed by it."""
    counted.plan(
        {
            "rm": {"run": "rm -f junk", "removes": ["junk"]},
            "move": {
                "run": "test ! -e from || mv from to; test -e to",
                "reads": ["from"],
                "removes": ["from"],
                "writes": ["to"],
                "clean": False,
            },
        }
    )
    counted.write("junk", "1")
    counted.write("from", "1")
    assert counted.ran() == ["move", "rm"]
    assert counted.files() == {"plan.toml": counted.read("plan.toml"), "to": "1"}
    # Its input is gone by its own doing, which is another input: it executes once on that.
    assert counted.ran() == ["move"]
    counted.rests()
    counted.write("junk", "2")
    assert counted.ran() == ["rm"]
    counted.write("from", "2")
    assert counted.ran() == ["move"]
    assert counted.read("to") == "2"
    counted.ran()
    counted.rests()


def test_many_outputs_are_told_and_restored_at_once(counted: Counted) -> None:
    """What was put back is counted in the events."""
    counted.plan(
        {"a": {"run": "mkdir d; for i in 1 2 3; do echo $i > d/$i; done", "writes": ["d/"]}}
    )
    counted.ran()
    counted.remove("d")
    assert restored(counted.run()) == 3


def test_restore_leaves_no_temporary_files(counted: Counted) -> None:
    """After runs and restores nothing of them is left in the store's temporary folder."""
    counted.plan({"a": MIRROR})
    counted.write("src/p", "p")
    counted.ran()
    counted.remove("d")
    counted.ran()
    found = [name for _, _, names in os.walk(counted.path(".assay/tmp")) for name in names]
    assert [name for name in found if not name.endswith((".lock", ".lease"))] == []
