"""Looking after the cache: what goes, what stays, beside others and after a kill."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import node
from store_rows import (
    a_result,
    a_run,
    an_attempt,
    an_effect,
    digest,
    finish,
    open_store,
    start_python,
)

from assay.engine import collection, preimages
from assay.engine.blobs import Blobs
from assay.engine.measuring import Measurer
from assay.engine.results import Held
from assay.engine.states import AttemptId, EffectState, RunId, RunStatus, State
from assay.engine.store import Store
from assay.plans.model import Digest, NodeName, RelPath

NOW = 1_000_000.0
HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def blobs(store: Store) -> Blobs:
    return Blobs(store.cas, store.tmp)


def put(store: Store, blobs: Blobs, address: str, text: str, *, age: float = 0.0) -> Digest:
    """A result whose one output holds `text`, recorded and stored `age` seconds ago."""
    found = blobs.put_bytes(text.encode())
    at = store.now() - age
    store.results.put(
        a_result(address, node=address, outputs={f"out/{address}": f"file:{found}"}, recorded_at=at)
    )
    make_older(blob_path(store, found), age)
    return found


def blob_path(store: Store, found: Digest) -> Path:
    return Path(store.cas, found[:2], found[2:])


def make_older(path: Path, age: float) -> None:
    if age:
        info = path.stat()
        os.utime(path, (info.st_atime - age, info.st_mtime - age))


def addresses(store: Store) -> set[str]:
    return {held.address for held in store.results.inventory()}


def test_what_nobody_refers_to_goes(store: Store, blobs: Blobs) -> None:
    """Blobs without a result, unless they are younger than a minute."""
    kept = put(store, blobs, "a", "kept", age=HOUR)
    loose, young = blobs.put_bytes(b"loose"), blobs.put_bytes(b"young")
    make_older(blob_path(store, loose), HOUR)
    found = collection.collect(store, blobs)
    assert (found.results, found.blobs, found.freed_bytes) == (0, 1, 5)
    assert (found.kept_blobs, found.kept_bytes) == (2, 9)
    assert blobs.has(kept)
    assert blobs.has(young)
    assert not blobs.has(loose)


def test_size_takes_what_was_used_longest_ago(store: Store, blobs: Blobs) -> None:
    """Until what is left fits; a blob that two results share counts once."""
    put(store, blobs, "oldest", "x" * 100, age=4 * HOUR)
    put(store, blobs, "older", "y" * 100, age=3 * HOUR)
    put(store, blobs, "shares", "z" * 100, age=2 * HOUR)
    put(store, blobs, "newest", "z" * 100, age=HOUR)
    found = collection.collect(store, blobs, max_size_bytes=200)
    assert addresses(store) == {"older", "shares", "newest"}
    assert (found.results, found.blobs, found.kept_bytes) == (1, 1, 200)
    (record,) = store.journal.read()
    assert record.kind == "cache-collected"
    assert record.data == {
        "results": [["oldest", "oldest"]],
        "max_size_bytes": 200,
        "max_age_seconds": None,
    }


def test_a_blob_of_a_kept_result_stays(store: Store, blobs: Blobs) -> None:
    """However old it is: gc never breaks a result that it keeps."""
    shared = put(store, blobs, "old", "same", age=9 * HOUR)
    put(store, blobs, "new", "same")
    make_older(blob_path(store, shared), 9 * HOUR)
    collection.collect(store, blobs, max_age_seconds=HOUR)
    assert addresses(store) == {"new"}
    assert blobs.get_bytes(shared) == b"same"


def held(address: str, used_at: float, *, expires_at: float | None = None, size: int = 1) -> Held:
    name, _, node = address.partition("/")
    return Held(
        address=address,
        journal_seq=1,
        node=NodeName(node or name),
        plan_file="plan.toml",
        used_at=used_at,
        expires_at=expires_at,
        log=None,
        digests=(Digest(digest(size)),),
    )


def test_age_counts_from_the_last_use() -> None:
    """What a node used last is as young as its plan's last run, which marks nothing when
    there is nothing to do; what that node used before is not."""
    rows = [held("a/n", NOW - 9 * HOUR), held("b/n", NOW - 8 * HOUR), held("c/m", NOW - 2 * HOUR)]
    kept, doomed = collection.choose(rows, {}, {}, NOW, None, 3 * HOUR)
    assert {row.address for row in doomed} == {"a/n", "b/n"}
    kept, doomed = collection.choose(rows, {}, {"plan.toml": NOW - HOUR}, NOW, None, 3 * HOUR)
    assert {row.address for row in doomed} == {"a/n"}
    assert {row.address for row in kept} == {"b/n", "c/m"}


def test_expired_results_go(store: Store, blobs: Blobs) -> None:
    """Without any limit given, and with the blobs only they needed."""
    rows = [held("a", NOW - HOUR, expires_at=NOW - 1), held("b", NOW - HOUR, expires_at=NOW + 1)]
    _, doomed = collection.choose(rows, {}, {}, NOW, None, None)
    assert [row.address for row in doomed] == ["a"]


def test_what_was_just_used_stays() -> None:
    """C93: a run may be about to restore it."""
    rows = [held("a", NOW - 30, expires_at=NOW - 1)]
    assert collection.choose(rows, {Digest(digest(1)): 10}, {}, NOW, 1, 10) == (rows, [])


def test_what_a_running_attempt_needs_stays(store: Store, blobs: Blobs) -> None:
    """C93: files it may have to put back, and all that was stored since it began."""
    since = blobs.put_bytes(b"stored since")
    before = blobs.put_bytes(b"stood before")
    loose = blobs.put_bytes(b"nobody's")
    for found, age in ((since, HOUR), (before, 9 * HOUR), (loose, 9 * HOUR)):
        make_older(blob_path(store, found), age)
    store.runs.create(a_run("aaaaaaaa"))
    store.attempts.begin(
        an_attempt(
            "aaaaaaaa",
            1,
            began_at=store.now() - 2 * HOUR,
            before={RelPath("o"): State(f"exec:{before}")},
        )
    )
    for action in (collection.collect, collection.clear_cache):
        action(store, blobs)
        assert blobs.has(since)
        assert blobs.has(before)
    assert not blobs.has(loose)


def keep_preimage(store: Store, blobs: Blobs, attempt: str, text: str) -> tuple[Path, Digest]:
    """The pre-image of an attempt that may write a file which holds `text`, taken hours ago;
    its path and its one blob."""
    Path(store.root, "f").write_text(text)
    path = Path(preimages.path_of(store.preimages, attempt))
    measurer = Measurer(store.root, store.stats, time.time_ns)
    taken = preimages.take(node("n", writes=["f"]), measurer, blobs, str(path))
    (found,) = taken.digests
    for place in (path, blob_path(store, found)):
        make_older(place, 9 * HOUR)
    return path, found


ACTIONS = {
    "all": collection.collect,
    "small": lambda store, blobs: collection.collect(store, blobs, max_size_bytes=0),
    "young": lambda store, blobs: collection.collect(store, blobs, max_age_seconds=HOUR),
    "clear": collection.clear_cache,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_an_open_effect_wrote_stays(store: Store, blobs: Blobs, action: str) -> None:
    """C93: a later run settles its node from the record and puts its outputs back; once nobody
    asks for it any more they are of no more use than others."""
    found = {name: blobs.put_bytes(name.encode()) for name in ("open", "link", "closed")}
    for name in found.values():
        make_older(blob_path(store, name), 9 * HOUR)
    store.effects.put(
        an_effect(
            "aaaaaaaa",
            1,
            state=EffectState.SUCCEEDED,
            outputs={"o": f"exec:{found['open']}", "l": f"link:{found['link']}", "x": "absent"},
        )
    )
    store.effects.put(
        an_effect("aaaaaaaa", 2, is_open=False, outputs={"o": f"file:{found['closed']}"})
    )
    ACTIONS[action](store, blobs)
    assert [name for name, digest in found.items() if blobs.has(digest)] == ["open", "link"]
    store.effects.close([AttemptId("aaaaaaaa-1")])
    ACTIONS[action](store, blobs)
    assert not any(blobs.has(digest) for digest in found.values())


@pytest.mark.parametrize("action", ACTIONS)
def test_what_can_be_rolled_back_stays(store: Store, blobs: Blobs, action: str) -> None:
    """C93: with every blob it needs, however old; that of an effect nobody asks for goes by age,
    and its blobs with it."""
    kept = {
        "open": keep_preimage(store, blobs, "aaaaaaaa-1", "open"),
        "closed": keep_preimage(store, blobs, "aaaaaaaa-2", "closed"),
        "unknown": keep_preimage(store, blobs, "aaaaaaaa-3", "unknown"),
    }
    store.effects.put(an_effect("aaaaaaaa", 1))
    store.effects.put(an_effect("aaaaaaaa", 2, is_open=False))
    ACTIONS[action](store, blobs)
    stays = {"open"} if action == "young" else {"open", "closed", "unknown"}
    assert {name for name, (path, _) in kept.items() if path.exists()} == stays
    assert {name for name, (_, digest) in kept.items() if blobs.has(digest)} == stays


def test_what_a_running_attempt_could_be_rolled_back_to_stays(store: Store, blobs: Blobs) -> None:
    """C93: also when another run was told to start over, so that nobody asks for its effect."""
    path, found = keep_preimage(store, blobs, "aaaaaaaa-1", "before")
    store.runs.create(a_run("aaaaaaaa"))
    store.attempts.begin(an_attempt("aaaaaaaa", 1, began_at=store.now() - 9 * HOUR))
    store.effects.put(an_effect("aaaaaaaa", 1, is_open=False))
    collection.collect(store, blobs, max_age_seconds=HOUR)
    assert path.exists()
    assert blobs.has(found)


def test_a_young_preimage_stays(store: Store, blobs: Blobs) -> None:
    """C93: its effect may not be on record yet for whoever collects."""
    path, found = keep_preimage(store, blobs, "aaaaaaaa-1", "before")
    os.utime(path)
    collection.collect(store, blobs, max_age_seconds=0)
    assert path.exists()
    assert blobs.has(found)


def test_a_damaged_preimage_is_in_nobodys_way(store: Store, blobs: Blobs) -> None:
    """C87: it stays for whoever must be told, and all else is collected."""
    path, _ = keep_preimage(store, blobs, "aaaaaaaa-1", "one")
    _, sound = keep_preimage(store, blobs, "aaaaaaaa-2", "two")
    for number in (1, 2):
        store.effects.put(an_effect("aaaaaaaa", number, node=f"n{number}"))
    loose = blobs.put_bytes(b"loose")
    make_older(blob_path(store, loose), HOUR)
    path.write_text("x")
    make_older(path, 9 * HOUR)
    collection.collect(store, blobs, max_age_seconds=HOUR)
    assert path.read_text() == "x"
    assert blobs.has(sound)
    assert not blobs.has(loose)


def test_clearing_takes_results_and_keeps_history(store: Store, blobs: Blobs) -> None:
    """Runs, logs and what was ever recorded for a path stay; certificates go."""
    found = put(store, blobs, "a", "text", age=HOUR)
    store.runs.create(a_run("aaaaaaaa", status=RunStatus.COMPLETED))
    store.agreements.put("x", RunId("aaaaaaaa"), b"certificate")
    Path(store.logs, "x.log").write_text("log")
    cleared = collection.clear_cache(store, blobs)
    assert (cleared.results, cleared.blobs, cleared.freed_bytes) == (1, 1, 4)
    assert addresses(store) == set()
    assert not blobs.has(found)
    assert store.agreements.get("x") is None
    assert store.results.knows(RelPath("out/a"), State(f"file:{found}"))
    assert store.runs.find("last").id == "aaaaaaaa"
    assert os.listdir(store.logs) == ["x.log"]


def test_certificates_go_with_the_results_they_rest_on(store: Store, blobs: Blobs) -> None:
    """The next run looks at every record; when nothing went they stay."""
    put(store, blobs, "a", "text", age=9 * HOUR)
    store.agreements.put("x", RunId("aaaaaaaa"), b"certificate")
    collection.collect(store, blobs)
    assert store.agreements.get("x") is not None
    collection.collect(store, blobs, max_age_seconds=HOUR)
    assert store.agreements.get("x") is None


def test_logs_and_trash_go_by_age_only(store: Store, blobs: Blobs) -> None:
    """Logs of kept results and running attempts stay however old; trash is a user's work."""
    logs = {name: Path(store.logs, f"{name}.log") for name in ("old", "new", "kept", "running")}
    for name, path in logs.items():
        path.write_text(name)
        if name != "new":
            make_older(path, 9 * HOUR)
    put(store, blobs, "a", "text")
    store.results.put(a_result("b", log=str(logs["kept"]), recorded_at=store.now()))
    store.attempts.begin(an_attempt("aaaaaaaa", 1, log=str(logs["running"])))
    for name in ("aaaaaaaa-1", "aaaaaaaa-2"):
        Path(store.trash, name, "d").mkdir(parents=True)
        Path(store.trash, name, "d", "mine").write_text("mine")
    make_older(Path(store.trash, "aaaaaaaa-1"), 9 * HOUR)
    found = collection.collect(store, blobs)
    assert (found.logs, found.trash) == (0, 0)
    found = collection.collect(store, blobs, max_age_seconds=HOUR)
    assert (found.logs, found.trash) == (1, 1)
    assert not logs["old"].exists()
    assert os.listdir(store.trash) == ["aaaaaaaa-2"]


