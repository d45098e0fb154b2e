"""The stat cache: which content a path had when its stat was last seen.

A file whose size, mtime, ctime, inode and mode are as remembered has the remembered
content. Knows when a stat can be trusted; does not read files.

A stat is remembered only when its newest stamp was safely older than the moment of
measuring: a change within one tick of the clock leaves no trace in the stamps.

After power loss a file may have lost data that was measured while it stood in memory only.
So under a new boot id everything goes unless whoever used the cache last closed cleanly,
and then still what changed shortly before that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from assay.engine.columns import from_column, to_column
from assay.engine.identity import boot_id
from assay.engine.states import State
from assay.plans.model import RelPath

if TYPE_CHECKING:
    from assay.engine.database import Database

Known = tuple[int, int, int, int, int, str]
"""size, mtime_ns, ctime_ns, inode, mode, state"""

_TICK_NS: Final = 20_000_000
"""File systems stamp with the kernel's coarse clock: up to 10 ms behind."""

_WHOLE_SECOND_NS: Final = 2_000_000_000
"""Margin for file systems that keep whole seconds (or, FAT, two)."""

_SECOND_NS: Final = 1_000_000_000

_OPENING: Final = "stat-open:"
"""Prefix of the fact that one process wrote rows and has not closed cleanly."""

_ALL: Final = 1 << 62

_UNWRITTEN_SECONDS: Final = 120
"""What changed longer ago than this is on disk, synced or not (Linux writes back after 30 s)."""


class StatCache:
    """`lookup` and `remember` may be called from any thread; everything else, making one
    included, belongs to the thread of the database."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, Known] | None = None
        self._fresh: dict[str, Known] = {}
        self._thread = threading.get_ident()
        self._opening = _OPENING + os.urandom(8).hex()
        self._entered = False

    def lookup(self, path: RelPath, stat: os.stat_result) -> State | None:
        """The state remembered for `path` when its stat is unchanged, else None. The whole
        table is read at the first call."""
        known = self._known
        if known is None:
            known = self._load()
        entry = known.get(path)
        if (
            entry is not None
            and entry[2] == stat.st_ctime_ns
            and entry[1] == stat.st_mtime_ns
            and entry[0] == stat.st_size
            and entry[3] == stat.st_ino
            and entry[4] == stat.st_mode
        ):
            return State(entry[5])
        return None

    def remember(
        self, path: RelPath, stat: os.stat_result, state: State, measured_at_ns: int
    ) -> None:
        """Keep the state of `path`, measured from content read since `measured_at_ns`
        (epoch) and unmoved under `stat`. Not kept when the stat is too young to tell."""
        newest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        margin = _TICK_NS if stat.st_ctime_ns % _SECOND_NS else _WHOLE_SECOND_NS
        if newest > measured_at_ns - margin:
            return
        entry = (
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_ino,
            stat.st_mode,
            str(state),
        )
        known = self._known
        if known is None:
            known = self._load()
        with self._lock:
            known[path] = entry
            self._fresh[path] = entry

    def flush(self) -> None:
        """Write what is new; part of the transaction that is open, or one of its own."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        if not fresh:
            return
        with self._database.atomically():
            self._enter()
            self._database.insert_many(
                "INSERT OR REPLACE INTO stat_cache",
                [(to_column(path), *entry) for path, entry in fresh.items()],
            )

    def close(self) -> None:
        """Tell that what this process flushed was followed by a clean end."""
        if not self._entered:
            return
        self._entered = False
        with self._database.atomically():
            self._database.execute("DELETE FROM facts WHERE name = ?", (self._opening,))
            self._database.execute(
                "INSERT OR REPLACE INTO facts VALUES ('stat-closed-at', ?)", (str(self._now()),)
            )

    def forget(self, paths: list[str]) -> None:
        """Drop paths that are gone."""
        self._database.execute_many(
            "DELETE FROM stat_cache WHERE path = ?", [(to_column(path),) for path in paths]
        )

    def paths(self) -> list[str]:
        """Every path the table holds."""
        return [from_column(row[0]) for row in self._database.query("SELECT path FROM stat_cache")]

    def _load(self) -> dict[str, Known]:
        with self._lock:
            if self._known is not None:
                return self._known
            if threading.get_ident() == self._thread:
                self._known = self._read(self._database)
            else:
                # A connection belongs to one thread: this one reads over one of its own.
                beside = self._database.beside()
                if beside is None:
                    self._known = {}
                else:
                    try:
                        self._known = self._read(beside)
                    finally:
                        beside.close()
            return self._known

    def _read(self, database: Database) -> dict[str, Known]:
        below = self._trusted_below(database)
        if below is None:
            return {}
        rows = database.query(
            "SELECT path, size, mtime_ns, ctime_ns, inode, mode, state FROM stat_cache"
            " WHERE ctime_ns < ?",
            (below,),
        )
        return {from_column(row[0]): row[1:] for row in rows}

    def _trusted_below(self, database: Database) -> int | None:
        """Rows with a ctime (in ns) below this can be trusted; None: none can."""
        facts: dict[str, str] = dict(
            database.query("SELECT name, value FROM facts WHERE name >= 'stat-' AND name < 'stat.'")
        )
        if facts.get("stat-boot") == boot_id():
            return _ALL
        if any(name.startswith(_OPENING) for name in facts):
            return None
        try:
            closed_at = float(facts.get("stat-closed-at", "0"))
        except ValueError:
            return None
        return int((closed_at - _UNWRITTEN_SECONDS) * _SECOND_NS)

    def _enter(self) -> None:
        """Before this process writes rows: drop what an earlier boot left untrusted, and
        count this process among those that have not closed."""
        below = self._trusted_below(self._database)
        if below != _ALL:
            self._database.execute("DELETE FROM stat_cache WHERE ctime_ns >= ?", (below or 0,))
            self._database.execute(
                "DELETE FROM facts WHERE name >= 'stat-open:' AND name < 'stat-open;'"
            )
            self._database.execute(
                "INSERT OR REPLACE INTO facts VALUES ('stat-boot', ?)", (boot_id(),)
            )
        self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, '')", (self._opening,))
        self._entered = True
