"""Where the command of one attempt works, and what it may reach there.

`declared`: in the workspace, with nothing in its way. `enforced`: in the workspace, where the
kernel holds what it may reach; in a private tree where a folder that it must be able to write in
holds more than its own. `isolated`: always in a private tree. Decided before the attempt begins,
by what the plan says and the disk holds. Does not know how commands are started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from stat import S_ISDIR

from assay.engine.confinement import (
    Outside,
    find_private,
    find_reads,
    folders_opened,
    is_within,
)
from assay.engine.filesystem import FilesystemError, Obstacles, Trash, look
from assay.engine.landlock import READ, WRITE, Domain, Rule
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.outputs import states_before
from assay.engine.private_tree import PrivateTree, Strays, walk
from assay.engine.states import State
from assay.plans.entries import fixed_folder, matches
from assay.plans.model import Boundary, EntryKind, Node, Plan, RelPath

NETWORK = "network"
"""The capability, in `requires`, without which a held node has no network."""

_NEVER_OPENED = frozenset({".assay", ".git"})


class Unremembered:
    """A stat cache for files that are nobody's: it keeps nothing."""

    def lookup(self, _path: RelPath, _stat: os.stat_result) -> State | None:
        return None

    def remember(
        self, _path: RelPath, _stat: os.stat_result, _state: State, _measured_at_ns: int
    ) -> None:
        pass


class Writers:
    """Which nodes of a plan write or remove something in a folder, or in one around it."""

    def __init__(self, plan: Plan) -> None:
        self._within: dict[str, set[int]] = {}
        """Folder to the nodes that write in it or below."""
        self._whole: dict[str, set[int]] = {}
        """Folder to the nodes that write whatever lies in it: trees and globs."""
        self._indexed = 0
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Takes in the nodes of a new generation."""
        for index in range(self._indexed, len(plan.nodes)):
            node = plan.nodes[index]
            paths: list[str] = list(node.removes)
            for entry in node.writes:
                if entry.exclude:
                    continue
                path: str = entry.path
                if entry.kind is not EntryKind.FILE:
                    path = path if entry.kind is EntryKind.TREE else fixed_folder(entry.path)
                    self._whole.setdefault("" if path == "." else path, set()).add(index)
                paths.append("" if path == "." else path)
            for path in paths:
                for folder in _folders_of(path):
                    self._within.setdefault(folder, set()).add(index)
        self._indexed = len(plan.nodes)

    def are_alone(self, index: int, folder: str) -> bool:
        """Whether no other node writes in the folder."""
        found = set(self._within.get(folder, ()))
        for outer in _folders_of(folder):
            found |= self._whole.get(outer, set())
        return found <= {index}


@dataclass(slots=True)
class Workplace:
    """That of one attempt whose boundary is held."""

    root: str
    """Absolute; what the node's paths are relative to."""
    opened: tuple[str, ...]
    """Folders, relative, in which the command may write."""
    measurer: Measurer
    """Of what lies below `root`."""
    tree: PrivateTree | None
    """None: it works in the workspace."""
    base: dict[RelPath, State] = field(default_factory=dict)
    """How what it may write and remove stood in the workspace when the tree was made."""

    def prepare(self, node: Node, workspace: Measurer, reads: Mapping[RelPath, State]) -> None:
        """Makes the private tree, if it is one. Worker thread. Raises FilesystemError."""
        if self.tree is None:
            return
        self.base = states_before(node, workspace)
        more = list(node.removes)
        if not node.clean:
            # An incremental tool goes on from what it left.
            more += self.base
        try:
            self.base |= {path: workspace.state_of(path) for path in node.removes}
        except Unmeasurable as error:
            raise FilesystemError(f"{workspace.root}/{error.path}", error.reason) from error
        self.base |= {path: state for path, state in reads.items() if matches(node.writes, path)}
        folders = {folder for folder in self.opened if folder}
        folders |= {node.workdir} - {"."}
        for entry in node.writes:
            if not entry.exclude and entry.kind is not EntryKind.GLOB:
                folders.add(os.path.dirname(entry.path))
        self.tree.stage(
            reads, more, sorted(folders - {""}), lambda path: matches(node.writes, path)
        )

    def find_domain(
        self,
        node: Node,
        workspace: str,
        outside: Outside,
        reads: Mapping[RelPath, State],
        folder: str,
        log: str | None,
    ) -> Domain:
        """What the command may reach: `folder` is the attempt's own temporary one, `log` None
        where its output goes to no file."""
        rules = list(find_private(folder, log))
        if self.tree is None:
            rules += find_reads(workspace, node.reads, reads)
        else:
            rules.append(Rule(self.root, READ))
            rules += _rules_behind_links(workspace, reads)
        rules += [
            Rule(f"{self.root}/{each}" if each else self.root, READ | WRITE) for each in self.opened
        ]
        return Domain(tuple(rules), NETWORK in node.requires, outside.find)

    def translate(self, workspace: str, path: str | None) -> str | None:
        """Where what lies at the absolute `path` is for the command."""
        if path is not None and path.startswith(f"{workspace}/"):
            return self.root + path[len(workspace) :]
        return path

    def translate_search(self, workspace: str, search: str) -> str:
        """A PATH with the folders of the workspace as they are for the command."""
        folders = search.split(os.pathsep)
        return os.pathsep.join(self.translate(workspace, folder) or "" for folder in folders)

    def find_removed(self, node: Node) -> tuple[RelPath, ...]:
        """Of what the command found, and may write: what it has removed."""
        assert self.tree is not None
        return self.tree.find_removed(
            lambda path: matches(node.writes, path) and path not in node.removes
        )

    def set_aside(self, strays: Strays, trash: str) -> dict[RelPath, str]:
        """Files that were left in the workspace itself and nobody declared, out of the way of
        whoever looks there next; where each is now. Raises FilesystemError."""
        if self.tree is not None:
            return {}
        waste = Trash(trash)
        return {path: waste.move(f"{self.root}/{path}", path) for path in strays.created}

    def find_strays(self, node: Node) -> Strays:
        """What the command did beyond what it declares, in the folders it could write in."""

        def is_declared(path: RelPath) -> bool:
            return path in node.removes or matches(node.writes, path)

        if self.tree is not None:
            return self.tree.find_strays(is_declared)
        created = [
            RelPath(f"{folder}/{path}")
            for folder in self.opened
            for path, info in walk(f"{self.root}/{folder}")
            if not S_ISDIR(info.st_mode) and not is_declared(RelPath(f"{folder}/{path}"))
        ]
        return Strays(tuple(sorted(created)), (), ())


