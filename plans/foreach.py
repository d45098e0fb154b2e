"""`foreach` over paths that other nodes write: who writes them, and the template node that
stands for the instances until they exist.

Does not know the disk.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.plans.canonical import canonical_json
from assay.plans.diagnostics import Diagnostic
from assay.plans.entries import EntryError, escape_entry, literal_entry, parse_entry
from assay.plans.model import (
    Argv,
    Entry,
    EntryKind,
    Kind,
    Node,
    NodeName,
    Origin,
    RelPath,
    Template,
    ValueRef,
)
from assay.plans.nodes import (
    Complaints,
    Declaration,
    Scope,
    Values,
    declared_name,
    find_program_in_workspace,
    has_template,
    instance_name,
    make_env_values,
    make_node,
    parse_entry_once,
)
from assay.plans.phrases import subject
from assay.plans.producers import WriteIndex
from assay.plans.templates import (
    Namespaces,
    TemplateError,
    each_values,
    find_references,
    render,
)

ForeachMatch = tuple[tuple[Entry, ...], tuple[str, ...], tuple[RelPath, ...]]
"""A pattern, the ignore patterns it obeyed, and what it matched."""


@dataclass(slots=True)
class Pending:
    """One combination of a `foreach` node, until it is known who writes its paths."""

    declaration: Declaration
    combination: Mapping[str, str]
    pattern: tuple[Entry, ...]


def make_pattern(
    declaration: Declaration, texts: Namespaces, complaints: Complaints
) -> tuple[Entry, ...]:
    """The entries of `foreach`; none where it has a fault."""
    declared = declaration.keys["foreach"]
    items = [declared] if isinstance(declared, str) else declared
    base = declaration.scope.base
    pattern: list[Entry] = []
    for number, item in enumerate(items):
        more = () if isinstance(declared, str) else (number,)
        origin = declaration.place("foreach", *more)
        what = subject(origin.keys, declaration.name)
        try:
            if isinstance(item, str):
                pattern.append(parse_entry_once(render(item, texts), base))
            else:
                text = render(item["path"], texts)
                pattern.append(literal_entry(text, base, item.get("optional", False)))
        except TemplateError:
            text = item if isinstance(item, str) else item["path"]
            complaints.add_template_faults(text, texts, origin, declaration.name)
        except EntryError as error:
            message = f"{what}: {str(error).removesuffix('.')}"
            complaints.add(Diagnostic(message, origin, hint=error.hint))
    if len(pattern) < len(items):
        complaints.broken.add(declaration.name)
        return ()
    return tuple(pattern)


def make_instances(
    declaration: Declaration,
    combination: Mapping[str, str],
    matches: Iterable[RelPath],
    complaints: Complaints,
) -> Iterator[Node]:
    """One node per match, in that order. `{{each}}` is relative to the folder that the
    file's own paths are relative to."""
    for path in matches:
        each = _relative_to(declaration.scope.base, path)
        values = each_values(each)
        name = instance_name(declaration.name, each, combination)
        yield make_node(
            declaration,
            name,
            _values_of(
                declaration, combination, values, {k: escape_entry(v) for k, v in values.items()}
            ),
            complaints,
        )


def try_instance(
    declaration: Declaration, combination: Mapping[str, str], complaints: Complaints
) -> Node:
    """The instance for a made-up path, so that faults of the declaration show before there
    are any."""
    path = RelPath(posixpath.normpath(posixpath.join(declaration.scope.base, "NAME")))
    [node] = make_instances(declaration, combination, [path], complaints)
    return node


def _values_of(
    declaration: Declaration,
    combination: Mapping[str, str],
    each: Mapping[str, str],
    each_in_entries: Mapping[str, str],
) -> Values:
    texts: dict[str, Mapping[str, str]] = {"params": declaration.scope.params}
    if combination:
        texts["matrix"] = combination
    return Values({**texts, "each": each}, {**texts, "each": each_in_entries})


def _relative_to(base: RelPath, path: str) -> str:
    if base == ".":
        return path
    if path.startswith(base + "/"):
        return path[len(base) + 1 :]
    return posixpath.relpath("/" + path, "/" + base)


def find_written(items: Sequence[Node | Pending]) -> list[bool]:
    """For each item, whether it is a `foreach` over paths that another declared node writes."""
    writers = [_as_writer(item) for item in items]
    index = WriteIndex(writers)
    return [
        isinstance(item, Pending)
        and any(
            declared_name(writers[writer].name) != item.declaration.name
            for bucket in index.find_list(item.pattern)
            for writer in bucket.writers
        )
        for item in items
    ]


def _as_writer(item: Node | Pending) -> Node:
    """A node with the writes that can bring a new path."""
    if isinstance(item, Node):
        writes = tuple(_written_anew(item))
        return item if len(writes) == len(item.writes) else replace(item, writes=writes)
    writes = _generalise_writes(item, rewritten=False)
    name = NodeName(item.declaration.name)
    return Node(name, item.declaration.origin, Kind.TEMPLATE, writes=writes)


def _written_anew(node: Node) -> list[Entry]:
    """The writes that can bring a new path: rewriting a file that must be there does not."""
    if not node.writes:
        return []
    rewritten = {
        entry.path
        for entry in node.reads
        if entry.kind is EntryKind.FILE and not entry.exclude | entry.optional
    }
    return [
        entry
        for entry in node.writes
        if entry.exclude or entry.kind is not EntryKind.FILE or entry.path not in rewritten
    ]


