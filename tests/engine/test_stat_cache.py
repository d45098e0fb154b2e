"""The stat cache: what a stat proves, when it proves nothing, and after a crash."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_rows import finish, open_store, start_python

from assay.engine.states import State
from assay.engine.store import Store
from assay.plans.model import RelPath

STATE = State("file:" + "1" * 64)
PATH = RelPath("a")
LATER_NS = 10**10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_text("aaa")
    return path


def remember(store: Store, file: Path, later_ns: int = LATER_NS) -> None:
    info = file.stat()
    store.stats.remember(PATH, info, STATE, max(info.st_mtime_ns, info.st_ctime_ns) + later_ns)


def replace(file: Path) -> None:
    other = file.with_name("b")
    other.write_text("bbb")
    info = file.stat()
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.rename(file)


def rewrite(file: Path) -> None:
    info = file.stat()
    file.write_text("bbb")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_an_unchanged_stat_is_an_unchanged_state(store: Store, file: Path) -> None:
    """In this process and, once flushed, in later ones."""
    assert store.stats.lookup(PATH, file.stat()) is None
    remember(store, file)
    assert store.stats.lookup(PATH, file.stat()) == STATE
    store.stats.flush()
    other = open_store(store.root)
    assert other.stats.lookup(PATH, file.stat()) == STATE
    assert other.stats.lookup(RelPath("b"), file.stat()) is None
    other.close()


@pytest.mark.parametrize(
    "change",
    [
        rewrite,
        replace,
        lambda file: file.write_text("aaaa"),
        lambda file: file.chmod(0o700),
        lambda file: os.utime(file, ns=(1, 1)),
    ],
)
def test_any_change_is_noticed(store: Store, file: Path, change: Callable[[Path], object]) -> None:
    """C10: a rewrite that keeps size and mtime, a replacement, a new mode."""
    remember(store, file)
    change(file)
    assert store.stats.lookup(PATH, file.stat()) is None


@pytest.mark.parametrize(
    ("later_ns", "kept"), [(0, False), (19_000_000, False), (21_000_000, True)]
)
def test_a_stat_within_a_tick_of_measuring_is_not_kept(
    store: Store, file: Path, later_ns: int, kept: bool
) -> None:
    """C10: a file that changed just before it was read may change again unseen."""
    os.utime(file, ns=(1, file.stat().st_mtime_ns // 10**9 * 10**9 + 1))
    remember(store, file, later_ns)
    assert (store.stats.lookup(PATH, file.stat()) == STATE) is kept


def test_a_file_from_the_future_is_not_kept(store: Store, file: Path) -> None:
    """Its stamp says nothing about when it was written."""
    future = file.stat().st_ctime_ns + 10**12
    os.utime(file, ns=(future, future))
    info = file.stat()
    store.stats.remember(PATH, info, STATE, info.st_ctime_ns + LATER_NS)
    assert store.stats.lookup(PATH, info) is None


@pytest.mark.parametrize(("later_ns", "kept"), [(1_500_000_000, False), (2_100_000_000, True)])
def test_stamps_in_whole_seconds_need_two_seconds(
    store: Store, file: Path, later_ns: int, kept: bool
) -> None:
    """Some file systems keep no finer time."""
    info = file.stat()
    whole = info.st_mtime_ns // 10**9
    stamps = {"st_mtime_ns": whole * 10**9, "st_ctime_ns": whole * 10**9}
    coarse = os.stat_result(tuple(info)[:10], stamps)
    store.stats.remember(PATH, coarse, STATE, whole * 10**9 + later_ns)
    assert (store.stats.lookup(PATH, coarse) == STATE) is kept


def test_what_is_not_flushed_is_not_on_disk(store: Store, file: Path) -> None:
    """And what a failed transaction took along is measured again."""
    remember(store, file)

    def fail() -> None:
        with store.transaction():
            store.stats.flush()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    other = open_store(store.root)
    assert other.stats.lookup(PATH, file.stat()) is None
    other.close()


def test_worker_threads_look_and_remember(store: Store, file: Path) -> None:
    """Even the first lookup may come from a thread that did not open the store."""
    remember(store, file)
    store.stats.flush()
    other = open_store(store.root)
    stats = other.stats
    found: list[State | None] = []
    info = file.stat()

    def work(number: int) -> None:
        found.append(stats.lookup(PATH, info))
        for n in range(200):
            stats.remember(RelPath(f"{number}/{n}"), info, STATE, info.st_ctime_ns + LATER_NS)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        stats.flush()
    for thread in threads:
        thread.join()
    stats.flush()
    assert found == [STATE] * 4
    assert len(stats.paths()) == 801
    other.close()


def test_paths_of_any_bytes(store: Store, file: Path) -> None:
    """Names that are not UTF-8 are cached like others."""
    path = RelPath("x/\udcff")
    info = file.stat()
    store.stats.remember(path, info, STATE, info.st_ctime_ns + LATER_NS)
    store.stats.flush()
    other = open_store(store.root)
    assert other.stats.lookup(path, info) == STATE
    assert other.stats.paths() == [path]
    other.stats.forget([path])
    assert other.stats.paths() == []
    other.close()


def flush_and_close(store: Store, file: Path, *, clean: bool) -> None:
    remember(store, file)
    store.stats.flush()
    if clean:
        store.close()
    else:
        store.database.close()


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.engine.stat_cache.boot_id", lambda: "next boot")


def now_in(seconds: float, file: Path) -> Callable[[], float]:
    return lambda: file.stat().st_ctime + seconds


@pytest.mark.parametrize("clean", [True, False])
def test_under_the_same_boot_everything_is_kept(tmp_path: Path, file: Path, clean: bool) -> None:
    """A process that was killed loses no file's data."""
    flush_and_close(open_store(tmp_path), file, clean=clean)
    store = open_store(tmp_path)
    assert store.stats.lookup(PATH, file.stat()) == STATE
    store.close()