def plan_workplace(
    node: Node,
    index: int,
    writers: Writers,
    workspace: str,
    place: str,
    now_ns: Callable[[], int],
    measurer: Measurer,
) -> Workplace | None:
    """That of a node; None where its boundary is only declared. A private tree is to be made at
    `place`, absolute. Asks the disk, changes nothing."""
    if node.boundary is Boundary.DECLARED:
        return None
    opened = folders_opened(node.writes, node.removes)
    if node.boundary is Boundary.ENFORCED and all(
        _may_be_opened(node, index, folder, writers, workspace) for folder in opened
    ):
        return Workplace(workspace, opened, measurer, None)
    tree = PrivateTree(workspace, place, opened)
    return Workplace(place, opened, Measurer(place, Unremembered(), now_ns), tree)


def _may_be_opened(node: Node, index: int, folder: str, writers: Writers, workspace: str) -> bool:
    """Whether nothing lies in the folder, or is put there by others, but what the node writes."""
    if not folder or folder.split("/", 1)[0] in _NEVER_OPENED:
        return False
    if not writers.are_alone(index, folder) or Obstacles(workspace).find(f"{folder}/_"):
        return False
    if any(_reads_within(entry.path, folder) for entry in node.reads if not entry.exclude):
        return False
    info = look(f"{workspace}/{folder}")
    if info is None:
        return True
    try:
        for path, each in walk(f"{workspace}/{folder}"):
            full = RelPath(f"{folder}/{path}")
            if path.rsplit("/", 1)[-1] in _NEVER_OPENED:
                return False
            if not S_ISDIR(each.st_mode) and not matches(node.writes, full):
                return False
    except FilesystemError:
        return False
    return True


def _reads_within(path: str, folder: str) -> bool:
    """Whether what an entry names may lie in the folder."""
    fixed = fixed_folder(RelPath(path)) if any(c in path for c in "*?[") else path
    fixed = "" if fixed == "." else fixed
    return is_within(fixed, folder) or is_within(folder, fixed)


def _rules_behind_links(workspace: str, reads: Mapping[RelPath, State]) -> Iterator[Rule]:
    """What links lead to that are not followed within a private tree, by absolute paths or by way
    of what is outside: they lead into the workspace."""
    for path, state in reads.items():
        if state.startswith("link:") and ">" in state:
            try:
                text = os.readlink(f"{workspace}/{path}")
            except OSError:
                continue  # gone since it was measured, which is told when the node is over
            if os.path.normpath(os.path.join(os.path.dirname(path), text)).startswith(("/", "../")):
                yield from find_reads(workspace, (), {path: state})


def _folders_of(path: str) -> Iterator[str]:
    """The path itself and every folder above it, "" last."""
    while path:
        yield path
        path = os.path.dirname(path)
    yield ""
