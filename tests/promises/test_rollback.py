"""Compensable nodes: what they changed is taken back when they fail, are cancelled or lose
their assay, and nothing a user made is lost by that."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
from pathlib import Path

import pytest
from counted import Counted, warnings
from probe import Probes
from running import Begin

RICH = (
    "rm -f d/gone d/sub/moved.old; mv d/here d/there; chmod 600 d/mode; echo more >> d/file;"
    " rm -rf d/tree; echo now a file > d/tree; rm d/plain; mkdir d/plain; echo x > d/plain/x;"
    " ln -sfn elsewhere d/link; rmdir d/empty; mkdir -p d/new/deep; echo n > d/new/deep/n;"
    " chmod 700 d/sub"
)
"""Every kind of change below `d/`."""


def lay_out_rich(counted: Counted) -> None:
    for name in ("gone", "here", "mode", "file", "tree/a", "tree/b", "plain", "sub/kept"):
        counted.write(f"d/{name}", f"{name}\n")
    counted.path("d/mode").chmod(0o640)
    counted.path("d/file").chmod(0o755)
    counted.path("d/empty").mkdir()
    counted.path("d/sub").chmod(0o750)
    counted.path("d/link").symlink_to("file")


def describe(counted: Counted, below: str = ".") -> dict[str, tuple[str, int]]:
    """Everything outside `.assay/` with its permission bits."""
    return {
        name: (text, stat.S_IMODE(counted.path(below).joinpath(name).lstat().st_mode))
        for name, text in counted.tree(below).items()
    }


def test_a_failed_attempt_leaves_no_trace(counted: Counted) -> None:
    """C100: contents, modes, links, folders, absences: all as before, byte for byte and mode
    for mode; what it had made instead is kept and named."""
    lay_out_rich(counted)
    before = describe(counted, "d")
    counted.plan({"mod": {"run": f"{RICH}; exit 1", "writes": ["d/"], "tier": "compensable"}})
    ran, done = counted.tried()
    assert (ran, done.code) == (["mod"], 1)
    assert describe(counted, "d") == before
    told = warnings(done)
    assert "rolled back, as before attempt" in told
    assert "kept what stood there instead" in told
    assert counted.trash()["d/file"] == "file\nmore\n"
    assert counted.trash()["d/new/deep/n"] == "n\n"


def test_a_removal_is_taken_back(counted: Counted) -> None:
    """What is declared in `removes` comes back as well, a whole folder too."""
    counted.write("old/a", "a\n")
    counted.write("old/b/c", "c\n")
    counted.write("one", "1\n")
    before = describe(counted)
    counted.plan(
        {
            "mod": {
                "run": "rm -rf old one; exit 1",
                "removes": ["old", "one"],
                "tier": "compensable",
            }
        }
    )
    before["plan.toml"] = describe(counted)["plan.toml"]
    assert counted.tried()[1].code == 1
    assert describe(counted) == before


def test_folders_made_for_it_go_with_it(counted: Counted) -> None:
    """The folders above declared writes that assay makes are gone after a rollback."""
    counted.plan(
        {"mod": {"run": "echo 1 > a/b/c; exit 1", "writes": ["a/b/c"], "tier": "compensable"}}
    )
    assert counted.tried()[1].code == 1
    assert not counted.path("a").exists()


def test_each_try_starts_from_the_same_state(counted: Counted) -> None:
    """C100: a retry does not see what the try before it had done."""
    counted.write("f", "0\n")
    flag = counted.marks.with_name("second")
    counted.plan(
        {
            "mod": {
                "run": f"echo x >> f; test -e {flag} || {{ touch {flag}; exit 1; }}",
                "reads": ["f"],
                "writes": ["f"],
                "tier": "compensable",
                "retry": {"attempts": 2, "backoff": "0s"},
            }
        }
    )
    assert counted.ran() == ["mod", "mod"]
    assert counted.read("f") == "0\nx\n"


def test_undo_runs_after_every_try_that_did_not_stand(counted: Counted) -> None:
    """`undo` compensates what lies elsewhere, once the files are back, with the environment of
    its node; not after a success, nor for a command that never started."""
    counted.write("f", "0\n")
    undo = f"echo undone $WHO $(cat f) >> {shlex.quote(str(counted.marks))}"
    node = {
        "run": "echo x > f; exit 1",
        "writes": ["f"],
        "tier": "compensable",
        "undo": undo,
        "env": {"WHO": "me"},
        "retry": {"attempts": 2, "backoff": "0s"},
    }
    counted.plan({"mod": node})
    assert counted.assay("run").code == 1
    assert counted.executions == ["mod", "undone me 0"] * 2
    counted.plan({"mod": {**node, "run": ["no-such-program"]}})
    assert counted.assay("run").code == 1
    counted.plan({"mod": {**node, "run": "echo x > f"}})
    assert counted.assay("run").code == 0
    assert counted.executions == [*["mod", "undone me 0"] * 2, "mod"]


def test_an_undo_that_fails_is_told_and_done_again(counted: Counted) -> None:
    """Its node fails and is not tried again; the next run compensates first, and where that
    fails too an operator is asked."""
    counted.write("f", "0\n")
    undo = f"echo undo >> {shlex.quote(str(counted.marks))}; test -e can"
    counted.plan(
        {
            "mod": {
                "run": "echo x > f; test -e good",
                "writes": ["f"],
                "tier": "compensable",
                "undo": undo,
                "retry": {"attempts": 3, "backoff": "0s"},
            }
        }
    )
    done = counted.assay("run", "--json")
    assert done.code == 1
    assert "its `undo` ended with exit code 1" in warnings(done)
    assert counted.executions == ["mod", "undo"]
    again = counted.assay("run", "--json")
    assert (again.code, again.outcomes) == (4, {"mod": "ambiguous"})
    counted.write("can", "")
    counted.write("good", "")
    assert counted.assay("run").code == 0
    assert counted.executions == ["mod", "undo", "undo", "undo", "mod"]


def test_an_undo_has_the_folder_that_was_made_for_its_node(counted: Counted) -> None:
    """A working directory that was not there before the node is there for its `undo`, and gone
    after it with what the `undo` has not put there."""
    counted.plan(
        {
            "mod": {
                "run": "echo x > f; exit 1",
                "workdir": "a/b",
                "writes": ["a/b/f"],
                "tier": "compensable",
                "undo": f"echo undone >> {shlex.quote(str(counted.marks))}; test -d ../b",
            }
        }
    )
    assert counted.assay("run").code == 1
    assert counted.executions == ["mod", "undone"]
    assert not counted.path("a").exists()


def test_a_folder_that_a_killed_undo_had_goes_with_the_next(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Killed when nothing but the `undo` was left to be done, twice over."""
    counted.plan(
        {
            "mod": {
                "run": "echo x > f; exit 1",
                "workdir": "a/b",
                "writes": ["a/b/f"],
                "tier": "compensable",
                "undo": shlex.join(probes.argv("undo")),
            }
        }
    )
    run = begin()
    probes.arrive("undo").exit(1)
    assert run.finish().code == 1
    run = begin()
    undo = probes.arrive("undo")
    assert undo.cwd() == str(counted.path("a/b"))
    run.kill()
    undo.exit(1)
    undo.gone()
    assert counted.path("a/b").exists()
    run = begin()
    probes.arrive("undo").exit(0)
    run.told("node-started")
    probes.arrive("undo").exit(0)
    assert run.finish().code == 1
    assert not counted.path("a").exists()


