"""Effects: what attempts of nodes that are not sealed did to the world, one row an attempt.

A row is on disk before the command starts and outlives cache, results and collections: it is
what keeps an effect from happening twice. Knows rows and their seals; not what follows from
them (`intentions`).

An effect is open until a run that completed had selected all that its own run had selected;
until then the next run of the plan asks for it.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from assay.engine.columns import from_column, from_json, to_column, to_json
from assay.engine.effect_marks import Mark
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    RunId,
    State,
)
from assay.plans.model import NodeName, RelPath, Tier

if TYPE_CHECKING:
    from assay.engine.database import Database, Row


@dataclass(frozen=True, slots=True)
class EffectRow:
    attempt: AttemptId
    run: RunId
    node: NodeName
    plan_file: str
    tier: Tier
    state: EffectState
    number: int
    """That of the attempt."""
    action_key: ActionKey
    """Digest of run, plan, node and plan key: it names this effect of this run alone."""
    content_key: ActionKey
    """As a sealed node's key: what intentions compare."""
    recipe: str
    """JSON text of everything the content key was made of."""
    idempotency_key: str | None
    undo: str | None
    """The command that compensates it, as `compensation` writes it; None: it has none."""
    is_open: bool = True
    begun_seq: int = 0
    """Position of the journal record that tells of its begin."""
    settled_seq: int | None = None
    """Position of the record that tells of its state."""
    end: AttemptEnd | None = None
    """How the attempt ended; None while it runs, and once that no longer says anything of the
    effect: an operator has spoken, or it was rewound."""
    outputs: tuple[tuple[RelPath, State], ...] = ()
    value: str | None = None
    """The node's result as canonical JSON."""
    accepts_any: bool = False
    """An operator says that it is done, and nobody knows with which content."""
    asked: ActionKey | None = None
    """The content key, as it sees it, of a run that stopped because that is another one."""
    accepted: ActionKey | None = None
    """The `asked` that an operator says this counts for as well."""
    detail: str = ""
    is_sound: bool = True
    """False: the row is not what was written; nothing but its names is to be believed."""


