"""Rows for tests of the store, and other processes at work on the same store.

Every function has a plain default for what a test does not care about.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from assay.engine.attempts import AttemptRow, AttemptState, Claims
from assay.engine.effects import EffectRow
from assay.engine.results import ResultRow
from assay.engine.runs import Owner, RunRow, this_owner
from assay.engine.states import (
    ABSENT,
    ActionKey,
    AttemptEnd,
    AttemptId,
    EffectState,
    RunId,
    RunStatus,
    State,
)
from assay.engine.store import Store
from assay.plans.model import Entry, EntryKind, NodeName, RelPath, Tier


def digest(number: int) -> str:
    """64 hex digits."""
    return f"{number:064x}"


def gone_owner() -> Owner:
    """One of this host whose process has ended, and another has its pid."""
    return replace(this_owner(), pid_start=1)


def a_run(
    run: str,
    *,
    status: RunStatus = RunStatus.RUNNING,
    owner: Owner | None = None,
    plan_file: str = "plan.toml",
    created_at: float = 1000.0,
    parent: str | None = None,
) -> RunRow:
    settled = status not in (RunStatus.RUNNING, RunStatus.PENDING)
    return RunRow(
        id=RunId(run),
        plan_name="site",
        plan_file=plan_file,
        plan_digest=digest(1),
        status=status,
        created_at=created_at,
        settled_at=created_at + 1 if settled else None,
        owner=owner or gone_owner(),
        fence=1,
        heartbeat_at=created_at,
        parent_attempt=None if parent is None else AttemptId(parent),
        selected=2,
        counts={"built": 2} if settled else {},
        agreed_with=None,
        targets=("test", "link"),
        params=(("mode", "dev"),),
    )


def an_attempt(
    run: str,
    number: int,
    *,
    node: str = "cc[src/main.c]",
    began_at: float = 1000.0,
    before: Mapping[RelPath, State] | None = None,
    log: str = "/w/.assay/logs/x.log",
) -> AttemptRow:
    return AttemptRow(
        id=AttemptId(f"{run}-{number}"),
        run=RunId(run),
        node=NodeName(node),
        action_key=ActionKey(digest(7)),
        number=1,
        state=AttemptState.RUNNING,
        end=None,
        exit_code=None,
        signal=None,
        began_at=began_at,
        settled_at=None,
        log=log,
        temp="/tmp/assay-x",
        pid=None,
        claims=Claims(
            writes=(
                Entry(EntryKind.FILE, RelPath("out/main.o")),
                Entry(EntryKind.TREE, RelPath("gen")),
            ),
            reads=(
                Entry(EntryKind.GLOB, RelPath("include/**/*.h")),
                Entry(EntryKind.GLOB, RelPath("include/x/*"), exclude=True),
                Entry(EntryKind.FILE, RelPath("src/main.c"), optional=True),
            ),
            locks=("db",),
        ),
        before={RelPath("out/main.o"): ABSENT} if before is None else before,
        detail="",
    )


def an_effect(
    run: str,
    number: int,
    *,
    node: str = "pub",
    plan_file: str = "plan.toml",
    tier: Tier = Tier.IRREVERSIBLE,
    state: EffectState = EffectState.INTENDED,
    end: AttemptEnd | None = None,
    begun_seq: int | None = None,
    settled_seq: int | None = None,
    is_open: bool = True,
    outputs: Mapping[RelPath, State] | Mapping[str, str] | None = None,
    undo: str | None = None,
) -> EffectRow:
    """The effect of attempt RUN-NUMBER, begun at position `number` unless told otherwise."""
    return EffectRow(
        attempt=AttemptId(f"{run}-{number}"),
        run=RunId(run),
        node=NodeName(node),
        plan_file=plan_file,
        tier=tier,
        state=state,
        number=1,
        action_key=ActionKey(digest(7)),
        content_key=ActionKey(digest(8)),
        recipe='{"reads":{}}',
        idempotency_key=None,
        undo=undo,
        is_open=is_open,
        begun_seq=number if begun_seq is None else begun_seq,
        settled_seq=settled_seq,
        end=end,
        outputs=tuple((RelPath(path), State(to)) for path, to in sorted((outputs or {}).items())),
    )


def a_result(
    address: str,
    *,
    outputs: Mapping[str, str] | None = None,
    node: str = "cc[src/main.c]",
    plan_file: str = "plan.toml",
    run: str = "aaaaaaaa",
    journal_seq: int = 1,
    recorded_at: float = 1000.0,
    expires_at: float | None = None,
    log: str | None = None,
) -> ResultRow:
    named = {"out/main.o": f"file:{digest(5)}"} if outputs is None else outputs
    return ResultRow(
        address=address,
        action_key=ActionKey(address.partition("@")[0]),
        node=NodeName(node),
        plan_file=plan_file,
        run=RunId(run),
        journal_seq=journal_seq,
        recorded_at=recorded_at,
        outputs=tuple((RelPath(path), State(state)) for path, state in sorted(named.items())),
        value='{"a":"\u00e9"}',
        recipe='{"command":["cc"],"reads":[["src/main.c","file:00"]]}',
        evidence={"reads": "verified", "deviations": []},
        serves=True,
        expires_at=expires_at,
        duration_seconds=0.25,
        log=log,
    )


def record_build(store: Store, run: str, nodes: int) -> None:
    """A whole run with an attempt, a result and journal records for each node, committed
    as the run loop does: state rows and records together."""
    with store.transaction():
        store.runs.create(a_run(run))
        store.journal.append(f"run:{run}", 1, "run-created", run=RunId(run), data={"jobs": 2})
        store.runs.save_plan(digest(1), b"plan")
        store.pins.save(RunId(run), {RelPath("src/main.c"): State(f"file:{digest(3)}")}, {}, {})
    for number in range(nodes):
        name = f"cc[src/{number}.c]"
        with store.transaction():
            store.attempts.begin(an_attempt(run, number, node=name))
        with store.transaction():
            store.attempts.settle(
                AttemptId(f"{run}-{number}"), AttemptEnd.SUCCEEDED, 0, None, "", 1001.0 + number
            )
            seq = store.journal.append(
                f"run:{run}", 2 + number, "attempt-settled", run=RunId(run), node=name
            )
            store.results.put(
                a_result(
                    digest(int(run, 16) * 1000 + number),
                    node=name,
                    run=run,
                    journal_seq=seq,
                    outputs={f"out/{number}.o": f"file:{digest(number)}"},
                )
            )
    with store.transaction():
        store.journal.append(f"run:{run}", 2 + nodes, "run-settled", run=RunId(run))
        store.runs.settle(RunId(run), 1, RunStatus.COMPLETED, {"built": nodes})


def open_store(root: Path | str) -> Store:
    return Store.open_for_run(str(root), now=time.time)


def start_python(program: str, *words: str) -> subprocess.Popen[str]:
    """A process that runs `program`, which may import this module; its three streams are
    pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )


def finish(process: subprocess.Popen[str], say: str = "") -> str:
    """What the process printed; fails the test unless it ends with 0."""
    out, err = process.communicate(say)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return out


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""
"""A program that holds the write lock of the database it is given until told a line."""


def hold_write_lock(database: str) -> subprocess.Popen[str]:
    """A process that holds the write lock when this returns and until it is told a line."""
    holder = start_python(HOLDER, database)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def let_go(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    holder.stdin.write("go\n")
    holder.stdin.flush()
