"""Work of earlier runs that is to be done anew: what is taken back first, in which order, and
what stays."""

from __future__ import annotations

import json
import shlex

import pytest
from counted import LAST, Counted, warnings
from probe import Probes
from running import Begin
from workspace import ASSAY


def compensable(script: str, undone: str = "", **more: object) -> dict[str, object]:
    """A node that does `script`; its undo says so in the file `undone`."""
    undo = {"undo": f"echo {undone} >> undone"} if undone else {}
    return {"run": script, "tier": "compensable", **undo, **more}


def test_nobody_waits_for_what_another_run_takes_back(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C103: two runs find two nodes to be taken back: the second waits for the first, finds done
    what that has done, and ends; neither node is done twice."""
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
    one, other = first.finish(), second.finish()
    assert (one.code, other.code) == (0, 0)
    assert (one.outcomes["a"], other.outcomes["a"]) == ("built", "clean")
    # Once it is taken back, whoever comes first does it.
    assert {one.outcomes["b"], other.outcomes["b"]} == {"built", "clean"}
    assert counted.executions.count("b") == 2


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
    first = counted.first_run()
    counted.write("ok", "")
    counted.plan({**nodes, "a": {**nodes["a"], "env": {"V": "2"}}})
    asked = counted.assay("run")
    assert asked.code == 4
    assert (
        f"ambiguous: Node `a`: what `b` did in run {first} is not rolled back wholly: its `undo`"
        " ended with exit code 1 (`assay run` tries that again)\n"
        f"   = once the rest is taken back by hand: assay settle {first} b --not-done\n"
    ) in asked.err
    refused = counted.assay("settle", first, "a", "--not-done")
    assert refused.code == 2
    assert "what it wrote stands" in refused.err
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
    rewound = counted.assay("rewind", counted.first_run(), "--to", "start")
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


@pytest.mark.parametrize("theirs", ["2", "3"])
def test_nothing_is_served_where_something_is_being_taken_back(
    counted: Counted, theirs: str
) -> None:
    """A recorded result is put back after what another plan did in the same file is taken back,
    not before, and one that stands there is not believed meanwhile."""
    s = {"run": "cat src > f", "reads": ["src"], "writes": ["f"]}
    for text in ("2\n", "1\n"):
        counted.write("src", text)
        counted.plan({"s": s})
        counted.ran()
    # The undo gives what must not happen meanwhile the time to.
    d = compensable("echo d > d", writes=["d"], after=["c"]) | {
        "undo": "until test -e t; do sleep 0.02; done; sleep 0.3; echo d >> undone"
    }
    counted.plan(
        {
            "c": compensable(f"echo {theirs} > f", writes=["f"]),
            "d": d,
            "last": {**LAST, "after": ["d"]},
        }
    )
    counted.write("src", "2\n")
    assert counted.assay("run").code == 1
    counted.plan(
        {
            "c": compensable("echo g > g", writes=["g"]),
            "d": d,
            "t": {"run": "echo t > t", "writes": ["t"]},
            "s": {**s, "after": ["t"]},
        }
    )
    outcomes = counted.assay("run", "--json", "-j2").outcomes
    assert outcomes == {"c": "built", "d": "built", "t": "built", "s": "clean"}
    assert (counted.read("f"), counted.read("undone")) == ("2\n", "d\n")
    counted.plan({"s": s})
    counted.rests()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"run": "rm -r place", "removes": ["place"]},
            {"run": "mkdir -p place; cat src > place/x", "writes": ["place/x"]},
            id="in a folder that was removed",
        ),
        pytest.param(
            {"run": "echo two > link", "writes": ["link"]},
            {"run": "cat src > target", "writes": ["target"]},
            id="behind a link",
        ),
        pytest.param(
            {"run": "echo two > file", "writes": ["file"]},
            {"run": "rm file; mkdir file; cat src > file/x", "writes": ["file/x"]},
            id="below what was a file",
        ),
        pytest.param(
            {"run": "echo two > deep/er", "writes": ["deep/er"]},
            {"run": "rm -r deep; cat src > deep", "writes": ["deep"]},
            id="above what was a file",
        ),
    ],
)
def test_what_this_run_made_stays_wherever_it_is(
    counted: Counted, before: dict[str, object], after: dict[str, object]
) -> None:
    """What a node of this run has made is not replaced by what an earlier run's work had found
    there, nor put aside for it."""
    counted.write("src", "new\n")
    counted.write("place/x", "orig\n")
    counted.write("target", "orig\n")
    counted.path("link").symlink_to("target")
    counted.write("file", "orig\n")
    counted.write("deep/er", "orig\n")
    counted.plan(
        {"c": {**before, "tier": "compensable"}, "last": {**LAST, "after": ["c"]}},
    )
    assert counted.assay("run").code == 1
    counted.plan(
        {
            "s": {**after, "reads": ["src"]},
            "c": compensable("echo g > g", writes=["g"], after=["s"]),
        }
    )
    assert counted.assay("run", "--json").outcomes == {"s": "built", "c": "built"}
    assert counted.read(str(after["writes"][0])) == "new\n"  # type: ignore[index]
    assert counted.trash() == {}
    counted.plan({"s": {**after, "reads": ["src"]}})
    counted.rests()


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
    assert counted.assay("settle", counted.first_run(), "m", "--done").code == 0
    counted.plan({"m": {**node, "run": "echo 2 >> notes"}, "last": LAST})
    assert counted.assay("run").code == 1
    assert counted.read("notes") == "orig\n2\n"
    assert counted.trash()["notes"] == "orig\n1\nmine\n"


def test_a_producer_that_must_run_again_waits_its_turn(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What is not in the store is made again once what is being taken back there is, and nobody
    waits for ever."""
    counted.write("in", "1\n")
    nodes: dict[str, dict[str, object]] = {
        "p": {"run": "echo $S > p.txt", "env": {"S": {"secret": "TOKEN"}}, "writes": ["p.txt"]},
        "a": compensable("cat in p.txt > a.txt", reads=["in", "p.txt"], writes=["a.txt"])
        | {"undo": shlex.join(probes.argv("undo"))},
        "last": {**LAST, "after": ["a"]},
    }
    secret = {"TOKEN": "hunter2-unique"}
    counted.plan(nodes)
    assert counted.assay("run", env=secret).code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    counted.plan(
        {
            **nodes,
            "s": {"run": "rm p.txt", "after": ["p"], "cache": False},
            "r": {"run": "cat p.txt", "reads": ["p.txt"], "after": ["s"], "cache": False},
        }
    )
    run = begin("-j3", env=secret)
    undo = probes.arrive("undo")
    run.told("node-settled", "s")
    undo.exit(0)
    done = run.finish()
    assert (done.code, done.outcomes["r"]) == (0, "built")


def test_a_retry_that_had_to_wait_is_made(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C65: what is taken back meanwhile costs a node none of its tries."""
    counted.write("in", "1\n")
    a = compensable("cat in > a.txt", reads=["in"], writes=["a.txt"], locks=["l"])
    nodes = {
        "a": a | {"undo": shlex.join(probes.argv("undo")), "after": ["t"]},
        "t": {"run": "true", "cache": False},
        "last": {**LAST, "after": ["a"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    tries = "if test -e tried; then echo r > r.txt; else touch tried; exit 1; fi"
    retry = {"attempts": 3, "backoff": "10ms"}
    node = compensable(tries, writes=["r.txt"], locks=["l"], retry=retry)
    counted.plan({**nodes, "r": node, "t": {**nodes["t"], "after": ["s"]}, "s": {"run": "true"}})
    run = begin("-j3")
    undo = probes.arrive("undo")
    undo.exit(0)
    done = run.finish()
    assert (done.code, done.outcomes["r"]) == (0, "built"), warnings(done)


def test_an_undo_alone_takes_away_no_files(counted: Counted) -> None:
    """Where only an `undo` is left to do, what another plan has written is not in the way."""
    counted.write("in", "1\n")
    node = compensable("cat in > f", reads=["in"], writes=["f"]) | {"undo": "test -e mended"}
    counted.plan({"a": node, "last": {**LAST, "after": ["a"]}})
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    assert counted.assay("run").code == 4
    other = {"nodes": {"b": compensable("echo b > f", writes=["f"])}}
    counted.write("other.json", json.dumps(other))
    assert counted.assay("run", "other.json").code == 0
    counted.write("mended", "")
    assert counted.assay("run").code == 0
    assert counted.read("f") == "2\n"


def test_a_resumed_run_keeps_nothing_that_was_read_before(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What a node of the run had made of a file before that was put back is made anew."""
    counted.write("f", "orig\n")
    counted.write("in", "1\n")
    hold = shlex.join(probes.argv("hold"))
    counted.plan(
        {
            "s": {"run": "cp f s.out", "reads": ["f"], "writes": ["s.out"]},
            "t": {"run": f"test ! -e slow || {hold}", "cache": False},
            "a": compensable("cat in >> f", reads=["in", "f"], writes=["f"], after=["s", "t"]),
            "last": {**LAST, "after": ["a"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    counted.write("slow", "")
    run = begin()
    probe = probes.arrive("hold")
    run.send(15)
    probe.gone()
    assert run.finish().code == 143
    counted.path("slow").unlink()
    last = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    codes = [counted.assay("resume", last).code for _ in range(2)]
    assert codes[-1] == 0
    assert counted.read("f") == "orig\n2\n"
    assert counted.read("s.out") == "orig\n"


def test_what_only_followed_in_vain_is_taken_back_too(counted: Counted) -> None:
    """C100: a node that this run has skipped has taken nothing over: its work goes first."""
    counted.write("in", "1\n")
    a = compensable("cat in > a.txt", "a", reads=["in"], writes=["a.txt"])
    b = compensable("echo b > b.txt", "b", writes=["b.txt"])
    counted.plan({"a": a, "b": {**b, "after": ["a"]}, "last": {**LAST, "after": ["b"]}})
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.plan(
        {
            "g": {"run": "false"},
            "b": {**b, "after": ["g"]},
            "t": {"run": "true", "cache": False, "after": ["g"], "when": "always"},
            "a": {**a, "after": ["t"]},
            "last": {**LAST, "after": ["a"]},
        }
    )
    assert counted.assay("run", "-j1").code == 1
    assert counted.read("undone") == "b\na\n"


def test_a_cancel_begins_no_further_undo(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C58: the undo in progress ends; what was yet to be taken back stands, and is next time."""
    counted.write("in", "1\n")
    b = compensable("echo b > b.txt", writes=["b.txt"], after=["a"])
    nodes = {
        "a": compensable("cat in > a.txt", "a", reads=["in"], writes=["a.txt"]),
        "b": b | {"undo": shlex.join(probes.argv("undo"))},
        "last": {**LAST, "after": ["b"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    run = begin()
    undo = probes.arrive("undo")
    run.send(15)
    run.told("cancel-requested")
    undo.exit(0)
    assert run.finish().code == 143
    assert not counted.path("undone").exists()
    assert counted.assay("run").code == 0
    assert counted.read("undone") == "a\n"
    assert counted.read("a.txt") == "2\n"


@pytest.mark.parametrize("template", [False, True])
def test_a_new_start_leaves_what_no_node_will_take_back(counted: Counted, template: bool) -> None:
    """What is half taken back, and whose node the plan has no more, is asked about until a run
    that starts over has said so: then never again, and nothing else happens twice for it."""
    b = {
        "run": "echo b > b",
        "writes": ["b"],
        "tier": "compensable",
        "undo": "exit 5",
    }
    pub = {"run": "echo sent >> shop", "tier": "irreversible"}
    if template:
        counted.write("src/x", "")
        gen = {"run": "mkdir -p l; cp src/* l", "reads": ["src/*"], "writes": ["l/"]}
        nodes = {"pub": pub, "gen": gen, "m": b | {"foreach": "l/*"}}
        there: dict[str, dict[str, object]] = {**nodes, "m": {**nodes["m"], "run": "exit 1"}}
    else:
        there = {"pub": pub, "b": {**b, "run": "exit 1"}}
    counted.plan(there)
    assert counted.assay("run").code == 1
    if template:
        counted.path("src/x").rename(counted.path("src/y"))
        left = {**there, "m": {**nodes["m"], "undo": "true"}}
    else:
        left = {"pub": pub}
    counted.plan(left)
    assert counted.assay("run").code == 4
    done = counted.assay("run", "--new", "--json")
    assert done.code == 0
    assert "starts over: `m[l/x]`" if template else "starts over: `b`" in warnings(done)
    assert counted.read("shop") == "sent\nsent\n"
    done = counted.assay("run", "--json")
    assert done.code == 0, done.out


def test_only_answers_that_are_taken_are_offered(counted: Counted) -> None:
    """What stands, and whose instance the template does not have any more, is let stand; to say
    that it did not happen is neither offered nor taken."""
    counted.write("src/x", "")
    counted.write("src/y", "")
    counted.plan(
        {
            "gen": {
                "run": "rm -rf l; mkdir l; cp src/* l",
                "reads": ["src/*"],
                "writes": ["l/"],
            },
            "m": compensable("echo {{each.name}} > o-{{each.name}}", foreach="l/*")
            | {"writes": ["o-{{each.name}}"]},
            "last": {**LAST, "after": ["m"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.remove("src/x")
    counted.write("ok", "")
    asked = counted.assay("run")
    assert asked.code == 4
    way = f"assay settle {counted.first_run()} 'm[l/x]' "
    assert f"= to let it stand: {way}--done\n" in asked.out + asked.err
    assert "--not-done" not in asked.out + asked.err
    assert counted.assay("settle", counted.first_run(), "m[l/x]", "--not-done").code == 2
    assert counted.assay("settle", counted.first_run(), "m[l/x]", "--done").code == 0
    assert counted.assay("run").code == 0


def test_a_rewind_over_what_is_broken_names_a_way_that_works(counted: Counted) -> None:
    """What cannot be put back because how it was is damaged is settled by hand; then the rewind
    takes back the rest."""
    counted.plan(
        {
            "a": compensable("echo a > a", writes=["a"]),
            "b": compensable("echo b > b", writes=["b"], after=["a"]),
            "c": compensable("echo c > c", writes=["c"], after=["b"]),
            "last": {**LAST, "after": ["c"]},
        }
    )
    assert counted.assay("run").code == 1
    run = counted.first_run()
    kept = sorted(counted.path(".assay/preimages").iterdir())
    kept[1].write_text("x")
    counted.plan(
        {
            "a": compensable("echo a > a", writes=["a"]),
            "b": compensable("echo b2 > b", writes=["b"], after=["a"]),
            "c": compensable("echo c > c", writes=["c"], after=["b"]),
            "last": {**LAST, "after": ["c"]},
        }
    )
    assert counted.assay("run").code == 4
    refused = counted.assay("rewind", run, "--to", "a")
    assert refused.code == 4
    assert refused.err.endswith(
        f"\nhint: Put right by hand what it did, then `assay settle {run} b --not-done`; `--done`"
        " lets it stand\n"
    ), refused.err
    counted.remove("b")
    assert counted.assay("settle", run, "b", "--not-done").code == 0
    done = counted.assay("rewind", run, "--to", "a")
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    assert "c" not in counted.files()


def test_nothing_is_asked_about_an_undo_that_was_ended(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C58: after a second Ctrl-C the next run goes on with what was broken off, and that is said:
    nothing is left to be settled by hand."""
    counted.write("in", "1\n")
    undo = shlex.join(probes.argv("undo"))
    counted.plan(
        {
            "a": compensable("cat in > a.txt", reads=["in"], writes=["a.txt"]) | {"undo": undo},
            "last": {**LAST, "after": ["a"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")
    counted.write("ok", "")
    run = begin()
    probes.arrive("undo")
    for _ in range(2):
        run.send(2)
        run.told("cancel-requested")
    done = run.finish()
    assert (done.code, done.outcomes["a"]) == (130, "ambiguous")
    told = next(each for each in done.events if each.get("outcome") == "ambiguous")
    assert told["asks"] is None
    assert told["detail"] == (
        f"what `a` did in run {counted.first_run()} is not rolled back wholly: its `undo` was ended"
        " by SIGKILL (`assay run` goes on with it)"
    )
    run = begin()
    probes.arrive("undo").exit(0)
    assert run.finish().code == 0
    assert counted.read("a.txt") == "2\n"


@pytest.mark.parametrize("how", ["run", "rewind"])
def test_a_run_inside_what_takes_back_never_waits_for_it(counted: Counted, how: str) -> None:
    """C117: an `undo` that another run or a rewind executes runs assay on what is held for it:
    that is an error at once in the inner run, and what only stands beside it is run."""
    counted.write("conf", "1\n")
    assay = shlex.quote(str(ASSAY))
    undo = f"{assay} run first && {assay} run inner.toml"
    counted.plan(
        {
            "first": {"run": "echo 1 > fa", "writes": ["fa"], "cache": False},
            "b": compensable("cat conf > fb", reads=["conf"], writes=["fb"], after=["first"])
            | {"undo": undo},
            "last": {**LAST, "after": ["b"]},
        }
    )
    counted.plan({"n": {"run": "true", "writes": ["fb"]}}, file="inner.toml")
    assert counted.assay("run").code == 1
    counted.write("conf", "2\n")
    words = ["run"] if how == "run" else ["rewind", counted.first_run(), "--to", "first"]
    done = counted.assay(*words)
    assert done.code == (4 if how == "run" else 1), done.err
    assert "its `undo` ended with exit code 1" in done.err
    runs = json.loads(counted.assay("runs", "--json").out)
    around = runs[-2 if how == "run" else -1]["run"]
    told = counted.assay("show", runs[0]["run"]).out
    place = f"a roll-back in run {around}"
    why = f"waits for {place}, which cannot end before it: this run was started by {place}"
    assert why in told
    assert counted.executions[-1] == "first"


@pytest.mark.parametrize("how", ["rewind", "resume"])
def test_what_a_node_goes_on_with_is_part_of_it(counted: Counted, how: str) -> None:
    """C117: a run that a node rewinds or resumes is nested in that node, wherever it was begun:
    what it starts in turn never waits for what the node holds."""
    assay = shlex.quote(str(ASSAY))
    inner = f"{assay} run inner.toml"
    b = {"run": f"test -e ok; {inner}"}
    if how == "rewind":
        b = compensable("echo b > b", writes=["b"]) | {"undo": inner}
    counted.plan({"a": {"run": "true"}, "b": {**b, "after": ["a"]}})
    counted.plan({"n": {"run": "true", "locks": ["l"]}}, file="inner.toml")
    assert counted.assay("run").code == (0 if how == "rewind" else 1)
    counted.write("ok", "")
    first = counted.first_run()
    words = f"rewind {first} --to a" if how == "rewind" else f"resume {first} --retry-failed"
    counted.plan({"outer": {"run": f"{assay} {words}", "locks": ["l"]}}, file="outer.toml")
    assert counted.assay("run", "outer.toml").code == 1
    runs = json.loads(counted.assay("runs", "--json").out)
    outer = f"`outer` of run {runs[1]['run']}"
    why = f"waits for {outer}, which cannot end before it: this run was started by {outer}"
    assert why in counted.assay("show", runs[0]["run"]).out
    assert json.loads(counted.assay("show", first, "--json").out)["parent_attempt"] is not None


@pytest.mark.parametrize("again", [("resume", "last"), ("run",)])
def test_what_a_rewound_run_had_taken_over_is_not_done_again(
    counted: Counted, again: tuple[str, ...]
) -> None:
    """C95: a run that completed has closed what it had taken over from earlier ones; rewound, it
    asks for that again, and does not repeat it."""
    counted.plan(
        {
            "pub": {"run": "echo sent >> shop", "tier": "irreversible"},
            "kept": compensable("echo kept >> kept", writes=["kept"]),
            "told": {
                "run": "echo told >> shop; echo 1 > receipt",
                "writes": ["receipt"],
                "tier": "irreversible",
                "after": ["pub"],
            },
            "c1": compensable("test -e ok; echo c1 > c1", writes=["c1"], after=["told", "kept"]),
            "c2": compensable("echo c2 > c2", writes=["c2"], after=["c1"]),
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.remove("receipt")  # put back when its node is taken over
    assert counted.assay("run").code == 0
    assert counted.assay("rewind", "last", "--to", "c1").code == 0
    assert "c2" not in counted.files()
    assert counted.assay(*again).code == 0
    assert (counted.read("shop"), counted.read("kept")) == ("sent\ntold\n", "kept\n")
    assert counted.executions.count("c2") == 2


def test_what_is_asked_is_told_to_programs(counted: Counted) -> None:
    """The event names run and node that an answer is about, which may be others than its own, and
    the answers that would be taken."""
    counted.write("s", "1\n")
    counted.plan(
        {
            "a": compensable("cat s > a", reads=["s"], writes=["a"]),
            "b": compensable("echo b > b", writes=["b"], after=["a"]) | {"undo": "test -e can"},
            "last": {**LAST, "after": ["b"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("s", "2\n")
    done = counted.assay("run", "--json")
    assert done.code == 4
    (asked,) = [each["question"] for each in done.events if each.get("question")]
    assert asked == {
        "run": counted.first_run(),
        "node": "b",
        "answers": ["not-done"],
        "needs_value": False,
        "stands": False,
    }
    assert counted.assay("settle", asked["run"], asked["node"], "--not-done").code == 0


def test_a_repeat_under_a_key_is_no_further_try(counted: Counted) -> None:
    """A try whose assay was killed is made again under its number, once: where none is declared
    there is no other after it."""
    counted.write("hold", "")
    counted.plan(
        {
            "pub": {
                "run": "echo sent >> shop; test ! -e hold || kill -9 $PPID; exit 1",
                "tier": "irreversible",
                "idempotency_key": "k",
            }
        }
    )
    assert counted.assay("run").code == -9
    counted.remove("hold")
    assert counted.assay("resume", "last").code == 1
    assert counted.read("shop") == "sent\nsent\n"
