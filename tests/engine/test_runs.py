"""Runs: rows, finding them, owners that live or died, fences."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import a_run, digest, finish, gone_owner, open_store, start_python

from assay.engine.identity import start_of, this_owner
from assay.engine.lock_files import HeldElsewhere, is_held
from assay.engine.runs import (
    LEASE_SECONDS,
    AmbiguousPrefix,
    Death,
    LostFence,
    NoSuchRun,
    RunExists,
    Runs,
)
from assay.engine.states import AttemptId, RunId, RunStatus
from assay.engine.store import Store
from assay.engine.store_errors import StoreDamaged

RUN = RunId("aaaaaaaa")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_a_run_comes_back_as_it_was_created(store: Store) -> None:
    """Every field, names of any bytes included."""
    row = dataclasses.replace(
        a_run(RUN, parent="bbbbbbbb-3"),
        plan_name="\udcff",
        plan_file="d/é\udcfe.toml",
        targets=("a\udcff", "b"),
        params=(("mode", "\udcff"),),
    )
    store.runs.create(row)
    assert store.runs.get(RUN) == row


def test_a_run_that_dispatched_nothing_comes_settled(store: Store) -> None:
    """One insert is all such a run costs."""
    row = dataclasses.replace(a_run(RUN, status=RunStatus.COMPLETED), agreed_with=RunId("bbbbbbbb"))
    store.runs.create(row)
    assert store.runs.get(RUN).agreed_with == "bbbbbbbb"
    assert store.runs.unsettled() == []


def test_creating_again_is_one_run(store: Store) -> None:
    """The same owner may repeat itself; another owner needs another id."""
    row = a_run(RUN)
    store.runs.create(row)
    store.runs.create(row)
    with pytest.raises(RunExists):
        store.runs.create(dataclasses.replace(row, owner=this_owner()))
    assert len(store.runs.list(10)) == 1


def test_new_ids_are_unused(store: Store) -> None:
    """8 lower-case hex digits that no run has."""
    ids = {store.runs.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(run) == 8 and set(run) <= set("0123456789abcdef") for run in ids)


def test_runs_are_listed_newest_first(store: Store) -> None:
    """All of them, or those of one plan file."""
    for number in range(6):
        store.runs.create(a_run(f"{number:08x}", plan_file=f"{number % 2}.toml"))
    assert [int(row.id, 16) for row in store.runs.list(4)] == [5, 4, 3, 2]
    assert [int(row.id, 16) for row in store.runs.list(9, "1.toml")] == [5, 3, 1]


def test_a_run_is_found_by_a_unique_prefix(store: Store) -> None:
    """Or by `last`; several that begin alike are named, newest first."""
    for run in ("abc00000", "abd00000", "ffffffff"):
        store.runs.create(a_run(run))
    assert store.runs.find("abc").id == "abc00000"
    assert store.runs.find("ffffffff").id == "ffffffff"
    assert store.runs.find("last").id == "ffffffff"
    with pytest.raises(AmbiguousPrefix) as caught:
        store.runs.find("ab")
    assert caught.value.matches == ("abd00000", "abc00000")


@pytest.mark.parametrize("wanted", ["abc", "", "%", "a*", "'", "\udcff", "LAST"])
def test_what_begins_no_run_is_no_run(store: Store, wanted: str) -> None:
    """No character of a prefix has a meaning of its own."""
    store.runs.create(a_run("ffffffff"))
    with pytest.raises(NoSuchRun):
        store.runs.find(wanted)


def test_last_of_an_empty_store_is_no_run(store: Store) -> None:
    """There is nothing to name."""
    with pytest.raises(NoSuchRun):
        store.runs.find("last")
    with pytest.raises(NoSuchRun):
        store.runs.get(RUN)


def test_settling_ends_a_run_once(store: Store) -> None:
    """What a run came to is written once; it waits for nobody any more."""
    store.runs.create(a_run(RUN))
    store.runs.set_waiting(RUN, (AttemptId("bbbbbbbb-1"),))
    store.runs.settle(
        RUN, 1, RunStatus.PARTIAL, {"built": 1, "failed": 1}, settled_at=5.0, plan_digest=digest(9)
    )
    row = store.runs.get(RUN)
    assert (row.status, row.counts, row.settled_at) == (
        RunStatus.PARTIAL,
        {"built": 1, "failed": 1},
        5.0,
    )
    assert row.plan_digest == digest(9)
    assert store.runs.waiting(RUN) == ()
    with pytest.raises(LostFence):
        store.runs.settle(RUN, 1, RunStatus.COMPLETED, {})
    assert store.runs.unsettled() == []


def test_a_claimed_run_is_under_a_new_fence(store: Store) -> None:
    """Of several that saw the same fence one gets the run, and the old owner, whom the row still
    names, finds out at its next write."""
    row = a_run(RUN)
    store.runs.create(row)
    assert not store.runs.has_claimed(row)
    assert store.runs.claim(RUN, 1) == 2
    assert store.runs.get(RUN) == dataclasses.replace(row, fence=2)
    assert store.runs.has_claimed(store.runs.get(RUN))
    for attempt in (
        lambda: store.runs.claim(RUN, 1),
        lambda: store.runs.heartbeat(RUN, 1),
        lambda: store.runs.check_fence(RUN, 1),
        lambda: store.runs.set_plan_digest(RUN, 1, digest(2)),
        lambda: store.runs.settle(RUN, 1, RunStatus.COMPLETED, {}),
    ):
        with pytest.raises(LostFence):
            attempt()
    store.runs.check_fence(RUN, 2)
    store.runs.heartbeat(RUN, 2)
    store.runs.set_plan_digest(RUN, 2, digest(2))
    store.runs.settle(RUN, 2, RunStatus.COMPLETED, {})


ENDED = [status for status in RunStatus if status not in (RunStatus.PENDING, RunStatus.RUNNING)]


@pytest.mark.parametrize("status", ENDED)
@pytest.mark.parametrize("even_completed", [False, True])
def test_a_run_that_settled_is_gone_on_with(
    store: Store, status: RunStatus, even_completed: bool
) -> None:
    """C103: under a new fence and as if it had not ended, unless it completed and nobody takes
    anything of it back; all else of it stays."""
    before = dataclasses.replace(a_run(RUN), settled_at=None)
    store.runs.create(before)
    store.runs.cancel(RUN, "somebody")
    store.runs.settle(RUN, 1, status, {"built": 2}, settled_at=5.0)
    settled = store.runs.get(RUN)
    heir = this_owner()
    if status is RunStatus.COMPLETED and not even_completed:
        with pytest.raises(LostFence):
            store.runs.reopen(RUN, 1, heir)
        assert store.runs.get(RUN) == settled
        assert store.runs.cancel_of(RUN) is not None
        return
    assert store.runs.reopen(RUN, 1, heir, even_completed=even_completed) == 2
    found = store.runs.get(RUN)
    assert found == dataclasses.replace(
        before, owner=heir, fence=2, heartbeat_at=found.heartbeat_at
    )
    assert found.heartbeat_at > before.heartbeat_at
    # What ended it before does not end it again.
    assert store.runs.cancel_of(RUN) is None
    assert [row.id for row in store.runs.unsettled()] == [RUN]
    for attempt in (
        lambda: store.runs.reopen(RUN, 1, this_owner(), even_completed=True),
        lambda: store.runs.reopen(RUN, 2, this_owner(), even_completed=True),
        lambda: store.runs.check_fence(RUN, 1),
        lambda: store.runs.settle(RUN, 1, RunStatus.COMPLETED, {}),
    ):
        with pytest.raises(LostFence):
            attempt()
    store.runs.settle(RUN, 2, RunStatus.COMPLETED, {"built": 3})
    assert store.runs.get(RUN).counts == {"built": 3}


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING])
def test_a_run_that_has_not_settled_is_not_reopened(store: Store, status: RunStatus) -> None:
    """Nor one that never was, nor under a fence that is not its own."""
    store.runs.create(a_run(RUN, status=status))
    for run, fence in ((RUN, 1), (RUN, 2), (RunId("bbbbbbbb"), 1)):
        with pytest.raises(LostFence):
            store.runs.reopen(run, fence, this_owner(), even_completed=True)
    assert store.runs.get(RUN) == a_run(RUN, status=status, owner=store.runs.get(RUN).owner)


CLAIMER = """
import sys, store_rows
from assay.engine.runs import LostFence
store = store_rows.open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    if sys.argv[2] == "claim":
        print("got", store.runs.claim("aaaaaaaa", 1))
    else:
        print("got", store.runs.reopen("aaaaaaaa", 1, store_rows.this_owner()))
