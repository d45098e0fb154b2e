"""Any run can be explained to a stranger: `show`, `why` and `runs` say whose it was, what was
decided, how its effects stand, and which commands go on from there."""

from __future__ import annotations

import json
import re
import shlex
import signal
from typing import Any

import pytest
from counted import Counted
from probe import Probes
from running import Begin

WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def shown(counted: Counted, run: str = "last") -> str:
    done = counted.assay("show", run)
    assert done.code == 0, done.err
    return done.out


def told(counted: Counted, run: str = "last") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(counted.assay("show", run, "--json").out)
    return found


def offered(text: str) -> list[list[str]]:
    """The commands that a text names behind a colon, as words."""
    return [
        shlex.split(line)[1:] for line in re.findall(r"^   = .*: (assay .*)$", text, re.MULTILINE)
    ]


def test_a_dead_run_is_told_as_it_is(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C97: before anybody has dealt with it: that its assay is gone, what of it still runs, and
    the ways on. A settlement is offered once one would be taken, not before."""
    counted.plan(
        {
            "pure": {"run": "echo 1 > o", "writes": ["o"]},
            "pub": {"run": probes.argv("pub"), "tier": "irreversible", "after": ["pure"]},
        }
    )
    run = begin()
    pub = probes.arrive("pub")
    assert "running" in shown(counted).splitlines()[0]
    run.kill()
    first = told(counted)["run"]
    text = shown(counted)
    assert text.startswith(
        f"run {first}  interrupted: its assay (pid {run.pid}) is gone, 1 built\n"
    )
    assert f"by        pid {run.pid} on " in text
    assert f"  pub   1    still runs (pid {pub.pid})" in text
    assert f"  {first}-2  still runs (pid {pub.pid}), though its assay is gone\n" in text
    assert offered(text) == [["cancel", first], ["resume", first], ["run"]]
    assert f"its assay (pid {run.pid}) is gone\n" in counted.assay("runs").out
    why = counted.assay("why", "pub").out
    assert f"waits for what run {first} left running (pid {pub.pid})" in why
    assert offered(why) == []
    assert counted.assay("settle", first, "pub", "--done").code == 2
    pub.exit(0)
    pub.gone()
    text = shown(counted)
    assert "  pub   1    not known" in text
    assert f"  {first}-2  may or may not have happened: its assay was killed while it ran\n" in text
    settle = ["settle", first, "pub"]
    assert "\nopen question: did the effect of `pub` happen?\n" in text
    commands = [[*settle, "--done"], [*settle, "--not-done"], ["resume", first], ["run"]]
    assert offered(text) == commands
    assert offered(counted.assay("why", "pub").out) == commands[:2]
    assert told(counted)["questions"] == [
        {
            "run": first,
            "node": "pub",
            "answers": ["done", "not-done"],
            "needs_value": False,
            "stands": False,
        }
    ]
    assert counted.assay(*commands[0]).code == 0
    text = shown(counted)
    assert "open question" not in text
    assert f"  {first}-2  done, as settled\n" in text
    assert "run ended: interrupted\n" in text
    assert re.search(
        rf"\n{WHEN}  `pub`: attempt {first}-2 settled as done by .* \(pid \d+\)\n", text
    )
    assert counted.assay(*commands[2]).code == 0
    assert re.search(
        rf"\n{WHEN}  run resumed by pid \d+ on .*\n +it was interrupted\n", shown(counted)
    )


def test_who_asks_tells_what_is_known_of_what_another_did(counted: Counted) -> None:
    """The run that stopped over an effect names it, though another one has it; both tell what an
    operator said of it, and the commands are those that are taken."""
    counted.plan({"pub": {"run": "exit 1", "tier": "irreversible"}, "use": {"run": "true"}})
    assert counted.assay("run").code == 1
    first = told(counted)["run"]
    assert "may or may not have happened: ended with exit code 1\n" in shown(counted)
    assert counted.assay("run").code == 4
    second = told(counted)["run"]
    settle = ["settle", first, "pub"]
    commands = [[*settle, "--done"], [*settle, "--not-done"]]
    for run in (first, second):
        text = shown(counted, run)
        assert offered(text) == [*commands, ["resume", run], ["run"]]
        assert told(counted, run)["effects"][0]["attempt"] == f"{first}-1"
    assert offered(counted.assay("why", "pub").out) == commands
    assert counted.assay(*commands[1]).code == 0
    for run in (first, second):
        text = shown(counted, run)
        assert f"attempt {first}-1 settled as not done by" in text
        assert "did not happen, as settled\n" in text
        assert "open question" not in text
    assert [each["done"] for each in told(counted, second)["effects"][0]["settled"]] == [False]


def test_what_was_done_with_other_content_is_asked_for_as_such(counted: Counted) -> None:
    """C95: it did happen: the ways are to let that stand, with the result it had, or to perform it
    again."""
    counted.write("in", "1")
    nodes: dict[str, dict[str, Any]] = {
        "pub": {
            "run": "echo 1.2 > $ASSAY_RESULT",
            "reads": ["in"],
            "tier": "irreversible",
            "result": "text",
        },
        "bad": {"run": "exit 1", "after": ["pub"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    first = told(counted)["run"]
    assert told(counted)["questions"] == []
    counted.write("in", "2")
    asked = counted.assay("run")
    assert asked.code == 4
    ways = (
        f"   = to let that stand: assay settle {first} pub --done\n"
        f"   = to perform it again: assay settle {first} pub --not-done\n"
    )
    assert (
        f"Node `pub`: was done in run {first} with other content: read changed: in\n{ways}"
        in asked.err
    )
    for text in (shown(counted), counted.assay("why", "pub").out):
        assert f"open question: `pub` was done with other content: does that stand?\n{ways}" in text
        assert "done, with other content than is asked for now\n" in text
    stays = counted.assay("settle", "last", "pub", "--done")
    assert stays.code == 0, stays.err
    counted.plan({**nodes, "bad": {"run": "echo $V", "env": {"V": {"from": "pub"}}}})
    assert counted.ran() == ["bad"]
    assert counted.assay("log", "bad").out == "1.2\n"


def test_after_a_rewind_a_run_says_what_was_taken_back(counted: Counted) -> None:
    """When, by whom, to where, what of it, and what is left; the nodes say so too."""
    counted.write("log", "0\n")
    step = {"reads": ["log"], "writes": ["log"], "tier": "compensable"}
    counted.plan(
        {
            "a": {"run": "echo a >> log", **step},
            "b": {"run": "echo b >> log", "after": ["a"], **step},
            "pub": {"run": "true", "tier": "irreversible", "after": ["b"]},
            "c": {"run": "echo c >> log", "after": ["pub"], **step},
        }
    )
    counted.ran()
    run = told(counted)["run"]
    assert counted.assay("rewind", "last", "--to", "a", "--leave-effects").code == 0
    text = shown(counted)
    assert text.startswith(f"run {run}  suspended: 2 built, 2 taken back\n")
    assert re.search(
        rf"\n{WHEN}  rewound to `a` by .* \(pid \d+\)\n"
        r" +takes back `c`, `b`\n"
        r" +leaves `pub`\n"
        rf"{WHEN}  run ended: suspended, 2 built, 2 taken back\n",
        text,
    )
    assert "taken back  b     was built\n" in text
    assert "taken back  c     was built\n" in text
    assert "built       a\n" in text
    assert f"b          {run}-2  rolled back, since the run was rewound\n" in text
    assert offered(text) == [["resume", run], ["run"]]
    assert counted.assay("runs").out.endswith("2 built, 2 taken back\n")
    found = told(counted)
    assert {each["node"] for each in found["nodes"] if each["taken_back"]} == {"b", "c"}
    assert found["counts"] == {"built": 2, "taken-back": 2}
    assert counted.assay("resume", "last").code == 0
    text = shown(counted)
    assert text.startswith(f"run {run}  completed: 2 built, 2 clean\n")
    assert "taken back " not in text


def test_what_a_later_run_took_back_is_told_of_the_earlier_one(counted: Counted) -> None:
    """Which run that was, and why."""
    counted.write("in", "1")
    counted.plan(
        {
            "a": {
                "run": "cat in > o",
                "reads": ["in"],
                "writes": ["o"],
                "tier": "compensable",
            },
            "bad": {"run": "exit 1", "after": ["a"]},
        }
    )
    assert counted.assay("run").code == 1
    first = told(counted)["run"]
    counted.write("in", "2")
    assert counted.assay("run").code == 1
    second = told(counted)["run"]
    text = shown(counted, first)
    assert "taken back  a     was built\n" in text
    assert f"rolled back by run {second}, since `a` is to be done anew\n" in text


def test_an_undo_that_failed_leaves_one_answer(counted: Counted) -> None:
    """Once the rest is taken back by hand only a no can be said, and only that is offered."""
    counted.plan({"a": {"run": "exit 1", "tier": "compensable", "undo": "exit 7", "writes": ["o"]}})
    assert counted.assay("run").code == 1
    run = told(counted)["run"]
    text = shown(counted)
    assert "files put back, its `undo` has yet to end well: " in text
    assert "open question: what `a` did is not taken back wholly\n" in text
    settle = ["settle", run, "a", "--not-done"]
    assert offered(text) == [settle, ["resume", run], ["run"]]
    assert counted.assay(*settle).code == 0


@pytest.mark.parametrize("completes", [True, False])
def test_what_nobody_asks_for_is_not_offered(counted: Counted, completes: bool) -> None:
    """C95: once a later run has completed, an earlier one only says what is not known."""
    counted.plan({"pub": {"run": "test -e ok", "tier": "irreversible"}})
    assert counted.assay("run").code == 1
    first = told(counted)["run"]
    if completes:
        counted.write("ok", "")
        assert counted.assay("run", "--new").code == 0
        assert counted.assay("runs").out.count("completed") == 1
    words = ["settle", first, "pub", "--done"]
    text = shown(counted, first)
    assert "may or may not have happened: ended with exit code 1\n" in text
    assert (words in offered(text)) is (counted.assay(*words).code == 0)


def test_a_key_makes_it_no_question(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C95: what is repeated under its key is told so, and asks nobody."""
    keyed = {"run": probes.argv("pub"), "tier": "irreversible", "idempotency_key": "k"}
    counted.plan({"pub": keyed})
    run = begin()
    pub = probes.arrive("pub")
    run.kill()
    pub.exit(0)
    pub.gone()
    text = shown(counted)
    assert "may or may not have happened: its assay was killed while it ran; repeated under" in text
    assert "open question" not in text


def test_settlements_that_repeat_or_contradict_say_so(counted: Counted) -> None:
    """The same again is no record; the opposite names whom it overturns."""
    counted.plan({"pub": {"run": "exit 1", "tier": "irreversible"}})
    assert counted.assay("run").code == 1
    run = told(counted)["run"]
    goes_on = f"`assay resume {run}` goes on with that run, `assay run` begins a new one\n"

    def settle(how: str) -> str:
        done = counted.assay("settle", "last", "pub", how)
        assert done.code == 0
        assert done.err.endswith(goes_on)
        return done.err.removesuffix(goes_on)

    def records() -> int:
        return counted.assay("journal", "--json").out.count('"effect-settled"')

    def whom(how: str) -> str:
        return rf"`pub` of run {run} was settled as {how} at {WHEN} by .* \(pid \d+\)"

    assert settle("--done") == f"`pub` of run {run} counts as done\n"
    again = settle("--done")
    assert re.fullmatch(whom("done") + ": that stands, and nothing is recorded anew\n", again)
    assert records() == 1
    opposite = settle("--not-done")
    assert re.fullmatch(
        whom("done") + "; now it counts as not done: it will be performed\n", opposite
    )
    assert re.fullmatch(whom("not done") + "; now it counts as done\n", settle("--done"))
    assert records() == 3


def test_the_hint_after_settle_names_a_run_that_can_go_on(counted: Counted) -> None:
    """The one that was given, though the effect is another's; none that has completed."""
    counted.plan({"pub": {"run": "exit 1", "tier": "irreversible"}})
    assert counted.assay("run").code == 1
    first = told(counted)["run"]
    assert counted.assay("run").code == 4
    second = told(counted)["run"]
    done = counted.assay("settle", second, "pub", "--not-done")
    assert f"`pub` of run {first} counts as not done" in done.err
    assert f"`assay resume {second}` goes on" in done.err


def test_a_node_that_the_run_does_not_have(counted: Counted) -> None:
    """Is named as such by `settle` and `rewind`, not as one that did something."""
    counted.plan({"a": {"run": "true"}, "bad": {"run": "exit 1"}})
    assert counted.assay("run").code == 1
    run = told(counted)["run"]
    settle = counted.assay("settle", "last", "nope", "--done")
    assert (settle.code, settle.err) == (
        2,
        f"error: Run {run} has no node `nope`\n\nhint: `assay show {run}` lists its nodes\n",
    )
    rewind = counted.assay("rewind", "last", "--to", "nope")
    assert (rewind.code, rewind.err) == (2, f"error: Run {run} has no node `nope`\n")
    failed = counted.assay("rewind", "last", "--to", "bad")
    assert failed.err == f"error: `bad` did not settle well in run {run}: failed\n"


def test_a_cancel_says_whom_it_waits_for(counted: Counted, probes: Probes, begin: Begin) -> None:
    """`cancellable = false`: it is not said to be ended."""
    counted.plan({"c": {"run": probes.argv("c"), "cancellable": False}})
    run = counted.start("run")
    node = probes.arrive("c")
    run.send_signal(signal.SIGTERM)
    assert run.stderr is not None
    assert run.stderr.readline() == (
        "SIGTERM received: waiting for `c`, which may not be cancelled (once more kills it at"
        " once)\n"
    )
    node.exit(0)
    run.communicate()
    assert run.returncode == 143


def test_json_tells_whose_a_run_was(counted: Counted) -> None:
    """Its fence and the boot of its owner beside pid and host, and every owner it had."""
    counted.plan({"a": {"run": "test -e ok", "cache": False}})
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    assert counted.assay("resume", "last", "--retry-failed").code == 0
    found = told(counted)
    assert found["fence"] == 2
    assert len(found["boot"]) >= 32
    assert [each["kind"] for each in found["history"]] == [
        "run-created",
        "run-settled",
        "run-resumed",
        "run-settled",
    ]
