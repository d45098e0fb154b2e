"""One connection: its transactions, waiting for other processes, and typed errors."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import finish, hold_write_lock, let_go, start_python

from assay.engine import database as databases
from assay.engine.columns import from_column, to_column
from assay.engine.database import Database
from assay.engine.migrations import MIGRATIONS, SCHEMA_VERSION
from assay.engine.store_errors import StoreBusy, StoreDamaged, StoreNewer, StoreUnwritable

INSERT = "INSERT INTO facts VALUES (?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A database file with the current schema."""
    path = tmp_path / "assay.db"
    database = databases.create_file(str(path))
    database.execute(INSERT, ("id", "x"))
    database.close()
    return str(path)


OPENED: list[Database] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Closes what `keep` was given."""
    yield
    while OPENED:
        OPENED.pop().close()


def keep(database: Database) -> Database:
    OPENED.append(database)
    return database


def open_it(path: str) -> Database:
    return keep(databases.open_for_writing(path, path + ".suspect")[0])


def names(database: Database) -> list[str]:
    return [row[0] for row in database.query("SELECT name FROM facts ORDER BY name")]


def test_a_transaction_commits_as_one(path: str) -> None:
    """Another connection sees all of a transaction or nothing of it."""
    database, other = open_it(path), open_it(path)
    with database.transaction():
        database.execute(INSERT, ("a", "1"))
        database.execute(INSERT, ("b", "2"))
        assert names(other) == ["id"]
    assert names(other) == ["a", "b", "id"]


def test_a_transaction_that_raises_leaves_nothing(path: str) -> None:
    """Whatever ends the body early, its writes are rolled back and the next one works."""
    database = open_it(path)

    def fail_halfway() -> None:
        with database.transaction():
            database.execute(INSERT, ("a", "1"))
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert names(database) == ["id"]
    with database.transaction():
        database.execute(INSERT, ("b", "1"))
    assert names(open_it(path)) == ["b", "id"]


def test_nested_transactions_are_an_internal_error(path: str) -> None:
    """Only whoever decides what belongs together opens a transaction."""
    database = open_it(path)
    with database.transaction(), pytest.raises(RuntimeError), database.transaction():
        pass


def test_atomically_joins_the_transaction_that_is_open(path: str) -> None:
    """A record's method is part of its caller's transaction, or one of its own."""
    database, other = open_it(path), open_it(path)
    with database.transaction():
        with database.atomically():
            database.execute(INSERT, ("a", "1"))
        assert names(other) == ["id"]
    assert names(other) == ["a", "id"]
    with database.atomically():
        database.execute(INSERT, ("b", "1"))
        assert names(other) == ["a", "id"]
    assert names(other) == ["a", "b", "id"]


def test_a_transaction_left_open_by_an_interrupt_is_rolled_back(path: str) -> None:
    """An exception from a signal handler between BEGIN and the body blocks nothing."""
    database = open_it(path)
    database.execute("BEGIN IMMEDIATE")
    database.execute(INSERT, ("a", "1"))
    with database.transaction():
        database.execute(INSERT, ("b", "1"))
    assert names(open_it(path)) == ["b", "id"]


@pytest.mark.parametrize("how", ["transaction", "statement"])
def test_a_writer_waits_for_the_write_lock_of_another_process(path: str, how: str) -> None:
    """C85: a lock held elsewhere is waited for, never shown to the user."""
    database = open_it(path)
    holder = hold_write_lock(path)
    waited: list[None] = []

    def on_wait() -> None:
        waited.append(None)
        if len(waited) == 3:
            let_go(holder)

    database.on_wait = on_wait
    if how == "transaction":
        with database.transaction():
            database.execute(INSERT, ("a", "1"))
    else:
        database.execute(INSERT, ("a", "1"))
    assert len(waited) >= 3
    assert names(open_it(path)) == ["a", "id"]
    finish(holder)


def test_waiting_ends_with_the_pid_of_the_holder(path: str) -> None:
    """Past all patience the error names the process that holds the lock."""
    database = open_it(path)
    database.patience_seconds = 0.0
    holder = hold_write_lock(path)
    with pytest.raises(StoreBusy) as caught, database.transaction():
        pass
    assert caught.value.holder == holder.pid
    assert str(caught.value) == f"`{path}` has been held by process {holder.pid} for 0s"
    finish(holder, "go\n")
    with database.transaction():
        pass


WAITER = """
import sys
from assay.engine import database as databases
database, _ = databases.open_for_writing(sys.argv[1], sys.argv[1] + ".suspect")
database.on_wait = lambda: print("waiting", flush=True)
try:
    with database.transaction():
        pass
except KeyboardInterrupt:
    print("interrupted", database.query_one("SELECT 1"))
