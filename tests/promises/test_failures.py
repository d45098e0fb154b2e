"""What happens around work that fails: who still runs, what is told, tried again, and kept."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from typing import Any

import pytest
from counted import Counted, warnings
from probe import Probes
from running import Begin
from workspace import Finished


def settled(done: Finished, node: str) -> dict[str, Any]:
    """The event that told how a node settled."""
    [event] = [e for e in done.events if e["event"] == "node-settled" and e["node"] == node]
    return event


def failures(done: Finished) -> list[dict[str, Any]]:
    """The events of attempts that failed."""
    return [event for event in done.events if event["event"] == "attempt-failed"]


@pytest.mark.parametrize("jobs", ["1", "8"])
@pytest.mark.parametrize("mode", [[], ["--fail-fast"]])
def test_nothing_runs_on_a_failed_diamond(counted: Counted, jobs: str, mode: list[str]) -> None:
    """C39: what fails executes once, and nothing that needs it, by whatever way, executes."""
    counted.plan(
        {
            "g": {"run": "exit 1"},
            "p": {"run": "true", "after": ["g"]},
            "q": {"run": "true", "after": ["g"]},
            "r": {"run": "true", "after": ["p", "q"]},
        }
    )
    executed, done = counted.tried("-j", jobs, *mode)
    assert (executed, done.code) == (["g"], 1)
    assert done.named("skipped") == {"p", "q", "r"}
    assert all("`g`" in settled(done, name)["detail"] for name in "pqr")
    assert done.events[-1]["status"] == "failed"


@pytest.mark.parametrize("order", list(itertools.permutations(["bad", "good", "worse"])))
def test_every_failure_is_named_at_the_end(
    counted: Counted, probes: Probes, order: tuple[str, ...]
) -> None:
    """C41: whichever node ends last, the run has failed, and the last lines name each failed
    node with its code."""
    counted.plan({name: {"run": probes.argv(name)} for name in ("bad", "good", "worse")})
    started = counted.start("run", "-j", "3")
    codes = {"bad": 3, "good": 0, "worse": 4}
    nodes = {name: probes.arrive(name) for name in codes}
    for name in order:
        nodes[name].exit(codes[name])
        nodes[name].gone()
    _, err = started.communicate()
    assert started.returncode == 1
    end = err[err.rindex("\n\n") :] if "\n\n" in err else err
    assert re.search("Node `bad` exited with code 3 ", end)
    assert re.search("Node `worse` exited with code 4 ", end)
    assert "1 built, 2 failed in " in err.splitlines()[-1]


def test_fail_fast_lets_running_nodes_end(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C42: after a failure nothing new starts, what runs may end, and its result is kept."""
    counted.plan(
        {
            "bad": {"run": probes.argv("bad")},
            "slow": {"run": shlex.join(probes.argv("slow")) + "; echo 1 > o", "writes": ["o"]},
            "later": {"run": "true", "after": ["slow"]},
            "waiting": {"run": "true", "resources": {"r": 1}},
        },
        "[resources]\nr = 1",
        tail="[nodes.first]\nrun = 'true'\nafter = ['bad']\nwhen = 'failure'",
    )
    run = begin("--fail-fast", "-j2")
    slow, bad = probes.arrive("slow"), probes.arrive("bad")
    bad.exit(1)
    run.told("node-settled", "bad")
    slow.exit(0)
    done = run.finish()
    assert done.code == 1
    assert done.outcomes == {
        "bad": "failed",
        "slow": "built",
        "later": "skipped",
        "waiting": "skipped",
        "first": "built",
    }
    assert settled(done, "later")["detail"] == "not started: `bad` failed"
    assert counted.executions == ["slow"]
    assert counted.run("slow").named("clean") == {"slow"}


