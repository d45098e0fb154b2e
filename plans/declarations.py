"""A node's declaration as a JSON value, and back.

What plan keys are made of and what the store keeps. Fields at their default are left out,
so that a new key in a later version changes no existing plan key. Forms:

    entry      "=a/b" a file, "/dist" a tree, "*src/*.c" a glob; in front of that `!` for an
               exclusion and `?` for an optional entry
    command    {"argv": [...]} or {"script": TEXT, "shell": [...]}
    env        {NAME: TEXT or {"from": NODE, "path": [...]} or {"secret": NAME, "keyed": BOOL}}

Does not know plans, edges or keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final, assert_never, cast

from assay.plans.canonical import JsonValue
from assay.plans.model import (
    Argv,
    Background,
    Boundary,
    CachePolicy,
    CacheScope,
    Command,
    Entry,
    EntryKind,
    EnvValue,
    Kind,
    Node,
    NodeName,
    Origin,
    Plain,
    RelPath,
    ResultKind,
    Retry,
    Script,
    Secret,
    Template,
    Tier,
    Tool,
    ValueRef,
    When,
)

_SIGNS: Final = {EntryKind.FILE: "=", EntryKind.TREE: "/", EntryKind.GLOB: "*"}
_KINDS: Final = {sign: kind for kind, sign in _SIGNS.items()}


@cache
def encode_entry(entry: Entry) -> str:
    flags = ("!" if entry.exclude else "") + ("?" if entry.optional else "")
    return flags + _SIGNS[entry.kind] + entry.path


@cache
def decode_entry(text: str) -> Entry:
    at = 0
    exclude = optional = False
    while text[at] in "!?":
        exclude, optional = exclude or text[at] == "!", optional or text[at] == "?"
        at += 1
    return Entry(_KINDS[text[at]], RelPath(text[at + 1 :]), exclude, optional)


def _encode_entries(entries: tuple[Entry, ...]) -> JsonValue:
    return [encode_entry(entry) for entry in entries]


def _decode_entries(value: Any) -> tuple[Entry, ...]:
    return tuple(map(decode_entry, value))


def _encode_command(command: Command) -> JsonValue:
    if isinstance(command, Argv):
        return {"argv": command.argv}
    return {"script": command.script, "shell": command.shell}


def _decode_command(value: Any) -> Command:
    if "argv" in value:
        return Argv(tuple(value["argv"]))
    return Script(value["script"], tuple(value["shell"]))


def encode_env_value(value: EnvValue) -> JsonValue:
    match value:
        case Plain():
            return value.value
        case ValueRef():
            return {"from": value.node, "path": value.path}
        case Secret():
            return {"secret": value.name, "keyed": value.keyed}
        case _:
            assert_never(value)


def decode_env_value(value: Any) -> EnvValue:
    if isinstance(value, str):
        return Plain(value)
    if "from" in value:
        return ValueRef(NodeName(value["from"]), tuple(value["path"]))
    return Secret(value["secret"], value["keyed"])


def _encode_env(env: tuple[tuple[str, EnvValue], ...]) -> JsonValue:
    return {name: encode_env_value(value) for name, value in env}


def _decode_env(value: Any) -> tuple[tuple[str, EnvValue], ...]:
    return tuple(sorted((name, decode_env_value(item)) for name, item in value.items()))


def _encode_tools(tools: tuple[Tool, ...]) -> JsonValue:
    return [[tool.name, tool.version] for tool in tools]


def _decode_tools(value: Any) -> tuple[Tool, ...]:
    return tuple(Tool(name, None if v is None else tuple(v)) for name, v in value)


def _encode_seconds(seconds: float | None) -> JsonValue:
    """Whole seconds as an integer, which is the same number in canonical JSON."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds


def _decode_seconds(value: Any) -> float | None:
    return None if value is None else float(value)