@pytest.mark.parametrize("who", ["itself", "run", "rewind"])
def test_the_private_folder_of_a_killed_undo_is_removed(
    counted: Counted, probes: Probes, begin: Begin, system_tmp: Path, who: str
) -> None:
    """Whoever executes an `undo`, and wherever the temporary folders of others are: what a
    killed assay had made for it goes with whoever comes next."""
    places = [system_tmp / name for name in ("first", "taker", "next")]
    for place in places:
        place.mkdir()
    first, taker, after = ({"TMPDIR": str(place)} for place in places)
    counted.write("in", "1")
    counted.plan(
        {
            "a": {"run": "true"},
            "mod": {
                "run": "test -s in; cp in f",
                "reads": ["in"],
                "writes": ["f"],
                "after": ["a"],
                "tier": "compensable",
                "undo": shlex.join(probes.argv("undo")),
            },
            "last": {"run": "exit 1", "after": ["mod"]},
        }
    )
    if who != "itself":
        assert counted.assay("run", env=first).code == 1
    counted.write("in", "" if who == "itself" else "2")
    words = ["rewind", "last", "--to", "a"] if who == "rewind" else ["run"]
    with counted.start(*words, env=taker) as taking:
        undo = probes.arrive("undo")
        assert Path(undo.environ()["TMPDIR"]).is_relative_to(taker["TMPDIR"])
        taking.kill()
        undo.exit(0)
        undo.gone()
    assert counted.assay("cancel", "last", env=after).code == 0
    assert [path.name for place in places for path in place.iterdir()] == []
    assert not list(counted.path(".assay/tmp").glob("*.undo*"))


