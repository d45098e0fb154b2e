"""Recovery: who deals with what a dead owner has left, when several want to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from probe import Probe, Probes
from store_rows import a_run, an_attempt, digest, open_store

from assay.engine import lock_files
from assay.engine.blobs import Blobs
from assay.engine.clock import SystemClock
from assay.engine.journal import Fact
from assay.engine.measuring import Measurer
from assay.engine.ownership import find_taker
from assay.engine.recovery import Recovered, recover
from assay.engine.runs import LEASE_SECONDS, Death, RunRow, Runs
from assay.engine.states import AttemptEnd, AttemptId, RunId, RunStatus, State
from assay.plans.model import Digest, RelPath

# /proc shows the whole machine, where other tests run: the name must be unique.
RUN = RunId(f"{os.getpid():08x}")
ATTEMPT = AttemptId(f"{RUN}-1")
SOURCE = RelPath("src/main.c")


class Meanwhile(Runs):
    """Lets something happen once an owner was found dead, before anything is done about it."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def find_death(self, row: RunRow) -> Death | None:
        found = super().find_death(row)
        if found is not None and lock_files.is_held(f"{self._tmp()}/recovery.lock"):
            self.happens()
        return found


class Asked(Blobs):
    """Lets something happen while the inputs of an attempt are put back."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def has(self, digest: Digest) -> bool:
        self.happens()
        return super().has(digest)


class Scene:
    """A run whose owner is dead, with a sealed attempt under way, and another process that looks
    at the same store."""

    def __init__(self, root: Path) -> None:
        self.store, self.other = open_store(root), open_store(root)
        self.monotonic = 0.0
        self.runs = Meanwhile(
            self.store.database,
            self.store.now,
            lambda: self.store.tmp,
            lambda: self.monotonic,
        )
        self.store.runs = self.runs
        self.blobs = Asked(self.store.cas, self.store.tmp)
        self.runs.create(a_run(RUN))
        before = {SOURCE: State(f"file:{digest(3)}")}
        self.store.attempts.begin(an_attempt(RUN, 1, before=before))

    def recover(self) -> Recovered:
        measurer = Measurer(self.store.root, self.store.stats, SystemClock().now_ns)
        return recover(self.store, measurer, self.blobs, SystemClock())

    def facts(self) -> list[str]:
        return [record.kind for record in self.store.journal.read(run=RUN)]

    @property
    def end(self) -> AttemptEnd | None:
        found = self.store.attempts.get(ATTEMPT)
        assert found is not None
        return found.end


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.store.close()
    scene.other.close()


@pytest.fixture
def node(probes: Probes) -> Iterator[Probe]:
    """A process that looks like one of the attempt."""
    environ = {**os.environ, "ASSAY_ATTEMPT": ATTEMPT}
    with subprocess.Popen(probes.argv("node"), env=environ, start_new_session=True) as process:
        yield probes.arrive("node")
        process.kill()


def test_a_run_is_claimed_before_anything_is_done_about_it(scene: Scene) -> None:
    """On record, with the evidence; the row goes on naming who had it, and so does what is told."""
    before = scene.runs.get(RUN)
    owner = before.owner
    seen: list[int] = []
    scene.blobs.happens = lambda: seen.append(scene.other.runs.get(RUN).fence)
    found = scene.recover()
    assert seen == [2]
    assert found.told == (f"run {RUN} was interrupted: its assay (pid {owner.pid}) is gone",)
    after = scene.runs.get(RUN)
    assert (after.status, after.fence, after.owner) == (RunStatus.INTERRUPTED, 2, owner)
    assert scene.facts() == [Fact.RUN_CLAIMED, Fact.ATTEMPT_SETTLED, Fact.RUN_SETTLED]
    claimed, _, settled = scene.store.journal.read(run=RUN)
    assert isinstance(claimed.data, dict)
    assert claimed.data["from"] == {
        "host": owner.host,
        "boot": owner.boot,
        "pid": owner.pid,
        "nonce": owner.nonce,
        "fence": 1,
    }
    assert claimed.data["evidence"] == "pid gone"
    assert claimed.data["purpose"] == "recovery"
    here = os.uname().nodename
    assert settled.data == {"status": "interrupted", "by": os.getpid(), "host": here}
    taker = find_taker(scene.store, RUN, 1)
    assert taker is not None
    assert (taker.pid, taker.host, taker.fence) == (os.getpid(), here, 2)


def test_a_run_that_somebody_else_claims_first_is_left_to_them(scene: Scene, node: Probe) -> None:
    """Nothing of it is ended, put back or recorded."""
    claims = iter([1])
    scene.runs.happens = lambda: [scene.other.runs.claim(RUN, each) for each in claims]
    scene.blobs.happens = lambda: pytest.fail("it is put back")
    assert scene.recover() == Recovered()
    assert node.is_alive
    assert (scene.runs.get(RUN).fence, scene.end, scene.facts()) == (2, None, [])


def test_a_run_that_goes_on_meanwhile_is_left_alone(scene: Scene) -> None:
    """An owner that was taken for dead has settled its attempt: no traceback, and what it says
    stands."""

    def settle() -> None:
        if scene.end is None:
            scene.other.attempts.settle(ATTEMPT, AttemptEnd.SUCCEEDED, 0, None, "", 1.0)
            scene.other.runs.settle(RUN, 1, RunStatus.COMPLETED, {})

    scene.runs.happens = settle
    assert scene.recover() == Recovered()
    assert scene.end is AttemptEnd.SUCCEEDED
    assert scene.runs.get(RUN).status is RunStatus.COMPLETED


def test_a_run_that_is_claimed_from_its_recovery_is_left_to_them(scene: Scene) -> None:
    """Whoever was slower records nothing and ends without a traceback."""
    claims = iter([2])
    scene.blobs.happens = lambda: [scene.other.runs.claim(RUN, each) for each in claims]
    assert scene.recover() == Recovered()
    row = scene.runs.get(RUN)
    assert (row.status, row.fence, scene.end) == (RunStatus.RUNNING, 3, None)
    assert scene.facts() == [Fact.RUN_CLAIMED]
    # The next one deals with it.
    assert len(scene.recover().told) == 1
    assert scene.end is AttemptEnd.LOST


def test_what_another_host_began_is_not_judged_by_the_processes_of_this_one(
    scene: Scene, node: Probe
) -> None:
    """Its owner is watched, then found gone; a process of this host that has its pids, or even
    carries its attempt, is not it. Its lease, where it can be seen, holds the attempt."""
    scene.store.database.execute(
        "UPDATE runs SET owner_host = ?, owner_boot = ?, owner_pid = ?",
        ("elsewhere", "another", 77),
    )
    scene.store.attempts.record_pid(ATTEMPT, node.pid)
    (watched,) = scene.recover().awaited
    assert watched.is_watched
    assert scene.facts() == []
    scene.monotonic += LEASE_SECONDS
    with lock_files.take(f"{scene.store.tmp}/{ATTEMPT}.lease"):
        (awaited,) = scene.recover().awaited
        assert awaited.is_out_of_reach
        assert scene.facts() == []
    found = scene.recover()
    assert found.told == (
        f"run {RUN} was interrupted: its assay (pid 77 on elsewhere) has given no sign of life"
        " for 30s",
    )
    assert scene.end is AttemptEnd.LOST
    assert node.is_alive
    assert scene.runs.get(RUN).owner.pid == 77
