"""Agreements: sealed certificates that let a run with nothing to do say so at once.

Knows that a certificate is bytes under an address; not what it certifies.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from assay.engine.states import RunId

if TYPE_CHECKING:
    from assay.engine.database import Database

KEPT: Final = 16
"""How many certificates a store keeps."""

_DIGEST_BYTES: Final = 32


class Agreements:
    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    def get(self, address: str) -> bytes | None:
        """The certificate exactly as it was put; None when there is none, or when what
        is there is not what was put."""
        row = self._database.query_one("SELECT data FROM agreements WHERE address = ?", (address,))
        if row is None:
            return None
        data = bytes(row[0])
        blob = data[_DIGEST_BYTES:]
        return blob if blake3(blob).digest() == data[:_DIGEST_BYTES] else None

    def put(self, address: str, run: RunId, blob: bytes) -> None:
        """Keep a certificate in place of the one under this address; the oldest beyond
        the latest 16 go."""
        with self._database.atomically():
            self._database.execute(
                "INSERT OR REPLACE INTO agreements (address, run, put_at, data)"
                " VALUES (?, ?, ?, ?)",
                (address, run, self._now(), blake3(blob).digest() + blob),
            )
            self._database.execute(
                "DELETE FROM agreements WHERE rowid NOT IN"
                f" (SELECT rowid FROM agreements ORDER BY rowid DESC LIMIT {KEPT})"
            )

    def clear(self) -> None:
        """Forget them all: the next run looks at every record again."""
        self._database.execute("DELETE FROM agreements")