"""


def test_waiting_can_be_interrupted(path: str) -> None:
    """C74: Ctrl-C ends the waiter at once and leaves the holder alone."""
    holder = hold_write_lock(path)
    waiter = start_python(WAITER, path)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "waiting\n"
    waiter.send_signal(signal.SIGINT)
    out = finish(waiter)
    assert out.endswith("interrupted (1,)\n")
    assert holder.poll() is None
    finish(holder, "go\n")


def test_what_on_wait_raises_ends_the_wait(path: str) -> None:
    """A caller whose signal handlers only set a flag can give up as well."""
    database = open_it(path)
    holder = hold_write_lock(path)

    def on_wait() -> None:
        raise InterruptedError

    database.on_wait = on_wait
    with pytest.raises(InterruptedError), database.transaction():
        pass
    finish(holder, "go\n")
    database.execute(INSERT, ("a", "1"))


def test_reading_needs_no_lock(path: str) -> None:
    """C85: questions are answered while another process writes."""
    holder = hold_write_lock(path)
    database, version = databases.open_for_reading(path)
    keep(database)
    assert (names(database), version) == (["id"], SCHEMA_VERSION)
    finish(holder, "go\n")


def test_a_reading_connection_cannot_write(path: str) -> None:
    """What only asks has no way to change the file."""
    database = keep(databases.open_for_reading(path)[0])
    with pytest.raises(StoreUnwritable):
        database.execute(INSERT, ("a", "1"))


@pytest.mark.parametrize("content", [b"", b"not a database\n" * 100, b"\0" * 8192, b"x"])
def test_other_files_are_damage(path: str, content: bytes) -> None:
    """C87: an empty file or text in place of the database is recognised, not adopted."""
    Path(path).write_bytes(content)
    with pytest.raises(StoreDamaged):
        open_it(path)
    assert Path(path).read_bytes() == content
    assert Path(path + ".suspect").exists()


def test_a_database_of_another_program_is_damage(tmp_path: Path) -> None:
    """A sound database that assay did not make is not written to."""
    path = str(tmp_path / "other.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE facts (name, value)")
    connection.commit()
    connection.close()
    before = Path(path).read_bytes()
    with pytest.raises(StoreDamaged, match="not an assay database"):
        open_it(path)
    assert Path(path).read_bytes() == before


def test_a_newer_schema_is_refused(path: str) -> None:
    """What a newer assay wrote is neither read nor changed."""
    database = open_it(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    for open_database in (open_it, databases.open_for_reading):
        with pytest.raises(StoreNewer) as caught:
            open_database(path)
        assert caught.value.found == 99


def test_a_missing_folder_is_unwritable(tmp_path: Path) -> None:
    """Opening never makes a file by itself."""
    with pytest.raises(StoreUnwritable):
        open_it(str(tmp_path / "assay.db"))
    assert list(tmp_path.iterdir()) == []


STEPS = (
    ("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)"),
    ("ALTER TABLE a ADD COLUMN y", "UPDATE a SET y = x + 1"),
)


def test_migrations_run_forward_from_where_a_database_stands(tmp_path: Path) -> None:
    """Each step runs once, and a database that was at an earlier one keeps its rows."""
    path = str(tmp_path / "m.db")
    sqlite3.connect(path).close()
    database = keep(Database(sqlite3.connect(path, isolation_level=None), path, None))
    databases.migrate(database, 0, STEPS[:1])
    database.execute("INSERT INTO a VALUES (5)")
    databases.migrate(database, 1, STEPS)
    assert database.query("SELECT x, y FROM a") == [(1, 2), (5, 6)]
    assert database.query_one("PRAGMA user_version") == (2,)


def test_a_migration_that_fails_leaves_the_earlier_version(tmp_path: Path) -> None:
    """A step is one transaction with its version: half of one is never seen."""
    path = str(tmp_path / "m.db")
    database = keep(Database(sqlite3.connect(path, isolation_level=None), path, None))
    databases.migrate(database, 0, STEPS[:1])
    broken = (STEPS[0], ("ALTER TABLE a ADD COLUMN y", "THIS IS NO SQL"))
    with pytest.raises(sqlite3.OperationalError):
        databases.migrate(database, 1, broken)
    assert database.query("SELECT * FROM a") == [(1,)]
    assert database.query_one("PRAGMA user_version") == (1,)


NAMES = ["plain", "é", "\udcff\udcfe.c", "a\nb", "日本", "x\udc80é"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_bytes_come_back(path: str, name: str) -> None:
    """File names that are not UTF-8 are stored, compared and returned like others."""
    database = open_it(path)
    database.execute(
        "INSERT INTO recorded_outputs VALUES (?, 'p', 'n', 's', 1.0)", (to_column(name),)
    )
    rows = database.query("SELECT path FROM recorded_outputs WHERE path = ?", (to_column(name),))
    assert [from_column(row[0]) for row in rows] == [name]


def test_version_tells_of_commits_by_others(path: str) -> None:
    """Inside a transaction and outside: another number once another connection committed,
    the same one after commits of its own and while the other has not committed."""
    database, other = open_it(path), open_it(path)
    before = database.version()
    database.execute(INSERT, ("a", "1"))
    with database.transaction():
        assert database.version() == before
    with other.transaction():
        other.execute(INSERT, ("b", "2"))
        assert database.version() == before
    with database.transaction():
        after = database.version()
        assert after != before
    assert database.version() == after


def test_a_store_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """Its tries get the positions of the records that tell of them; what none tells of is first."""
    path = str(tmp_path / "old.db")
    database = keep(Database(sqlite3.connect(path, isolation_level=None), path, None))
    databases.migrate(database, 0, MIGRATIONS[:1])
    for number in (1, 2, 3):
        database.execute(
            "INSERT INTO attempts VALUES (?, 'r', 'n', 'k', 1, 'settled', 'succeeded', 0, NULL,"
            " 1.0, 2.0, '', '', NULL, '[]', '{}', '')",
            (f"r-{number}",),
        )
    for seq, attempt in ((7, "r-2"), (9, "r-1")):
        database.execute(
            "INSERT INTO journal VALUES (?, 1.0, 'r', 'n', 'attempt-begun', 's', ?, ?)",
            (seq, seq, f'{{"attempt":"{attempt}"}}'),
        )
    databases.migrate(database, 1)
    found = database.query("SELECT id, begun_seq FROM attempts ORDER BY id")
    assert found == [("r-1", 9), ("r-2", 7), ("r-3", 0)]
    assert database.query_one("PRAGMA user_version") == (SCHEMA_VERSION,)