except LostFence:
    print("lost")
store.close()
"""


@pytest.mark.parametrize(
    ("how", "status"), [("claim", RunStatus.RUNNING), ("reopen", RunStatus.INTERRUPTED)]
)
def test_of_many_claimers_one_wins(
    store: Store, tmp_path: Path, how: str, status: RunStatus
) -> None:
    """C103: a run whose owner died, or that settled, is taken over once."""
    store.runs.create(a_run(RUN, status=status))
    claimers = [start_python(CLAIMER, str(tmp_path), how) for _ in range(6)]
    for claimer in claimers:
        assert claimer.stdout is not None
        claimer.stdout.readline()
    said = sorted(finish(claimer, "go\n") for claimer in claimers)
    assert said == ["got 2\n"] + ["lost\n"] * 5


OWNER = """
import sys, store_rows
store = store_rows.open_store(sys.argv[1])
lease = store.runs.take_lease("aaaaaaaa")
store.runs.create(store_rows.a_run("aaaaaaaa"))
print("holds", flush=True)
sys.stdin.readline()
"""


def test_an_owner_lives_while_it_holds_its_lease(store: Store, tmp_path: Path) -> None:
    """Stopped it lives, killed it is dead at once, whatever its pid shows."""
    owner = start_python(OWNER, str(tmp_path))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "holds\n"
    assert store.runs.is_alive(RUN)
    with pytest.raises(HeldElsewhere):
        store.runs.take_lease(RUN)
    owner.send_signal(signal.SIGSTOP)
    assert store.runs.is_alive(RUN)
    owner.kill()
    owner.communicate()
    assert not store.runs.is_alive(RUN)
    with store.runs.take_lease(RUN) as lease:
        assert store.runs.is_alive(RUN)
        assert not os.get_inheritable(lease.descriptor)
    assert not store.runs.is_alive(RUN)


def test_the_pid_of_a_dead_owner_proves_nothing(store: Store) -> None:
    """A run whose owner's pid lives (reused, or this one) but whose lease is free is dead."""
    store.runs.create(a_run(RUN, owner=this_owner()))
    Path(store.runs.lease_path(RUN)).touch()
    assert store.runs.find_death(store.runs.get(RUN)) is Death.LEASE_FREE


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lease_file_that_is_not_there_tells_nothing(
    store: Store, tmp_path: Path, how: str
) -> None:
    """Removed, or another one in its place: the owner's process is looked for; a pid that another
    process has by now is not it."""
    owner = start_python(OWNER, str(tmp_path))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "holds\n"
    row = dataclasses.replace(
        store.runs.get(RUN),
        owner=dataclasses.replace(this_owner(), pid=owner.pid, pid_start=start_of(owner.pid) or 0),
    )
    Path(store.runs.lease_path(RUN)).unlink()
    if how == "replaced":
        Path(store.runs.lease_path(RUN)).touch()
    assert store.runs.find_death(row) is None
    other = dataclasses.replace(row.owner, pid_start=row.owner.pid_start + 1)
    gone = Death.PID_GONE if how == "removed" else Death.LEASE_FREE
    assert store.runs.find_death(dataclasses.replace(row, owner=other)) is gone
    owner.kill()
    # A zombie does nothing any more.
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert store.runs.find_death(row) is gone
    owner.communicate()


