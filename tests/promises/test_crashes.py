"""assay killed at its own system calls: the next plain `assay run` ends as if nothing had been.

A sample with fixed seeds, spread over every call a run makes to change the world; all points with
`ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from damages import cut
from sweep import (
    MENDING,
    PLAN,
    SWEEP_ALL,
    SWEPT,
    TOLERANT_PLAN,
    check_recovery,
    count_calls,
    lay_out,
    points_of,
    run_traced,
)
from workspace import Workspace

pytestmark = pytest.mark.proof

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


def run_killed(workspace: Workspace, call: str, number: int, system_tmp: Path) -> int:
    """Each thread and each process below dies, with its process, at its `number`-th `call`."""
    trace = ["-o", os.devnull, "-e", f"trace={call}"]
    done = run_traced(
        workspace, [*trace, "-e", f"inject={call}:signal=KILL:when={number}"], system_tmp
    )
    return done.code


@SWEPT
@pytest.mark.parametrize("call", CALLS)
def test_a_killed_run_is_completed_by_the_next(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], call: str
) -> None:
    """C83, C84: wherever assay is killed, `assay run` gives the tree of an undisturbed run;
    the database is sound, nothing runs on, no temporary folder stays and no partial output
    is ever served."""
    first, last = count_calls(lay_out(tmp_path / "counted"), call, system_tmp)
    killed = 0
    for number in points_of(call, first, last):
        workspace = lay_out(tmp_path / f"{number}")
        killed += run_killed(workspace, call, number, system_tmp) != 0
        check_recovery(workspace, undisturbed, system_tmp)
        assert workspace.read("mine/notes") == "nobody declared this\n"
        shutil.rmtree(workspace.root)
    assert killed


@SWEPT
@pytest.mark.parametrize("boundary", ["enforced", "isolated"])
@pytest.mark.parametrize("call", ["pwrite64", "rename", "mkdir", "unlink"])
def test_a_killed_run_of_held_nodes_is_completed_too(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], call: str, boundary: str
) -> None:
    """C83: also while what a command wrote in its private tree is put in place: nothing is done by
    halves, and no tree is left behind."""
    plan = f'[defaults]\nboundary = "{boundary}"\n\n{PLAN}'
    first, last = count_calls(lay_out(tmp_path / "counted", plan), call, system_tmp)
    killed = 0
    for number in points_of(f"{call} {boundary}", first, last):
        workspace = lay_out(tmp_path / f"{number}", plan)
        killed += run_killed(workspace, call, number, system_tmp) != 0
        check_recovery(workspace, undisturbed, system_tmp)
        assert not list(workspace.path(".assay/tmp").glob("*.tree"))
        shutil.rmtree(workspace.root)
    assert killed


@SWEPT
@pytest.mark.parametrize("call", ["pwrite64", "unlink", "vfork,clone,clone3"])
def test_a_recovery_killed_as_well_is_no_worse(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], call: str
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
        check_recovery(workspace, undisturbed, system_tmp)
        shutil.rmtree(workspace.root)


@SWEPT
@pytest.mark.parametrize("call", MENDING if SWEEP_ALL else MENDING[:2])
def test_a_killed_mending_of_the_store_is_completed(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], call: str
) -> None:
    """C83, C87: a run that finds the store damaged and is killed while it keeps that aside and puts
    a new one in its place is completed by the next."""
    quiet = lay_out(tmp_path / "quiet", TOLERANT_PLAN)
    assert quiet.assay("run").code == 0
    cut(quiet.path(".assay/assay.db"))

    def copy(name: str) -> Workspace:
        return Workspace(shutil.copytree(quiet.root, tmp_path / name, symlinks=True))

    first, last = count_calls(copy("counted"), call, system_tmp)
    killed = 0
    for number in points_of(f"mending {call}", first, last)[:: 1 if SWEEP_ALL else 3]:
        workspace = copy(f"{number}")
        killed += run_killed(workspace, call, number, system_tmp) != 0
        check_recovery(workspace, undisturbed, system_tmp, is_damaged=True)
        shutil.rmtree(workspace.root)
    assert killed


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
