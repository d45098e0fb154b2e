"""Plan errors and warnings as the reader sees them: what, where, how to mend it.

Does not know what can be wrong with a plan. Positions are looked up here, when a
diagnostic is shown, and nowhere before.

    error: Node `bundle` reads `dist/app.js`, but no node writes it and it does not exist
      --> plan.toml:18:10
       |
    18 | reads = ["dist/app.js", "style.css"]
       |          ^^^^^^^^^^^^^
       = wanted by `release`, plan.toml:31:1

    hint: Did you mean `build/app.js`, written by `compile` (plan.toml:9:11)?
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from assay.cli.render.text import one_line, paint
from assay.plans.diagnostics import Diagnostic, Mark, Severity
from assay.plans.model import Origin
from assay.plans.positions import Span, find_span

_WIDEST_LINE = 120
"""Cells of a source line that are shown; minified JSON is cut around the mark."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a path as the reader can open it, and a span if one is known."""

    path: str
    span: Span | None

    def __str__(self) -> str:
        if self.span is None:
            return self.path
        return f"{self.path}:{self.span.line}:{self.span.column}"


@dataclass(frozen=True, slots=True)
class Sources:
    """The plan files that diagnostics point into: texts by `Origin.file`, the folder those
    names are relative to, and the one the reader stands in (both absolute)."""

    texts: Mapping[str, str]
    root: str = "/"
    cwd: str = "/"

    def find(self, origin: Origin, mark: Mark = Mark.VALUE) -> Place:
        text = self.texts.get(origin.file)
        span = None if text is None or not origin.keys else find_span(text, origin.keys, mark)
        return Place(self._path(origin.file), span)

    def place(self, diagnostic: Diagnostic) -> Place | None:
        origin = diagnostic.origin
        if origin is None:
            return None
        if diagnostic.line is not None:
            span = Span(diagnostic.line, diagnostic.column or 1, 1)
            return Place(self._path(origin.file), span)
        return self.find(origin, diagnostic.mark)

    def line(self, file: str, number: int) -> str | None:
        """Line `number` of a plan file, without its end."""
        lines = self.texts.get(file, "").removeprefix("\ufeff").split("\n", number)
        return lines[number - 1].removesuffix("\r") if number <= len(lines) else None

    def _path(self, file: str) -> str:
        if file == "-":
            return "<standard input>"
        return one_line(os.path.relpath(os.path.join(self.root, file), self.cwd))


def render_diagnostics(diagnostics: Iterable[Diagnostic], sources: Sources, *, colour: bool) -> str:
    """All of them, one blank line between two; ends with a line end unless empty."""
    return "\n".join(render_diagnostic(each, sources, colour=colour) for each in diagnostics)


def render_diagnostic(diagnostic: Diagnostic, sources: Sources, *, colour: bool) -> str:
    label = "error" if diagnostic.severity is Severity.ERROR else "warning"
    lines = [f"{paint(f'{label}:', label, colour)} {one_line(diagnostic.message)}"]
    place = sources.place(diagnostic)
    number = place.span.line if place is not None and place.span is not None else 0
    width = max(2, len(str(number)))
    margin = " " * width
    if place is not None:
        lines.append(f"{margin}{paint('-->', 'blue', colour)} {place}")
        if diagnostic.origin is not None and place.span is not None:
            lines += _excerpt(diagnostic.origin.file, place.span, sources, width, label, colour)
    for note in diagnostic.notes:
        where = "" if note.origin is None else f", {sources.find(note.origin)}"
        lines.append(f"{margin} {paint('=', 'blue', colour)} {one_line(note.text)}{where}")
    if diagnostic.hint:
        lines += ["", f"{paint('hint:', 'cyan', colour)} {one_line(diagnostic.hint)}"]
    return "\n".join(lines) + "\n"


def _excerpt(
    file: str, span: Span, sources: Sources, width: int, label: str, colour: bool
) -> list[str]:
    line = sources.line(file, span.line)
    if line is None:
        return []
    shown, before, marked = _cut_around(line, span)
    bar = paint("|", "blue", colour)
    number = paint(f"{span.line:>{width}}", "blue", colour)
    caret = paint("^" * max(1, marked), label, colour)
    margin = " " * width
    return [
        f"{margin} {bar}",
        f"{number} {bar} {shown}".rstrip(),
        f"{margin} {bar} {' ' * before}{caret}",
    ]


def _cut_around(line: str, span: Span) -> tuple[str, int, int]:
    """The line as shown, the cells before the mark, and the cells of the mark."""
    from rich.cells import cell_len

    start = min(span.column - 1, len(line))
    end = min(start + span.length, len(line))
    before, marked, after = (
        one_line(part.replace("\t", "    ")) for part in (line[:start], line[start:end], line[end:])
    )
    if cell_len(before) + cell_len(marked) + cell_len(after) > _WIDEST_LINE:
        if cell_len(before) > _WIDEST_LINE // 2:
            before = "..." + before[-(_WIDEST_LINE // 2) :]
        room = max(_WIDEST_LINE - len(before), 20)
        if len(marked) > room:
            marked, after = marked[:room], "..."
        elif len(after) > room - len(marked):
            after = after[: room - len(marked)] + "..."
    return before + marked + after, cell_len(before), cell_len(marked)
