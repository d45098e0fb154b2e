"""Attempts: each try of a node, what it claims while it runs, and how it ended.

Knows rows; not what a claim conflicts with, nor how processes are found.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from assay.engine.columns import from_column, from_json, to_column, to_json
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, RunId, State
from assay.plans.model import Entry, EntryKind, NodeName, RelPath

if TYPE_CHECKING:
    from assay.engine.database import Database, Row


class AttemptState(StrEnum):
    RUNNING = "running"
    """Begun and not settled: its process may live, or its assay died."""
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Claims:
    """What an attempt holds until it settles: its writes (and removes) exclusively, its
    reads shared, and what `locks` names: `lock NAME`, `node NAME of PLAN`, and, while it takes
    back what that did, `effect ATTEMPT`."""

    writes: tuple[Entry, ...] = ()
    reads: tuple[Entry, ...] = ()
    locks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptRow:
    id: AttemptId
    """`RUN-N`."""
    run: RunId
    node: NodeName
    action_key: ActionKey
    number: int
    """1 for the first try of the node in this run; 0 for a restore, which claims paths as a
    try does."""
    state: AttemptState
    end: AttemptEnd | None
    """None while it runs."""
    exit_code: int | None
    signal: int | None
    began_at: float
    settled_at: float | None
    log: str
    """Absolute path of its log."""
    temp: str
    """Absolute path of its private temporary folder, recorded before that is made."""
    pid: int | None
    """The main process, None until it started."""
    claims: Claims
    before: Mapping[RelPath, State]
    """Its declared writes as they stood before it began."""
    detail: str
    """One sentence on how it ended, or empty."""


def row_of_restore(
    attempt: AttemptId, run: RunId, node: NodeName, key: ActionKey, claims: Claims, began_at: float
) -> AttemptRow:
    """A restore, about to begin: it has neither a process nor a log."""
    return AttemptRow(
        id=attempt,
        run=run,
        node=node,
        action_key=key,
        number=0,
        state=AttemptState.RUNNING,
        end=None,
        exit_code=None,
        signal=None,
        began_at=began_at,
        settled_at=None,
        log="",
        temp="",
        pid=None,
        claims=claims,
        before={},
        detail="",
    )


class NoSuchAttempt(Exception):
    """The attempt is not there, or has settled already."""

    def __init__(self, attempt: AttemptId) -> None:
        super().__init__(f"there is no running attempt {attempt}")
        self.attempt = attempt


_COLUMNS: Final = (
    'id, run, node, action_key, number, state, "end", exit_code, signal, began_at,'
    " settled_at, log, temp, pid, claims, before, detail"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM attempts"
_INSERT: Final = f"INSERT INTO attempts ({_COLUMNS}, begun_seq) VALUES ({', '.join('?' * 18)})"
_SETTLE: Final = (
    "UPDATE attempts SET state = 'settled', \"end\" = ?, exit_code = ?, signal = ?,"
    " detail = ?, settled_at = ? WHERE id = ? AND state = 'running'"
)


class Attempts:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, row: AttemptRow, begun_seq: int = 0) -> None:
        """Record an attempt before its process starts. `begun_seq` is the position of the
        journal record that tells of it, by which tries are ordered: clocks are set back."""
        self._database.execute(
            _INSERT,
            (
                row.id,
                row.run,
                to_column(row.node),
                row.action_key,
                row.number,
                row.state.value,
                None if row.end is None else row.end.value,
                row.exit_code,
                row.signal,
                row.began_at,
                row.settled_at,
                to_column(row.log),
                to_column(row.temp),
                row.pid,
                to_json(_write_claims(row.claims)),
                to_json(row.before) if row.before else "{}",
                to_column(row.detail),
                begun_seq,
            ),
        )

    def record_pid(self, attempt: AttemptId, pid: int) -> None:
        """The attempt's main process has started."""
        self._database.execute("UPDATE attempts SET pid = ? WHERE id = ?", (pid, attempt))

    def settle(
        self,
        attempt: AttemptId,
        end: AttemptEnd,
        exit_code: int | None,
        signal: int | None,
        detail: str,
        settled_at: float,
    ) -> None:
        """Record how an attempt ended; its claims end with it. Raises NoSuchAttempt."""
        changed = self._database.execute(
            _SETTLE, (end.value, exit_code, signal, to_column(detail), settled_at, attempt)
        )
        if not changed:
            raise NoSuchAttempt(attempt)

    def running(self, excluding_run: RunId | None = None) -> list[AttemptRow]:
        """Attempts that have not settled, in the order of their ids, whether their assay
        lives or not; without those of `excluding_run`."""
        return [
            self._decode(row)
            for row in self._database.query(
                f"{_SELECT} WHERE state = 'running' AND run IS NOT ?", (excluding_run,)
            )
        ]

    def of_run(self, run: RunId) -> list[AttemptRow]:
        """All attempts of a run, in the order they began."""
        # "." follows "-" in ASCII: the range of ids that begin with "RUN-".
        rows = self._database.query(
            f"{_SELECT} WHERE id > ? AND id < ? ORDER BY length(id), id",
            (f"{run}-", f"{run}."),
        )
        return [self._decode(row) for row in rows]

    def get(self, attempt: AttemptId) -> AttemptRow | None:
        row = self._database.query_one(f"{_SELECT} WHERE id = ?", (attempt,))
        return None if row is None else self._decode(row)

    def last_of(self, node: NodeName, plan_file: str) -> AttemptRow | None:
        """The newest try of the node in any run of that plan file; restores (number 0) are
        none."""
        row = self._database.query_one(
            f"SELECT {_QUALIFIED} FROM attempts AS a JOIN runs AS r ON r.id = a.run"
            " WHERE a.node = ? AND r.plan_file = ? AND a.number > 0"
            " ORDER BY a.begun_seq DESC, a.began_at DESC LIMIT 1",
            (to_column(node), to_column(plan_file)),
        )
        return None if row is None else self._decode(row)

    def _decode(self, row: Row) -> AttemptRow:
        try:
            return AttemptRow(
                id=AttemptId(row[0]),
                run=RunId(row[1]),
                node=NodeName(from_column(row[2])),
                action_key=ActionKey(row[3]),
                number=row[4],
                state=AttemptState(row[5]),
                end=None if row[6] is None else AttemptEnd(row[6]),
                exit_code=row[7],
                signal=row[8],
                began_at=row[9],
                settled_at=row[10],
                log=from_column(row[11]),
                temp=from_column(row[12]),
                pid=row[13],
                claims=_read_claims(from_json(row[14])),
                before=from_json(row[15]),
                detail=from_column(row[16]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise self._database.damaged(f"the row of attempt {row[0]} cannot be read") from error


_QUALIFIED: Final = ", ".join(f"a.{column.strip()}" for column in _COLUMNS.split(","))


def _write_claims(claims: Claims) -> list[Any]:
    return [
        [[e.kind.value, e.path, e.exclude, e.optional] for e in claims.writes],
        [[e.kind.value, e.path, e.exclude, e.optional] for e in claims.reads],
        claims.locks,
    ]


def _read_claims(value: list[Any]) -> Claims:
    writes, reads, locks = value
    return Claims(
        tuple(Entry(EntryKind(k), RelPath(p), x, o) for k, p, x, o in writes),
        tuple(Entry(EntryKind(k), RelPath(p), x, o) for k, p, x, o in reads),
        tuple(locks),
    )