def test_left_overs_of_dead_processes_go(store: Store, blobs: Blobs) -> None:
    """C93: what a living run, a holder of a lock or a young process has in `tmp/` stays."""
    tmp = Path(store.tmp)
    for name in ("blob-1", "new-1.db", "salvage-1.db-wal", "check-database", "dead-1.lease"):
        (tmp / name).write_text("x")
    (tmp / "young").write_text("x")
    lease = store.runs.take_lease(RunId("aaaaaaaa"))
    store.runs.create(a_run("aaaaaaaa"))
    for name in ("aaaaaaaa-1.stage", "bbbbbbbb-1.stage"):
        (tmp / name).mkdir()
        (tmp / name / "f").write_text("x")
    for path in tmp.iterdir():
        if path.name != "young":
            make_older(path, HOUR)
    found = collection.collect(store, blobs)
    assert found.left_overs == 5
    assert sorted(os.listdir(tmp)) == [
        "aaaaaaaa-1.stage",
        "check-database",
        "open.lock",
        "run-aaaaaaaa.lease",
        "young",
    ]
    lease.release(remove=True)


def test_the_stat_cache_forgets_paths_that_are_gone(store: Store, blobs: Blobs) -> None:
    """Tools outside the workspace stand there under their absolute path."""
    here = Path(store.root, "here")
    here.write_text("x")
    info = here.stat()
    for path in ("here", "gone", "/bin/sh", "/no/such/tool"):
        store.stats.remember(RelPath(path), info, State("file:x"), info.st_ctime_ns + 10**10)
    store.stats.flush()
    collection.collect(store, blobs)
    assert sorted(store.stats.paths()) == ["/bin/sh", "here"]