def _generalise_writes(item: Pending, *, rewritten: bool) -> tuple[Entry, ...]:
    """Globs over everything the instances of a `foreach` may write: their writes with the
    pattern itself in place of each path; `rewritten`: also of files they read as well.
    Faults are left to `make_node`."""
    keys = item.declaration.keys
    reads = () if rewritten else keys.get("reads", ())
    found: list[Entry] = []
    for write in keys.get("writes", ()):
        is_file = isinstance(write, str) and not write.endswith("/") and not set(write) & set("*?[")
        if is_file and write in reads:
            continue
        for pattern in _pattern_texts(item):
            entry = _generalise_write(item, write, pattern)
            if entry is not None and not entry.exclude and entry not in found:
                found.append(entry)
    return tuple(found)


def _generalise_write(item: Pending, write: str | Mapping[str, Any], pattern: str) -> Entry | None:
    folder = posixpath.dirname(pattern) or "."
    each = {"": pattern, "name": "*", "stem": "*", "dir": folder}
    base = item.declaration.scope.base
    try:
        if isinstance(write, str):
            values = _values_of(item.declaration, item.combination, each, each)
            text = render(write, values.texts)
        else:
            # The text around the references is literal; NUL stands in no plan's text.
            marks = {key: f"\0{key}\0" for key in each}
            values = _values_of(item.declaration, item.combination, marks, marks)
            text = escape_entry(render(write["path"], values.texts))
            for key, mark in marks.items():
                text = text.replace(mark, each[key])
        # Glued to other characters `**` would not cross folders.
        return parse_entry(re.sub(r"\*\*(?=[^/])", "**/*", text), base)
    except (TemplateError, EntryError):
        return None


def _pattern_texts(item: Pending) -> list[str]:
    """What `{{each}}` may be, as globs relative to the file's folder. Each `**` comes in two
    variants, without a folder and with at least one, so that they can be put anywhere."""
    base = escape_entry(item.declaration.scope.base)
    texts: list[str] = []
    for entry in item.pattern:
        if entry.exclude:
            continue
        path = entry.path if entry.kind is EntryKind.GLOB else escape_entry(entry.path)
        if entry.kind is EntryKind.TREE:
            path = "**/*" if path == "." else path + "/**/*"
        elif path.endswith("**"):
            path += "/*"
        components = _relative_to(RelPath(base), path).split("/")
        choices = [
            ((name,),) if name != "**" else ((), ("*", "**") if n == 0 else ("**", "*"))
            for n, name in enumerate(components)
        ]
        texts += ["/".join(itertools.chain(*choice)) for choice in itertools.product(*choices)]
    return texts


def make_template(item: Pending, complaints: Complaints) -> Node:
    """The node that stands for a `foreach` until the paths it matches are written.

    It reads its pattern, writes whatever its instances may write, and follows what they
    all follow.
    """
    declaration = item.declaration
    name = instance_name(declaration.name, None, item.combination)
    tried = try_instance(declaration, item.combination, complaints)
    if declaration.name in complaints.broken:
        return Node(name, declaration.origin, Kind.GROUP)
    keys = declaration.keys
    varying = {
        variable
        for variable, value in keys.get("env", {}).items()
        if isinstance(value, Mapping) and _uses_each(value.get("from", ""))
    }
    return Node(
        name,
        declaration.origin,
        Kind.TEMPLATE,
        description=tried.description,
        tags=tried.tags,
        reads=item.pattern,
        writes=_generalise_writes(item, rewritten=True),
        ignore=declaration.scope.ignore,
        after=tuple(
            follows
            for follows, text in zip(tried.after, keys.get("after", ()), strict=True)
            if not _uses_each(text)
        ),
        when=tried.when,
        tier=tried.tier,
        env=tuple(
            (variable, value)
            for variable, value in tried.env
            if isinstance(value, ValueRef) and variable not in varying
        ),
        template=Template(item.pattern, _write_declaration(item)),
    )


def _uses_each(text: str) -> bool:
    return any(namespace == "each" for namespace, _ in find_references(text))


def _write_declaration(item: Pending) -> str:
    """Canonical JSON with all that `read_declaration` needs, and no more: no path of this
    machine, and only the params in use."""
    scope = item.declaration.scope
    keys = {k: v for k, v in item.declaration.keys.items() if k not in {"foreach", "matrix"}}
    run = keys.get("run")
    if isinstance(run, list) and run[0].startswith("/") and not has_template(run[0]):
        program = find_program_in_workspace(Argv(tuple(run)), scope.base, scope.root)
        if program is not None:
            path = _relative_to(scope.base, program.path)
            keys["reads"] = [*keys.get("reads", ()), {"path": path}]
    used = {name for space, name in find_references(json.dumps(keys, ensure_ascii=False))}
    written: dict[str, Any] = {
        "name": item.declaration.name,
        "keys": keys,
        "matrix": item.combination,
        "params": {name: text for name, text in scope.params.items() if name in used},
        "prefix": scope.prefix,
        "base": scope.base,
        "env": scope.env,
        "shell": scope.shell,
        "ignore": scope.ignore,
    }
    return canonical_json(written).decode("utf-8", "surrogateescape")


def read_declaration(text: str, origin: Origin) -> tuple[Declaration, Mapping[str, str]]:
    """The declaration and matrix combination that a template node was made from."""
    written = json.loads(text)
    scope = Scope(
        file=origin.file,
        prefix=written["prefix"],
        base=RelPath(written["base"]),
        root="",
        params=written["params"],
        env=written["env"],
        env_values=make_env_values(written["env"], _refuse_stored),
        shell=tuple(written["shell"]),
        ignore=tuple(written["ignore"]),
    )
    keys = written["keys"]
    return Declaration(scope, written["name"], origin, keys, keys), written["matrix"]


def _refuse_stored(message: str, *_: object) -> None:
    raise ValueError(f"a stored declaration has a fault:{message}")
