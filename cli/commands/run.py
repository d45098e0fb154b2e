"""`assay run`: loads, selects, runs, and shows what happens while it does.

Does not know how nodes are scheduled; the engine tells in events.
"""

from __future__ import annotations

from assay.cli.agreement import find_basis
from assay.cli.call import Call
from assay.cli.errors import UsageError
from assay.cli.execution import choose_renderer, execute
from assay.cli.loading import choose_nodes, load
from assay.cli.location import find_target
from assay.cli.plan_errors import write_diagnostics
from assay.cli.requests import make_request
from assay.engine.events import Warned


def perform(call: Call) -> int:
    values, out, err = call
    if values.flag("resume") and values.flag("new"):
        raise UsageError("`--resume` goes on with a run and `--new` starts over: give one of them")
    target = find_target(values.words)
    plan = load(target, values)
    selection = choose_nodes(plan, target.nodes, values.texts("tag"))
    basis = find_basis(target, values, plan.loaded)
    request = make_request(values, plan.loaded.plan, target.nodes, basis)
    if values.flag("dry_run"):
        from assay.cli.commands.why import tell_predictions

        return tell_predictions(plan, selection, request, values, out)
    if values.flag("resume"):
        from assay.cli.commands.resume import find_unfinished, resume

        run = find_unfinished(plan.loaded.root, plan.loaded.plan, request)
        if run is not None:
            return resume(plan.loaded.root, run, values, out, err)
    tell = choose_renderer(values, target, plan, out, err)
    for name, needed in selection.left_out:
        text = f"left out `{name}`, which has an effect: name it exactly to run it"
        if name != needed:
            text = f"left out `{name}`, which needs `{needed}`: name it exactly to run both"
        tell(Warned(text))
    if values.flag("json"):
        for warning in plan.loaded.warnings:
            tell(Warned(warning.message))
    else:
        write_diagnostics(plan.loaded.warnings, plan.sources, err)
    return execute(plan, selection, request, tell)
