"""What is wrong with a plan's shape, in words people use.

Turns the validator's findings into diagnostics; the validator's own sentences are never
shown. Does not know what keys have to do with each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from pydantic_core import ErrorDetails

from assay.plans.diagnostics import Diagnostic, Mark, shown, suggest
from assay.plans.durations import FORM
from assay.plans.model import Origin
from assay.plans.phrases import LONGEST_SHOWN, Keys, describe, dotted, subject
from assay.plans.schema import (
    LOCATION_TAGS,
    NODE_KEYS,
    PLAN_KEYS,
    WRONG_SHAPE,
    CacheTable,
    ConcurrencyDecl,
    LiteralPathDecl,
    PathDecl,
    RemoteDecl,
    ResourceTable,
    RetryDecl,
    SecretDecl,
    ToolTable,
    ValueRefDecl,
    WaitTable,
)

TYPES: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "bool_type": "true or false",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "a table",
}
"""Pydantic's error types and what they ask for."""

NODE_WORDS: Final = {
    "args": "run",
    "cmd": "run",
    "cmds": "run",
    "command": "run",
    "commands": "run",
    "script": "run",
    "exec": "run",
    "deps": "after",
    "dep": "after",
    "depends": "after",
    "depends_on": "after",
    "dependencies": "after",
    "needs": "after",
    "inputs": "reads",
    "input": "reads",
    "sources": "reads",
    "srcs": "reads",
    "files": "reads",
    "read": "reads",
    "outputs": "writes",
    "output": "writes",
    "outs": "writes",
    "targets": "writes",
    "generates": "writes",
    "products": "writes",
    "write": "writes",
    "cwd": "workdir",
    "dir": "workdir",
    "working_directory": "workdir",
    "environment": "env",
    "vars": "env",
    "retries": "retry",
    "desc": "description",
    "label": "tags",
    "labels": "tags",
    "mutex": "locks",
    "passthrough_env": "pass_env",
}
"""What other tools call a key of a node."""

PLAN_WORDS: Final = {
    "tasks": "nodes",
    "task": "nodes",
    "jobs": "nodes",
    "steps": "nodes",
    "targets": "nodes",
    "rules": "nodes",
    "includes": "include",
    "import": "include",
    "vars": "params",
    "variables": "params",
    "environment": "env",
}

INNER_TABLES: Final[dict[str | int, Iterable[str]]] = {
    "retry": RetryDecl.__annotations__,
    "cache": CacheTable.__annotations__,
    "wait": WaitTable.__annotations__,
    "concurrency": ConcurrencyDecl.__annotations__,
    "remote": RemoteDecl.__annotations__,
}
INNER_ITEMS: Final[dict[str | int, Iterable[str]]] = {
    "reads": PathDecl.__annotations__,
    "writes": PathDecl.__annotations__,
    "foreach": PathDecl.__annotations__,
    "removes": LiteralPathDecl.__annotations__,
    "tools": ToolTable.__annotations__,
    "resources": ResourceTable.__annotations__,
    "env": (*ValueRefDecl.__annotations__, *SecretDecl.__annotations__),
    "outputs": ValueRefDecl.__annotations__,
}
"""The keys of a table inside a node or the plan, by its own key or by that around it."""

_CHOICE = re.compile(r"'([^']*)'")


def assign(key: str | int, value: str, *, as_json: bool) -> str:
    """A pair as it is written in the file's language."""
    return f'"{key}": {value}' if as_json else f"{key} = {value}"


def explain_shape(
    errors: Iterable[ErrorDetails], data: object, file: str, *, as_json: bool
) -> list[Diagnostic]:
    """One diagnostic for each fault the validator found in `data`."""
    placed = [(find_keys(error["loc"], data), error) for error in errors]
    unknown = {keys[:-1] for keys, error in placed if error["type"] == "extra_forbidden"}
    found: list[Diagnostic] = []
    for keys, error in placed:
        origin = Origin(file, keys)
        match error["type"]:
            case "extra_forbidden":
                found.append(_explain_unknown_key(keys, file))
            case "missing":
                # An unknown key beside it is most likely the missing one, misspelt.
                if keys not in unknown:
                    needed = str(error["loc"][-1])
                    both = "`from` or `secret`" if needed == "from" and "env" in keys else None
                    message = f"{subject(keys)} needs {both or f'`{needed}`'}"
                    found.append(Diagnostic(message, origin))
            case _:
                words, hint = _explain_value(keys, error, as_json=as_json)
                found.append(Diagnostic(f"{subject(keys)} {words}", origin, hint=hint))
    return found


def find_keys(location: Sequence[str | int], data: object) -> Keys:
    """The key path of an error location, which names the form of a value in between; for
    a missing key, the table that lacks it."""
    keys: list[str | int] = []
    for part in location:
        if isinstance(data, dict) and part in data:  # noqa: SIM114  (two types to mypy)
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif part in LOCATION_TAGS or isinstance(data, dict):
            continue
        else:
            break
        keys.append(part)
    return tuple(keys)