def test_verifying_finds_what_is_damaged(store: Store, blobs: Blobs) -> None:
    """C17: a flipped byte, a truncated and a missing blob, a row that rotted; the results
    that need them go, sound ones stay and another verification finds nothing."""
    found = {name: put(store, blobs, name, f"text {name}") for name in "abcde"}
    for name in "ab":
        path = blob_path(store, found[name])
        path.chmod(0o644)
        path.write_bytes(b"flipped" if name == "a" else path.read_bytes()[:-1])
    blob_path(store, found["c"]).unlink()
    store.database.execute("UPDATE results SET value = 'x' WHERE address = 'd'")
    verified = collection.verify_cache(store, blobs)
    assert (verified.results, verified.blobs, verified.damaged_results) == (5, 4, 1)
    assert {name for name, _ in verified.damaged_blobs} == {found["a"], found["b"]}
    assert all(Path(place).is_file() for _, place in verified.damaged_blobs)
    assert verified.broken_results == ("a", "b", "c")
    assert verified.database is None
    assert not verified.is_sound
    assert addresses(store) == {"e"}
    kinds = [record.kind for record in store.journal.read()]
    assert sorted(kinds) == ["blob-set-aside"] * 2 + ["result-evicted"] * 4
    again = collection.verify_cache(store, blobs)
    assert again.is_sound
    assert again.results == 1


