"""What one run has yet to commit, and what it tells once that is done.

State rows and the journal records that describe them go into one transaction; an event is
emitted only after it. What begins may be committed ahead of what is pending. When the disk
fills up the run goes on unrecorded: the ledger repeats what was to be written on the store's
in-memory stand-in, so that nobody else notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from assay.engine.events import Event, Warned
from assay.engine.journal import Fact
from assay.engine.runs import NoSuchRun, RunRow
from assay.engine.states import RunStatus
from assay.engine.store import Store
from assay.engine.store_errors import StoreUnwritable
from assay.plans.canonical import JsonValue
from assay.plans.model import NodeName

HEARTBEAT_SECONDS: Final = 5.0


class Ledger:
    """One run's pending records and announcements, in the order they were made."""

    def __init__(self, store: Store, row: RunRow, emit: Callable[[Event], None]) -> None:
        self._store = store
        self._row = row
        self._emit = emit
        self._pending: list[Callable[[], object]] = []
        self._events: list[Event] = []
        self._sequence = 0
        self._is_open = False
        # Each owner of the run counts for itself.
        self._source = f"run:{row.id}" if row.fence == 1 else f"run:{row.id}:{row.fence}"
        self.version = -1
        """`Database.version` at the last commit."""

    def open(self, asked: dict[str, JsonValue], then: Callable[[], object] | None = None) -> int:
        """Creates the run's row and its first journal record, which also tells what was
        `asked` of the run; the position of that record. `then` notes what is to be part of the
        same commit."""
        positions: list[int] = []
        self.write(lambda: self._store.runs.create(self._row))
        self.note(
            Fact.RUN_CREATED,
            data={
                "plan": self._row.plan_name,
                "file": self._row.plan_file,
                "digest": self._row.plan_digest,
                "targets": list(self._row.targets),
                "params": [list(pair) for pair in self._row.params],
                "selected": self._row.selected,
                "parent_attempt": self._row.parent_attempt,
                **asked,
                "pid": self._row.owner.pid,
                "host": self._row.owner.host,
            },
            then=positions.append,
        )
        if then is not None:
            then()
        self.commit()
        self._is_open = True
        return positions[-1]

    def reopen(self, was: RunStatus, asked: dict[str, JsonValue]) -> None:
        """Goes on with a run that this process has taken over, and tells what was `asked`."""
        self._is_open = True
        self.note(
            Fact.RUN_RESUMED,
            data={
                "was": was.value,
                "fence": self._row.fence,
                **asked,
                "pid": self._row.owner.pid,
                "host": self._row.owner.host,
            },
        )
        self.commit()

    def note(
        self,
        kind: str,
        node: NodeName | None = None,
        data: JsonValue = None,
        then: Callable[[int], object] | None = None,
    ) -> None:
        """One journal record, part of the next commit; `then` receives its position and
        writes the state rows that the record describes."""

        def append() -> None:
            position = self.append_now(kind, node, data)
            if then is not None:
                then(position)

        self._pending.append(append)

    def append_now(self, kind: str, node: NodeName | None, data: JsonValue) -> int:
        """One journal record, inside the transaction that `commit` has open; its position."""
        self._sequence += 1
        return self._store.journal.append(
            self._source, self._sequence, kind, run=self._row.id, node=node, data=data
        )

    def write(self, change: Callable[[], object]) -> None:
        """A change of state rows, part of the next commit; must bear being repeated on an
        empty store."""
        self._pending.append(change)

    def announce(self, event: Event) -> None:
        """Emitted after the next commit."""
        self._events.append(event)

    @property
    def has_pending(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._pending or self._events)

    def commit(self, last: Callable[[], None] | None = None) -> None:
        """Commits what is pending, `last` at the end of the same transaction, then emits.

        Raises LostFence when another assay took the run over.
        """
        pending, self._pending = self._pending, []
        if last is not None:
            pending.append(last)
        if pending:
            self._write_out([*pending, self._store.stats.flush])
        events, self._events = self._events, []
        for event in events:
            self._emit(event)

    def commit_ahead(self, act: Callable[[], None]) -> None:
        """Commits `act` alone; what is pending stays so. Raises as `commit`."""
        self._write_out([act])

    def _write_out(self, changes: list[Callable[[], object]]) -> None:
        said = self._sequence
        try:
            self._transact(changes)
        except StoreUnwritable as error:
            self._sequence = said  # nothing of it was said
            self._go_unrecorded(str(error))
            self._transact(changes)

    def _transact(self, changes: list[Callable[[], object]]) -> None:
        with self._store.transaction():
            version = self._store.database.version()
            if self._is_open and version != self.version:
                self._store.runs.check_fence(self._row.id, self._row.fence)
            self.version = version
            for change in changes:
                change()

    def _go_unrecorded(self, why: str) -> None:
        self._store.degrade(why)
        if self._is_open:
            try:
                self._store.runs.get(self._row.id)
            except NoSuchRun:  # the disk could not even be read
                self._store.runs.create(self._row)
        self._events.append(Warned(self._store.notices[-1]))

    def settle(self, status: RunStatus, counts: dict[str, int], plan_digest: str) -> None:
        """Ends the run with the next commit."""
        self.write(
            lambda: self._store.runs.settle(
                self._row.id, self._row.fence, status, counts, plan_digest=plan_digest
            )
        )

    def heartbeat(self) -> None:
        """Tells with the next commit that the owner lives."""
        self.write(lambda: self._store.runs.heartbeat(self._row.id, self._row.fence))
