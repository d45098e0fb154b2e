"""One node: from its declaration and the values of templates to `Node`.

Does not know the other nodes, nor whether it came from a `matrix` or a `foreach`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from assay.plans.diagnostics import Diagnostic, Mark, Severity, shown
from assay.plans.durations import POSITIVE_FORM, DurationError, parse_duration
from assay.plans.entries import EntryError, literal_entry, parse_entry
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
    Tier,
    Tool,
    ValueRef,
    When,
)
from assay.plans.phrases import describe, subject
from assay.plans.templates import Namespaces, TemplateError, find_faults, render

Keys = Mapping[str, Any]
"""A validated node table (`schema.NodeDecl`): plain JSON values, only what was written."""

COMMANDS: Final = ("run", "wait", "plan")

ENTRY_KEYS: Final = frozenset({"reads", "writes", "removes"})

GROUP_KEYS: Final = frozenset({"after", "description", "tags", "when", "foreach", "matrix"})
"""What a node without a command may have."""

UNAVAILABLE: Final[Mapping[str, object]] = {
    "wait": ...,
    "plan": ...,
    "params": ...,
    "detach": False,
    "approval": False,
    "on_conflict": "fail",
    "merge": ...,
}
"""Keys whose behaviour is still to come, with the value that asks for none of it."""

CAPABILITIES: Final = frozenset({"network"})
"""What `requires` may name."""

RESERVED_VARIABLES: Final = frozenset(
    {"ASSAY_RUN", "ASSAY_NODE", "ASSAY_ATTEMPT", "ASSAY_RESULT", "ASSAY_IDEMPOTENCY_KEY"}
)

_CONVERTED: Final[Mapping[str, Callable[[Any], object]]] = {
    "description": str,
    "tags": tuple,
    "kind": Kind,
    "when": When,
    "tier": Tier,
    "boundary": Boundary,
    "requires": lambda names: tuple(sorted(set(names))),
    "clean": bool,
    "background": Background,
    "priority": int,
    "cancellable": bool,
    "nondeterministic": bool,
    "result": ResultKind,
    "max_result_bytes": int,
    "pass_env": lambda names: tuple(sorted(set(names))),
    "locks": lambda names: tuple(sorted(set(names))),
    "resources": lambda amounts: tuple(sorted(amounts.items())),
}
"""Keys that become the field of the same name, from their value alone."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SYNTAX = re.compile(r"[\[\]:*?]")
_NAME_IN_TEMPLATES = re.compile(r"\w[\w.-]*")


@dataclass(slots=True)
class Complaints:
    """What is to be said about a plan: each thing once, errors and warnings apart."""

    errors: dict[tuple[str, Origin | None], Diagnostic] = field(default_factory=dict)
    warnings: dict[tuple[str, Origin | None], Diagnostic] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """Full names of declared nodes with an error: what is said about them later may only
    be a consequence."""

    def add(self, diagnostic: Diagnostic) -> None:
        is_error = diagnostic.severity is Severity.ERROR
        kept = self.errors if is_error else self.warnings
        kept.setdefault((diagnostic.message, diagnostic.origin), diagnostic)

    def add_template_faults(
        self, text: str, namespaces: Namespaces, origin: Origin, node: str | None = None
    ) -> None:
        """Everything that `text` refers to in vain. `node` is the full name of its node."""
        what = subject(origin.keys, node)
        for fault in find_faults(text, namespaces):
            message = f"{what} uses `{shown(fault.reference)}`, but {fault.why}"
            self.add(Diagnostic(message, origin, hint=fault.hint))
        if node is not None:
            self.broken.add(node)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a plan file gives to its nodes.

    `prefix` is `web:` for what an include brings, `base` the folder its paths are relative
    to, `root` the absolute workspace root or "" where it plays no part. `env` is rendered.
    """

    file: str
    prefix: str
    base: RelPath
    root: str
    params: Mapping[str, str]
    env: Mapping[str, Any]
    env_values: tuple[tuple[str, EnvValue], ...]
    shell: tuple[str, ...]
    ignore: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A node as declared, with its file's defaults merged in. `own` are the keys the node
    itself wrote."""

    scope: Scope
    name: str
    origin: Origin
    keys: Keys
    own: Keys

    def place(self, key: str, *more: str | int) -> Origin:
        """Where a key was written: in the node or in the file's defaults."""
        written: object = self.own.get(key)
        is_own = written is not None
        if key == "env" and more:
            is_own = isinstance(written, Mapping) and more[0] in written
        origin = self.origin if is_own else Origin(self.scope.file, ("defaults",))
        return origin.at(key, *more)


