"""`assay resume`: a run goes on with its own plan, with what it saw, and with what it did."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from counted import Counted, warnings
from probe import Probes
from running import Begin
from workspace import finish


def kill_in(counted: Counted, probes: Probes, begin: Begin, node: str, *words: str) -> str:
    """A run whose assay and whose `node` died while that ran; its id."""
    run = begin(*words)
    probe = probes.arrive(node)
    run.kill()
    os.kill(probe.pid, signal.SIGKILL)
    probe.gone()
    return str(json.loads(counted.assay("runs", "--json").out)[0]["run"])


def go_on(counted: Counted, *words: str) -> tuple[list[str], int, dict[str, str], str]:
    """`assay resume last WORDS`: what executed, exit status, outcomes, what it said."""
    before = len(counted.executions)
    done = counted.assay("resume", "last", "--json", *words)
    outcomes = done.outcomes if done.out else {}
    return sorted(counted.executions[before:]), done.code, outcomes, done.err


def test_what_was_done_is_not_done_again(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Successful attempts are replayed, cached or not, with their values; the one that was cut
    off runs once more, and the run completes under its own id."""
    counted.plan(
        {
            "value": {"run": "echo 5 > $ASSAY_RESULT", "result": "json", "cache": False},
            "copy": {"run": "cat in > out", "reads": ["in"], "writes": ["out"]},
            "cut": {"run": f"test -e ok || {shlex.join(probes.argv('cut'))}", "after": ["copy"]},
            "use": {
                "run": "echo $V > v",
                "env": {"V": {"from": "value"}},
                "writes": ["v"],
                "after": ["cut"],
            },
        }
    )
    counted.write("in", "1\n")
    run = kill_in(counted, probes, begin, "cut", "-j1")
    counted.write("ok", "")
    ran, code, outcomes, _ = go_on(counted)
    assert (ran, code) == (["cut", "use"], 0)
    assert outcomes == {"value": "clean", "copy": "clean", "cut": "built", "use": "built"}
    assert counted.read("v") == "5\n"
    shown = json.loads(counted.assay("show", run, "--json").out)
    assert (shown["status"], len(shown["nodes"])) == ("completed", 4)
    again = counted.assay("resume", run)
    assert (again.code, again.err) == (
        0,
        f"run {run} has completed: there is nothing to go on with\n",
    )


