"""assay whose system calls fail while nodes have effects: what cannot be recorded is not started,
nothing happens twice, and whoever goes on ends where an undisturbed run would have.

A sample with fixed seeds; all points, one after the other (hours):

    ASSAY_SWEEP=all pytest -n auto tests/promises/test_effect_errors.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from effect_sweep import (
    CALLS,
    Undisturbed,
    check_end,
    choose_points,
    find_points,
    go_on,
    lay_out,
)
from sweep import SWEEP_ALL, describe

FAILURES = (
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("write", "ENOSPC"),
    ("write", "EIO"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("rename", "ENOSPC"),
    ("rename", "EROFS"),
    ("unlink", "EROFS"),
    ("unlink", "EIO"),
    ("rmdir", "EROFS"),
    ("mkdir", "ENOSPC"),
    ("mkdir", "EROFS"),
    ("openat", "EMFILE"),
    ("openat", "EIO"),
    ("openat", "ENOSPC"),
    ("openat", "EROFS"),
    ("ftruncate", "EIO"),
    ("vfork,clone,clone3", "EMFILE"),
)

ALLOWED = (0, 1, 4, 5)
"""Nothing came of it, a node failed by it, an operator is asked, or the host failed."""

SLOW = pytest.mark.timeout(14400 if SWEEP_ALL else 120)


@SLOW
@pytest.mark.parametrize(("call", "error"), FAILURES)
def test_effects_survive_a_call_that_fails(
    tmp_path: Path, system_tmp: Path, undisturbed_effects: Undisturbed, call: str, error: str
) -> None:
    """C89, C90, C95, C100: whichever call fails, once or from then on, in assay or in what it runs,
    there is no traceback, no effect happens twice, and going on ends as if nothing had been."""
    points = find_points(undisturbed_effects.calls, CALLS[call])
    for number, (name, at) in enumerate(choose_points(f"{call} {error}", points)):
        scene = lay_out(tmp_path / f"{name}-{at}", system_tmp)
        when = f"{at}+" if (at + number) % 3 == 0 else f"{at}"
        alone = at % 2 == 0 or when.endswith("+")
        done = scene.fail_at(name, error, when, alone=alone)
        where = f"{name} number {when} fails with {error}: exit {done.code}\n{done.err}"
        is_read = "plan.toml" not in done.err or done.code != 2
        assert done.code in ALLOWED or not is_read, where
        assert "Traceback" not in done.err, where
        assert "internal error" not in done.err, where
        assert done.code == 0 or done.err or name == "write", where
        assert len(scene.lines("keyless")) <= 1, where
        runs = scene.runs()
        is_complete = bool(runs) and runs[0]["status"] == "completed"
        if done.code == 0:
            assert is_complete, where
            assert describe(scene.workspace.root) == undisturbed_effects.tree, where
        elif is_complete:
            assert done.code == 5, where
        go_on(scene, ("resume", "run")[(at // 2) % 2], may_fail=True)
        check_end(scene, undisturbed_effects)
        shutil.rmtree(scene.workspace.root.parent)


@SLOW
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "fsync"])
def test_effects_are_not_started_unrecorded(
    tmp_path: Path, system_tmp: Path, undisturbed_effects: Undisturbed, call: str
) -> None:
    """C89, C90: from the moment the store cannot be written no effect is started, the refusal is
    told with its reason and the exit status is that of a failing host."""
    points = find_points(undisturbed_effects.calls, (call,))
    for name, at in choose_points(f"unrecorded {call}", points[: 2 * len(points) // 3]):
        scene = lay_out(tmp_path / f"{at}", system_tmp)
        done = scene.fail_at(name, "ENOSPC", f"{at}+", alone=True)
        where = f"{name} number {at}+ fails: exit {done.code}\n{done.err}"
        assert done.code == 5, where
        assert "Traceback" not in done.err, where
        assert len(scene.lines("keyless")) <= 1, where
        go_on(scene, "run", may_fail=True)
        check_end(scene, undisturbed_effects)
        shutil.rmtree(scene.workspace.root.parent)
