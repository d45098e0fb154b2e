"""Nothing runs, and nothing is written, for the sake of what makes no difference: time stamps,
order, wording, other nodes, the place of the workspace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from counted import Counted
from workspace import Finished, Workspace

CHAIN = {
    "x": {"run": "cat src > mid", "reads": ["src"], "writes": ["mid"]},
    "y": {"run": "cat mid > out", "reads": ["mid"], "writes": ["out"]},
}


def keys(done: Finished) -> dict[str, str]:
    """Node name to action key."""
    return {e["node"]: e["action_key"] for e in done.events if e["event"] == "node-settled"}


def test_touch_and_checkout_do_not_execute(counted: Counted) -> None:
    """C20: new time stamps, and branches switched forth and back, change nothing."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *who, *words], cwd=counted.root, check=True, capture_output=True)

    counted.plan(CHAIN)
    counted.write("src", "1")
    counted.write(".gitignore", ".assay/\n")
    git("init", "-b", "one")
    git("add", "-A")
    git("commit", "-m", "1")
    assert counted.ran() == ["x", "y"]
    for name in ("src", "plan.toml", "mid", "out"):
        os.utime(counted.path(name))
    assert counted.ran() == []

    git("checkout", "-b", "two")
    counted.write("src", "2")
    git("commit", "-a", "-m", "2")
    assert counted.ran() == ["x", "y"]
    for branch, text in (("one", "1"), ("two", "2")):
        git("checkout", branch)
        assert counted.ran() == []
        assert counted.read("out") == text


@pytest.mark.parametrize("way", ["copied", "moved", "behind a link"])
def test_workspace_elsewhere_has_nothing_to_do(counted: Counted, tmp_path: Path, way: str) -> None:
    """C20: a workspace that was copied or moved with its `.assay/`, or is reached by another
    path, is as up to date as it was."""
    counted.plan({**CHAIN, "z": {"run": "mkdir t; echo 1 > t/f", "writes": ["t/"]}})
    counted.write("src", "1")
    counted.ran()
    place = tmp_path / "deep" / "else where"
    place.parent.mkdir()
    if way == "copied":
        shutil.copytree(counted.root, place, symlinks=True, copy_function=shutil.copyfile)
    elif way == "moved":
        counted.root.rename(place)
    else:
        place.symlink_to(counted.root)
    there = Counted(place, counted.marks)
    there.rests()
    there.remove("mid", "t")
    assert there.ran() == []
    assert there.files() == {
        "plan.toml": there.read("plan.toml"),
        "src": "1",
        "mid": "1",
        "out": "1",
        "t/f": "1\n",
    }
    there.write("src", "2")
    assert there.ran() == ["x", "y"]


def test_copied_workspace_does_not_follow_the_original(counted: Counted, tmp_path: Path) -> None:
    """C20: an edit in the copy is seen in the copy, and one in the original there."""
    counted.plan(CHAIN)
    counted.write("src", "1")
    counted.ran()
    counted.rests()
    copy = Counted(tmp_path / "copy", counted.marks)
    shutil.copytree(counted.root, copy.root, symlinks=True)
    copy.write("src", "2")
    assert copy.ran() == ["x", "y"]
    assert counted.ran() == []
    counted.write("src", "3")
    assert counted.ran() == ["x", "y"]
    assert (copy.read("out"), counted.read("out")) == ("2", "3")
    copy.rests()


def test_edits_that_do_not_affect_a_node_keep_its_result(counted: Counted) -> None:
    """C22: wording, scheduling and limits, the order of nodes, comments and other nodes."""
    counted.plan(CHAIN)
    counted.write("src", "1")
    counted.ran()
    extra = {
        "description": "cats",
        "tags": ["t"],
        "kind": "agent",
        "priority": 3,
        "timeout": "1h",
        "grace": "1s",
        "cancellable": False,
        "retry": {"attempts": 3, "backoff": "1s"},
        "resources": {"gpu": 1},
        "locks": ["l"],
        "cache": {"ttl": "7d"},
        "max_result_bytes": 5,
    }
    head = "# A comment.\nname = 'another'\n[concurrency]\nsteps = 1\n[resources]\ngpu = 1\n"
    y, x = {**CHAIN["y"], **extra, "after": ["x"]}, {**extra, **CHAIN["x"]}
    counted.plan({"c": {"run": "echo 1 > c", "writes": ["c"]}, "y": y, "x": x}, head)
    assert counted.ran() == ["c"]
    counted.rests()


def test_renamed_node_keeps_its_result(counted: Counted) -> None:
    """C22: a name is no part of what a node does, nor is the plan file's."""
    counted.plan(CHAIN)
    counted.write("src", "1")
    counted.ran()
    counted.plan({"first": CHAIN["x"], "second": CHAIN["y"]}, file="other.toml")
    assert counted.run("other.toml").named("clean") == {"first", "second"}


def test_order_of_declarations_does_not_matter(counted: Counted) -> None:
    """C23: keys, variables, entries and dependencies in any order make the same key, however
    the folder lists its files and Python its sets; the order of argv does not."""
    node = {
        "run": ["sh", "-c", "cat d/* > o; echo > p"],
        "env": {"A": "1", "B": "2"},
        "reads": ["d/*", "e", "f"],
        "writes": ["o", "p"],
        "pass_env": ["V*", "W*"],
        "after": ["one", "two"],
    }
    groups: dict[str, dict[str, object]] = {"one": {"after": []}, "two": {"after": []}}
    names = [f"d/{n}" for n in range(20)] + ["e", "f"]
    for name in names:
        counted.write(name, name)
    counted.plan({"n": node, **groups})
    first = counted.run("n")
    assert first.named("built") == {"n"}

    counted.remove("d", "e", "f")
    for name in reversed(names):
        counted.write(name, name)
    backwards = {
        key: (
            list(reversed(value))
            if isinstance(value, list) and key != "run"
            else dict(reversed(value.items()))
            if isinstance(value, dict)
            else value
        )
        for key, value in reversed(node.items())
    }
    counted.plan({**dict(reversed(groups.items())), "n": backwards})
    for seed in ("0", "1"):
        again = counted.assay("run", "--json", "n", env={"PYTHONHASHSEED": seed})
        assert again.counts == {"clean": 3}
    counted.plan({"n": {**node, "run": ["sh", "-c", "echo > p; cat d/* > o"]}, **groups})
    assert counted.run("n").named("built") == {"n"}


