"""Taking back what a compensable attempt did: its files as they were, then its `undo`.

Runs on a worker thread, or in a process that goes on after a crash; writes no records. A
compensation that is killed anywhere is done again: files that are as they were are not
touched, and `undo` may run more than once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, Any, Final

from assay.engine import effect_marks, lock_files, preimages, temporary
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.columns import from_json, to_json
from assay.engine.effects import EffectRow
from assay.engine.environment import AMBIENT, CallerEnvironment
from assay.engine.filesystem import (
    FilesystemError,
    Obstacles,
    look,
    make_folders,
    remove_empty_folder,
)
from assay.engine.measuring import Measurer
from assay.engine.orphans import Trace, find_all_survivors
from assay.engine.preimages import DamagedPreimage, RolledBack
from assay.engine.process import CannotStart, Processes, Spawn
from assay.engine.states import AttemptEnd, AttemptId, EffectState, State
from assay.plans.model import Node, RelPath, Secret, argv_of

if TYPE_CHECKING:
    from assay.engine.store import Store
    from assay.plans.canonical import JsonValue

UNDO_SUFFIX: Final = ".undo"
"""What an attempt's id is followed by in the `ASSAY_ATTEMPT` of its undo."""


@dataclass(frozen=True, slots=True)
class Compensated:
    """What came of it. `problem` is one clause, None when everything is as it was; `state` is
    that of the effect from now on."""

    state: EffectState
    files: RolledBack
    undo: str | None = None
    """How the undo command ended, None when none ran."""
    problem: str | None = None


def describe_undo(
    node: Node, caller: CallerEnvironment, values: Mapping[str, JsonValue]
) -> str | None:
    """All that is needed to run the node's undo later, as JSON; None: it has none. Secrets are
    kept by name and taken from whoever runs it."""
    if node.undo is None:
        return None
    secrets = {name: value.name for name, value in node.env if isinstance(value, Secret)}
    child = caller.for_child(node, values, dict.fromkeys(secrets, ""))
    own = {name for name, _ in node.env}
    unset = sorted(own - child.keys())
    env = {
        name: value
        for name, value in child.items()
        if name not in secrets and (name in own or name not in AMBIENT)
    }
    return to_json(
        {
            "argv": argv_of(node.undo),
            "workdir": node.workdir,
            "env": env,
            "unset": unset,
            "secrets": secrets,
            "timeout": node.timeout_seconds,
            "grace": node.grace_seconds,
        }
    )


def trace_of_undo(store: Store, attempt: AttemptId) -> Trace:
    """By which the processes of the attempt's undo are found, whoever started it."""
    itself = AttemptId(f"{attempt}{UNDO_SUFFIX}")
    lease = f"{store.tmp}/{itself}.lease"
    _, pid = _read_lease(lease)
    return Trace(itself, lease, pid)


def remove_undo(store: Store, attempt: AttemptId) -> None:
    """Takes away the private folder and the lease of an undo of which nothing lives any more."""
    lease = trace_of_undo(store, attempt).lease
    folder, _ = _read_lease(lease)
    if folder is not None:
        temporary.remove(folder)
    with suppress(FileNotFoundError):
        os.unlink(lease)


def _read_lease(lease: str) -> tuple[str | None, int | None]:
    """The private folder of the undo and the pid of its main process, as far as they are on
    record: FOLDER is written with a line end before it is made, the pid behind it once it runs."""
    folder, pid = b"", b""
    with suppress(OSError), open(lease, "rb") as file:
        folder, _, pid = file.read().rpartition(b"\n")
    return os.fsdecode(folder) or None, int(pid) if pid.isdigit() else None


def is_undo_alive(store: Store, attempt: AttemptId) -> bool:
    """Whether anything of the attempt's undo lives."""
    trace = trace_of_undo(store, attempt)
    # A lease that is held by what cannot be seen from here lives as well.
    return bool(find_all_survivors([trace])) or lock_files.is_held(trace.lease)