def test_without_fail_fast_other_work_goes_on(counted: Counted) -> None:
    """Unrelated work goes on after a failure, and the run is partial."""
    counted.plan(
        {
            "bad": {"run": "exit 1"},
            "good": {"run": "true"},
            "more": {"run": "true", "after": ["good"]},
            "user": {"run": "true", "after": ["bad", "more"]},
        }
    )
    executed, done = counted.tried("-j1")
    assert (executed, done.code) == (["bad", "good", "more"], 1)
    assert done.events[-1]["status"] == "failed", "its only sink was not reached"
    executed, done = counted.tried("-j1", "bad", "more")
    assert (done.code, done.events[-1]["status"]) == (1, "partial")


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [("o", "./o", "o"), ("d/", "d/x", "d/x"), ("d/**", "d/e/*", "d/e"), ("a/../o", "o", "o")],
)
def test_two_owners_of_a_path_are_refused(
    counted: Counted, first: str, second: str, path: str
) -> None:
    """C43: overlapping writes are an error of the plan that names both nodes and the path."""
    counted.plan(
        {"one": {"run": "true", "writes": [first]}},
        tail=f'[nodes.two]\nrun = "true"\nwrites = ["{second}"]',
    )
    executed, done = counted.tried()
    assert (executed, done.code) == ([], 2)
    assert "`one`" in done.err
    assert "`two`" in done.err
    assert path in done.err
    assert not counted.path(".assay").exists()


@pytest.mark.parametrize(
    ("script", "writes", "told"),
    [
        ("echo 1 > x", ["x", "y"], "`y`"),
        ("echo 1 > x; mkdir y", ["x", "y"], "`y`"),
        ("true", ["d/*"], "`d/*`"),
        ("true", ["d/"], "`d/`"),
    ],
)
def test_success_without_the_declared_outputs_fails(
    counted: Counted, script: str, writes: list[str], told: str
) -> None:
    """C45: exit 0 without what was declared is a failure that names it; nothing is recorded,
    dependents do not run, and the next run executes it again."""
    counted.plan({"a": {"run": script, "writes": writes}, "b": {"run": "true", "after": ["a"]}})
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == (["a"], 1)
        assert told in settled(done, "a")["detail"]
        assert settled(done, "a")["exit_code"] == 0
    assert counted.blobs() == []


@pytest.mark.parametrize("stale", [False, True])
def test_readers_wait_for_the_writer(counted: Counted, stale: bool) -> None:
    """C48: who reads what another node writes waits for it, also over an old version."""
    counted.plan(
        {
            "c": {"run": "cat gen > o", "reads": ["gen"], "writes": ["o"]},
            "p": {"run": "echo new > gen", "writes": ["gen"]},
        }
    )
    if stale:
        counted.write("gen", "old\n")
    assert counted.ran("-j4") == ["c", "p"]
    assert counted.read("o") == "new\n"


@pytest.mark.parametrize(
    ("keys", "words", "told"),
    [
        ({"reads": ["sorce.txt"]}, [], "sorce.txt"),
        ({"after": ["nosuch"]}, [], "nosuch"),
        ({"reads": ["folder"]}, [], "folder/"),
        ({}, ["nosuch"], "nosuch"),
        ({"after": ["a"]}, [], "a -> a"),
        ({"after": ["b"]}, [], "a -> b -> a"),
        ({"after": ["b"]}, ["other"], "a -> b -> a"),
        ({"reads": ["from-b"]}, [], "a -> b -> a"),
        ({"env": {"V": {"from": "b"}}, "result": "text"}, [], "a -> b -> a"),
    ],
)
def test_impossible_plans_execute_nothing(
    counted: Counted, keys: dict[str, object], words: list[str], told: str
) -> None:
    """C49, C50: what nobody writes, nobody is called, or waits for itself is an error before
    anything is executed or created."""
    counted.write("folder/source.txt", "")
    of_b = {"after": ["a"], "result": "text"} if "reads" not in keys else {"reads": ["from-a"]}
    counted.plan(
        {
            "other": {"run": "true"},
            "a": {"run": "true", "writes": ["from-a"], **keys},
            "b": {"run": "true", "writes": ["from-b"], **of_b},
        }
    )
    executed, done = counted.tried(*words)
    assert (executed, done.code) == ([], 2)
    assert told in done.err
    assert not counted.path(".assay").exists()


def test_order_in_the_file_means_nothing(counted: Counted) -> None:
    """C53: the same nodes in any order are the same work: executed once, then clean."""
    nodes = {
        "a": {"run": "echo 1 > a", "writes": ["a"]},
        "b": {"run": "cat a > b", "reads": ["a"], "writes": ["b"]},
        "c": {"run": "cat a > c", "reads": ["a"], "writes": ["c"]},
        "d": {"run": "cat b c > d", "reads": ["b", "c"], "writes": ["d"]},
    }
    orders = list(itertools.permutations(nodes.items()))
    for order in orders[::5]:
        counted.plan(dict(order))
        counted.ran()
    assert sorted(counted.executions) == ["a", "b", "c", "d"]