_COLUMNS: Final = (
    "attempt, run, node, plan_file, is_open, begun_seq, settled_seq, state, data, seal"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM effects"
_PUT: Final = f"INSERT OR REPLACE INTO effects ({_COLUMNS}) VALUES ({', '.join('?' * 10)})"

_LOST: Final = "effects-lost"
_UNRECORDED: Final = "effect-unrecorded:"


class Effects:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: EffectRow) -> None:
        """Record an effect, or what is known of it by now."""
        data = to_json(
            {
                "tier": row.tier.value,
                "number": row.number,
                "action_key": row.action_key,
                "content_key": row.content_key,
                "recipe": row.recipe,
                "idempotency_key": row.idempotency_key,
                "undo": row.undo,
                "end": None if row.end is None else row.end.value,
                "outputs": row.outputs,
                "value": row.value,
                "accepts_any": row.accepts_any,
                "asked": row.asked,
                "accepted": row.accepted,
                "detail": row.detail,
            }
        )
        node, plan_file = to_column(row.node), to_column(row.plan_file)
        begun, state = (row.begun_seq, row.settled_seq), row.state.value
        sealed = (row.attempt, row.run, node, plan_file, *begun, state, data)
        self._database.execute(
            _PUT,
            (
                row.attempt,
                row.run,
                node,
                plan_file,
                int(row.is_open),
                row.begun_seq,
                row.settled_seq,
                row.state.value,
                data,
                _seal(sealed),
            ),
        )

    def end(self, row: EffectRow) -> None:
        """Record what an attempt came to. Unless it did nothing it speaks for its node from now
        on: what was open of that before is closed."""
        with self._database.atomically():
            begun = self.get(row.attempt)
            if begun is not None:
                row = replace(row, is_open=begun.is_open)  # it may have been closed meanwhile
            if row.state is not EffectState.NOTHING:
                self._database.execute(
                    "UPDATE effects SET is_open = 0 WHERE plan_file = ? AND node = ?"
                    " AND is_open = 1 AND begun_seq < ?",
                    (to_column(row.plan_file), to_column(row.node), row.begun_seq),
                )
            self.put(row)

    def get(self, attempt: AttemptId) -> EffectRow | None:
        row = self._database.query_one(f"{_SELECT} WHERE attempt = ?", (attempt,))
        return None if row is None else _decode(row)

    def of_run(self, run: RunId) -> list[EffectRow]:
        """Every effect of the run, in the order they began."""
        rows = self._database.query(
            f"{_SELECT} WHERE attempt > ? AND attempt < ? ORDER BY begun_seq, attempt",
            (f"{run}-", f"{run}."),
        )
        return [_decode(row) for row in rows]

    def of_node(
        self, plan_file: str, node: NodeName, run: RunId, since: int
    ) -> tuple[EffectRow | None, EffectRow | None]:
        """What speaks for the node in `run`: its own newest effect, and the newest of other
        runs that is open or was settled after journal position `since`; of either first one
        that is open and came to something."""
        rows = self._database.query(
            f"{_SELECT} WHERE plan_file = ? AND node = ? AND (run = ? OR is_open = 1"
            " OR settled_seq > ?) ORDER BY begun_seq DESC, attempt DESC",
            (to_column(plan_file), to_column(node), run, since),
        )
        own = [_decode(row) for row in rows if row[1] == run]
        other = [_decode(row) for row in rows if row[1] != run]
        return find_speaker(own), find_speaker(other)

    def knows(self, plan_file: str, node: NodeName) -> bool:
        """Whether any effect of the node is recorded, however old."""
        return (
            self._database.query_one(
                "SELECT 1 FROM effects WHERE plan_file = ? AND node = ? LIMIT 1",
                (to_column(plan_file), to_column(node)),
            )
            is not None
        )

    def has_open(self) -> bool:
        """Whether a later run of any plan has to ask for an effect."""
        return (
            self._database.query_one("SELECT 1 FROM effects WHERE is_open = 1 LIMIT 1") is not None
        )

    def open_of(self, plan_file: str) -> list[EffectRow]:
        """The open effects of a plan, in the order they began."""
        rows = self._database.query(
            f"{_SELECT} WHERE plan_file = ? AND is_open = 1 ORDER BY begun_seq, attempt",
            (to_column(plan_file),),
        )
        return [_decode(row) for row in rows]

    def begun_after(self, seq: int) -> list[EffectRow]:
        """The effects of any plan that began after journal position `seq`, in that order."""
        rows = self._database.query(
            f"{_SELECT} WHERE begun_seq > ? ORDER BY begun_seq, attempt", (seq,)
        )
        return [_decode(row) for row in rows]

    def kept(self) -> list[EffectRow]:
        """Effects whose outputs or pre-images somebody may still ask for: the open ones."""
        return [_decode(row) for row in self._database.query(f"{_SELECT} WHERE is_open = 1")]

    def close(self, attempts: Iterable[AttemptId]) -> None:
        """No later run asks for these any more."""
        self._database.execute_many(
            "UPDATE effects SET is_open = 0 WHERE attempt = ?", [(each,) for each in attempts]
        )

    def save_selection(self, run: RunId, names: Sequence[NodeName]) -> None:
        """Keep which nodes the run had selected; again (a generation joined) replaces it."""
        packed = zlib.compress(to_json(names).encode("ascii"), 1)
        self._database.execute(
            "INSERT OR REPLACE INTO selections (run, data) VALUES (?, ?)",
            (run, blake3(packed).digest() + packed),
        )

    def selection_of(self, run: RunId) -> frozenset[NodeName] | None:
        """The nodes the run had selected; None when that is not known."""
        row = self._database.query_one("SELECT data FROM selections WHERE run = ?", (run,))
        if row is None:
            return None
        data = row[0]
        if not isinstance(data, bytes):
            return None
        if blake3(data[32:]).digest() != data[:32]:
            return None
        return frozenset(map(NodeName, from_json(zlib.decompress(data[32:]).decode("ascii"))))

    def mark_lost(self, where: str) -> None:
        """Effects may have been recorded that can no longer be read; `where` is what is left
        of them, in words."""
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (_LOST, where))

    def lost(self) -> str | None:
        """What `mark_lost` was told."""
        row = self._database.query_one("SELECT value FROM facts WHERE name = ?", (_LOST,))
        return None if row is None else str(row[0])

    def find_unrecorded(self, marks: Iterable[Mark]) -> list[Mark]:
        """Those of which neither an effect is on record nor that it is missing."""
        by_attempt = {mark.attempt: mark for mark in marks}
        places = ", ".join("?" * len(by_attempt))
        for (attempt,) in self._database.query(
            f"SELECT attempt FROM effects WHERE attempt IN ({places})", tuple(by_attempt)
        ):
            del by_attempt[AttemptId(attempt)]
        return [
            mark
            for mark in by_attempt.values()
            if self._database.query_one(
                "SELECT 1 FROM facts WHERE name = ?", (f"{_UNRECORDED}{mark.node}:{mark.attempt}",)
            )
            is None
        ]

    def mark_unrecorded(self, marks: Iterable[Mark]) -> None:
        """Effects of these began, and nothing else is known of them."""
        self._database.execute_many(
            "INSERT OR IGNORE INTO facts VALUES (?, ?)",
            [(f"{_UNRECORDED}{mark.node}:{mark.attempt}", mark.attempt) for mark in marks],
        )

    def answer_unrecorded(self, plan_file: str, node: NodeName) -> None:
        """What is put on record of the node by the same transaction answers for it, or asks."""
        self._database.execute(
            "UPDATE facts SET value = '' WHERE name > ? AND name < ? AND value <> ''",
            _unrecorded_of(node_digest(plan_file, node)),
        )

    def unrecorded_of(self, plan_file: str, node: NodeName) -> AttemptId | None:
        """An attempt at the node's effect that `mark_unrecorded` was told of, until
        `answer_unrecorded`."""
        row = self._database.query_one(
            "SELECT value FROM facts WHERE name > ? AND name < ? AND value <> '' LIMIT 1",
            _unrecorded_of(node_digest(plan_file, node)),
        )
        return None if row is None else AttemptId(row[0])


