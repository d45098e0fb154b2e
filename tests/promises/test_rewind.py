"""`assay rewind`: back to where one node had settled."""

from __future__ import annotations

import json
import shlex

import pytest
from counted import Counted
from probe import Probes
from running import Begin


def plan_three(counted: Counted) -> None:
    """`a`, `b` and `c`, one after the other, each with a line for `log` and an `undo`."""
    marks = shlex.quote(str(counted.marks))
    counted.write("log", "0\n")
    counted.plan(
        {
            name: {
                "run": f"echo {name} >> log",
                "reads": ["log"],
                "writes": ["log"],
                "tier": "compensable",
                "undo": f"echo undo {name} >> {marks}",
                "after": after,
            }
            for name, after in (("a", []), ("b", ["a"]), ("c", ["b"]))
        }
    )


def test_later_work_is_undone_in_reverse_order(counted: Counted) -> None:
    """The files are as they were after the node; the run can be gone on with from there."""
    plan_three(counted)
    assert counted.ran() == ["a", "b", "c"]
    done = counted.assay("rewind", "last", "--to", "a")
    assert done.code == 0, done.err
    assert counted.read("log") == "0\na\n"
    assert counted.executions == ["a", "b", "c", "undo c", "undo b"]
    assert json.loads(counted.assay("runs", "--json").out)[0]["status"] == "suspended"
    assert "rewound" in counted.assay("journal", "last").out
    resumed = counted.assay("resume", "last", "--json")
    assert (resumed.code, resumed.outcomes) == (0, {"a": "clean", "b": "built", "c": "built"})
    assert counted.read("log") == "0\na\nb\nc\n"


def test_after_a_rewind_a_new_run_goes_on_too(counted: Counted) -> None:
    """What was left standing is carried over, what was rewound is done again."""
    plan_three(counted)
    counted.ran()
    assert counted.assay("rewind", "last", "--to", "b").code == 0
    assert counted.ran() == ["c"]
    assert counted.read("log") == "0\na\nb\nc\n"


def test_an_edit_since_is_kept(counted: Counted) -> None:
    """What a user wrote over it is moved to the trash and named."""
    plan_three(counted)
    counted.ran()
    counted.write("log", "mine\n")
    done = counted.assay("rewind", "last", "--to", "b")
    assert done.code == 0
    assert "kept what stood there instead: `log` is now" in done.err
    assert counted.read("log") == "0\na\nb\n"
    assert counted.trash() == {"log": "mine\n"}


