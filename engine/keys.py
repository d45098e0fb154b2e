"""Action keys, and the explanation of why one differs from another.

One walk (`write_recipe`) lists everything that decides a node's result; the key is the
digest of that list and `why` compares two of them, so the explanation cannot disagree
with the key. Pure: every fact arrives as an argument.

A recipe is a JSON object, stored beside the result it led to:

    {"declaration": {...}, "platform": "linux-x86_64", "tools": {NAME: DIGEST or TEXT},
     "passed": {VARIABLE: VALUE}, "values": {VARIABLE: JSON TEXT}, "secrets": {VARIABLE: MAC},
     "reads": {PATH: STATE}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never, cast

from blake3 import blake3

from assay.engine.states import ABSENT, ActionKey, RunId, State
from assay.plans.canonical import JsonValue, canonical_json
from assay.plans.model import (
    Argv,
    CacheScope,
    Node,
    Plain,
    RelPath,
    Script,
    Secret,
    Tier,
    ValueRef,
)

KEY_DOMAIN: Final = b"assay action key 1\0"
EFFECT_DOMAIN: Final = b"assay effect key 1\0"


class Role(Enum):
    """Where a node's field stands with regard to the action key."""

    DECLARATION = "written into the recipe as declared"
    CONTENT = "in the key by the content it names"
    ENVIRONMENT = "in the key by what it resolves to on this machine"
    ADDRESS = "narrows the row's address, never the key"
    OUT = "does not change what the command produces"


FIELDS: Final[dict[str, Role]] = {
    "name": Role.OUT,
    "origin": Role.OUT,
    "kind": Role.OUT,
    "description": Role.OUT,
    "tags": Role.OUT,
    "command": Role.DECLARATION,
    "workdir": Role.DECLARATION,
    "reads": Role.CONTENT,
    "writes": Role.DECLARATION,
    "removes": Role.DECLARATION,
    "ignore": Role.CONTENT,
    "tools": Role.ENVIRONMENT,
    "after": Role.OUT,
    "when": Role.OUT,
    "env": Role.DECLARATION,
    "pass_env": Role.ENVIRONMENT,
    "tier": Role.OUT,
    "idempotency_key": Role.OUT,
    "undo": Role.OUT,
    "boundary": Role.DECLARATION,
    "clean": Role.DECLARATION,
    "background": Role.OUT,
    "priority": Role.OUT,
    "timeout_seconds": Role.OUT,
    "grace_seconds": Role.OUT,
    "cancellable": Role.OUT,
    "retry": Role.OUT,
    "resources": Role.OUT,
    "locks": Role.OUT,
    "requires": Role.OUT,
    "cache": Role.ADDRESS,
    "nondeterministic": Role.DECLARATION,
    "result": Role.DECLARATION,
    "max_result_bytes": Role.OUT,
    "template": Role.OUT,
}
"""Every field of `Node`, classified. `tier` is out because the command produces the same in
each: the recipe of a sealed node addresses its result, that of any other gives its content
key, which tells whether an effect achieved earlier was this one."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything outside the plan that decides one node's result."""

    reads: Mapping[RelPath, State]
    platform: str
    tools: Mapping[str, str]
    """Tool name to the digest of its content, to what its version command printed, or to
    `missing`."""
    passed: Mapping[str, str]
    values: Mapping[str, JsonValue]
    """Environment variable to the projected value of the node it refers to."""
    secrets: Mapping[str, str]
    """Environment variable to a keyed digest, for secrets declared `keyed`."""


Recipe = dict[str, JsonValue]


def write_recipe(node: Node, inputs: Inputs) -> Recipe:
    """The one walk over what decides `node`'s result."""
    env: dict[str, JsonValue] = {}
    for name, value in node.env:
        match value:
            case Plain():
                env[name] = value.value
            case ValueRef():
                env[name] = {"value": True}
            case Secret():
                env[name] = {"secret": value.name, "keyed": value.keyed}
            case _:
                assert_never(value)
    declaration: dict[str, JsonValue] = {
        "workdir": node.workdir,
        "writes": sorted(map(str, node.writes)),
        "removes": sorted(node.removes),
        "env": env,
        "boundary": node.boundary.value,
        "clean": node.clean,
        "nondeterministic": node.nondeterministic,
        "result": node.result.value if node.result else None,
    }
    optional = sorted(str(entry) for entry in node.writes if entry.optional)
    if optional:
        declaration["optional writes"] = optional
    match node.command:
        case Argv():
            declaration["argv"] = node.command.argv
        case Script():
            declaration["script"] = node.command.script
            declaration["shell"] = node.command.shell
        case None:
            raise AssertionError(f"{node.name} has no command and so no key")
        case _:
            assert_never(node.command)
    return {
        "declaration": declaration,
        "platform": inputs.platform,
        "tools": dict(inputs.tools),
        "passed": dict(inputs.passed),
        "values": {name: _text(value) for name, value in inputs.values.items()},
        "secrets": dict(inputs.secrets),
        "reads": cast(dict[str, JsonValue], inputs.reads),
    }


def action_key(recipe_json: bytes) -> ActionKey:
    """The key of a recipe in canonical JSON (`encode_recipe`)."""
    return ActionKey(blake3(KEY_DOMAIN + recipe_json).hexdigest())