def test_settled_and_unknown_runs_do_not_live(store: Store) -> None:
    """Even while someone holds a lease of that name."""
    with store.runs.take_lease(RUN):
        assert not store.runs.is_alive(RUN)
        store.runs.create(a_run(RUN, status=RunStatus.COMPLETED))
        assert not store.runs.is_alive(RUN)


def test_an_owner_of_an_earlier_boot_is_dead(store: Store) -> None:
    """On this host under another boot id nothing can live, fresh heartbeat or not."""
    owner = dataclasses.replace(this_owner(), boot="another")
    store.runs.create(dataclasses.replace(a_run(RUN, owner=owner), heartbeat_at=store.now()))
    assert not store.runs.is_alive(RUN)


class Watched:
    """A run of another host, as this one sees it: its wall clock, and the one that is never set."""

    def __init__(self, root: Path, *, boot: str = "another") -> None:
        self.wall, self.monotonic = 1000.0, 5.0
        self.store = open_store(root)
        self.runs = Runs(
            self.store.database, lambda: self.wall, lambda: self.store.tmp, lambda: self.monotonic
        )
        owner = dataclasses.replace(gone_owner(), boot=boot, host="elsewhere")
        self.runs.create(a_run(RUN, owner=owner, created_at=1000.0))

    @property
    def death(self) -> Death | None:
        return self.runs.find_death(self.runs.get(RUN))

    def beat(self, *, clock: float = 0.0) -> None:
        """Its heart beats, by a clock that differs by so much."""
        self.wall += 0.001
        at = self.wall + clock
        self.store.database.execute("UPDATE runs SET heartbeat_at = ?", (at,))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.store.close()


