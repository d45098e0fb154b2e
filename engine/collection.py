"""Looking after the cache: what it holds, whether it is sound, and what may go.

Runs beside other processes that use the store. References go first, in one transaction,
blobs after: a crash in between leaves blobs nobody refers to, never a result without
them. A blob somebody is about to refer to is young, because storing it again makes it so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from assay.engine import lock_files, preimages
from assay.engine.journal import Fact
from assay.engine.states import RunId, stored_digest
from assay.plans.model import Digest

if TYPE_CHECKING:
    from assay.engine.blobs import Blobs
    from assay.engine.results import Held
    from assay.engine.store import Store

SPARED_SECONDS: Final = 60.0
"""Nothing younger is removed: another process may be about to need it."""

_KEPT_IN_TMP: Final = frozenset({"open.lock", "recovery.lock", "check-database"})


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Sizes in bytes."""

    results: int
    blobs: int
    blobs_bytes: int
    unreferenced_blobs: int
    unreferenced_bytes: int
    missing_blobs: int
    """Referred to, but not there: their results serve only while the outputs stand."""
    logs: int
    logs_bytes: int
    trash_bytes: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class Verified:
    results: int
    blobs: int
    damaged_results: int
    """Rows that were not what was recorded: evicted."""
    damaged_blobs: tuple[tuple[Digest, str], ...]
    """With where each is kept now."""
    broken_results: tuple[str, ...]
    """Nodes whose results referred to a blob that is missing or damaged: evicted."""
    database: str | None
    """What was found wrong with the database and done about it."""

    @property
    def is_sound(self) -> bool:
        return not (
            self.damaged_results or self.damaged_blobs or self.broken_results or self.database
        )


@dataclass(frozen=True, slots=True)
class Collected:
    """What went, and how much blobs remain."""

    results: int
    blobs: int
    freed_bytes: int
    kept_blobs: int
    kept_bytes: int
    logs: int
    trash: int
    left_overs: int


def cache_stats(store: Store, blobs: Blobs) -> CacheStats:
    """What the store holds now. Writes nothing."""
    held = store.results.inventory()
    referenced = {digest for result in held for digest in result.digests}
    count = size = loose = loose_size = 0
    for digest, size_bytes, _ in blobs.iterate():
        count += 1
        size += size_bytes
        if digest in referenced:
            referenced.discard(digest)
        else:
            loose += 1
            loose_size += size_bytes
    logs = [info.st_size for _, info in _walk(store.logs)]
    database = os.path.join(store.folder, "assay.db")
    return CacheStats(
        results=len(held),
        blobs=count,
        blobs_bytes=size,
        unreferenced_blobs=loose,
        unreferenced_bytes=loose_size,
        missing_blobs=len(referenced),
        logs=len(logs),
        logs_bytes=sum(logs),
        trash_bytes=sum(info.st_size for _, info in _walk(store.trash)),
        database_bytes=sum(map(_size_of, (database, database + "-wal"))),
    )


def verify_cache(store: Store, blobs: Blobs) -> Verified:
    """Read every page, row and blob. What is damaged is set aside or evicted, with a
    journal record, so that it is made again; nothing sound is touched."""
    database = store.repair()
    before = store.results.inventory()
    readable = {result.address: result for result in before}
    damaged_rows = 0
    for address in list(readable):
        if store.results.get(address) is None:
            damaged_rows += 1
            del readable[address]
    sound: set[Digest] = set()
    damaged_blobs: list[tuple[Digest, str]] = []
    count = 0
    for digest, _, _ in blobs.iterate():
        count += 1
        place = blobs.set_aside(digest)
        if place is None:
            sound.add(digest)
        else:
            damaged_blobs.append((digest, place))
    # A result recorded meanwhile is not in `readable`, a blob stored meanwhile may not be
    # in `sound`: so ask for each that seems to miss.
    broken = [
        result
        for result in readable.values()
        if any(digest not in sound and not blobs.has(digest) for digest in result.digests)
    ]
    source = f"verify:{os.urandom(8).hex()}"
    with store.transaction():
        sequence = 0
        for digest, place in damaged_blobs:
            sequence += 1
            store.journal.append(
                source,
                sequence,
                Fact.BLOB_SET_ASIDE,
                run=None,
                data={"digest": digest, "to": place, "why": "its bytes are not those of its name"},
            )
        for result in broken:
            if store.results.evict(result.address, result.journal_seq):
                sequence += 1
                store.journal.append(
                    source,
                    sequence,
                    Fact.RESULT_EVICTED,
                    run=None,
                    node=result.node,
                    data={
                        "address": result.address,
                        "recorded_seq": result.journal_seq,
                        "why": "a blob it needs is missing or damaged",
                    },
                )
        if broken or damaged_rows:
            store.agreements.clear()
    return Verified(
        results=len(before),
        blobs=count,
        damaged_results=damaged_rows,
        damaged_blobs=tuple(damaged_blobs),
        broken_results=tuple(sorted(result.node for result in broken)),
        database=database,
    )


