"""Runs: who executes which plan, whether that owner lives, and how it ended.

Knows rows, leases and fences; not what a node is nor when a run should settle.

A run's owner holds the lock of its lease file for as long as it lives. That the file is gone, or
another one in its place, tells nothing of it: then its process is looked for. Whoever takes a run
over raises its fence; every write of an owner names the fence it knows, so one that lost
its run finds out before it writes anything more.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from assay.engine import lock_files
from assay.engine.columns import from_column, from_json, to_column, to_json
from assay.engine.identity import Owner, boot_id, this_host, this_owner
from assay.engine.lock_files import Lock, LockFile
from assay.engine.states import AttemptId, RunId, RunStatus

if TYPE_CHECKING:
    from assay.engine.database import Database, Row

__all__ = [
    "LEASE_SECONDS",
    "AmbiguousPrefix",
    "Cancel",
    "Death",
    "Lease",
    "LostFence",
    "NoSuchRun",
    "Owner",
    "RunExists",
    "RunRow",
    "Runs",
    "describe_owner",
    "this_owner",
]

Lease = LockFile
"""A held lease of a run."""

LEASE_SECONDS: Final = 30.0
"""An owner on another host is gone when its heartbeat was seen standing still for this long."""


class Death(StrEnum):
    """What shows that the owner of a run is gone."""

    LEASE_FREE = "lease free"
    PID_GONE = "pid gone"
    """Its lease file is gone too."""
    BOOT_CHANGED = "boot changed"
    HEART_STILL = "lease expired and heartbeat still"


@dataclass(frozen=True, slots=True)
class RunRow:
    id: RunId
    plan_name: str
    plan_file: str
    plan_digest: str
    status: RunStatus
    created_at: float
    settled_at: float | None
    owner: Owner
    fence: int
    heartbeat_at: float
    parent_attempt: AttemptId | None
    selected: int
    counts: Mapping[str, int]
    agreed_with: RunId | None
    targets: tuple[str, ...]
    params: tuple[tuple[str, str], ...]


Rows = list[RunRow]
"""Named here because `Runs` has a method `list`."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """That a run was asked to stop: `by` whom, in words, and when; `around` is the run it
    was asked of, when that is one that this run is nested in."""

    by: str
    at: float
    around: RunId | None


class NoSuchRun(Exception):
    """No run has this id or prefix; `last` is asked of a store without runs."""

    def __init__(self, wanted: str) -> None:
        super().__init__(f"there is no run `{wanted}`")
        self.wanted = wanted


class AmbiguousPrefix(Exception):
    """Several runs begin alike; `matches` holds up to ten of them, newest first."""

    def __init__(self, prefix: str, matches: Sequence[RunId]) -> None:
        super().__init__(f"`{prefix}` begins the ids of several runs: {', '.join(matches)}")
        self.prefix = prefix
        self.matches = tuple(matches)


class RunExists(Exception):
    """A run of another owner has this id: take a new one."""

    def __init__(self, run: RunId) -> None:
        super().__init__(f"run {run} exists already")
        self.run = run


class LostFence(Exception):
    """The run has another owner now, or settled: its former owner writes nothing more."""

    def __init__(self, run: RunId, fence: int) -> None:
        super().__init__(f"run {run} is no longer held under fence {fence}")
        self.run = run
        self.fence = fence


_COLUMNS: Final = (
    "id, plan_name, plan_file, plan_digest, status, created_at, settled_at, owner_host,"
    " owner_boot, owner_pid, owner_pid_start, owner_nonce, fence, heartbeat_at,"
    " parent_attempt, selected, counts, agreed_with, targets, params"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM runs"
_INSERT: Final = (
    f"INSERT INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * 20)}) ON CONFLICT (id) DO NOTHING"
)
_OPEN: Final = "status IN ('pending', 'running')"


@dataclass(slots=True)
class _Sighting:
    """A heartbeat of an owner on another host, as this process has seen it."""

    beat: tuple[int, float]
    """Fence and heartbeat."""
    since: float
    """When it was seen first, on the clock that is never set."""
    has_moved: bool
    """Whether it was another one before."""


class Runs:
    def __init__(
        self,
        database: Database,
        now: Callable[[], float],
        tmp: Callable[[], str],
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """`tmp()` is the folder for lease files."""
        self._database = database
        self._now = now
        self._tmp = tmp
        self._monotonic = monotonic
        self._sightings: dict[RunId, _Sighting] = {}
        self._claimed: dict[RunId, int] = {}

    def new_id(self) -> RunId:
        """An id no run of this store has: to be used in the same transaction."""
        while True:
            run = RunId(os.urandom(4).hex())
            if self._database.query_one("SELECT 1 FROM runs WHERE id = ?", (run,)) is None:
                return run

    def create(self, row: RunRow) -> None:
        """Add a run; again for the same run and owner changes nothing. One that
        dispatched nothing may come settled. Raises RunExists for another owner's id."""
        added = self._database.execute(
            _INSERT,
            (
                row.id,
                to_column(row.plan_name),
                to_column(row.plan_file),
                row.plan_digest,
                row.status.value,
                row.created_at,
                row.settled_at,
                *_owner_columns(row.owner),
                row.fence,
                row.heartbeat_at,
                row.parent_attempt,
                row.selected,
                to_json(row.counts),
                row.agreed_with,
                to_json(row.targets),
                to_json(row.params),
            ),
        )
        if not added and self.get(row.id).owner != row.owner:
            raise RunExists(row.id)

    def heartbeat(self, run: RunId, fence: int) -> None:
        """Say that the owner lives. Raises LostFence."""
        changed = self._database.execute(
            f"UPDATE runs SET heartbeat_at = ? WHERE id = ? AND fence = ? AND {_OPEN}",
            (self._now(), run, fence),
        )
        if not changed:
            raise LostFence(run, fence)

    def check_fence(self, run: RunId, fence: int) -> None:
        """Raises LostFence when the run is not held under `fence`; inside a transaction
        the answer holds until its end."""
        row = self._database.query_one(
            f"SELECT 1 FROM runs WHERE id = ? AND fence = ? AND {_OPEN}", (run, fence)
        )
        if row is None:
            raise LostFence(run, fence)

    def settle(
        self,
        run: RunId,
        fence: int,
        status: RunStatus,
        counts: Mapping[str, int],
        *,
        settled_at: float | None = None,
        agreed_with: RunId | None = None,
        plan_digest: str | None = None,
    ) -> None:
        """End a run, at `settled_at` or now. `plan_digest` when generations changed it.
        Raises LostFence."""
        changed = self._database.execute(
            "UPDATE runs SET status = ?, counts = ?, settled_at = ?, agreed_with = ?,"
            " plan_digest = coalesce(?, plan_digest), waiting = '[]'"
            f" WHERE id = ? AND fence = ? AND {_OPEN}",
            (
                status.value,
                to_json(counts),
                self._now() if settled_at is None else settled_at,
                agreed_with,
                plan_digest,
                run,
                fence,
            ),
        )
        if not changed:
            raise LostFence(run, fence)

    def set_plan_digest(self, run: RunId, fence: int, digest: str) -> None:
        """The plan grew by a generation. Raises LostFence."""
        changed = self._database.execute(
            f"UPDATE runs SET plan_digest = ? WHERE id = ? AND fence = ? AND {_OPEN}",
            (digest, run, fence),
        )
        if not changed:
            raise LostFence(run, fence)

    def claim(self, run: RunId, fence: int) -> int:
        """Take on what a dead owner, seen under `fence`, has left; the new fence. The run is to
        be settled, not gone on with: its row keeps naming who had it. Raises LostFence when
        someone else was faster."""
        changed = self._database.execute(
            "UPDATE runs SET fence = fence + 1, waiting = '[]'"
            f" WHERE id = ? AND fence = ? AND {_OPEN}",
            (run, fence),
        )
        if not changed:
            raise LostFence(run, fence)
        self._claimed[run] = fence + 1
        return fence + 1

    def has_claimed(self, row: RunRow) -> bool:
        """Whether it was this process that has claimed the run last."""
        return self._claimed.get(row.id) == row.fence

    def reopen(
        self,
        run: RunId,
        fence: int,
        owner: Owner,
        *,
        parent: AttemptId | None = None,
        even_completed: bool = False,
    ) -> int:
        """Go on with a run that settled under `fence`, without completing unless
        `even_completed`; the new fence. `parent` is the attempt that it is nested in from now
        on. The caller holds its lease. Raises LostFence when someone else was faster."""
        changed = self._database.execute(
            "UPDATE runs SET status = 'running', settled_at = NULL, cancel = NULL, counts = '{}',"
            " fence = fence + 1, owner_host = ?, owner_boot = ?, owner_pid = ?,"
            " owner_pid_start = ?, owner_nonce = ?, heartbeat_at = ?, parent_attempt = ?,"
            " waiting = '[]'"
            f" WHERE id = ? AND fence = ? AND NOT {_OPEN} AND (? OR status <> 'completed')",
            (
                *_owner_columns(owner),
                self._now(),
                parent,
                run,
                fence,
                even_completed,
            ),
        )
        if not changed:
            raise LostFence(run, fence)
        return fence + 1

    def get(self, run: RunId) -> RunRow:
        """The run with this id. Raises NoSuchRun."""
        row = self._database.query_one(f"{_SELECT} WHERE id = ?", (run,))
        if row is None:
            raise NoSuchRun(run)
        return self._decode(row)

    def list(self, limit: int, plan_file: str | None = None) -> Rows:
        """The newest runs, newest first."""
        if plan_file is None:
            rows = self._database.query(f"{_SELECT} ORDER BY ordinal DESC LIMIT ?", (limit,))
        else:
            rows = self._database.query(
                f"{_SELECT} WHERE plan_file = ? ORDER BY ordinal DESC LIMIT ?",
                (to_column(plan_file), limit),
            )
        return [self._decode(row) for row in rows]

    def find(self, prefix: str) -> RunRow:
        """The run whose id begins with `prefix`; `last` is the newest. Raises NoSuchRun
        and AmbiguousPrefix."""
        if prefix == "last":
            rows = self._database.query(f"{_SELECT} ORDER BY ordinal DESC LIMIT 1")
        else:
            rows = self._database.query(
                f"{_SELECT} WHERE substr(id, 1, ?) = ? ORDER BY ordinal DESC LIMIT 10",
                (len(prefix), to_column(prefix)),
            )
        if not rows or not prefix:
            raise NoSuchRun(prefix)
        found = [self._decode(row) for row in rows]
        exact = [row for row in found if row.id == prefix]
        if len(found) > 1 and not exact:
            raise AmbiguousPrefix(prefix, [row.id for row in found])
        return (exact or found)[0]

    def unsettled(self) -> Rows:
        """Runs that are pending or running, oldest first, whether their owners live or not."""
        return [
            self._decode(row)
            for row in self._database.query(f"{_SELECT} WHERE {_OPEN} ORDER BY ordinal")
        ]

    def last_created(self) -> dict[str, float]:
        """Plan file to when its newest run was created."""
        return {
            from_column(plan_file): at
            for plan_file, at in self._database.query(
                "SELECT plan_file, max(created_at) FROM runs GROUP BY plan_file"
            )
        }

    def set_waiting(self, run: RunId, attempts: tuple[AttemptId, ...]) -> None:
        """The attempts of other runs that nodes of this one wait for now."""
        self._database.execute("UPDATE runs SET waiting = ? WHERE id = ?", (to_json(attempts), run))

    def waiting(self, run: RunId) -> tuple[AttemptId, ...]:
        row = self._database.query_one("SELECT waiting FROM runs WHERE id = ?", (run,))
        if row is None:
            return ()
        try:
            return tuple(AttemptId(attempt) for attempt in from_json(row[0]))
        except (ValueError, TypeError) as error:
            raise self._database.damaged(f"the row of run {run} cannot be read") from error

    def cancel(self, run: RunId, by: str, around: RunId | None = None) -> bool:
        """Ask the run to stop, durably; its owner sees it soon. False when it was asked
        before, has settled or never was."""
        return bool(
            self._database.execute(
                f"UPDATE runs SET cancel = ? WHERE id = ? AND cancel IS NULL AND {_OPEN}",
                (to_json([by, self._now(), around]), run),
            )
        )

    def cancel_of(self, run: RunId) -> Cancel | None:
        """Who asked the run to stop, None when nobody did."""
        row = self._database.query_one("SELECT cancel FROM runs WHERE id = ?", (run,))
        if row is None or row[0] is None:
            return None
        try:
            by, at, around = from_json(row[0])
            return Cancel(str(by), float(at), None if around is None else RunId(around))
        except (ValueError, TypeError) as error:
            raise self._database.damaged(f"the row of run {run} cannot be read") from error

    def lease_path(self, run: RunId) -> str:
        """Absolute path of the file whose lock the run's owner holds."""
        return f"{self._tmp()}/run-{run}.lease"

    def take_lease(self, run: RunId) -> Lease:
        """The run's lease, held until released or the process ends; to be taken before the
        run's row is there for others to see. Raises lock_files.HeldElsewhere while its
        owner lives. `release(remove=True)` once the run has settled."""
        return lock_files.take(self.lease_path(run))

    def is_alive(self, run: RunId) -> bool:
        """Whether the run's owner may live, as `find_death` has it. A stopped owner lives. False
        for a run that settled or never was."""
        row = self._find_unsettled(run)
        return row is not None and self.find_death(row) is None

    def seems_alive(self, run: RunId) -> bool:
        """As `is_alive` for who cannot watch: an owner on another host by when its last heartbeat
        was. To be shown, and no ground to take anything from it: clocks differ."""
        row = self._find_unsettled(run)
        if row is None:
            return False
        return self._is_recent(row) if self.is_remote(row) else self.find_death(row) is None

    def find_death(self, row: RunRow) -> Death | None:
        """What shows that the owner of an unsettled run is gone; None while it may live.

        On this kernel it lives while it holds its lease, whatever pids show. One on another host
        is gone once this process has seen its heartbeat standing still for LEASE_SECONDS, by its
        own clock: to be asked again until then.
        """
        if self.is_remote(row):
            return self._watch(row)
        if row.owner.boot != boot_id():
            return Death.BOOT_CHANGED
        return self._find_death_here(row)

    def is_doubtful(self, row: RunRow) -> bool:
        """Whether an owner on another host, not known to be gone, has given no sign of life:
        neither of late, going by its clock and ours, nor as long as it was watched."""
        if not self.is_remote(row) or self._is_recent(row) or self._watch(row) is not None:
            return False
        return not self._sightings[row.id].has_moved

    def is_remote(self, row: RunRow) -> bool:
        """Whether all that can be seen of the owner is its heartbeat: neither its lease, nor what
        its pid means."""
        owner = row.owner
        if owner.host == this_host():
            return False
        # A container of this machine shares its locks, and not its pids.
        return (
            owner.boot != boot_id() or lock_files.look_at(self.lease_path(row.id)) is Lock.MISSING
        )

    def is_stopped(self, row: RunRow) -> bool:
        """Whether the owner is a process of this host that is stopped: it lives, and does nothing
        until it is continued."""
        from assay.engine import orphans

        if row.owner.host != this_host():
            return False
        found = orphans.find_process(row.owner.pid, row.owner.pid_start)
        return found is not None and found.state == "T"

    def shares_kernel(self, row: RunRow) -> bool:
        """Whether processes of the run, if there are any, are among those of this kernel."""
        return row.owner.boot == boot_id()

    def _find_unsettled(self, run: RunId) -> RunRow | None:
        try:
            row = self.get(run)
        except NoSuchRun:
            return None
        return row if row.settled_at is None else None

    def _is_recent(self, row: RunRow) -> bool:
        return row.heartbeat_at + LEASE_SECONDS > self._now()

    def _watch(self, row: RunRow) -> Death | None:
        now = self._monotonic()
        beat = (row.fence, row.heartbeat_at)
        seen = self._sightings.get(row.id)
        if seen is None or seen.beat != beat:
            self._sightings[row.id] = _Sighting(beat, now, has_moved=seen is not None)
            return None
        return Death.HEART_STILL if now - seen.since >= LEASE_SECONDS else None

    def _find_death_here(self, row: RunRow) -> Death | None:
        path = self.lease_path(row.id)
        found = lock_files.look_at(path)
        if found is Lock.HELD:
            return None
        from assay.engine import orphans

        owner = row.owner
        is_process = (
            owner.host == this_host()
            and orphans.find_process(owner.pid, owner.pid_start) is not None
        )
        if found is Lock.MISSING:
            return None if is_process else Death.PID_GONE
        # The file is free, unless it is another one than the owner has locked.
        if is_process and orphans.holds_removed(owner.pid, os.path.basename(path)):
            return None
        return Death.LEASE_FREE

    def save_plan(self, digest: str, data: bytes) -> None:
        """Keep a compiled plan; one that is kept already stays."""
        self._database.execute(
            "INSERT INTO plans (digest, data) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING",
            (digest, data),
        )

    def load_plan(self, digest: str) -> bytes | None:
        """What `save_plan` was given; the reader checks it against the digest."""
        row = self._database.query_one("SELECT data FROM plans WHERE digest = ?", (digest,))
        return None if row is None else bytes(row[0])

    def _decode(self, row: Row) -> RunRow:
        try:
            return RunRow(
                id=RunId(row[0]),
                plan_name=from_column(row[1]),
                plan_file=from_column(row[2]),
                plan_digest=row[3],
                status=RunStatus(row[4]),
                created_at=row[5],
                settled_at=row[6],
                owner=Owner(from_column(row[7]), row[8], row[9], row[10], row[11]),
                fence=row[12],
                heartbeat_at=row[13],
                parent_attempt=row[14],
                selected=row[15],
                counts=from_json(row[16]),
                agreed_with=row[17],
                targets=tuple(from_json(row[18])),
                params=tuple((name, value) for name, value in from_json(row[19])),
            )
        except (ValueError, TypeError) as error:
            raise self._database.damaged(f"the row of run {row[0]} cannot be read") from error


def describe_owner(row: RunRow) -> str:
    """Whose run it is, in words: `pid 4242`, elsewhere `pid 4242 on build-1`."""
    owner = row.owner
    return f"pid {owner.pid}" + ("" if owner.host == this_host() else f" on {owner.host}")


def _owner_columns(owner: Owner) -> tuple[str | bytes | int, ...]:
    """owner_host, owner_boot, owner_pid, owner_pid_start, owner_nonce."""
    return (to_column(owner.host), owner.boot, owner.pid, owner.pid_start, owner.nonce)