@pytest.mark.parametrize("clock", [0.0, 120.0, -120.0, 1e9])
def test_an_owner_on_another_host_lives_while_its_heart_beats(
    watched: Watched, clock: float
) -> None:
    """However far its clock is from this one's, and however long this process was away."""
    for _ in range(20):
        watched.beat(clock=clock)
        assert watched.death is None
        assert watched.runs.is_alive(RUN)
        watched.wall += LEASE_SECONDS - 1
        watched.monotonic += LEASE_SECONDS - 1
        assert watched.death is None
    watched.monotonic += 1000
    watched.beat(clock=clock)
    assert watched.death is None


@pytest.mark.parametrize("clock", [0.0, 120.0, -120.0, 1e9])
def test_an_owner_on_another_host_is_gone_once_its_heart_was_seen_standing_still(
    watched: Watched, clock: float
) -> None:
    """For the time of its lease, by the clock of who looks; a new owner counts for itself."""
    watched.beat(clock=clock)
    watched.wall += 1e6
    assert watched.death is None
    watched.monotonic += LEASE_SECONDS - 0.1
    assert watched.death is None
    watched.monotonic += 0.1
    assert watched.death is Death.HEART_STILL
    assert not watched.runs.is_alive(RUN)
    watched.runs.claim(RUN, 1)
    assert watched.death is None


def test_an_owner_on_another_host_seems_alive_by_the_clock(watched: Watched) -> None:
    """That is to be shown. It is in doubt as long as nothing is heard of it."""
    assert watched.runs.seems_alive(RUN)
    assert not watched.runs.is_doubtful(watched.runs.get(RUN))
    watched.wall += LEASE_SECONDS
    assert not watched.runs.seems_alive(RUN)
    assert watched.runs.is_doubtful(watched.runs.get(RUN))
    # Its clock is behind, and it lives.
    watched.beat(clock=-2 * LEASE_SECONDS)
    assert not watched.runs.is_doubtful(watched.runs.get(RUN))
    watched.monotonic += LEASE_SECONDS
    assert watched.death is Death.HEART_STILL
    assert not watched.runs.is_doubtful(watched.runs.get(RUN))


def test_a_container_of_this_machine_is_judged_by_its_lease(tmp_path: Path) -> None:
    """Locks are those of one kernel. Its pids are not, so where the file is gone its heartbeat
    tells, as of another machine."""
    watched = Watched(tmp_path, boot=this_owner().boot)
    with watched.runs.take_lease(RUN):
        watched.monotonic += 10 * LEASE_SECONDS
        assert watched.death is None
    assert watched.death is Death.LEASE_FREE
    Path(watched.runs.lease_path(RUN)).unlink()
    assert watched.death is None
    watched.monotonic += LEASE_SECONDS
    assert watched.death is Death.HEART_STILL
    watched.store.close()


def test_a_lease_is_removed_with_its_run(store: Store) -> None:
    """Settled runs leave no file behind, and letting go twice is harmless."""
    lease = store.runs.take_lease(RUN)
    assert Path(store.runs.lease_path(RUN)).exists()
    lease.release(remove=True)
    lease.release(remove=True)
    assert not Path(store.runs.lease_path(RUN)).exists()


def test_the_lease_of_the_next_owner_is_not_removed(store: Store) -> None:
    """Who lets go late removes no file but its own."""
    late = store.runs.take_lease(RUN)
    Path(store.runs.lease_path(RUN)).unlink()
    with store.runs.take_lease(RUN):
        late.release(remove=True)
        assert is_held(store.runs.lease_path(RUN))


def test_plans_are_kept_once(store: Store) -> None:
    """The plan value is stored with the run, the same one of many runs once."""
    assert store.runs.load_plan(digest(1)) is None
    store.runs.save_plan(digest(1), b"plan")
    store.runs.save_plan(digest(1), b"plan")
    assert store.runs.load_plan(digest(1)) == b"plan"


def test_whom_a_run_waits_for(store: Store) -> None:
    """Set, replaced and cleared."""
    store.runs.create(a_run(RUN))
    assert store.runs.waiting(RUN) == ()
    store.runs.set_waiting(RUN, (AttemptId("bbbbbbbb-1"), AttemptId("cccccccc-2")))
    assert store.runs.waiting(RUN) == ("bbbbbbbb-1", "cccccccc-2")
    store.runs.set_waiting(RUN, ())
    assert store.runs.waiting(RUN) == ()


@pytest.mark.parametrize("column", ["counts", "targets", "params", "status"])
def test_a_row_that_cannot_be_read_is_damage(store: Store, column: str) -> None:
    """A run is never shown half."""
    store.runs.create(a_run(RUN))
    store.database.execute(f"UPDATE runs SET {column} = '[[1'")
    with pytest.raises(StoreDamaged, match="run aaaaaaaa"):
        store.runs.get(RUN)
