"""What a node's processes get from assay and what becomes of those it leaves behind."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest
from counted import Counted, warnings
from probe import Probes
from running import Begin
from terminal import OnTerminal
from workspace import ASSAY


def test_process_left_behind_does_not_hold_the_node_up(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C62: a background process that keeps the output open is ended with its node, whose
    success stands; the log is complete, what follows runs, and the run says so."""
    counted.plan({"a": {"run": probes.argv("a")}, "b": {"run": "true", "after": ["a"]}})
    run = begin()
    node = probes.arrive("a")
    server = node.fork("server", setsid=True)
    server.say("listening\n")
    node.say("done\n")
    node.exit(0)
    server.gone()
    done = run.finish()
    assert (done.code, done.named("built")) == (0, {"a", "b"})
    assert "ended 1 process it left behind" in warnings(done)
    assert counted.assay("log", "a").out == "listening\ndone\n"


def test_declared_daemon_lives_on(counted: Counted, probes: Probes, begin: Begin) -> None:
    """With `background = "keep"` a process left behind lives on without a warning, holds no
    later run up, and `show` lists it."""
    counted.plan({"a": {"run": probes.argv("a"), "background": "keep", "cache": True}})
    run = begin()
    node = probes.arrive("a")
    server = node.fork("server", setsid=True)
    assert not [path for path in node.descriptors().values() if path.endswith(".lease")]
    node.exit(0)
    done = run.finish()
    assert (done.code, warnings(done)) == (0, "")
    assert server.is_alive
    assert str(server.pid) in counted.assay("show", "last").out
    assert counted.ran() == []
    again = begin("--fresh")
    probes.arrive("a").exit(0)
    assert again.finish().code == 0
    assert server.is_alive


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_declared_daemon_outlives_its_assay(
    counted: Counted, probes: Probes, begin: Begin, how: str
) -> None:
    """Timeout and cancel are its main process's: once that has ended, the daemon lives on, also
    when a killed assay has left both."""
    counted.plan(
        {
            "a": {
                "run": probes.argv("a"),
                "background": "keep",
                "tier": "irreversible",
                "timeout": "1h",
                "grace": "0s",
            }
        }
    )
    run = begin()
    node = probes.arrive("a")
    run.kill()
    server = node.fork("server", setsid=True)
    node.exit(0)
    node.gone()
    with sqlite3.connect(counted.path(".assay/assay.db")) as database:
        # Long ago; and its pid, which assay may have had no time to record.
        database.execute("UPDATE attempts SET pid = ?, began_at = began_at - 7200", (node.pid,))
    database.close()
    if how == "cancel":
        assert counted.assay("cancel", "last").code == 0
    assert counted.assay("run").code == 4
    assert server.is_alive