def collect(
    store: Store,
    blobs: Blobs,
    max_size_bytes: int | None = None,
    max_age_seconds: float | None = None,
) -> Collected:
    """Remove what is expired, what was not used for `max_age_seconds`, and then the
    results used longest ago until the blobs that remain fit into `max_size_bytes`; blobs
    nobody refers to; with an age, logs, trash and closed pre-images older than it; what dead
    processes left.

    Safe beside other processes and when killed anywhere: a result that stays keeps its
    blobs, and nothing younger than a minute goes.
    """
    now = store.now()
    sizes = {digest: size for digest, size, _ in blobs.iterate()}
    with store.transaction():
        held = store.results.inventory()
        kept, doomed = choose(
            held, sizes, store.runs.last_created(), now, max_size_bytes, max_age_seconds
        )
        gone = [r for r in doomed if store.results.evict(r.address, r.journal_seq)]
        spared_since = _spare_since(store, now)
        in_use = _used_by_attempts(store)
        logs_in_use = {row.log for row in store.attempts.running()}
        if gone:
            store.agreements.clear()
            store.journal.append(
                f"gc:{os.urandom(8).hex()}",
                1,
                Fact.CACHE_COLLECTED,
                run=None,
                data={
                    "results": [[r.node, r.address] for r in gone],
                    "max_size_bytes": max_size_bytes,
                    "max_age_seconds": max_age_seconds,
                },
            )
    if max_age_seconds is not None:
        oldest = min(now - max_age_seconds, now - SPARED_SECONDS)
        _remove_old_files(store.preimages, oldest, _open_preimages(store))
    in_use |= _used_by_effects(store)
    referenced = in_use.union(*(result.digests for result in kept))
    removed, freed, left, left_bytes = _remove_blobs(store, blobs, referenced, spared_since)
    logs = trash = 0
    if max_age_seconds is not None:
        oldest = min(now - max_age_seconds, now - SPARED_SECONDS)
        logs_in_use.update(result.log for result in kept if result.log is not None)
        logs = _remove_old_files(store.logs, oldest, logs_in_use)
        trash = _remove_old_entries(store.trash, oldest, lambda _: False)
    left_overs = _remove_left_overs(store, now)
    _forget_gone_paths(store)
    return Collected(len(gone), removed, freed, left, left_bytes, logs, trash, left_overs)


def clear_cache(store: Store, blobs: Blobs) -> Collected:
    """Take away every result and every blob that no running attempt needs and that is
    older than a minute. Run history, logs and trash stay."""
    with store.transaction():
        spared_since = _spare_since(store, store.now())
        in_use = _used_by_attempts(store) | _used_by_effects(store)
        count = store.results.clear()
        store.agreements.clear()
        store.journal.append(
            f"gc:{os.urandom(8).hex()}",
            1,
            Fact.CACHE_CLEARED,
            run=None,
            data={"results": count},
        )
    removed, freed, left, left_bytes = _remove_blobs(store, blobs, in_use, spared_since)
    return Collected(count, removed, freed, left, left_bytes, 0, 0, 0)


def choose(
    held: Sequence[Held],
    sizes: Mapping[Digest, int],
    last_created: Mapping[str, float],
    now: float,
    max_size_bytes: int | None,
    max_age_seconds: float | None,
) -> tuple[list[Held], list[Held]]:
    """Which results stay and which go. Pure.

    The result a node used last counts as used when its plan last ran: a run with nothing
    to do marks no results.
    """
    seen: set[tuple[str, str]] = set()
    used: list[tuple[float, Held]] = []
    for result in sorted(held, key=lambda result: -result.used_at):
        at = result.used_at
        owner = (result.plan_file, result.node)
        if owner not in seen:
            seen.add(owner)
            at = max(at, last_created.get(result.plan_file, at))
        used.append((at, result))
    used.sort(key=lambda pair: -pair[0])
    kept: list[Held] = []
    doomed: list[Held] = []
    counted: set[Digest] = set()
    total = 0
    for at, result in used:
        more = sum(sizes.get(digest, 0) for digest in result.digests if digest not in counted)
        expired = result.expires_at is not None and result.expires_at <= now
        old = max_age_seconds is not None and at < now - max_age_seconds
        large = max_size_bytes is not None and total + more > max_size_bytes
        if (expired or old or large) and at <= now - SPARED_SECONDS:
            doomed.append(result)
        else:
            kept.append(result)
            counted.update(result.digests)
            total += more
    return kept, doomed