@dataclass(frozen=True, slots=True)
class Values:
    """What templates see: `entries` is for entries, where a substituted path is literal."""

    texts: Namespaces
    entries: Namespaces


def find_name_fault(name: str) -> tuple[str, str | None] | None:
    """Why `name` cannot be declared, and a hint. For nodes and includes."""
    if not name:
        return "A name cannot be empty", None
    if name.startswith("-"):
        return "it starts with `-`, like an option", None
    if _CONTROL.search(name):
        return "it contains a control character", None
    if name != name.strip():
        return "it starts or ends with a blank", None
    clash = _SYNTAX.search(name)
    if clash:
        return f"it contains `{clash[0]}`", (
            "`[ ]` name instances, `:` separates the name of an include, "
            "`*` and `?` are patterns over names."
        )
    return None


def find_template_name_fault(name: str) -> str | None:
    """Why `name` cannot be used in `{{params.NAME}}` or `{{matrix.NAME}}`."""
    if _NAME_IN_TEMPLATES.fullmatch(name):
        return None
    return "it must be made of letters, digits, `_`, `-` and `.`"


def scalar_text(value: object) -> str:
    """A scalar of the plan file as text: strings as they are, others as JSON writes them.

    Raises ValueError for an integer too large to be written.
    """
    return value if isinstance(value, str) else json.dumps(value)


def instance_name(name: str, each: str | None, combination: Mapping[str, str]) -> NodeName:
    """`cc[src/a.c]`, `test[os=linux,py=3.11]`, `lint[src/a.c,level=2]`; axes are sorted, so
    that the order in which they were written plays no part."""
    parts = [] if each is None else [each]
    parts += [f"{axis}={value}" for axis, value in combination.items()]
    return NodeName(f"{name}[{','.join(parts)}]" if parts else name)


def declared_name(name: str) -> str:
    return name.partition("[")[0]


def declare(
    scope: Scope,
    name: str,
    own: Keys,
    defaults: Keys,
    complaints: Complaints,
    *,
    tier_is_known: bool = True,
    boundary: str | None = None,
) -> Declaration | None:
    """The declaration of one node; None, with the reason among the complaints, for a name
    that cannot be used. Other faults are complained of, and what is left goes on.

    `tier_is_known` is false where the defaults have lost keys that were not understood.
    `boundary` takes the place of whatever is declared.
    """
    full_name = scope.prefix + name
    origin = Origin(scope.file, ("nodes", name))
    fault = find_name_fault(name)
    if fault is not None:
        why, hint = fault
        what = f"`{shown(name)}` cannot be the name of a node: {why}" if name else why
        complaints.add(Diagnostic(what, origin, Mark.KEY, hint))
        complaints.broken.add(full_name)
        return None
    keys = _merge_defaults(defaults, own) if defaults else own
    if boundary is not None and any(key in keys for key in COMMANDS):
        keys = {**keys, "boundary": boundary}
    declaration = Declaration(scope, full_name, origin, keys, own)
    _check_keys(declaration, complaints, tier_is_known=tier_is_known)
    return declaration


