"""assay killed at its own system calls while nodes have effects: nothing happens twice, nothing is
left half done, and whoever goes on ends where an undisturbed run would have.

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
from effect_sweep import (
    CALLS,
    KILLED,
    PLAN,
    TROUBLED_CALLS,
    VERBS,
    Point,
    Undisturbed,
    check_end,
    choose,
    find_points,
    find_starts,
    go_on,
    lay_out,
)
from sweep import SWEEP_ALL, SWEPT
from workspace import finish

pytestmark = pytest.mark.proof

MODES = ("alone", "together", "each")


def find_all_points(undisturbed: Undisturbed, kind: str) -> list[tuple[str, Point]]:
    own = undisturbed.calls
    points = {mode: find_points(own, kind) for mode in MODES}
    points["each"] = find_points(undisturbed.all_calls, kind)
    if kind == "execve":
        points["alone"] = points["together"] = find_starts(own)
    return [(mode, point) for mode in MODES for point in points[mode]]


EACH = [("effects", kind) for kind in CALLS]
EACH += [("trouble", kind) for kind in (TROUBLED_CALLS if SWEEP_ALL else TROUBLED_CALLS[:2])]

AGAIN = [("effects", kind) for kind in ("pwrite64", "fsync", "rename", "vfork,clone,clone3")]
AGAIN += [("trouble", kind) for kind in TROUBLED_CALLS if SWEEP_ALL]


@SWEPT
@pytest.mark.parametrize(("undisturbed_run", "kind"), EACH, indirect=["undisturbed_run"])
def test_effects_survive_a_kill(
    tmp_path: Path, system_tmp: Path, undisturbed_run: Undisturbed, kind: str
) -> None:
    """C83, C95, C97, C100, C101: wherever assay is killed, going on ends as if nothing had been,
    after an operator was asked at most what only the world can tell; no effect without a key
    happens twice, a compensable one stands exactly once."""
    points = find_all_points(undisturbed_run, kind)
    assert points
    for mode, point in choose(kind, points):
        scene = lay_out(tmp_path / f"{mode}-{point.number}", system_tmp, undisturbed_run.plan)
        done = scene.kill_at(point, mode)
        may_fail = mode == "each" or done.code not in KILLED
        go_on(scene, VERBS[point.number % 2], may_fail=may_fail)
        check_end(scene, undisturbed_run)
        shutil.rmtree(scene.workspace.root.parent)


@SWEPT
@pytest.mark.parametrize(("undisturbed_run", "kind"), AGAIN, indirect=["undisturbed_run"])
def test_going_on_may_be_killed_as_well(
    tmp_path: Path, system_tmp: Path, undisturbed_run: Undisturbed, kind: str
) -> None:
    """C95, C101, C103: who goes on is killed too, twice over, at any call: the next one completes
    it, and no effect is repeated or forgotten by that."""
    chance = random.Random(f"again {kind}")
    again = [
        point
        for each in ("pwrite64", "fdatasync", "fsync", "rename", "unlink", "kill,pidfd_send_signal")
        for point in find_points(undisturbed_run.calls, each)
    ]
    for mode, point in choose(f"again {kind}", find_all_points(undisturbed_run, kind)):
        scene = lay_out(tmp_path / f"{mode}-{point.number}", system_tmp, undisturbed_run.plan)
        codes = {scene.kill_at(point, mode).code}
        for _ in range(2):
            runs = scene.runs()
            if runs and runs[0]["status"] == "completed":
                break
            words = ("resume", "last") if runs and chance.random() < 0.5 else ("run", "-j2")
            far = chance.choice(again)
            near = Point(far.call, chance.randint(1, far.number))
            codes.add(scene.kill_at(near, mode, *words).code)
        may_fail = mode == "each" or not codes <= {*KILLED, 4}
        go_on(scene, chance.choice(VERBS), may_fail=may_fail)
        check_end(scene, undisturbed_run)
        shutil.rmtree(scene.workspace.root.parent)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("node", ["change", "keyed", "keyless"])
def test_what_outlives_its_assay_is_left_to_end(
    tmp_path: Path, system_tmp: Path, undisturbed_effects: Undisturbed, node: str, verb: str
) -> None:
    """C97: a command with an effect that goes on although its assay died is neither ended nor
    started beside itself; whoever goes on says so and waits for it."""
    scene = lay_out(tmp_path / "scene", system_tmp)
    gate = scene.ledger / "gate"
    os.mkfifo(gate)
    # The shell's parent is assay; who reads from the gate waits until it is opened.
    fatal = "if mkdir $LEDGER/fatal; then kill -9 $PPID; cat $LEDGER/gate; fi"
    head, found, rest = PLAN.partition(f"[nodes.{node}]")
    scene.workspace.write("plan.toml", head + found + rest.replace("echo ", f"{fatal}; echo ", 1))
    assert scene.assay("run", "-j2").code == -signal.SIGKILL
    before = scene.effects()

    words = ("resume", "last") if verb == "resume" else ("run", "-j2")
    going_on = scene.workspace.start(*words, env=scene.env)
    assert going_on.stderr is not None
    told = ""
    while "waiting until it ends" not in told:
        line = going_on.stderr.readline()
        assert line, told
        told += line
    assert f"`{node}` of run" in told
    assert scene.effects() == before
    gate.open("w").close()
    done = finish(going_on)

    assert done.code == (4 if node == "keyless" else 0), told + done.err
    assert len(scene.lines("keyless")) == 1
    assert go_on(scene, verb) == (1 if node == "keyless" else 0)
    check_end(scene, undisturbed_effects)
