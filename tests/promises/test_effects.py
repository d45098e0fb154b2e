"""Irreversible nodes: what crosses into the world is recorded before and after, and never
happens twice by accident."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
from pathlib import Path

import pytest
from counted import Counted
from probe import Probes
from running import Begin
from workspace import Finished

PUB = {"run": "echo out >> sent", "tier": "irreversible"}


def last_run(counted: Counted) -> str:
    runs = json.loads(counted.assay("runs", "--json").out)
    return str(runs[0]["run"])


def ways_on(done: Finished, node: str) -> str:
    """The run that an ambiguous node asks an operator about."""
    [event] = [e for e in done.events if e["event"] == "node-settled" and e["node"] == node]
    assert event["outcome"] == "ambiguous", event
    return str(event["asks"])


def test_an_effect_happens_in_every_run_that_is_asked_for_it(counted: Counted) -> None:
    """A run that completed settles its intention: the next one performs the effect again."""
    counted.plan({"pub": PUB})
    assert counted.ran() == ["pub"]
    assert counted.ran() == ["pub"]
    assert counted.read("sent") == "out\nout\n"


def test_the_intent_is_on_record_before_the_command_starts(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C95: while the command runs its effect is `intended` on disk, and the journal tells with
    which content and key."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    run = begin()
    pub = probes.arrive("pub")
    with sqlite3.connect(f"file:{counted.path('.assay/assay.db')}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT node, state FROM effects").fetchall()
    database.close()
    assert rows == [("pub", "intended")]
    pub.exit(0)
    assert run.finish().code == 0
    begun = [
        json.loads(line)
        for line in counted.assay("journal", "last", "--json").out.splitlines()
        if '"attempt-begun"' in line
    ]
    assert begun[0]["data"]["tier"] == "irreversible"
    assert len(begun[0]["data"]["content_key"]) == 64


@pytest.mark.parametrize("with_children", [True, False])
def test_a_crash_before_its_end_is_recorded_leaves_it_unknown(
    counted: Counted, probes: Probes, begin: Begin, with_children: bool
) -> None:
    """C95, C97: whoever comes next does not run it again, names the run and both ways on, and
    exits with 4; what does not depend on it goes on."""
    counted.plan(
        {
            "pub": {"run": probes.argv("pub"), "tier": "irreversible"},
            "after": {"run": "echo 1 > a", "writes": ["a"], "after": ["pub"]},
            "apart": {"run": "echo 1 > b", "writes": ["b"]},
        }
    )
    run = begin()
    pub = probes.arrive("pub")
    run.kill()
    if with_children:
        os.kill(pub.pid, signal.SIGKILL)
    else:
        pub.exit(0)
    pub.gone()
    dead = last_run(counted)

    ran, done = counted.tried()
    assert (ran, done.code) == ([], 4) or (ran, done.code) == (["apart"], 4)
    assert done.outcomes["after"] == "skipped"
    assert done.outcomes["apart"] in ("built", "clean")
    assert ways_on(done, "pub") == dead
    told = counted.assay("run")
    assert told.code == 4
    assert f"assay settle {dead} pub --done\n" in told.err
    assert f"assay settle {dead} pub --not-done\n" in told.err
    assert re.search(
        rf"Node `pub`: was started in run {dead} at \S+ \S+, then its assay was killed: its effect"
        " may or may not have happened\n",
        told.err,
    )
    assert probes.arrivals == ["pub"]


def test_the_owner_of_a_process_that_lives_on_is_awaited(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: assay dies, its node lives on: the next run waits for its end, says for which
    process, once on record too, starts nothing, and then cannot know."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    first = begin()
    pub = probes.arrive("pub")
    dead = first.told("run-started")["run"]
    first.kill()
    second = begin()
    told = second.told("warned")["text"]
    assert "still runs" in told
    assert str(pub.pid) in told
    assert pub.is_alive
    pub.exit(0)
    done = second.finish()
    assert (done.code, done.outcomes) == (4, {"pub": "ambiguous"})
    assert probes.arrivals == ["pub"]
    run = next(each["run"] for each in done.events if each["run"] is not None)
    records = counted.assay("journal", run, "--json").out.splitlines()
    waited = [told["data"] for told in map(json.loads, records) if told["kind"] == "waited"]
    assert [(each["for"], each["pids"]) for each in waited] == [(dead, [pub.pid])]


def test_waiting_for_what_a_dead_run_left_can_be_cancelled(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C74, C97: the waiter ends on Ctrl-C, with 4, the process it waits for does not."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    first = begin()
    pub = probes.arrive("pub")
    first.kill()
    second = begin()
    second.told("warned")
    second.send(signal.SIGINT)
    done = second.finish()
    assert (done.code, done.outcomes) == (4, {"pub": "cancelled"})
    assert pub.is_alive


def settle(counted: Counted, *words: str) -> None:
    done = counted.assay("settle", *words)
    assert done.code == 0, done.err


def crash(counted: Counted, probes: Probes, begin: Begin, name: str = "pub") -> str:
    """The run whose assay and node died in the middle of its effect."""
    run = begin()
    node = probes.arrive(name)
    run.kill()
    os.kill(node.pid, signal.SIGKILL)
    node.gone()
    return last_run(counted)


def test_an_operator_who_knows_that_it_happened_says_so(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """`settle --done --value` is what later runs take for the node's result, also when its
    content has changed since; the journal says who said it."""
    counted.plan(
        {
            "pub": {"run": probes.argv("pub"), "tier": "irreversible", "result": "text"},
            "use": {"run": "echo $V > v", "env": {"V": {"from": "pub"}}, "writes": ["v"]},
        }
    )
    dead = crash(counted, probes, begin)
    refused = counted.assay("settle", dead, "pub", "--done")
    assert refused.code == 2
    assert "say what it is" in refused.err
    settle(counted, dead, "pub", "--done", "--value", '"1.2.3"')
    assert counted.ran() == ["use"]
    assert counted.read("v") == "1.2.3\n"
    assert probes.arrivals == ["pub"]
    journal = counted.assay("journal", dead).out
    assert re.search(r"settled as done by .* \(pid \d+\), with the result \"1.2.3\"\n", journal)


def test_an_operator_who_knows_that_it_did_not_happen_says_so(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """`settle --not-done`: the next run performs it, once."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    dead = crash(counted, probes, begin)
    settle(counted, dead, "pub", "--not-done")
    run = begin()
    probes.arrive("pub").exit(0)
    assert run.finish().code == 0
    assert probes.arrivals == ["pub", "pub"]