def _merge_defaults(defaults: Keys, own: Keys) -> Keys:
    inherited = dict(defaults)
    if any(key in own for key in COMMANDS):
        for key in COMMANDS:
            inherited.pop(key, None)
    elif not any(key in inherited for key in COMMANDS):
        inherited = {key: value for key, value in defaults.items() if key in GROUP_KEYS}
    for key in _find_senseless(own.get("tier", inherited.get("tier", Tier.SEALED))):
        inherited.pop(key, None)
    if "env" in own and "env" in inherited:
        inherited["env"] = {**inherited["env"], **own["env"]}
        return {**inherited, **{key: own[key] for key in own if key != "env"}}
    return {**inherited, **own}


def _find_senseless(tier: str) -> Iterator[str]:
    """The keys that do not reach a node of this tier from its file's defaults."""
    if tier == Tier.SEALED:
        yield "idempotency_key"
    else:
        yield "cache"
    if tier != Tier.COMPENSABLE:
        yield "undo"
    if tier == Tier.IRREVERSIBLE:
        # A repeat that nobody asked for at the node itself could repeat its effect.
        yield "retry"


def _check_keys(declaration: Declaration, complaints: Complaints, *, tier_is_known: bool) -> None:
    """What keys have to do with each other."""
    keys, name = declaration.keys, shown(declaration.name)
    was_broken = declaration.name in complaints.broken

    def complain(message: str, origin: Origin, mark: Mark, hint: str | None = None) -> None:
        complaints.add(Diagnostic(message, origin, mark, hint))
        complaints.broken.add(declaration.name)

    for key in UNAVAILABLE.keys() & keys.keys():
        if keys[key] != UNAVAILABLE[key]:
            origin = declaration.place(key)
            what = subject(origin.keys, declaration.name)
            if UNAVAILABLE[key] is not ... and isinstance(keys[key], str):
                what += f" is {describe(keys[key])}, which"
            complain(f"{what} is not available yet", origin, Mark.VALUE)
    for name in sorted(set(keys.get("requires", ())) - CAPABILITIES):
        origin = declaration.place("requires")
        what = subject(origin.keys, declaration.name)
        complain(f"{what} names `{shown(name)}`, which is not available yet", origin, Mark.VALUE)
    commands = [key for key in COMMANDS if key in keys]
    if len(commands) > 1:
        message = f"Node `{name}` has both `{commands[0]}` and `{commands[1]}`"
        hint = "A node has one of `run`, `wait` and `plan`."
        complain(message, declaration.place(commands[1]), Mark.KEY, hint)
    if was_broken:
        # What could not be understood is neither a missing command nor the default tier.
        return
    if commands:
        for key, message, hint in _find_tier_faults(keys) if tier_is_known else ():
            complain(f"Node `{name}` {message}", declaration.place(key), Mark.KEY, hint)
        return
    extra = [key for key in keys if key not in GROUP_KEYS]
    if extra:
        listed = " and ".join(f"`{key}`" for key in extra[:2])
        message = f"Node `{name}` has {listed}, but nothing to `run`"
        hint = "A node without a command is a group, which has only `after`."
        complain(message, declaration.origin, Mark.VALUE, hint)
    elif "after" not in keys:
        message = f"Node `{name}` has neither `run` nor `after`"
        complain(message, declaration.origin, Mark.VALUE)


def _find_tier_faults(keys: Keys) -> Iterator[tuple[str, str, str]]:
    """Keys at odds with the node's tier: the key, the rest of the sentence, and a hint."""
    tier = keys.get("tier", Tier.SEALED)
    if tier == Tier.SEALED and "idempotency_key" in keys:
        hint = 'A sealed node may always be repeated; the key is for tier = "irreversible".'
        yield "idempotency_key", f"has an `idempotency_key`, but is {tier}", hint
    if tier != Tier.COMPENSABLE and "undo" in keys:
        hint = 'Only what can be rolled back is undone: tier = "compensable".'
        yield "undo", f"has `undo`, but is {tier}", hint
    if tier != Tier.SEALED and "cache" in keys:
        hint = "Only results of sealed nodes are kept; take `cache` away."
        yield "cache", f"has `cache`, but is {tier}", hint
    retry = keys.get("retry", {})
    if (
        tier == Tier.IRREVERSIBLE
        and retry.get("attempts", 1) > 1
        and not retry.get("exit_codes")
        and "idempotency_key" not in keys
    ):
        hint = (
            "Name the `exit_codes` after which nothing has happened, "
            "or give the node an `idempotency_key` that makes a repeat safe."
        )
        yield "retry", f"has `retry`, but is {tier}", hint