def _spare_since(store: Store, now: float) -> float:
    """Blobs with an mtime from here on stay: they were stored in the last minute, or since
    the first attempt that has not settled began (it may need them to put things back)."""
    began = [row.began_at for row in store.attempts.running()]
    return min([now, *began]) - SPARED_SECONDS


def _used_by_attempts(store: Store) -> set[Digest]:
    """What stood at the writes of attempts that have not settled."""
    found = {
        stored_digest(state) for row in store.attempts.running() for state in row.before.values()
    }
    return {digest for digest in found if digest is not None}


def _open_preimages(store: Store) -> set[str]:
    """Pre-images that a run may still have to put back."""
    folder = store.preimages
    attempts = {row.attempt for row in store.effects.kept()}
    attempts |= {row.id for row in store.attempts.running()}
    return {preimages.path_of(folder, attempt) for attempt in attempts}


def _used_by_effects(store: Store) -> set[Digest]:
    """What effects wrote that a later run asks for, and all that could be rolled back."""
    found = {
        digest
        for row in store.effects.kept()
        for _, state in row.outputs
        if (digest := stored_digest(state)) is not None
    }
    attempts = [os.path.basename(path) for path, _ in _walk(store.preimages)]
    return found | preimages.in_use(store.preimages, attempts)


def _remove_blobs(
    store: Store, blobs: Blobs, referenced: set[Digest], spared_since: float
) -> tuple[int, int, int, int]:
    """(removed, bytes freed, left, bytes left)."""
    removed = freed = left = left_bytes = 0
    # Taken away first and looked at again there: a process that stores the blob again either
    # made it young before, and it is put back, or finds it gone and writes it anew. Killed in
    # between, the file is one more left-over in `tmp/`.
    away = os.path.join(store.tmp, f"blob-{os.urandom(8).hex()}")
    for digest, size, modified_at in blobs.iterate():
        path = os.path.join(blobs.folder, digest[:2], digest[2:])
        if digest not in referenced and modified_at < spared_since:
            with suppress(FileNotFoundError):
                os.rename(path, away)
                if os.stat(away).st_mtime < spared_since:
                    os.unlink(away)
                    removed += 1
                    freed += size
                    continue
                os.rename(away, path)
        left += 1
        left_bytes += size
    return removed, freed, left, left_bytes


def _remove_left_overs(store: Store, now: float) -> int:
    """What processes that died left in `tmp/`."""
    is_opening = lock_files.is_held(os.path.join(store.tmp, "open.lock"))

    def stays(entry: os.DirEntry[str]) -> bool:
        name = entry.name
        if name in _KEPT_IN_TMP:
            return True
        if entry.is_file(follow_symlinks=False):
            if name.startswith(("new-", "salvage-")):
                return is_opening
            return lock_files.is_held(entry.path)
        # Folders are named after the attempt, RUN-N, that works in them.
        return store.runs.is_alive(RunId(name.partition("-")[0]))

    return _remove_old_entries(store.tmp, now - SPARED_SECONDS, stays)


def _remove_old_entries(
    folder: str, oldest: float, stays: Callable[[os.DirEntry[str]], bool]
) -> int:
    removed = 0
    for entry in _entries(folder):
        with suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime >= oldest or stays(entry):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
            removed += 1
    return removed


def _remove_old_files(folder: str, oldest: float, in_use: set[str]) -> int:
    removed = 0
    for path, info in _walk(folder):
        if info.st_mtime < oldest and path not in in_use:
            with suppress(FileNotFoundError):
                os.unlink(path)
                removed += 1
    return removed


def _forget_gone_paths(store: Store) -> None:
    gone = [
        path for path in store.stats.paths() if not os.path.lexists(os.path.join(store.root, path))
    ]
    if gone:
        store.stats.forget(gone)


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below `folder` with its stat, no link followed."""
    pending = [folder]
    while pending:
        for entry in _entries(pending.pop()):
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