def test_an_irreversible_effect_stands_in_the_way(counted: Counted) -> None:
    """It refuses before it touches anything, unless it is told to leave it; then the effect
    is not repeated by whoever goes on."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "start": {"run": "true"},
            "mod": {
                "run": "echo x >> f",
                "reads": ["f"],
                "writes": ["f"],
                "tier": "compensable",
                "after": ["start"],
            },
            "pub": {"run": "echo out >> sent", "tier": "irreversible", "after": ["mod"]},
        }
    )
    counted.ran()
    refused = counted.assay("rewind", "last", "--to", "start")
    assert refused.code == 4
    assert "`pub` cannot be taken back" in refused.err
    assert "--leave-effects" in refused.err
    assert counted.read("f") == "0\nx\n"
    done = counted.assay("rewind", "last", "--to", "start", "--leave-effects")
    assert done.code == 0, done.err
    assert counted.read("f") == "0\n"
    resumed = counted.assay("resume", "last", "--json")
    assert resumed.code == 0
    assert resumed.outcomes == {"start": "clean", "mod": "built", "pub": "clean"}
    assert counted.read("sent") == "out\n"


def test_work_of_another_run_is_named(counted: Counted) -> None:
    """What the run had taken over from another one stands, and whose it is is said."""
    counted.write("log", "0\n")
    counted.plan(
        {
            "a": {"run": "true"},
            "m": {
                "run": "echo m >> log",
                "reads": ["log"],
                "writes": ["log"],
                "tier": "compensable",
                "after": ["a"],
            },
            "last": {"run": "test -e ok", "after": ["m"], "cache": False},
        }
    )
    assert counted.assay("run").code == 1
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    done = counted.assay("rewind", "last", "--to", "a")
    assert done.code == 0
    assert f"`m`: left as it is, since it was done earlier in run {first}" in done.err
    assert counted.read("log") == "0\nm\n"


def test_rewind_says_what_is_wrong_with_it(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A node that did not settle, none at all, a run that is on: one message each."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    probe = probes.arrive("a")
    busy = counted.assay("rewind", "last", "--to", "a")
    assert busy.code == 2
    assert f"pid {run.pid}" in busy.err
    probe.exit(0)
    run.finish()
    assert "needs the node to go back to" in counted.assay("rewind", "last").err
    missing = counted.assay("rewind", "last", "--to", "b")
    assert missing.code == 2
    assert "did not settle" in missing.err


def test_a_run_that_a_later_one_built_on_is_not_rewound(counted: Counted) -> None:
    """What a later run has done again is taken back first."""
    plan_three(counted)
    counted.ran()
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    counted.ran()
    done = counted.assay("rewind", first, "--to", "a")
    assert done.code == 2
    assert "has done `c` again since: rewind that first" in done.err
    assert counted.read("log") == "0\na\nb\nc\na\nb\nc\n"


def plan_undo(counted: Counted, probes: Probes) -> None:
    """`a`, then `b`, whose undo is a probe and which writes nothing that assay knows of; the
    first run of it fails in `c`."""
    counted.plan(
        {
            "a": {"run": "cat in > oa", "reads": ["in"], "writes": ["oa"]},
            "b": {
                "run": "cat in >> made",
                "reads": ["in"],
                "after": ["a"],
                "tier": "compensable",
                "undo": probes.argv("undo"),
            },
            "c": {"run": "test -e ok", "after": ["b"], "cache": False},
        }
    )
    counted.write("in", "1\n")
    assert counted.assay("run").code == 1
    counted.write("ok", "")


@pytest.mark.parametrize("how", ["rewind", "killed rewind", "roll-back", "killed roll-back"])
def test_what_is_being_taken_back_is_not_settled(
    counted: Counted, probes: Probes, begin: Begin, how: str
) -> None:
    """While an undo lives, whoever started it, an operator is told to wait: it would take back
    what a later run does. Afterwards it is done again."""
    plan_undo(counted, probes)
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    if "roll-back" in how:
        counted.write("in", "2\n")
        taker = begin().process
    else:
        taker = counted.start("rewind", first, "--to", "a")
    undo = probes.arrive("undo")
    if "killed" in how:
        taker.kill()
        taker.wait()
    refused = counted.assay("settle", first, "b", "--not-done")
    assert refused.code == 2, refused.err
    assert f"error: `b` of run {first} is being taken back" in refused.err
    undo.exit(0)
    undo.gone()
    taker.communicate()
    if "killed" in how:
        settled = counted.assay("settle", first, "b", "--not-done")
        assert settled.code == 0, settled.err
    assert counted.assay("run").code == 0
    assert probes.arrivals == ["undo"]


def test_a_run_waits_for_a_rewind(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A node that is being taken back is not performed meanwhile, although it writes nothing:
    the run says for whom it waits, and performs it afterwards."""
    plan_undo(counted, probes)
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    rewind = counted.start("rewind", first, "--to", "a")
    undo = probes.arrive("undo")
    run = begin()
    told = run.told("waiting-for-run", "b")
    assert (told["for_run"], told["pid"]) == (first, rewind.pid)
    assert told["what"] == "node b of plan.toml"
    undo.exit(0)
    assert rewind.wait() == 0
    rewind.communicate()
    done = run.finish()
    assert (done.code, done.outcomes["b"]) == (0, "built")
    assert probes.arrivals == ["undo"]
    assert counted.read("made") == "1\n" * 2