def _explain_unknown_key(keys: Keys, file: str) -> Diagnostic:
    key, table = str(keys[-1]), keys[:-1]
    message = f"Unknown key `{shown(key)}`"
    if not table:
        hint = _hint_plan_key(key)
    elif table == ("defaults",):
        message += " in `[defaults]`"
        hint = _hint_node_key(key)
    elif len(table) == 2 and table[0] == "nodes":
        message += f" in node `{shown(str(table[1]))}`"
        hint = _hint_node_key(key)
    else:
        message += f" in {subject(table)}"
        hint = _hint_inner_key(key, table)
    return Diagnostic(message, Origin(file, keys), Mark.KEY, hint)


def _hint_plan_key(key: str) -> str | None:
    meant = PLAN_WORDS.get(key.lower()) or suggest(key, PLAN_KEYS)
    if key in NODE_KEYS:
        return f"`{key}` is a key of a node: write it below `[nodes.NAME]` or `[defaults]`."
    return _did_you_mean(meant)


@lru_cache(maxsize=256)
def _hint_node_key(key: str) -> str | None:
    if key in ConcurrencyDecl.__annotations__:
        return f"`{key}` belongs in `[concurrency]`."
    if key in NODE_WORDS:
        return _did_you_mean(NODE_WORDS[key])
    if key in PLAN_KEYS:
        return f"`{key}` is a key of the plan: write it above the first `[table]`."
    return _did_you_mean(NODE_WORDS.get(key.lower()) or suggest(key, NODE_KEYS))


def _hint_inner_key(key: str, table: Keys) -> str | None:
    known = INNER_TABLES.get(table[-1])
    if known is None and len(table) > 1:
        known = INNER_ITEMS.get(table[-2])
    meant = suggest(key, known) if known else None
    return _did_you_mean(meant) or _hint_misplaced(key, table)


def _hint_misplaced(key: str, table: Keys) -> str | None:
    """For a key of the node or the plan that a table header before it took in."""
    depth = {"nodes": 2, "defaults": 1}.get(str(table[0]))
    if depth is None:
        if key not in PLAN_KEYS:
            return None
        return f"`{key}` is a key of the plan: write it above the first `[table]`."
    if key not in NODE_KEYS or len(table) <= depth:
        return None
    return f"`{key}` is a key of the node itself: write it above `[{dotted(table)}]`."


def _did_you_mean(meant: str | None) -> str | None:
    return f"Did you mean `{meant}`?" if meant else None


def _explain_value(keys: Keys, error: ErrorDetails, *, as_json: bool) -> tuple[str, str | None]:
    """The rest of the sentence that `subject(keys)` starts, and a hint."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    hint = None
    if kind in TYPES:
        wanted = TYPES[kind]
        hint = _hint_type(kind, keys, value, as_json=as_json)
    elif kind == WRONG_SHAPE:
        wanted = error["msg"]
        if wanted == FORM and type(value) is int and 0 < value < 10**9:
            hint = _write(keys, f'"{value}s"', as_json=as_json)
    elif kind == "literal_error":
        choices = _CHOICE.findall(str(context["expected"]))
        quoted = [f'"{choice}"' for choice in choices]
        wanted = f"{', '.join(quoted[:-1])} or {quoted[-1]}"
        meant = suggest(value.lower(), choices) if isinstance(value, str) else None
        hint = f'Did you mean `"{meant}"`?' if meant else None
    elif kind in {"too_short", "string_too_short"}:
        return "must not be empty", None
    elif kind == "finite_number":
        wanted = "a finite number"
    elif kind == "greater_than_equal":
        least = context["ge"]
        is_count = least == 1 and isinstance(value, int)
        wanted = "a positive integer" if is_count else f"at least {describe(least)}"
    elif kind == "less_than_equal":
        wanted = f"at most {context['le']}"
    else:
        return "cannot be understood", None
    if hint is None and len(keys) > 1 and kind in (*TYPES, WRONG_SHAPE):
        hint = _hint_misplaced(str(keys[-1]), keys[:-1])
    return f"must be {wanted}, not {describe(value)}", hint


def _hint_type(kind: str, keys: Keys, value: object, *, as_json: bool) -> str | None:
    """How to write what was most likely meant."""
    key = keys[-1] if keys else ""
    text = value if isinstance(value, str) and len(value) < LONGEST_SHOWN else None
    quoted = None if text is None else json.dumps(text, ensure_ascii=False)
    number = type(value) is int and 0 < value < 10**9
    meant: str | None = None
    match kind:
        case "list_type" if quoted is not None:
            meant = f"[{quoted}]"
        case "string_type" if isinstance(value, (bool, int, float)):
            meant = f'"{describe(value)}"' if number or not isinstance(value, int) else None
        case "int_type" if text is not None and text.isascii() and text.isdigit():
            meant = text.lstrip("0") or "0"
        case "bool_type" if text in {"true", "false"}:
            meant = text
        case "dict_type" if key == "retry" and number:
            meant = f"{{ {assign('attempts', str(value), as_json=as_json)} }}"
        case "dict_type" if len(keys) == 2 and keys[0] == "nodes" and quoted is not None:
            meant = f"{{ {assign('run', quoted, as_json=as_json)} }}"
    return None if meant is None else _write(keys, meant, as_json=as_json)


def _write(keys: Keys, value: str, *, as_json: bool) -> str:
    key = keys[-1]
    written = value if isinstance(key, int) else assign(key, value, as_json=as_json)
    return f"Write `{written}`."
