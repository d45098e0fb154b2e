"""From a plan file to a compiled plan: the only way in.

Reads the file and what it includes, collects what is wrong anywhere, and hands the nodes
to `assay.plans.compile`. Does not know how errors are shown nor what is done with the plan.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from assay.plans.compile import Draft, compile_plan
from assay.plans.diagnostics import Diagnostic, Mark, Note, PlanError, Severity, shown, suggest
from assay.plans.documents import (
    STDIN,
    Document,
    Source,
    Unreadable,
    parse_source,
    read_bytes,
    validate_source,
)
from assay.plans.expand import Expansion
from assay.plans.folders import Folders
from assay.plans.foreach import ForeachMatch
from assay.plans.ignore import is_ignore_pattern, rebase_ignore_pattern
from assay.plans.model import Node, Origin, Plan, RelPath, Resource, ResourceScope, Tier
from assay.plans.nodes import (
    Complaints,
    Scope,
    declare,
    declared_name,
    find_name_fault,
    find_template_name_fault,
    make_env_values,
    make_value_ref,
    scalar_text,
)
from assay.plans.phrases import describe, subject
from assay.plans.positions import find_span
from assay.plans.templates import TemplateError, render

DEFAULT_SHELL: Final = ("/bin/sh", "-ec")

MOST_INCLUDES: Final = 10_000
"""Two includes of each file by the one before would double with every step."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """`path` is the plan file as the user gave it, `-` for the JSON text `stdin`. `params`
    override `[params]`, later ones earlier ones; `web:mode` is that of an include."""

    path: str
    params: tuple[tuple[str, str], ...] = ()
    cwd: str = "."
    stdin: str | None = None
    boundary: str | None = None
    """That of every node, whatever it declares."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """`root` is absolute, without links; `files` are the absolute paths of every plan file
    read; `sources` maps each origin's file to its text. `foreach` has every pattern that
    was matched against source paths, so that a later run can tell whether it would match
    alike."""

    plan: Plan
    root: str
    files: tuple[str, ...]
    sources: dict[str, str]
    warnings: tuple[Diagnostic, ...]
    foreach: tuple[ForeachMatch, ...]


@dataclass(frozen=True, slots=True)
class _Included:
    """One use of a plan file. `path` is absolute, "" for standard input; `outer` is the use
    whose include it is."""

    document: Document
    path: str
    prefix: str
    base: RelPath
    outer: _Included | None


def load_plan(request: LoadRequest) -> Loaded:
    """The compiled plan. Nothing is written, no node's file is read.

    Raises PlanError with everything that is wrong, in the order of the files.
    """
    with _without_collection():
        return _Load(request).load()


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cyclic garbage meanwhile: loading makes millions of objects, nearly all
    of which stay, and looking through them again and again takes most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Load:
    def __init__(self, request: LoadRequest) -> None:
        self.request = request
        self.complaints = Complaints()
        self.documents: dict[str, Document] = {}
        self.folder = os.path.realpath(request.cwd)
        self.root = self.folder
        self.overrides = dict(request.params)
        self.unused = dict.fromkeys(self.overrides)
        self.params: dict[str, str] = {}
        self.names_are_certain = True

    def load(self) -> Loaded:
        top = self._read_top()
        uses = list(self._read_includes(top))
        expansion = Expansion(self.complaints)
        for use in uses:
            self._declare_nodes(use, expansion)
        self._refuse_unused_params()
        self._check_top(top.document, uses)
        nodes = expansion.settle(Folders(self.root))
        self._check_name(top, nodes)
        draft = self._draft(top, uses)
        sources = {use.document.file: use.document.text for use in uses}
        plan, warnings = self._compile(draft, nodes, sources)
        return Loaded(
            plan=plan,
            root=self.root,
            files=tuple(dict.fromkeys(use.path for use in uses if use.path)),
            sources=sources,
            warnings=_in_file_order((*self.complaints.warnings.values(), *warnings), sources),
            foreach=tuple(expansion.foreach),
        )

    # Files

    def _read_top(self) -> _Included:
        request = self.request
        if request.path == STDIN:
            path, file = "", STDIN
            content = (request.stdin or "").encode("utf-8", "surrogateescape")
        else:
            path = os.path.normpath(os.path.join(request.cwd, request.path))
            # Links on the way are resolved, the file's own name is kept.
            self.folder = os.path.realpath(os.path.dirname(path) or ".")
            file = os.path.basename(path)
            path = os.path.join(self.folder, file)
            try:
                content = read_bytes(path)
            except Unreadable as error:
                message = f"`{shown(request.path)}` {error.reason}"
                raise PlanError([Diagnostic(message, hint=error.hint)], {}) from None
        source = parse_source(content, file, as_json=not path or path.endswith(".json"))
        if path and source.data is not None:
            file = os.path.relpath(path, self._find_root(source.data))
            source = _placed_in(source, file)
        document = validate_source(source, file)
        if source.data is None:
            raise PlanError(document.faults, {file: source.text})
        self.root = self._find_root(document.declared)
        if not os.path.isdir(self.root):
            root = document.declared["root"]
            message = f"`root` is {describe(root)}, but there is no such folder"
            self.complaints.add(Diagnostic(message, Origin(file, ("root",))))
        self.documents[os.path.realpath(path) if path else ""] = document
        self._take_faults(document, "")
        return _Included(document, path, "", RelPath("."), None)

    def _find_root(self, declared: Mapping[str, Any]) -> str:
        root = declared.get("root")
        return os.path.realpath(os.path.join(self.folder, root if isinstance(root, str) else "."))

    def _read_includes(self, top: _Included) -> Iterator[_Included]:
        """Every use of a file: the top one, then each include before the next."""
        waiting = [top]
        count = 0
        while waiting:
            use = waiting.pop()
            yield use
            inner = []
            for name, target in use.document.declared.get("include", {}).items():
                count += 1
                included = self._read_include(use, name, target) if count <= MOST_INCLUDES else None
                if included is not None:
                    inner.append(included)
            waiting.extend(reversed(inner))
        if count > MOST_INCLUDES:
            origin = Origin(top.document.file, ("include",))
            message = f"The plan includes more than {MOST_INCLUDES:,} files"
            self.complaints.add(Diagnostic(message, origin))

    def _read_include(self, use: _Included, name: str, target: str) -> _Included | None:
        origin = Origin(use.document.file, ("include", name))
        what = subject(origin.keys)

        def refuse(message: str, hint: str | None = None, mark: Mark = Mark.VALUE) -> None:
            self.complaints.add(Diagnostic(message, origin, mark, hint))
            self.names_are_certain = False

        fault = find_name_fault(name)
        if fault is not None:
            why, hint = fault
            refuse(
                f"`{shown(name)}` cannot be the name of an include: {why}" if name else why,
                hint,
                Mark.KEY,
            )
            return None
        folder = os.path.dirname(use.path) if use.path else self.folder
        path = os.path.normpath(os.path.join(folder, target))
        if not path.startswith(self.root.rstrip("/") + "/"):
            refuse(f"{what} is {describe(target)}, which lies outside the workspace")
            return None
        identity = os.path.realpath(path)
        trail = [path]
        outer: _Included | None = use
        while outer is not None:
            trail.append(outer.path)
            if outer.path and os.path.realpath(outer.path) == identity:
                files = " -> ".join(f"`{self._name(each)}`" for each in reversed(trail))
                refuse(f"Plan files include each other: {files}")
                return None
            outer = outer.outer
        document = self.documents.get(identity)
        if document is None:
            file = self._name(path)
            try:
                content = read_bytes(path)
            except Unreadable as error:
                refuse(
                    f"`include.{shown(name)}` is {describe(target)}, which {error.reason}",
                    error.hint,
                )
                return None
            source = parse_source(content, file, as_json=path.endswith(".json"))
            document = self.documents[identity] = validate_source(source, file)
            if source.data is None:
                self.names_are_certain = False
        prefix = f"{use.prefix}{name}:"
        self._take_faults(document, prefix)
        base = RelPath(self._name(os.path.dirname(path)))
        return _Included(document, path, prefix, base, use)

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _take_faults(self, document: Document, prefix: str) -> None:
        for fault in document.faults:
            self.complaints.add(fault)
        self.complaints.broken.update(prefix + name for name in document.broken_nodes)

    # Nodes

    def _declare_nodes(self, use: _Included, expansion: Expansion) -> None:
        declared, file = use.document.declared, use.document.file
        scope = self._make_scope(use)
        defaults = declared.get("defaults", {})
        tier_is_known = not any(
            fault.origin is not None and fault.origin.keys[:1] == ("defaults",)
            for fault in use.document.faults
        )
        for name, own in declared.get("nodes", {}).items():
            declaration = declare(
                scope,
                name,
                own,
                defaults,
                self.complaints,
                tier_is_known=tier_is_known,
                boundary=self.request.boundary,
            )
            if declaration is None:
                expansion.add_stand_in(use.prefix + name, Origin(file, ("nodes", name)))
            else:
                expansion.add(declaration)

    def _make_scope(self, use: _Included) -> Scope:
        declared, file = use.document.declared, use.document.file
        params = self._resolve_params(use)

        def complain(message: str, hint: str | None, *keys: str | int) -> None:
            origin = Origin(file, keys)
            self.complaints.add(Diagnostic(f"{subject(keys)}{message}", origin, hint=hint))

        env = {
            name: self._render_env(value, params, Origin(file, ("env", name)))
            for name, value in declared.get("env", {}).items()
        }
        return Scope(
            file=file,
            prefix=use.prefix,
            base=use.base,
            root=self.root,
            params=params,
            env=env,
            env_values=make_env_values(env, complain),
            shell=tuple(declared.get("shell", DEFAULT_SHELL)),
            ignore=tuple(self._make_ignore(use)),
        )

    def _render_env(self, value: Any, params: Mapping[str, str], origin: Origin) -> Any:
        if isinstance(value, Mapping):
            return {key: self._render_env(v, params, origin.at(key)) for key, v in value.items()}
        if not isinstance(value, str):
            return value
        try:
            return render(value, {"params": params})
        except TemplateError:
            self.complaints.add_template_faults(value, {"params": params}, origin)
            return value

    def _resolve_params(self, use: _Included) -> dict[str, str]:
        params: dict[str, str] = {}
        for name, value in use.document.declared.get("params", {}).items():
            origin = Origin(use.document.file, ("params", name))
            fault = find_template_name_fault(name)
            if fault is not None:
                message = f"`{shown(name)}` cannot be the name of a param: {fault}"
                self.complaints.add(Diagnostic(message, origin, Mark.KEY))
            full_name = use.prefix + name
            self.unused.pop(full_name, None)
            try:
                params[name] = self.overrides.get(full_name, scalar_text(value))
            except ValueError:
                message = f"{subject(origin.keys)} is too large a number"
                self.complaints.add(Diagnostic(message, origin))
                params[name] = ""
            self.params[full_name] = params[name]
        return params

    def _refuse_unused_params(self) -> None:
        if not self.names_are_certain:
            return
        for name in self.unused:
            meant = suggest(name, self.params)
            hint = "Params are declared under `[params]`."
            if meant is not None:
                hint = f"Did you mean `-p {meant}=…`?"
            message = f"The plan has no param `{shown(name)}`"
            self.complaints.add(Diagnostic(message, hint=hint))

    def _make_ignore(self, use: _Included) -> Iterator[str]:
        """The patterns, those of an include relative to its folder."""
        for number, pattern in enumerate(use.document.declared.get("ignore", ())):
            if is_ignore_pattern(pattern):
                yield rebase_ignore_pattern(pattern, use.base)
            else:
                origin = Origin(use.document.file, ("ignore", number))
                message = f"`ignore` has {describe(pattern)}, which is no gitignore pattern"
                self.complaints.add(Diagnostic(message, origin))

    # The whole plan

    def _check_top(self, document: Document, uses: Iterable[_Included]) -> None:
        if "remote" in document.declared:
            origin = Origin(document.file, ("remote",))
            self.complaints.add(Diagnostic("`[remote]` is not available yet", origin, Mark.KEY))
        has_nodes = any(use.document.declared.get("nodes") for use in uses)
        if not has_nodes and not self.complaints.errors:
            origin = Origin(document.file)
            message = "The plan has no nodes"
            hint = 'A node is a table `[nodes.NAME]` with a command: `run = "…"`.'
            self.complaints.add(Diagnostic(message, origin, hint=hint, line=1, column=1))

    def _check_name(self, top: _Included, nodes: Iterable[Node]) -> None:
        """Effects stay open until a later run of the same plan; one that comes down a pipe is
        known by its name only."""
        document = top.document
        if top.path or "name" in document.declared:
            return
        if any(f.origin is not None and len(f.origin.keys) == 1 for f in document.faults):
            return  # A top-level key that was not understood may have been the name.
        node = next((node for node in nodes if node.tier is not Tier.SEALED), None)
        if node is None:
            return
        message = (
            f"The plan on standard input has no `name`, but node `{shown(node.name)}` is "
            f"{node.tier}"
        )
        hint = 'Add "name": "…", by which the next run finds out what this one did.'
        notes = (Note(f"`{shown(node.name)}` is declared here", node.origin),)
        origin = Origin(document.file)
        self.complaints.add(Diagnostic(message, origin, hint=hint, notes=notes, line=1, column=1))

    def _draft(self, top: _Included, uses: Iterable[_Included]) -> Draft:
        declared = top.document.declared
        concurrency = declared.get("concurrency", {})
        default = declared.get("default")
        files = dict.fromkeys(use.document.file for use in uses if use.path)
        return Draft(
            name=declared.get("name") or os.path.basename(self.folder) or "plan",
            file=top.document.file,
            default=None if default is None else tuple(default),
            steps=concurrency.get("steps"),
            agents=concurrency.get("agents"),
            resources=tuple(self._collect_resources(uses)),
            outputs=tuple(
                (name, make_value_ref(value))
                for name, value in sorted(declared.get("outputs", {}).items())
            ),
            params=tuple(sorted(self.params.items())),
            plan_files=tuple(RelPath(file) for file in files if not file.startswith("../")),
            root=self.root,
        )

    def _collect_resources(self, uses: Iterable[_Included]) -> list[Resource]:
        found: dict[str, tuple[Resource, Origin]] = {}
        for use in uses:
            for name, value in use.document.declared.get("resources", {}).items():
                if isinstance(value, int):
                    resource = Resource(name, value)
                else:
                    scope = ResourceScope(value.get("scope", ResourceScope.RUN))
                    resource = Resource(name, value["amount"], scope)
                origin = Origin(use.document.file, ("resources", name))
                first, first_origin = found.setdefault(name, (resource, origin))
                if first != resource:
                    message = (
                        f"Resource `{shown(name)}` is {_describe_resource(resource)} here, but "
                        f"{_describe_resource(first)} in `{shown(first_origin.file)}`"
                    )
                    notes = (Note("first declared here", first_origin),)
                    self.complaints.add(Diagnostic(message, origin, notes=notes))
        return [found[name][0] for name in sorted(found)]

    def _compile(
        self, draft: Draft, nodes: list[Node], sources: dict[str, str]
    ) -> tuple[Plan, tuple[Diagnostic, ...]]:
        own = list(self.complaints.errors.values())
        if own and not self.names_are_certain:
            raise self._error(own, sources)
        try:
            compiled = compile_plan(draft, nodes, sources)
        except PlanError as error:
            found: Iterable[Diagnostic] = error.diagnostics
            if own:
                found = _find_certain(found, self.complaints.broken)
            raise self._error([*own, *found], sources) from None
        if own:
            raise self._error(own, sources)
        return compiled

    def _error(self, diagnostics: list[Diagnostic], sources: dict[str, str]) -> PlanError:
        everything = (*diagnostics, *self.complaints.warnings.values())
        return PlanError(_in_file_order(everything, sources), sources)


def _find_certain(
    diagnostics: Iterable[Diagnostic], broken_nodes: Iterable[str]
) -> Iterator[Diagnostic]:
    """What is wrong with the rest of a plan whatever its faults hide.

    That is what is about names, unless it names a node with a fault; what is about paths
    may only follow from a key that could not be used.
    """
    broken = {name.rpartition(":")[2] for name in broken_nodes}
    for diagnostic in diagnostics:
        keys = diagnostic.origin.keys if diagnostic.origin is not None else ()
        is_about_names = keys[:1] in {("default",), ("outputs",)}
        if keys[:1] == ("nodes",):
            is_about_names = keys[2:3] in {("after",), ("env",)}
        if not is_about_names or diagnostic.severity is not Severity.ERROR:
            continue
        own = {str(keys[1])} if keys[0] == "nodes" else set()
        quoted = re.findall(r"`([^`]*)`", diagnostic.message)
        named = {declared_name(name).rpartition(":")[2] for name in quoted}
        if not (named - own) & broken:
            yield diagnostic


def _placed_in(source: Source, file: str) -> Source:
    """The same with its faults placed by the file's name within the root, now known."""
    faults = [
        replace(
            fault,
            origin=Origin(file, fault.origin.keys if fault.origin else ()),
            notes=tuple(
                replace(note, origin=Origin(file, note.origin.keys) if note.origin else None)
                for note in fault.notes
            ),
        )
        for fault in source.faults
    ]
    return replace(source, faults=tuple(faults))


def _describe_resource(resource: Resource) -> str:
    shared = " for the whole host" if resource.scope is ResourceScope.HOST else ""
    return f"{describe(resource.amount)}{shared}"


def _in_file_order(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]
) -> tuple[Diagnostic, ...]:
    """What stands nowhere first, then file by file as they were read, from top to bottom."""
    order = {file: number for number, file in enumerate(sources)}

    def place(diagnostic: Diagnostic) -> tuple[int, int, int]:
        origin = diagnostic.origin
        if origin is None:
            return (-1, 0, 0)
        number = order.get(origin.file, -1)
        if diagnostic.line is not None:
            return (number, diagnostic.line, diagnostic.column or 0)
        span = find_span(sources.get(origin.file, ""), origin.keys, diagnostic.mark)
        return (number, 0, 0) if span is None else (number, span.line, span.column)

    return tuple(sorted(dict.fromkeys(diagnostics), key=place))
