"""Several assay processes in one workspace at a time, side by side and one inside the other."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGSTOP
from subprocess import PIPE

import pytest
from counted import Counted
from probe import Probes
from running import HEEDING, Begin
from workspace import ASSAY, finish

pytestmark = pytest.mark.proof


def test_second_run_waits_and_finds_the_result(
    counted: Counted, probes: Probes, begin: Begin, tmp_path: Path
) -> None:
    """C96: of runs that want the same node, through whatever path to the workspace, one
    executes it; the others say whom they wait for and take the result."""
    script = f"{shlex.join(probes.argv('a'))}; echo 1 > o"
    counted.plan({"a": {"run": script, "writes": ["o"]}})
    link = tmp_path / "link"
    link.symlink_to(counted.root)
    first = begin()
    node = probes.arrive("a")
    others = [begin(), begin(root=link)]
    for other in others:
        wait = other.told("waiting-for-run", "a")
        assert wait["pid"] == first.pid
        assert wait["what"]
    node.exit(0)
    assert first.finish().code == 0
    for other in others:
        done = other.finish()
        assert (done.code, done.outcomes) == (0, {"a": "clean"})
    assert counted.executions == ["a"]


def test_waiting_run_can_be_interrupted(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C74: Ctrl-C on a run that waits for another ends that one alone."""
    counted.plan({"a": {"run": probes.argv("a"), "locks": ["l"]}})
    first = begin()
    node = probes.arrive("a")
    second = begin()
    second.told("waiting-for-run", "a")
    second.send(SIGINT)
    assert second.finish().code == 130
    assert node.is_alive
    node.exit(0)
    assert first.finish().code == 0