def test_restored_inputs_give_the_same_keys(counted: Counted) -> None:
    """C25: with all outputs gone, a chain over files, trees and links comes back whole and
    under the keys it was made under."""
    counted.plan(
        {
            "x": {
                "run": "mkdir -p t/empty t/sub; cp src t/f; ln -s f t/l; ln -s sub t/d; "
                "cp src t/sub/p; chmod +x t/sub/p",
                "reads": ["src"],
                "writes": ["t/"],
            },
            "y": {"run": "cp -a t u; ln -s u/f one", "reads": ["t/"], "writes": ["u/", "one"]},
            "z": {"run": "cat one u/l > out", "reads": ["one", "u/**"], "writes": ["out"]},
        }
    )
    counted.write("src", "1")
    first = counted.run()
    assert first.named("built") == {"x", "y", "z"}
    tree = counted.tree()
    counted.rests()
    counted.remove("t", "u", "one", "out")
    again = counted.run()
    assert again.named("clean") == {"x", "y", "z"}
    assert keys(again) == keys(first)
    assert counted.tree() == tree
    counted.rests()


def test_rebuilt_equal_output_stops_there(counted: Counted) -> None:
    """A node that ran again and made the same bytes leaves everything after it alone."""
    counted.plan(
        {
            "x": {"run": "grep -v '^#' src > mid", "reads": ["src"], "writes": ["mid"]},
            "y": CHAIN["y"],
        }
    )
    counted.write("src", "1\n")
    assert counted.ran() == ["x", "y"]
    counted.write("src", "# comment\n1\n")
    assert counted.ran() == ["x"]
    counted.rests()


def test_up_to_date_run_writes_nothing(counted: Counted) -> None:
    """C27: with nothing to do, no file of the workspace is touched, also where none may be."""
    counted.plan(
        {
            **CHAIN,
            "z": {"run": "mkdir -p t/empty; echo 1 > t/f; ln -s f t/l", "writes": ["t/"]},
            "w": {
                "run": "cp src b; rm -f gone",
                "reads": ["src"],
                "writes": ["b"],
                "removes": ["gone"],
            },
        }
    )
    counted.write("src", "1")
    counted.write("gone", "1")
    counted.ran()
    counted.rests()
    for path in counted.everything():
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    counted.rests()
    for path in counted.everything():
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def test_only_what_changed_is_put_back(counted: Counted) -> None:
    """C27: a restore leaves outputs alone that are right as they are."""
    counted.plan({"a": {"run": "mkdir t; echo 1 > t/x; echo 2 > t/y", "writes": ["t/"]}})
    counted.ran()
    before = counted.stats()["t/y"]
    counted.remove("t/x")
    assert counted.ran() == []
    assert counted.stats()["t/y"] == before


@pytest.mark.parametrize("selection", [["x"], ["y"], ["--tag", "t"]], ids=str)
def test_part_of_a_plan_does_not_spoil_the_rest(counted: Counted, selection: list[str]) -> None:
    """Runs of single nodes, by name or tag, share results with runs of everything."""
    counted.plan({"x": {**CHAIN["x"], "tags": ["t"]}, "y": CHAIN["y"]})
    counted.write("src", "1")
    executed = counted.ran(*selection)
    counted.rests(*selection)
    assert executed + counted.ran() == ["x", "y"]
    counted.rests()
    counted.rests(*selection)


def test_value_reference_costs_its_reader_only_when_the_value_changes(counted: Counted) -> None:
    """Early cutoff: of another node's result only the projected part is in the key."""
    counted.plan(
        {
            "info": {
                "run": 'cat src > "$ASSAY_RESULT"',
                "reads": ["src"],
                "result": "json",
            },
            "use": {
                "run": "echo $V > o",
                "env": {"V": {"from": "info", "path": "version.0"}},
                "writes": ["o"],
            },
        }
    )
    values: list[tuple[object, list[str]]] = [
        ({"version": [1, 2], "other": 1}, ["info", "use"]),
        ({"other": 2, "version": [1, 3]}, ["info"]),
        ({"version": ["1"]}, ["info", "use"]),
        ({"version": [2]}, ["info", "use"]),
        ({"version": [1, 2], "other": 1}, []),
    ]
    for value, executed in values:
        counted.write("src", json.dumps(value))
        assert counted.ran() == executed, value
        counted.rests()
    assert counted.read("o") == "1\n"


def test_a_plan_file_that_is_a_link_has_a_workspace_of_its_own(
    workspace: Workspace, tmp_path: Path
) -> None:
    """C125: what was done beside the plan that it leads to says nothing of the folder it is in."""
    workspace.write(
        "plan.toml", '[nodes.n]\nrun = "cat in > out"\nreads = ["in"]\nwrites = ["out"]\n'
    )
    workspace.write("in", "1\n")
    for _ in range(2):
        workspace.run()
    other = Workspace(tmp_path / "other")
    other.root.mkdir()
    other.write("in", "2\n")
    other.path("plan.toml").symlink_to(workspace.path("plan.toml"))
    assert other.assay("run").code == 0
    assert other.read("out") == "2\n"
