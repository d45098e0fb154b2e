"""What of this machine a run is bound to: its platform, the tools of its nodes and the
caller's variables that are in their keys.

A run that goes on later compares it for the nodes that have not settled. Asks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from assay.engine.environment import LOCALE, CallerEnvironment, match_variables
from assay.engine.measuring import Unmeasurable
from assay.engine.toolchain import Toolchain, platform_name
from assay.plans.model import Node, ValueRef, argv_of

Surroundings = dict[str, str]
"""What it is (`platform`, `tool cc`, `env LANG`) to its digest, text or value."""


def describe_surroundings(
    nodes: Iterable[Node], toolchain: Toolchain, caller: CallerEnvironment
) -> Surroundings:
    """Of these nodes together. A node whose PATH is another node's value tells no tools: where
    they are found is not known before that has run."""
    found: Surroundings = {"platform": platform_name()}
    seen: set[tuple[object, ...]] = set()
    for node in nodes:
        if not _tells(node):
            continue
        first = "" if node.command is None else argv_of(node.command)[0]
        path = caller.search_path(node, {})
        signature = (first, node.tools, node.pass_env, path, node.workdir)
        # The caller's variables that `env` replaces are not in the node's key.
        own = tuple(name for name, _ in node.env)
        if (signature, own) in seen:
            continue
        seen.add((signature, own))
        for name, value in caller.passed(node).items():
            found[f"env {name}"] = value
        where = "" if path == caller.variables.get("PATH") else f" in {path}"
        try:
            versions = {tool.name: tool.version for tool in node.tools}
            for name, digest in toolchain.identify(node, {}).keyed.items():
                command = versions.get(name)
                how = "" if command is None else f" by `{' '.join(command)}`"
                is_local = "/" in name or (command is not None and "/" in command[0])
                place = f" from {node.workdir}" if is_local and node.workdir != "." else ""
                found[f"tool {name}{how}{place}{where}"] = digest
        except Unmeasurable as error:
            found[f"tool {first}{where}"] = str(error)
    return found


def find_differences(
    before: Mapping[str, str], now: Surroundings, nodes: Iterable[Node]
) -> list[tuple[str, str, str]]:
    """(what, before, now) for everything about these nodes that is another one now."""
    variables = {name[4:]: value for name, value in before.items() if name.startswith("env ")}
    relevant = set(now)
    for node in nodes:
        if not _tells(node):
            continue
        own = {name for name, _ in node.env}
        passed = match_variables(variables, node.pass_env + LOCALE)
        relevant.update(f"env {name}" for name in passed.keys() - own)
    found: list[tuple[str, str, str]] = []
    for name in sorted(relevant):
        was, is_now = before.get(name), now.get(name)
        # What nobody looked at then cannot have changed; a variable was unset.
        if was != is_now and (was is not None or name.startswith("env ")):
            found.append((name, _show(was), _show(is_now)))
    return found


def _tells(node: Node) -> bool:
    """Whether it is known before the run what the node is bound to."""
    return node.command is not None and not any(
        name == "PATH" and isinstance(value, ValueRef) for name, value in node.env
    )


def _show(value: str | None) -> str:
    return "unset" if value is None else value
