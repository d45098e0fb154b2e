"""Plan files written, loaded and refused by tests, with complaints as short comparable lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from assay.plans.diagnostics import Diagnostic, PlanError
from assay.plans.load import Loaded, LoadRequest, load_plan
from assay.plans.model import Argv, Node, Script
from assay.plans.positions import find_span


def write_file(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load_text(
    root: Path, text: str, name: str = "plan.toml", params: Iterable[tuple[str, str]] = ()
) -> Loaded:
    """Writes `text` as the plan file and loads it."""
    write_file(root, name, text)
    return load_plan(LoadRequest(name, params=tuple(params), cwd=str(root)))


def refuse_text(
    root: Path, text: str, name: str = "plan.toml", params: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """What is said about a plan that must not load, one line each: see `lines_of`."""
    try:
        load_text(root, text, name, params)
    except PlanError as error:
        return lines_of(error.diagnostics, error.sources)
    raise AssertionError("the plan loads")


def lines_of(diagnostics: Iterable[Diagnostic], sources: dict[str, str]) -> list[str]:
    """`plan.toml:3:1: message (hint)`; warnings start with `warning: `."""
    return [_line_of(diagnostic, sources) for diagnostic in diagnostics]


def _line_of(diagnostic: Diagnostic, sources: dict[str, str]) -> str:
    where = ""
    if diagnostic.origin is not None:
        where = diagnostic.origin.file
        line, column = diagnostic.line, diagnostic.column
        if line is None:
            text = sources[diagnostic.origin.file]
            span = find_span(text, diagnostic.origin.keys, diagnostic.mark)
            line, column = (span.line, span.column) if span is not None else (None, None)
        where += "" if line is None else f":{line}:{column}"
        where += ": "
    label = "" if diagnostic.severity == "error" else "warning: "
    hint = "" if diagnostic.hint is None else f" ({diagnostic.hint})"
    return f"{label}{where}{diagnostic.message}{hint}"


def node_named(loaded: Loaded, name: str) -> Node:
    return next(node for node in loaded.plan.nodes if node.name == name)


def command_of(node: Node) -> tuple[str, ...] | str | None:
    """The argv, or the script's text."""
    match node.command:
        case Argv(argv):
            return argv
        case Script(script, _):
            return script
    return None


def entries_of(entries: Iterable[object]) -> list[str]:
    return [str(entry) for entry in entries]
