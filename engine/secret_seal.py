"""Keyed digests of secrets: equal secrets of one store look equal, and nobody without the
store's key can try guesses against them."""

from __future__ import annotations

import os

from blake3 import blake3

from assay.engine.database import Database
from assay.engine.store_errors import StoreUnwritable

_FACT = "secret-key"


class SecretSeal:
    """Digests under a random key that never leaves its store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key: bytes | None = None

    def seal(self, secret: str) -> str:
        """64 hex digits."""
        if self._key is None:
            self._key = self._load()
        return blake3(secret.encode("utf-8", "surrogateescape"), key=self._key).hexdigest()

    def _load(self) -> bytes:
        query = "SELECT value FROM facts WHERE name = ?"
        row = self._database.query_one(query, (_FACT,))
        if row is None:
            try:
                self._database.execute(
                    "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                    (_FACT, os.urandom(32).hex()),
                )
            except StoreUnwritable:
                # A store that is only asked: it has sealed nothing yet that could be equal.
                return os.urandom(32)
            row = self._database.query_one(query, (_FACT,))
        return bytes.fromhex(str(row[0])) if row is not None else os.urandom(32)
