"""Opening `.assay/`: made once, shared by many processes, refused, read privately, degraded."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ground import run_python
from store_rows import (
    a_result,
    a_run,
    digest,
    finish,
    hold_write_lock,
    open_store,
    record_build,
    start_python,
)

from assay.engine import migrations
from assay.engine.runs import this_owner
from assay.engine.states import RunId, RunStatus
from assay.engine.store import Store
from assay.engine.store_errors import StoreNewer, StoreUnwritable
from assay.plans.model import RelPath


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def integrity(root: Path) -> str:
    connection = sqlite3.connect(root / ".assay" / "assay.db")
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def test_a_new_store_has_its_folders(store: Store, tmp_path: Path) -> None:
    """`.assay/` holds what the specification says and git ignores all of it."""
    folder = tmp_path / ".assay"
    assert store.folder == str(folder)
    assert {"assay.db", "cas", "logs", "tmp", ".gitignore"} <= set(os.listdir(folder))
    assert (folder / ".gitignore").read_text() == "*\n"
    assert store.recorded
    assert store.notices == ()
    assert (store.cas, store.logs, store.tmp, store.trash) == tuple(
        str(folder / name) for name in ("cas", "logs", "tmp", "trash")
    )


def test_a_store_is_for_its_owner_only(store: Store, tmp_path: Path) -> None:
    """Nothing below `.assay/` can be read by others, whatever the umask."""
    for path in [tmp_path / ".assay", *map(Path, (store.cas, store.logs, store.tmp))]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_opening_again_finds_what_was_written(tmp_path: Path) -> None:
    """A store outlives the process that wrote it."""
    first = open_store(tmp_path)
    record_build(first, "aaaaaaaa", 3)
    name = first.id
    first.close()
    second = open_store(tmp_path)
    assert second.id == name
    assert second.runs.find("last").status is RunStatus.COMPLETED
    assert len(second.attempts.of_run(RunId("aaaaaaaa"))) == 3
    second.close()


def test_a_link_to_the_workspace_is_the_workspace(store: Store, tmp_path: Path) -> None:
    """C125: the store is the same whether the root is reached through a link or not."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    through, direct = open_store(link), open_store(tmp_path / "real")
    assert through.id == direct.id
    assert through.root == direct.root == str(tmp_path / "real")
    through.close()
    direct.close()


@pytest.mark.parametrize("name", ["per%20cent", "what?x=1", "a#b", "-dash", "sp ace", "é\udcff"])
def test_roots_of_any_name_work(tmp_path: Path, name: str) -> None:
    """C121: a folder's name never changes which file is opened."""
    root = tmp_path / name
    root.mkdir()
    store = open_store(root)
    record_build(store, "aaaaaaaa", 1)
    store.close()
    assert (root / ".assay" / "assay.db").exists()
    reader = Store.open_for_reading(str(root))
    assert reader is not None
    assert reader.runs.find("last").id == "aaaaaaaa"
    reader.close()


CROWD = """
import sys, store_rows
root, run = sys.argv[1:]
sys.stdin.readline()
store = store_rows.open_store(root)
assert store.recorded, store.notices
assert store.notices == (), store.notices
store_rows.record_build(store, run, 5)
reader = store_rows.Store.open_for_reading(root)
assert reader.runs.find(run).settled_at
reader.close()
store.close()
"""


def test_twenty_processes_make_and_write_one_store(tmp_path: Path) -> None:
    """C85: whoever comes first makes the store, nobody sees a lock, no row is lost."""
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        runs = [f"{n:08x}" for n in range(1, 21)]
        crowd = [start_python(CROWD, str(root), run) for run in runs]
        for process in crowd:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in crowd:
            finish(process)
        assert integrity(root) == "ok"
        store = open_store(root)
        assert sorted(row.id for row in store.runs.list(100)) == runs
        assert all(len(store.attempts.of_run(RunId(run))) == 5 for run in runs)
        assert len(list(store.journal.read())) == 20 * 7
        assert sorted(os.listdir(store.tmp)) == ["open.lock"]
        store.close()


def test_a_store_held_by_another_process_opens(tmp_path: Path) -> None:
    """C85: opening an existing store needs no write lock."""
    open_store(tmp_path).close()
    holder = hold_write_lock(str(tmp_path / ".assay" / "assay.db"))
    store = open_store(tmp_path)
    reader = Store.open_for_reading(str(tmp_path))
    assert reader is not None
    assert store.recorded
    reader.close()
    finish(holder, "go\n")
    store.close()


