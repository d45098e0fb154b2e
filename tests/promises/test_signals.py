"""Interrupts and time-outs: who is told, what ends, what is kept, and how the run ends."""

from __future__ import annotations

import json
import shlex
import subprocess
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import Any

import pytest
from counted import Counted
from probe import Probes
from running import Begin
from terminal import CTRL_C, OnTerminal
from workspace import ASSAY, Finished


def settled(done: Finished, node: str) -> dict[str, Any]:
    """The event that told how a node settled."""
    [event] = [e for e in done.events if e["event"] == "node-settled" and e["node"] == node]
    return event


def test_nothing_survives_ctrl_c(counted: Counted, probes: Probes, on_terminal: OnTerminal) -> None:
    """C55: one Ctrl-C on the terminal ends what a node started: its children, background jobs
    that ignore it, one with a session of its own and a daemon; only then the prompt is back."""
    script = f"{shlex.join(probes.argv('job'))} & {shlex.join(probes.argv('main'))}; wait"
    counted.plan({"a": {"run": script}, "next": {"run": "true", "after": ["a"]}})
    terminal = on_terminal(str(ASSAY), "run")
    main, _ = probes.arrive("main"), probes.arrive("job")
    main.fork("session", setsid=True).ignore(SIGINT)
    main.fork("daemon", setsid=True, double=True, keep_files=False)
    main.fork("child").fork("grandchild").ignore(SIGINT)
    terminal.type(CTRL_C)
    code, shown = terminal.finish()
    assert code == 130
    assert probes.living == []
    assert "SIGINT received: ending 1 running node" in shown
    assert "2 cancelled in " in shown
    assert counted.executions == ["a"]


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 143), (SIGHUP, 129), (SIGINT, 130)])
def test_signal_to_assay_alone_reaches_the_node_once(
    counted: Counted, probes: Probes, begin: Begin, number: Signals, code: int
) -> None:
    """C57: whatever signal assay gets, a node gets SIGTERM, once, and time to clean up; what
    it then exits with is no success, and nothing else starts."""
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "writes": ["o"]},
            "b": {"run": "true", "after": ["a"]},
            "c": {"run": "true"},
        }
    )
    run = begin("-j1")
    node = probes.arrive("a")
    node.trap(SIGTERM, SIGINT, SIGHUP)
    child = node.fork("child")
    run.send(number)
    assert node.heard() is SIGTERM
    child.gone()
    counted.write("o", "complete")
    assert node.heard_nothing()
    node.exit(0)
    done = run.finish()
    assert done.code == code
    assert done.named("cancelled") == {"a", "b", "c"}
    assert done.events[-1]["status"] == "cancelled"
    assert "cancelled" in counted.assay("show", "last").out
    assert "Traceback" not in done.err
    again = begin("a")
    probes.arrive("a").exit(1)
    assert again.finish().named("failed") == {"a"}, "an interrupted node's result served"


def test_signal_to_assay_as_first_process_of_a_container(counted: Counted, probes: Probes) -> None:
    """C57: as process 1, which the kernel spares unless it handles a signal, assay passes
    SIGTERM on and leaves nothing."""
    unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces for users")
    counted.plan({"a": {"run": probes.argv("a")}})
    started = subprocess.Popen(
        [*unshare, str(ASSAY), "run", "--json"], cwd=counted.root, stdout=subprocess.PIPE, text=True
    )
    node = probes.arrive("a")
    node.trap(SIGTERM)
    node.fork("orphan", setsid=True, double=True)
    first = _parent(node.pid)
    assert node.ids()[1] == 1, "assay is the first process in there"
    subprocess.run(["kill", "-TERM", str(first)], check=True)
    assert node.heard() is SIGTERM
    node.exit(0)
    out, _ = started.communicate()
    assert json.loads(out.splitlines()[-1])["status"] == "cancelled"
    assert started.returncode == 143
    assert probes.living == []


