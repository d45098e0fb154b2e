"""assay whose system calls fail: it says so, and the next plain `assay run` is none the worse.

A sample with fixed seeds; all points, one after the other (hours):

    ASSAY_SWEEP=all pytest -n auto tests/promises/test_failing_calls.py
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from sweep import (
    SWEEP_ALL,
    TOLERANT_PLAN,
    check_recovery,
    count_calls,
    describe,
    lay_out,
    points_of,
    run_traced,
)

FAILURES = (
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
)

ALLOWED = (0, 1, 2, 5)
"""Nothing came of it, a node failed by it, the plan could not be read, or the run failed."""


@pytest.mark.timeout(7200 if SWEEP_ALL else 120)
@pytest.mark.parametrize(("call", "error"), FAILURES)
def test_a_call_that_fails_is_told_and_mended(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], call: str, error: str
) -> None:
    """C89, C90: whichever call fails, in assay or in what it runs, there is no traceback, no
    file of the user is lost, and the next run gives what an undisturbed one would have."""
    first, last = count_calls(lay_out(tmp_path / "counted", TOLERANT_PLAN), call, system_tmp)
    for number in points_of(f"{call} {error}", first, last):
        workspace = lay_out(tmp_path / f"{number}", TOLERANT_PLAN)
        options = ["-o", os.devnull, "-e", f"trace={call}"]
        inject = f"inject={call}:error={error}:when={number}"
        done = run_traced(workspace, [*options, "-e", inject], system_tmp)
        where = f"{call} number {number} fails with {error}: exit {done.code}\n{done.err}"
        assert done.code in ALLOWED, where
        assert "Traceback" not in done.err, where
        assert done.code == 0 or done.err or call == "write", where
        assert workspace.read("mine/notes") == "nobody declared this\n"
        if done.code == 0:
            assert describe(workspace.root) == undisturbed, where
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
