"""Many processes on one `.assay/` that has effects, and owners that fight for one run."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counted import Counted
from probe import Probes
from running import Begin
from sweep import SWEEP_ALL
from workspace import ASSAY, Workspace, finish

pytestmark = pytest.mark.proof

PLAN = """\
[nodes.mod]
run = "sleep 0.05; echo $ASSAY_ATTEMPT >> text"
reads = ["text"]
writes = ["text"]
tier = "compensable"

[nodes.sent]
run = "echo $ASSAY_RUN >> sent; sleep 0.05"
after = ["mod"]
tier = "irreversible"

[nodes.copy]
run = "cat text > copied"
reads = ["text"]
writes = ["copied"]
after = ["sent"]
"""

ACTIONS = (
    ("run",),
    ("run", "--json"),
    ("run", "--resume"),
    ("run", "sent"),
    ("resume", "last"),
    ("cancel", "last"),
    ("runs",),
    ("show",),
    ("journal",),
    ("run", "--dry-run"),
    ("cache", "gc", "--max-age", "0s"),
)


def act(workspace: Workspace, chance: random.Random) -> tuple[tuple[str, ...], int, str]:
    words = chance.choice(ACTIONS)
    with subprocess.Popen(
        [str(ASSAY), *words],
        cwd=workspace.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        if words[0] in ("run", "resume") and chance.random() < 0.3:
            # Nothing is waited for: wherever it is by then, it is to be disturbed there.
            time.sleep(chance.uniform(0.1, 0.5))
            started.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0, 0.2))
            started.send_signal(signal.SIGKILL if chance.random() < 0.5 else signal.SIGCONT)
        _, err = started.communicate()
        return words, started.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20 if SWEEP_ALL else 2))
def test_twenty_processes_repeat_no_effect(tmp_path: Path, seed: int) -> None:
    """C85, C96, C103: runs, resumes, cancels, crashes and collections at once: an effect happens
    at most once in a run and once for each that completed, and what stands in a rewritten file
    is what stands in the journal."""
    workspace = Workspace(tmp_path / "w")
    workspace.root.mkdir()
    workspace.write("plan.toml", PLAN)
    workspace.write("text", "base\n")

    def several(number: int) -> list[tuple[tuple[str, ...], int, str]]:
        chance = random.Random(f"{seed} {number}")
        return [act(workspace, chance) for _ in range(3)]

    with ThreadPoolExecutor(20) as pool:
        told = [each for acts in pool.map(several, range(20)) for each in acts]
    for words, code, err in told:
        assert "Traceback" not in err, (words, err)
        assert code in (0, 1, 2, 4, 143, -signal.SIGKILL), (words, code, err)

    for _ in range(50):
        done = workspace.assay("run", "--json")
        assert "Traceback" not in done.err
        asked = [e for e in done.events if e["event"] == "node-settled" and e["asks"]]
        if done.code != 4:
            break
        sent = workspace.read("sent").splitlines() if workspace.path("sent").exists() else []
        for event in asked:
            truth = "--done" if event["asks"] in sent else "--not-done"
            said = workspace.assay("settle", event["asks"], event["node"], truth)
            assert said.code == 0, said.err
    assert done.code == 0, done.out + done.err

    runs = json.loads(workspace.assay("runs", "--json", "-n", "1000").out)
    assert {each["status"] for each in runs} <= {
        "completed",
        "failed",
        "partial",
        "cancelled",
        "interrupted",
    }
    completed = [each["run"] for each in runs if each["status"] == "completed"]
    sent = workspace.read("sent").splitlines()
    assert len(set(sent)) == len(sent), sent
    assert 1 <= len(sent) <= len(completed), (sent, completed)
    standing: list[str] = []
    for line in workspace.assay("journal", "--json").out.splitlines():
        record = json.loads(line)
        data = record["data"]
        if record["node"] == "mod" and record["kind"] == "attempt-settled":
            standing += [data["attempt"]] if data.get("effect") == "succeeded" else []
        if record["node"] == "mod" and record["kind"] == "rolled-back":
            standing = [each for each in standing if each != data["attempt"]]
    assert workspace.read("text").splitlines() == ["base", *standing]


def take_lease_away(counted: Counted, run: str) -> None:
    """As an owner whose lease has run out looks to others: it holds nothing they can see, and what
    has its pid is another process."""
    counted.path(f".assay/tmp/run-{run}.lease").unlink()
    database = sqlite3.connect(counted.root / ".assay" / "assay.db", isolation_level=None)
    database.execute("UPDATE runs SET owner_pid_start = 1 WHERE id = ?", (run,))
    database.close()


def last_run(counted: Counted) -> str:
    return str(json.loads(counted.assay("runs", "--json").out)[0]["run"])


def test_an_owner_that_lost_its_run_writes_nothing_more(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Two owners: the first is stopped past its lease, a second takes the run over and completes
    it; continued, the first ends its processes, writes nothing and says so."""
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "cache": False},
            "b": {"run": "echo 1 >> b", "writes": ["b"], "after": ["a"], "cache": False},
        }
    )
    first = begin()
    old = probes.arrive("a")
    run = last_run(counted)
    first.send(signal.SIGSTOP)
    take_lease_away(counted, run)
    with counted.start("resume", run, "--json") as second:
        new = probes.arrive("a")
        old.gone()
        first.send(signal.SIGCONT)
        lost = first.finish()
        assert lost.code == 5
        assert f"Run {run} was taken over (pid {second.pid} on {os.uname().nodename}, " in lost.err
        last = lost.events[-1]
        assert (last["event"], last["run"], last["pid"]) == ("run-lost", run, second.pid)
        assert new.is_alive
        new.exit(0)
        done = finish(second)
    assert (done.code, done.outcomes) == (0, {"a": "built", "b": "built"})
    assert counted.read("b") == "1\n"
    shown = json.loads(counted.assay("show", run, "--json").out)
    assert shown["status"] == "completed"
    owners = [(each["pid"], each["purpose"], each["ended"]) for each in shown["owners"]]
    assert owners == [
        (first.pid, "run", "counted as gone: pid gone; it has stopped since"),
        (second.pid, "recovery", "interrupted"),
        (second.pid, "resume", "completed"),
    ]
    assert [each["end"] for each in shown["attempts"]] == ["lost", "succeeded", "succeeded"]


