"""The append-only record of every fact; nothing happened that is not in it.

Knows how a record is identified and read back, not when one is due: whoever changes state
appends the record that tells of it, inside the same transaction.

A record's identity is (source, sequence). `source` names the producer (a run's id, or one
of this module's own kind) and `sequence` counts what that producer said. Saying the same
again is the same record; saying something else under the same identity is JournalConflict.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from assay.engine.columns import from_column, from_json, to_column, to_json
from assay.engine.states import RunId

if TYPE_CHECKING:
    from assay.engine.database import Database, Row
    from assay.plans.canonical import JsonValue


class Fact(StrEnum):
    """The kinds of records, with what their `data` holds (absent keys: not known).

    Together they let a stranger explain a run: what was selected and why each node
    executed or not, with which inputs, how each try ended, what was recorded, served,
    restored or thrown away, who waited for whom and who ended it.
    """

    RUN_CREATED = "run-created"
    """plan, file, digest, targets, tags, params, selected, jobs, flags, pid, host,
    parent_attempt"""
    RUN_RESUMED = "run-resumed"
    """fence, pid, host, flags, was (the status it had), accepted ([[what, before, now]]: changes
    of the environment)"""
    RUN_CLAIMED = "run-claimed"
    """from, to ({host, boot, pid, nonce, fence}: whose it was and whose it is), evidence (why it is
    not the former owner's any more), purpose: in the transaction of every claim"""
    RUN_ABANDONED = "run-abandoned"
    """host, boot, pid, nonce, fence: an owner that lost its run has ended its processes and
    stopped"""
    SURVIVORS_ASKED = "survivors-asked"
    """attempt (for its undo with `.undo` behind it), pids, why, monotonic (seconds on the clock
    that is never set): what a dead assay would have ended by now got SIGTERM; after its grace it
    gets SIGKILL"""
    CLAIM_REFUSED = "claim-refused"
    """by, why: somebody wanted to go on with a run whose owner lives"""
    RUN_SETTLED = "run-settled"
    """status, counts, duration_seconds, outputs; by recovery status, by (pid) and host"""
    AGREED = "agreed"
    """The only record of a run with nothing to do: with (the earlier run whose nodes all
    agreed), selected (how many)"""
    CANCEL_REQUESTED = "cancel-requested"
    """signal, immediate, cause: what the run heeded. By whoever asked from another process:
    by, around (the run it was asked of, when this one is nested in it)"""
    SOURCES_PINNED = "sources-pinned"
    """paths, patterns: how many; the pins themselves are kept beside the journal"""
    RESULT_SERVED = "result-served"
    """restored (paths put back), removed, trashed ([[path, to]]): the workspace was changed
    to hold a recorded result; what served without a change is in nodes-settled"""
    RESULT_EXPIRED = "result-expired"
    """key, recorded_by: journalled before it is acted on"""
    ATTEMPT_BEGUN = "attempt-begun"
    """attempt, number, action_key, reason, argv, workdir, log, temp; for a node that is not
    sealed also tier, content_key, idempotency_key, preimage (the file that keeps how its
    writes were)"""
    ATTEMPT_SETTLED = "attempt-settled"
    """attempt, number, end, exit_code, signal, detail, duration_seconds, left_behind (pids of
    processes that were ended), kept_running (pids of those left alive), put_back (inputs it
    may have rewritten), recorded ({address, outputs ([[path, state]]), value, serves}: the
    result that stands from now on); by recovery also ended (pids)"""
    BUNDLE_MADE = "bundle-made"
    """attempt, changes ([[path, state it started from, state it made]]), result (what is recorded
    once they are in place): what a command wrote in its private tree; nothing is touched yet"""
    BUNDLE_LANDED = "bundle-landed"
    """attempt, put_back, removed, trashed ([[path, to]]): all of it is in place"""
    ROLLED_BACK = "rolled-back"
    """attempt, why, put_back, removed, trashed ([[path, to]]), left (what came since), undo (how
    it ended), state (of the effect from now on), problem"""
    EFFECT_SETTLED = "effect-settled"
    """attempt, by, done, value: what an operator says of an effect"""
    EFFECTS_CLOSED = "effects-closed"
    """why, attempts: no later run asks for these effects any more"""
    REWOUND = "rewound"
    """to (node), by, rolled_back, left (attempts)"""
    READS_MOVED = "reads-moved"
    """attempt, paths: changed while it ran, so its result is not cached"""
    RESULT_REPLACED = "result-replaced"
    """address, path (first that differs), was, now (states), recorded_by, recorded_seq"""
    RESULT_EVICTED = "result-evicted"
    """address, recorded_by, recorded_seq, why"""
    NODES_SETTLED = "nodes-settled"
    """outcomes: [[node, outcome, detail, action_key, recorded_seq (of the result that served), asks
    ([run, node] of the effect an operator is asked about; not there: of none)]]; one record may
    settle many"""
    GENERATION_APPENDED = "generation-appended"
    """generation, template, nodes, digest (of the grown plan)"""
    WAITED = "waited"
    """for (run), attempt, what (path or lock); where the assay of that run is gone also pids (that
    are to end)"""
    OUTPUTS_CLEARED = "outputs-cleared"
    """attempt, trashed ([[path, to]]): what an earlier try had left unfinished"""
    LEFTOVERS_REMOVED = "leftovers-removed"
    """paths: what node instances the plan no longer has had left"""
    BLOB_SET_ASIDE = "blob-set-aside"
    """digest, to, why"""
    DAMAGED = "damaged"
    """file, why, kept_as, kept ({table: rows}), lost (tables not read to their end)"""
    CACHE_COLLECTED = "cache-collected"
    """results, blobs, size_bytes, logs: how many went, and why"""
    CACHE_CLEARED = "cache-cleared"
    """results, blobs, size_bytes"""


@dataclass(frozen=True, slots=True)
class Record:
    seq: int
    """Position in the journal of this store; ascending in time."""
    at: float
    run: RunId | None
    node: str | None
    kind: str
    source: str
    sequence: int
    data: JsonValue


class JournalConflict(Exception):
    """Something different was said before under the same identity."""

    def __init__(self, source: str, sequence: int) -> None:
        super().__init__(f"journal record {sequence} of `{source}` exists and says something else")
        self.source = source
        self.sequence = sequence


_CHUNK: Final = 1000

_READ: Final = "seq, at, run, node, kind, source, sequence, data"

_INSERT: Final = (
    "INSERT INTO journal (at, run, node, kind, source, sequence, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (source, sequence) DO NOTHING"
)


class Journal:
    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    def append(
        self,
        source: str,
        sequence: int,
        kind: str,
        *,
        run: RunId | None,
        node: str | None = None,
        data: JsonValue = None,
    ) -> int:
        """Append one record to the transaction that is open, or in one of its own.

        Returns its seq, that of the existing record when the same was said before. Raises
        JournalConflict, and ValueError for data that is not JSON.
        """
        text = None if data is None else to_json(data)
        bound = None if node is None else to_column(node)
        seq = self._database.insert(
            _INSERT, (self._now(), run, bound, str(kind), to_column(source), sequence, text)
        )
        if seq is not None:
            return seq
        row = self._database.query_one(
            "SELECT seq, run, node, kind, data FROM journal WHERE source = ? AND sequence = ?",
            (to_column(source), sequence),
        )
        if row is None or row[1:] != (run, bound, str(kind), text):
            raise JournalConflict(source, sequence)
        return int(row[0])

    def find(self, source: str, sequence: int) -> Record | None:
        """The record of this identity."""
        row = self._database.query_one(
            f"SELECT {_READ} FROM journal WHERE source = ? AND sequence = ?",
            (to_column(source), sequence),
        )
        return None if row is None else self._decode(row)

    def read(
        self, run: RunId | None = None, node: str | None = None, after: int = 0
    ) -> Iterator[Record]:
        """Records in order, those of a run and of a node when given, with a seq above
        `after`. Holds nothing open between records; sees what is appended meanwhile."""
        where = "seq > ?"
        narrow: list[str | bytes] = []
        if run is not None:
            where += " AND run = ?"
            narrow.append(run)
        if node is not None:
            where += " AND node = ?"
            narrow.append(to_column(node))
        sql = f"SELECT {_READ} FROM journal WHERE {where} ORDER BY seq LIMIT {_CHUNK}"
        while True:
            rows = self._database.query(sql, (after, *narrow))
            for row in rows:
                yield self._decode(row)
            if len(rows) < _CHUNK:
                return
            after = rows[-1][0]

    def _decode(self, row: Row) -> Record:
        seq, at, run, node, kind, source, sequence, text = row
        try:
            data = None if text is None else from_json(text)
        except (ValueError, TypeError) as error:
            raise self._database.damaged(f"journal record {seq} cannot be read") from error
        return Record(
            seq,
            at,
            run,
            None if node is None else from_column(node),
            kind,
            from_column(source),
            sequence,
            data,
        )