def effect_key(run: RunId, base_digest: str, node: Node, plan_key: str) -> ActionKey:
    """The action key of a node that is not sealed: it names one effect of one run, so that it
    replays what that run has done and never what another one did."""
    named = canonical_json([run, base_digest, node.name, plan_key])
    return ActionKey(blake3(EFFECT_DOMAIN + named).hexdigest())


def content_key_over(
    recipe: Recipe,
    before: Recipe,
    is_left: Callable[[RelPath, State], bool],
    is_gone: Callable[[RelPath], bool],
) -> ActionKey:
    """The key of `recipe`, with what an effect and those after it have left (`is_left`) or
    removed (`is_gone`) among its reads counted as it was `before` that, by the recipe it had
    then: a node that rewrites what it reads has not got other inputs by it."""
    reads, then = _section(recipe, "reads"), _section(before, "reads")
    counted: dict[str, JsonValue] = {}
    for path, state in reads.items():
        if not is_left(RelPath(path), State(str(state))):
            counted[path] = state
        elif path in then:
            counted[path] = then[path]
    gone = {p: state for p, state in then.items() if p not in reads and is_gone(RelPath(p))}
    return action_key(encode_recipe({**recipe, "reads": {**counted, **gone}}))


def encode_recipe(recipe: Recipe) -> bytes:
    return canonical_json(recipe, has_floats=False)


def address_of(key: ActionKey, node: Node, plan_name: str, run: RunId) -> str:
    """Where the cache keeps a result: the key, narrowed by the node's scope."""
    match node.cache.scope:
        case CacheScope.SHARED:
            return key
        case CacheScope.PLAN:
            return f"{key}@plan:{plan_name}"
        case CacheScope.RUN:
            return f"{key}@run:{run}"
        case _:
            assert_never(node.cache.scope)


def is_cacheable(node: Node) -> bool:
    """Whether a recorded result of `node` may ever serve.

    A node with no reads, no writes and no references has nothing that could tell one
    execution from the next, so it runs every time unless it says otherwise. An effect on the
    world is never served from the cache.
    """
    if node.tier is not Tier.SEALED:
        return False
    if node.cache.enabled is not None:
        return node.cache.enabled
    refers = any(isinstance(value, ValueRef) for _, value in node.env)
    return bool(node.reads or node.writes or node.removes or refers)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two recipes.

    `field` is what a person would call it (`command`, `env V`, `reads`, `tool cc`);
    `path` is set for reads; `before`/`after` are short texts, None where there was or is
    nothing.
    """

    field: str
    path: str | None
    before: str | None
    after: str | None


def find_changes(before: Recipe, after: Recipe) -> tuple[Change, ...]:
    """What differs from `before` to `after`: declaration first, then the environment,
    values and reads, each in name order. Empty when both give the same key."""
    changes: list[Change] = []
    old, new = _section(before, "declaration"), _section(after, "declaration")
    for key in ("argv", "script", "shell"):
        _compare(changes, "command" if key != "shell" else "shell", old.get(key), new.get(key))
    skip = {"argv", "script", "shell", "env"}
    for key in sorted((old.keys() | new.keys()) - skip):
        _compare(changes, key, old.get(key), new.get(key))
    _compare_all(changes, "env ", _mapping(old.get("env")), _mapping(new.get("env")))
    _compare(changes, "platform", before.get("platform"), after.get("platform"))
    for section, label in (
        ("tools", "tool "),
        ("passed", "env "),
        ("values", "value for env "),
        ("secrets", "secret for env "),
    ):
        _compare_all(changes, label, _section(before, section), _section(after, section))
    old, new = _section(before, "reads"), _section(after, "reads")
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was != now:
            changes.append(Change("reads", path, _show_state(was), _show_state(now)))
    return tuple(changes)


def summarize(changes: tuple[Change, ...]) -> str:
    """A few words for a progress line: `reads changed: src/a.c and 2 more`."""
    if not changes:
        return "no recorded result"
    first = changes[0]
    if first.path is not None:
        if first.before is None:
            text = f"new read: {first.path}"
        elif first.after is None or first.after == ABSENT:
            text = f"read gone: {first.path}"
        else:
            text = f"read changed: {first.path}"
    else:
        text = f"{first.field} changed"
    return text if len(changes) == 1 else f"{text} and {len(changes) - 1} more"


def _section(recipe: Recipe, name: str) -> dict[str, JsonValue]:
    return _mapping(recipe.get(name))


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return dict(value) if isinstance(value, Mapping) else {}


def _compare_all(
    changes: list[Change], label: str, old: dict[str, JsonValue], new: dict[str, JsonValue]
) -> None:
    for name in sorted(old.keys() | new.keys()):
        _compare(changes, label + name, old.get(name), new.get(name))


def _compare(changes: list[Change], field: str, was: JsonValue, now: JsonValue) -> None:
    # Tuples of the present recipe meet lists of a stored one.
    before, after = _show(was), _show(now)
    if before != after:
        changes.append(Change(field, None, before, after))


def _show(value: JsonValue) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return _text(value)


def _text(value: JsonValue) -> str:
    return canonical_json(value).decode("utf-8", "surrogateescape")


def _show_state(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
