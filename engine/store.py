"""The store of one workspace: `.assay/` opened for running or for reading, with its records.

On disk, below the workspace root, readable by its owner only:

    .assay/.gitignore       `*`
    .assay/assay.db         SQLite; with -wal and -shm while in use
    .assay/cas/             blobs
    .assay/logs/            logs of attempts
    .assay/tmp/             leases, private trees, files on their way to their name
    .assay/trash/           what assay moved out of the way of a node, by attempt
    .assay/preimages/       how the writes of attempts that can be rolled back were before them
    .assay/has-effects      there since a node that is not sealed first began here (`effect_marks`)
    .assay/damaged/         files that did not hold what assay wrote, kept for a person

Decides what becomes of a store that is missing, old, damaged or not writable. Knows no
run, node or result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from assay.engine import database as databases
from assay.engine import lock_files
from assay.engine.database import Database
from assay.engine.journal import Fact, Journal
from assay.engine.migrations import SCHEMA_VERSION
from assay.engine.store_errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreNewer,
    StoreUnreadable,
    StoreUnwritable,
)

if TYPE_CHECKING:
    from assay.engine.agreements import Agreements
    from assay.engine.attempts import Attempts
    from assay.engine.effect_marks import Mark
    from assay.engine.effects import Effects
    from assay.engine.pins import Pins
    from assay.engine.results import Results
    from assay.engine.runs import Runs
    from assay.engine.salvage import Salvaged
    from assay.engine.stat_cache import StatCache

__all__ = [
    "Store",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreNewer",
    "StoreUnwritable",
]

FOLDER: Final = ".assay"
DATABASE: Final = "assay.db"

_MARK: Final = "has-effects"
"""Tells whoever makes a database anew that the one before knew of effects."""

_UNRECORDED: Final = (
    "this run is not recorded: it cannot be resumed, nothing is cached or guarded against "
    "another run that writes the same files, and its logs go to"
)


class Store:
    """Use from the thread that opened it, except where a record says otherwise."""

    def __init__(
        self,
        root: str,
        folder: str,
        database: Database,
        now: Callable[[], float],
        *,
        recorded: bool,
        place: str,
        notices: list[str],
    ) -> None:
        self.root = root
        """Absolute workspace root, links resolved."""
        self.folder = folder
        """Absolute path of `.assay/`."""
        self.recorded = recorded
        """False: records end with this process, and no blobs are kept."""
        self.database = database
        self.journal = Journal(database, now)
        self.now = now
        """Seconds since the epoch, from whoever opened the store."""
        self._place = place
        self._notices = notices
        self._reads_only = False

    @classmethod
    def open_for_run(
        cls,
        root: str,
        *,
        now: Callable[[], float],
        on_wait: Callable[[], None] | None = None,
        thorough: bool = False,
        mend: bool = True,
    ) -> Store:
        """The store of the workspace, made or migrated when need be.

        A damaged database is kept aside, what can be read of its history goes into a new
        one, and `notices` tells. Where `.assay/` cannot be written the store lives in
        memory (`recorded` False) and `notices` tells. `thorough` reads the whole database
        first. `on_wait` is called about ten times a second while waiting for another
        process, now or later, and may raise. Raises StoreNewer and StoreBusy.

        `mend` False: nothing is moved, replaced or done without, for a caller that could not
        tell of it; raises StoreDamaged or StoreUnwritable instead.
        """
        root = os.path.realpath(root)
        folder = os.path.join(root, FOLDER)
        notices: list[str] = []
        # Before the database is looked into: whatever has a mark by now is on record there.
        marked = _read_marks(os.path.join(folder, _MARK))
        try:
            database = _open(folder, notices, now, on_wait, thorough=thorough, mend=mend)
        except StoreUnwritable as error:
            if not mend:
                raise
            store = cls(
                root,
                folder,
                _open_in_memory(os.path.join(folder, DATABASE)),
                now,
                recorded=False,
                place=_temporary_place(),
                notices=notices,
            )
            notices.append(f"{error}; {_UNRECORDED} `{store.logs}`")
            return store
        store = cls(root, folder, database, now, recorded=True, place=folder, notices=notices)
        if marked:
            store._note_unrecorded(marked, mend=mend)
        return store

    @classmethod
    def open_for_reading(cls, root: str, *, now: Callable[[], float] = time.time) -> Store | None:
        """The store of the workspace to ask questions of; None when it has none yet.

        Writes nothing but SQLite's own `-wal` and `-shm`; where those cannot be made, and
        for a store of an older assay, a private copy is read. Raises StoreDamaged,
        StoreNewer, StoreUnreadable.
        """
        root = os.path.realpath(root)
        folder = os.path.join(root, FOLDER)
        path = os.path.join(folder, DATABASE)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreUnreadable(folder, (error.strerror or str(error)).lower()) from error
        database = _open_to_ask(path)
        store = cls(root, folder, database, now, recorded=True, place=folder, notices=[])
        store._reads_only = True
        return store

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know about the store, one sentence each."""
        return tuple(self._notices)

    @property
    def logs(self) -> str:
        return os.path.join(self._place, "logs")

    @property
    def tmp(self) -> str:
        return os.path.join(self._place, "tmp")

    @property
    def cas(self) -> str:
        return os.path.join(self._place, "cas")

    @property
    def trash(self) -> str:
        """Made on demand by whoever puts something there."""
        return os.path.join(self._place, "trash")

    @property
    def preimages(self) -> str:
        """Made on demand by whoever keeps one."""
        return os.path.join(self._place, "preimages")

    @property
    def aside(self) -> str:
        """Where damaged files are kept; made on demand."""
        return os.path.join(self._place, "damaged")

    @cached_property
    def id(self) -> str:
        """What tells this store from all others."""
        row = self.database.query_one("SELECT value FROM facts WHERE name = 'id'")
        return "" if row is None else str(row[0])

    # Loaded at first use: a run with nothing to do needs few of them.

    @cached_property
    def runs(self) -> Runs:
        from assay.engine.runs import Runs

        return Runs(self.database, self.now, lambda: self.tmp)

    @cached_property
    def attempts(self) -> Attempts:
        from assay.engine.attempts import Attempts

        return Attempts(self.database)

    @cached_property
    def effects(self) -> Effects:
        from assay.engine.effects import Effects

        return Effects(self.database)

    @cached_property
    def results(self) -> Results:
        from assay.engine.results import Results

        results = Results(self.database, self.journal, self.now)
        results.may_evict = not self._reads_only
        return results

    @cached_property
    def stats(self) -> StatCache:
        from assay.engine.stat_cache import StatCache

        return StatCache(self.database, self.now)

    @cached_property
    def pins(self) -> Pins:
        from assay.engine.pins import Pins

        return Pins(self.database)

    @cached_property
    def agreements(self) -> Agreements:
        from assay.engine.agreements import Agreements

        return Agreements(self.database, self.now)

    def transaction(self) -> AbstractContextManager[None]:
        """BEGIN IMMEDIATE; commits at the end, rolls back when the body raises.

        Everything the records write inside belongs to it; outside, each of their writing
        methods is a transaction of its own. Nested use is an internal error. Nothing slow
        belongs inside: no subprocess, hashing or network.
        """
        return self.database.transaction()

    @property
    def has_effects(self) -> bool:
        """Whether a node that is not sealed has ever begun here; costs one look at a file."""
        return os.path.exists(self.marks)

    @property
    def marks(self) -> str:
        """Absolute path of what `effect_marks` keeps."""
        return os.path.join(self.folder, _MARK)

    def find_unrecorded(self) -> int:
        """How many effects began that the database does not know of: it is not as new as they
        are."""
        return len(self.effects.find_unrecorded(_read_marks(self.marks)))

    def _note_unrecorded(self, marked: list[Mark], *, mend: bool) -> None:
        missing = self.effects.find_unrecorded(marked)
        if not missing:
            return
        path = os.path.join(self.folder, DATABASE)
        why = f"{len(missing)} of the effects that began here are not on record in it"
        if not mend:
            self.database.close()
            raise StoreDamaged(path, why)
        with self.transaction():
            self.effects.mark_unrecorded(missing)
            self.journal.append(
                f"store:{os.urandom(8).hex()}",
                1,
                Fact.DAMAGED,
                run=None,
                data={"file": path, "why": why, "attempts": [mark.attempt for mark in missing]},
            )
        self._notices.append(
            f"`{path}` is older than what was done here: {why}. The nodes that had them are asked"
            " about before they run again"
        )

    def expect_effects(self) -> None:
        """From now on every commit of this process is on disk when it returns, and the store
        remembers that it had effects. Raises StoreUnwritable."""
        if not self.recorded:
            return
        self.database.flush_commits()
        if self.has_effects:
            return
        mark = self.marks
        try:
            for path, flags in ((mark, os.O_CREAT | os.O_WRONLY), (self.folder, os.O_RDONLY)):
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise _unwritable(mark, error) from error

    def degrade(self, why: str) -> None:
        """Go on in memory for the rest of the process: the disk is full, or cannot be
        written any more. Called outside a transaction, after the one that failed was
        rolled back; its writes are to be made again.

        What is on disk stays as it was last committed, so the run looks interrupted there;
        all of it that can be read goes along in memory, so what began on disk settles.
        """
        if not self.recorded:
            return
        memory = databases.open_in_memory()
        _copy(self.database, memory)
        self.database.replace_with(memory)
        self.recorded = False
        self._place = _temporary_place()
        self._notices.append(f"{why}; from here on {_UNRECORDED} `{self.logs}`")

    def repair(self) -> str | None:
        """Read the whole database and, when it is damaged, keep it aside and go on with a
        new one that has what can be read; the sentence that tells, None when all is well.
        Called outside a transaction, with no run of this process under way."""
        why = self.database.find_faults()
        if why is None or not self.recorded:
            return why
        self.database.damaged(why)
        told = len(self._notices)
        fresh = _open(
            self.folder, self._notices, self.now, self.database.on_wait, thorough=True, mend=True
        )
        self.database.replace_with(fresh)
        return "; ".join(self._notices[told:]) or why

    def close(self) -> None:
        """End cleanly. Harmless twice."""
        if self.recorded and "stats" in self.__dict__:
            # Not worth failing for: it costs a fresh measuring after the next boot.
            with suppress(StoreUnwritable, StoreBusy):
                self.stats.close()
        self.database.close()
        if not self.recorded:
            _remove_if_unused(self._place)