def test_the_effect_of_an_owner_that_lost_its_run_is_awaited(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """An effect under way is not cut off by who takes the run over: it is awaited, and the run
    stays the first owner's, who goes on once it is continued."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    first = begin()
    pub = probes.arrive("pub")
    run = last_run(counted)
    first.send(signal.SIGSTOP)
    take_lease_away(counted, run)
    with counted.start("resume", run) as second:
        assert second.stderr is not None
        assert f"still runs (pid {pub.pid})" in second.stderr.readline()
        assert pub.is_alive
        first.send(signal.SIGCONT)
        pub.exit(0)
        assert first.finish().code == 0
        done = finish(second)
    records = counted.assay("journal", run, "--json").out.splitlines()
    waited = [told["data"] for told in map(json.loads, records) if told["kind"] == "waited"]
    assert [(each["for"], each["pids"]) for each in waited] == [(run, [pub.pid])]
    assert done.code == 0
    assert done.err.endswith(f"run {run} has completed: there is nothing to go on with\n")
    assert probes.arrivals == ["pub"]


def test_an_effect_that_ends_while_its_owner_is_stopped_is_unknown(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C95: the command ended, its owner could not say so in time: whoever takes over cannot know
    and asks; the first owner, continued, writes nothing."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    first = begin()
    pub = probes.arrive("pub")
    run = last_run(counted)
    first.send(signal.SIGSTOP)
    take_lease_away(counted, run)
    pub.exit(0)
    pub.gone()
    second = counted.assay("resume", run, "--json")
    assert (second.code, second.outcomes) == (4, {"pub": "ambiguous"})
    first.send(signal.SIGCONT)
    lost = first.finish()
    assert lost.code == 5
    assert counted.assay("settle", run, "pub", "--done").code == 0
    resumed = counted.assay("resume", run, "--json")
    assert (resumed.code, resumed.outcomes) == (0, {"pub": "clean"})
    assert probes.arrivals == ["pub"]
