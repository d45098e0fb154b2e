"""A plan as a graph for other programs: Graphviz DOT, Mermaid, JSON.

Pure. Every node has its index as id, so that no name needs to be a legal id; lines are
given one by one, for plans of any size.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from assay.cli.render.text import one_line
from assay.plans.canonical import JsonValue
from assay.plans.model import (
    Argv,
    Command,
    EdgeKind,
    EnvValue,
    Kind,
    Plain,
    Plan,
    Script,
    Secret,
    ValueRef,
)


def render_dot(plan: Plan, selected: Collection[int]) -> Iterator[str]:
    """Edges point from what comes first to what follows it."""
    yield f"digraph {_dot_text(plan.name)} {{\n  rankdir=LR;\n  node [shape=box];\n"
    for index in sorted(selected):
        node = plan.nodes[index]
        shape = {Kind.GROUP: ", shape=ellipse", Kind.TEMPLATE: ", style=dashed"}.get(node.kind, "")
        yield f"  n{index} [label={_dot_text(node.name)}{shape}];\n"
    for first, then, kind in _edges(plan, selected):
        style = "" if kind & EdgeKind.PATH else " [style=dashed]"
        yield f"  n{first} -> n{then}{style};\n"
    yield "}\n"


def render_mermaid(plan: Plan, selected: Collection[int]) -> Iterator[str]:
    """Edges point from what comes first to what follows it."""
    yield "flowchart LR\n"
    for index in sorted(selected):
        yield f'  n{index}["{_mermaid_text(plan.nodes[index].name)}"]\n'
    for first, then, kind in _edges(plan, selected):
        arrow = "-->" if kind & EdgeKind.PATH else "-.->"
        yield f"  n{first} {arrow} n{then}\n"


def render_json(plan: Plan, selected: Collection[int]) -> Iterator[str]:
    """One object: the plan's own facts and `nodes`, each on a line of its own."""
    head: dict[str, JsonValue] = {
        "name": plan.name,
        "file": plan.file,
        "digest": plan.digest,
        "generation": plan.generation,
        "default": None if plan.default is None else list(plan.default),
        "concurrency": {"steps": plan.steps, "agents": plan.agents},
        "resources": {
            each.name: {"amount": each.amount, "scope": each.scope.value} for each in plan.resources
        },
        "params": dict(plan.params),
        "outputs": {name: describe_ref(ref) for name, ref in plan.outputs},
    }
    yield json.dumps(head)[:-1] + ', "nodes": ['
    between = "\n"
    for index in sorted(selected):
        yield between + json.dumps(describe_node(plan, index))
        between = ",\n"
    yield "\n]}\n"


def describe_node(plan: Plan, index: int) -> dict[str, JsonValue]:
    """Everything the plan says of a node, in the words of the plan file."""
    node = plan.nodes[index]
    needs = plan.dependencies[index]
    return {
        "name": node.name,
        "kind": node.kind.value,
        "description": node.description,
        "tags": list(node.tags),
        "run": _describe_command(node.command),
        "workdir": node.workdir,
        "reads": [str(entry) for entry in node.reads],
        "writes": [str(entry) for entry in node.writes],
        "removes": list(node.removes),
        "tools": [tool.name for tool in node.tools],
        "env": {name: _describe_env(value) for name, value in node.env},
        "pass_env": list(node.pass_env),
        "when": node.when.value,
        "tier": node.tier.value,
        "boundary": node.boundary.value,
        "priority": node.priority,
        "timeout_seconds": node.timeout_seconds,
        "grace_seconds": node.grace_seconds,
        "attempts": node.retry.attempts,
        "resources": dict(node.resources),
        "locks": list(node.locks),
        "plan_key": plan.plan_keys[index],
        "follows": [
            {"node": plan.nodes[needed].name, "because": _describe_edge(kind)}
            for needed, kind in zip(needs, plan.edge_kinds[index], strict=True)
        ],
    }


def describe_ref(ref: ValueRef) -> dict[str, JsonValue]:
    return {"from": ref.node, "path": ".".join(ref.path)}


def _describe_command(command: Command | None) -> JsonValue:
    match command:
        case Argv():
            return list(command.argv)
        case Script():
            return command.script
        case None:
            return None


def _describe_env(value: EnvValue) -> JsonValue:
    match value:
        case Plain():
            return value.value
        case ValueRef():
            return describe_ref(value)
        case Secret():
            return {"secret": value.name, "keyed": value.keyed}


def _describe_edge(kind: EdgeKind) -> JsonValue:
    names = ((EdgeKind.AFTER, "after"), (EdgeKind.VALUE, "value"), (EdgeKind.PATH, "path"))
    return [name for flag, name in names if kind & flag]


def _edges(plan: Plan, selected: Collection[int]) -> Iterator[tuple[int, int, EdgeKind]]:
    chosen = set(selected)
    for index in sorted(chosen):
        kinds = plan.edge_kinds[index]
        for needed, kind in zip(plan.dependencies[index], kinds, strict=True):
            if needed in chosen:
                yield needed, index, kind


def _dot_text(text: str) -> str:
    escaped = one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _mermaid_text(text: str) -> str:
    shown = one_line(text).replace("#", "#35;").replace("&", "#amp;").replace('"', "#quot;")
    return shown.replace("<", "#lt;").replace(">", "#gt;")