def test_a_hanging_undo_ends_with_its_timeout(counted: Counted) -> None:
    """An `undo` has no more time than its node."""
    counted.plan(
        {
            "mod": {
                "run": "exit 1",
                "tier": "compensable",
                "undo": "sleep 600",
                "timeout": "1s",
                "grace": "0s",
            }
        }
    )
    done = counted.assay("run", "--json")
    assert done.code == 1
    assert "its `undo` timed out after 1s" in warnings(done)


def test_a_cancelled_attempt_is_taken_back(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C101: twenty Ctrl-C while it runs, fails and is rolled back: every file is as before."""
    for number in range(200):
        counted.write(f"d/{number}", f"{number}\n")
    before = describe(counted, "d")
    script = f"for f in d/*; do echo x >> $f; done; {shlex.join(probes.argv('mod'))}"
    counted.plan({"mod": {"run": script, "writes": ["d/"], "tier": "compensable"}})
    run = begin()
    probes.arrive("mod")
    for _ in range(20):
        run.send(signal.SIGINT)
    done = run.finish()
    assert done.code == 130
    assert describe(counted, "d") == before


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_crash_is_taken_back_by_whoever_comes_next(
    counted: Counted, probes: Probes, begin: Begin, command: str
) -> None:
    """C101, C103: assay and its node die in the middle: the files are as before and `undo` has
    run before anything else; then the node runs from there, once."""
    lay_out_rich(counted)
    before = describe(counted, "d")
    script = f"{RICH}; {shlex.join(probes.argv('mod'))}; {RICH}"
    undo = f"cat d/file >> {shlex.quote(str(counted.marks))}; test ! -e d/new"
    counted.plan(
        {
            "mod": {
                "run": script,
                "reads": ["d/**"],
                "writes": ["d/"],
                "tier": "compensable",
                "undo": undo,
            }
        }
    )
    run = begin()
    mod = probes.arrive("mod")
    run.kill()
    os.kill(mod.pid, signal.SIGKILL)
    mod.gone()
    with counted.start(*([command] if command == "run" else ["resume", "last"])) as again:
        second = probes.arrive("mod")
        os.kill(second.pid, signal.SIGKILL)
        assert again.wait() == 1
    assert describe(counted, "d") == before
    # Twice undone: by whoever came after the crash, and when that try failed in turn.
    assert counted.executions == ["mod", "file", "mod", "file"]


def test_an_edit_made_meanwhile_is_kept(counted: Counted, probes: Probes, begin: Begin) -> None:
    """What a user wrote between the crash and the next run is never lost: it is kept and named
    when the file is put back."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "mod": {
                "run": f"echo x >> f; {shlex.join(probes.argv('mod'))}",
                "reads": ["f"],
                "writes": ["f"],
                "tier": "compensable",
            },
        }
    )
    run = begin()
    mod = probes.arrive("mod")
    run.kill()
    os.kill(mod.pid, signal.SIGKILL)
    mod.gone()
    counted.write("f", "mine\n")
    with counted.start("run", "--json") as again:
        probes.arrive("mod").exit(0)
        out, _ = again.communicate()
    assert counted.trash() == {"f": "mine\n"}
    assert "kept what stood there instead: `f` is now" in out
    assert counted.read("f") == "0\nx\n"


def test_what_cannot_be_kept_is_not_touched(counted: Counted) -> None:
    """A node whose writes could not be put back is not started."""
    counted.write("target/f", "1\n")
    counted.path("link").symlink_to("target")
    os.mkfifo(counted.path("pipe"))
    for writes, text in ((["link/f"], "stands above"), (["pipe"], "pipe"), (["target"], "folder")):
        counted.plan({"mod": {"run": "echo x > target/f", "writes": writes, "tier": "compensable"}})
        ran, done = counted.tried()
        assert (ran, done.code) == ([], 1)
        [event] = [e for e in done.events if e["event"] == "node-settled"]
        assert "was not started" in event["detail"]
        assert text in event["detail"]
    assert counted.read("target/f") == "1\n"


