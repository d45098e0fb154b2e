"""Nodes and drafts made by hand, for tests that need a plan without a plan file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from assay.plans.compile import Draft, compile_plan
from assay.plans.diagnostics import Diagnostic, PlanError
from assay.plans.entries import parse_entry
from assay.plans.model import (
    Argv,
    Entry,
    Kind,
    Node,
    NodeName,
    Origin,
    Plan,
    RelPath,
    Template,
)

ROOT = RelPath(".")


def entry(text: str) -> Entry:
    return parse_entry(text, ROOT)


def entries(*texts: str) -> tuple[Entry, ...]:
    return tuple(map(entry, texts))


def node(
    name: str,
    reads: Iterable[str | Entry] = (),
    writes: Iterable[str | Entry] = (),
    after: Iterable[str] = (),
    **more: Any,
) -> Node:
    """A step called `name` whose origin is that of `[nodes.NAME]` in plan.toml."""
    return Node(
        NodeName(name),
        more.pop("origin", Origin("plan.toml", ("nodes", name.partition("[")[0]))),
        command=more.pop("command", Argv(("true", name))),
        reads=tuple(e if isinstance(e, Entry) else entry(e) for e in reads),
        writes=tuple(e if isinstance(e, Entry) else entry(e) for e in writes),
        after=tuple(map(NodeName, after)),
        **more,
    )


def template(
    name: str,
    pattern: Iterable[str],
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    after: Iterable[str] = (),
) -> Node:
    """A `foreach` over written paths; `reads` and `writes` are the generalised ones."""
    return node(
        name, reads, writes, after, kind=Kind.TEMPLATE, template=Template(entries(*pattern), "{}")
    )


def draft(root: Path, **more: Any) -> Draft:
    known: dict[str, Any] = {
        "name": "handmade",
        "file": "plan.toml",
        "default": None,
        "steps": None,
        "agents": None,
        "resources": (),
        "outputs": (),
        "params": (),
        "plan_files": (RelPath("plan.toml"),),
        "root": str(root),
    }
    return Draft(**{**known, **more})


def compiled(root: Path, nodes: Sequence[Node], **more: Any) -> Plan:
    """The plan of `nodes`, which must have neither errors nor warnings."""
    plan, warnings = compile_plan(draft(root, **more), nodes, {})
    assert warnings == ()
    return plan


def complaints(root: Path, nodes: Sequence[Node], **more: Any) -> tuple[Diagnostic, ...]:
    """What compiling `nodes` fails with."""
    try:
        compile_plan(draft(root, **more), nodes, {})
    except PlanError as error:
        return error.diagnostics
    raise AssertionError("the plan compiled")


def messages(found: Iterable[Diagnostic]) -> list[str]:
    return [diagnostic.message for diagnostic in found]


def follows(plan: Plan, name: str) -> dict[str, str]:
    """The nodes that `name` follows, and why: `after`, `value`, `path`."""
    index = next(i for i, n in enumerate(plan.nodes) if n.name == name)
    return {
        plan.nodes[d].name: "|".join(sorted(str(flag.name).lower() for flag in kind))
        for d, kind in zip(plan.dependencies[index], plan.edge_kinds[index], strict=True)
    }