def test_reading_makes_nothing(tmp_path: Path) -> None:
    """C133: a question in a workspace without a store leaves none behind."""
    assert Store.open_for_reading(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_reading_changes_only_what_is_sqlites_own(tmp_path: Path) -> None:
    """C133: a question leaves every file of the store as it was."""
    store = open_store(tmp_path)
    record_build(store, "aaaaaaaa", 2)
    store.close()

    def tree() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file() and not path.name.endswith(("-wal", "-shm"))
        }

    before = tree()
    reader = Store.open_for_reading(str(tmp_path))
    assert reader is not None
    assert reader.runs.find("last").id == "aaaaaaaa"
    assert reader.results.get("nothing") is None
    reader.close()
    assert tree() == before


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    """A schema this assay does not know is neither migrated nor replaced."""
    open_store(tmp_path).close()
    path = tmp_path / ".assay" / "assay.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreNewer):
        open_store(tmp_path)
    with pytest.raises(StoreNewer):
        Store.open_for_reading(str(tmp_path))
    assert path.read_bytes() == before
    assert not (tmp_path / ".assay" / "damaged").exists()


def test_an_older_store_is_read_as_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question to an older store migrates a private copy; a run migrates the store."""
    open_store(tmp_path).close()
    later = (*migrations.MIGRATIONS, ("INSERT INTO facts VALUES ('later', '1')",))
    monkeypatch.setattr("assay.engine.database.SCHEMA_VERSION", len(later))
    monkeypatch.setattr("assay.engine.store.SCHEMA_VERSION", len(later))
    monkeypatch.setattr("assay.engine.database.MIGRATIONS", later)
    monkeypatch.setattr("assay.engine.database.migrate.__defaults__", (later,))
    path = tmp_path / ".assay" / "assay.db"
    before = path.read_bytes()
    reader = Store.open_for_reading(str(tmp_path))
    assert reader is not None
    assert reader.database.query("SELECT value FROM facts WHERE name = 'later'") == [("1",)]
    reader.close()
    assert path.read_bytes() == before
    store = open_store(tmp_path)
    assert store.database.query("SELECT value FROM facts WHERE name = 'later'") == [("1",)]
    assert store.database.query_one("PRAGMA user_version") == (len(later),)
    store.close()


def test_a_stray_log_is_not_replayed_into_a_new_store(tmp_path: Path) -> None:
    """A `-wal` whose database is gone is kept aside before a new one is made."""
    store = open_store(tmp_path)
    record_build(store, "aaaaaaaa", 2)
    folder = tmp_path / ".assay"
    log = (folder / "assay.db-wal").read_bytes()
    store.close()
    (folder / "assay.db").unlink()
    (folder / "assay.db-wal").write_bytes(log)
    store = open_store(tmp_path)
    assert store.runs.list(10) == []
    store.close()
    assert integrity(tmp_path) == "ok"
    assert [path.read_bytes() for path in (folder / "damaged").iterdir()] == [log]


@pytest.mark.parametrize("what", ["file", "dangling link"])
def test_a_store_that_is_no_folder_leaves_a_run_unrecorded(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C90: something else in the place of `.assay/` costs the record, not the run."""
    folder = tmp_path / "w" / ".assay"
    folder.parent.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if what == "file":
        folder.write_text("mine")
    else:
        folder.symlink_to("nowhere")
    with pytest.raises(StoreUnwritable):
        Store.open_for_run(str(folder.parent), now=time.time, mend=False)
    store = open_store(folder.parent)
    assert not store.recorded
    (notice,) = store.notices
    assert notice == (
        f"`{folder}` cannot be written: it is not a folder; this run is not recorded: it cannot"
        " be resumed, nothing is cached or guarded against another run that writes the same"
        f" files, and its logs go to `{store.logs}`"
    )
    assert Path(store.logs).is_dir()
    record_build(store, "aaaaaaaa", 2)
    assert store.runs.find("last").status is RunStatus.COMPLETED
    assert store.results.get(digest(0xAAAAAAAA * 1000)) is not None
    place = Path(store.logs).parent
    store.close()
    assert not place.exists()


