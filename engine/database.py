"""The door to SQLite: one connection, its transactions, waiting and errors.

Sole importer of sqlite3. Knows no table: what is asked comes from the records, what the
tables are from `migrations`.

The rule for transactions: `transaction()` is opened by whoever decides what belongs
together (the run loop). A record's writing method is part of the transaction that is open
when it is called, and one of its own (`atomically()`) when none is.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from assay.engine.migrations import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from assay.engine.store_errors import (
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreNewer,
    StoreUnwritable,
)

Row = tuple[Any, ...]
Parameters = Sequence[Any]
_T = TypeVar("_T")

PATIENCE_SECONDS: Final = 120.0
"""How long to wait for another process's write lock before saying so."""

_SLICE_SECONDS: Final = 0.1
"""SQLite waits inside C, where Python runs no signal handler: so in slices."""

_PAUSE_SECONDS: Final = 0.002
"""Some kinds of busy come back at once, without SQLite's own wait."""

_ROWS_AT_ONCE: Final = 64

_NO_TRANSACTION: Final[AbstractContextManager[None]] = nullcontext()


class Database:
    """One connection, used only by the thread that opened it."""

    __slots__ = (
        "_connection",
        "_inside",
        "_marker",
        "on_wait",
        "path",
        "patience_seconds",
    )

    def __init__(self, connection: sqlite3.Connection, path: str, marker: str | None) -> None:
        self.path = path
        """`:memory:` for one that is not on disk."""
        self.patience_seconds = PATIENCE_SECONDS
        self.on_wait: Callable[[], None] | None = None
        """Called about ten times a second while waiting for another process; may raise."""
        self._connection = connection
        self._inside = False
        self._marker = marker

    def transaction(self) -> AbstractContextManager[None]:
        """BEGIN IMMEDIATE now; COMMIT at the end, ROLLBACK when the body raises. A nested
        one is an internal error."""
        return self

    def atomically(self) -> AbstractContextManager[None]:
        """The transaction that is open, or one of its own."""
        return _NO_TRANSACTION if self._inside else self

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement that returns no rows; how many rows it changed."""
        try:
            return self._connection.execute(sql, parameters).rowcount
        except sqlite3.Error as error:
            return self._again(error, lambda: self._connection.execute(sql, parameters)).rowcount

    def insert(self, sql: str, parameters: Parameters = ()) -> int | None:
        """Run one INSERT; the new row's id, None when a conflict clause made it none."""
        try:
            cursor = self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            cursor = self._again(error, lambda: self._connection.execute(sql, parameters))
        return cursor.lastrowid if cursor.rowcount > 0 else None

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Run one statement for each of `rows`, in one transaction."""
        with self.atomically():
            try:
                self._connection.executemany(sql, rows)
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def insert_many(self, head: str, rows: Sequence[Parameters]) -> None:
        """`head VALUES` these rows, all of one width, in one transaction. Many rows make one
        statement: between two statements other threads take their turn."""
        with self.atomically():
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                chunk = rows[start : start + _ROWS_AT_ONCE]
                row = f"({', '.join('?' * len(chunk[0]))})"
                values = [value for each in chunk for value in each]
                self.execute(f"{head} VALUES {', '.join([row] * len(chunk))}", values)

    def query(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows of one SELECT."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            return self._again(error, lambda: self._connection.execute(sql, parameters).fetchall())

    def query_one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row of one SELECT, or None."""
        try:
            row: Row | None = self._connection.execute(sql, parameters).fetchone()
        except sqlite3.Error as error:
            row = self._again(error, lambda: self._connection.execute(sql, parameters).fetchone())
        return row

    def version(self) -> int:
        """A number that is another one once another connection has committed."""
        row = self.query_one("PRAGMA data_version")
        return int(row[0]) if row else 0

    def query_until_damage(self, sql: str) -> tuple[list[Row], bool]:
        """The rows of one SELECT up to the first that cannot be read; whether that was all."""
        rows: list[Row] = []
        try:
            rows.extend(self._connection.execute(sql))
        except sqlite3.Error as error:
            translated = self._translated(error)
            if not isinstance(translated, StoreDamaged):
                raise translated from error
            return rows, False
        return rows, True

    def damaged(self, why: str) -> StoreDamaged:
        """The error to raise for content that assay cannot have written; also leaves a
        mark, so that the next run checks the whole file before it trusts it."""
        if self._marker is not None:
            # On a disk that refuses even this, the error itself still tells.
            with suppress(OSError):
                os.close(os.open(self._marker, os.O_CREAT | os.O_WRONLY, 0o600))
        return StoreDamaged(self.path, why)

    def find_faults(self) -> str | None:
        """SQLite's first complaint about the whole file, None when there is none. Reads
        every page."""
        try:
            row = self.query_one("PRAGMA integrity_check(1)")
        except StoreDamaged as error:
            return error.why
        return None if row == ("ok",) else str(row[0] if row else "no answer").splitlines()[-1]

    def flush_commits(self) -> None:
        """Every commit from now on is on disk when it returns; otherwise the last ones may be
        missing after a power loss. Outside a transaction."""
        self.execute("PRAGMA synchronous = FULL")

    def beside(self) -> Database | None:
        """A second connection to the same file for questions of the calling thread, which
        closes it; None for a database in memory."""
        if self.path == MEMORY:
            return None
        return Database(_connect(self.path, "ro"), self.path, self._marker)

    def copy_into(self, other: Database) -> None:
        """Everything committed here, in place of all that `other` holds."""
        try:
            self._connection.backup(other._connection)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def gather(self) -> None:
        """Brings everything into the one file, where no other connection is open. To close
        does the same, but tells nobody of a disk that refuses."""
        row = self.query_one("PRAGMA wal_checkpoint(TRUNCATE)")
        if row != (0, 0, 0):
            raise StoreUnwritable(self.path, "its log could not be moved into it")

    def replace_with(self, other: Database) -> None:
        """Go on with the connection of `other`; this one's is closed. Whoever holds this
        Database holds the new one from now on."""
        old = self._connection
        self._connection, self.path, self._marker = other._connection, other.path, other._marker
        self._inside = False
        old.close()

    def close(self) -> None:
        """What is not committed is gone. Harmless twice."""
        self._inside = False
        self._connection.close()

    def __enter__(self) -> None:
        if self._inside:
            raise RuntimeError("a transaction is already open")
        if self._connection.in_transaction:
            # An exception from a signal handler fell between BEGIN and the body.
            self._connection.rollback()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._again(error, lambda: self._connection.execute("BEGIN IMMEDIATE"))
        self._inside = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._commit()
        else:
            self._rollback()

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Still inside: with a rollback journal COMMIT waits for readers.
            try:
                self._wait_while_busy(error, lambda: self._connection.execute("COMMIT"))
            except BaseException:
                self._rollback()
                raise
        self._inside = False

    def _rollback(self) -> None:
        self._inside = False
        # SQLite has rolled back by itself after some errors (a full disk is one).
        if self._connection.in_transaction:
            self._connection.rollback()

    def _again(self, error: sqlite3.Error, action: Callable[[], _T]) -> _T:
        if self._inside:
            raise self._translated(error) from error
        return self._wait_while_busy(error, action)

    def _wait_while_busy(self, error: sqlite3.Error, action: Callable[[], _T]) -> _T:
        """Repeat `action`, which failed with `error`, while others keep it from succeeding."""
        since = time.monotonic()
        while is_busy(error):
            waited = time.monotonic() - since
            if waited > self.patience_seconds:
                raise StoreBusy(self.path, waited, _find_writer(self.path)) from error
            if self.on_wait is not None:
                self.on_wait()
            time.sleep(_PAUSE_SECONDS)
            try:
                return action()
            except sqlite3.Error as next_error:
                error = next_error
        raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> Exception:
        """The typed error for one of SQLite's; the error itself where assay is to blame."""
        code = getattr(error, "sqlite_errorcode", None)
        text = str(error)
        if code is None:
            if text.startswith("Could not decode"):
                return self.damaged("it holds text that is not UTF-8")
            return error
        primary = code & 0xFF
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
            return self.damaged(text)
        if primary == sqlite3.SQLITE_ERROR and text.startswith(("no such table", "no such col")):
            return self.damaged(text)
        if code == sqlite3.SQLITE_IOERR_SHORT_READ:
            return self.damaged("it is shorter than it was")
        if primary == sqlite3.SQLITE_FULL:
            return StoreFull(self.path)
        if primary in _UNWRITABLE:
            return StoreUnwritable(self.path, text)
        if is_busy(error):
            return StoreBusy(self.path, 0.0, _find_writer(self.path))
        return error