def compensate(
    row: EffectRow,
    *,
    store: Store,
    measurer: Measurer,
    blobs: Blobs,
    processes: Processes,
    caller: CallerEnvironment,
    is_hurried: Callable[[], bool],
    stays: Mapping[RelPath, State] | None = None,
    has_started: bool = False,
) -> Compensated:
    """Takes the effect back, as far as that has not been done yet. Blocks; raises nothing for
    anything a command or a disk can do. Once `is_hurried` no undo is begun.
    `stays` is what others have made of its files since, and that is left alone. `has_started`:
    the command is known to have run, whatever is on record of it."""
    files = RolledBack()
    if row.state is not EffectState.COMPENSATING:
        done = roll_back_files(
            row,
            store=store,
            measurer=measurer,
            blobs=blobs,
            stays=stays,
            has_started=has_started,
        )
        if done.state is not EffectState.COMPENSATING:
            return done
        files = done.files
    assert row.undo is not None
    if is_hurried():
        why = "its `undo` was not begun, since the run was ended at once"
        return Compensated(EffectState.COMPENSATING, files, None, why)
    try:
        problem = _run_undo(row, from_json(row.undo), store, processes, caller, is_hurried)
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
    if problem is None:
        return Compensated(EffectState.ROLLED_BACK, files, "ended well")
    return Compensated(EffectState.COMPENSATING, files, problem, f"its `undo` {problem}")


def roll_back_files(
    row: EffectRow,
    *,
    store: Store,
    measurer: Measurer,
    blobs: Blobs,
    stays: Mapping[RelPath, State] | None = None,
    has_started: bool = False,
) -> Compensated:
    """The first half: COMPENSATING when the undo is to follow. Where no pre-image was kept the
    command never started, unless that is known otherwise."""
    has_started = has_started or row.state in (EffectState.SUCCEEDED, EffectState.ROLLING_BACK)
    path = preimages.path_of(store.preimages, row.attempt)
    try:
        preimage = preimages.load(path)
        if preimage is None:
            if has_started or effect_marks.has(store.marks, row.attempt):
                return _failed(f"how its files were before is lost: `{path}` is gone")
            return Compensated(EffectState.NOTHING, RolledBack())
        files = preimages.roll_back(
            preimage,
            # One that failed and is being rolled back since has recorded none.
            dict(row.outputs) if row.outputs or row.end is AttemptEnd.SUCCEEDED else None,
            measurer=measurer,
            blobs=blobs,
            staging=f"{store.tmp}/{row.attempt}.stage",
            trash=f"{store.trash}/{row.attempt}",
            stays=stays or {},
        )
    except (DamagedPreimage, BlobMissing, BlobCorrupt) as error:
        return _failed(f"its files cannot be put back: {error}")
    except FilesystemError as error:
        # Once the host allows it, whoever comes next completes it.
        problem = f"its files cannot be put back yet: {error}"
        return Compensated(EffectState.ROLLING_BACK, RolledBack(), None, problem)
    if row.undo is None:
        return Compensated(EffectState.ROLLED_BACK, files)
    return Compensated(EffectState.COMPENSATING, files)


def _failed(problem: str) -> Compensated:
    return Compensated(EffectState.UNKNOWN, RolledBack(), None, problem)