def test_what_the_cache_holds(store: Store, blobs: Blobs) -> None:
    """Counts and bytes, without changing anything."""
    put(store, blobs, "a", "12345")
    put(store, blobs, "b", "123")
    blob_path(store, put(store, blobs, "c", "gone")).unlink()
    blobs.put_bytes(b"loose")
    Path(store.logs, "x.log").write_text("log!")
    stats = collection.cache_stats(store, blobs)
    assert (stats.results, stats.blobs, stats.blobs_bytes) == (3, 3, 13)
    assert (stats.unreferenced_blobs, stats.unreferenced_bytes, stats.missing_blobs) == (1, 5, 1)
    assert (stats.logs, stats.logs_bytes, stats.trash_bytes) == (1, 4, 0)
    assert stats.database_bytes > 0


COLLECTOR = """
import os, sys, store_rows
from assay.engine import collection
from assay.engine.blobs import Blobs
parent = os.getppid()
print("ready", flush=True)
while os.getppid() == parent:
    store = store_rows.open_store(sys.argv[1])
    collection.collect(store, Blobs(store.cas, store.tmp), max_size_bytes=0, max_age_seconds=120)
    store.close()
"""

WRITER = """
import os, sys, store_rows
from contextlib import suppress
from assay.engine.blobs import BlobMissing, Blobs
store = store_rows.open_store(sys.argv[1])
blobs = Blobs(store.cas, store.tmp)
sys.stdin.readline()
for n in range(300):
    # Few contents, again and again: each blob is garbage, wanted, garbage ...
    text = f"{sys.argv[2]} {n % 3}".encode()
    address = f"{sys.argv[2]}/{n % 3}"
    for _ in range(100):
        digest = blobs.put_bytes(text)
        row = store_rows.a_result(
            address, outputs={address: f"file:{digest}"}, recorded_at=store.now(), journal_seq=n
        )
        store.results.put(row)
        assert store.results.get(address) == row
        try:
            assert blobs.get_bytes(digest) == text
            break
        except BlobMissing:
            pass  # A collector looked at the blob right then: a miss, so it is made again.
    else:
        raise AssertionError("never there")
    assert store.results.evict(address, n)
    with suppress(FileNotFoundError):  # whoever looked before it was wanted again has taken it
        os.utime(os.path.join(store.cas, digest[:2], digest[2:]), (1, 1))
store.close()
"""


def test_collecting_beside_writers_and_killed_at_random(tmp_path: Path) -> None:
    """C93: whatever collectors do and wherever they are killed, no writer fails or reads
    other bytes than it stored; afterwards everything is sound."""
    open_store(tmp_path).close()
    collectors = [start_python(COLLECTOR, str(tmp_path)) for _ in range(2)]
    try:
        for collector in collectors:
            assert collector.stdout is not None
            assert collector.stdout.readline() == "ready\n"
        writers = [start_python(WRITER, str(tmp_path), f"w{n}") for n in range(3)]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        collectors[0].kill()
        for writer in writers:
            finish(writer)
            collectors.append(start_python(COLLECTOR, str(tmp_path)))
    finally:
        for collector in collectors:
            collector.kill()
            collector.communicate()
    store = open_store(tmp_path)
    blobs = Blobs(store.cas, store.tmp)
    assert store.notices == ()
    assert collection.verify_cache(store, blobs).is_sound
    store.close()