MEMORY: Final = ":memory:"

_UNWRITABLE: Final = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
)

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process is the reason: never one for making the file anew."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _BUSY


def open_for_writing(path: str, marker: str) -> tuple[Database, int]:
    """The database at `path` with its schema version (1 or more, not above this assay's).

    Raises StoreDamaged, StoreNewer, StoreUnwritable, StoreBusy. `marker` is touched when
    damage shows later.
    """
    return _open(path, "rw", marker)


def open_for_reading(path: str) -> tuple[Database, int]:
    """The same without ever writing the file; SQLite may make its `-wal` and `-shm`."""
    return _open(path, "ro", None)


def open_damaged(path: str) -> tuple[Database, int] | None:
    """A damaged database, as far as SQLite can open it at all, with its schema version.
    `path` is a private copy: it may be changed by being opened."""
    try:
        database = Database(_connect(path, "rw"), path, None)
    except StoreUnwritable:
        return None
    try:
        # Lets SQLite read a file that is shorter than its header says.
        database.execute("PRAGMA writable_schema = ON")
        return database, _version(database)
    except (StoreDamaged, StoreUnwritable):
        database.close()
        return None


def open_in_memory() -> Database:
    """An empty database that ends with the process."""
    database = Database(_connect(MEMORY, "memory"), MEMORY, None)
    migrate(database, 0)
    return database


