"""assay whose system calls fail: it says so, and the next plain `assay run` is none the worse.

A sample with fixed seeds; every call with every error it can have with `ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from effect_sweep import Point, find_points
from sweep import (
    FAILURES,
    POINTS,
    SWEEP_ALL,
    SWEPT,
    TOLERANT_PLAN,
    check_recovery,
    describe,
    lay_out,
    run_traced,
)
from workspace import Finished, Workspace

pytestmark = pytest.mark.proof

SAMPLED = [
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("write", "ENOSPC"),
    ("write", "EIO"),
    ("fdatasync", "EIO"),
    ("rename", "ENOSPC"),
    ("rename", "EROFS"),
    ("unlink", "EROFS"),
    ("unlink", "EIO"),
    ("mkdir", "ENOSPC"),
    ("openat", "EMFILE"),
    ("openat", "EIO"),
    ("openat", "ENOSPC"),
    ("vfork,clone,clone3", "EAGAIN"),
    ("flock", "ENOLCK"),
]

ALL = [
    (call, error)
    for call, errors in FAILURES.items()
    if call not in {"link,linkat", "pidfd_open"}  # nothing in this plan needs them
    for error in errors
]

ALLOWED = (0, 1, 2, 5)
"""Nothing came of it, a node failed by it, the plan could not be read, or the run failed."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Those of a run that nothing disturbs, and of what it starts, as strace tells of them."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "tmp").mkdir()
    log = folder / "calls"
    options = ["-o", str(log), "-e", f"trace={','.join(dict(ALL))}"]
    done = run_traced(lay_out(folder / "w", TOLERANT_PLAN), options, folder / "tmp")
    assert done.code == 0, done.err
    return log.read_text(errors="replace")


def run_disturbed(workspace: Workspace, point: Point, how: str, system_tmp: Path) -> Finished:
    """`how` is the name of the error that the call gives, or what else befalls it."""
    inject = f"inject={point.call}:{how}:when={point.number}"
    options = ["-o", os.devnull, "-e", f"trace={point.call}", "-e", inject]
    return run_traced(workspace, options, system_tmp)


def choose(seed: str, points: list[Point], number: int) -> list[Point]:
    if SWEEP_ALL or len(points) <= number:
        return points
    return sorted(random.Random(seed).sample(points, number))


@SWEPT
@pytest.mark.parametrize(("call", "error"), ALL if SWEEP_ALL else SAMPLED)
def test_a_call_that_fails_is_told_and_mended(
    tmp_path: Path,
    system_tmp: Path,
    undisturbed: dict[str, str],
    calls: str,
    call: str,
    error: str,
) -> None:
    """C89, C90: whichever call fails, in assay or in what it runs, there is no traceback, no
    file of the user is lost, and the next run gives what an undisturbed one would have."""
    points = find_points(calls, call, error)
    assert points
    for point in choose(f"{call} {error}", points, POINTS):
        workspace = lay_out(tmp_path / f"{point.number}", TOLERANT_PLAN)
        done = run_disturbed(workspace, point, f"error={error}", system_tmp)
        where = f"{point} fails with {error}: exit {done.code}\n{done.err}"
        assert done.code in ALLOWED, where
        assert "Traceback" not in done.err, where
        assert done.code == 0 or done.err or call == "write", where
        assert workspace.read("mine/notes") == "nobody declared this\n"
        if done.code == 0:
            assert describe(workspace.root) == undisturbed, where
        check_recovery(workspace, undisturbed, system_tmp)
        shutil.rmtree(workspace.root)


@SWEPT
@pytest.mark.parametrize("call", dict(ALL) if SWEEP_ALL else ["pwrite64"])
def test_a_recovery_that_fails_is_no_worse(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], calls: str, call: str
) -> None:
    """C89, C103: assay is killed, and in the next run a call fails: the one after it gives what an
    undisturbed one would have."""
    chance = random.Random(f"again {call}")
    for point in choose(f"again {call}", find_points(calls, call), 1):
        workspace = lay_out(tmp_path / f"{point.number}", TOLERANT_PLAN)
        killed = run_disturbed(workspace, point, "signal=KILL", system_tmp)
        second, error = chance.choice(ALL)
        near = chance.choice(find_points(calls, second, error))
        done = run_disturbed(workspace, near, f"error={error}", system_tmp)
        where = (
            f"{point} kills it: exit {killed.code}; then {near} fails with {error}: "
            f"exit {done.code}\n{done.err}"
        )
        assert done.code in ALLOWED, where
        assert "Traceback" not in done.err, where
        check_recovery(workspace, undisturbed, system_tmp)
        shutil.rmtree(workspace.root)


@pytest.mark.parametrize("number", range(20, 100, 16))
def test_a_store_that_cannot_be_completed_is_none(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], number: int
) -> None:
    """C89: a disk that fills up while the store is made, and stays full, leaves no half of one:
    the next run finds nothing damaged and makes it anew."""
    workspace = lay_out(tmp_path / "w", TOLERANT_PLAN)
    inject = f"inject=pwrite64:error=ENOSPC:when={number}+"
    full = run_traced(
        workspace, ["-o", os.devnull, "-e", "trace=pwrite64", "-e", inject], system_tmp
    )
    assert full.code == 0, full.err
    assert "this run is not recorded" in full.err
    check_recovery(workspace, undisturbed, system_tmp)
