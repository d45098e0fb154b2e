"""Odd files in the workspace, odd environments, odd limits and a damaged `.assay/`."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from counted import Counted
from workspace import ASSAY, Finished, Workspace

PLAN = """\
[nodes.a]
run = "cat in > out; mktemp > /dev/null"
reads = ["in"]
writes = ["out"]

[nodes.b]
run = ["cp", "out", "copy"]
reads = ["out"]
writes = ["copy"]
"""

WITHOUT_ROOTS_POWERS = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)


@pytest.fixture
def copying(workspace: Workspace) -> Workspace:
    workspace.write("plan.toml", PLAN)
    workspace.write("in", "hello\n")
    return workspace


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for TMPDIR."""
    folder = Path(tempfile.mkdtemp(prefix="odd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def shell(
    workspace: Workspace,
    script: str,
    *,
    env: dict[str, str] | None = None,
    obeys_modes: bool = False,
) -> Finished:
    """Runs a script in which `$0` is assay, without root's power to ignore file modes when
    `obeys_modes`."""
    powers = WITHOUT_ROOTS_POWERS if obeys_modes and os.geteuid() == 0 else ()
    done = subprocess.run(
        [*powers, "sh", "-c", script, str(ASSAY)],
        cwd=workspace.root,
        env=dict(os.environ) if env is None else env,
        capture_output=True,
    )
    err = done.stderr.decode(errors="replace")
    assert "Traceback" not in err, err
    return Finished(done.returncode, done.stdout.decode(errors="replace"), err)


def check_done(workspace: Workspace) -> None:
    assert workspace.read("copy") == "hello\n"


# Environment


@pytest.mark.parametrize(
    "script",
    [
        "unset HOME PATH LANG; exec $0 run",
        "PATH=/nowhere:bin::.:$PWD/in:$PATH exec $0 run",
        "PATH=$(printf '\\377'):$PATH exec $0 run",
        "LC_ALL=no_SUCH.locale TZ=No/Where COLUMNS=x LINES=-1 TERM= exec $0 run",
        "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii exec $0 run",
        "PYTHONOPTIMIZE=2 PYTHONDONTWRITEBYTECODE=1 PYTHONDEVMODE=1 exec $0 run",
        "XDG_RUNTIME_DIR=/nowhere GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY=/nowhere/x exec $0 run",
        "echo 'raise SystemExit(9)' | tee json.py > sqlite3.py; exec $0 run",
        "ulimit -n 20; exec $0 run -j 50",
        "ulimit -s 512; exec $0 run",
        "umask 0777; exec $0 run",
        "umask 0333; exec $0 run",
    ],
)
def test_odd_environments_change_nothing(copying: Workspace, script: str) -> None:
    """C76, C90: whatever the environment lacks or holds, the nodes run and are recorded."""
    done = shell(copying, script, obeys_modes=True)

    assert done.code == 0, done.err
    check_done(copying)
    again = shell(copying, script, obeys_modes=True)
    assert (again.code, "2 clean" in again.err) == (0, True), again.err


@pytest.mark.parametrize("tmpdir", ["", ".", "/nowhere", "in", "/tmp/" + "x/" * 1000])
def test_a_tmpdir_that_cannot_be_used_is_passed_over(copying: Workspace, tmpdir: str) -> None:
    """C127: the system's own folder is used instead."""
    assert copying.assay("run", env={"TMPDIR": tmpdir}).code == 0
    check_done(copying)


def test_a_tmpdir_that_takes_no_folder_fails_the_node(copying: Workspace) -> None:
    """C127: it looks writable and is not: the node says so and how to mend it, and the run
    is settled."""
    done = copying.assay("run", env={"TMPDIR": "/proc"})

    assert done.code == 1
    assert "Its temporary folder `/proc/assay-" in done.err
    assert "Set TMPDIR to a folder that can be written" in done.err
    assert "interrupted" not in copying.assay("runs").out
    assert copying.assay("run").code == 0


def test_umask_takes_nothing_from_the_owner(copying: Workspace) -> None:
    """Rights of the group and of others follow the umask; the store is private."""
    assert shell(copying, "umask 0757; exec $0 run").code == 0

    assert stat.S_IMODE(copying.path("out").stat().st_mode) == 0o620
    assert stat.S_IMODE(copying.path(".assay").stat().st_mode) == 0o700


@pytest.mark.parametrize("call", ["clone3", "vfork"])
@pytest.mark.parametrize("when", ["1+", "2+"])
def test_a_limit_of_processes(copying: Workspace, call: str, when: str) -> None:
    """C73: where the system refuses threads, those there are do the work; without any, the
    end says why."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not there")
    nodes = "".join(f'[nodes.n{i}]\nrun = "true"\n' for i in range(4))
    copying.write("plan.toml", PLAN + nodes)

    inject = f"-e trace={call} -e inject={call}:error=EAGAIN:when={when}"
    done = shell(copying, f"strace -f -qq -o /dev/null {inject} $0 run -j4")

    if (call, when) == ("clone3", "1+"):
        assert done.code == 5
        assert done.err.endswith(
            "environment: The system refuses another thread: a limit of processes is reached\n"
        )
    assert copying.assay("run").code == 0
    check_done(copying)


# Files


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("mkfifo in/x", "is a named pipe"),
        ("mknod in/x c 1 5", "is a device"),
        ("ln -s nowhere in/x", "is a link that leads nowhere"),
        ("ln -s x in/x", "is a link that leads nowhere"),
        ("ln -s / in/x", "is a link to a folder: write `in/x/`"),
        ("ln -s /dev/zero in/x", "is a link to no plain file"),
        ("ln -s /proc/self/mem in/x", "cannot be read: input/output error"),
        ("echo > in/x; chmod 0 in/x", "cannot be read: permission denied"),
    ],
)
def test_a_read_that_is_no_plain_file(workspace: Workspace, make: str, reason: str) -> None:
    """C120: the node that reads it fails with the reason, at once; others run."""
    workspace.write(
        "plan.toml",
        '[nodes.a]\nrun = "true"\nreads = ["in/x"]\n'
        '[nodes.b]\nrun = "echo > out"\nwrites = ["out"]\n',
    )
    workspace.path("in").mkdir()
    if shell(workspace, make).code:
        pytest.skip(f"`{make}` is not allowed here")

    done = shell(workspace, "exec $0 run", obeys_modes=True)

    assert done.code == 1
    assert f"failed: Node `a` failed: reads `in/x`, which {reason}\n" in done.err
    assert workspace.read("out") == "\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("mkfifo out", "`out` is a named pipe"),
        ("mkdir out", "`out` is a folder: declare it as `out/`"),
        ("ln -s /proc/self/mem out", "`out` cannot be read: input/output error"),
        ("echo > out; chmod 0 out", "`out` cannot be read: permission denied"),
    ],
)
def test_an_output_that_is_no_plain_file(workspace: Workspace, make: str, reason: str) -> None:
    """C45: the node fails with the reason, again and again, and once it is mended it works."""
    plan = '[nodes.a]\nrun = "{}"\nwrites = ["out"]\n'
    workspace.write("plan.toml", plan.format(f"rm -rf out; {make}"))

    for _ in range(2):
        done = shell(workspace, "exec $0 run", obeys_modes=True)
        assert done.code == 1
        assert reason in done.err

    workspace.write("plan.toml", plan.format("rm -rf out; echo good > out"))
    assert workspace.assay("run").code == 0
    assert workspace.read("out") == "good\n"


@pytest.mark.parametrize("target", ["/etc/passwd", "/etc", "nowhere", "out", ".", "/dev/zero"])
def test_an_output_that_is_a_link_stays_that_link(workspace: Workspace, target: str) -> None:
    """C30: wherever it leads, it is recorded, clean, and restored as it was; nothing is ever
    written through it."""
    workspace.write("plan.toml", f'[nodes.a]\nrun = "ln -sfn {target} out"\nwrites = ["out"]\n')
    for outcome in ("built", "clean"):
        done = workspace.assay("run", "--json")
        assert done.code == 0, done.err
        assert done.counts == {outcome: 1}
        assert os.readlink(workspace.path("out")) == target
        workspace.path("out").unlink()


def test_a_workspace_full_of_oddities(workspace: Workspace) -> None:
    """C121, C124: what nobody declared is in nobody's way."""
    names = [
        b"\xff\xfe",
        b"x" * 255,
        b"a\nb",
        b"-rf",
        b"README",
        b"readme",
        b"e\xcc\x81",
        b"\xc3\xa9",
    ]
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(workspace.root), name))).write_text("odd")
    os.mkfifo(workspace.path("pipe"))
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(workspace.root)
        listener.bind("socket")
    workspace.path("up").symlink_to("..")
    workspace.path("root").symlink_to("/")
    workspace.path("closed").mkdir(0)
    workspace.write("d/real", "1")
    workspace.write(
        "plan.toml",
        '[nodes.a]\nrun = "ls -d d* > out"\nreads = ["d/**", "READ*"]\nwrites = ["out"]\n',
    )
    before = sorted(os.listdir(os.fsencode(workspace.root)))

    done = shell(workspace, "exec $0 run", obeys_modes=True)

    assert done.code == 0, done.err
    after = sorted(os.listdir(os.fsencode(workspace.root)))
    assert after == sorted([*before, b".assay", b"out"])
    workspace.path("closed").chmod(0o700)