def test_under_a_new_boot_without_a_clean_close_nothing_is_kept(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After power loss a file may hold less than was measured in memory."""
    flush_and_close(Store.open_for_run(str(tmp_path), now=now_in(1000, file)), file, clean=False)
    reboot(monkeypatch)
    store = open_store(tmp_path)
    assert store.stats.lookup(PATH, file.stat()) is None
    info = file.stat()
    store.stats.remember(RelPath("b"), info, STATE, info.st_ctime_ns + LATER_NS)
    store.stats.flush()
    assert store.stats.paths() == ["b"]
    store.close()


@pytest.mark.parametrize(("seconds", "kept"), [(1000, True), (60, False)])
def test_under_a_new_boot_what_was_long_on_disk_is_kept(
    tmp_path: Path,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    kept: bool,
) -> None:
    """After a clean close, files that changed well before it are on disk as measured."""
    flush_and_close(Store.open_for_run(str(tmp_path), now=now_in(seconds, file)), file, clean=True)
    reboot(monkeypatch)
    store = open_store(tmp_path)
    assert (store.stats.lookup(PATH, file.stat()) == STATE) is kept
    store.close()


def test_one_process_that_did_not_close_spoils_the_boot(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean close counts only when every process that wrote closed."""
    killed = Store.open_for_run(str(tmp_path), now=now_in(1000, file))
    flush_and_close(killed, file, clean=False)
    flush_and_close(Store.open_for_run(str(tmp_path), now=now_in(1000, file)), file, clean=True)
    reboot(monkeypatch)
    store = open_store(tmp_path)
    assert store.stats.lookup(PATH, file.stat()) is None
    store.close()


WRITER = """
import os, sys, store_rows
store = store_rows.open_store(sys.argv[1])
info = os.stat(sys.argv[1] + "/a")
sys.stdin.readline()
for n in range(100):
    store.stats.remember(f"{sys.argv[2]}/{n}", info, "file:x", info.st_ctime_ns + 10**10)
    store.stats.flush()
store.close()
"""


def test_many_processes_share_the_cache(store: Store, file: Path) -> None:
    """C85: each keeps what the others wrote."""
    writers = [start_python(WRITER, store.root, str(n)) for n in range(4)]
    for writer in writers:
        finish(writer, "go\n")
    assert len(store.stats.paths()) == 400
