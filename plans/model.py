"""The compiled plan: the words every part of assay shares.

Immutable values only. This module does not know how a plan file is written, where
the workspace lies on disk, or how anything is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import NewType

NodeName = NewType("NodeName", str)
"""A node's full name: `cc[src/main.c]`, `web:bundle`."""

RelPath = NewType("RelPath", str)
"""A path relative to the workspace root: `/`-separated, normalised, never absolute,
never leading outside the root. The root itself is `.`."""

Digest = NewType("Digest", str)
"""64 lower-case hex digits of a BLAKE3 digest."""

PlanKey = NewType("PlanKey", str)
"""Digest of a node's declarations and its upstream plan keys: known before anything runs."""


class Kind(StrEnum):
    """What a node is. `step` and `agent` come from the plan file's `kind` key."""

    STEP = "step"
    AGENT = "agent"
    GROUP = "group"
    """Nothing to execute: a name for what it follows."""
    TEMPLATE = "template"
    """A `foreach` over written paths: expands into a new generation once they exist."""


class Tier(StrEnum):
    """How far a node's effects reach."""

    SEALED = "sealed"
    """Pure: only what it writes, so that a result may be kept and a crash is no matter."""
    COMPENSABLE = "compensable"
    """Can be rolled back."""
    IRREVERSIBLE = "irreversible"
    """Crosses into the world."""


class Boundary(StrEnum):
    DECLARED = "declared"
    ENFORCED = "enforced"
    ISOLATED = "isolated"


class When(StrEnum):
    """On which outcomes of what it follows a node runs."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class Background(StrEnum):
    """What becomes of processes a node leaves behind."""

    END = "end"
    KEEP = "keep"


class CacheScope(StrEnum):
    SHARED = "shared"
    PLAN = "plan"
    RUN = "run"


class ResultKind(StrEnum):
    JSON = "json"
    TEXT = "text"


class ResourceScope(StrEnum):
    RUN = "run"
    HOST = "host"
    """Shared by every assay run of this user on this machine."""


class EntryKind(StrEnum):
    FILE = "file"
    TREE = "tree"
    GLOB = "glob"


class EdgeKind(IntFlag):
    """Why one node follows another; one edge may have several reasons."""

    AFTER = 1
    VALUE = 2
    PATH = 4
    """What the one writes overlaps what the other reads."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `reads` or `writes`.

    `path` is a literal path for FILE and TREE (without trailing slash; the workspace
    root as a tree is `.`) and a root-relative pattern for GLOB. `exclude` entries
    (`!pattern`) take away what earlier entries brought; later entries win.
    """

    kind: EntryKind
    path: RelPath
    exclude: bool = False
    optional: bool = False

    def __str__(self) -> str:
        text = self.path + "/" if self.kind is EntryKind.TREE else str(self.path)
        return "!" + text if self.exclude else text


@dataclass(frozen=True, slots=True)
class Argv:
    """A command executed without a shell; every element already rendered."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A script handed to `shell` as its last argument."""

    script: str
    shell: tuple[str, ...]


Command = Argv | Script


def argv_of(command: Command) -> tuple[str, ...]:
    """What is executed: program and arguments."""
    match command:
        case Argv():
            return command.argv
        case Script():
            return (*command.shell, command.script)


@dataclass(frozen=True, slots=True)
class Plain:
    """An environment value known from the plan."""

    value: str


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A projection of another node's result: `{ from = "NODE", path = "a.b.0" }`.

    `path` is the split path, `()` for the whole value.
    """

    node: NodeName
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable of the caller's environment that is masked everywhere."""

    name: str
    keyed: bool = False


EnvValue = Plain | ValueRef | Secret