# The store


@pytest.mark.parametrize(
    "remove", [".assay", ".assay/logs", ".assay/tmp", ".assay/cas", ".assay/assay.db*"]
)
def test_a_node_that_removes_the_store_under_the_run(workspace: Workspace, remove: str) -> None:
    """A node that calls `git clean -fdx` costs what was recorded, nothing else."""
    workspace.write(
        "plan.toml",
        f'[nodes.a]\nrun = "rm -rf {remove}; echo 1 > one"\nwrites = ["one"]\n'
        '[nodes.b]\nrun = "cat one > two"\nreads = ["one"]\nwrites = ["two"]\n',
    )
    assert shell(workspace, "exec $0 run").code == 0
    assert workspace.read("two") == "1\n"
    workspace.path("two").unlink()
    assert shell(workspace, "exec $0 run").code == 0
    assert workspace.read("two") == "1\n"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("rm .assay/assay.db; mkfifo .assay/assay.db", "it is not a plain file"),
        ("rm .assay/assay.db; mkdir .assay/assay.db", "it is not a plain file"),
        ("rm -rf .assay/cas; ln -s nowhere .assay/cas", "it is not a folder"),
        ("rm -rf .assay/tmp; touch .assay/tmp", "it is not a folder"),
        ("rm -rf .assay; touch .assay", "it is not a folder"),
        ("rm -rf .assay; ln -s nowhere .assay", "it is not a folder"),
        ("rm -rf .assay; ln -s .assay .assay", "it is not a folder"),
    ],
)
def test_something_else_where_the_store_was(copying: Workspace, damage: str, said: str) -> None:
    """C90: nodes run unrecorded under one warning, questions answer, and what stands there is
    left alone."""
    assert copying.assay("run").code == 0
    assert shell(copying, damage).code == 0
    copying.path("copy").unlink()

    done = copying.assay("run")

    assert done.code == 0, done.err
    assert done.err.count("is not recorded") == 1
    assert f"cannot be written: {said}; this run is not recorded" in done.err
    check_done(copying)
    for words in ("runs", "doctor", "check"):
        asked = copying.assay(words)
        assert asked.code in (0, 2, 5)
        assert "Traceback" not in asked.err
    assert copying.assay("run", "--dry-run").code in (0, 5)