def test_evidence_of_a_failure_is_kept(counted: Counted) -> None:
    """C54: what a failed node printed can be read later, and what it left half-done goes to
    the trash, named, when it is tried again."""
    counted.plan(
        {"a": {"run": "mkdir d; echo why > d/log; echo why2 >&2; exit 1", "writes": ["d/"]}}
    )
    counted.tried()
    executed, done = counted.tried()
    assert executed == ["a"]
    assert "d/log" in warnings(done)
    assert counted.trash() == {"d/log": "why\n"}
    assert counted.assay("log", "a").out == "why2\n"


def test_retries_with_backoff(counted: Counted, tmp_path: Any) -> None:
    """A node that fails is tried again, after pauses that grow up to a bound, until it
    succeeds; that is a success like any other."""
    counted.plan(
        {
            "a": {
                "run": f"echo >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 4",
                "retry": {"attempts": 5, "backoff": "10ms", "factor": 2, "max_backoff": "25ms"},
            }
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"] * 4, 0)
    assert [event["retry_in_ms"] for event in failures(done)] == [10, 20, 25]
    assert [event["number"] for event in failures(done)] == [1, 2, 3]
    assert settled(done, "a")["attempts"] == 4


@pytest.mark.parametrize(("code", "tries"), [(75, 3), (1, 1)], ids=["listed code", "other code"])
def test_retry_by_exit_code(counted: Counted, code: int, tries: int) -> None:
    """With `exit_codes` only those are tried again; the last failure is final."""
    retry = {"attempts": 3, "backoff": "1ms", "exit_codes": [75]}
    counted.plan({"a": {"run": f"exit {code}", "retry": retry}, "b": {"run": "true"}})
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"] * tries + ["b"], 1)
    assert settled(done, "a")["exit_code"] == code
    assert [event["retry_in_ms"] is None for event in failures(done)][-1]


def test_failed_formatter_gives_its_input_back_before_the_next_try(counted: Counted) -> None:
    """A try that half rewrote its input does not spoil the next one."""
    counted.plan(
        {
            "fmt": {
                "run": "cat f >> $HOME/seen; echo half > f; test $(wc -l < $HOME/seen) -ge 2;"
                " echo good > f",
                "reads": ["f"],
                "writes": ["f"],
                "retry": {"attempts": 2, "backoff": "1ms"},
            }
        }
    )
    counted.write("f", "source\n")
    home = counted.marks.parent / "home"
    home.mkdir()
    assert counted.ran(env={"HOME": str(home)}) == ["fmt", "fmt"]
    assert (home / "seen").read_text() == "source\nsource\n"
    assert counted.read("f") == "good\n"


def test_reasons_for_not_starting(counted: Counted) -> None:
    """C71: a missing program, folder or interpreter, each in one sentence with the right
    path and the usual code, at once and not tried again; other nodes go on."""
    counted.write("plain.sh", "#!/bin/sh\n")
    for name, text in (("no-line", "true\n"), ("no-interpreter", "#!/nowhere/sh\n")):
        os.chmod(counted.write(name, text), 0o755)
    counted.write("folder/x", "")
    nodes: dict[str, dict[str, object]] = {
        "no-workdir": {"run": ["true"], "workdir": "nowhere"},
        "workdir-is-file": {"run": ["true"], "workdir": "plain.sh"},
        "no-program": {"run": ["no-such-program"]},
        "program-is-folder": {"run": ["/usr/bin"]},
        "not-executable": {"run": ["./plain.sh"]},
        "no-line": {"run": ["./no-line"]},
        "no-interpreter": {"run": ["./no-interpreter"]},
    }
    retry = {"attempts": 3, "backoff": "1ms"}
    counted.plan(
        {
            **{name: {**keys, "retry": retry} for name, keys in nodes.items()},
            "fine": {"run": "true"},
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["fine"], 1)
    assert done.named("failed") == set(nodes)
    assert "Traceback" not in done.err
    details = {name: settled(done, name)["detail"] for name in nodes}
    assert len(set(details.values())) == len(nodes), details
    assert "nowhere" in details["no-workdir"]
    assert "plain.sh" in details["workdir-is-file"]
    assert "no-such-program" in details["no-program"]
    assert "/nowhere/sh" in details["no-interpreter"]
    assert {settled(done, name)["attempts"] for name in nodes} <= {0, 1}
