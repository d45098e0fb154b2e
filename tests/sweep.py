"""A run under strace, disturbed at one of its system calls, and what must hold afterwards.

Shared by the tests that kill assay at its calls and those that let the calls fail. A test
tries a few points of each call, spread by fixed seeds; as many as `ASSAY_POINTS` says. With
`ASSAY_SWEEP=all` it tries all of them, and the other tests marked `proof` are complete as well.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from workspace import ASSAY, Finished, Workspace, explain, finish

SWEEP_ALL = os.environ.get("ASSAY_SWEEP") == "all"

POINTS = int(os.environ.get("ASSAY_POINTS", "2"))
"""Of each call, in a sample."""

SWEPT = pytest.mark.timeout(86400 if SWEEP_ALL else 120)
"""A complete sweep of one call takes hours."""

PLAN = """\
[nodes.list]
run = "for n in one two three; do echo $n > parts/$n.src; done"
writes = ["parts/*.src"]

[nodes.copy]
foreach = "parts/*.src"
run = "printf 'a ' > {{each.dir}}/{{each.stem}}.out; cat {{each}} >> {{each.dir}}/{{each.stem}}.out"
reads = ["{{each}}"]
writes = ["{{each.dir}}/{{each.stem}}.out"]

[nodes.tree]
run = "mkdir -p tree/empty tree/sub; cp in tree/sub/in; chmod +x tree/sub/in; ln -s sub/in tree/l"
reads = ["in"]
writes = ["tree/"]

[nodes.format]
run = "tr a-z A-Z < text > $TMPDIR/new; cat $TMPDIR/new > text; wc -l < text > $ASSAY_RESULT"
reads = ["text"]
writes = ["text"]
result = "text"

[nodes.drop]
run = "rm -f old; cp text taken"
reads = ["text", { path = "old", optional = true }]
writes = ["taken"]
removes = ["old"]

[nodes.all]
run = "cat parts/*.out tree/sub/in taken > all; echo $LINES >> all"
env = { LINES = { from = "format" } }
reads = ["parts/*.out", "tree/", "taken"]
writes = ["all"]
"""

WRITING = ("ENOSPC", "EIO", "EROFS")

FAILURES: dict[str, tuple[str, ...]] = {
    "pwrite64": WRITING,
    "write": WRITING,
    "fsync": WRITING,
    "fdatasync": WRITING,
    "ftruncate": WRITING,
    "rename": WRITING,
    "link,linkat": WRITING,
    "unlink": WRITING,
    "rmdir": WRITING,
    "mkdir": WRITING,
    "openat": (*WRITING, "EMFILE"),
    "pipe2": ("EMFILE",),
    "pidfd_open": ("EMFILE",),
    "execve": ("EIO", "EMFILE"),
    "vfork,clone,clone3": ("EAGAIN",),
    "flock": ("ENOLCK",),
}
"""Each call with those of ENOSPC, EIO, EROFS and EMFILE that a kernel can return for it, and for
the last two calls, which know none of them, what comes nearest: no process or lock is left.

EROFS also for what is open already: a file system that finds itself broken refuses to go on
writing. ENOSPC also for what removes and cuts: where nothing is written in place that needs room.
EMFILE only for what makes a descriptor; of these `execve` reads a program and writes nothing.
`wait4`, `waitid`, `kill` and `pidfd_send_signal` touch neither a disk nor the table of
descriptors and return none of the four. See `can_fail` for single calls."""

MENDING = ("rename", "link,linkat", "unlink", "mkdir", "pwrite64", "fsync", "openat")
"""Calls of a run that keeps a damaged store aside and puts a new one in its place."""

# What a run left that could not be recorded is nobody's, and stays like a file of the user's.
TOLERANT_PLAN = PLAN.replace("ln -s ", "ln -sf ")


@pytest.fixture
def system_tmp() -> Iterator[Path]:
    """A temporary folder for the system under test, with a path short enough to be used."""
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run that nothing disturbs leaves."""
    workspace = lay_out(tmp_path_factory.mktemp("undisturbed") / "w")
    done = workspace.assay("run", "--json")
    assert done.code == 0, explain(done)
    return describe(workspace.root)


def lay_out(root: Path, plan: str = PLAN) -> Workspace:
    root.mkdir()
    workspace = Workspace(root)
    workspace.write("plan.toml", plan)
    workspace.write("in", "input\n" * 2000)  # several blocks
    workspace.write("text", "lines\nto be\nformatted\n")
    workspace.write("old", "from before\n")
    workspace.write("mine/notes", "nobody declared this\n")
    return workspace


