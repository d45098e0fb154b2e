"""assay killed at its own system calls: the next plain `assay run` ends as if nothing had been.

A sample with fixed seeds, spread over every call a run makes to change the world. All
points, one after the other (the better part of an hour):

    ASSAY_SWEEP=all pytest -n auto tests/promises/test_crashes.py
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import ASSAY, Workspace, explain

SWEEP_ALL = os.environ.get("ASSAY_SWEEP") == "all"

POINTS = 3
"""Of each call, in a sample."""

CALLS = (
    "pwrite64",
    "write",
    "rename",
    "unlink",
    "openat",
    "mkdir",
    "rmdir",
    "fdatasync",
    "vfork,clone,clone3",
    "execve",
)

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


@pytest.fixture
def system_tmp() -> Iterator[Path]:
    """A temporary folder for the system under test, with a path short enough to be used."""
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def lay_out(root: Path) -> Workspace:
    root.mkdir()
    workspace = Workspace(root)
    workspace.write("plan.toml", PLAN)
    workspace.write("in", "input\n")
    workspace.write("text", "lines\nto be\nformatted\n")
    workspace.write("old", "from before\n")
    workspace.write("mine/notes", "nobody declared this\n")
    return workspace


def run_traced(workspace: Workspace, options: list[str], system_tmp: Path) -> int:
    """`assay run -j2` under strace, which waits for all processes below it; its exit code."""
    traced = subprocess.run(
        ["strace", "-f", "-qq", *options, str(ASSAY), "run", "-j2"],
        cwd=workspace.root,
        env={**os.environ, "TMPDIR": str(system_tmp)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return traced.returncode


def run_killed(workspace: Workspace, call: str, number: int, system_tmp: Path) -> int:
    """Each thread and each process below dies, with its process, at its `number`-th `call`."""
    trace = ["-o", os.devnull, "-e", f"trace={call}"]
    return run_traced(
        workspace, [*trace, "-e", f"inject={call}:signal=KILL:when={number}"], system_tmp
    )


def count_calls(workspace: Workspace, call: str, system_tmp: Path) -> tuple[int, int]:
    """Numbers of the first call that is about the workspace or its processes (earlier ones
    are Python finding its modules) and of the last one of the thread that makes most."""
    log = workspace.root.parent / "calls"
    assert run_traced(workspace, ["-o", str(log), "-e", f"trace={call}"], system_tmp) == 0
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
    """Everything outside `.assay/`: contents, executable bits, links, empty folders."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        if ".assay" in folders:
            folders.remove(".assay")
        for name in [*folders, *files]:
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


def check_recovery(workspace: Workspace, expected: dict[str, str], system_tmp: Path) -> None:
    """One plain run mends everything, and what it recorded can be trusted."""
    env = {"TMPDIR": str(system_tmp)}
    done = workspace.assay("run", "--json", env=env)
    assert done.code == 0, explain(done)
    assert "Traceback" not in done.err
    assert describe(workspace.root) == expected
    assert find_processes(f"TMPDIR={system_tmp}") == []
    assert os.listdir(system_tmp) == []

    store = workspace.path(".assay")
    with sqlite3.connect(f"file:{store}/assay.db?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        open_attempts = "SELECT count(*) FROM attempts WHERE state = 'running'"
        assert database.execute(open_attempts).fetchone() == (0,)
    database.close()
    assert not (store / "damaged").exists()

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


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run leaves."""
    workspace = lay_out(tmp_path_factory.mktemp("undisturbed") / "w")
    done = workspace.assay("run", "--json")
    assert done.code == 0, explain(done)
    return describe(workspace.root)


@pytest.fixture(scope="module", autouse=True)
def needs_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not there")


def points_of(call: str, first: int, last: int) -> list[int]:
    everything = range(first, last + 1)
    if SWEEP_ALL or len(everything) <= POINTS:
        return list(everything)
    return sorted(random.Random(call).sample(everything, POINTS))


@pytest.mark.timeout(7200 if SWEEP_ALL else 120)
@pytest.mark.parametrize("call", CALLS)
def test_a_killed_run_is_completed_by_the_next(
    tmp_path: Path, system_tmp: Path, expected: dict[str, str], call: str
) -> None:
    """C83, C84: wherever assay is killed, `assay run` gives the tree of an undisturbed run;
    the database is sound, nothing runs on, no temporary folder stays and no partial output
    is ever served."""
    first, last = count_calls(lay_out(tmp_path / "counted"), call, system_tmp)
    killed = 0
    for number in points_of(call, first, last):
        workspace = lay_out(tmp_path / f"{number}")
        killed += run_killed(workspace, call, number, system_tmp) != 0
        check_recovery(workspace, expected, system_tmp)
        assert workspace.read("mine/notes") == "nobody declared this\n"
        shutil.rmtree(workspace.root)
    assert killed


@pytest.mark.timeout(7200 if SWEEP_ALL else 120)
@pytest.mark.parametrize("call", ["pwrite64", "unlink", "vfork,clone,clone3"])
def test_a_recovery_killed_as_well_is_no_worse(
    tmp_path: Path, system_tmp: Path, expected: dict[str, str], call: str
) -> None:
    """C103: recovery that is itself killed, twice over, is completed by the run after it."""
    first, last = count_calls(lay_out(tmp_path / "counted"), call, system_tmp)
    chance = random.Random(f"again {call}")
    for number in points_of(call, first, last)[:: 1 if SWEEP_ALL else 3]:
        workspace = lay_out(tmp_path / f"{number}")
        codes = [
            run_killed(workspace, call, at, system_tmp)
            for at in (number, chance.randint(1, last), chance.randint(1, last))
        ]
        assert codes[0] in (-signal.SIGKILL, 128 + signal.SIGKILL, 0, 1)
        check_recovery(workspace, expected, system_tmp)
        shutil.rmtree(workspace.root)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_left_overs_are_still_cleared_after_a_kill_before_that(
    tmp_path: Path, system_tmp: Path, number: int
) -> None:
    """C83: a try killed in between, after it was recorded and before the left-overs of the one
    before it were out of the way, does not make them look like files that belong there."""
    root = tmp_path / "w"
    root.mkdir()
    workspace = Workspace(root)
    workspace.write("fatal", "")
    # The shell's parent is assay.
    script = "mkdir -p tree; ln -s x tree/link; test ! -e fatal || kill -9 $PPID; echo > tree/end"
    workspace.write("plan.toml", f'[nodes.a]\nrun = "{script}"\nwrites = ["tree/"]\n')
    assert workspace.assay("run", env={"TMPDIR": str(system_tmp)}).code == -signal.SIGKILL
    workspace.path("fatal").unlink()

    run_killed(workspace, "mkdir", number, system_tmp)
    done = workspace.assay("run", env={"TMPDIR": str(system_tmp)})

    assert done.code == 0, done.err
    assert sorted(os.listdir(workspace.path("tree"))) == ["end", "link"]
