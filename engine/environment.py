"""The environment a node's command sees, and the part of it that is in the key.

The caller's environment does not leak: a node gets what the plan declares, what
`pass_env` names, and two short lists. The caller's variables arrive as an argument;
this module never reads `os.environ`.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from typing import Final, assert_never

from assay.engine.states import AttemptId
from assay.plans.canonical import JsonValue, canonical_json
from assay.plans.model import Node, Plain, Secret, ValueRef

AMBIENT: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
)
"""Passed to every node, in no key."""

LOCALE: Final = ("LANG", "LC_*", "TZ")
"""Passed to every node and keyed: they change what tools print and how they sort."""

_VARIABLE: Final = re.compile(r"(?<![A-Za-z0-9_])[A-Z_][A-Z0-9_]{2,}(?![A-Za-z0-9_])")

SHORTEST_SECRET_BYTES: Final = 6
"""Masking anything shorter would blank out ordinary text."""


class Refused(Exception):
    """A node that cannot be dispatched; the text says why in one sentence."""


class CallerEnvironment:
    """What one caller's variables mean for each node. Patterns are matched once."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._ambient: dict[str, str] = {
            name: self.variables[name] for name in AMBIENT if name in self.variables
        }
        self.matched: dict[tuple[str, ...], dict[str, str]] = {}
        """Every list of patterns asked for, and the variables it matched."""

    def passed(self, node: Node) -> dict[str, str]:
        """The caller's variables that reach `node` and are in its key."""
        found = self._match(node.pass_env + LOCALE)
        if node.env and found:
            own = {name for name, _ in node.env}
            return {name: value for name, value in found.items() if name not in own}
        return found

    def search_path(self, node: Node, values: Mapping[str, JsonValue]) -> str:
        """The PATH the node's command is looked up in; `values` as `for_child` takes them."""
        path = self.variables.get("PATH")
        for name, value in node.env:
            if name != "PATH":
                continue
            match value:
                case Plain():
                    path = value.value
                case Secret():
                    path = self.variables.get(value.name)
                case ValueRef():
                    exported = values[name]
                    path = None if exported is None else export_value(exported)
                case _:
                    assert_never(value)
        return os.defpath if path is None else path

    def secrets(self, node: Node) -> dict[str, str]:
        """Variable to secret value. Raises Refused for one that is unset or too short."""
        found: dict[str, str] = {}
        for name, value in node.env:
            if isinstance(value, Secret):
                secret = self.variables.get(value.name)
                if secret is None:
                    raise Refused(
                        f"needs the secret `{value.name}`, which is not set in the environment"
                    )
                if len(secret.encode("utf-8", "surrogateescape")) < SHORTEST_SECRET_BYTES:
                    raise Refused(
                        f"the secret `{value.name}` is shorter than {SHORTEST_SECRET_BYTES} bytes"
                        " and cannot be masked"
                    )
                found[name] = secret
        return found

    def for_child(
        self, node: Node, values: Mapping[str, JsonValue], secrets: Mapping[str, str]
    ) -> dict[str, str]:
        """The whole environment of the node's command but for TMPDIR and `ASSAY_*`."""
        child: dict[str, str] = {**self._ambient, **self.passed(node)}
        for name, value in node.env:
            match value:
                case Plain():
                    child[name] = value.value
                case Secret():
                    child[name] = secrets[name]
                case ValueRef():
                    exported = values[name]
                    if exported is None:
                        child.pop(name, None)
                    else:
                        child[name] = export_value(exported)
                case _:
                    assert_never(value)
        return child

    def find_unpassed(self, node: Node, output: str) -> str | None:
        """The first variable that `output` speaks of and the caller has, but the node was
        not given: probably what it missed."""
        own = {name for name, _ in node.env}
        given = own | self._ambient.keys() | self.passed(node).keys()
        for name in _VARIABLE.findall(output):
            if name in self.variables and name not in given:
                return str(name)
        return None

    def bare(self, path: str) -> dict[str, str]:
        """The environment of a tool's version command: the ambient list and the locale."""
        return {**self._ambient, **self._match(LOCALE), "PATH": path}

    def _match(self, patterns: tuple[str, ...]) -> dict[str, str]:
        found = self.matched.get(patterns)
        if found is None:
            found = self.matched[patterns] = match_variables(self.variables, patterns)
        return found


def find_parent(variables: Mapping[str, str]) -> AttemptId | None:
    """The attempt, or its undo, whose command the caller is part of."""
    name = variables.get("ASSAY_ATTEMPT")
    return AttemptId(name) if name else None


def match_variables(variables: Mapping[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    """The variables that any of the names or globs names."""
    return {
        name: value
        for name, value in variables.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def export_value(value: JsonValue) -> str:
    """A node's value as an environment variable: strings raw, other JSON canonically."""
    return value if isinstance(value, str) else canonical_json(value).decode()


def project(value: JsonValue, path: tuple[str, ...]) -> JsonValue:
    """The part of a node's value that `path` names. Raises KeyError when it is missing."""
    for step in path:
        if isinstance(value, Mapping):
            value = value[step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise KeyError(step)
    return value
