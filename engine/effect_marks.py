"""Marks of effects beside the database: each says that a command was about to start whose effect
the database had on record.

The database can be taken back to what it was earlier without being damaged, when its log is lost
or cut, or an old copy is put in its place; then it no longer knows what was done since. An
attempt that has a mark and no record tells. The file is `SLOTS` slots of `SLOT_BYTES` bytes, each
a padded line, or zeros where none was written:

    ATTEMPT BEGUN_SEQ NODE

NODE is `effects.node_digest` of the node. The slot is that of the journal position, so that the
newest `SLOTS` positions have one. A mark is on disk when `put` returns, after the commit of the
record and before the start of the command.

Knows bytes; not what follows from a mark.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from assay.engine.states import AttemptId

SLOTS: Final = 64
SLOT_BYTES: Final = 128

_LINE: Final = re.compile(rb"([0-9a-f]{8}-[0-9]{1,18}) ([0-9]{1,18}) ([0-9a-f]{64}) *\n")


@dataclass(frozen=True, slots=True)
class Mark:
    attempt: AttemptId
    node: str


def put(path: str, attempt: AttemptId, begun_seq: int, node: str) -> None:
    """Raises OSError."""
    line = f"{attempt} {begun_seq} {node}".ljust(SLOT_BYTES - 1) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, line.encode("ascii"), begun_seq % SLOTS * SLOT_BYTES)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str) -> list[Mark]:
    """Every mark that is whole; none where the file is gone or cannot be read."""
    data = b""
    with suppress(OSError), open(path, "rb") as file:
        data = file.read(SLOTS * SLOT_BYTES)
    found: list[Mark] = []
    for start in range(0, len(data), SLOT_BYTES):
        line = _LINE.fullmatch(data[start : start + SLOT_BYTES])
        if line is not None:
            found.append(Mark(AttemptId(line[1].decode()), line[3].decode()))
    return found


def has(path: str, attempt: AttemptId) -> bool:
    """Whether the command of the attempt was about to start; False also where that has been
    written over since."""
    return any(mark.attempt == attempt for mark in read(path))