def _unrecorded_of(node: str) -> tuple[str, str]:
    """What the names of such facts lie between."""
    return f"{_UNRECORDED}{node}:", f"{_UNRECORDED}{node};"


def node_digest(plan_identity: str, node: str) -> str:
    """What stands for a node of a plan in a mark."""
    names = f"assay effect mark 1\0{plan_identity}\0{node}"
    return blake3(names.encode("utf-8", "surrogateescape")).hexdigest()


def find_speaker(rows: Sequence[EffectRow]) -> EffectRow | None:
    """The row, of one node's, that says how things are: the newest that is open and came to
    something, else the newest. `rows` come newest first."""
    speaking = (row for row in rows if row.is_open and row.state is not EffectState.NOTHING)
    return next(speaking, rows[0] if rows else None)


def settled(row: EffectRow, state: EffectState, seq: int, **more: Any) -> EffectRow:
    """The row once journal position `seq` tells that the effect is in `state`."""
    return replace(row, state=state, settled_seq=seq, **more)


def _decode(row: Row) -> EffectRow:
    attempt, run, node, plan_file, is_open, begun_seq, settled_seq, state, data, seal = row
    names = (AttemptId(attempt), RunId(run), NodeName(from_column(node)), from_column(plan_file))
    if _seal((attempt, run, node, plan_file, begun_seq, settled_seq, state, data)) == seal:
        try:
            told = from_json(data)
            return EffectRow(
                *names,
                tier=Tier(told["tier"]),
                state=EffectState(state),
                number=told["number"],
                action_key=told["action_key"],
                content_key=told["content_key"],
                recipe=told["recipe"],
                idempotency_key=told["idempotency_key"],
                undo=told["undo"],
                is_open=bool(is_open),
                begun_seq=begun_seq,
                settled_seq=settled_seq,
                end=None if told["end"] is None else AttemptEnd(told["end"]),
                outputs=tuple((RelPath(path), State(at)) for path, at in told["outputs"]),
                value=told["value"],
                accepts_any=told["accepts_any"],
                asked=told["asked"],
                accepted=told["accepted"],
                detail=told["detail"],
            )
        except (ValueError, TypeError, KeyError):
            pass  # As for a seal that does not fit.
    nothing = ActionKey("")
    return EffectRow(
        *names,
        tier=Tier.IRREVERSIBLE,
        state=EffectState.UNKNOWN,
        number=0,
        action_key=nothing,
        content_key=nothing,
        recipe="{}",
        idempotency_key=None,
        undo=None,
        is_open=bool(is_open),
        begun_seq=begun_seq if isinstance(begun_seq, int) else 0,
        detail="its record in the store is damaged",
        is_sound=False,
    )


def _seal(values: tuple[Any, ...]) -> str:
    """As for results: a digest over the columns as bound and as read back."""
    return blake3(ascii(values).encode("ascii")).hexdigest(16)