def make_node(
    declaration: Declaration, name: NodeName, values: Values, complaints: Complaints
) -> Node:
    """The node that `declaration` becomes under `values`. Faults go to `complaints`, and
    the node is then what remains."""
    keys = declaration.keys
    if has_template(keys):
        keys = _render_keys(declaration, values, complaints)
    scope = declaration.scope
    fields: dict[str, Any] = {
        key: _CONVERTED[key](value) for key, value in keys.items() if key in _CONVERTED
    }
    if "after" in keys:
        fields["after"] = tuple(map(NodeName, keys["after"]))
    if not any(key in declaration.keys for key in COMMANDS):
        return Node(name, declaration.origin, **{**fields, "kind": Kind.GROUP})

    def complain(message: str, hint: str | None, key: str, *more: str | int) -> None:
        origin = declaration.place(key, *more)
        what = subject(origin.keys, declaration.name)
        complaints.add(Diagnostic(f"{what}{message}", origin, hint=hint))
        complaints.broken.add(declaration.name)

    workdir = _make_workdir(scope, keys, complain)
    fields["workdir"] = workdir
    fields["reads"] = _make_entries(scope.base, keys, "reads", complain)
    if "writes" in keys:
        fields["writes"] = _make_entries(scope.base, keys, "writes", complain)
    if "removes" in keys:
        fields["removes"] = tuple(_make_removes(scope.base, keys, complain))
    if "run" in keys:
        command = _make_command(scope, keys["run"], complain, "run")
        fields["command"] = command
        program = find_program_in_workspace(command, workdir, scope.root)
        if program is not None and program not in fields["reads"]:
            fields["reads"] += (program,)
    if "undo" in keys:
        fields["undo"] = _make_command(scope, keys["undo"], complain, "undo")
    if "idempotency_key" in keys:
        fields["idempotency_key"] = _make_idempotency_key(keys["idempotency_key"], complain)
    if "tools" in keys:
        fields["tools"] = tuple(map(_make_tool, keys["tools"]))
    fields["env"] = _make_env(declaration, keys, complain) if "env" in keys else scope.env_values
    for key, field_name in (("timeout", "timeout_seconds"), ("grace", "grace_seconds")):
        if key in keys:
            seconds = _make_duration(keys[key], complain, key, positive=key == "timeout")
            if seconds is not None:
                fields[field_name] = seconds
    if "retry" in keys:
        fields["retry"] = _make_retry(keys["retry"], complain)
    if "cache" in keys:
        fields["cache"] = _make_cache(keys["cache"], complain)
    return Node(name, declaration.origin, ignore=scope.ignore, **fields)


Complain = Callable[..., None]
"""`complain(rest of the sentence, hint, key, *more keys)`."""


def has_template(value: object) -> bool:
    if type(value) is str:
        return "{{" in value
    if type(value) is list:
        return any(map(has_template, value))
    if type(value) is dict:
        return any(map(has_template, value.values()))
    return False


_FAULTY: Final = object()
"""In place of a text that cannot be rendered: complaining of what it lacks is enough."""