def in_namespace(program: str, *words: str) -> str:
    """Run a shell script as root of a mount namespace of its own; skips where there is none."""
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        ["unshare", "-rm", "/bin/sh", "-eu", "-c", program, "sh", sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_store_remembers_that_it_had_effects(store: Store, tmp_path: Path) -> None:
    """C87: by a file of its own that outlives the database, made once and for the owner only;
    from then on every commit is on disk."""
    mark = tmp_path / ".assay" / "has-effects"
    assert not mark.exists()
    assert store.database.query_one("PRAGMA synchronous") == (1,)
    store.expect_effects()
    info = mark.stat()
    assert (info.st_size, stat.S_IMODE(info.st_mode)) == (0, 0o600)
    assert store.database.query_one("PRAGMA synchronous") == (2,)
    store.expect_effects()
    again = mark.stat()
    assert (again.st_ino, again.st_ctime_ns) == (info.st_ino, info.st_ctime_ns)


@pytest.mark.parametrize("marked", [True, False])
def test_a_database_that_is_gone_has_lost_its_effects(tmp_path: Path, marked: bool) -> None:
    """C87: the new one says so, if there were any; that there is none at all is no loss."""
    store = open_store(tmp_path)
    assert store.effects.lost() is None
    if marked:
        store.expect_effects()
    store.close()
    path = tmp_path / ".assay" / "assay.db"
    path.unlink()
    store = open_store(tmp_path)
    assert store.effects.lost() == (f"`{path}` is gone" if marked else None)
    store.close()


def test_a_store_that_is_only_in_memory_expects_no_effects(store: Store, tmp_path: Path) -> None:
    """None are begun there, and no file is made."""
    store.degrade("`x` cannot be written: the disk is full")
    store.expect_effects()
    assert not (tmp_path / ".assay" / "has-effects").exists()


UNREMEMBERED = """
import os, sys, store_rows
from assay.engine.store_errors import StoreUnwritable
store = store_rows.open_store(sys.argv[1])
os.chmod(store.folder, 0o500)
try:
    store.expect_effects()
except StoreUnwritable as error:
    print(error)
os.chmod(store.folder, 0o700)
store.close()
"""


def test_where_it_cannot_be_remembered_no_effect_is_expected(tmp_path: Path) -> None:
    """C89: the store says so before anything begins."""
    done = run_python(UNREMEMBERED, str(tmp_path), obeys_modes=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"`{tmp_path}/.assay/has-effects` cannot be written: permission denied\n"


ASK = """
import sys, os, store_rows
from assay.engine.store import Store
root = sys.argv[1]
reader = Store.open_for_reading(root)
print("reads", reader.runs.find("last").id, len(list(reader.journal.read())))
reader.close()
store = store_rows.open_store(root)
print("recorded", store.recorded, store.notices[0].partition(";")[0])
print("knows", store.results.knows("out/0.o", "file:" + store_rows.digest(0)))
store_rows.record_build(store, "bbbbbbbb", 2)
print("runs", [row.id for row in store.runs.list(10)])
store.close()
"""


@pytest.mark.parametrize("has_log", [True, False])
def test_a_store_mounted_read_only_can_be_asked_and_run_against(
    tmp_path: Path, has_log: bool
) -> None:
    """C90: questions work on a private copy, the log included; a run goes unrecorded with
    everything that was recorded before."""
    store = open_store(tmp_path)
    record_build(store, "aaaaaaaa", 2)
    folder = tmp_path / ".assay"
    if has_log:
        (tmp_path / "log").write_bytes((folder / "assay.db-wal").read_bytes())
        (tmp_path / "db").write_bytes((folder / "assay.db").read_bytes())
    store.close()
    if has_log:
        (tmp_path / "log").rename(folder / "assay.db-wal")
        (tmp_path / "db").rename(folder / "assay.db")
    out = in_namespace(
        'mount --bind "$2" "$2"; mount -o remount,ro,bind "$2"; exec "$1" -c "$3" "$2"',
        str(tmp_path),
        ASK,
    )
    why = f"`{folder}/assay.db` cannot be written: the file system is mounted read-only"
    assert out.splitlines() == [
        "reads aaaaaaaa 4",
        f"recorded False {why}",
        "knows True",
        "runs ['bbbbbbbb', 'aaaaaaaa']",
    ]
    assert not list(folder.glob("*-shm"))


FILL = """
import sys, os, store_rows
from assay.engine.store_errors import StoreFull
from assay.engine.states import RunId, AttemptId, AttemptEnd, RunStatus
root = sys.argv[1]
store = store_rows.open_store(root)
assert store.recorded, store.notices
run = RunId("aaaaaaaa")
store.runs.create(store_rows.a_run(run))
store.attempts.begin(store_rows.an_attempt(run, 1))
written = 0
try:
    while True:
        with store.transaction():
            store.journal.append("filler", written, "filler", run=None, data="x" * 50000)
        written += 1
except StoreFull as error:
    store.degrade(str(error))
print("recorded", store.recorded, written > 0, store.notices[0].partition(";")[0])
with store.transaction():
    store.journal.append("filler", written, "filler", run=None, data="x" * 50000)
    store.attempts.settle(AttemptId("aaaaaaaa-1"), AttemptEnd.SUCCEEDED, 0, None, "", 2.0)
    store.results.put(store_rows.a_result("k"))
    store.runs.settle(run, 1, RunStatus.COMPLETED, {"built": 1})
print("settled", store.runs.get(run).status.value, store.results.get("k") is not None)
print("logs", store.logs.startswith(root))
store.close()
os.unlink(root + "/ballast")
store = store_rows.open_store(root)
print("later", store.recorded, store.notices, store.runs.get(run).status.value)
print("sound", store.database.find_faults(), len(list(store.journal.read())) == written)
store.close()
"""


def check_full(out: str, root: Path) -> None:
    assert out.splitlines() == [
        f"recorded False True `{root}/.assay/assay.db` cannot be written: the disk is full",
        "settled completed True",
        "logs False",
        "later True () running",
        "sound None True",
    ]


def test_a_disk_that_fills_degrades_the_store(tmp_path: Path) -> None:
    """C89: the run goes on in memory with what it began; later the store is as it was
    last committed."""
    root = tmp_path / "w"
    root.mkdir()
    out = in_namespace(
        'mount -t tmpfs -o size=1m none "$2"; head -c 300000 /dev/zero > "$2/ballast";'
        ' exec "$1" -c "$3" "$2"',
        str(root),
        FILL,
    )
    check_full(out, root)


def test_a_disk_that_is_full_leaves_a_run_unrecorded(tmp_path: Path) -> None:
    """C89: where not even a new database fits, the run goes unrecorded and nothing half
    made stays."""
    root = tmp_path / "w"
    root.mkdir()
    program = """
import sys, os, store_rows
store = store_rows.open_store(sys.argv[1])
print(store.recorded, store.notices[0].partition(";")[0])
store_rows.record_build(store, "aaaaaaaa", 2)
store.close()
print(sorted(os.listdir(sys.argv[1] + "/.assay/tmp")))
"""
    out = in_namespace(
        'mount -t tmpfs -o size=48k none "$2"; exec "$1" -c "$3" "$2"', str(root), program
    )
    assert out.splitlines()[0].startswith("False ")
    assert out.splitlines()[0].endswith("cannot be written: the disk is full")
    assert out.splitlines()[1] in ("[]", "['open.lock']")


def test_a_file_size_limit_degrades_the_store(tmp_path: Path) -> None:
    """C89: `ulimit -f` is one more way for a disk to be full."""
    program = """
import resource, sys, store_rows
from assay.engine.store_errors import StoreUnwritable
store = store_rows.open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
written = 0
try:
    while True:
        with store.transaction():
            store.journal.append("filler", written, "filler", run=None, data="x" * 50000)
        written += 1
except StoreUnwritable as error:
    store.degrade(str(error))
store_rows.record_build(store, "bbbbbbbb", 2)
print(store.recorded, written > 0, store.runs.find("last").status.value)
store.close()
"""
    assert finish(start_python(program, str(tmp_path))) == "False True completed\n"
    store = open_store(tmp_path)
    assert store.database.find_faults() is None
    store.close()


def test_degrading_keeps_what_began_on_disk(store: Store) -> None:
    """An attempt begun before the disk filled settles after; saying so again is no error."""
    run = RunId("aaaaaaaa")
    owner = this_owner()
    store.runs.create(a_run(run, owner=owner))
    store.results.put(a_result("k"))
    store.stats.lookup(RelPath("a"), os.stat("/"))
    store.degrade("`x` cannot be written: the disk is full")
    store.degrade("again")
    assert len(store.notices) == 1
    store.runs.create(a_run(run, owner=owner))
    assert store.results.get("k") is not None
    store.runs.settle(run, 1, RunStatus.COMPLETED, {})
    store.stats.flush()


KILLED = """
import sys, store_rows
store = store_rows.open_store(sys.argv[1])
store_rows.record_build(store, "aaaaaaaa", 1)
store.close()
"""


@pytest.mark.parametrize(
    ("call", "step"),
    [
        ("pwrite64", 7),
        ("fsync", 1),
        ("fdatasync", 1),
        ("rename", 1),
        ("unlink", 1),
        ("mkdir", 1),
        ("ftruncate", 1),
    ],
)
def test_a_store_killed_while_it_is_made_opens_again(tmp_path: Path, call: str, step: int) -> None:
    """Killed at any call of its first use, the store opens, is sound and has no damage."""
    if subprocess.run(["strace", "-V"], capture_output=True, check=False).returncode:
        pytest.skip("strace is not there")
    number = 1
    while True:
        root = tmp_path / f"{number}"
        root.mkdir()
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        killed = subprocess.run(
            ["strace", "-f", "-qq", *inject, sys.executable, "-c", KILLED, str(root)],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        store = open_store(root)
        assert (store.recorded, store.notices) == (True, ())
        assert store.database.find_faults() is None
        record_build(store, "bbbbbbbb", 1)
        assert store.runs.get(RunId("bbbbbbbb")).status is RunStatus.COMPLETED
        store.close()
        assert not list((root / ".assay").glob("damaged/*"))
        if killed.returncode == 0:
            break
        number += step
    assert number > 1
