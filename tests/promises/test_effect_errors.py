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
    ALONE,
    Point,
    Undisturbed,
    check_end,
    choose,
    find_points,
    go_on,
    lay_out,
)
from sweep import SWEEP_ALL, describe

FAILURES = (
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("write", "ENOSPC"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("rename", "EROFS"),
    ("unlink", "EIO"),
    ("rmdir", "EROFS"),
    ("mkdir", "ENOSPC"),
    ("openat", "EMFILE"),
    ("openat", "EIO"),
    ("openat site/one", "EIO"),
    ("openat notes", "EROFS"),
    ("ftruncate", "EIO"),
    ("vfork,clone,clone3", "EAGAIN"),
)

ALLOWED = (0, 1, 4, 5)
"""Nothing came of it, a node failed by it, an operator is asked, or the host failed."""

SLOW = pytest.mark.timeout(14400 if SWEEP_ALL else 120)


@SLOW
@pytest.mark.parametrize(("kind", "error"), FAILURES)
def test_effects_survive_a_call_that_fails(
    tmp_path: Path, system_tmp: Path, undisturbed_effects: Undisturbed, kind: str, error: str
) -> None:
    """C89, C90, C95, C100: whichever call fails, once or from then on, in assay or in what it runs,
    there is no traceback, no effect happens twice, what was told as done is done, and going on
    ends as if nothing had been."""
    points = find_points(undisturbed_effects.calls, kind)
    assert points
    for point in choose(f"{kind} {error}", points):
        number = point.number
        scene = lay_out(tmp_path / f"{number}", system_tmp)
        # Where nothing can be opened any more Python does not find its own modules.
        for_good = number % 3 == 0 and point.call != "openat"
        done = scene.fail_at(point, error, for_good=for_good, alone=for_good or number % 2 == 0)
        where = f"{point} fails with {error}, for good: {for_good}; exit {done.code}\n{done.err}"
        runs = scene.runs()
        # Without its plan there is nothing that it could begin.
        assert done.code in ALLOWED or (done.code == 2 and not runs), where
        assert "Traceback" not in done.err, where
        assert "internal error" not in done.err, where
        assert done.code == 0 or done.err or kind == "write", where
        effects = scene.effects()
        if done.code == 0:
            assert describe(scene.workspace.root) == undisturbed_effects.tree, where
        questions = go_on(scene, ("resume", "run")[number // 2 % 2], may_fail=True)
        if done.code == 0:
            assert questions == 0, where
            assert scene.effects() == effects, where
        check_end(scene, undisturbed_effects)
        shutil.rmtree(scene.workspace.root.parent)


@SLOW
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "fsync"])
def test_effects_are_not_started_unrecorded(
    tmp_path: Path, system_tmp: Path, undisturbed_effects: Undisturbed, call: str
) -> None:
    """C89, C90: from the moment the store cannot be written no effect is started, the refusal is
    told with its reason and the exit status is that of a failing host."""
    points = find_points(undisturbed_effects.calls, call)
    for point in choose(f"unrecorded {call}", points[: len(points) // 2]):
        scene = lay_out(tmp_path / f"{point.number}", system_tmp)
        done = scene.fail_at(point, "ENOSPC", for_good=True, alone=True)
        where = f"{point} and later ones fail: exit {done.code}\n{done.err}"
        assert done.code == 5, where
        assert "Traceback" not in done.err, where
        told = done.err.partition("this run is not recorded")[2]
        assert "was not started: where the store cannot be written" in told or call == "fsync", (
            where
        )
        go_on(scene, "run", may_fail=True)
        check_end(scene, undisturbed_effects)
        shutil.rmtree(scene.workspace.root.parent)


def test_an_effect_that_could_not_be_recorded_is_told(tmp_path: Path, system_tmp: Path) -> None:
    """C89, C95: when the disk fails between an effect and its record, the run does not end as if
    all were well: the next one will ask for it."""
    scene = lay_out(tmp_path / "scene", system_tmp)
    plan = (
        'name = "one"\n[nodes.keyless]\ntier = "irreversible"\nrun = "echo sent >> $LEDGER/keyless"'
    )
    scene.workspace.write("plan.toml", f'{plan}\npass_env = ["LEDGER"]\n')
    log = tmp_path / "calls"
    scene.trace([*ALONE, "-o", str(log), "-e", "trace=fdatasync,vfork"])
    before = log.read_text().partition("vfork(")[0].count("fdatasync(")
    shutil.rmtree(scene.store)
    (scene.ledger / "keyless").unlink()

    point = Point("fdatasync", before + 1)
    done = scene.fail_at(point, "EIO", for_good=False, alone=True)

    assert scene.lines("keyless") == ["sent"]
    assert done.code == 5, done.err
    assert scene.assay("run").code == 4
