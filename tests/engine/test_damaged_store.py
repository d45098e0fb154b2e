"""A database that does not hold what assay wrote: kept aside, told about, never believed."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from store_rows import a_run, an_attempt, an_effect, digest, open_store, record_build

from assay.engine import database as databases
from assay.engine.attempts import Attempts
from assay.engine.blobs import Blobs
from assay.engine.collection import verify_cache
from assay.engine.effects import Effects
from assay.engine.results import ResultRow
from assay.engine.runs import Runs
from assay.engine.salvage import salvage
from assay.engine.states import RunId, RunStatus
from assay.engine.store import Store
from assay.engine.store_errors import StoreDamaged
from assay.plans.model import NodeName

RUNS = [f"{number:08x}" for number in range(1, 4)]
NODES = 4
ADDRESSES = [digest(int(run, 16) * 1000 + number) for run in RUNS for number in range(NODES)]


@dataclass(frozen=True)
class Facts:
    """Everything a store tells, in comparable form."""

    runs: dict[str, object]
    attempts: dict[str, object]
    records: dict[tuple[str, int], object]
    """By identity."""
    results: dict[str, ResultRow]
    known: frozenset[tuple[str, str]]


def facts_of(store: Store) -> Facts:
    return Facts(
        runs={row.id: row for row in store.runs.list(1000)},
        attempts={row.id: row for run in RUNS for row in store.attempts.of_run(RunId(run))},
        records={
            (record.source, record.sequence): record
            for record in store.journal.read()
            if record.kind not in ("damaged", "result-evicted")
        },
        results={row.address: row for row in map(store.results.get, ADDRESSES) if row is not None},
        known=frozenset(
            (str(path), str(state))
            for path, state in store.database.query("SELECT path, state FROM recorded_outputs")
        ),
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Facts]:
    """A store with a history, closed; and all it knows."""
    root = tmp_path_factory.mktemp("good")
    store = open_store(root)
    for run in RUNS:
        record_build(store, run, NODES)
    facts = facts_of(store)
    store.close()
    assert len(facts.results) == len(ADDRESSES)
    return root, facts


def recover(root: Path, good: Facts) -> Store:
    """Use the store as runs would: damage that shows only in use is mended by the next
    opening, and what nobody touched by reading all of it. Whatever is told on the way was
    told before the damage."""
    for _ in range(3):
        store = open_store(root)
        try:
            check(store, good)
            with store.transaction():
                store.runs.create(a_run("ffffffff", status=RunStatus.COMPLETED))
            if store.repair() is not None:
                check(store, good)
        except StoreDamaged:
            store.close()
        else:
            assert store.database.find_faults() is None
            return store
    raise AssertionError("the damage stays")


def check(store: Store, good: Facts) -> None:
    facts = facts_of(store)
    facts.runs.pop("ffffffff", None)
    assert facts.runs.items() <= good.runs.items()
    assert facts.attempts.items() <= good.attempts.items()
    assert facts.records.items() <= good.records.items()
    assert facts.results.items() <= good.results.items()
    assert facts.known <= good.known


def copy_of(root: Path, to: Path) -> Path:
    shutil.copytree(root, to)
    return to / ".assay" / "assay.db"


def test_truncated_at_every_block_it_recovers(good: tuple[Path, Facts], tmp_path: Path) -> None:
    """C87: cut at each 512-byte step, the file is kept aside bit by bit, a notice names it,
    and nothing is told that was not recorded."""
    root, facts = good
    whole = (root / ".assay" / "assay.db").read_bytes()
    kept_runs = []
    for size in range(0, len(whole), 512):
        path = copy_of(root, tmp_path / str(size))
        with path.open("r+b") as file:
            file.truncate(size)
        store = recover(path.parent.parent, facts)
        (notice,) = store.notices
        (aside,) = (path.parent / "damaged").iterdir()
        assert aside.read_bytes() == whole[:size]
        assert f"is kept as `{aside}`" in notice
        assert notice.startswith(f"`{path}` was damaged (")
        (record,) = [r for r in store.journal.read() if r.kind == "damaged"]
        assert isinstance(record.data, dict)
        assert record.data["kept_as"] == str(aside)
        kept_runs.append(len(store.runs.list(100)) - 1)
        store.close()
        shutil.rmtree(tmp_path / str(size))
    assert max(kept_runs) == len(RUNS)


def test_with_any_page_zeroed_it_recovers(good: tuple[Path, Facts], tmp_path: Path) -> None:
    """C87: one bad page costs what was on it; the rest of the history is still there."""
    root, facts = good
    whole = (root / ".assay" / "assay.db").read_bytes()
    kept = []
    for page in range(len(whole) // 4096):
        path = copy_of(root, tmp_path / str(page))
        with path.open("r+b") as file:
            file.seek(page * 4096)
            file.write(bytes(4096))
        store = recover(path.parent.parent, facts)
        kept.append(len(list(store.journal.read())))
        store.close()
        shutil.rmtree(tmp_path / str(page))
    assert sum(kept) / len(kept) > 0.8 * len(facts.records)


def test_with_flipped_bits_nothing_is_invented(good: tuple[Path, Facts], tmp_path: Path) -> None:
    """Whatever byte of the file rots, a result that is served is one that was recorded."""
    root, facts = good
    whole = bytearray((root / ".assay" / "assay.db").read_bytes())
    place = tmp_path / "w"
    path = copy_of(root, place)
    # A prime step visits every offset within a page sooner or later.
    for offset in range(4096, len(whole), 1009):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x04
        path.write_bytes(damaged)
        store = open_store(place)
        try:
            results = {r.address: r for r in map(store.results.get, ADDRESSES) if r is not None}
        except StoreDamaged:
            results = {}
        assert results.items() <= facts.results.items()
        store.close()
        for name in ("assay.db-wal", "assay.db-shm", "tmp/check-database"):
            (path.parent / name).unlink(missing_ok=True)
        shutil.rmtree(path.parent / "damaged", ignore_errors=True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not an assay database"),
        (b"hello\n" * 1000, "file is not a database"),
        (b"hello", "file is not a database"),
    ],
)
def test_replaced_by_another_file_the_loss_is_told(
    good: tuple[Path, Facts], tmp_path: Path, content: bytes, why: str
) -> None:
    """C87: when nothing can be read the notice says that, and the file stays."""
    root, facts = good
    path = copy_of(root, tmp_path / "w")
    path.write_bytes(content)
    store = recover(tmp_path / "w", facts)
    (aside,) = (path.parent / "damaged").iterdir()
    assert aside.read_bytes() == content
    (notice,) = store.notices
    assert notice == (
        f"`{path}` was damaged ({why}) and is kept as `{aside}`: nothing in it can be read, so"
        " its run history and recorded results are lost"
    )
    assert [row.id for row in store.runs.list(10)] == ["ffffffff"]
    store.close()
    again = open_store(tmp_path / "w")
    assert again.notices == ()
    again.close()


def test_damage_found_by_a_question_is_told_and_left(
    good: tuple[Path, Facts], tmp_path: Path
) -> None:
    """C87, C133: asking never repairs; the error names the file and the remedy."""
    root, _ = good
    path = copy_of(root, tmp_path / "w")
    with path.open("r+b") as file:
        file.truncate(8192)
    before = path.read_bytes()
    with pytest.raises(StoreDamaged) as caught:
        Store.open_for_reading(str(tmp_path / "w"))
    assert str(path) in str(caught.value)
    assert caught.value.hint is not None
    assert "assay cache verify" in caught.value.hint
    assert path.read_bytes() == before
    assert not (path.parent / "damaged").exists()
    assert not (path.parent / "tmp" / "check-database").exists()


def test_a_caller_that_could_not_tell_mends_nothing(
    good: tuple[Path, Facts], tmp_path: Path
) -> None:
    """C87: the notice of a repair reaches whoever opened the store, so one that has no way
    to show it leaves the repair to the next opener."""
    root, _ = good
    path = copy_of(root, tmp_path / "w")
    path.write_bytes(b"hello")
    with pytest.raises(StoreDamaged):
        Store.open_for_run(str(tmp_path / "w"), now=time.time, mend=False)
    assert path.read_bytes() == b"hello"
    store = open_store(tmp_path / "w")
    assert len(store.notices) == 1
    store.close()


def test_verifying_finds_damage_that_nothing_touched(
    good: tuple[Path, Facts], tmp_path: Path
) -> None:
    """C87: `cache verify` reads every page, and the store it was given goes on with the
    repaired database."""
    root, facts = good
    path = copy_of(root, tmp_path / "w")
    store = open_store(tmp_path / "w")
    last = store.database.query_one(
        "SELECT max(rootpage) FROM sqlite_master WHERE name = 'attempts_by_node'"
    )
    assert last is not None
    store.close()
    with path.open("r+b") as file:
        file.seek((last[0] - 1) * 4096)
        file.write(bytes(4096))
    store = open_store(tmp_path / "w")
    assert store.notices == ()
    found = verify_cache(store, Blobs(store.cas, store.tmp))
    assert found.database is not None
    assert found.database.startswith(f"`{path}` was damaged (")
    assert not found.is_sound
    assert facts_of(store).runs == facts.runs
    assert facts_of(store).attempts == facts.attempts
    assert store.attempts.last_of(NodeName("cc[src/0.c]"), "plan.toml") is not None
    store.close()


def test_a_mark_of_damage_makes_the_next_run_look(good: tuple[Path, Facts], tmp_path: Path) -> None:
    """A mark that damage was met is cleared once the whole file was read and is sound."""
    root, facts = good
    path = copy_of(root, tmp_path / "w")
    mark = path.parent / "tmp" / "check-database"
    mark.touch()
    store = open_store(tmp_path / "w")
    assert store.notices == ()
    assert not mark.exists()
    assert facts_of(store) == facts
    store.close()


def test_a_damaged_log_costs_what_was_not_yet_moved_into_the_file(
    good: tuple[Path, Facts], tmp_path: Path
) -> None:
    """C87: a log cut anywhere leaves an earlier state of the store, and a sound one."""
    root, facts = good
    copy_of(root, tmp_path / "w")
    store = open_store(tmp_path / "w")
    record_build(store, "0000000f", 1)
    folder = tmp_path / "w" / ".assay"
    log = (folder / "assay.db-wal").read_bytes()
    database = (folder / "assay.db").read_bytes()
    store.close()
    for size in range(0, len(log), 512):
        (folder / "assay.db").write_bytes(database)
        (folder / "assay.db-wal").write_bytes(log[:size])
        (folder / "assay.db-shm").unlink(missing_ok=True)
        store = open_store(tmp_path / "w")
        assert store.notices == ()
        assert store.database.find_faults() is None
        assert {row.id for row in store.runs.list(100)} - {"0000000f"} == facts.runs.keys()
        store.close()


def test_damaged_files_of_one_second_keep_apart(tmp_path: Path) -> None:
    """No file that was kept aside is ever overwritten by the next."""
    for text in ("one", "two", "three"):
        Store.open_for_run(str(tmp_path), now=lambda: 1000.0).close()
        (tmp_path / ".assay" / "assay.db").write_text(text)
    Store.open_for_run(str(tmp_path), now=lambda: 1000.0).close()
    aside = tmp_path / ".assay" / "damaged"
    assert sorted(path.read_text() for path in aside.iterdir()) == ["one", "three", "two"]
    assert "assay.db-19700101T001640" in os.listdir(aside)


MANY = 400
"""Effects enough for their table to have several pages."""


def damage_table(root: Path, table: str, which: str) -> None:
    """Fills one page of a table with other bytes: its root, or the last one below that."""
    store = open_store(root)
    found = store.database.query_one("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    if which == "leaf":
        found = store.database.query_one(
            "SELECT max(pageno) FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)
        )
    assert found is not None
    store.close()
    with (root / ".assay" / "assay.db").open("r+b") as file:
        file.seek((found[0] - 1) * 4096)
        file.write(bytes(4096))
    (root / ".assay" / "tmp" / "check-database").touch()


def build_with_effects(root: Path, *, marked: bool = True) -> None:
    store = open_store(root)
    if marked:
        store.expect_effects()
    record_build(store, "0000000a", NODES)
    with store.transaction():
        for number in range(MANY):
            store.effects.put(an_effect("0000000a", number, node=f"n{number}"))
        store.effects.save_selection(RunId("0000000a"), [NodeName("n0"), NodeName("n1")])
    store.close()


@pytest.mark.parametrize("table", ["results", "recorded_outputs", "plans", "pins", "stat_cache"])
def test_effects_survive_damage_elsewhere(tmp_path: Path, table: str) -> None:
    """C87: what they were and what their run had selected is read from the damaged file, and
    nothing is told as lost."""
    build_with_effects(tmp_path)
    damage_table(tmp_path, table, "root")
    store = open_store(tmp_path)
    assert len(store.notices) == 1
    assert store.effects.of_run(RunId("0000000a")) == [
        an_effect("0000000a", number, node=f"n{number}") for number in range(MANY)
    ]
    assert store.effects.selection_of(RunId("0000000a")) == frozenset(map(NodeName, ("n0", "n1")))
    assert store.effects.lost() is None
    store.close()


@pytest.mark.parametrize("which", ["root", "leaf"])
@pytest.mark.parametrize("table", ["effects", "runs"])
def test_effects_that_cannot_be_read_are_told_as_lost(
    tmp_path: Path, table: str, which: str
) -> None:
    """C87: those that can be are as they were; the new store says where the others are, and
    goes on saying so."""
    build_with_effects(tmp_path)
    if table == "runs":
        store = open_store(tmp_path)
        with store.transaction():
            for number in range(MANY):
                store.runs.create(a_run(f"{number:07x}f", status=RunStatus.COMPLETED))
        store.close()
    damage_table(tmp_path, table, which)
    store = open_store(tmp_path)
    (aside,) = (tmp_path / ".assay" / "damaged").iterdir()
    assert store.effects.lost() == f"the damaged one is kept as `{aside}`"
    found = store.effects.of_run(RunId("0000000a"))
    assert len(found) == MANY if table == "runs" else len(found) < MANY
    for row in found:
        assert row == an_effect("0000000a", row.begun_seq, node=row.node)
    store.close()
    again = open_store(tmp_path)
    assert again.notices == ()
    assert again.effects.lost() == f"the damaged one is kept as `{aside}`"
    again.close()


@pytest.mark.parametrize("content", [b"", b"hello", b"hello\n" * 1000])
@pytest.mark.parametrize("marked", [True, False])
def test_a_store_replaced_by_another_file_has_lost_its_effects(
    tmp_path: Path, content: bytes, marked: bool
) -> None:
    """C87: if it ever had any."""
    build_with_effects(tmp_path, marked=marked)
    path = tmp_path / ".assay" / "assay.db"
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(content)
    store = open_store(tmp_path)
    (aside,) = (tmp_path / ".assay" / "damaged").iterdir()
    expected = f"the damaged one is kept as `{aside}`" if marked else None
    assert store.effects.lost() == expected
    store.close()


def test_what_was_lost_before_stays_lost(tmp_path: Path) -> None:
    """C87: a second repair, of a store whose effects are all there, forgets nothing of the
    first."""
    build_with_effects(tmp_path)
    store = open_store(tmp_path)
    store.effects.mark_lost("the damaged one is kept as `x`")
    store.close()
    damage_table(tmp_path, "results", "root")
    store = open_store(tmp_path)
    assert len(store.notices) == 1
    assert store.effects.lost() == "the damaged one is kept as `x`"
    assert len(store.effects.of_run(RunId("0000000a"))) == MANY
    store.close()


def test_what_is_salvaged_says_whether_it_has_all_effects(tmp_path: Path) -> None:
    """A sound database has; the seals of its rows fit as before."""
    damaged, fresh = databases.open_in_memory(), databases.open_in_memory()
    old, new = Effects(damaged), Effects(fresh)
    rows = [an_effect("aaaaaaaa", number, node=f"n\udcff{number}") for number in range(5)]
    for row in rows:
        old.put(row)
    damaged.execute("UPDATE effects SET data = '' WHERE attempt = 'aaaaaaaa-3'")
    found = salvage(damaged, fresh)
    assert found.has_all_effects
    assert found.kept["effects"] == 5
    kept = new.of_run(RunId("aaaaaaaa"))
    assert [row.is_sound for row in kept] == [True, True, True, False, True]
    assert [row for row in kept if row.is_sound] == rows[:3] + rows[4:]
    damaged.close()
    fresh.close()


def test_positions_that_are_given_again_order_nothing(tmp_path: Path) -> None:
    """C83: where the journal is lost, tries begin anew: a later one is the last one."""
    damaged, fresh = databases.open_in_memory(), databases.open_in_memory()
    old = Attempts(damaged)
    old.begin(an_attempt("aaaaaaaa", 1), 33)
    Runs(damaged, lambda: 1.0, lambda: str(tmp_path)).create(a_run("aaaaaaaa"))
    salvage(damaged, fresh)
    new = Attempts(fresh)
    new.begin(an_attempt("aaaaaaaa", 2), 4)
    last = new.last_of(NodeName("cc[src/main.c]"), "plan.toml")
    assert last is not None
    assert last.id == "aaaaaaaa-2"
    damaged.close()
    fresh.close()
