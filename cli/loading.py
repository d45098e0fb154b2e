"""From PLAN and NODE words to a loaded plan and a selection, with errors that can be shown.

Does not know what is done with the plan. Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from assay.cli.errors import RefusedPlan, UsageError
from assay.cli.location import Target
from assay.cli.options import Values, read_params
from assay.cli.render.diagnostics import Sources
from assay.plans.diagnostics import PlanError
from assay.plans.load import Loaded, LoadRequest, load_plan
from assay.plans.selection import Selection, select


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A loaded plan and how to point into its files."""

    loaded: Loaded
    sources: Sources


def load(target: Target, values: Values) -> LoadedPlan:
    """Raises RefusedPlan with all errors of the plan."""
    request = LoadRequest(
        path=target.plan,
        params=read_params(values.texts("param")),
        cwd=target.cwd,
        stdin=target.stdin,
        boundary=values.text("boundary") or None,
    )
    try:
        loaded = load_plan(request)
    except PlanError as error:
        raise RefusedPlan(error.diagnostics, _guess_sources(error, target)) from None
    cwd = os.path.realpath(target.cwd)
    return LoadedPlan(loaded, Sources(loaded.sources, loaded.root, cwd))


def choose_nodes(plan: LoadedPlan, nodes: Sequence[str], tags: Sequence[str] = ()) -> Selection:
    """The selection that NODEs and tags mean. Raises RefusedPlan where one matches nothing,
    UsageError where nothing at all is selected."""
    with refusing(plan.sources):
        selection = select(plan.loaded.plan, nodes, tags)
    if not selection.indices and selection.left_out:
        name, needed = selection.left_out[0]
        what = "has an effect" if name == needed else f"needs `{needed}`, which has an effect"
        raise UsageError(
            f"No node is selected: `{name}` {what}",
            hint=f"Patterns and tags select no effects: name `{name}` exactly to run it",
        )
    if not selection.indices:
        raise UsageError("No node is selected", hint="`assay plan` shows the nodes there are")
    return selection


@contextmanager
def refusing(sources: Sources) -> Iterator[None]:
    """Turns plan errors into ones that can be shown."""
    try:
        yield
    except PlanError as error:
        raise RefusedPlan(error.diagnostics, sources) from None


def _guess_sources(error: PlanError, target: Target) -> Sources:
    """A plan that did not load has told no root: the plan file's name as the errors give
    it, taken from the end of its path, leaves the root."""
    path = os.path.normpath(os.path.join(target.cwd, target.plan))
    for file in error.sources:
        if path.endswith("/" + file):
            return Sources(error.sources, path.removesuffix(file), target.cwd)
    return Sources(error.sources, target.cwd, target.cwd)