def test_a_key_makes_a_repeat_safe(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C95: with an idempotency key the effect is repeated under its number, and the command
    sees the same key; with another key by now it is not."""
    node = {"run": probes.argv("pub"), "tier": "irreversible"}
    counted.plan({"pub": {**node, "idempotency_key": "release-1"}})
    crash(counted, probes, begin)
    counted.plan({"pub": {**node, "idempotency_key": "release-2"}})
    assert counted.assay("run").code == 4
    counted.plan({"pub": {**node, "idempotency_key": "release-1"}})
    run = begin()
    again = probes.arrive("pub")
    assert again.environ()["ASSAY_IDEMPOTENCY_KEY"] == "release-1"
    again.exit(0)
    assert run.finish().outcomes == {"pub": "built"}


def test_resuming_repeats_it_under_its_number(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """The try whose outcome nobody knows and its repeat have the same number."""
    counted.plan(
        {"pub": {"run": probes.argv("pub"), "tier": "irreversible", "idempotency_key": "k"}}
    )
    dead = crash(counted, probes, begin)
    with counted.start("resume", dead, "--json") as resumed:
        probes.arrive("pub").exit(0)
        assert resumed.wait() == 0
    tries = json.loads(counted.assay("show", dead, "--json").out)["attempts"]
    assert [(each["number"], each["end"]) for each in tries] == [(1, "lost"), (1, "succeeded")]


@pytest.mark.parametrize("how", ["exit", "signal", "timeout"])
def test_a_command_that_failed_may_have_done_it(counted: Counted, how: str) -> None:
    """C98: ended by itself it fails in its run, and the next one asks; `--fresh`, a plan-wide
    retry and a resume never repeat it."""
    script = {"exit": "exit 3", "signal": "kill -9 $$", "timeout": "sleep 30"}[how]
    head = '[defaults]\nretry = { attempts = 3, backoff = "0s" }\n'
    counted.plan(
        {
            "pub": {
                "run": f"echo out >> sent; {script}",
                "tier": "irreversible",
                "timeout": "1s",
                "grace": "0s",
            }
        },
        head,
    )
    ran, done = counted.tried()
    assert (ran, done.code, done.outcomes) == (["pub"], 1, {"pub": "failed"})
    for words in (["run"], ["run", "--fresh"], ["run", "pub"]):
        again = counted.assay(*words)
        assert again.code == 4, again.err
    first = json.loads(counted.assay("runs", "--json").out)[-1]["run"]
    rethrown = counted.assay("resume", first, "--json")
    assert (rethrown.code, rethrown.outcomes) == (1, {"pub": "failed"})
    retried = counted.assay("resume", first, "--json", "--retry-failed")
    assert (retried.code, retried.outcomes) == (4, {"pub": "ambiguous"})
    assert counted.read("sent") == "out\n"


def test_an_exit_code_can_say_that_nothing_happened(counted: Counted) -> None:
    """`retry.exit_codes` on an irreversible node: such an end is no effect and may be retried,
    any other end is not."""
    counted.plan(
        {
            "pub": {
                "run": "test -e tried || { touch tried; exit 75; }; echo out >> sent; exit 9",
                "tier": "irreversible",
                "retry": {"attempts": 5, "backoff": "0s", "exit_codes": [75]},
            }
        }
    )
    ran, done = counted.tried()
    assert (ran, done.code) == (["pub", "pub"], 1)
    assert counted.read("sent") == "out\n"
    assert counted.assay("run").code == 4


def test_after_an_exit_code_that_says_so_the_next_run_performs_it(counted: Counted) -> None:
    """What says that nothing happened leaves nothing to be settled."""
    retry = {"attempts": 1, "exit_codes": [75]}
    counted.plan({"pub": {"run": "exit 75", "tier": "irreversible", "retry": retry}})
    assert counted.assay("run").code == 1
    counted.plan({"pub": {"run": "echo out >> sent", "tier": "irreversible", "retry": retry}})
    assert counted.ran() == ["pub"]


def test_a_command_that_never_started_is_no_effect(counted: Counted) -> None:
    """C71: no such program, no such folder: it fails, and nobody has to settle anything."""
    counted.plan({"pub": {"run": ["no-such-program"], "tier": "irreversible"}})
    assert counted.tried()[1].code == 1
    assert counted.tried()[1].code == 1
    counted.plan({"pub": {"run": "true", "tier": "irreversible", "workdir": "nowhere"}})
    assert counted.tried()[1].code == 1
    counted.plan({"pub": PUB})
    assert counted.ran() == ["pub"]


def test_a_cancelled_effect_is_unknown(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Ctrl-C ends it as `cancelled` in its run; the next one asks."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    run = begin()
    probes.arrive("pub")
    run.send(signal.SIGINT)
    assert run.finish().outcomes == {"pub": "cancelled"}
    told = counted.assay("run")
    assert told.code == 4
    assert "was cancelled in run" in told.err
    assert (
        counted.assay("resume", json.loads(counted.assay("runs", "--json").out)[1]["run"]).code == 4
    )


def test_two_runs_at_once_have_the_effect_once(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C96: the second waits, says for whom, and settles its node by what the first did; also
    from a folder that is a link to the workspace."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible", "result": "text"}})
    counted.path("../link").symlink_to(counted.root, target_is_directory=True)
    first = begin()
    pub = probes.arrive("pub")
    second, third = begin(), begin(root=counted.path("../link"))
    for run in (second, third):
        assert run.told("waiting-for-run", "pub")["pid"] == first.pid
    result = Path(pub.environ()["ASSAY_RESULT"])
    result.write_text("v1")
    pub.exit(0)
    assert first.finish().outcomes == {"pub": "built"}
    for run in (second, third):
        done = run.finish()
        assert (done.code, done.outcomes) == (0, {"pub": "clean"})
        [event] = [e for e in done.events if e["event"] == "node-settled"]
        assert event["detail"].startswith("done meanwhile by run ")
        assert event["value"] == "v1"
    assert probes.arrivals == ["pub"]


def test_an_unfinished_run_hands_on_what_it_did(counted: Counted) -> None:
    """The next run does not repeat an effect of one that did not complete, and takes its
    value from the record; once a run completed the effect is asked for again."""
    counted.plan(
        {
            "pub": {**PUB, "run": "echo out >> sent; echo 7 > $ASSAY_RESULT", "result": "json"},
            "use": {
                "run": "test -e ok && echo $V > v",
                "env": {"V": {"from": "pub"}},
                "cache": False,
                "writes": ["v"],
            },
        }
    )
    ran, done = counted.tried()
    assert (ran, done.code) == (["pub", "use"], 1)
    first = last_run(counted)
    for words in ([], ["--fresh"]):
        ran, done = counted.tried(*words)
        assert (ran, done.code, done.outcomes["pub"]) == (["use"], 1, "clean")
        details = [e["detail"] for e in done.events if e.get("node") == "pub"]
        assert details == [f"done earlier in run {first}"]
    counted.write("ok", "")
    assert counted.ran() == ["use"]
    assert counted.read("v") == "7\n"
    assert counted.ran() == ["pub", "use"]
    assert counted.read("sent") == "out\nout\n"


def test_an_effect_stays_open_until_all_that_was_asked_for_is_done(counted: Counted) -> None:
    """A run of fewer nodes that completes does not settle the intention of a larger one."""
    counted.plan({"pub": PUB, "bad": {"run": "test -e ok", "cache": False}})
    assert counted.assay("run", "-j1").code == 1
    assert counted.ran("pub") == []
    assert counted.ran("pub") == []
    counted.write("ok", "")
    assert counted.ran() == ["bad"]
    assert counted.ran("pub") == ["pub"]


def test_an_effect_with_other_content_is_asked_about(counted: Counted) -> None:
    """Done with other inputs than now, by a run that did not complete: nobody but a person can
    say whether it is to be done again; `--new` starts over."""
    counted.write("notes", "one\n")
    pub = {**PUB, "reads": ["notes"], "run": "cat notes >> sent"}
    counted.plan({"pub": pub, "bad": {"run": "false", "cache": False}})
    assert counted.assay("run").code == 1
    first = last_run(counted)
    counted.write("notes", "two\n")
    told = counted.assay("run")
    assert told.code == 4
    assert f"was done in run {first} with other content: read changed: notes" in told.err
    assert counted.assay("run", "--dry-run").out.count("ambiguous") == 2
    settle(counted, first, "pub", "--done")
    assert counted.assay("run", "--json").outcomes["pub"] == "clean"
    assert counted.read("sent") == "one\n"
    again = counted.assay("run", "--new", "--json")
    assert again.outcomes["pub"] == "built"
    assert counted.read("sent") == "one\ntwo\n"


def test_an_effect_the_plan_no_longer_has_stops_it(counted: Counted) -> None:
    """C103: what an unfinished run did and the plan has no node for is settled first; a run of
    sealed nodes alone is not held up."""
    counted.plan({"pub": PUB, "bad": {"run": "false", "cache": False}})
    assert counted.assay("run").code == 1
    first = last_run(counted)
    counted.plan({"other": {"run": "echo 1 > o", "writes": ["o"]}})
    stopped = counted.assay("run")
    assert stopped.code == 4
    assert f"an earlier run left open: `pub` was done in run {first}" in stopped.err
    assert f"assay settle {first} pub --done" in stopped.err
    assert last_run(counted) == first
    assert counted.ran("other") == ["other"]
    settle(counted, first, "pub", "--not-done")
    assert counted.ran() == []


def test_a_source_that_moves_before_its_effect_stops_it(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """An effect is not started over inputs that changed since the run looked: exit 4."""
    counted.write("notes", "one\n")
    counted.plan(
        {
            "first": {"run": probes.argv("first"), "cache": False},
            "pub": {**PUB, "reads": ["notes"], "after": ["first"]},
        }
    )
    run = begin()
    first = probes.arrive("first")
    counted.write("notes", "two\n")
    first.exit(0)
    done = run.finish()
    assert (done.code, done.outcomes["pub"]) == (4, "ambiguous")
    assert not counted.path("sent").exists()
    [event] = [e for e in done.events if e.get("node") == "pub"]
    assert event["detail"].startswith("`notes` changed since the run began")


def test_only_a_name_selects_an_effect(counted: Counted) -> None:
    """Patterns and tags leave out effects and what needs them, and say so."""
    counted.plan(
        {
            "pub": {**PUB, "tags": ["t"]},
            "page": {"run": "true", "after": ["pub"], "tags": ["t"], "cache": False},
            "pure": {"run": "true", "tags": ["t"], "cache": False},
        }
    )
    for words in (["--tag", "t"], ["p*"]):
        done = counted.assay("run", *words)
        assert done.code == 0
        assert "left out `pub`" in done.err
        assert "left out `page`, which needs `pub`" in done.err
    assert counted.executions == ["pure", "pure"]
    refused = counted.assay("run", "pub*")
    assert refused.code == 2
    assert "No node is selected: `pub` has an effect" in refused.err
    assert counted.ran("page") == ["page", "pub"]


def test_without_a_store_no_effect_is_started(counted: Counted) -> None:
    """C90: where its effect could not be recorded it is not started; exit 5. Sealed nodes run."""
    counted.plan({"pub": PUB, "pure": {"run": "echo 1 > p", "writes": ["p"]}})
    counted.write(".assay", "a file in the way")
    ran, done = counted.tried()
    assert (ran, done.code) == (["pure"], 5)
    assert done.outcomes == {"pub": "failed", "pure": "built"}
    [event] = [e for e in done.events if e.get("node") == "pub"]
    assert "was not started" in event["detail"]


def test_what_needs_a_name_over_standard_input(counted: Counted) -> None:
    """A plan that comes by standard input is known by its name across runs."""
    plan = {
        "name": "by-pipe",
        "nodes": {
            "pub": {"run": counted.count("echo out >> sent"), "tier": "irreversible"},
            "bad": {"run": "false", "cache": False},
        },
    }
    for _ in range(2):
        assert counted.assay("run", "-", stdin=json.dumps(plan)).code == 1
    other = counted.assay("run", "-", stdin=json.dumps({**plan, "name": "other"}))
    assert other.code == 1
    assert counted.executions == ["pub", "pub"]


def test_a_database_that_is_lost_is_not_silent(counted: Counted) -> None:
    """C87: once the record of effects is gone nobody can know what was done: effects without a
    key wait for an operator, who settles them in the run that asks."""
    counted.plan({"pub": PUB, "key": {**PUB, "run": "true", "idempotency_key": "k"}})
    counted.ran()
    counted.path(".assay/assay.db").unlink()
    stopped = counted.assay("run", "--json")
    assert (stopped.code, stopped.outcomes) == (4, {"pub": "ambiguous", "key": "built"})
    asked = ways_on(stopped, "pub")
    assert counted.assay("run").code == 4
    settle(counted, asked, "pub", "--not-done")
    assert counted.ran() == ["pub"]
    assert counted.read("sent") == "out\nout\n"


def test_a_damaged_effect_record_quarantines_its_node(counted: Counted) -> None:
    """C87: a record that is not what was written is never believed: exit 4 until settled."""
    counted.plan({"pub": PUB, "bad": {"run": "false", "cache": False}})
    assert counted.assay("run").code == 1
    first = last_run(counted)
    with sqlite3.connect(counted.path(".assay/assay.db")) as database:
        database.execute("UPDATE effects SET data = replace(data, 'irreversible', 'compensable')")
    database.close()
    stopped = counted.assay("run")
    assert stopped.code == 4
    assert "its record in the store is damaged" in stopped.err
    settle(counted, first, "pub", "--done")
    assert counted.assay("run", "--json").outcomes["pub"] == "clean"
    assert counted.read("sent") == "out\n"


def test_settle_says_what_is_wrong_with_it(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Each misuse is one message with the way out, and changes nothing."""
    counted.plan(
        {"pub": {"run": probes.argv("pub"), "tier": "irreversible"}, "pure": {"run": "true"}}
    )
    run = begin()
    pub = probes.arrive("pub")
    for words, code, text in (
        (["last"], 2, "needs a run and a node"),
        (["last", "pub"], 2, "either `--done` or `--not-done`"),
        (["last", "pub", "--done", "--not-done"], 2, "either"),
        (["last", "pub", "--done"], 2, "still runs"),
        (["last", "pure", "--done"], 2, "no effect of `pure`"),
        (["nope", "pub", "--done"], 2, "there is no run"),
        (["last", "pub", "--not-done", "--value", "1"], 2, "still runs"),
    ):
        done = counted.assay("settle", *words)
        assert (done.code, text in done.err.lower()) == (code, True), (words, done.err)
    pub.exit(3)
    assert run.finish().code == 1
    for words, text in (
        (["--not-done", "--value", "1"], "goes with `--done`"),
        (["--done", "--value", "1"], "declares none"),
    ):
        done = counted.assay("settle", "last", "pub", *words)
        assert done.code == 2
        assert text in done.err
    settle(counted, "last", "pub", "--not-done")
    with counted.start("run") as again:
        probes.arrive("pub").exit(0)
        assert again.wait() == 0
    closed = counted.assay("settle", "last", "pub", "--done")
    assert closed.code == 2
    assert "any more" in closed.err


def test_a_secret_of_an_effect_stays_out_of_its_record(counted: Counted) -> None:
    """C82: what is kept of an effect, and of how to undo one, holds no secret."""
    counted.plan(
        {
            "mod": {
                "run": "echo $T > /dev/null; echo 1 > m; false",
                "writes": ["m"],
                "tier": "compensable",
                "undo": f'test -n "$T" && echo undone >> {shlex.quote(str(counted.marks))}',
                "env": {"T": {"secret": "TOKEN"}},
            }
        }
    )
    env = {"TOKEN": "s3cret-and-long"}
    assert counted.assay("run", env=env).code == 1
    assert counted.executions == ["mod", "undone"]
    for path in counted.path(".assay").rglob("*"):
        if path.is_file():
            assert b"s3cret-and-long" not in path.read_bytes(), path


def test_github_is_told_what_an_operator_must_decide(counted: Counted, tmp_path: Path) -> None:
    """An ambiguous node is an annotation at its line, and the job summary has both ways on."""
    counted.plan({"pub": {**PUB, "run": "exit 3"}})
    assert counted.assay("run").code == 1
    summary = tmp_path / "summary"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    told = counted.assay("run", env=env)
    assert told.code == 4
    assert "::error file=plan.toml,line=" in told.err
    assert "Node pub is ambiguous" in told.err
    written = summary.read_text()
    assert "--done" in written
    assert "--not-done" in written