def test_where_it_is_kept_is_on_record(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C101: the pre-image lies on disk before the node starts, the journal says where, and it
    goes once a rollback has been checked."""
    counted.write("f", "0\n")
    counted.plan({"mod": {"run": probes.argv("mod"), "writes": ["f"], "tier": "compensable"}})
    run = begin()
    mod = probes.arrive("mod")
    begun = [
        json.loads(line)
        for line in counted.assay("journal", "last", "--json").out.splitlines()
        if '"attempt-begun"' in line
    ]
    place = Path(begun[0]["data"]["preimage"])
    assert place.is_file()
    assert "f" in place.read_text()
    mod.exit(1)
    assert run.finish().code == 1
    assert not place.exists()


def test_work_with_other_content_is_rolled_back_and_done_again(counted: Counted) -> None:
    """An unfinished run's compensable work is undone in reverse order when what it read has
    changed, and then done anew; what did not change stays."""
    counted.write("conf", "one\n")
    counted.write("a", "0\n")
    counted.write("b", "0\n")
    marks = shlex.quote(str(counted.marks))
    counted.plan(
        {
            "first": {
                "run": "cat conf >> a",
                "reads": ["conf"],
                "writes": ["a"],
                "tier": "compensable",
                "undo": f"echo undo first >> {marks}",
            },
            "second": {
                "run": "cat a >> b",
                "reads": ["a"],
                "writes": ["b"],
                "tier": "compensable",
                "undo": f"echo undo second >> {marks}",
            },
            "bad": {"run": "test -e ok", "after": ["second"], "cache": False},
        }
    )
    assert counted.assay("run").code == 1
    assert counted.assay("run").code == 1
    assert counted.executions == ["first", "second", "bad", "bad"]
    counted.write("conf", "two\n")
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    assert counted.executions[4:] == ["undo second", "undo first", "first", "second", "bad"]
    assert counted.read("a") == "0\ntwo\n"
    assert counted.read("b") == "0\n0\ntwo\n"


def test_a_file_behind_a_link_is_taken_back_too(counted: Counted) -> None:
    """What a failed attempt has written through a declared link is as before, where that lies in
    the workspace."""
    counted.write("real", "real\n")
    counted.path("l").symlink_to("real")
    counted.plan({"mod": {"run": "echo x > l; false", "writes": ["l"], "tier": "compensable"}})
    assert counted.assay("run").code == 1
    assert counted.read("real") == "real\n"
    assert counted.path("l").is_symlink()


def test_a_file_that_came_since_stays(counted: Counted) -> None:
    """What somebody else put into a written tree after the node was done is no work of the
    node's: a rollback leaves it, and names it."""
    counted.write("t/notes", "n\n")
    counted.plan(
        {
            "mod": {
                "run": "cat conf >> t/notes; echo > t/new; rm -f t/gone",
                "reads": ["conf", "t/"],
                "writes": ["t/"],
                "tier": "compensable",
            },
            "bad": {"run": "test -e ok", "after": ["mod"], "cache": False},
        }
    )
    counted.write("conf", "1\n")
    counted.write("t/gone", "g\n")
    for _ in range(2):
        assert counted.assay("run").code == 1
    assert counted.executions == ["mod", "bad", "bad"]
    counted.write("t/mine", "mine\n")
    done = counted.assay("run", "--json")
    assert done.outcomes["mod"] == "built"
    assert "left where it is what came since: `t/mine`" in warnings(done)
    assert counted.files("t") == {"notes": "n\n1\n", "new": "\n", "mine": "mine\n"}
    assert counted.trash() == {}


def test_a_rewriter_that_was_done_counts_as_done(counted: Counted) -> None:
    """A node that rewrites what it reads has not got other inputs by its own work."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "mod": {
                "run": "echo x >> f",
                "reads": ["f"],
                "writes": ["f"],
                "tier": "compensable",
            },
            "bad": {"run": "test -e ok", "after": ["mod"], "cache": False},
        }
    )
    for _ in range(3):
        assert counted.assay("run").code == 1
    assert counted.executions == ["mod", "bad", "bad", "bad"]
    assert counted.read("f") == "0\nx\n"


def test_collection_keeps_what_a_rollback_needs(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C93: neither `cache clear` nor a collection between a crash and the next run takes away
    what is to be put back."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "mod": {
                "run": f"echo x > f; {shlex.join(probes.argv('mod'))}",
                "writes": ["f"],
                "tier": "compensable",
            }
        }
    )
    run = begin()
    mod = probes.arrive("mod")
    run.kill()
    os.kill(mod.pid, signal.SIGKILL)
    mod.gone()
    for blob in counted.blobs():
        os.utime(blob, (0, 0))
    assert counted.assay("cache", "gc", "--max-size", "1", "--max-age", "1s").code == 0
    assert counted.assay("cache", "clear").code == 0
    with counted.start("run") as again:
        probes.arrive("mod")
        assert counted.read("f") == "x\n"
        os.kill(again.pid, signal.SIGTERM)
        assert again.wait() == 143
    assert counted.read("f") == "0\n"