def _encode_retry(retry: Retry) -> JsonValue:
    times = (retry.backoff_seconds, retry.factor, retry.max_backoff_seconds)
    return [retry.attempts, *map(_encode_seconds, times), retry.exit_codes]


def _decode_retry(value: Any) -> Retry:
    attempts, backoff, factor, max_backoff, exit_codes = value
    return Retry(attempts, float(backoff), float(factor), float(max_backoff), tuple(exit_codes))


def _encode_cache(cache: CachePolicy) -> JsonValue:
    return [cache.enabled, _encode_seconds(cache.ttl_seconds), cache.scope.value]


def _decode_cache(value: Any) -> CachePolicy:
    enabled, ttl, scope = value
    return CachePolicy(enabled, _decode_seconds(ttl), CacheScope(scope))


def _encode_template(template: Template) -> JsonValue:
    return {
        "pattern": _encode_entries(template.pattern),
        "declaration": template.declaration,
    }


def _decode_template(value: Any) -> Template:
    return Template(_decode_entries(value["pattern"]), value["declaration"])


def _same(value: Any) -> JsonValue:
    return cast(JsonValue, value)


def _pairs(value: Any) -> tuple[tuple[str, int], ...]:
    return tuple((name, amount) for name, amount in value)


Encode = Callable[[Any], JsonValue]
Decode = Callable[[Any], Any]

FORMS: Final[Mapping[str, tuple[Encode, Decode]]] = {
    "name": (_same, NodeName),
    "kind": (_same, Kind),
    "description": (_same, str),
    "tags": (_same, tuple),
    "command": (_encode_command, _decode_command),
    "workdir": (_same, RelPath),
    "reads": (_encode_entries, _decode_entries),
    "writes": (_encode_entries, _decode_entries),
    "removes": (_same, tuple),
    "ignore": (_same, tuple),
    "tools": (_encode_tools, _decode_tools),
    "after": (_same, tuple),
    "when": (_same, When),
    "env": (_encode_env, _decode_env),
    "pass_env": (_same, tuple),
    "tier": (_same, Tier),
    "idempotency_key": (_same, str),
    "undo": (_encode_command, _decode_command),
    "boundary": (_same, Boundary),
    "clean": (_same, bool),
    "background": (_same, Background),
    "priority": (_same, int),
    "timeout_seconds": (_encode_seconds, _decode_seconds),
    "grace_seconds": (_encode_seconds, _decode_seconds),
    "cancellable": (_same, bool),
    "retry": (_encode_retry, _decode_retry),
    "resources": (_same, _pairs),
    "locks": (_same, tuple),
    "requires": (_same, tuple),
    "cache": (_encode_cache, _decode_cache),
    "nondeterministic": (_same, bool),
    "result": (_same, ResultKind),
    "max_result_bytes": (_same, int),
    "template": (_encode_template, _decode_template),
}
"""How each field of a node is written and read; `origin` is no part of a declaration."""

_DEFAULTS: Final = [
    (f.name, None if f.default is MISSING else f.default, FORMS[f.name][0])
    for f in fields(Node)
    if f.name != "origin"
]


def encode_declaration(node: Node) -> dict[str, JsonValue]:
    """Everything `node` declares but where it stands in a file."""
    found: dict[str, JsonValue] = {}
    for name, default, encode in _DEFAULTS:
        value = getattr(node, name)
        if value != default:
            found[name] = encode(value)
    return found


def decode_declaration(value: Mapping[str, Any], origin: Origin) -> Node:
    """The node that `encode_declaration` wrote. Raises KeyError, TypeError or ValueError for
    anything else."""
    known = {name: FORMS[name][1](item) for name, item in value.items()}
    return Node(origin=origin, **known)


def encode_origin(origin: Origin) -> Sequence[JsonValue]:
    return [origin.file, *origin.keys]


def decode_origin(value: Any) -> Origin:
    return Origin(value[0], tuple(value[1:]))
