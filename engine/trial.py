"""One node's command, run once under strace to see what it does.

It works in the workspace as a declared node does, with the node's environment and the values that
earlier runs recorded. Nothing is recorded. Does not know what is made of what it saw.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from assay.engine import temporary
from assay.engine.environment import CallerEnvironment, Refused, project
from assay.engine.process import Ended, Processes, Spawn
from assay.engine.states import AttemptId
from assay.engine.store import Store
from assay.engine.tracing import CALLS, Trace, read_trace
from assay.plans.canonical import JsonValue
from assay.plans.model import Node, Plan, ValueRef, argv_of

STRACE: Final = "strace"

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether to go on."""


class NoTracer(Exception):
    """There is no strace to be found, or it may not trace; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of it. `existed` are the files that were there before, absolute; `search` is the
    command's PATH; `said` is what it wrote."""

    trace: Trace
    ended: Ended
    existed: frozenset[str]
    search: str
    said: str


def find_values(plan: Plan, node: Node, store: Store | None) -> dict[str, JsonValue]:
    """What the node takes from others, as they recorded it last. Raises Refused."""
    values: dict[str, JsonValue] = {}
    for name, value in node.env:
        if isinstance(value, ValueRef):
            row = None if store is None else store.results.last_of(plan.file, value.node)
            if row is None or row.value is None:
                raise Refused(f"takes `{name}` from `{value.node}`, which has yet to run")
            try:
                values[name] = project(json.loads(row.value), value.path)
            except KeyError:
                shown = ".".join((value.node, *value.path))
                raise Refused(f"takes `{name}` from `{shown}`, which it did not give") from None
    return values


def try_node(
    node: Node,
    root: str,
    values: Mapping[str, JsonValue],
    caller: CallerEnvironment,
    is_cancelled: Callable[[], bool],
) -> Tried:
    """Blocks until nothing of the command lives; once `is_cancelled` it is ended. Raises NoTracer,
    Refused and CannotStart."""
    tracer = shutil.which(STRACE, path=caller.variables.get("PATH", os.defpath))
    if tracer is None:
        raise NoTracer("`assay infer` needs `strace`, which is not in PATH")
    if node.command is None:
        raise Refused("has no command")
    secrets = caller.secrets(node)
    attempt = AttemptId(f"infer-{os.urandom(4).hex()}")
    folder = temporary.plan_temp(attempt, caller.variables)
    temporary.make(folder)
    cwd = root if node.workdir == "." else f"{root}/{node.workdir}"
    told, log = f"{folder}/trace", f"{folder}/log"
    environ = caller.for_child(node, values, secrets)
    environ |= {
        "TMPDIR": temporary.tmpdir_of(folder),
        "ASSAY_RUN": "infer",
        "ASSAY_NODE": node.name,
        "ASSAY_ATTEMPT": attempt,
        "ASSAY_RESULT": temporary.result_of(folder),
    }
    spawn = Spawn(
        attempt=attempt,
        argv=(
            *(STRACE, "-f", "-qq", "-y", "-s", "65535", "-e", "signal=none"),
            *("-e", f"trace={','.join(CALLS)}", "-o", told, "--", *argv_of(node.command)),
        ),
        cwd=cwd,
        env=environ,
        log=log,
        lease=f"{folder}/lease",
        program=tracer,
    )
    existed = frozenset(_files(root))
    try:
        ended = _execute(spawn, is_cancelled)
        with open(log, encoding="utf-8", errors="surrogateescape") as file:
            said = file.read()
        if not os.path.exists(told):
            last = said.strip().splitlines()[-1:]
            raise NoTracer(": ".join(["`strace` may not trace here", *last]))
        with open(told, encoding="utf-8", errors="surrogateescape") as file:
            trace = read_trace(file, cwd)
    finally:
        temporary.remove(folder)
    return Tried(trace, ended, existed, environ.get("PATH", os.defpath), said)


def _execute(spawn: Spawn, is_cancelled: Callable[[], bool]) -> Ended:
    """On a thread of its own: signals come to this one."""
    processes = Processes()
    ended: list[Ended] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            ended.append(processes.execute(spawn, lambda pid: None))
        except Exception as error:  # noqa: BLE001 -- raised again on the caller's thread
            raised.append(error)

    thread = threading.Thread(target=run, name="assay-trial")
    thread.start()
    try:
        while thread.is_alive():
            if is_cancelled():
                processes.kill(spawn.attempt)
            thread.join(_LOOK_SECONDS)
    finally:
        processes.close()
    if raised:
        raise raised[0]
    return ended[0]


def _files(root: str) -> list[str]:
    found: list[str] = []
    for place, folders, names in os.walk(root):
        if place == root:
            folders[:] = [name for name in folders if name not in (".assay", ".git")]
        found += [f"{place}/{name}" for name in names]
        found += [f"{place}/{name}" for name in folders if os.path.islink(f"{place}/{name}")]
    return found
