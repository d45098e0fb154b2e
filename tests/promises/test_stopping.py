"""A run that stops, after a failure or a cancel: how what had not begun, what waited for its
next try and what only groups others settle."""

from __future__ import annotations

import signal

from counted import Counted
from probe import Probes
from running import Begin


def test_node_that_waits_for_its_next_try_has_failed(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """With --fail-fast, a node whose try failed and that is not tried again is failed, not
    skipped."""
    counted.plan(
        {
            "flaky": {"run": "exit 3", "retry": {"attempts": 2, "backoff": "1h"}},
            "last": {"run": probes.argv("last")},
        }
    )
    run = begin("--fail-fast", "-j2")
    run.told("attempt-failed", "flaky")
    probes.arrive("last").exit(1)
    done = run.finish()
    assert done.code == 1
    assert done.outcomes == {"flaky": "failed", "last": "failed"}
    (settled,) = (
        e for e in done.events if e["event"] == "node-settled" and e["node"] == "flaky"
    )  # fmt: skip
    assert (settled["exit_code"], settled["attempts"]) == (3, 1)


def test_group_of_what_succeeded_is_clean(counted: Counted, probes: Probes, begin: Begin) -> None:
    """With --fail-fast, a group whose nodes ran to their end before or after the failure tells
    so; one whose node was not started is skipped."""
    counted.plan(
        {
            "slow": {"run": probes.argv("slow")},
            "bad": {"run": "exit 1", "after": []},
            "good": {"after": ["slow"]},
            "later": {"run": "true", "after": ["slow"]},
            "none": {"after": ["later"]},
        }
    )
    run = begin("--fail-fast", "-j2")
    slow = probes.arrive("slow")
    run.told("node-settled", "bad")
    slow.exit(0)
    done = run.finish()
    assert done.outcomes == {
        "slow": "built",
        "bad": "failed",
        "good": "clean",
        "later": "skipped",
        "none": "skipped",
    }
    assert done.events[-1]["status"] == "partial"


def test_many_waiting_nodes_end_with_a_cancel(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Thousands of nodes that had not begun are cancelled, each told of once."""
    count = 3000
    waiting = {f"n{i}": {"run": ["true"], "locks": ["one"]} for i in range(count)}
    counted.plan({"holder": {"run": probes.argv("holder"), "locks": ["one"]}, **waiting})
    run = begin("-j2")
    probes.arrive("holder")
    run.send(signal.SIGINT)
    done = run.finish()
    assert done.code == 130
    assert done.counts == {"cancelled": count + 1}
    assert len(done.outcomes) == count + 1


def test_a_killed_run_keeps_the_plan_it_had_grown_to(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """The plan kept with a run has the instances that were appended before it was killed."""
    counted.plan(
        {
            "gen": {"run": "mkdir d; echo > d/a", "writes": ["d/"]},
            "t": {"foreach": "d/*", "run": probes.argv("t"), "reads": ["{{each}}"]},
        }
    )
    run = begin()
    probes.arrive("t")
    run.kill()
    assert "t[d/a]" in counted.assay("plan", "--run", "last").out
