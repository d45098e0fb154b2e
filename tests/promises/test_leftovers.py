"""After an assay that was killed: the next run ends what lives on, takes nothing half-done for
a result, and gives back what was half rewritten."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from signal import SIGINT

import pytest
from counted import Counted, warnings
from probe import Probes
from running import Begin
from workspace import finish


def test_partial_output_is_not_taken_as_complete(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C83: killed with its node half through an output, a plain second run makes it anew, ends
    what lived on, and says so; the half goes to the trash."""
    script = f"echo h > o; test -e again || {shlex.join(probes.argv('a'))}; echo t >> o"
    counted.plan(
        {
            "a": {"run": script, "reads": [{"path": "again", "optional": True}], "writes": ["o"]},
            "b": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    run = begin()
    node = probes.arrive("a")
    child = node.fork("child", setsid=True, keep_files=False)
    temporary = Path(node.environ()["TMPDIR"])
    run.kill()
    assert node.is_alive
    assert "interrupted" in counted.assay("show").out
    counted.write("again", "")
    executed, done = counted.tried()
    assert (executed, done.code) == (["a", "b"], 0)
    assert not node.is_alive
    assert not child.is_alive
    assert counted.read("p") == "h\nt\n"
    assert counted.trash() == {"o": "h\n"}
    assert "was interrupted" in warnings(done)
    assert str(node.pid) in warnings(done)
    assert not temporary.exists()
    assert "interrupted" in counted.assay("runs").out
    counted.rests()


def test_who_had_a_run_is_told_whoever_dealt_with_it(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: what a killed assay left is dealt with by two others, one after the other. Both say
    that it was that one which is gone; `show` names it, and both of them."""
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "cache": False},
            "pub": {"run": probes.argv("pub"), "tier": "irreversible"},
        }
    )
    owner = begin("-j2")
    a, pub = probes.arrive("a"), probes.arrive("pub")
    run = owner.told("run-started")["run"]
    owner.kill()
    early = begin()
    told = early.told("warned")["text"]
    assert told == (
        f"run {run} was interrupted: its assay (pid {owner.pid}) is gone;"
        f" ended what it left running (pid {a.pid})"
    )
    assert early.told("warned")["text"].endswith(f"(`assay cancel {run}` ends it)")
    early.send(SIGINT)
    assert early.finish().code == 4
    assert f"by        pid {owner.pid} on" in counted.assay("show", run).out
    pub.exit(0)
    pub.gone()
    late = begin("--new", "pub")
    told = late.told("warned")["text"]
    assert told == f"run {run} was interrupted: its assay (pid {owner.pid}) is gone"
    probes.arrive("pub").exit(0)
    assert late.finish().code == 0
    shown = json.loads(counted.assay("show", run, "--json").out)
    assert (shown["status"], shown["pid"]) == ("interrupted", owner.pid)
    assert [(each["pid"], each["purpose"], each["ended"]) for each in shown["owners"]] == [
        (owner.pid, "run", "counted as gone: lease free"),
        (early.pid, "recovery", "left the rest to the next"),
        (late.pid, "recovery", "interrupted"),
    ]
    table = counted.assay("show", run).out
    assert f"pid {early.pid} on {os.uname().nodename}  dealt with what was left  " in table


def test_half_rewritten_input_is_put_back(counted: Counted, probes: Probes, begin: Begin) -> None:
    """What a formatter had half rewritten when its assay was killed is as it was before; an
    edit made since is kept in the trash."""
    script = (
        "cp f $TMPDIR/f; echo half > f;"
        f" grep -q wait $TMPDIR/f && {shlex.join(probes.argv('fmt'))}; tr a-z A-Z < $TMPDIR/f > f"
    )
    counted.plan({"fmt": {"run": script, "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "wait\n")
    run = begin()
    node = probes.arrive("fmt")
    run.kill()
    assert counted.read("f") == "half\n"
    counted.write("f", "edited since\n")
    again = begin()
    fresh = probes.arrive("fmt")
    node.gone()
    assert counted.trash() == {"f": "edited since\n"}
    fresh.exit(0)
    done = again.finish()
    assert done.code == 0
    assert "put back what it may have half rewritten" in warnings(done)
    assert counted.read("f") == "WAIT\n"


def test_several_runs_after_a_kill(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Of several runs that find a killed one, each waits until its remains are dealt with:
    none sees the half-done, and the work is done once."""
    script = f"echo half > f; {shlex.join(probes.argv('fmt'))}"
    counted.plan({"fmt": {"run": script, "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "text\n")
    run = begin()
    old = probes.arrive("fmt")
    run.kill()
    counted.plan({"fmt": {"run": "tr a-z A-Z < f > $TMPDIR/f; cat $TMPDIR/f > f", "reads": ["f"],
                          "writes": ["f"]}})  # fmt: skip
    for done in [finish(each) for each in [counted.start("run", "--json") for _ in range(6)]]:
        assert done.code == 0, done.err
    assert not old.is_alive
    assert counted.read("f") == "TEXT\n"
    assert counted.trash() == {"f": "half\n"}
    counted.write("f", "half\n")
    counted.ran()
    assert counted.read("f") == "HALF\n"


@pytest.mark.parametrize("inside", ["the same session", "a session of its own"])
def test_next_try_starts_after_what_lived_on_has_ended(
    counted: Counted, probes: Probes, begin: Begin, inside: str
) -> None:
    """Two attempts of a node never live at the same time, also when the first one's assay was
    killed and it ignores being asked to end."""
    counted.plan({"a": {"run": probes.argv("a"), "grace": "20ms"}})
    run = begin()
    node = probes.arrive("a")
    child = node.fork("child", setsid=inside == "a session of its own")
    for each in (node, child):
        each.ignore(15)
    run.kill()
    again = begin()
    fresh = probes.arrive("a")
    assert not node.is_alive
    assert not child.is_alive
    fresh.exit(0)
    assert again.finish().code == 0


def test_killed_again_and_again(counted: Counted, probes: Probes, begin: Begin) -> None:
    """However often assay is killed, the next run goes on from there; every run is told of."""
    script = f"cat f >> {counted.root.parent}/seen; echo half >> f; {shlex.join(probes.argv('a'))}"
    counted.plan({"a": {"run": script, "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "source\n")
    for _ in range(3):
        run = begin()
        probes.arrive("a")
        run.kill()
    last = begin()
    probes.arrive("a").exit(0)
    assert last.finish().code == 0
    assert (counted.root.parent / "seen").read_text() == "source\n" * 4
    assert probes.living == []
    assert counted.assay("runs").out.count("interrupted") == 3
    assert list(counted.path(".assay/tmp").glob("*.lease")) == []


def test_what_finished_before_the_kill_is_kept(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Results committed before a kill serve; only what was under way executes again."""
    counted.plan(
        {
            "a": {"run": "echo 1 > o", "writes": ["o"]},
            "b": {"run": probes.argv("b"), "reads": ["o"]},
        }
    )
    run = begin()
    probes.arrive("b")
    run.kill()
    again = begin()
    probes.arrive("b").exit(0)
    done = again.finish()
    assert done.outcomes == {"a": "clean", "b": "built"}
    assert counted.executions == ["a"]


def test_a_file_that_was_there_before_is_nobodys_output_to_clear(counted: Counted) -> None:
    """C35: what stood inside a written tree before its node first ran, and was not changed by
    it, is not cleared when the node runs again."""
    counted.write("d/mine", "mine\n")
    counted.write("in", "1\n")
    counted.plan({"a": {"run": "cp in d/out", "reads": ["in"], "writes": ["d/"]}})
    assert counted.ran() == ["a"]
    for text in ("2\n", "3\n"):
        counted.write("in", text)
        assert counted.ran() == ["a"]
        assert counted.files("d") == {"mine": "mine\n", "out": text}
    assert counted.trash() == {}


@pytest.mark.parametrize("boundary", ["declared", "enforced", "isolated"])
@pytest.mark.parametrize("tier", ["compensable", "irreversible"])
def test_what_another_node_made_is_not_cleared(counted: Counted, tier: str, boundary: str) -> None:
    """C45: a node that may write a whole folder finds there, and leaves, what nodes before it
    have put into it; its own outputs of another run go first."""
    write = "mkdir -p dist; cp name dist/$(cat name)"
    nodes = {
        "s": {"run": "cat src > dist/s", "reads": ["src"], "writes": ["dist/s"]},
        "p": {
            "run": ["/bin/sh", "-ec", write],
            "reads": ["name"],
            "writes": ["dist/"],
            "tier": tier,
            "boundary": boundary,
            "after": ["s"],
        },
    }
    counted.write("src", "1")
    counted.plan(nodes)
    for name in ("p1", "p2"):
        counted.write("name", name)
        assert counted.run("--new").outcomes["p"] == "built"
        assert counted.files("dist") == {"s": "1", name: name}


@pytest.mark.parametrize("tier", ["compensable", "irreversible"])
def test_what_another_node_made_anew_is_not_put_back_to_what_it_was(
    counted: Counted, tier: str
) -> None:
    """C45: work that is taken over from an earlier run is put back without what other nodes had
    made in the same folder by then, and their work of this run stays."""
    nodes = {
        "s": {"run": "cat src > dist/s", "reads": ["src"], "writes": ["dist/s"]},
        "p": {"run": "echo 1 > dist/p", "writes": ["dist/"], "tier": tier, "after": ["s"]},
        "t": {"run": "cp dist/s seen", "reads": ["dist/s"], "writes": ["seen"], "after": ["p"]},
        "last": {"run": "exit 1", "after": ["t"]},
    }
    counted.plan(nodes)
    for text in ("1", "2", "3"):
        counted.write("src", text)
        executed, done = counted.tried()
        assert executed == sorted(["last", "s", "t", *(["p"] if text == "1" else [])]), done.out
        assert counted.files("dist") == {"s": text, "p": "1\n"}
        assert counted.read("seen") == text
        counted.remove("dist/p")


def test_what_another_node_made_anew_is_no_left_over(counted: Counted) -> None:
    """C45: what a try before has left of its own goes to the trash, not what a node before it
    has made since in the same folder."""
    nodes = {
        "s": {"run": "cat src > dist/s", "reads": ["src"], "writes": ["dist/s"]},
        "p": {
            "run": "echo $(ls dist) >> log; echo half > dist/p; test -e go",
            "writes": ["dist/"],
            "tier": "irreversible",
            "idempotency_key": "k",
            "after": ["s"],
        },
    }
    counted.plan(nodes)
    counted.write("src", "1")
    assert counted.tried()[1].code == 1
    counted.write("src", "2")
    counted.write("go", "")
    assert counted.ran() == ["p", "s"]
    assert counted.read("log") == "s\ns\n"
    assert counted.files("dist") == {"s": "2", "p": "half\n"}
    assert counted.trash() == {"dist/p": "half\n"}