def create_file(path: str) -> Database:
    """A new database at `path`, where no file is, at the current schema and not yet
    visible to anyone: the caller fills it, closes it, syncs it and renames it into place."""
    database = Database(_connect(path, "rwc"), path, None)
    try:
        # The whole file is synced once, when it is complete.
        database.execute("PRAGMA synchronous = OFF")
        database.query_one("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(database, 0)
    except BaseException:
        database.close()
        raise
    return database


def migrate(
    database: Database, version: int, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Bring a database from `version` to the last of `migrations`, one transaction a step.
    A crash in between leaves a complete earlier version."""
    for number in range(version, len(migrations)):
        with database.transaction():
            for statement in migrations[number]:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number + 1}")


def _open(path: str, mode: str, marker: str | None) -> tuple[Database, int]:
    if os.path.exists(path) and not os.path.isfile(path):
        # SQLite would wait for the other end of a named pipe.
        raise StoreUnwritable(path, "it is not a plain file")
    database = Database(_connect(path, mode), path, marker)
    try:
        if mode == "rw":
            database.execute("PRAGMA synchronous = NORMAL")
            # Each checkpoint waits for the disk: every 16 MiB of log, not every four.
            database.query_one("PRAGMA wal_autocheckpoint = 4000")
        version = _version(database)
        if version > SCHEMA_VERSION:
            raise StoreNewer(path, version, SCHEMA_VERSION)
        if database.query_one("PRAGMA application_id") != (APPLICATION_ID,) or version < 1:
            raise database.damaged("it is not an assay database")
        # The first question loads the schema, where damage shows early.
        database.query_one("SELECT value FROM facts WHERE name = 'id'")
    except BaseException:
        database.close()
        raise
    return database, version


def _version(database: Database) -> int:
    row = database.query_one("PRAGMA user_version")
    return int(row[0]) if row else 0


def _connect(path: str, mode: str) -> sqlite3.Connection:
    """`path` absolute, or `:memory:`. Raises StoreUnwritable."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        return sqlite3.connect(
            f"file:{quoted}?mode={mode}",
            uri=True,
            timeout=_SLICE_SECONDS,
            isolation_level=None,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise StoreUnwritable(path, str(error)) from error


def _find_writer(path: str) -> int | None:
    """The pid that holds the write lock of a database in WAL mode, as the kernel tells.

    It is a POSIX lock on byte 120 of the `-shm` file (SQLite's file format, "WAL-Index
    Format", locks).
    """
    try:
        inode = os.stat(path + "-shm").st_ino
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if (
            len(words) == 8
            and words[1] == "POSIX"
            and words[3] == "WRITE"
            and words[5].rpartition(":")[2] == str(inode)
            and words[6] == words[7] == "120"
        ):
            pid = int(words[4])
            return pid if pid > 0 else None
    return None
