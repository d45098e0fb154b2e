"""`assay plan`: shows the compiled plan. Runs nothing and looks at nothing but plan files
and the folders they match."""

from __future__ import annotations

from collections.abc import Iterable

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.loading import choose_nodes, load
from assay.cli.location import find_target
from assay.cli.plan_errors import write_diagnostics
from assay.cli.render.graphs import render_dot, render_json, render_mermaid
from assay.cli.render.tree import ASCII, UNICODE, render_tree


def perform(call: Call) -> int:
    values, out, err = call
    target = find_target(values.words)
    plan = load(target, values)
    write_diagnostics(plan.loaded.warnings, plan.sources, err)
    compiled = plan.loaded.plan
    tags = values.texts("tag")
    selected: Iterable[int] = range(len(compiled.nodes))
    if target.nodes or tags:
        selected = choose_nodes(plan, target.nodes, tags).indices
    chosen = frozenset(selected)
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