def _read_marks(path: str) -> list[Mark]:
    if not os.path.exists(path):
        return []
    from assay.engine import effect_marks

    return effect_marks.read(path)


def _open(
    folder: str,
    notices: list[str],
    now: Callable[[], float],
    on_wait: Callable[[], None] | None,
    *,
    thorough: bool,
    mend: bool,
) -> Database:
    """The database below `folder`, writable and of this assay's schema."""
    path = os.path.join(folder, DATABASE)
    marker = os.path.join(folder, "tmp", "check-database")
    suspect = thorough
    if _is_ready(folder):
        suspect = suspect or os.path.exists(marker)
        if not suspect:
            try:
                database, version = databases.open_for_writing(path, marker)
            except StoreDamaged:
                suspect = True
            else:
                database.on_wait = on_wait
                if version == SCHEMA_VERSION:
                    return database
                database.close()
    else:
        _make_folders(folder)
    # One process at a time makes, migrates or replaces the file; the others find it done.
    try:
        lock = lock_files.wait_for(os.path.join(folder, "tmp", "open.lock"))
    except OSError as error:
        raise _unwritable(folder, error) from error
    with lock:
        if os.path.lexists(path):
            why = None
            try:
                database, version = databases.open_for_writing(path, marker)
            except StoreDamaged as error:
                why = error.why
            else:
                database.on_wait = on_wait
                if suspect or os.path.exists(marker):
                    why = database.find_faults()
                if why is None:
                    databases.migrate(database, version)
                    _remove(marker)
                    return database
                database.close()
            if not mend:
                raise StoreDamaged(path, why)
            notices.append(_replace_damaged(folder, path, why, now))
        else:
            _set_stray_wal_aside(folder, path)
            gone = f"`{path}` is gone"
            fresh = _make_database(folder, now, lambda new: _note_lost_effects(folder, new, gone))
            _put_in_place(fresh, path)
        _remove(marker)
        database, _ = databases.open_for_writing(path, marker)
        database.on_wait = on_wait
        return database


