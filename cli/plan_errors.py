"""Shows why a plan was refused, and what it was warned about.

Does not know how plans are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.cli.errors import ExitCode
from assay.cli.render import github
from assay.cli.render.diagnostics import Sources, render_diagnostics
from assay.cli.render.lines import is_github
from assay.cli.render.stream import Stream
from assay.cli.render.text import one_line
from assay.plans.canonical import JsonValue
from assay.plans.diagnostics import Diagnostic, Severity


def report_refused_plan(
    diagnostics: Sequence[Diagnostic], sources: Sources, err: Stream
) -> ExitCode:
    """All diagnostics on standard error; in GitHub Actions annotations too."""
    write_diagnostics(diagnostics, sources, err)
    return ExitCode.USAGE


def write_diagnostics(diagnostics: Sequence[Diagnostic], sources: Sources, err: Stream) -> None:
    err.write(render_diagnostics(diagnostics, sources, colour=err.colour))
    if is_github(os.environ):
        for diagnostic in diagnostics[: github.MOST_ANNOTATIONS]:
            err.write(_annotate(diagnostic, sources))


def describe_diagnostic(diagnostic: Diagnostic, sources: Sources) -> dict[str, JsonValue]:
    """A diagnostic for `--json`; `line` and `column` are 1-based or null."""
    place = sources.place(diagnostic)
    span = place.span if place is not None else None
    return {
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        "file": place.path if place is not None else None,
        "line": span.line if span is not None else None,
        "column": span.column if span is not None else None,
        "hint": diagnostic.hint,
        "notes": [note.text for note in diagnostic.notes],
    }


def _annotate(diagnostic: Diagnostic, sources: Sources) -> str:
    place = sources.place(diagnostic)
    span = place.span if place is not None else None
    return github.annotation(
        one_line(diagnostic.message),
        level="error" if diagnostic.severity is Severity.ERROR else "warning",
        file=place.path if place is not None else None,
        line=span.line if span is not None else None,
        column=span.column if span is not None else None,
    )
