"""All nodes of a plan: `matrix` and `foreach` expanded.

`after` and value references leave here as written; `assay.plans.compile` resolves them.
Does not know where plan files come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from assay.plans.diagnostics import Diagnostic, Severity, shown
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.foreach import (
    ForeachMatch,
    Pending,
    find_written,
    make_instances,
    make_pattern,
    make_template,
    try_instance,
)
from assay.plans.model import EntryKind, Kind, Node, NodeName, Origin
from assay.plans.nodes import (
    Complaints,
    Declaration,
    Values,
    declared_name,
    find_template_name_fault,
    instance_name,
    make_node,
    scalar_text,
)
from assay.plans.phrases import describe, subject
from assay.plans.templates import TemplateError, render

LARGEST_MATRIX: Final = 1_000_000
"""More combinations are a mistake, and would fill the memory before anyone saw it."""


class Expansion:
    """Collects the declarations of every plan file, then makes their nodes.

    Whether a `foreach` is over sources or over written paths depends on all the others'
    writes, so nodes with one are made last; they keep their place.
    """

    def __init__(self, complaints: Complaints) -> None:
        self.complaints = complaints
        self.foreach: list[ForeachMatch] = []
        self._items: list[Node | Pending] = []
        self._pending: list[Pending] = []
        self._taken: set[NodeName] = set()

    def add(self, declaration: Declaration) -> None:
        """Expands `matrix`; a node without `foreach` is made at once."""
        for combination in _combinations(declaration, self.complaints):
            texts: dict[str, Mapping[str, str]] = {"params": declaration.scope.params}
            if combination:
                texts["matrix"] = combination
            if "foreach" not in declaration.keys:
                values = Values(texts, texts)
                name = instance_name(declaration.name, None, combination)
                self._keep(make_node(declaration, name, values, self.complaints))
            else:
                pattern = make_pattern(declaration, texts, self.complaints)
                if pattern:
                    pending = Pending(declaration, combination, pattern)
                    self._pending.append(pending)
                    self._items.append(pending)
                else:
                    try_instance(declaration, combination, self.complaints)
                    self.add_stand_in(declaration.name, declaration.origin)

    def add_stand_in(self, name: str, origin: Origin) -> None:
        """A name for a declaration that cannot be used, so that others may refer to it."""
        if name not in self._taken:
            self._keep(Node(NodeName(name), origin, Kind.GROUP))

    def settle(self, folders: Folders) -> list[Node]:
        """The nodes in the order of their declarations. Expands every `foreach` over
        sources; one over written paths becomes a template node."""
        if self._pending:
            items, self._items = self._items, []
            for item, is_written in zip(items, find_written(items), strict=True):
                if isinstance(item, Node):
                    self._items.append(item)
                elif is_written:
                    self._keep(make_template(item, self.complaints))
                else:
                    self._expand_over_sources(item, folders)
        nodes = [item for item in self._items if isinstance(item, Node)]
        # A `foreach` without a match is nothing to wait for, and no unknown name either.
        empty = {item.declaration.name for item in self._pending}
        empty.difference_update(declared_name(node.name) for node in nodes)
        return [_forget_names(node, empty) for node in nodes] if empty else nodes

    def _expand_over_sources(self, item: Pending, folders: Folders) -> None:
        declaration = item.declaration
        origin = declaration.place("foreach")
        what = subject(origin.keys, declaration.name)
        ignore = declaration.scope.ignore
        try:
            matches = folders.members(item.pattern, ignore)
        except UnreadableFolder as error:
            folder = shown(error.path)
            message = f"{what} looks into `{folder}`, which cannot be listed: {error.reason}"
            self.complaints.add(Diagnostic(message, origin))
            self.complaints.broken.add(declaration.name)
            self.add_stand_in(declaration.name, declaration.origin)
            return
        self.foreach.append((item.pattern, ignore, matches))
        missing = {
            entry.path: None
            for entry in item.pattern
            if entry.kind is EntryKind.FILE and not entry.exclude | entry.optional
        }
        for path in missing.keys() - set(matches):
            message = f"{what} names `{shown(path)}`, but no node writes it and it does not exist"
            self.complaints.add(Diagnostic(message, origin))
            self.complaints.broken.add(declaration.name)
        if not matches:
            message = f"{what} matches nothing, so there is no node `{shown(declaration.name)}`"
            self.complaints.add(Diagnostic(message, origin, severity=Severity.WARNING))
        for node in make_instances(declaration, item.combination, matches, self.complaints):
            self._keep(node)

    def _keep(self, node: Node) -> None:
        if node.name in self._taken:
            message = f"Two nodes are both named `{shown(node.name)}`"
            self.complaints.add(Diagnostic(message, node.origin))
            self.complaints.broken.add(declared_name(node.name))
            return
        self._taken.add(node.name)
        self._items.append(node)


def _forget_names(node: Node, names: Collection[str]) -> Node:
    after = tuple(text for text in node.after if not _is_one_of(text, node, names))
    return node if len(after) == len(node.after) else replace(node, after=after)


def _is_one_of(text: str, node: Node, names: Collection[str]) -> bool:
    """Whether `text` in `node` can mean one of `names`: in its own file or further out."""
    parts = declared_name(node.name).split(":")[:-1]
    return any(":".join((*parts[:n], text)) in names for n in range(len(parts), -1, -1))


def _combinations(declaration: Declaration, complaints: Complaints) -> list[Mapping[str, str]]:
    """Every combination of the `matrix`, at least one; an empty one without a `matrix`."""
    matrix = declaration.keys.get("matrix")
    if matrix is None:
        return [{}]

    def complain(message: str, *keys: str | int, hint: str | None = None) -> None:
        origin = declaration.place("matrix", *keys)
        what = subject(origin.keys, declaration.name)
        complaints.add(Diagnostic(f"{what} {message}", origin, hint=hint))
        complaints.broken.add(declaration.name)

    known = {"params": declaration.scope.params}
    axes: list[list[tuple[str, str]]] = []
    for axis in sorted(matrix):
        why = find_template_name_fault(axis)
        if why is not None:
            complain(f"cannot be used in templates: {why}", axis)
        texts: dict[str, None] = {}
        for number, value in enumerate(matrix[axis]):
            text = describe(value)
            try:
                text = scalar_text(value)
                text = render(text, known)
            except TemplateError:
                origin = declaration.place("matrix", axis, number)
                complaints.add_template_faults(text, known, origin, declaration.name)
            except ValueError:
                complain("is too large a number", axis, number)
            if text in texts:
                complain(f"repeats {describe(text)}", axis, number)
            texts[text] = None
        axes.append([(axis, text) for text in texts])
    count = math.prod(map(len, axes))
    if count > LARGEST_MATRIX:
        complain(f"makes {count:,} nodes, more than {LARGEST_MATRIX:,}")
        axes = [axis[:1] for axis in axes]
    return [dict(choice) for choice in itertools.product(*axes)]
