"""Nodes that run because of how others ended: `when = "failure"` and `when = "always"`."""

from __future__ import annotations

import signal

import pytest
from counted import Counted
from probe import Probes
from running import Begin

HANDLERS: dict[str, dict[str, object]] = {
    "rescue": {"run": "true", "after": ["work"], "when": "failure"},
    "teardown": {"run": "true", "after": ["work"], "when": "always"},
}


@pytest.mark.parametrize("fail_fast", [[], ["--fail-fast"]])
@pytest.mark.parametrize(
    ("script", "executed", "code"),
    [("true", ["teardown", "work"], 0), ("exit 1", ["rescue", "teardown", "work"], 1)],
)
def test_handlers_of_one_node(
    counted: Counted, script: str, executed: list[str], code: int, fail_fast: list[str]
) -> None:
    """A `failure` handler runs after a failure only, an `always` handler in any case; that the
    former was not needed is no failure, and that it ran does not undo the failure."""
    counted.plan({"work": {"run": script}, **HANDLERS})
    ran, done = counted.tried(*fail_fast)
    assert (ran, done.code) == (executed, code)
    assert done.outcomes["rescue"] == ("built" if code else "skipped")


def test_handlers_join_only_with_all_they_follow(counted: Counted) -> None:
    """A handler is selected when everything it follows is."""
    counted.plan(
        {
            "work": {"run": "true"},
            "other": {"run": "true"},
            "teardown": {"run": "true", "after": ["work"], "when": "always"},
            "both": {"run": "true", "after": ["work", "other"], "when": "always"},
        }
    )
    assert counted.ran("work") == ["teardown", "work"]
    assert counted.ran("work", "other") == ["both", "other", "teardown", "work"]


def test_who_follows_handlers(counted: Counted) -> None:
    """A handler that was not needed fails nobody; one that fails is a failure like another."""
    counted.plan(
        {
            "work": {"run": "true"},
            **HANDLERS,
            "next": {"run": "true", "after": ["rescue", "teardown"]},
        }
    )
    assert counted.ran() == ["next", "teardown", "work"]
    counted.plan(
        {
            "work": {"run": "true"},
            "rescue": HANDLERS["rescue"],
            "teardown": {"run": "exit 7", "after": ["work"], "when": "always"},
            "next": {"run": "true", "after": ["teardown"]},
        }
    )
    executed, done = counted.tried("--fresh")
    assert (executed, done.code) == (["teardown", "work"], 1)
    assert done.named("failed") == {"teardown"}
    assert done.named("skipped") == {"next", "rescue"}


def test_handlers_of_what_was_skipped(counted: Counted) -> None:
    """What could not run because of a failure before it counts as failed for its handlers."""
    counted.plan(
        {
            "broken": {"run": "exit 1"},
            "work": {"run": "true", "after": ["broken"]},
            **HANDLERS,
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["broken", "rescue", "teardown"], 1)


def test_teardown_waits_for_everything_it_follows(counted: Counted, probes: Probes) -> None:
    """A teardown starts once all it follows has ended, not when the first of it has failed."""
    counted.plan(
        {
            "a": {"run": "exit 1"},
            "b": {"run": probes.argv("b")},
            "teardown": {"run": probes.argv("teardown"), "after": ["a", "b"], "when": "always"},
        }
    )
    started = counted.start("run", "-j3")
    b = probes.arrive("b")
    assert b.is_alive
    b.exit(0)
    teardown = probes.arrive("teardown")
    assert not b.is_alive
    teardown.exit(0)
    started.communicate()
    assert started.returncode == 1


def test_teardown_runs_after_an_interrupt(counted: Counted, probes: Probes, begin: Begin) -> None:
    """After the first Ctrl-C an `always` handler still runs, to its end and alone: no failure
    handler and no other node starts."""
    counted.plan(
        {
            "work": {"run": probes.argv("work")},
            "rescue": HANDLERS["rescue"],
            "teardown": {"run": probes.argv("teardown"), "after": ["work"], "when": "always"},
            "next": {"run": "true", "after": ["work"]},
            "last": {"run": "true", "after": ["teardown"]},
        }
    )
    run = begin()
    work = probes.arrive("work")
    run.send(signal.SIGINT)
    teardown = probes.arrive("teardown")
    work.gone()
    teardown.exit(0)
    done = run.finish()
    assert done.code == 130
    assert done.named("built") == {"teardown"}
    assert done.named("cancelled") == {"work", "rescue", "next", "last"}
    assert counted.executions == []


def test_running_teardown_survives_the_first_interrupt_only(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """The first Ctrl-C leaves a teardown that runs alone, the second ends it at once."""
    counted.plan(
        {
            "work": {"run": "exit 1"},
            "teardown": {"run": probes.argv("teardown"), "after": ["work"], "when": "always"},
            "after": {"run": "true", "after": ["teardown"], "when": "always"},
        }
    )
    run = begin()
    teardown = probes.arrive("teardown")
    teardown.trap(signal.SIGTERM, signal.SIGINT)
    run.send(signal.SIGINT)
    assert run.told("cancel-requested")["immediate"] is False
    assert teardown.heard_nothing()
    run.send(signal.SIGINT)
    teardown.gone()
    done = run.finish()
    assert done.code == 130
    assert done.outcomes == {"work": "failed", "teardown": "cancelled", "after": "cancelled"}
    assert counted.executions == ["work"]
