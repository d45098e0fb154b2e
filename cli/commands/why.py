"""`assay why` and `assay run --dry-run`: what would run, and which part of its key changed.

Does not know how keys are made; the engine predicts. Writes nothing.
"""

from __future__ import annotations

import json
import time

from assay.cli.call import Call
from assay.cli.errors import ExitCode, UsageError
from assay.cli.loading import LoadedPlan, choose_nodes, load
from assay.cli.location import find_target
from assay.cli.options import Values
from assay.cli.plan_errors import write_diagnostics
from assay.cli.render.json_events import JsonRenderer
from assay.cli.render.predictions import (
    describe_prediction,
    render_explanation,
    render_predictions,
)
from assay.cli.render.stream import Stream
from assay.cli.requests import make_request
from assay.engine.prediction import Prediction, predict
from assay.engine.run_request import RunRequest
from assay.engine.store import Store
from assay.engine.store_errors import StoreUnreadable
from assay.plans.selection import Selection


def perform(call: Call) -> int:
    values, out, err = call
    target = find_target(values.words)
    if not target.nodes:
        raise UsageError("`assay why` needs the name of a node", hint="`assay plan` shows them")
    plan = load(target, values)
    write_diagnostics(plan.loaded.warnings, plan.sources, err)
    selection = choose_nodes(plan, target.nodes)
    request = make_request(values, plan.loaded.plan, target.nodes)
    wanted = {plan.loaded.plan.nodes[index].name for index in selection.targets}
    predictions = ask(plan, selection, request)
    # Instances of a `foreach` over written paths are known only now.
    named = [each for each in predictions if each.node in target.nodes]
    found = named or [
        each for each in predictions if each.node in wanted or each.node.partition("[")[0] in wanted
    ]
    if values.flag("json"):
        out.write(json.dumps([describe_prediction(each) for each in found], indent=2) + "\n")
    else:
        out.write(
            "\n".join(render_explanation(each, time.time(), colour=out.colour) for each in found)
        )
    return ExitCode.DONE


def tell_predictions(
    plan: LoadedPlan, selection: Selection, request: RunRequest, values: Values, out: Stream
) -> int:
    """What `run --dry-run` prints: every selected node in plan order."""
    predictions = ask(plan, selection, request)
    if values.flag("json"):
        renderer = JsonRenderer(out, time.time)
        for each in predictions:
            renderer.write("predicted", describe_prediction(each))
        return ExitCode.DONE
    for line in render_predictions(predictions, colour=out.colour, all_clean=not out.is_terminal):
        if out.failure is not None:
            break
        out.write(line)
    return ExitCode.DONE


def ask(plan: LoadedPlan, selection: Selection, request: RunRequest) -> tuple[Prediction, ...]:
    """The engine's predictions, from a store that is only read; one that cannot be read is
    of no use to a run either."""
    try:
        store = Store.open_for_reading(plan.loaded.root)
    except StoreUnreadable:
        store = None
    try:
        return predict(store, plan.loaded.plan, selection, request, plan.loaded.root)
    finally:
        if store is not None:
            store.close()