def test_output_is_kept_byte_for_byte(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C63: standard output and error arrive complete and in order, in whatever amounts."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    node = probes.arrive("a")
    block = bytes(range(256)) * 400
    for turn in range(10):
        node.flood(1 + turn % 2, block, 1)
    node.say("end without a newline")
    node.exit(0)
    done = run.finish()
    [event] = [e for e in done.events if e["event"] == "node-settled"]
    assert Path(event["log"]).read_bytes() == block * 10 + b"end without a newline"


@pytest.mark.parametrize("kind", ["a pipe", "closed", "a terminal"])
def test_stdin_is_empty(
    counted: Counted, probes: Probes, on_terminal: OnTerminal, kind: str
) -> None:
    """C67: nodes find their standard input at its end, whatever assay's own is."""
    counted.plan({name: {"run": f"cat > {name}", "writes": [name]} for name in ("a", "b")})
    if kind == "a terminal":
        assert on_terminal(str(ASSAY), "run", "-q").finish()[0] == 0
    elif kind == "closed":
        argv = ["sh", "-c", f"exec {ASSAY} run -q <&-"]
        assert subprocess.run(argv, cwd=counted.root).returncode == 0
    else:
        with subprocess.Popen(
            [ASSAY, "run", "-q"], cwd=counted.root, stdin=subprocess.PIPE
        ) as started:
            assert started.wait() == 0  # The pipe is open all the while.
    assert (counted.read("a"), counted.read("b")) == ("", "")


def test_nodes_get_what_is_theirs_and_nothing_else(
    counted: Counted, probes: Probes, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has its own session, folder and variables, the standard files and its lease; a
    variable of the caller's that nobody declared does not reach it."""
    for name in ("UNDECLARED", "PYTHONSTARTUP", "GIT_DIR", "TMPDIR"):
        monkeypatch.setenv(name, "/nowhere" if name != "TMPDIR" else str(counted.root.parent))
    monkeypatch.setenv("WANTED_ONE", "1")
    counted.path("sub").mkdir()
    counted.plan(
        {
            "a": {"run": probes.argv("a"), "workdir": "sub", "env": {"OWN": "2", "EMPTY": ""},
                  "pass_env": ["WANTED_*", "NOT_SET"]},
        },
        '[env]\nALL = "3"',
    )  # fmt: skip
    run = begin()
    node = probes.arrive("a")
    environ = node.environ()
    pid, _, group, session = node.ids()
    assert pid == group == session
    assert node.cwd() == str(counted.path("sub"))
    files = node.descriptors()
    assert files.pop(0) == os.devnull
    assert files.pop(1) == files.pop(2)
    [lease] = files.values()
    assert lease.endswith(".lease")
    assert {name: environ[name] for name in ("OWN", "EMPTY", "ALL", "WANTED_ONE")} == {
        "OWN": "2", "EMPTY": "", "ALL": "3", "WANTED_ONE": "1",
    }  # fmt: skip
    assert environ["ASSAY_NODE"] == "a"
    assert {"ASSAY_RUN", "ASSAY_ATTEMPT", "ASSAY_RESULT"} < set(environ)
    assert {"UNDECLARED", "PYTHONSTARTUP", "GIT_DIR", "NOT_SET"}.isdisjoint(environ)
    node.exit(0)
    assert run.finish().code == 0


def test_temporary_folder_is_private_and_goes(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Each attempt has a TMPDIR of its own, short, for this user alone, and gone afterwards
    whatever was put there."""
    counted.plan({name: {"run": probes.argv(name)} for name in ("a", "b")})
    run = begin("-j2")
    nodes = [probes.arrive(name) for name in ("a", "b")]
    folders = [Path(node.environ()["TMPDIR"]) for node in nodes]
    assert len(set(folders)) == 2
    for folder in folders:
        assert len(str(folder)) < 60
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not folder.is_relative_to(counted.root)
        locked = folder / "locked"
        locked.mkdir()
        (locked / "file").write_text("")
        locked.chmod(0)
    nodes[0].exit(1)
    nodes[1].exit(0)
    run.finish()
    assert not any(folder.exists() or folder.parent.exists() for folder in folders)


def test_nodes_of_a_git_hook_use_their_own_repository(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C70: in a commit hook of a repository or of a linked worktree, a node that makes a
    repository does not write into the outer one."""
    counted.plan({"a": {"run": "cd $TMPDIR; git init -q; echo z > z; git add z; git ls-files"}})
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@e", "-c", "init.defaultBranch=main"]

    def run(*words: str, cwd: Path) -> str:
        return subprocess.run(
            [*git, *words], cwd=cwd, check=True, capture_output=True, text=True
        ).stdout

    run("init", "-q", cwd=counted.root)
    hook = counted.write(".git/hooks/pre-commit", f"#!/bin/sh\nexec {ASSAY} run -q\n")
    hook.chmod(0o755)
    run("add", "plan.toml", cwd=counted.root)
    run("commit", "-q", "-m", "one", cwd=counted.root)
    worktree = tmp_path / "linked"
    run("worktree", "add", "-q", str(worktree), cwd=counted.root)
    (worktree / "more").write_text("")
    run("add", "more", cwd=worktree)
    run("commit", "-q", "-m", "two", cwd=worktree)
    assert len(counted.executions) == 2, "the hook ran each time"
    for place, files in ((counted.root, "plan.toml\n"), (worktree, "more\nplan.toml\n")):
        assert run("ls-files", cwd=place) == files
        assert run("status", "--porcelain", "--untracked-files=no", cwd=place) == ""


def test_many_nodes_and_few_descriptors(counted: Counted) -> None:
    """C73: with few descriptors fewer nodes run at once, and all of them do run."""
    nodes = {f"n{i}": {"run": ["true"]} for i in range(100)}
    counted.plan(nodes)
    script = f"ulimit -n 64; exec {ASSAY} run -q -j 100"
    done = subprocess.run(["sh", "-c", script], cwd=counted.root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_gone_between_two_runs(counted: Counted) -> None:
    """C71: a node whose program vanished fails by name; when it is back the node executes."""
    tool = counted.write("tool", "#!/bin/sh\necho 1 > o\n")
    tool.chmod(0o755)
    counted.plan({"a": {"run": ["./tool"], "writes": ["o"]}})
    assert counted.run().named("built") == {"a"}
    counted.remove("tool", "o")
    done = counted.assay("run")
    assert done.code in {1, 2}
    assert "tool" in done.err
    counted.write("tool", "#!/bin/sh\necho 2 > o\n").chmod(0o755)
    counted.run()
    assert counted.read("o") == "2\n"


def test_output_of_a_running_node_can_be_read(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What a node has printed so far can be read while it runs."""
    counted.plan({"a": {"run": shlex.join(probes.argv("a"))}})
    run = begin()
    node = probes.arrive("a")
    node.say("so far\n")
    assert counted.assay("log", "a").out == "so far\n"
    node.exit(0)
    assert run.finish().code == 0