def _render_keys(declaration: Declaration, values: Values, complaints: Complaints) -> Keys:
    """The keys with every template replaced, without the values where that failed."""

    def rendered(value: Any, namespaces: Namespaces, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, str):
            try:
                text = render(value, namespaces)
            except TemplateError:
                origin = declaration.place(str(path[0]), *path[1:])
                complaints.add_template_faults(value, namespaces, origin, declaration.name)
                return _FAULTY
            # Only a `!` that was written excludes, not one that a path starts with.
            turned = path[0] in ENTRY_KEYS and text.startswith("!") > value.startswith("!")
            return "./" + text if turned else text
        if isinstance(value, list):
            items = [rendered(item, namespaces, (*path, n)) for n, item in enumerate(value)]
            # In entries the places of the others are kept, for complaints about them.
            keep = path[0] in ENTRY_KEYS
            return items if keep else [item for item in items if item is not _FAULTY]
        if isinstance(value, dict):
            # In the form { path = … } nothing is a pattern, so nothing is escaped.
            table = {key: rendered(v, values.texts, (*path, key)) for key, v in value.items()}
            if path == ("env",):
                return {key: v for key, v in table.items() if v is not _FAULTY}
            return _FAULTY if _FAULTY in table.values() else table
        return value

    keys: dict[str, Any] = {}
    for key, value in declaration.keys.items():
        if key in {"foreach", "matrix"}:
            continue
        found = rendered(value, values.entries if key in ENTRY_KEYS else values.texts, (key,))
        if found is not _FAULTY:
            keys[key] = found
    for key in ("run", "undo"):
        if keys.get(key, ()) == []:
            del keys[key]
    return keys


def _make_command(scope: Scope, run: str | list[str], complain: Complain, key: str) -> Command:
    if isinstance(run, str):
        if not run.strip():
            complain(" is empty", None, key)
        return Script(run, scope.shell)
    if not run[0]:
        complain(" names no program: its first element is empty", None, key)
    return Argv(tuple(run))


def _make_idempotency_key(text: str, complain: Complain) -> str:
    if not text.strip():
        complain(" is empty", None, "idempotency_key")
    elif _CONTROL.search(text):
        complain(" contains a control character", None, "idempotency_key")
    return text


def find_program_in_workspace(command: Command, workdir: RelPath, root: str) -> Entry | None:
    """The file that argv[0] names by its path, when that lies in the workspace."""
    if not isinstance(command, Argv) or "/" not in command.argv[0]:
        return None
    program, base = command.argv[0], workdir
    if program.startswith("/"):
        inside = root.rstrip("/") + "/"
        if not root or not program.startswith(inside):
            return None
        program, base = program[len(inside) :], RelPath(".")
    try:
        return literal_entry(program.rstrip("/"), base, optional=False)
    except EntryError:
        return None


parse_entry_once = lru_cache(maxsize=1 << 14)(parse_entry)
"""Many nodes name the same headers and folders."""


def _make_entries(base: RelPath, keys: Keys, key: str, complain: Complain) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for number, item in enumerate(keys.get(key, ())):
        if item is _FAULTY:
            continue
        try:
            if isinstance(item, str):
                entry = parse_entry_once(item, base)
            else:
                entry = literal_entry(item["path"], base, item.get("optional", False))
        except EntryError as error:
            _complain_of_entry(error, complain, key, number)
        else:
            found.append(entry)
    return tuple(found)


def _make_removes(base: RelPath, keys: Keys, complain: Complain) -> Iterator[RelPath]:
    for number, item in enumerate(keys["removes"]):
        if item is _FAULTY:
            continue
        text = item if isinstance(item, str) else item["path"]
        try:
            entry = parse_entry_once(text, base) if isinstance(item, str) else None
            if entry is None:
                entry = literal_entry(text, base, optional=False)
            if entry.kind is EntryKind.GLOB or entry.exclude:
                literal = f"{{ path = {json.dumps(text, ensure_ascii=False)} }}"
                complain(
                    f" is `{shown(text)}`, but only paths can be removed, no patterns",
                    f"For a path of exactly that name write `{literal}`.",
                    "removes",
                    number,
                )
                continue
        except EntryError as error:
            _complain_of_entry(error, complain, "removes", number)
        else:
            yield entry.path


