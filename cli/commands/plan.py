"""`assay plan`: shows the compiled plan, of the plan file or as a run has kept it. Runs
nothing and looks at nothing but plan files and the folders they match, or the store."""

from __future__ import annotations

from collections.abc import Iterable

from assay.cli.call import Call
from assay.cli.errors import ExitCode, HostError, UsageError
from assay.cli.history import reading_store
from assay.cli.loading import choose_nodes, load, refusing
from assay.cli.location import find_target
from assay.cli.plan_errors import write_diagnostics
from assay.cli.render.diagnostics import Sources
from assay.cli.render.graphs import render_dot, render_json, render_mermaid
from assay.cli.render.tree import ASCII, UNICODE, render_tree
from assay.plans.model import Digest, Plan
from assay.plans.selection import select
from assay.plans.stored import DamagedPlan, plan_from_bytes


def perform(call: Call) -> int:
    values, out, _ = call
    compiled, chosen = choose_stored(call) if values.text("run") else choose_from_file(call)
    match values.text("format"):
        case "tree":
            strokes = UNICODE if out.has_unicode else ASCII
            lines = render_tree(compiled, chosen, strokes=strokes, colour=out.colour)
        case "json":
            lines = render_json(compiled, chosen)
        case "dot":
            lines = render_dot(compiled, chosen)
        case "mermaid":
            lines = render_mermaid(compiled, chosen)
        case other:
            raise AssertionError(f"the table of options allows no format {other}")
    for line in lines:
        if out.failure is not None:
            break
        out.write(line)
    return ExitCode.DONE


def choose_from_file(call: Call) -> tuple[Plan, frozenset[int]]:
    """The plan file's plan and the nodes to show."""
    values, _, err = call
    target = find_target(values.words)
    plan = load(target, values)
    write_diagnostics(plan.loaded.warnings, plan.sources, err)
    tags = values.texts("tag")
    selected: Iterable[int] = range(len(plan.loaded.plan.nodes))
    if target.nodes or tags:
        selected = choose_nodes(plan, target.nodes, tags).indices
    return plan.loaded.plan, frozenset(selected)


def choose_stored(call: Call) -> tuple[Plan, frozenset[int]]:
    """The plan a run was made with, which later edits of the file do not change; verified
    against its digest."""
    values = call.values
    if values.texts("param"):
        raise UsageError("`-p` says nothing about the plan of a run that was")
    with reading_store() as store:
        row = store.runs.find(values.text("run"))
        stored = store.runs.load_plan(row.plan_digest)
    if stored is None:
        raise UsageError(f"The plan of run {row.id} is not kept")
    try:
        plan = plan_from_bytes(stored, Digest(row.plan_digest))
    except DamagedPlan as error:
        raise HostError(str(error)) from None
    tags = values.texts("tag")
    if not values.words and not tags:
        return plan, frozenset(range(len(plan.nodes)))
    with refusing(Sources({}, ".")):
        return plan, frozenset(select(plan, values.words, tags).indices)
