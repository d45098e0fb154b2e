"""What a caller asks of a run, made from options, the plan and this process's own facts.

Does not run anything.
"""

from __future__ import annotations

import os

from assay.cli.errors import UsageError
from assay.cli.options import Values, read_params
from assay.engine.certificate import Basis
from assay.engine.run_request import RunRequest
from assay.plans.durations import POSITIVE_FORM, DurationError, parse_duration
from assay.plans.model import Plan


def make_request(
    values: Values, plan: Plan, nodes: tuple[str, ...], basis: Basis | None = None
) -> RunRequest:
    """`-j` wins over the plan's `steps`, which wins over the CPUs this process may use;
    the environment is a copy of this process's own."""
    return RunRequest(
        targets=nodes,
        tags=values.texts("tag"),
        jobs=values.number("jobs") or plan.steps or len(os.sched_getaffinity(0)),
        agents=values.number("agents") or plan.agents,
        fail_fast=values.flag("fail_fast"),
        fresh=values.flag("fresh"),
        strict=values.flag("strict"),
        new=values.flag("new"),
        deadline_seconds=read_deadline(values.text("deadline")),
        environ=dict(os.environ),
        params=read_params(values.texts("param")),
        basis=basis,
    )


def read_deadline(text: str) -> float | None:
    """Seconds of `--deadline`, None when it was not given. Raises UsageError."""
    if not text:
        return None
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        raise UsageError(f"`--deadline` must be {error}, not `{text}`") from None
    if not seconds:
        raise UsageError(f"`--deadline` must be {POSITIVE_FORM}, not `{text}`")
    return seconds