def run_traced(
    workspace: Workspace,
    options: list[str],
    system_tmp: Path,
    words: Sequence[str] = ("run", "-j2"),
    env: Mapping[str, str] | None = None,
) -> Finished:
    """`assay WORDS` under strace, which waits for all processes below it; for assay's own
    threads only with the option `-bexecve`."""
    return finish(start_traced(workspace, options, system_tmp, words, env))


def start_traced(
    workspace: Workspace,
    options: list[str],
    system_tmp: Path,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """As `run_traced`, and does not wait for the end."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not there")
    return subprocess.Popen(
        ["strace", "-f", "-qqq", *options, str(ASSAY), *words],
        cwd=workspace.root,
        env={**os.environ, **(env or {}), "TMPDIR": str(system_tmp)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def count_calls(workspace: Workspace, call: str, system_tmp: Path) -> tuple[int, int]:
    """Numbers of the first call that is about the workspace or its processes (earlier ones
    are Python finding its modules) and of the last one of the thread that makes most."""
    log = workspace.root.parent / "calls"
    done = run_traced(workspace, ["-o", str(log), "-e", f"trace={call}"], system_tmp)
    assert done.code == 0, done.err
    counts: dict[str, int] = {}
    first = 0
    for line in log.read_text(errors="replace").splitlines():
        found = re.match(r"(\d+) +(\w+)\(", line)
        if found is None:
            continue
        counts[found[1]] = number = counts.get(found[1], 0) + 1
        if not first and (found[2] not in ("openat", "write") or str(workspace.root) in line):
            first = number
    return max(first, 1), max(counts.values())


def describe(root: Path) -> dict[str, str]:
    """Everything but `.assay/` and the plan: contents, executable bits, links, empty folders."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        if ".assay" in folders:
            folders.remove(".assay")
        for name in [*folders, *(name for name in files if name != "plan.toml")]:
            place = Path(folder, name)
            mode = place.lstat().st_mode
            key = str(place.relative_to(root))
            if stat.S_ISLNK(mode):
                found[key] = f"-> {place.readlink()}"
            elif stat.S_ISDIR(mode):
                found[key] = "folder"
            else:
                found[key] = f"{place.read_text()}{' x' if mode & 0o100 else ''}"
    return found


def find_processes(mark: str) -> list[int]:
    """Pids of processes whose environment holds `mark`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def check_recovery(
    workspace: Workspace, expected: dict[str, str], system_tmp: Path, *, is_damaged: bool = False
) -> None:
    """One plain run mends everything, and what it recorded can be trusted. `is_damaged`: the
    store was, which is kept."""
    env = {"TMPDIR": str(system_tmp)}
    done = workspace.assay("run", "--json", env=env)
    assert done.code == 0, explain(done)
    assert "Traceback" not in done.err
    assert describe(workspace.root) == expected
    assert find_processes(f"TMPDIR={system_tmp}") == []
    # Logs of a run that could not be recorded stay for the user.
    unrecorded = [path for path in system_tmp.iterdir() if path.name.startswith("assay-unrecorded")]
    for path in unrecorded:
        shutil.rmtree(path)
    left = [str(path.relative_to(system_tmp)) for path in system_tmp.rglob("*")]
    assert left == []

    store = workspace.path(".assay")
    with sqlite3.connect(f"file:{store}/assay.db?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        open_attempts = "SELECT count(*) FROM attempts WHERE state = 'running'"
        assert database.execute(open_attempts).fetchone() == (0,)
    database.close()
    assert (store / "damaged").exists() == is_damaged

    for path in ("tree", "parts", "taken", "all"):
        place = workspace.path(path)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    restored = workspace.assay("run", "--json", env=env)
    assert restored.code == 0, explain(restored)
    # These look once more at what they changed themselves.
    assert restored.named("built") <= {"format", "drop"}, restored.out
    assert describe(workspace.root) == expected
    verified = workspace.assay("cache", "verify", "--json")
    assert verified.code == 0, verified.out
    assert json.loads(verified.out)["is_sound"]

    # Collection leaves alone what is younger than a minute.
    for path in (store / "tmp").iterdir():
        os.utime(path, (0, 0))
    assert workspace.assay("cache", "gc").code == 0
    assert [path.name for path in (store / "tmp").iterdir() if path.suffix != ".lock"] == []


def can_fail(line: str, error: str) -> bool:
    """Whether the call in this line of strace can return the error: only who opens a file to
    write is refused for that, only who may make one needs room."""
    if " openat(" not in line or error not in ("ENOSPC", "EROFS"):
        return True
    return "O_CREAT" in line or (error == "EROFS" and ("O_WRONLY" in line or "O_RDWR" in line))


def points_of(call: str, first: int, last: int) -> list[int]:
    everything = range(first, last + 1)
    if SWEEP_ALL or len(everything) <= POINTS:
        return list(everything)
    return sorted(random.Random(call).sample(everything, POINTS))