def _complain_of_entry(error: EntryError, complain: Complain, key: str, *more: str | int) -> None:
    complain(f": {str(error).removesuffix('.')}", error.hint, key, *more)


def _make_workdir(scope: Scope, keys: Keys, complain: Complain) -> RelPath:
    text = keys.get("workdir")
    if text is None:
        return scope.base
    try:
        return literal_entry(text + "/", scope.base, optional=False).path
    except EntryError as error:
        error = EntryError(str(error).replace(f"`{text}/`", f"`{text}`"), error.hint)
        _complain_of_entry(error, complain, "workdir")
        return scope.base


def _make_tool(item: str | Mapping[str, Any]) -> Tool:
    if isinstance(item, str):
        return Tool(item)
    version = item.get("version")
    return Tool(item["name"], tuple(version) if version is not None else None)


def _make_env(
    declaration: Declaration, keys: Keys, complain: Complain
) -> tuple[tuple[str, EnvValue], ...]:
    scope = declaration.scope
    own = make_env_values(keys["env"], complain)
    return tuple(sorted({**dict(scope.env_values), **dict(own)}.items(), key=_first))


def make_env_values(env: Mapping[str, Any], complain: Complain) -> tuple[tuple[str, EnvValue], ...]:
    """The variables of an `env` table, sorted by name."""
    values: list[tuple[str, EnvValue]] = []
    for name in sorted(env):
        declared = env[name]
        if not name or "=" in name or _CONTROL.search(name):
            complain(" cannot be the name of a variable", None, "env", name)
        elif name in RESERVED_VARIABLES:
            complain(" cannot be set: assay gives it to every node", None, "env", name)
        elif not isinstance(declared, Mapping):
            try:
                values.append((name, Plain(scalar_text(declared))))
            except ValueError:
                complain(" is too large a number", None, "env", name)
        elif "secret" in declared:
            values.append((name, Secret(declared["secret"], declared.get("keyed", False))))
        else:
            reference = make_value_ref(declared)
            if "" in reference.path:
                complain(" has an empty part", None, "env", name, "path")
            values.append((name, reference))
    return tuple(values)


def make_value_ref(declared: Mapping[str, Any]) -> ValueRef:
    path = declared.get("path", "")
    return ValueRef(NodeName(declared["from"]), tuple(path.split(".")) if path else ())


def _first(pair: tuple[str, EnvValue]) -> str:
    return pair[0]


def _make_duration(
    text: str, complain: Complain, *keys: str, positive: bool = False
) -> float | None:
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        complain(f" must be {error}, not {describe(text)}", None, *keys)
        return None
    if positive and seconds <= 0:
        complain(f" must be {POSITIVE_FORM}, not {describe(text)}", None, *keys)
        return None
    return seconds


def _make_retry(declared: Mapping[str, Any], complain: Complain) -> Retry:
    retry = Retry(exit_codes=tuple(sorted(set(declared.get("exit_codes", ())))))
    if "attempts" in declared:
        retry = replace(retry, attempts=declared["attempts"])
    if "factor" in declared:
        retry = replace(retry, factor=float(declared["factor"]))
    for key in ("backoff", "max_backoff"):
        if key in declared:
            seconds = _make_duration(declared[key], complain, "retry", key)
            if seconds is not None:
                retry = (
                    replace(retry, backoff_seconds=seconds)
                    if key == "backoff"
                    else replace(retry, max_backoff_seconds=seconds)
                )
    return retry


def _make_cache(declared: bool | Mapping[str, Any], complain: Complain) -> CachePolicy:
    if isinstance(declared, bool):
        return CachePolicy(enabled=declared)
    ttl = declared.get("ttl")
    return CachePolicy(
        ttl_seconds=None
        if ttl is None
        else _make_duration(ttl, complain, "cache", "ttl", positive=True),
        scope=CacheScope(declared.get("scope", CacheScope.SHARED)),
    )