def test_stubborn_node_is_killed_after_its_grace(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C58: who ignores SIGTERM is killed once its grace is over, with its children."""
    counted.plan({"a": {"run": probes.argv("a"), "grace": "50ms"}})
    run = begin()
    node = probes.arrive("a")
    node.ignore(SIGTERM, SIGINT)
    node.fork("child", setsid=True).ignore(SIGTERM)
    run.send(SIGINT)
    done = run.finish()
    assert (done.code, probes.living) == (130, [])
    assert settled(done, "a")["outcome"] == "cancelled"


def test_second_interrupt_does_not_wait_for_the_grace(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C58: a second Ctrl-C kills at once, whatever grace is left; the next run works."""
    counted.plan({"a": {"run": probes.argv("a"), "grace": "1h"}})
    run = begin()
    node = probes.arrive("a")
    node.trap(SIGTERM)
    run.send(SIGINT)
    assert node.heard() is SIGTERM
    run.send(SIGINT)
    done = run.finish()
    assert (done.code, probes.living) == (130, [])
    assert [e["immediate"] for e in done.events if e["event"] == "cancel-requested"] == [
        False,
        True,
    ]
    counted.plan({"a": {"run": "true"}})
    assert counted.ran() == ["a"]


def test_closed_terminal_ends_the_run(
    counted: Counted, probes: Probes, on_terminal: OnTerminal
) -> None:
    """C60: closing the terminal is a cancel; writing to it any more does no harm."""
    counted.plan({"a": {"run": probes.argv("a")}})
    terminal = on_terminal(str(ASSAY), "run")
    node = probes.arrive("a")
    node.trap(SIGTERM, SIGHUP)
    node.say("to the log, not to the terminal\n")
    node.fork("child", setsid=True)
    assert node.heard_nothing()
    code = terminal.hang_up()
    assert (code, probes.living) == (129, [])
    assert " 1 cancelled" in counted.assay("show", "last").out


def test_what_must_not_be_cancelled_ends_first(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """With `cancellable = false` a cancel waits for the node, whose success is one."""
    script = f"{shlex.join(probes.argv('a'))}; echo 1 > o"
    counted.plan(
        {
            "a": {"run": script, "writes": ["o"], "cancellable": False},
            "b": {"run": "cat o", "reads": ["o"]},
        }
    )
    run = begin()
    node = probes.arrive("a")
    node.trap(SIGTERM)
    run.send(SIGTERM)
    run.told("cancel-requested")
    assert node.heard_nothing()
    node.exit(0)
    done = run.finish()
    assert done.code == 143
    assert done.outcomes == {"a": "built", "b": "cancelled"}
    assert counted.ran() == ["b"]


def test_interrupt_keeps_outputs_that_were_not_touched(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C84: an interrupted node's earlier output can be had again, and is never left empty."""
    counted.plan(
        {
            "a": {
                "run": f"if grep -q wait src; then {shlex.join(probes.argv('a'))}; fi; cat src > o",
                "reads": ["src"],
                "writes": ["o"],
            }
        }
    )
    counted.write("src", "one")
    counted.ran()
    counted.write("src", "wait")
    run = begin()
    probes.arrive("a")
    run.send(SIGINT)
    assert run.finish().code == 130
    counted.write("src", "one")
    assert counted.ran() == []
    assert counted.read("o") == "one"
    counted.write("src", "two")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "two"


def test_timeout_ends_everything_before_the_next_try(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C64, C65: a time-out ends all of a try, in whatever session, before the next begins; it
    counts as a try and is told with what the node had printed, unfinished lines too."""
    counted.plan(
        {
            "a": {
                "run": probes.argv("a"),
                "timeout": "400ms",
                "grace": "20ms",
                "retry": {"attempts": 3, "backoff": "1ms"},
                "writes": ["o"],
            }
        }
    )
    started = counted.start("run")
    for _ in range(3):
        node = probes.arrive("a")
        assert probes.living == ["a"], "an earlier try is still alive"
        node.ignore(SIGTERM)
        node.fork("child", setsid=True).ignore(SIGTERM)
        node.say("no-newline")
        node.gone()
    _, err = started.communicate()
    assert (started.returncode, probes.living) == (1, [])
    assert probes.arrivals == ["a", "child"] * 3
    assert "(attempt 3/3): timed out after 0.4s" in err
    assert "   | no-newline\n" in err


def test_timeout_alone_is_a_failure(counted: Counted, probes: Probes) -> None:
    """A node that is over its time has failed even when it exits with 0 on SIGTERM."""
    script = "trap 'exit 0' TERM; while :; do sleep 1; done"
    counted.plan({"a": {"run": script, "timeout": "200ms"}, "b": {"run": "true", "after": ["a"]}})
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"], 1)
    [failure] = [event for event in done.events if event["event"] == "attempt-failed"]
    assert (failure["end"], failure["detail"]) == ("timed-out", "timed out after 0.2s")


def test_interrupt_while_waiting_for_the_next_try(counted: Counted, begin: Begin) -> None:
    """A node that waits for its next try is cancelled, however long the pause."""
    counted.plan({"a": {"run": "exit 1", "retry": {"attempts": 2, "backoff": "1h",
                                                  "max_backoff": "1h"}}})  # fmt: skip
    run = begin()
    run.told("attempt-failed")
    run.send(SIGINT)
    done = run.finish()
    assert done.code == 130
    assert done.outcomes == {"a": "cancelled"}


def test_job_of_a_shell_is_not_stopped(
    counted: Counted, probes: Probes, on_terminal: OnTerminal
) -> None:
    """C68: started with `&` in an interactive shell whose terminal stops background output,
    a run neither reads from nor changes the terminal, and ends."""
    counted.plan({"a": {"run": probes.argv("a")}})
    shell = on_terminal("bash", "--norc", "--noprofile", "-i", env={"PS1": "$ ", "HISTFILE": ""})
    shell.type(f"stty tostop; {ASSAY} run -q & wait $!; echo ended with $?\n".encode())
    node = probes.arrive("a")
    node.exit(0)
    shown = shell.read_until("ended with 0")
    assert "Stopped" not in shown


def test_ignored_interrupt_stays_ignored(counted: Counted, probes: Probes) -> None:
    """A signal that whoever started assay ignores (`nohup`, `&` in a script) does not end it."""
    counted.plan({"a": {"run": probes.argv("a")}})
    started = subprocess.Popen(
        ["env", "--ignore-signal=INT,HUP", str(ASSAY), "run", "-q"], cwd=counted.root
    )
    node = probes.arrive("a")
    started.send_signal(SIGINT)
    started.send_signal(SIGHUP)
    node.say("still here\n")
    node.exit(0)
    assert started.wait() == 0


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
