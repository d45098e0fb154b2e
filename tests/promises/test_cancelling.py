"""`assay cancel` and `--deadline`: a run is stopped from outside, for good, and says by whom."""

from __future__ import annotations

import json
import shlex
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest
from counted import Counted
from probe import Probes
from running import Begin
from workspace import ASSAY


def test_a_run_of_another_process_is_cancelled(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Its nodes get SIGTERM, what has not begun does not begin, it exits 143, and the
    journal says who asked. To ask again, or for a run that has ended, does no harm."""
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "cache": False},
            "b": {"run": "echo 1 > b", "after": ["a"], "writes": ["b"]},
        }
    )
    run = begin()
    node = probes.arrive("a")
    asked = counted.assay("cancel", "last")
    assert asked.code == 0, asked.err
    assert asked.err.endswith("has ended: cancelled\n")
    node.gone()
    done = run.finish()
    assert (done.code, done.outcomes) == (143, {"a": "cancelled", "b": "cancelled"})
    told = next(each for each in done.events if each["event"] == "cancel-requested")
    assert (told["signal"], told["immediate"]) == (None, False)
    assert told["cause"].startswith("cancelled by ")
    records = [
        json.loads(line)
        for line in counted.assay("journal", "last", "--json").out.splitlines()
        if '"cancel-requested"' in line
    ]
    by = [each["data"]["by"] for each in records if "by" in each["data"]]
    assert [f"cancelled by {each}" for each in by] == [told["cause"]]
    assert f"by {by[0]}" in counted.assay("show").out
    assert json.loads(counted.assay("show", "--json").out)["cancelled_by"] == by[0]
    again = counted.assay("cancel", "last")
    assert (again.code, again.out) == (0, "")
    assert "has ended already: cancelled" in again.err


def test_a_node_that_may_not_be_cancelled_is_awaited(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """`cancellable = false`: the cancel waits for its end, and says for which process."""
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "cancellable": False, "writes": [OPTIONAL]},
            "b": {"run": "true", "after": ["a"]},
        }
    )
    run = begin()
    node = probes.arrive("a")
    with counted.start("cancel", "last") as asker:
        run.told("cancel-requested")
        assert asker.stderr is not None
        assert f"pid {run.pid} on" in asker.stderr.readline()
        assert node.is_alive
        node.exit(0)
        assert asker.wait() == 0
    assert run.finish().outcomes == {"a": "built", "b": "cancelled"}


OPTIONAL = {"path": "o", "optional": True}


def test_a_stopped_owner_is_named_and_heeds_it_later(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A run whose assay is stopped is alive: the cancel waits, says how to go on, and lasts."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    node = probes.arrive("a")
    run.send(SIGSTOP)
    with counted.start("cancel", "last") as asker:
        assert asker.stderr is not None
        assert f"`kill -CONT {run.pid}` lets it go on" in asker.stderr.readline()
        assert node.is_alive
        asker.send_signal(SIGTERM)
        asker.wait()
    run.send(SIGCONT)
    assert run.finish().code == 143
    node.gone()


def test_a_dead_run_is_ended_and_stays_cancelled(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: what a killed assay left running is ended by `cancel`, and nothing is left over."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [OPTIONAL]}})
    run = begin()
    node = probes.arrive("a")
    run.kill()
    assert node.is_alive
    asked = counted.assay("cancel", "last")
    assert asked.code == 0, asked.err
    node.gone()
    assert f"pid {node.pid}" in asked.err
    assert asked.err.endswith("has ended: cancelled\n")
    assert "cancelled" in counted.assay("runs").out


def test_what_a_dead_run_left_has_its_grace(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C97: a command with an effect gets SIGTERM once, however many cancel it, and may end by
    itself until its `grace` is over."""
    counted.plan({"a": {"run": probes.argv("a"), "tier": "irreversible", "grace": "1h"}})
    run = begin()
    node = probes.arrive("a")
    node.trap(SIGTERM)
    run.kill()
    for _ in range(2):
        with counted.start("cancel", "last") as asker:
            assert asker.stderr is not None
            said = asker.stderr.readline() + asker.stderr.readline()
            assert "it was asked to end, and is ended once its grace is over" in said
            assert "has left running has ended" in said
            asker.kill()
    assert node.heard() == SIGTERM
    assert node.heard_nothing()
    assert counted.assay("journal", "last").out.count("was asked to end: cancelled") == 1
    with counted.start("cancel", "last") as asker:
        node.exit(0)
        assert asker.wait() == 0


def test_what_a_dead_run_left_is_ended_after_its_grace(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: whatever it ignores."""
    counted.plan({"a": {"run": probes.argv("a"), "tier": "irreversible", "grace": "200ms"}})
    run = begin()
    node = probes.arrive("a")
    node.ignore(SIGTERM)
    run.kill()
    assert counted.assay("cancel", "last").code == 0
    node.gone()


def test_nested_runs_are_cancelled_with_it(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A run that a node started is cancelled too, and both say by whom."""
    counted.plan(
        {
            "outer": {"run": shlex.join([str(ASSAY), "run", "inner.toml"])},
        }
    )
    counted.write(
        "inner.toml",
        f'[nodes.inner]\nrun = {json.dumps(probes.argv("inner"))}\nlocks = ["l"]\n',
    )
    run = begin()
    node = probes.arrive("inner")
    outer = json.loads(counted.assay("runs", "--json").out)[-1]["run"]
    asked = counted.assay("cancel", outer)
    assert asked.code == 0, asked.err
    assert f"which run {outer} started, is cancelled with it" in asked.err
    node.gone()
    assert run.finish().code == 143
    assert {each["status"] for each in json.loads(counted.assay("runs", "--json").out)} == {
        "cancelled"
    }


def test_a_run_that_takes_too_long_cancels_itself(counted: Counted, probes: Probes) -> None:
    """`--deadline`: 143, the reason told, no process left; a run in time is not touched."""
    counted.plan({"a": {"run": probes.argv("a")}})
    with counted.start("run", "--json", "--deadline", "300ms") as late:
        node = probes.arrive("a")
        out, _ = late.communicate()
        assert late.returncode == 143
    assert "the deadline of 0.3s has passed" in out
    node.gone()
    counted.plan({"a": {"run": "true"}})
    assert counted.run("--deadline", "1h").code == 0


@pytest.mark.parametrize("who", ["run", "resume"])
def test_a_deadline_holds_while_others_are_awaited(
    counted: Counted, probes: Probes, begin: Begin, who: str
) -> None:
    """`--deadline` ends the waiting for what a dead run left, as Ctrl-C does: with 4, and what is
    waited for goes on."""
    counted.plan({"a": {"run": probes.argv("a"), "tier": "irreversible"}})
    run = begin()
    node = probes.arrive("a")
    run.kill()
    words = ["run"] if who == "run" else ["resume", "last"]
    late = counted.assay(*words, "--deadline", "300ms")
    assert late.code == 4
    assert "the deadline" in late.err
    assert node.is_alive
    assert probes.arrivals == ["a"]


@pytest.mark.parametrize("text", ["soon", "0s", "5"])
def test_a_deadline_is_a_duration(counted: Counted, text: str) -> None:
    """Anything else is refused before anything starts."""
    counted.plan({"a": {"run": "true"}})
    refused = counted.assay("run", "--deadline", text)
    assert refused.code == 2
    assert f"not `{text}`" in refused.err
    assert not counted.path(".assay").exists()


def test_cancel_of_an_unknown_run(counted: Counted) -> None:
    """Where nothing ran, and for a run that is not there: exit 2, and nothing is made."""
    counted.plan({"a": {"run": "true"}})
    assert counted.assay("cancel", "last").code == 2
    assert not counted.path(".assay").exists()
    counted.run()
    assert counted.assay("cancel", "zz").code == 2
    assert counted.assay("cancel").code == 2


def test_a_node_that_cancels_its_own_run_is_not_awaited_by_itself(counted: Counted) -> None:
    """The request is made and `cancel` comes back: it would wait for itself."""
    script = f'{shlex.quote(str(ASSAY))} cancel "$ASSAY_RUN" && echo asked > o'
    counted.plan(
        {
            "a": {"run": script, "cancellable": False, "writes": ["o"]},
            "b": {"run": "true", "after": ["a"]},
        }
    )
    done = counted.assay("run", "--json")
    assert (done.code, done.outcomes["a"]) == (143, "built"), done.out
    assert counted.read("o") == "asked\n"


def plan_undo(counted: Counted, undo: str) -> None:
    """`a` is done with other content than the next run finds: that executes its `undo`."""
    counted.write("in", "1\n")
    counted.plan(
        {
            "a": {
                "run": "cat in > a",
                "reads": ["in"],
                "writes": ["a"],
                "tier": "compensable",
                "undo": undo,
            },
            "b": {"run": "exit 1", "after": ["a"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("in", "2\n")


def test_an_undo_that_cancels_the_run_around_it_is_not_awaited_by_itself(counted: Counted) -> None:
    """What another run did is taken back by this one: `cancel` in the `undo` comes back."""
    plan_undo(counted, f"{shlex.quote(str(ASSAY))} cancel last && echo asked > o")
    done = counted.assay("run", "--json")
    assert (done.code, done.outcomes["a"]) == (143, "cancelled"), done.out
    assert counted.read("o") == "asked\n"


@pytest.mark.parametrize("lives", [True, False])
def test_a_run_inside_an_undo_is_cancelled_with_the_run_around_it(
    counted: Counted, probes: Probes, begin: Begin, lives: bool
) -> None:
    """It is told to stop as well: it does once the run around it is gone, which lets an undo
    that it has begun end by itself."""
    inner = {"n": {"run": f"{shlex.join(probes.argv('n'))}; echo done > o"}}
    counted.plan(inner, file="inner.toml")
    plan_undo(counted, f"{shlex.quote(str(ASSAY))} run inner.toml")
    run = begin()
    node = probes.arrive("n")
    around, inside = (
        each["run"] for each in json.loads(counted.assay("runs", "--json").out)[1::-1]
    )
    if not lives:
        run.kill()
    with counted.start("cancel", around) as cancel:
        assert cancel.stderr is not None
        told = f"run {inside}, which run {around} started, is cancelled with it\n"
        assert cancel.stderr.readline() == told
        if lives:
            node.exit(0)
        node.gone()
        cancel.communicate()
        assert cancel.returncode == 0
    if lives:
        assert run.finish().code == 143
    assert counted.path("o").exists() == lives
    found = {
        each["run"]: each["status"] for each in json.loads(counted.assay("runs", "--json").out)
    }
    assert (found[around], found[inside]) == ("cancelled", "completed" if lives else "cancelled")