def test_run_whose_neighbour_fails_tries_itself(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A run that waited for a node that then failed, or whose assay died, executes it."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [{"path": "o", "optional": True}]}})
    runs = [begin()]
    nodes = [probes.arrive("a")]
    for _ in range(2):
        runs.append(begin())
        runs[-1].told("waiting-for-run", "a")
        if len(runs) == 2:
            nodes[0].exit(1)
        else:
            runs[1].kill()
        nodes.append(probes.arrive("a"))
    assert not nodes[1].is_alive, "two attempts at a time"
    nodes[2].exit(0)
    assert runs[2].finish().code == 0
    assert runs[0].finish().code == 1


def test_unrelated_nodes_do_not_wait(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Runs whose nodes share nothing but what they read go on side by side."""
    counted.write("src", "")
    for name in ("a", "b"):
        counted.plan(
            {name: {"run": probes.argv(name), "reads": ["src"], "writes": [f"{name}.out/"]}},
            file=f"{name}.toml",
        )
    runs = [begin("a.toml"), begin("b.toml")]
    nodes = [probes.arrive("a"), probes.arrive("b")]
    for node, run in zip(nodes, runs, strict=True):
        counted.path(f"{node.name}.out").mkdir()
        node.exit(0)
        assert run.finish().code == 0


def test_reader_waits_for_the_writer_of_another_run(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A node that reads what another run's node is writing does not read it half-done: its
    result is not cached under what it read before."""
    script = f"echo half > gen; {shlex.join(probes.argv('w'))}; echo whole > gen"
    counted.plan({"w": {"run": script, "writes": ["gen"]}}, file="w.toml")
    counted.plan({"r": {"run": "cat gen > o", "reads": ["gen"], "writes": ["o"]}}, file="r.toml")
    writer = begin("w.toml")
    node = probes.arrive("w")
    reader = begin("r.toml")
    reader.told("waiting-for-run", "r")
    node.exit(0)
    assert writer.finish().code == 0
    assert reader.finish().code == 0
    assert counted.read("o") == "whole\n"
    counted.write("gen", "half\n")
    counted.ran("r.toml")
    assert counted.read("o") == "half\n", "a result served for what it was not made from"


def test_formatter_waits_for_the_same_in_another_run(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A run that begins while another's formatter has half rewritten a file does not record
    the formatter's result under the half."""
    script = (
        f"cp f $TMPDIR/f; echo half > f; {shlex.join(probes.argv('fmt'))}; sed s/a/A/ $TMPDIR/f > f"
    )
    counted.plan({"fmt": {"run": script, "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "a\n")
    first = begin()
    node = probes.arrive("fmt")
    second = begin()
    second.told("waiting-for-run", "fmt")
    node.exit(0)
    assert first.finish().code == 0
    probes.arrive("fmt").exit(0)
    assert second.finish().code == 0
    assert counted.read("f") == "A\n"
    counted.write("f", "half\n")
    third = begin()
    probes.arrive("fmt").exit(0)
    assert third.finish().code == 0
    assert counted.read("f") == "hAlf\n", "a result served for what it was not made from"


def test_ten_at_once_from_nothing(counted: Counted) -> None:
    """C85: five runs of one plan, five of others, and commands that ask, all at once in a
    workspace without a store: each ends as if alone, nothing is lost, executed twice or
    damaged."""
    shared = {f"n{i}": {"run": f"echo {i} > o{i}", "writes": [f"o{i}"]} for i in range(5)}
    counted.plan({**shared, "join": {"run": "cat o? > all", "reads": ["o?"], "writes": ["all"]}})
    for i in range(5):
        node = {"run": f"echo {i} > p{i}", "writes": [f"p{i}"]}
        counted.plan({f"alone{i}": node}, file=f"plan{i}.toml")
    started = [counted.start("run", "-j2") for _ in range(5)]
    started += [counted.start("run", f"plan{i}.toml") for i in range(5)]
    asking = [counted.start(*words) for words in (["why", "join"], ["check"], ["plan"])]
    ended = [finish(each) for each in started + asking]
    assert [done.code for done in ended] == [0] * 13, "\n".join(done.err for done in ended)
    for done in ended:
        assert "locked" not in done.err
        assert "damaged" not in done.err
    assert sorted(counted.executions) == sorted([*shared, "join", *(f"alone{i}" for i in range(5))])
    assert counted.read("all") == "0\n1\n2\n3\n4\n"
    with sqlite3.connect(counted.path(".assay/assay.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall()
    database.close()
    assert rows == [("completed", 10)]


def test_busy_database_is_waited_for(counted: Counted, begin: Begin) -> None:
    """C85: while another process holds the database, a run waits; nothing is recreated."""
    counted.plan({"a": {"run": "echo 1 > o", "writes": ["o"]}})
    counted.ran()
    database = sqlite3.connect(counted.path(".assay/assay.db"), isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    run = begin("--fresh")
    interrupted = begin("--fresh")
    interrupted.send(SIGINT)
    assert interrupted.finish().code in {130, -SIGINT}
    assert run.process.poll() is None
    database.execute("ROLLBACK")
    assert run.finish().code == 0
    [(runs,)] = database.execute("SELECT count(*) FROM runs").fetchall()
    database.close()
    assert runs >= 2
    assert not counted.path(".assay/damaged").exists()


def nested(*words: str, cwd: str = ".") -> dict[str, object]:
    """A node that runs assay; its PATH finds the one under test."""
    command = shlex.join([str(ASSAY), "run", "-j1", *words])
    return {"run": f"cd {cwd}; {command}", "cache": False}


def test_assay_inside_assay(counted: Counted, tmp_path: Path) -> None:
    """C117: a node may run assay, on other nodes of its workspace and in another workspace,
    also where there is one slot only; two that run the same inner node execute it once."""
    other = Counted(tmp_path / "other", counted.marks)
    other.root.mkdir()
    other.plan({"far": {"run": "echo 1 > o", "writes": ["o"]}})
    counted.plan(
        {
            "same": nested("inner"),
            "again": nested("inner"),
            "elsewhere": nested(cwd=str(other.root)),
            "inner": {"run": "echo 1 > o", "writes": ["o"]},
        }
    )
    for words in (["-j1"], ["-j3"]):
        counted.run(*words, "same", "again", "elsewhere")
    executed = sorted(counted.executions)
    assert executed == ["again"] * 2 + ["elsewhere"] * 2 + ["far", "inner"] + ["same"] * 2


def test_node_that_runs_itself_is_an_error(counted: Counted) -> None:
    """C117: a node that runs itself, directly or by way of another, fails at once, naming the
    outer run."""
    counted.plan(
        {
            "itself": nested("itself"),
            "ping": nested("pong"),
            "pong": nested("ping"),
        }
    )
    assert counted.assay("run", "itself").code == 1
    assert counted.executions == ["itself"]
    assert "runs inside itself" in counted.assay("log", "itself").out
    assert counted.assay("run", "ping").code == 1
    assert counted.executions == ["itself", "ping", "pong"]
    assert "runs inside itself" in counted.assay("log", "pong").out


def test_inner_run_that_waits_for_its_outer_is_an_error(counted: Counted) -> None:
    """C117: an inner node that needs what the node around it holds fails at once; it would
    wait for its own end."""
    counted.plan(
        {
            "outer": {**nested("inner"), "locks": ["l"]},
            "inner": {"run": "true", "locks": ["l"]},
        }
    )
    executed, done = counted.tried("outer")
    assert (executed, done.code) == (["outer"], 1)
    told = counted.assay("log", "outer").out
    assert "cannot end before it: this run was started by `outer`" in told


def test_crosswise_inner_waits_are_an_error_for_one(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C117: two outer nodes hold a lock each and run inside what needs the other's: the one
    that closes the circle fails at once, the other goes on."""
    for name, own, wanted in (("a", "k", "l"), ("b", "l", "k")):
        run = f"{shlex.join(probes.argv(name))}; {ASSAY} run {name}.toml inner-{name}"
        counted.plan(
            {
                name: {"run": run, "locks": [own]},
                f"inner-{name}": {"run": "true", "locks": [wanted]},
            },
            file=f"{name}.toml",
        )
    runs = [begin(f"{name}.toml", name) for name in ("a", "b")]
    nodes = [probes.arrive(name) for name in ("a", "b")]
    for node in nodes:
        node.exit(0)
    codes = sorted(run.finish().code for run in runs)
    assert codes == [0, 1]


def test_an_inner_run_is_part_of_what_a_killed_assay_left(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C64, C117: an inner run does not settle the node around it, which lives on when its assay
    is gone: whoever comes next ends that before it executes the node."""
    first, second = (shlex.join(probes.argv(name)) for name in ("first", "second"))
    inner = f"{ASSAY} run inner.toml > inner.out 2>&1"
    counted.plan({"o": {"run": f"{first}; {inner}; {second}; echo old > out", "writes": ["out"]}})
    counted.plan({"i": {"run": "echo 1 > i", "writes": ["i"]}}, file="inner.toml")
    run = begin()
    probe = probes.arrive("first")
    run.kill()
    probe.exit(0)
    last = probes.arrive("second")
    assert counted.read("i") == "1\n"
    assert "although its assay is gone: this is part of it" in counted.read("inner.out")
    assert "ended what it left running" not in counted.read("inner.out")
    counted.plan({"o": {"run": "echo new > out", "writes": ["out"]}})
    after = counted.assay("run")
    assert after.code == 0
    assert "ended what it left running" in after.err
    last.gone()
    assert counted.read("out") == "new\n"


@pytest.mark.parametrize("tier", ["sealed", "irreversible"])
def test_an_inner_run_does_not_wait_for_what_a_killed_assay_left_around_it(
    counted: Counted, probes: Probes, begin: Begin, tier: str
) -> None:
    """C117: it would wait for its own end, as if the outer assay lived: an error at once, also
    for an inner `resume` of the outer run."""
    first, last = (shlex.join(probes.argv(name)) for name in ("first", "last"))
    inner = f"{ASSAY} run inner.toml > inner.out 2>&1 || echo $? > code"
    resume = f"{ASSAY} resume $ASSAY_RUN > resume.out 2>&1 || echo $? >> code"
    counted.plan(
        {"o": {"run": f"{first}; {inner}; {resume}; {last}", "locks": ["l"], "tier": tier}}
    )
    counted.plan({"i": {"run": "true", "locks": ["l"]}}, file="inner.toml")
    run = begin()
    probe = probes.arrive("first")
    run.kill()
    probe.exit(0)
    probes.arrive("last").exit(0)
    assert counted.read("code") == "1\n2\n"
    told = counted.read("inner.out")
    assert "cannot end before it: this run was started by `o`" in told
    assert "has not ended: this command is part of it" in counted.read("resume.out")


def test_crosswise_waits_for_what_killed_assays_left_are_an_error_for_one(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C117: as where the outer ones live, the one that closes the circle fails at once and the
    other goes on."""
    for name, own, wanted in (("a", "k", "l"), ("b", "l", "k")):
        first, last = shlex.join(probes.argv(name)), shlex.join(probes.argv("last"))
        inner = f"{ASSAY} run {name}.toml inner-{name} && echo 0 > code || echo $? > code"
        counted.plan(
            {
                name: {"run": f"{first}; {inner}; {last}", "locks": [own], "tier": "irreversible"},
                f"inner-{name}": {"run": "true", "locks": [wanted]},
            },
            file=f"{name}.toml",
        )
    runs = [begin(f"{name}.toml", name) for name in ("a", "b")]
    nodes = [probes.arrive(name) for name in ("a", "b")]
    for run in runs:
        run.kill()
    for node in nodes:
        node.exit(0)
    for code in ("1", "0"):
        last = probes.arrive("last")
        assert counted.read("code") == f"{code}\n"
        last.exit(0)


def test_interrupt_reaches_inner_runs(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Ctrl-C ends an inner run and its nodes with the outer one; neither is left open."""
    counted.plan({"outer": nested("inner"), "inner": {"run": probes.argv("inner")}})
    run = begin("outer")
    inner = probes.arrive("inner")
    inner.ignore(SIGINT)
    run.send(SIGINT)
    done = run.finish()
    assert done.code == 130, done.err
    assert probes.living == []
    assert counted.assay("runs").out.count("running") == 0


def test_commands_that_ask_while_a_run_is_on(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Questions are answered while a run is on, and tell of it."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    node = probes.arrive("a")
    for words in (["runs"], ["show"], ["why", "a"], ["run", "--dry-run"], ["cache", "stats"]):
        assert counted.assay(*words).code == 0, words
    assert "running" in counted.assay("show").out
    node.exit(0)
    assert run.finish().code == 0
    assert "completed" in counted.assay("show").out


def test_stopped_run_is_alive(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A stopped assay still owns its nodes: others wait for it, say how it goes on, and end
    nothing; so does one that had begun to wait before."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [{"path": "o", "optional": True}]}})
    first = begin()
    node = probes.arrive("a")
    early = begin()
    assert early.told("waiting-for-run", "a")["stopped"] is False
    subprocess.run(["kill", "-STOP", str(first.pid)], check=True)
    second = begin()
    assert second.told("waiting-for-run", "a")["stopped"] is True
    run = first.told("run-started")["run"]
    assert early.told("warned")["text"] == (
        f"run {run} (pid {first.pid}), which is waited for, is stopped: `kill -CONT {first.pid}`"
        f" lets it go on, `assay cancel {run}` before that ends it"
    )
    refused = counted.assay("resume", run)
    assert refused.code == 2
    assert f", stopped: `kill -CONT {first.pid}` lets it go on\n" in refused.err
    assert node.is_alive
    subprocess.run(["kill", "-CONT", str(first.pid)], check=True)
    node.exit(0)
    assert first.finish().code == 0
    assert early.finish().outcomes == {"a": "clean"}
    assert second.finish().outcomes == {"a": "clean"}


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_an_owner_whose_lease_file_went_is_alive(
    counted: Counted, probes: Probes, begin: Begin, how: str
) -> None:
    """C103: neither `run`, `resume` nor `cancel` takes a run from its living owner when somebody
    removed the lease file, or put another one in its place."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [{"path": "o", "optional": True}]}})
    first = begin()
    node = probes.arrive("a")
    lease = next(counted.path(".assay/tmp").glob("run-*.lease"))
    lease.unlink()
    if how == "replaced":
        lease.touch()
    second = begin()
    assert second.told("waiting-for-run", "a")["pid"] == first.pid
    refused = counted.assay("resume", lease.name[4:12])
    assert (refused.code, "is running: pid" in refused.err) == (2, True)
    assert "running" in counted.assay("show", lease.name[4:12]).out
    assert node.is_alive
    node.exit(0)
    assert first.finish().code == 0
    assert second.finish().outcomes == {"a": "clean"}


def move_elsewhere(counted: Counted) -> None:
    """The run that is on becomes one of another host, whose heart goes on beating."""
    database = sqlite3.connect(counted.root / ".assay" / "assay.db", isolation_level=None)
    database.execute("UPDATE runs SET owner_host = 'elsewhere', owner_boot = 'another'")
    database.close()


def test_an_owner_on_another_host_is_not_robbed_by_a_clock_that_is_ahead(
    counted: Counted, probes: Probes, begin: Begin, tmp_path: Path
) -> None:
    """C103: it is watched until its heart beats, which is told; then it is waited for as one of
    this host."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [{"path": "o", "optional": True}]}})
    first = begin()
    node = probes.arrive("a")
    run = first.told("node-started")["attempt"].partition("-")[0]
    move_elsewhere(counted)
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() + 120\n"
    )
    second = begin("--new", env={"PYTHONPATH": str(ahead)})
    assert second.told("warned")["text"] == (
        f"run {run} (pid {first.pid} on elsewhere) has given no sign of life of late:"
        " it counts as gone once its heartbeat is seen standing still for 30s"
    )
    waiting = second.told("waiting-for-run", "a")
    assert (waiting["for_run"], waiting["pid"]) == (run, first.pid)
    assert node.is_alive
    node.exit(0)
    assert first.finish().outcomes == {"a": "built"}
    assert second.finish().outcomes == {"a": "clean"}
    assert "run-claimed" not in counted.assay("journal", run).out


def test_waiting_for_a_sign_of_life_can_be_interrupted(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Ctrl-C ends it: nothing was begun, and the run is whose it was."""
    counted.plan({"a": {"run": probes.argv("a"), "cache": False}})
    first = begin()
    node = probes.arrive("a")
    first.send(SIGSTOP)
    move_elsewhere(counted)
    run = first.told("node-started")["run"]
    command = [*HEEDING, str(ASSAY), "resume", run]
    with subprocess.Popen(command, cwd=counted.root, stderr=PIPE, text=True) as second:
        assert second.stderr is not None
        assert second.stderr.readline() == (
            f"warning: run {run} is one of another host (pid {first.pid} on elsewhere): waiting up"
            " to 30s for a sign of life\n"
        )
        second.send_signal(SIGINT)
        _, said = second.communicate()
        assert (second.returncode, said) == (4, "interrupted while waiting: nothing was begun\n")
    first.send(SIGCONT)
    node.exit(0)
    assert first.finish().code == 0


def test_a_settlement_is_committed_while_others_run(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A node that has ended is told and recorded soon, however long the next ones take."""
    counted.plan(
        {
            "quick": {"run": "echo 1 > q", "writes": ["q"]},
            "slow": {"run": probes.argv("slow"), "after": ["quick"], "locks": ["l"]},
            "other": {"run": probes.argv("other"), "locks": ["m"]},
        }
    )
    run = begin("-j3")
    slow, other = probes.arrive("slow"), probes.arrive("other")
    run.told("node-settled", "quick")
    rows = sqlite3.connect(counted.root / ".assay" / "assay.db").execute(
        "SELECT kind, node FROM journal"
        " WHERE kind LIKE 'attempt-%' AND node <> 'other' ORDER BY seq"
    )
    # What builds on a settlement is not recorded before it.
    assert list(rows) == [
        ("attempt-begun", "quick"),
        ("attempt-settled", "quick"),
        ("attempt-begun", "slow"),
    ]
    slow.exit(0)
    run.told("node-settled", "slow")
    other.exit(0)
    assert run.finish().code == 0


def test_an_owner_that_lost_its_run_stops_by_itself(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A run that another assay has taken over ends its processes and writes nothing more."""
    counted.plan({"a": {"run": probes.argv("a"), "writes": [{"path": "o", "optional": True}]}})
    run = begin()
    node = probes.arrive("a")
    database = sqlite3.connect(counted.root / ".assay" / "assay.db", isolation_level=None)
    database.execute("UPDATE runs SET fence = fence + 1")
    records = "SELECT count(*) FROM journal WHERE kind <> 'run-abandoned'"
    before = database.execute(records).fetchone()
    done = run.finish()
    assert done.code == 5
    assert done.err == (
        f"environment: Run {done.events[0]['run']} was taken over (another process): what this"
        " process ran of it was ended, and nothing more of it was written\n"
        f"\nhint: `assay show {done.events[0]['run']}` tells how it went on\n"
    )
    assert done.events[-1]["event"] == "run-lost"
    node.gone()
    assert database.execute(records).fetchone() == before
    assert database.execute("SELECT status, fence FROM runs").fetchall() == [("running", 2)]
    database.close()
    counted.plan({"a": {"run": "true"}})
    assert counted.run().counts == {"built": 1}


def test_what_another_run_left_unfinished_meanwhile_is_cleared(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C83: a try that failed in another run after this one began is over when this one tries."""
    counted.plan(
        {
            "long": {"run": probes.argv("long"), "cache": False, "priority": 10},
            "x": {"run": "echo line >> out; test -e ok", "reads": ["in"], "writes": ["out"]},
        }
    )
    counted.write("in", "1")
    run = begin("-j1")
    node = probes.arrive("long")
    assert counted.assay("run", "x").code == 1
    counted.write("ok", "")
    node.exit(0)
    assert run.finish().outcomes["x"] == "built"
    assert counted.read("out") == "line\n"


def test_nodes_that_are_made_of_the_same_share_a_result(counted: Counted) -> None:
    """Within one run too: the second is served what the first has just made, or, when both were
    under way, is told that it differs."""
    same = {"run": "date +%s%N > $ASSAY_RESULT", "reads": ["in"], "result": "text"}
    counted.plan({"a": same, "b": same})
    counted.write("in", "1")
    assert counted.run("-j1").outcomes == {"a": "built", "b": "clean"}
    counted.write("in", "2")
    done = counted.assay("run", "--json", "-j2", "--strict")
    assert sorted(done.outcomes.values()) in (["built", "clean"], ["built", "failed"])


def test_of_two_alike_the_one_that_may_serve_is_kept(counted: Counted) -> None:
    """Both under way at once, in whichever order they end: what is never served takes no place
    from what is, and neither record is lost."""
    counted.plan({"always": {"run": "true"}, "once": {"run": "true", "cache": True}})
    for _ in range(8):
        counted.assay("cache", "clear")
        assert counted.ran("-j2") == ["always", "once"]
        assert counted.ran("-j2") == ["always"]


def test_a_retry_is_told_after_the_failure(counted: Counted, probes: Probes, begin: Begin) -> None:
    """In the order things happened, in the journal too, whatever else is running."""
    counted.plan(
        {
            "other": {"run": probes.argv("other")},
            "x": {"run": "exit 1", "retry": {"attempts": 3, "backoff": "0s"}, "writes": ["x"]},
        }
    )
    run = begin("-j2")
    node = probes.arrive("other")
    run.told("node-settled", "x")
    node.exit(0)
    done = run.finish()
    told = [
        (event["event"], event["number"])
        for event in done.events
        if event.get("node") == "x" and event["event"] in ("node-started", "attempt-failed")
    ]
    assert told == [
        (name, number) for number in (1, 2, 3) for name in ("node-started", "attempt-failed")
    ]
    kinds = [
        kind
        for (kind,) in sqlite3.connect(counted.root / ".assay" / "assay.db").execute(
            "SELECT kind FROM journal WHERE node = 'x' AND kind LIKE 'attempt-%' ORDER BY seq"
        )
    ]
    assert kinds == ["attempt-begun", "attempt-settled"] * 3