def test_the_plan_it_began_with_is_the_one_it_goes_on_with(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Editing the plan file changes no run that is under way."""
    argv = shlex.join(probes.argv("cut"))
    nodes = {
        "cut": {"run": f"test -e ok || {argv}"},
        "then": {"run": "echo old > v", "writes": ["v"], "after": ["cut"]},
    }
    counted.plan(nodes)
    kill_in(counted, probes, begin, "cut")
    counted.write("ok", "")
    counted.plan({**nodes, "then": {"run": "echo new > v", "writes": ["v"], "after": ["cut"]}})
    assert go_on(counted)[:2] == (["cut", "then"], 0)
    assert counted.read("v") == "old\n"
    assert counted.ran() == ["cut", "then"]
    assert counted.read("v") == "new\n"


def test_it_looks_at_the_world_once(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A source, or a glob's members, that changed since the run began: a node that would
    execute over it fails and says so; a new file is not seen at all; `assay run` observes
    afresh."""
    counted.write("src/a", "a\n")
    counted.plan(
        {
            "cut": {"run": f"test -e ok || {shlex.join(probes.argv('cut'))}"},
            "list": {
                "run": "ls src > l",
                "reads": ["src/*"],
                "writes": ["l"],
                "after": ["cut"],
            },
        }
    )
    kill_in(counted, probes, begin, "cut")
    counted.write("ok", "")
    counted.write("src/b", "b\n")
    counted.write("src/a", "changed\n")
    ran, code, outcomes, _ = go_on(counted)
    assert (ran, code, outcomes["list"]) == (["cut"], 1, "failed")
    details = [node["detail"] for node in _nodes(counted) if node["node"] == "list"]
    assert details == ["`src/a` changed since the run began: `assay run` observes afresh"]
    counted.write("src/a", "a\n")
    ran, code, outcomes, _ = go_on(counted)
    assert (ran, code, outcomes["list"]) == (["list"], 0, "built")
    assert counted.ran("list") == ["cut", "list"]


def _nodes(counted: Counted) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(counted.assay("show", "--json").out)["nodes"]
    return found


def test_failures_are_replayed(counted: Counted) -> None:
    """A failure is a result of its run: it is told again, not tried again, unless that is asked
    for; what it had kept from starting then runs."""
    counted.plan(
        {
            "bad": {"run": "test -e ok", "cache": False},
            "then": {"run": "echo 1 > t", "writes": ["t"], "after": ["bad"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    ran, code, outcomes, _ = go_on(counted)
    assert (ran, code, outcomes) == ([], 1, {"bad": "failed", "then": "skipped"})
    assert "failed earlier in this run" in _nodes(counted)[0]["detail"]
    ran, code, outcomes, _ = go_on(counted, "--retry-failed")
    assert (ran, code) == (["bad", "then"], 0)


def test_a_failed_compensable_node_is_replayed_too(counted: Counted) -> None:
    """It was rolled back and is not tried again unless that is asked for."""
    counted.plan({"mod": {"run": "echo 1 > m; test -e ok", "writes": ["m"], "tier": "compensable"}})
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    assert go_on(counted)[:2] == ([], 1)
    assert go_on(counted, "--retry-failed")[:2] == (["mod"], 0)


def test_other_tools_or_variables_are_refused(
    counted: Counted, probes: Probes, begin: Begin, tmp_path: Path
) -> None:
    """A run is bound to the environment of its nodes to come: what changed is named, with the
    ways on; accepted, it goes on with what is there, and the journal says so."""
    tool = tmp_path / "bin/tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho one\n")
    tool.chmod(0o755)
    env = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "MODE": "a"}
    counted.plan(
        {
            "cut": {"run": f"test -e ok || {shlex.join(probes.argv('cut'))}"},
            "use": {
                "run": "tool > t; echo $MODE >> t",
                "tools": ["tool"],
                "pass_env": ["MODE"],
                "writes": ["t"],
                "after": ["cut"],
            },
        }
    )
    run = begin(env=env)
    cut = probes.arrive("cut")
    run.kill()
    os.kill(cut.pid, signal.SIGKILL)
    cut.gone()
    counted.write("ok", "")
    tool.write_text("#!/bin/sh\necho two\n")
    refused = counted.assay("resume", "last", env={**env, "MODE": "b"})
    assert refused.code == 4
    assert "tool tool: was " in refused.err
    assert "env MODE: was `a`, is `b`" in refused.err
    assert "--accept-environment" in refused.err
    assert json.loads(counted.assay("runs", "--json").out)[0]["status"] == "interrupted"
    accepted = counted.assay("resume", "last", "--accept-environment", env={**env, "MODE": "b"})
    assert accepted.code == 0, accepted.err
    assert counted.read("t") == "two\nb\n"
    assert "accepted that env MODE was `a` and is `b`" in counted.assay("journal", "last").out


def test_what_only_settled_nodes_used_may_change(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """The environment of nodes that are done plays no part any more."""
    counted.plan(
        {
            "first": {"run": "echo $MODE > f", "pass_env": ["MODE"], "writes": ["f"]},
            "cut": {
                "run": f"test -e ok || {shlex.join(probes.argv('cut'))}",
                "after": ["first"],
            },
        }
    )
    run = begin(env={"MODE": "a"})
    cut = probes.arrive("cut")
    run.kill()
    os.kill(cut.pid, signal.SIGKILL)
    cut.gone()
    counted.write("ok", "")
    before = len(counted.executions)
    done = counted.assay("resume", "last", env={"MODE": "b"})
    assert done.code == 0, done.err
    assert counted.executions[before:] == ["cut"]
    assert counted.read("f") == "a\n"


def test_a_living_owner_is_never_robbed(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C103: resuming a run that is on, or stopped, is refused with whose it is; the journal
    tells of it once, however often it was tried."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    probe = probes.arrive("a")
    for stop in (False, True, True):
        if stop:
            run.send(signal.SIGSTOP)
        done = counted.assay("resume", "last")
        assert done.code == 2
        assert f"is running: pid {run.pid}" in done.err
        assert "assay cancel" in done.err
    run.send(signal.SIGCONT)
    probe.exit(0)
    assert run.finish().code == 0
    assert counted.assay("journal", "last").out.count("was refused: its owner lives") == 1


def test_of_many_who_resume_one_does(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C103: recovery started many times over continues the run once: each node at most once,
    and everybody else is told who goes on."""
    counted.plan(
        {
            "cut": {"run": f"test -e ok || {shlex.join(probes.argv('cut'))}"},
            "hold": {"run": probes.argv("hold"), "after": ["cut"]},
        }
    )
    kill_in(counted, probes, begin, "cut")
    counted.write("ok", "")
    before = len(counted.executions)
    started = [counted.start("resume", "last") for _ in range(8)]
    hold = probes.arrive("hold")
    with ThreadPoolExecutor(8) as pool:
        ends = as_completed([pool.submit(finish, each) for each in started])
        assert [next(ends).result().code for _ in range(7)] == [2] * 7
        hold.exit(0)
        assert next(ends).result().code == 0
    assert counted.executions[before:] == ["cut"]
    assert probes.arrivals == ["cut", "hold"]


def test_a_run_that_expanded_goes_on_with_its_instances(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A template that had expanded keeps its instances; those that are done are not done again."""
    counted.plan(
        {
            "make": {"run": "mkdir -p d; echo a > d/a; echo b > d/b", "writes": ["d/"]},
            "each": {
                "foreach": "d/*",
                "run": "cat {{each}} > o-{{each.stem}}",
                "reads": ["{{each}}"],
                "writes": ["o-{{each.stem}}"],
            },
            "cut": {
                "run": f"test -e ok || {shlex.join(probes.argv('cut'))}",
                "after": ["each"],
            },
            "all": {"run": "cat o-* > all", "reads": ["o-*"], "writes": ["all"], "after": ["cut"]},
        }
    )
    kill_in(counted, probes, begin, "cut", "-j1")
    counted.write("ok", "")
    ran, code, outcomes, _ = go_on(counted)
    assert (ran, code) == (["all", "cut"], 0)
    assert outcomes["each[d/a]"] == outcomes["each"] == "clean"
    assert counted.read("all") == "a\nb\n"


def test_killed_before_it_expands(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A template that had not expanded yet does so when the run goes on."""
    counted.plan(
        {
            "make": {
                "run": f"mkdir -p d; echo a > d/a; test -e ok || {shlex.join(probes.argv('make'))}",
                "writes": ["d/"],
            },
            "each": {
                "foreach": "d/*",
                "run": "cat {{each}} > o",
                "reads": ["{{each}}"],
                "writes": ["o"],
            },
        }
    )
    kill_in(counted, probes, begin, "make")
    counted.write("ok", "")
    ran, code, _, _ = go_on(counted)
    assert (ran, code) == (["each[d/a]", "make"], 0)


def test_run_resume_takes_the_last_unfinished_run(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """`run --resume`: the newest run that was asked for the same and did not complete, else a
    new one; never one that is on."""
    counted.plan({"a": {"run": f"test -e ok || {shlex.join(probes.argv('a'))}"}})
    dead = kill_in(counted, probes, begin, "a")
    counted.write("ok", "")
    first = counted.assay("run", "--resume", "--json")
    assert (first.code, first.events[0]["run"], first.events[0]["resumed"]) == (0, dead, True)
    second = counted.assay("run", "--resume", "--json")
    assert second.code == 0
    assert second.events[0]["run"] != dead
    both = counted.assay("run", "--resume", "--new")
    assert both.code == 2
    other = counted.assay("run", "--resume", "--json", "a")
    assert other.events[0]["resumed"] is False


def test_a_cancelled_run_goes_on(counted: Counted, probes: Probes, begin: Begin) -> None:
    """What a cancel kept from starting is done when the run is gone on with."""
    counted.plan(
        {
            "a": {"run": f"test -e ok || {shlex.join(probes.argv('a'))}"},
            "b": {"run": "echo 1 > b", "writes": ["b"], "after": ["a"]},
        }
    )
    run = begin()
    probes.arrive("a")
    run.send(signal.SIGINT)
    assert run.finish().code == 130
    counted.write("ok", "")
    assert go_on(counted)[:2] == (["a", "b"], 0)


def test_options_of_the_run_are_kept(counted: Counted) -> None:
    """Targets, tags, params and `--fail-fast` are those the run was begun with."""
    counted.plan(
        {
            "a": {
                "run": "test -e ok && echo {{params.x}} > a",
                "tags": ["t"],
                "cache": False,
                "writes": ["a"],
            },
            "other": {"run": "true"},
        },
        '[params]\nx = "1"\n',
    )
    assert counted.assay("run", "--tag", "t", "-p", "x=7", "--fail-fast").code == 1
    counted.write("ok", "")
    ran, code, _, _ = go_on(counted, "--retry-failed")
    assert (ran, code) == (["a"], 0)
    assert counted.read("a") == "7\n"
    journal = counted.assay("journal", "last").out
    assert "it was failed; with --fail-fast --retry-failed\n" in journal


def test_a_plan_that_is_not_kept_any_more(counted: Counted) -> None:
    """A stored plan that is damaged, or gone, is one message with the way out."""
    counted.plan({"a": {"run": "false"}})
    assert counted.assay("run").code == 1
    database = counted.path(".assay/assay.db")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE plans SET data = x'00'")
    connection.close()
    done = counted.assay("resume", "last")
    assert done.code == 5
    assert "does not start as a plan does" in done.err
    assert "`assay run` begins a new run" in done.err


def test_a_run_whose_beginning_is_lost(counted: Counted) -> None:
    """Without the record of what was asked of it a run is not gone on with: that could be more."""
    counted.plan({"a": {"run": "false"}})
    assert counted.assay("run").code == 1
    with sqlite3.connect(counted.path(".assay/assay.db")) as connection:
        connection.execute("DELETE FROM journal WHERE kind = 'run-created'")
    connection.close()
    done = counted.assay("resume", "last")
    assert done.code == 5
    assert "its first record is not in the journal" in done.err


@pytest.mark.parametrize("words", [["nope"], []])
def test_resume_says_what_is_wrong_with_it(counted: Counted, words: list[str]) -> None:
    """No such run, or none named: a message and exit 2."""
    counted.plan({"a": {"run": "true"}})
    counted.ran()
    assert counted.assay("resume", *words).code == 2


def test_a_restored_output_is_made_again_where_it_is_lost(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What a done node wrote and somebody removed since is put back before others read it."""
    counted.plan(
        {
            "make": {"run": "echo 1 > m", "writes": ["m"]},
            "cut": {"run": f"test -e ok || {shlex.join(probes.argv('cut'))}", "after": ["make"]},
            "use": {"run": "cat m > u", "reads": ["m"], "writes": ["u"], "after": ["cut"]},
        }
    )
    kill_in(counted, probes, begin, "cut")
    counted.write("ok", "")
    counted.path("m").unlink()
    ran, code, _, _ = go_on(counted)
    assert (ran, code) == (["cut", "use"], 0)
    assert counted.read("u") == "1\n"


def test_what_it_did_is_told(counted: Counted, probes: Probes, begin: Begin) -> None:
    """The journal of a run that was gone on with tells who owned it when, and `show` how its
    nodes stand now."""
    counted.plan({"a": {"run": f"test -e ok || {shlex.join(probes.argv('a'))}"}})
    run = kill_in(counted, probes, begin, "a")
    counted.write("ok", "")
    done = counted.assay("resume", run, "--json")
    assert done.code == 0
    assert f"run {run} was interrupted" in done.err
    assert warnings(done) == ""
    kinds = [
        json.loads(line)["kind"]
        for line in counted.assay("journal", run, "--json").out.splitlines()
    ]
    assert kinds.count("run-created") == kinds.count("run-resumed") == 1
    assert kinds.count("run-settled") == 2


def test_a_run_asked_for_afresh_goes_on_afresh(counted: Counted) -> None:
    """`--fresh` holds for what is still to come; what the run has done is not done again."""
    counted.plan(
        {
            "a": {"run": "echo a > a", "writes": ["a"], "cache": True},
            "b": {"run": "test -e ok && echo b > b", "writes": ["b"], "after": ["a"]},
            "c": {"run": "echo c > c", "writes": ["c"], "after": ["b"]},
        }
    )
    counted.write("ok", "")
    assert counted.ran() == ["a", "b", "c"]
    counted.path("ok").unlink()
    assert counted.assay("run", "--fresh").code == 1
    counted.write("ok", "")
    ran, code, _, _ = go_on(counted, "--retry-failed")
    assert (ran, code) == (["b", "c"], 0)


def test_nodes_without_a_command_are_bound_to_nothing(counted: Counted) -> None:
    """A run whose only nodes to come are groups and templates is not told that the machine has
    changed."""
    counted.write("list", "")
    counted.plan(
        {
            "split": {
                "run": "mkdir -p parts; for i in $(cat list); do echo $i > parts/$i; done; test $X",
                "reads": ["list"],
                "writes": ["parts/"],
                "pass_env": ["X"],
            },
            "send": {"foreach": "parts/*", "run": "exit 1", "reads": ["{{each}}"]},
            "all": {"after": ["send"]},
        }
    )
    counted.write("list", "a")
    assert counted.assay("run", env={"X": "1", "LANG": "C"}).code == 1
    done = counted.assay("resume", "last", env={"X": "1", "LANG": "C"})
    assert done.code == 1, done.err
    assert "has changed" not in done.err