def test_a_store_that_may_not_be_read(copying: Workspace) -> None:
    """C90: somebody else's `.assay/` is not taken for an empty one; runs go on without it."""
    assert copying.assay("run").code == 0
    copying.path(".assay").chmod(0)

    asked = shell(copying, "exec $0 runs", obeys_modes=True)
    done = shell(copying, "exec $0 run", obeys_modes=True)

    copying.path(".assay").chmod(0o700)
    assert asked.code == 5
    assert asked.err == (
        f"environment: `{copying.root}/.assay` cannot be read: permission denied\n"
    )
    assert done.code == 0, done.err
    assert "this run is not recorded" in done.err
    assert "2 built" in copying.assay("runs").out


def test_the_whole_store_emptied_file_by_file(copying: Workspace) -> None:
    """C87: after a power cut on a careless disk: everything executes again, the damaged
    database is kept, and then all is well."""
    assert copying.assay("run").code == 0
    for path in copying.path(".assay").rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"")
    copying.path("copy").unlink()

    done = copying.assay("run")

    assert done.code == 0, done.err
    assert "was damaged" in done.err
    check_done(copying)
    [kept] = copying.path(".assay/damaged").glob("assay.db-*")
    assert kept.stat().st_size == 0
    assert copying.assay("cache", "verify").code == 0
    with sqlite3.connect(copying.path(".assay/assay.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize("moment", ["1970-01-02 00:00:00", "2100-01-02 00:00:00"])
def test_a_clock_that_jumps(copying: Workspace, moment: str) -> None:
    """What was recorded at another time does not hide what changed since."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not there")
    for number, script in enumerate((f"faketime '{moment}' $0 run", "exec $0 run") * 2):
        copying.write("in", f"{number}\n")
        assert shell(copying, script).code == 0
        assert copying.read("copy") == f"{number}\n"
    assert "2 clean" in copying.assay("run").err
    assert copying.assay("runs").code == 0


def test_a_temporary_folder_that_goes_away_meanwhile(counted: Counted) -> None:
    """The next node gets its own below /tmp."""
    folder = counted.root.parent / "t"
    folder.mkdir()
    counted.plan(
        {
            "a": {"run": f"rm -rf {shlex.quote(str(folder))}"},
            "b": {"run": "echo $TMPDIR > $ASSAY_RESULT", "after": ["a"], "result": "text"},
        }
    )
    short = Path(f"/tmp/s{os.getpid()}")
    short.symlink_to(folder)
    try:
        done = counted.run(env={"TMPDIR": str(short)})
    finally:
        short.unlink()
    assert done.outcomes == {"a": "built", "b": "built"}
    value = next(e["value"] for e in done.events if e.get("node") == "b" and e.get("value"))
    assert value.startswith("/tmp/assay-")
