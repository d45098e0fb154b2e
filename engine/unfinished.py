"""The tries that did not succeed and that no later one has made good, by node.

What such a try left in its declared writes is no result and no file of the user's: the next
try of the node finds it here. Read once a run, and again when another process has written
to the store. Belongs to the coordinator's thread.
"""

from __future__ import annotations

from dataclasses import replace

from assay.engine.attempts import AttemptRow
from assay.engine.ledger import Ledger
from assay.engine.states import AttemptEnd
from assay.engine.store import Store
from assay.plans.model import NodeName


class Unfinished:
    """Of the nodes of one plan file, as one run needs to know them."""

    def __init__(self, store: Store, ledger: Ledger, plan_file: str) -> None:
        self._store = store
        self._ledger = ledger
        self._plan_file = plan_file
        self._rows: dict[str, AttemptRow] = {}
        self._version: int | None = None

    def find(self, node: NodeName) -> AttemptRow | None:
        """The node's newest try when it did not succeed, None when it did or there is none."""
        if self._ledger.version != self._version:
            self._ledger.commit()  # what this run has yet to say of its own tries counts too
            self._version = self._ledger.version
            rows = self._store.attempts.unfinished(self._plan_file)
            self._rows = {row.node: row for row in rows}
        return self._rows.get(node)

    def note_end(self, row: AttemptRow, end: AttemptEnd) -> None:
        """A try of this run has ended."""
        if end is not AttemptEnd.SUCCEEDED:
            self._rows[row.node] = replace(row, end=end)
        else:
            self._rows.pop(row.node, None)