def _is_ready(folder: str) -> bool:
    """Whether the store was made before and can be written; StoreUnwritable when it
    exists and cannot."""
    if not os.access(os.path.join(folder, DATABASE), os.F_OK):
        return False
    for name in (DATABASE, "cas", "logs", "tmp", ""):
        path = os.path.join(folder, name) if name else folder
        mode = os.R_OK | os.W_OK if name == DATABASE else os.R_OK | os.W_OK | os.X_OK
        if not os.access(path, mode):
            if not os.path.lexists(path):
                return False
            raise StoreUnwritable(path, _explain_access(path))
    return True


def _explain_access(path: str) -> str:
    """Why a file or folder of the store that is there cannot be used."""
    if os.path.basename(path) != DATABASE and not os.path.isdir(path):
        return "it is not a folder"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "the file system is mounted read-only"
    return "permission denied"


def _make_folders(folder: str) -> None:
    try:
        for path in (folder, *(os.path.join(folder, name) for name in ("cas", "logs", "tmp"))):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise StoreUnwritable(path, "it is not a folder") from None
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                raise StoreUnwritable(path, _explain_access(path))
        ignore = os.path.join(folder, ".gitignore")
        # Empty when a crash fell between making and filling it.
        if not os.path.exists(ignore) or os.path.getsize(ignore) == 0:
            with open(ignore, "w", encoding="ascii") as file:
                file.write("*\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(path: str, error: OSError) -> StoreUnwritable:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(path)
    return StoreUnwritable(path, (error.strerror or str(error)).lower())


def _make_database(
    folder: str, now: Callable[[], float], fill: Callable[[Database], None] | None = None
) -> str:
    """A complete new database under a private name; its path. `fill` adds rows to it.

    Complete before it gets its name, so a file of that name that is empty or half is
    damage, whoever crashed.
    """
    path = os.path.join(folder, "tmp", f"new-{os.getpid()}-{os.urandom(4).hex()}.db")
    try:
        database = databases.create_file(path)
        try:
            with database.transaction():
                database.execute("INSERT INTO facts VALUES ('id', ?)", (os.urandom(16).hex(),))
                database.execute("INSERT INTO facts VALUES ('made-at', ?)", (str(now()),))
            if fill is not None:
                fill(database)
            database.gather()
        finally:
            database.close()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException as error:
        for suffix in ("", "-wal", "-shm"):
            _remove(path + suffix)
        if isinstance(error, OSError):
            raise _unwritable(folder, error) from error
        raise
    return path


def _note_lost_effects(folder: str, fresh: Database, where: str) -> None:
    """A new database that may lack effects says so; `where` the others are."""
    from assay.engine.effects import Effects

    if os.path.exists(os.path.join(folder, _MARK)):
        Effects(fresh).mark_lost(where)


def _put_in_place(new: str, path: str) -> None:
    try:
        os.rename(new, path)
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unwritable(path, error) from error


def _replace_damaged(folder: str, path: str, why: str, now: Callable[[], float]) -> str:
    """Keep a damaged database aside and put a new one with what can be read in its place;
    the sentence that tells. Runs under the opening lock.

    The new file is complete before the old one leaves. A crash in between leaves the old
    one, still damaged, for the next opener. Other processes that have the old file open go
    on with it where it is kept; SQLite sees that it was moved and deletes nothing by name.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now()))
    aside = os.path.join(folder, "damaged")
    kept_as = os.path.join(aside, f"{DATABASE}-{stamp}")
    try:
        os.makedirs(aside, 0o700, exist_ok=True)
        number = 1
        while os.path.lexists(kept_as):
            number += 1
            kept_as = os.path.join(aside, f"{DATABASE}-{stamp}-{number}")
        report: list[Salvaged] = []

        def fill(fresh: Database) -> None:
            report.append(_salvage_copy(folder, path, fresh))
            if not report[0].has_all_effects:
                _note_lost_effects(folder, fresh, f"the damaged one is kept as `{kept_as}`")
            Journal(fresh, now).append(
                f"store:{os.urandom(8).hex()}",
                1,
                Fact.DAMAGED,
                run=None,
                data={
                    "file": path,
                    "why": why,
                    "kept_as": kept_as,
                    "kept": report[0].kept,
                    "lost": report[0].lost,
                },
            )

        new = _make_database(folder, now, fill)
        os.link(path, kept_as)
        for suffix in ("-wal", "-shm"):
            # Gone before the new file is there: a log never meets a file it is not of.
            if os.path.lexists(path + suffix):
                os.rename(path + suffix, kept_as + suffix)
        _put_in_place(new, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return f"`{path}` was damaged ({why}) and is kept as `{kept_as}`: {_tell(report[0])}"


def _tell(salvaged: Salvaged) -> str:
    """What was kept and lost, for people."""
    kept = salvaged.kept
    runs, results = kept.get("runs", 0), kept.get("results", 0)
    if not runs and not results:
        return "nothing in it can be read, so its run history and recorded results are lost"
    text = (
        f"{runs} run{'' if runs == 1 else 's'}, {kept.get('journal', 0)} journal records and "
        f"{results} recorded result{'' if results == 1 else 's'} were read from it"
    )
    if salvaged.lost:
        text += f"; the rest of {', '.join(f'`{table}`' for table in salvaged.lost)} is lost"
    return text


def _salvage_copy(folder: str, path: str, fresh: Database) -> Salvaged:
    """Read what can be read, from a copy: opening changes a file, and the damaged one is
    kept as it was found."""
    import shutil

    from assay.engine.salvage import Salvaged, salvage

    copy = os.path.join(folder, "tmp", f"salvage-{os.getpid()}-{os.urandom(4).hex()}.db")
    try:
        shutil.copyfile(path, copy)
        if os.path.exists(path + "-wal"):
            shutil.copyfile(path + "-wal", copy + "-wal")
        opened = databases.open_damaged(copy)
        if opened is None:
            return Salvaged()
        database, version = opened
        try:
            if version != SCHEMA_VERSION:
                return Salvaged()
            return salvage(database, fresh)
        finally:
            database.close()
    finally:
        for suffix in ("", "-wal", "-shm"):
            _remove(copy + suffix)


def _set_stray_wal_aside(folder: str, path: str) -> None:
    """A log without its database would be replayed into the new one."""
    for suffix in ("-wal", "-shm"):
        if os.path.lexists(path + suffix):
            aside = os.path.join(folder, "damaged")
            try:
                os.makedirs(aside, 0o700, exist_ok=True)
                os.rename(
                    path + suffix,
                    os.path.join(aside, f"{DATABASE}-{os.urandom(4).hex()}{suffix}"),
                )
            except OSError as error:
                raise _unwritable(path, error) from error


_LARGEST_COPY_BYTES: Final = 1 << 29
"""A larger database is not taken into memory."""


def _open_in_memory(path: str) -> Database:
    """What the database at `path` holds, as far as it can be read, in memory."""
    memory = databases.open_in_memory()
    try:
        if os.path.exists(path):
            database = _open_to_ask(path)
            try:
                _copy(database, memory)
            finally:
                database.close()
    except (StoreDamaged, StoreUnwritable, StoreBusy):
        # Recorded results are of no use then: everything executes.
        pass
    return memory


def _copy(database: Database, memory: Database) -> None:
    """All of `database` into `memory`; nothing when it is too large or cannot be read."""
    with suppress(StoreDamaged, StoreUnwritable, StoreBusy):
        row = database.query_one(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        )
        if row is not None and row[0] <= _LARGEST_COPY_BYTES:
            database.copy_into(memory)


def _open_to_ask(path: str) -> Database:
    """The database at the current schema, the file itself untouched."""
    try:
        database, version = databases.open_for_reading(path)
    except StoreUnwritable:
        database, version = _open_private_copy(path)
    if version < SCHEMA_VERSION:
        database.close()
        database, version = _open_private_copy(path)
        databases.migrate(database, version)
    return database


_COPY_TRIES: Final = 20


def _open_private_copy(path: str) -> tuple[Database, int]:
    """Database and log copied into a folder that is gone again before this returns: the
    connection keeps the files."""
    import shutil
    import tempfile

    place = tempfile.mkdtemp(prefix="assay-read-")
    copy = os.path.join(place, DATABASE)
    try:
        for _ in range(_COPY_TRIES):
            before = _signature(path)
            shutil.copyfile(path, copy)
            _remove(copy + "-wal")
            if before[1] is not None:
                shutil.copyfile(path + "-wal", copy + "-wal")
            if _signature(path) == before:
                break
        else:
            raise StoreBusy(path, 0.0, None)
        return databases.open_for_writing(copy, os.path.join(place, "marker"))
    except OSError as error:
        raise StoreUnreadable(path, (error.strerror or str(error)).lower()) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _signature(path: str) -> tuple[tuple[int, int] | None, ...]:
    """Changes when a writer commits to the log or moves it into the file meanwhile."""
    found: list[tuple[int, int] | None] = []
    for name in (path, path + "-wal"):
        try:
            stat = os.stat(name)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _temporary_place() -> str:
    """A private folder below the system's temporary folder, in the layout of `.assay/`."""
    import tempfile

    place = tempfile.mkdtemp(prefix="assay-unrecorded-")
    for name in ("logs", "tmp", "cas"):
        os.mkdir(os.path.join(place, name), 0o700)
    return place


def _remove_if_unused(place: str) -> None:
    """Logs and trash stay for the user; what is empty goes."""
    import shutil

    shutil.rmtree(os.path.join(place, "tmp"), ignore_errors=True)
    for name in ("cas", "logs", ""):
        with suppress(OSError):  # Not empty, or gone already.
            os.rmdir(os.path.join(place, name))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