def _run_undo(
    row: EffectRow,
    spec: dict[str, Any],
    store: Store,
    processes: Processes,
    caller: CallerEnvironment,
    is_hurried: Callable[[], bool],
) -> str | None:
    """Why it did not end well, as a clause; None when it did."""
    secrets: dict[str, str] = {}
    for name, source in spec["secrets"].items():
        value = caller.variables.get(source)
        if value is None:
            return f"needs the secret `{source}`, which is not set in the environment"
        secrets[name] = value
    itself = AttemptId(f"{row.attempt}{UNDO_SUFFIX}")
    lease = f"{store.tmp}/{itself}.lease"
    if is_undo_alive(store, row.attempt):
        return "still runs, though the assay that started it is gone"
    remove_undo(store, row.attempt)
    folder = temporary.plan_temp(itself, caller.variables)
    ambient = {name: caller.variables[name] for name in AMBIENT if name in caller.variables}
    env = {**ambient, **spec["env"], **secrets}
    for name in spec["unset"]:
        env.pop(name, None)
    env["TMPDIR"] = temporary.tmpdir_of(folder)
    env["ASSAY_RUN"] = row.run
    env["ASSAY_NODE"] = row.node
    env["ASSAY_ATTEMPT"] = itself
    spawn = Spawn(
        attempt=itself,
        argv=tuple(spec["argv"]),
        cwd=store.root if spec["workdir"] == "." else f"{store.root}/{spec['workdir']}",
        env=env,
        log=f"{store.logs}/{row.attempt}.log",
        lease=lease,
        masks=tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets.values()),
        leaves_lease=True,
    )

    def note_started(pid: int) -> None:
        note(pid)
        if is_hurried():
            # Whoever was to end it did not find it yet.
            processes.kill(itself)

    def note(pid: int | None = None) -> None:
        text = f"{folder}\n{'' if pid is None else pid}"
        # Over what it says already: whoever reads it meanwhile finds no less.
        with open(os.open(lease, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.fsencode(text))

    is_late = threading.Event()
    timers = _limit(spec, processes, itself, is_late)
    lent: tuple[str, ...] = ()
    try:
        note()
        temporary.make(folder)
        lent = _lend_workdir(store, row.attempt, RelPath(spec["workdir"]))
        ended = processes.execute(spawn, note_started)
    except (CannotStart, FilesystemError) as error:
        return f"could not be started: {error}"
    finally:
        for timer in timers:
            timer.cancel()
        temporary.remove(folder)
        remove_undo(store, row.attempt)
        for made in lent:
            remove_empty_folder(made)
    if is_late.is_set():
        return f"timed out after {spec['timeout']:g}s"
    if ended.signal is not None:
        return f"was ended by {Signals(ended.signal).name}"
    if ended.exit_code:
        return f"ended with exit code {ended.exit_code}"
    return None


def _lend_workdir(store: Store, attempt: AttemptId, workdir: RelPath) -> tuple[str, ...]:
    """The undo has a working directory although that was made for its node, and is gone with what
    that did. Returns the folders, innermost first, that are to go again if they are empty, also
    those that an undo before this one has left when it was killed. Raises FilesystemError."""
    if workdir == ".":
        return ()
    preimage = None
    with suppress(DamagedPreimage):  # of which nothing is left to be put back
        preimage = preimages.load(preimages.path_of(store.preimages, attempt))
    lent: list[str] = []
    folder = str(workdir)
    while folder not in ("", "."):
        path = f"{store.root}/{folder}"
        if look(path) is None or (preimage is not None and folder in preimage.missing):
            lent.append(path)
        folder = os.path.dirname(folder)
    if lent and Obstacles(store.root).find(f"{workdir}/_") is None:
        make_folders(f"{store.root}/{workdir}")
    return tuple(lent)


def _limit(
    spec: dict[str, Any], processes: Processes, attempt: AttemptId, is_late: threading.Event
) -> tuple[threading.Timer, ...]:
    """The node's own timeout holds for its undo too; sets `is_late` when that has ended it."""
    seconds = spec["timeout"]
    if seconds is None:
        return ()
    grace = spec["grace"]

    def end_late() -> None:
        is_late.set()
        if not processes.terminate(attempt, ask_seconds=grace):
            is_late.clear()  # it had ended by itself

    ask = threading.Timer(seconds, end_late)
    end = threading.Timer(seconds + grace, lambda: processes.kill(attempt))
    for timer in (ask, end):
        timer.daemon = True
        timer.start()
    return ask, end