@dataclass(frozen=True, slots=True)
class Tool:
    """An executable whose content (or the printed output of `version`) is in the key."""

    name: str
    version: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed attempt is tried again. Times in seconds.

    `attempts` counts the first try too. `exit_codes` empty: any failure is retried.
    """

    attempts: int = 1
    backoff_seconds: float = 1.0
    factor: float = 2.0
    max_backoff_seconds: float = 60.0
    exit_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`enabled` None: the default rule (a node with no reads, no writes and no
    references runs every time)."""

    enabled: bool | None = None
    ttl_seconds: float | None = None
    scope: CacheScope = CacheScope.SHARED


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a declaration stands: a plan file and the key path inside it.

    `file` is the plan file's path relative to the workspace root (`-` for standard
    input); `keys` e.g. ("nodes", "cc", "reads", 0).
    """

    file: str
    keys: tuple[str | int, ...] = ()

    def at(self, *more: str | int) -> Origin:
        return Origin(self.file, self.keys + more)


@dataclass(frozen=True, slots=True)
class Template:
    """A `foreach` whose paths another node writes.

    `pattern` is what to match once the writers settled; `declaration` is canonical JSON
    from which `assay.plans.generations` makes the instances.
    """

    pattern: tuple[Entry, ...]
    declaration: str


@dataclass(frozen=True, slots=True)
class Node:
    """One unit of work with its boundary, fully expanded.

    Every field is classified as in or out of the action key by
    `assay.engine.keys.FIELDS`; a test fails for a field nobody classified.
    """

    name: NodeName
    origin: Origin
    kind: Kind = Kind.STEP
    description: str = ""
    tags: tuple[str, ...] = ()
    command: Command | None = None
    workdir: RelPath = RelPath(".")
    reads: tuple[Entry, ...] = ()
    writes: tuple[Entry, ...] = ()
    removes: tuple[RelPath, ...] = ()
    ignore: tuple[str, ...] = ()
    """gitignore patterns for globs and source trees, built-in ones not included."""
    tools: tuple[Tool, ...] = ()
    after: tuple[NodeName, ...] = ()
    """Names of nodes in this plan, globs and group names already resolved, sorted."""
    when: When = When.SUCCESS
    env: tuple[tuple[str, EnvValue], ...] = ()
    """Sorted by name; `[env]` of the file merged in, the node's own values win."""
    pass_env: tuple[str, ...] = ()
    tier: Tier = Tier.SEALED
    """A template has that of its instances."""
    idempotency_key: str | None = None
    """Rendered. Not sealed only: with it an effect may be repeated."""
    undo: Command | None = None
    """Compensable only."""
    boundary: Boundary = Boundary.DECLARED
    clean: bool = True
    background: Background = Background.END
    priority: int = 0
    timeout_seconds: float | None = None
    grace_seconds: float = 10.0
    cancellable: bool = True
    retry: Retry = Retry()
    resources: tuple[tuple[str, int], ...] = ()
    locks: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Capabilities; sorted."""
    cache: CachePolicy = CachePolicy()
    nondeterministic: bool = False
    result: ResultKind | None = None
    max_result_bytes: int = 1 << 20
    template: Template | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    name: str
    amount: int
    scope: ResourceScope = ResourceScope.RUN


@dataclass(frozen=True, slots=True)
class Plan:
    """The compiled, immutable graph. Equal declarations give an equal `digest`.

    `dependencies[i]` holds the indices of the nodes that node i follows, ascending;
    `edge_kinds[i]` says why, in the same order. Nodes keep plan-file order; generations
    append nodes and never change an index. `plan_keys` runs parallel to `nodes`.
    """

    name: str
    nodes: tuple[Node, ...]
    dependencies: tuple[tuple[int, ...], ...]
    edge_kinds: tuple[tuple[EdgeKind, ...], ...]
    plan_keys: tuple[PlanKey, ...]
    digest: Digest
    base_digest: Digest
    """The digest of generation 0."""
    generation: int = 0
    file: str = "plan.toml"
    """The plan file's path within the root, `-` for standard input."""
    default: tuple[NodeName, ...] | None = None
    steps: int | None = None
    agents: int | None = None
    resources: tuple[Resource, ...] = ()
    outputs: tuple[tuple[str, ValueRef], ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    base_size: int = 0
    """How many nodes generation 0 has; those behind them are instances of templates."""
