"""`assay run`: loads, selects, runs, and shows what happens while it does.

Does not know how nodes are scheduled; the engine tells in events.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import time
from collections.abc import Callable
from types import FrameType

from assay.cli.agreement import find_basis
from assay.cli.call import Call
from assay.cli.errors import ExitCode, Interrupted, UsageError
from assay.cli.loading import LoadedPlan, choose_nodes, load, refusing
from assay.cli.location import Target, find_target
from assay.cli.options import Values
from assay.cli.plan_errors import write_diagnostics
from assay.cli.render.failures import RerunCommand
from assay.cli.render.json_events import JsonRenderer
from assay.cli.render.lines import Actions, LinesRenderer, Look, Show, is_github
from assay.cli.render.stream import Stream
from assay.cli.requests import make_request
from assay.engine.events import Event, RunSettled, Warned
from assay.engine.run_loop import run_plan
from assay.engine.run_request import Cancellation, RunRequest
from assay.engine.states import Outcome, RunStatus
from assay.engine.store import Store
from assay.plans.model import NodeName
from assay.plans.selection import Selection

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def perform(call: Call) -> int:
    values, out, err = call
    check_boundary(values)
    target = find_target(values.words)
    plan = load(target, values)
    selection = choose_nodes(plan, target.nodes, values.texts("tag"))
    basis = find_basis(target, values, plan.loaded)
    request = make_request(values, plan.loaded.plan, target.nodes, basis)
    if values.flag("dry_run"):
        from assay.cli.commands.why import tell_predictions

        return tell_predictions(plan, selection, request, values, out)
    tell = choose_renderer(values, target, plan, out, err)
    if values.flag("json"):
        for warning in plan.loaded.warnings:
            tell(Warned(warning.message))
    else:
        write_diagnostics(plan.loaded.warnings, plan.sources, err)
    return execute(plan, selection, request, tell)


def check_boundary(values: Values) -> None:
    """Only what is there may be asked for."""
    boundary = values.text("boundary")
    if boundary not in ("", "declared"):
        raise UsageError(f"`--boundary {boundary}` is not available yet")


def choose_renderer(
    values: Values, target: Target, plan: LoadedPlan, out: Stream, err: Stream
) -> Callable[[Event], None]:
    if values.flag("json"):
        return JsonRenderer(out, time.time).tell
    on_github = is_github(os.environ)
    actions = None
    if on_github:
        actions = Actions(
            token=secrets.token_hex(16),
            locate=_Locator(plan).find,
            summary=os.environ.get("GITHUB_STEP_SUMMARY"),
        )
    params = [word for text in values.texts("param") for word in ("-p", text)]
    look = Look(
        rerun=RerunCommand(
            plan=target.plan if target.given else None,
            options=tuple(params),
            default_plan=target.plan,
        ),
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
    # The plan stays until the end: no search for cyclic garbage need look through it.
    gc.freeze()
    try:
        with refusing(plan.sources):
            settled = run_plan(store, plan.loaded.plan, selection, request, tell, cancellation)
    finally:
        store.close()
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
    """Where several apply: interrupted, then an operator, a failure, a wait."""
    if received is not None:
        return 128 + received
    if settled.status is RunStatus.CANCELLED:
        return ExitCode.TERMINATED
    if settled.counts.get(Outcome.AMBIGUOUS):
        return ExitCode.OPERATOR
    if settled.status in (RunStatus.FAILED, RunStatus.PARTIAL):
        return ExitCode.NODE_FAILED
    if settled.status is RunStatus.SUSPENDED:
        return ExitCode.SUSPENDED
    return ExitCode.DONE


class _Locator:
    """Plan file and line of a node, for annotations; looked up only when a node failed."""

    def __init__(self, plan: LoadedPlan) -> None:
        self._plan = plan

    def find(self, name: NodeName) -> tuple[str, int] | None:
        base = name.partition("[")[0]
        for node in self._plan.loaded.plan.nodes:
            if node.name in (name, base):
                place = self._plan.sources.find(node.origin)
                return (place.path, place.span.line) if place.span is not None else None
        return None
