"""Work of earlier runs that is to be done anew: what is taken back first, in which order, and
what stays."""

from __future__ import annotations

import json
import shlex

from counted import Counted, warnings
from probe import Probes
from running import Begin

LAST = {"run": "test -e ok", "cache": False}
"""Keeps a run from completing until the file is there."""


def first_run(counted: Counted) -> str:
    return str(json.loads(counted.assay("runs", "--json").out)[-1]["run"])


def compensable(script: str, undone: str = "", **more: object) -> dict[str, object]:
    """A node that does `script`; its undo says so in the file `undone`."""
    undo = {"undo": f"echo {undone} >> undone"} if undone else {}
    return {"run": script, "tier": "compensable", **undo, **more}


def test_nobody_waits_for_what_another_run_takes_back(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C103: two runs find two nodes to be taken back: the second waits for the first, finds both
    done, and ends."""
    counted.write("conf", "1\n")
    undo = shlex.join(probes.argv("undo"))
    counted.plan(
        {
            "a": compensable("cat conf > fa", reads=["conf"], writes=["fa"]) | {"undo": undo},
            "b": compensable("cat conf > fb", reads=["conf"], writes=["fb"]),
            "last": {**LAST, "after": ["a", "b"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("conf", "2\n")
    counted.write("ok", "")
    first = begin()
    taking_back = probes.arrive("undo")
    second = begin()
    second.told("waiting-for-run")
    taking_back.exit(0)
    assert first.finish().code == 0
    done = second.finish()
    assert (done.code, done.outcomes["a"], done.outcomes["b"]) == (0, "clean", "clean")


def test_what_is_about_to_be_taken_back_is_not_taken_over(counted: Counted) -> None:
    """A node whose work goes with that of another, because it lies in the same files, is done
    again although nothing it reads has changed."""
    counted.write("x", "orig\n")
    counted.plan(
        {
            "a": compensable("echo a1 > x; echo a1 > y", writes=["x", "y"]),
            "b": compensable("echo b > x", "b", writes=["x"], after=["a"]),
            "last": {**LAST, "after": ["a", "b"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan(
        {
            "a": compensable("echo a2 > y", writes=["y"]),
            "b": compensable("echo b > x", "b", writes=["x"]),
            "last": {**LAST, "after": ["a", "b"]},
        }
    )
    done = counted.assay("run", "--json", "-j1")
    assert (done.code, done.outcomes["b"]) == (0, "built")
    assert counted.read("x") == "b\n"
    assert counted.read("undone") == "b\n"


def test_the_question_is_about_what_could_not_be_taken_back(counted: Counted) -> None:
    """An `undo` of a later node that fails is settled for that node; the earlier one, whose
    files are still as it left them, cannot be called not done."""
    counted.write("data", "orig\n")
    nodes: dict[str, dict[str, object]] = {
        "a": compensable("echo $V >> data", reads=["data"], writes=["data"], env={"V": "1"}),
        "b": compensable("true", after=["a"]) | {"undo": "test -e can"},
        "last": {**LAST, "after": ["b"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    first = first_run(counted)
    counted.write("ok", "")
    counted.plan({**nodes, "a": {**nodes["a"], "env": {"V": "2"}}})
    asked = counted.assay("run")
    assert asked.code == 4
    assert f"assay settle {first} b --not-done" in asked.err
    refused = counted.assay("settle", first, "a", "--not-done")
    assert refused.code == 2
    assert "is being rolled back" in refused.err
    assert counted.assay("settle", first, "b", "--not-done").code == 0
    assert counted.assay("run").code == 0
    assert counted.read("data") == "orig\n2\n"


def test_instances_go_before_what_they_were_made_of(counted: Counted) -> None:
    """C100: in reverse order also where the template has yet to expand in this run."""
    counted.write("conf", "1\n")
    counted.plan(
        {
            "base": compensable(
                "mkdir -p gen; cat conf > gen/a", "base", reads=["conf"], writes=["gen/"]
            ),
            "leaf": compensable(
                "cat {{each}} > {{each.name}}.leaf",
                "leaf",
                foreach="gen/*",
                reads=["{{each}}"],
                writes=["{{each.name}}.leaf"],
            ),
            "last": {**LAST, "after": ["leaf"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("conf", "2\n")
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    assert counted.read("undone") == "leaf\nbase\n"
    assert counted.read("a.leaf") == "2\n"


def test_what_followed_then_goes_first(counted: Counted) -> None:
    """C100: the plan that the work was done by says what it was built on, not the edited one."""
    nodes = {
        "a": compensable("echo 1", "a"),
        "b": compensable("echo 1", "b", after=["a"]),
        "last": {**LAST, "after": ["b"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan({"a": compensable("echo 2", "a"), "b": compensable("echo 2", "b"), "last": LAST})
    assert counted.assay("run", "-j1").code == 0
    assert counted.read("undone") == "b\na\n"


def test_what_another_plan_did_on_top_is_not_taken_away(counted: Counted) -> None:
    """Two plans change one file in turn: the one below is not taken back from under the other,
    by a run or by `rewind`; `--new` goes on on top."""
    counted.write("data", "orig\n")

    def plan(name: str, version: int) -> None:
        node = compensable(f"echo {name} {version} >> data", reads=["data"], writes=["data"])
        nodes = {"start": {"run": "true"}, name: {**node, "after": ["start"]}}
        text = json.dumps({"nodes": {**nodes, "last": {**LAST, "after": [name]}}})
        counted.write(f"{name}.json", text)

    plan("p", 1)
    plan("q", 1)
    assert counted.assay("run", "p.json").code == 1
    assert counted.assay("run", "q.json").code == 1
    plan("p", 2)
    refused = counted.assay("run", "p.json")
    assert refused.code == 4
    assert "`q` of q.json has changed the same files since" in refused.err
    assert counted.read("data") == "orig\np 1\nq 1\n"
    rewound = counted.assay("rewind", first_run(counted), "--to", "start")
    assert rewound.code == 2
    assert "has changed `data` since: rewind that first" in rewound.err
    counted.write("ok", "")
    assert counted.assay("run", "p.json", "--new").code == 0
    assert counted.read("data") == "orig\np 1\nq 1\np 2\n"


def test_what_follows_in_another_run_is_waited_for(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C103: work is not taken back beneath a node of another run that builds on it, though they
    share no file."""
    counted.write("conf", "1\n")
    counted.plan(
        {
            "a": compensable("true", "a", reads=["conf"]),
            "b": compensable("true", "b", after=["a"]) | {"run": probes.argv("b")},
            "last": {**LAST, "after": ["b"]},
        }
    )
    first = begin()
    building = probes.arrive("b")
    counted.write("conf", "2\n")
    second = begin()
    settled = second.told("node-settled", "a")
    assert settled["outcome"] == "failed"
    assert "builds on what would be taken back" in settled["detail"]
    assert second.finish().code == 1
    building.exit(0)
    assert first.finish().code == 1
    assert not counted.path("undone").exists()


def test_what_this_run_made_there_stays(counted: Counted) -> None:
    """A file that another node makes by now is not lost when the work of the one that made it
    before is taken back."""
    counted.plan(
        {
            "b": compensable("echo old > x; echo old > y", writes=["x", "y"]),
            "last": {**LAST, "after": ["b"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan(
        {
            "n": {"run": "echo made > x", "writes": ["x"]},
            "b": compensable("echo new > y", writes=["y"], after=["n"]),
            "last": {**LAST, "after": ["b"]},
        }
    )
    done = counted.assay("run", "--json")
    assert (done.code, done.outcomes["n"]) == (0, "built"), warnings(done)
    assert counted.read("x") == "made\n"
    assert counted.read("y") == "new\n"
    assert counted.ran() == ["b", "last"]


def test_killed_while_it_takes_back_it_goes_on(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C101, C103: what a run itself has put back is no change of its sources: whoever goes on
    with it completes it."""
    counted.write("notes", "orig\n")
    counted.write("conf", "1\n")
    counted.plan(
        {
            "m": {
                "run": "cat conf >> notes",
                "reads": ["notes", "conf"],
                "writes": ["notes"],
                "tier": "compensable",
                "undo": shlex.join(probes.argv("undo")),
            },
            "last": {**LAST, "after": ["m"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("conf", "2\n")
    counted.write("ok", "")
    run = begin()
    undo = probes.arrive("undo")
    run.kill()
    undo.die(9)
    undo.gone()
    again = begin("--resume")
    probes.arrive("undo").exit(0)
    done = again.finish()
    assert (done.code, done.outcomes) == (0, {"m": "built", "last": "built"})
    assert counted.read("notes") == "orig\n2\n"


def test_a_file_written_through_a_link_is_taken_back(counted: Counted) -> None:
    """C30: what a node has changed behind a link goes with its work; what it has not, stays."""
    counted.write("real", "orig\n")
    counted.write("other", "orig\n")
    counted.path("conf").symlink_to("real")
    counted.path("current").symlink_to("other")
    script = "echo {} >> conf; ln -sfn {} current"
    files = {"reads": ["conf"], "writes": ["conf", "current"]}
    last = {**LAST, "after": ["m"]}
    counted.plan({"m": compensable(script.format(1, "one"), **files), "last": last})
    assert counted.assay("run").code == 1
    counted.write("other", "edited\n")
    counted.write("ok", "")
    counted.plan({"m": compensable(script.format(2, "two"), **files), "last": last})
    assert counted.assay("run").code == 0
    assert counted.read("real") == "orig\n2\n"
    assert counted.read("other") == "edited\n"
    assert counted.path("current").readlink().name == "two"


def test_a_file_outside_is_not_changed_through_a_link(counted: Counted) -> None:
    """C38: what could not be put back is not begun."""
    outside = counted.marks.parent / "outside"
    outside.write_text("orig\n")
    counted.path("conf").symlink_to(outside)
    counted.plan({"m": compensable("echo x >> conf; exit 1", writes=["conf"])})
    ran, done = counted.tried()
    assert (ran, done.code) == ([], 1)
    assert "leads out of the workspace" in str(done.events)
    assert outside.read_text() == "orig\n"


def test_an_answer_does_not_make_an_edit_the_nodes_own(counted: Counted) -> None:
    """What a user wrote into a file is kept when the work in it is taken back, although an
    operator has said in between that this is done."""
    node = compensable("echo 1 >> notes", reads=["notes"], writes=["notes"])
    counted.write("notes", "orig\n")
    counted.plan({"m": node, "last": {**LAST, "after": ["m"]}})
    assert counted.assay("run").code == 1
    counted.write("notes", "orig\n1\nmine\n")
    counted.plan({"last": LAST})
    assert counted.assay("run").code == 4
    assert counted.assay("settle", first_run(counted), "m", "--done").code == 0
    counted.plan({"m": {**node, "run": "echo 2 >> notes"}, "last": LAST})
    assert counted.assay("run").code == 1
    assert counted.read("notes") == "orig\n2\n"
    assert counted.trash()["notes"] == "orig\n1\nmine\n"
