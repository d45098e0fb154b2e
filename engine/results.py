"""The action cache: which result an action key led to, who recorded it, and what any
result ever named.

Knows rows and their seals; not whether a result may serve now, nor where blobs are.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from assay.engine.columns import from_column, from_json, to_column, to_json
from assay.engine.journal import Fact, Journal
from assay.engine.states import ABSENT, ActionKey, RunId, State, stored_digest
from assay.plans.model import Digest, NodeName, RelPath

if TYPE_CHECKING:
    from assay.engine.database import Database, Row


Outputs = Sequence[tuple[RelPath, State]]


@dataclass(frozen=True, slots=True)
class ResultRow:
    address: str
    """The action key narrowed by scope: `KEY`, `KEY@plan:NAME`, `KEY@run:ID`."""
    action_key: ActionKey
    node: NodeName
    plan_file: str
    run: RunId
    journal_seq: int
    """With `run` the provenance: the journal record that tells of this result."""
    recorded_at: float
    outputs: tuple[tuple[RelPath, State], ...]
    """Sorted by path; ABSENT for an optional file that was not written."""
    value: str | None
    """The node's result as canonical JSON."""
    recipe: str
    """JSON text of everything the key was made of."""
    evidence: Mapping[str, Any]
    serves: bool
    """False for a record kept to explain and to recognise outputs, never to serve."""
    expires_at: float | None
    duration_seconds: float
    log: str | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a collection needs to know of a result."""

    address: str
    journal_seq: int
    node: NodeName
    plan_file: str
    used_at: float
    expires_at: float | None
    log: str | None
    digests: tuple[Digest, ...]
    """The blobs that bring its outputs back."""


_COLUMNS: Final = (
    "address, action_key, node, plan_file, run, journal_seq, recorded_at, serves, expires_at,"
    " duration_seconds, log, outputs, value, evidence, recipe, seal"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM results"
_KEPT: Final = tuple(f.name for f in fields(ResultRow) if f.name != "journal_seq")
_PUT: Final = (
    f"INSERT INTO results ({_COLUMNS}, used_at) VALUES ({', '.join('?' * 17)})"
    " ON CONFLICT (address) DO UPDATE SET "
    + ", ".join(
        f"{name} = excluded.{name}"
        for name in (*(_COLUMNS.replace(" ", "").split(",")[1:]), "used_at")
    )
    + " WHERE excluded.serves >= results.serves"
)
_PUT_OUTPUT: Final = (
    "INSERT INTO recorded_outputs (path, plan_file, node, state, recorded_at)"
    " VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (path, plan_file, node, state) DO UPDATE SET recorded_at = excluded.recorded_at"
)


def result_to_json(row: ResultRow) -> dict[str, Any]:
    """Plain values from which `result_from_json` makes the row again; without its position."""
    told = {name: getattr(row, name) for name in _KEPT}
    return {**told, "outputs": [list(item) for item in row.outputs]}


def result_from_json(told: Mapping[str, Any], journal_seq: int) -> ResultRow:
    """As it was told, recorded at `journal_seq`."""
    outputs = tuple((RelPath(path), State(state)) for path, state in told["outputs"])
    kept = {name: told[name] for name in _KEPT if name != "outputs"}
    return ResultRow(**kept, outputs=outputs, journal_seq=journal_seq)


class Results:
    def __init__(self, database: Database, journal: Journal, now: Callable[[], float]) -> None:
        self._database = database
        self._journal = journal
        self._now = now
        self._source = f"results:{os.urandom(8).hex()}"
        self._said = 0
        self.may_evict = True
        """False for a store that is only read: an unreadable row is then passed over."""

    def get(self, address: str) -> ResultRow | None:
        """The result under this address. A row that is not what was written is evicted,
        with a journal record, and counts as none."""
        row = self._database.query_one(f"{_SELECT} WHERE address = ?", (to_column(address),))
        return None if row is None else self._open(row)

    def find_standing(self, address: str) -> int:
        """Journal position of the result that serves under this address, 0 for none."""
        row = self._database.query_one(
            "SELECT journal_seq FROM results WHERE address = ? AND serves", (to_column(address),)
        )
        return 0 if row is None else int(row[0])

    def put(self, row: ResultRow, made: Outputs | None = None) -> None:
        """Record a result in place of the one under its address. One that may not serve takes no
        place from one that may. `made` are the outputs that its node has made, all of them
        unless given: what was there before and is as it was is somebody else's."""
        values = (
            to_column(row.address),
            row.action_key,
            to_column(row.node),
            to_column(row.plan_file),
            row.run,
            row.journal_seq,
            float(row.recorded_at),
            int(row.serves),
            None if row.expires_at is None else float(row.expires_at),
            float(row.duration_seconds),
            None if row.log is None else to_column(row.log),
            to_json(row.outputs),
            None if row.value is None else to_column(row.value),
            to_json(row.evidence),
            to_column(row.recipe),
        )
        with self._database.atomically():
            self._database.execute(_PUT, (*values, _seal(values), row.recorded_at))
            self.note_outputs(row.plan_file, row.node, row.outputs if made is None else made)

    def note_outputs(self, plan_file: str, node: NodeName, outputs: Outputs) -> None:
        """This node left these states there, by executing or by being served what another
        node or plan had recorded."""
        if outputs:
            writer = (to_column(plan_file), to_column(node))
            at = self._now()
            self._database.execute_many(
                _PUT_OUTPUT,
                [
                    (to_column(path), *writer, state, at)
                    for path, state in outputs
                    if state != ABSENT
                ],
            )

    def evict(self, address: str, journal_seq: int) -> bool:
        """Take away the result that was recorded at `journal_seq`; False when another
        one stands there by now, which stays. The caller journals why."""
        return bool(
            self._database.execute(
                "DELETE FROM results WHERE address = ? AND journal_seq = ?",
                (to_column(address), journal_seq),
            )
        )

    def mark_used(self, addresses: Iterable[str]) -> None:
        """These results served: collection by age and `last_of` go by it."""
        at = self._now()
        self._database.execute_many(
            "UPDATE results SET used_at = max(used_at, ?) WHERE address = ?",
            [(at, to_column(address)) for address in addresses],
        )

    def last_of(self, plan_file: str, node: NodeName) -> ResultRow | None:
        """The result this node recorded or was served last."""
        rows = self._database.query(
            f"{_SELECT} WHERE node = ? AND plan_file = ? ORDER BY used_at DESC, id DESC LIMIT 1",
            (to_column(node), to_column(plan_file)),
        )
        return self._open(rows[0]) if rows else None

    def knows(self, path: RelPath, state: State) -> bool:
        """Whether any result ever recorded here named this state for this path."""
        return (
            self._database.query_one(
                "SELECT 1 FROM recorded_outputs WHERE path = ? AND state = ? LIMIT 1",
                (to_column(path), state),
            )
            is not None
        )

    def writers_of(self, path: RelPath) -> tuple[tuple[str, NodeName, State], ...]:
        """(plan file, node, state it recorded last) for every writer of the path, the
        newest record first."""
        found: dict[tuple[str, NodeName], State] = {}
        for plan_file, node, state in self._database.query(
            "SELECT plan_file, node, state FROM recorded_outputs WHERE path = ?"
            " ORDER BY recorded_at DESC",
            (to_column(path),),
        ):
            writer = (from_column(plan_file), NodeName(from_column(node)))
            found.setdefault(writer, State(state))
        return tuple((*writer, state) for writer, state in found.items())

    def paths_of(self, plan_file: str) -> dict[NodeName, dict[RelPath, frozenset[State]]]:
        """Every path any node of the plan file ever recorded, with its states."""
        found: dict[NodeName, dict[RelPath, frozenset[State]]] = {}
        for path, node, states in self._database.query(
            "SELECT path, node, group_concat(state, ' ') FROM recorded_outputs"
            " WHERE plan_file = ? GROUP BY path, node",
            (to_column(plan_file),),
        ):
            named = frozenset(State(state) for state in states.split())
            found.setdefault(NodeName(from_column(node)), {})[RelPath(from_column(path))] = named
        return found

    def inventory(self) -> list[Held]:
        """Every result, newest use first. One whose outputs cannot be read holds nothing."""
        return [
            Held(
                address=from_column(row[0]),
                journal_seq=row[1],
                node=NodeName(from_column(row[2])),
                plan_file=from_column(row[3]),
                used_at=row[4],
                expires_at=row[5],
                log=None if row[6] is None else from_column(row[6]),
                digests=_digests(row[7]),
            )
            for row in self._database.query(
                "SELECT address, journal_seq, node, plan_file, used_at, expires_at, log, outputs"
                " FROM results ORDER BY used_at DESC, id DESC"
            )
        ]

    def clear(self) -> int:
        """Take all results away; how many. What outputs they named stays known."""
        return self._database.execute("DELETE FROM results")

    def _open(self, row: Row) -> ResultRow | None:
        """The row decoded, or None when its seal does not fit."""
        values = row[:15]
        if _seal(values) == row[15]:
            try:
                return ResultRow(
                    address=from_column(row[0]),
                    action_key=ActionKey(row[1]),
                    node=NodeName(from_column(row[2])),
                    plan_file=from_column(row[3]),
                    run=RunId(row[4]),
                    journal_seq=row[5],
                    recorded_at=row[6],
                    serves=bool(row[7]),
                    expires_at=row[8],
                    duration_seconds=row[9],
                    log=None if row[10] is None else from_column(row[10]),
                    outputs=_outputs(from_json(row[11])),
                    value=None if row[12] is None else from_column(row[12]),
                    evidence=from_json(row[13]),
                    recipe=from_column(row[14]),
                )
            except (ValueError, TypeError):
                pass  # As for a seal that does not fit.
        if self.may_evict:
            self._evict_unreadable(row)
        return None

    def _evict_unreadable(self, row: Row) -> None:
        with self._database.atomically():
            gone = self._database.execute(
                "DELETE FROM results WHERE address = ? AND seal = ?", (row[0], row[15])
            )
            if gone:
                self._said += 1
                self._journal.append(
                    self._source,
                    self._said,
                    Fact.RESULT_EVICTED,
                    run=None,
                    data={
                        "address": _shown(row[0]),
                        "recorded_by": _shown(row[4]),
                        "recorded_seq": row[5] if isinstance(row[5], int) else None,
                        "why": "the row is not what was recorded",
                    },
                )


def _outputs(value: Sequence[Sequence[str]]) -> tuple[tuple[RelPath, State], ...]:
    return tuple((RelPath(path), State(state)) for path, state in value)


def _digests(text: str) -> tuple[Digest, ...]:
    try:
        found = {stored_digest(state) for _, state in _outputs(from_json(text))}
    except (ValueError, TypeError):
        return ()
    return tuple(sorted(digest for digest in found if digest is not None))


def _shown(value: object) -> str:
    return from_column(value) if isinstance(value, (str, bytes)) else repr(value)


def _seal(values: tuple[Any, ...]) -> str:
    """Digest over the columns as bound and as read back: SQLite keeps each value's type
    (REAL columns are bound as floats), and `ascii` is the same in every Python."""
    return blake3(ascii(values).encode("ascii")).hexdigest(16)
