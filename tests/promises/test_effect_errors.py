"""assay whose system calls fail while nodes have effects: what cannot be recorded is not started,
nothing happens twice, and whoever goes on ends where an undisturbed run would have.

A sample with fixed seeds; every call with every error it can have with `ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from effect_sweep import (
    ALONE,
    VERBS,
    Point,
    Scene,
    Undisturbed,
    check_end,
    choose,
    find_points,
    go_on,
    lay_out,
)
from sweep import FAILURES, SWEEP_ALL, SWEPT, describe
from workspace import Finished

pytestmark = pytest.mark.proof

SAMPLED = [
    ("effects", "pwrite64", "ENOSPC"),
    ("effects", "pwrite64", "EIO"),
    ("effects", "write", "ENOSPC"),
    ("effects", "fsync", "EIO"),
    ("effects", "fdatasync", "ENOSPC"),
    ("effects", "rename", "EROFS"),
    ("effects", "unlink", "EIO"),
    ("effects", "rmdir", "EROFS"),
    ("effects", "mkdir", "ENOSPC"),
    ("effects", "openat", "EMFILE"),
    ("effects", "openat", "EIO"),
    ("effects", "openat site/one", "EIO"),
    ("effects", "ftruncate", "EIO"),
    ("effects", "vfork,clone,clone3", "EAGAIN"),
    ("trouble", "link,linkat", "EIO"),
    ("trouble", "execve keyless", "EMFILE"),
]

ONLY_TROUBLED = ("link,linkat", "pidfd_open")
"""The plan in which nothing goes wrong makes no such call."""

PAIRS = {
    plan: [
        (kind, error)
        for kind, errors in FAILURES.items()
        if plan == "trouble" or kind not in ONLY_TROUBLED
        for error in errors
    ]
    for plan in ("effects", "trouble")
}

# These are few among thousands of the same name; what is opened there is only read.
NARROWED = [
    *(
        ("effects", f"openat {path}", error)
        for path in ("site/one", "notes")
        for error in ("EIO", "EMFILE")
    ),
    ("trouble", "openat site/one", "EIO"),
    ("trouble", "openat site/one", "EMFILE"),
    ("trouble", "execve keyless", "EIO"),
    ("trouble", "execve keyless", "EMFILE"),
]

ALL = [(plan, *pair) for plan, pairs in PAIRS.items() for pair in pairs] + NARROWED

AGAIN = [("effects", "pwrite64"), ("trouble", "rename")]
"""At which the first kill is, when an error is the second fault."""

MORE = ("fsync", "unlink", "fdatasync", "vfork,clone,clone3", "wait4,waitid")

ALLOWED = (0, 1, 4, 5)
"""Nothing came of it, a node failed by it, an operator is asked, or the host failed."""


def check_told(scene: Scene, done: Finished, where: str) -> None:
    # Without its plan there is nothing that it could begin.
    assert done.code in ALLOWED or (done.code == 2 and not scene.runs()), where
    assert "Traceback" not in done.err, where
    assert "internal error" not in done.err, where


@SWEPT
@pytest.mark.parametrize(
    ("undisturbed_run", "kind", "error"),
    ALL if SWEEP_ALL else SAMPLED,
    indirect=["undisturbed_run"],
)
def test_effects_survive_a_call_that_fails(
    tmp_path: Path, system_tmp: Path, undisturbed_run: Undisturbed, kind: str, error: str
) -> None:
    """C89, C90, C95, C100: whichever call fails, once or from then on, in assay or in what it runs,
    there is no traceback, no effect happens twice, what was told as done is done, and going on
    ends as if nothing had been."""
    points = find_points(undisturbed_run.calls, kind, error)
    assert points
    for point in choose(f"{kind} {error}", points):
        number = point.number
        scene = lay_out(tmp_path / f"{number}", system_tmp, undisturbed_run.plan)
        # Where nothing can be opened any more Python does not find its own modules.
        for_good = number % 3 == 0 and point.call != "openat"
        done = scene.fail_at(point, error, for_good=for_good, alone=for_good or number % 2 == 0)
        where = f"{point} fails with {error}, for good: {for_good}; exit {done.code}\n{done.err}"
        check_told(scene, done, where)
        assert done.code == 0 or done.err or kind == "write", where
        effects = scene.effects()
        if done.code == 0:
            assert describe(scene.workspace.root) == undisturbed_run.tree, where
        questions = go_on(scene, VERBS[number // 2 % 2], may_fail=True)
        if done.code == 0:
            assert questions == 0, where
            assert scene.effects() == effects, where
        check_end(scene, undisturbed_run)
        shutil.rmtree(scene.workspace.root.parent)


@SWEPT
@pytest.mark.parametrize(
    ("undisturbed_run", "kind"),
    [*AGAIN, *((plan, kind) for plan in PAIRS for kind in MORE if SWEEP_ALL)],
    indirect=["undisturbed_run"],
)
def test_going_on_may_fail_as_well(
    tmp_path: Path, system_tmp: Path, undisturbed_run: Undisturbed, kind: str
) -> None:
    """C89, C95, C103: assay is killed, and for who goes on a call fails, once or from then on: the
    next one completes it, and no effect is repeated or forgotten by that."""
    chance = random.Random(f"again {kind}")
    seconds = [
        (error, points)
        for call, errors in FAILURES.items()
        for error in errors
        if (points := find_points(undisturbed_run.calls, call, error))
    ]
    for point in choose(f"again {kind}", find_points(undisturbed_run.calls, kind)):
        scene = lay_out(tmp_path / f"{point.number}", system_tmp, undisturbed_run.plan)
        mode = chance.choice(("alone", "together"))
        killed = scene.kill_at(point, mode)
        error, points = chance.choice(seconds)
        near = chance.choice(points)
        for_good = near.call != "openat" and chance.random() < 0.3
        runs = scene.runs()
        if runs and runs[0]["status"] == "completed":
            # It died after its last word: to run once more would rightly do everything again.
            check_end(scene, undisturbed_run)
            continue
        words = ("resume", "last") if runs and chance.random() < 0.5 else ("run", "-j2")
        done = scene.fail_at(near, error, *words, for_good=for_good, alone=True)
        where = (
            f"{point} kills it {mode}: exit {killed.code}; then {words}, where {near} fails with "
            f"{error}, for good: {for_good}: exit {done.code}\n{done.err}"
        )
        check_told(scene, done, where)
        go_on(scene, chance.choice(VERBS), may_fail=True)
        check_end(scene, undisturbed_run)
        shutil.rmtree(scene.workspace.root.parent)


@SWEPT
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
    # Calls are counted by thread: the coordinator's, not that of who marks the begin.
    coordinator = re.escape(log.read_text().split(maxsplit=1)[0])
    earlier = log.read_text().partition("vfork(")[0]
    before = len(re.findall(rf"^{coordinator} +fdatasync\(", earlier, re.MULTILINE))
    shutil.rmtree(scene.store)
    (scene.ledger / "keyless").unlink()

    point = Point("fdatasync", before + 1)
    done = scene.fail_at(point, "EIO", for_good=False, alone=True)

    assert scene.lines("keyless") == ["sent"]
    assert done.code == 5, done.err
    assert scene.assay("run").code == 4
