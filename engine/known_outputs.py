"""What was recorded, asked from a worker thread while the coordinator goes on writing.

Opens a connection of its own at the first question, which most restores never ask.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from assay.engine.database import Database
from assay.engine.results import Results
from assay.engine.states import State
from assay.engine.store import Store
from assay.plans.model import RelPath


class KnownOutputs:
    """A context: `knows` answers as `Results.knows` does, as of the last commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database: Database | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._database is not None:
            self._database.close()

    def knows(self, path: RelPath, state: State) -> bool:
        if self._database is None:
            self._database = self._store.database.beside()
            if self._database is None:
                return False  # a store in memory recorded nothing that could be restored
        return Results(self._database, self._store.journal, time.time).knows(path, state)
