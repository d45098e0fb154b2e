"""Carrying out a run that was chosen: its renderer, its signals and its exit code.

Shared by the commands that run something. Does not know which run it is, nor how nodes are
scheduled; the engine tells in events.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import time
from collections.abc import Callable
from types import FrameType

from assay.cli.errors import ExitCode, Interrupted
from assay.cli.loading import LoadedPlan, refusing
from assay.cli.location import Target
from assay.cli.options import Values
from assay.cli.render.diagnostics import Sources
from assay.cli.render.failures import RerunCommand
from assay.cli.render.json_events import JsonRenderer
from assay.cli.render.lines import Actions, LinesRenderer, Look, Show, is_github
from assay.cli.render.stream import Stream
from assay.engine.events import Event, RunSettled
from assay.engine.resumption import Resumption
from assay.engine.run_loop import run_plan
from assay.engine.run_request import Cancellation, RunRequest
from assay.engine.runs import RunRow
from assay.engine.states import Outcome, RunStatus
from assay.engine.store import Store
from assay.plans.model import NodeName, Plan
from assay.plans.selection import Selection

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def choose_renderer(
    values: Values, target: Target, plan: LoadedPlan, out: Stream, err: Stream
) -> Callable[[Event], None]:
    if values.flag("json"):
        return JsonRenderer(out, time.time).tell
    rerun = RerunCommand(
        plan=target.plan if target.given else None,
        options=tuple(word for text in values.texts("param") for word in ("-p", text)),
        default_plan=target.plan,
    )
    return _choose_lines(values, rerun, _Locator(plan.loaded.plan, plan.sources).find, out, err)


def choose_stored_renderer(
    values: Values, row: RunRow, out: Stream, err: Stream
) -> Callable[[Event], None]:
    """As `choose_renderer`, for a run whose plan comes from the store."""
    if values.flag("json"):
        return JsonRenderer(out, time.time).tell
    params = tuple(word for name, value in row.params for word in ("-p", f"{name}={value}"))
    rerun = RerunCommand(plan=row.plan_file, options=params, default_plan=row.plan_file)
    return _choose_lines(values, rerun, lambda name: None, out, err)


def _choose_lines(
    values: Values,
    rerun: RerunCommand,
    locate: Callable[[NodeName], tuple[str, int] | None],
    out: Stream,
    err: Stream,
) -> Callable[[Event], None]:
    on_github = is_github(os.environ)
    actions = None
    if on_github:
        actions = Actions(
            token=secrets.token_hex(16),
            locate=locate,
            summary=os.environ.get("GITHUB_STEP_SUMMARY"),
        )
    look = Look(
        rerun=rerun,
        show=Show(values.text("log")),
        colour=err.colour,
        starts=err.is_terminal or on_github,
        all_clean=not err.is_terminal,
        quiet=values.flag("quiet"),
        actions=actions,
    )
    return LinesRenderer(err, out, look).tell


def execute(
    plan: LoadedPlan, selection: Selection, request: RunRequest, tell: Callable[[Event], None]
) -> int:
    """Runs the selection; the exit code."""
    cancellation = Cancellation()
    received = listen_to_signals(cancellation)
    is_open = False

    def stop_waiting() -> None:
        # Once the run is on, it is the cancellation that ends it.
        if received and not is_open:
            raise Interrupted(received[0])

    store = Store.open_for_run(plan.loaded.root, now=time.time, on_wait=stop_waiting)
    is_open = True
    try:
        with refusing(plan.sources):
            return execute_run(
                store, plan.loaded.plan, selection, request, tell, cancellation, received
            )
    finally:
        store.close()


def execute_run(
    store: Store,
    plan: Plan,
    selection: Selection,
    request: RunRequest,
    tell: Callable[[Event], None],
    cancellation: Cancellation,
    received: list[int],
    resumption: Resumption | None = None,
) -> int:
    """Runs the selection in an open store, or goes on with a run; the exit code."""
    # The plan stays until the end: no search for cyclic garbage need look through it.
    gc.freeze()
    settled = run_plan(store, plan, selection, request, tell, cancellation, resumption=resumption)
    return exit_code(settled, received[0] if received else None)


def listen_to_signals(cancellation: Cancellation) -> list[int]:
    """From now on signals cancel the run; the list given back receives their numbers.

    Handlers stay until the process ends: a further Ctrl-C while it winds up must not end
    in a traceback. A signal the caller ignores (`nohup`, `&` in a script) stays ignored.
    """
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        cancellation.request(number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    return received


def exit_code(settled: RunSettled, received: int | None) -> int:
    """Where several apply: interrupted, then the store, an operator, a failure, a wait."""
    if settled.gave_up_waiting:
        return ExitCode.OPERATOR
    if received is not None:
        return 128 + received
    if settled.status is RunStatus.CANCELLED:
        return ExitCode.TERMINATED
    if settled.store_failed:
        return ExitCode.HOST
    if settled.counts.get(Outcome.AMBIGUOUS):
        return ExitCode.OPERATOR
    if settled.status in (RunStatus.FAILED, RunStatus.PARTIAL):
        return ExitCode.NODE_FAILED
    if settled.status is RunStatus.SUSPENDED:
        return ExitCode.SUSPENDED
    return ExitCode.DONE


class _Locator:
    """Plan file and line of a node, for annotations; looked up only when a node failed."""

    def __init__(self, plan: Plan, sources: Sources) -> None:
        self._plan = plan
        self._sources = sources

    def find(self, name: NodeName) -> tuple[str, int] | None:
        base = name.partition("[")[0]
        for node in self._plan.nodes:
            if node.name in (name, base):
                place = self._sources.find(node.origin)
                return (place.path, place.span.line) if place.span is not None else None
        return None
