"""Pins: what a run saw of the world when it started, one blob per run.

Knows how it is kept; not how it was measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from assay.engine.columns import from_json, to_json
from assay.engine.states import RunId, State
from assay.plans.model import RelPath

if TYPE_CHECKING:
    from assay.engine.database import Database

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class PinSet:
    pins: Mapping[RelPath, State]
    """State of every source input."""
    members: Mapping[str, Sequence[RelPath]]
    """Members of every glob and tree, under the caller's own name for it."""
    surroundings: Mapping[str, str]
    """What of the machine the run is bound to; empty in stores of older assays."""


class Pins:
    def __init__(self, database: Database) -> None:
        self._database = database

    def save(
        self,
        run: RunId,
        pins: Mapping[RelPath, State],
        members: Mapping[str, Sequence[RelPath]],
        surroundings: Mapping[str, str],
    ) -> None:
        """Keep a run's pins; saving again (a generation was appended) replaces them."""
        packed = zlib.compress(to_json([pins, members, surroundings]).encode("ascii"), 1)
        self._database.execute(
            "INSERT INTO pins (run, data) VALUES (?, ?)"
            " ON CONFLICT (run) DO UPDATE SET data = excluded.data",
            (run, blake3(packed).digest() + packed),
        )

    def load(self, run: RunId) -> PinSet | None:
        """What was saved; None when nothing was. Raises StoreDamaged for anything else."""
        row = self._database.query_one("SELECT data FROM pins WHERE run = ?", (run,))
        if row is None:
            return None
        data = bytes(row[0])
        packed = data[_DIGEST_BYTES:]
        if blake3(packed).digest() != data[:_DIGEST_BYTES]:
            raise self._database.damaged(f"the pins of run {run} are not what was written")
        pins, members, *rest = from_json(zlib.decompress(packed).decode("ascii"))
        known = {name: tuple(paths) for name, paths in members.items()}
        return PinSet(pins, known, rest[0] if rest else {})
