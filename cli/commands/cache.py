"""`assay cache stats | verify | gc | clear`: looks after recorded results and blobs.

Does not know what may go; the engine decides.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from assay.cli.call import Call
from assay.cli.errors import ExitCode, HostError, UsageError
from assay.cli.history import reading_store
from assay.cli.location import STORE_FOLDER, current_folder, find_root
from assay.cli.render.stream import Stream
from assay.cli.render.text import count, one_line, size
from assay.engine.blobs import Blobs
from assay.engine.collection import (
    CacheStats,
    Collected,
    Verified,
    cache_stats,
    clear_cache,
    collect,
    verify_cache,
)
from assay.engine.store import Store
from assay.plans.durations import DurationError, parse_duration

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def perform(call: Call) -> int:
    match call.values.command.name:
        case "stats":
            return show_stats(call)
        case "verify":
            return verify(call)
        case "gc":
            return collect_garbage(call)
        case "clear":
            return clear(call)
        case other:
            raise AssertionError(f"the table of commands has no `cache {other}` here")


def show_stats(call: Call) -> int:
    with reading_store() as store:
        stats = cache_stats(store, Blobs(store.cas, store.tmp))
    if call.values.flag("json"):
        _write_json(call.out, asdict(stats))
    else:
        call.out.write(_render_stats(stats))
    return ExitCode.DONE


def verify(call: Call) -> int:
    with writing_store() as store:
        verified = verify_cache(store, Blobs(store.cas, store.tmp))
    if call.values.flag("json"):
        _write_json(call.out, {**asdict(verified), "is_sound": verified.is_sound})
    else:
        call.out.write(_render_verified(verified))
    return ExitCode.DONE if verified.is_sound else ExitCode.HOST


def collect_garbage(call: Call) -> int:
    max_size, max_age = call.values.text("max_size"), call.values.text("max_age")
    max_size_bytes = parse_size(max_size) if max_size else None
    max_age_seconds = parse_age(max_age) if max_age else None
    with writing_store() as store:
        collected = collect(store, Blobs(store.cas, store.tmp), max_size_bytes, max_age_seconds)
    _tell_collected(call, collected)
    return ExitCode.DONE


def clear(call: Call) -> int:
    with writing_store() as store:
        collected = clear_cache(store, Blobs(store.cas, store.tmp))
    _tell_collected(call, collected)
    return ExitCode.DONE


@contextmanager
def writing_store() -> Iterator[Store]:
    """The store around the current folder, to be changed; none is made. Raises UsageError
    when there is none, HostError when it cannot be written."""
    root = find_root(current_folder())
    if not os.path.isdir(os.path.join(root, STORE_FOLDER)):
        raise UsageError(f"There is no cache in `{root}`", hint="`assay run` makes one")
    store = Store.open_for_run(root, now=time.time)
    try:
        if not store.recorded:
            raise HostError(f"The cache in `{root}` cannot be written: {store.notices[-1]}")
        yield store
    finally:
        store.close()


def parse_size(text: str) -> int:
    """Bytes of `10G`, `1.5MiB`, `4096`; powers of 1024. Raises UsageError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"`--max-size` needs a size such as 500M or 10G, not `{text}`")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])


def parse_age(text: str) -> float:
    """Seconds. Raises UsageError."""
    try:
        return parse_duration(text)
    except DurationError as error:
        raise UsageError(f"`--max-age` must be {error}, not `{text}`") from None


def _render_stats(stats: CacheStats) -> str:
    blobs = count(stats.blobs, "blob")
    lines = [
        f"results   {stats.results:,}",
        f"blobs     {stats.blobs:,}, {size(stats.blobs_bytes)}",
        f"logs      {stats.logs:,}, {size(stats.logs_bytes)}",
        f"trash     {size(stats.trash_bytes)}",
        f"database  {size(stats.database_bytes)}",
    ]
    if stats.unreferenced_blobs:
        lines.append(
            f"{stats.unreferenced_blobs:,} of {blobs} ({size(stats.unreferenced_bytes)}) belong to "
            "no result; `assay cache gc` removes them"
        )
    if stats.missing_blobs:
        lines.append(
            f"{count(stats.missing_blobs, 'blob')} missing; `assay cache verify` removes what "
            "refers to them"
        )
    return "\n".join(lines) + "\n"


def _render_verified(verified: Verified) -> str:
    lines = [f"read {count(verified.results, 'result')} and {count(verified.blobs, 'blob')}"]
    lines += [
        f"blob {digest} is damaged; kept as {one_line(place)}"
        for digest, place in verified.damaged_blobs
    ]
    if verified.damaged_results:
        lines.append(f"{count(verified.damaged_results, 'result')} could not be read: removed")
    lines += [
        f"a result of `{one_line(node)}` lost a blob: removed" for node in verified.broken_results
    ]
    if verified.database is not None:
        lines.append(one_line(verified.database))
    lines.append(
        "all is sound" if verified.is_sound else "what was removed is made again when needed"
    )
    return "\n".join(lines) + "\n"


def _tell_collected(call: Call, collected: Collected) -> None:
    if call.values.flag("json"):
        _write_json(call.out, asdict(collected))
        return
    also = [
        f"{number:,} {noun}"
        for number, noun in (
            (collected.logs, "old logs"),
            (collected.trash, "old entries of the trash"),
            (collected.left_overs, "left-overs of dead processes"),
        )
        if number
    ]
    removed = f"{count(collected.results, 'result')} and {count(collected.blobs, 'blob')}"
    lines = [f"removed {removed}, {size(collected.freed_bytes)} freed"]
    if also:
        lines.append(f"removed {', '.join(also)}")
    lines.append(f"kept {count(collected.kept_blobs, 'blob')}, {size(collected.kept_bytes)}")
    call.out.write("\n".join(lines) + "\n")


def _write_json(out: Stream, value: object) -> None:
    out.write(json.dumps(value, indent=2) + "\n")
