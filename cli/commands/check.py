"""`assay check`: compiles a plan and lists everything that is wrong with it. Runs nothing."""

from __future__ import annotations

import json

from assay.cli.call import Call
from assay.cli.errors import ExitCode, RefusedPlan, UsageError
from assay.cli.loading import load
from assay.cli.location import find_target
from assay.cli.plan_errors import describe_diagnostic, write_diagnostics
from assay.cli.render.diagnostics import Sources
from assay.cli.render.stream import Stream
from assay.cli.render.text import count, one_line
from assay.plans.diagnostics import Diagnostic


def perform(call: Call) -> int:
    values, out, err = call
    target = find_target(values.words)
    if target.nodes:
        raise UsageError(f"`{target.nodes[0]}` is no plan file: its name ends in .toml or .json")
    if not values.flag("json"):
        plan = load(target, values)
        write_diagnostics(plan.loaded.warnings, plan.sources, err)
        nodes = count(len(plan.loaded.plan.nodes), "node")
        warnings = len(plan.loaded.warnings)
        found = count(warnings, "warning") if warnings else "no errors"
        out.write(f"{one_line(plan.loaded.plan.file)}: {nodes}, {found}\n")
        return ExitCode.DONE
    try:
        plan = load(target, values)
    except RefusedPlan as refused:
        _write_json(out, False, refused.diagnostics, refused.sources)
        return ExitCode.USAGE
    _write_json(out, True, plan.loaded.warnings, plan.sources)
    return ExitCode.DONE


def _write_json(
    out: Stream, ok: bool, diagnostics: tuple[Diagnostic, ...], sources: Sources
) -> None:
    described = [describe_diagnostic(each, sources) for each in diagnostics]
    out.write(json.dumps({"ok": ok, "diagnostics": described}, indent=2) + "\n")
