"""What a run has seen of the workspace: pins of source inputs, glob memberships, and what
each settled node left at its paths.

The world is observed once. Sources are measured when their nodes enter the run; produced
paths take the states their producers recorded. Nothing here writes, but for the removal
of what node instances that are gone from the plan have left among a glob's matches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from assay.engine.environment import Refused
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.results import Results
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.entries import matches, overlap
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.model import (
    EdgeKind,
    Entry,
    EntryKind,
    Kind,
    Node,
    NodeName,
    Plan,
    RelPath,
    When,
)

Group = tuple[tuple[Entry, ...], tuple[str, ...]]
"""Read entries with a pattern among them, and the ignore patterns that apply."""


class RecordedOutputs(Protocol):
    """What the store knows of outputs recorded in earlier runs."""

    def writers_of(self, path: RelPath) -> Sequence[tuple[str, str, State]]:
        """(plan file, node, state) of everyone who recorded `path` last."""


class WriteIndex:
    """Which nodes declare a path among their writes; a look-up costs the path's depth."""

    def __init__(self) -> None:
        self._files: dict[str, list[int]] = {}
        self._trees: dict[str, list[int]] = {}
        self._globs: dict[str, list[tuple[int, Entry]]] = {}
        self._nodes: dict[int, Node] = {}

    def add(self, index: int, node: Node) -> None:
        if node.writes:
            self._nodes[index] = node
        for entry in node.writes:
            if entry.exclude:
                continue
            if entry.kind is EntryKind.FILE:
                self._files.setdefault(entry.path, []).append(index)
            elif entry.kind is EntryKind.TREE:
                self._trees.setdefault(entry.path, []).append(index)
            else:
                self._globs.setdefault(_fixed_folder(entry.path), []).append((index, entry))

    def writers(self, path: RelPath) -> list[int]:
        """Every node whose declared writes name `path`."""
        found = list(self._files.get(path, ()))
        if self._trees or self._globs:
            for folder in _folders_of(path):
                found.extend(self._trees.get(folder, ()))
                for index, entry in self._globs.get(folder, ()):
                    if matches((entry,), path):
                        found.append(index)
        if len(found) > 1 or (found and self._nodes[found[0]].writes[-1].exclude):
            found = [i for i in dict.fromkeys(found) if matches(self._nodes[i].writes, path)]
        return found


@dataclass(slots=True)
class Reads:
    """What one node reads, as it should find it.

    `states` maps each path to the state that enters the key; `produced` names those of
    them that a node of this run left there.
    """

    states: dict[RelPath, State]
    produced: tuple[RelPath, ...] = ()


@dataclass(slots=True)
class Pins:
    """Source inputs and memberships as measured when their nodes entered the run."""

    states: dict[RelPath, State] = field(default_factory=dict)
    members: dict[Group, tuple[RelPath, ...]] = field(default_factory=dict)


class Observations:
    """See the module. One instance lives as long as its run."""

    def __init__(
        self,
        root: str,
        plan: Plan,
        measurer: Measurer,
        recorded: RecordedOutputs,
        *,
        remove: Callable[[str], object] | None,
    ) -> None:
        """`remove` deletes a file by absolute path; None for a question, which leaves
        everything where it is."""
        self.pins = Pins()
        self._pinned_members: Mapping[str, Sequence[RelPath]] = {}
        """What a run that goes on saw when it began, by the text of the patterns."""
        self._put_back: tuple[Entry, ...] = ()
        """Where the run itself has changed something since, by taking an effect back."""
        self.left_over: list[RelPath] = []
        """Outputs of vanished instances that were removed (or would be, in a question)."""
        self.folders = Folders(root)
        self._root = root
        self._measurer = measurer
        self._recorded = recorded
        self._remove = remove
        self._writes = WriteIndex()
        self._plan = plan
        self._removers: dict[RelPath, list[int]] = {}
        self._names: set[str] = set()
        self._indexed = 0
        self._current: dict[RelPath, State] = {}
        self._produced: dict[int, tuple[tuple[RelPath, State], ...]] = {}
        self._unmeasurable: dict[RelPath, str] = {}
        self._strays: dict[RelPath, str] = {}
        """Modified left-overs of vanished instances, and who wrote them."""
        self._broken_groups: dict[Group, str] = {}
        self._resolved: dict[tuple[Group, tuple[int, ...]], Reads] = {}
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Takes in the nodes of a new generation."""
        self._plan = plan
        for index in range(self._indexed, len(plan.nodes)):
            self._writes.add(index, plan.nodes[index])
            self._names.add(plan.nodes[index].name)
            if plan.nodes[index].when is not When.FAILURE:
                for path in plan.nodes[index].removes:
                    self._removers.setdefault(path, []).append(index)
        self._indexed = len(plan.nodes)

    def writers(self, path: RelPath) -> list[int]:
        return self._writes.writers(path)

    def changers(self, path: RelPath) -> list[int]:
        """Every node after which `path` is as it left it: writers, and those that remove it
        unless they run on failures only."""
        removers = self._removers.get(path)
        return self.writers(path) + removers if removers else self.writers(path)

    def adopt(
        self, states: Mapping[RelPath, State], members: Mapping[str, Sequence[RelPath]]
    ) -> None:
        """What was seen when the run began counts: nothing of it is looked at again."""
        self.pins.states.update(states)
        self._pinned_members = members

    def look_again(self, paths: Collection[RelPath]) -> None:
        """What is at these paths has been put back by the run itself: `pin` measures it anew."""
        self.folders = Folders(self._root)
        for path, state in list(self.pins.states.items()):
            # A link's state tells of what it leads to as well.
            if path in paths or state.startswith("link:"):
                del self.pins.states[path]
        for group in list(self.pins.members):
            if any(matches(group[0], path) for path in paths):
                del self.pins.members[group]
        self._resolved.clear()

    def look_again_within(self, entries: tuple[Entry, ...]) -> None:
        """As `look_again` for a run that was gone on with: what it saw when it began counts for
        all that these entries do not name."""
        self.folders = Folders(self._root)
        self._put_back += entries
        for path in [path for path in self.pins.states if matches(entries, path)]:
            del self.pins.states[path]
        self.pins.members.clear()
        self._resolved.clear()

    def is_looked_at_again(self, node: Node) -> bool:
        """Whether the node reads where `look_again_within` was told of."""
        return any(
            overlap(entry, other) is not None
            for other in self._put_back
            for entry in node.reads
            if not entry.exclude and not other.exclude
        )

    def pin(self, indices: Iterable[int], *, fresh_listing: bool = False) -> None:
        """Measures every source input of these nodes that is not pinned yet."""
        if fresh_listing:
            # Folders that a node wrote into were listed before it did.
            self.folders = Folders(self._root)
        wanted: dict[RelPath, None] = {}
        looked_at: set[tuple[Group, tuple[int, ...]]] = set()
        for index in indices:
            node = self._plan.nodes[index]
            producers = self._producers(index)
            deps = frozenset(producers)
            for entry in node.reads:
                is_file = entry.kind is EntryKind.FILE and not entry.exclude
                if is_file and not self._is_produced(entry.path, deps):
                    wanted[entry.path] = None
            group = _group_of(node)
            if group is not None and (group, producers) not in looked_at:
                looked_at.add((group, producers))
                for path in self._source_members(group):
                    if not self._is_produced(path, deps):
                        wanted[path] = None
        fresh = [path for path in wanted if path not in self.pins.states]
        states, unmeasurable = self._measurer.states_of(fresh)
        self.pins.states.update(states)
        self._unmeasurable.update(unmeasurable)

    def record(self, index: int, outputs: tuple[tuple[RelPath, State], ...]) -> None:
        """Node `index` settled, leaving `outputs`, or ran once more for who reads them."""
        if index in self._produced:
            self._resolved.clear()
        self._produced[index] = outputs
        self._current.update(outputs)
        for path in self._plan.nodes[index].removes:
            self._current[path] = ABSENT

    def made_within(self, entries: tuple[Entry, ...]) -> dict[RelPath, State]:
        """What nodes of this run have left, or removed, where these entries name it, or what lies
        above or below it."""
        return {
            path: state
            for path, state in self._current.items()
            if any(overlap(Entry(EntryKind.FILE, path), e) for e in entries if not e.exclude)
        }

    def is_of_another(self, index: int, path: RelPath, state: State) -> bool:
        """Whether this is what a node of this run other than `index` has left at `path`."""
        return index not in self._produced and self._current.get(path) == state

    def gather_outputs(self, index: int, instances: tuple[int, ...]) -> None:
        """A group settled, leaving nothing, or a template, leaving what its instances left."""
        outputs = [item for instance in instances for item in self._produced.get(instance, ())]
        self._produced[index] = tuple(outputs)

    def clear_vanished(self, template: NodeName, results: Results) -> None:
        """Removes what instances of `template` left that it no longer has, unmodified since;
        what was modified is refused to whoever would read it."""
        for name, paths in results.paths_of(self._plan.file).items():
            if name in self._names or not name.startswith(template + "["):
                continue
            for path, states in paths.items():
                self._clear_stray(path, name, states)

    def _clear_stray(self, path: RelPath, node: NodeName, states: frozenset[State]) -> None:
        if any(self._plan.nodes[w].kind is not Kind.TEMPLATE for w in self._writes.writers(path)):
            return  # another node writes it now
        try:
            state = self._measurer.state_of(path)
        except Unmeasurable:
            return  # whoever reads it is told
        if state in states:
            if self._remove is not None:
                self._remove(os.path.join(self._root, path))
            self.left_over.append(path)
        elif state != ABSENT:
            self._strays[path] = node

    def final_states(self) -> dict[RelPath, State] | None:
        """What stands at every path the run read or wrote, if the next run would find its
        inputs so; None when a node rewrote a source that others, or it itself, had read."""
        for path, state in self._current.items():
            if self.pins.states.get(path, state) != state:
                return None
        return {**self.pins.states, **self._current}

    def outputs_of(self, index: int) -> tuple[tuple[RelPath, State], ...]:
        return self._produced.get(index, ())

    def state_of_tool(self, path: RelPath) -> State:
        """A program in the workspace that a command turned out to use: as a node of this
        run left it, or pinned now. Raises Unmeasurable."""
        state = self._current.get(path) or self.pins.states.get(path)
        if state is None:
            state = self.pins.states[path] = self._measurer.state_of(path)
        return state

    def reads_of(self, index: int) -> Reads:
        """What node `index` reads if it is dispatched now. Raises Refused."""
        node = self._plan.nodes[index]
        producers = self._producers(index)
        deps = frozenset(producers)
        group = _group_of(node)
        if group is None:
            reads = Reads({})
        else:
            base = self._members(group, producers)
            reads = Reads(dict(base.states), base.produced)
        has_exclusions = any(entry.exclude for entry in node.reads)
        produced = list(reads.produced)
        for entry in node.reads:
            if entry.kind is not EntryKind.FILE or entry.exclude:
                continue
            path = entry.path
            if has_exclusions and not matches(node.reads, path):
                continue
            if self._is_produced(path, deps):
                state = self._current.get(path)
                if path not in reads.states:
                    produced.append(path)
            else:
                if path in self._unmeasurable:
                    raise Refused(f"reads `{path}`, which {self._unmeasurable[path]}")
                state = self.pins.states[path]
            if state is None or state == ABSENT:
                state = self._absent(node, entry, deps)
            elif state == FOLDER:
                raise Refused(f"reads `{path}` as a file, but it is a folder: write `{path}/`")
            elif state.startswith("link:") and ">" not in state:
                raise Refused(f"reads `{path}`, which is a link {self._explain_link(path)}")
            reads.states[path] = state
        reads.produced = tuple(produced)
        return reads

    def _explain_link(self, path: RelPath) -> str:
        """Where a link leads that leads to no plain file."""
        place = os.path.join(self._root, path)
        if os.path.isdir(place):
            return f"to a folder: write `{path}/`"
        return "to no plain file" if os.path.exists(place) else "that leads nowhere"

    def template_matches(self, index: int) -> tuple[RelPath, ...]:
        """What a template's pattern names now that the writers of its paths have settled.
        Raises Refused."""
        template = self._plan.nodes[index].template
        assert template is not None
        return tuple(
            sorted(
                path
                for path, state in self.reads_of(index).states.items()
                if state != ABSENT and matches(template.pattern, path)
            )
        )

    def _absent(self, node: Node, entry: Entry, producers: frozenset[int]) -> State:
        writers = [i for i in self._writes.writers(entry.path) if i in producers]
        settled_without = any(i not in self._produced for i in writers)
        if entry.optional or entry.path in node.removes:
            return ABSENT
        if node.when is not When.SUCCESS and settled_without:
            return ABSENT
        if writers:
            names = " and ".join(f"`{self._plan.nodes[i].name}`" for i in writers)
            raise Refused(f"reads `{entry.path}`, which {names} should have written but did not")
        raise Refused(f"reads `{entry.path}`, which does not exist")

    def _members(self, group: Group, producers: tuple[int, ...]) -> Reads:
        key = (group, producers)
        found = self._resolved.get(key)
        if found is not None:
            return found
        if group in self._broken_groups:
            raise Refused(self._broken_groups[group])
        states: dict[RelPath, State] = {}
        produced: list[RelPath] = []
        deps = frozenset(producers)
        for path, writer in self._strays.items():
            if matches(group[0], path):
                raise Refused(_explain_stray(path, writer))
        for path in self.pins.members[group]:
            if self._is_produced(path, deps):
                continue
            if path in self._unmeasurable:
                raise Refused(f"reads `{path}`, which {self._unmeasurable[path]}")
            states[path] = self.pins.states[path]
        for producer in producers:
            for path, _ in self._produced.get(producer, ()):
                state = self._current[path]
                if path not in states and state != ABSENT and matches(group[0], path):
                    states[path] = state
                    produced.append(path)
        found = self._resolved[key] = Reads(states, tuple(produced))
        return found

    def _source_members(self, group: Group) -> tuple[RelPath, ...]:
        """The group's members on disk that no node of this plan writes before its readers;
        memberships are looked at once."""
        known = self.pins.members.get(group)
        if known is not None:
            return known
        pinned = self._pinned_members.get(_name_group(group))
        entries, ignore = group
        if pinned is not None:
            if self._put_back:
                found = {path for path in pinned if not matches(self._put_back, path)}
                with suppress(UnreadableFolder):  # whoever reads what is in it is told
                    listed = self.folders.members(entries, ignore)
                    found.update(path for path in listed if matches(self._put_back, path))
                pinned = tuple(sorted(found))
            self.pins.members[group] = tuple(pinned)
            return self.pins.members[group]
        try:
            members = self.folders.members(entries, ignore)
        except UnreadableFolder as error:
            self._broken_groups[group] = f"reads below `{error.path}`, which cannot be listed"
            self.pins.members[group] = ()
            return ()
        kept = tuple(path for path in members if not self._is_left_over(path, group))
        self.pins.members[group] = kept
        return kept

    def _is_left_over(self, path: RelPath, group: Group) -> bool:
        """Whether `path` is what a node that is gone from this plan, or no longer writes it,
        left there, unmodified since.

        A modified one is somebody's work now and no input anyone declared: the nodes
        that would read it are refused.
        """
        recorded = self._recorded.writers_of(path)
        if not recorded or self._writes.writers(path):
            return False
        if recorded[0][0] != self._plan.file:
            return False  # another plan put it there last: that plan's business
        vanished = [
            (node, state) for plan_file, node, state in recorded if plan_file == self._plan.file
        ]
        try:
            state = self._measurer.state_of(path)
        except Unmeasurable as error:
            self._broken_groups[group] = f"reads `{path}`, which {error.reason}"
            return False
        if all(state != recorded_state for _, recorded_state in vanished):
            self._broken_groups[group] = _explain_stray(path, vanished[0][0])
            return False
        if self._remove is not None:
            self._remove(os.path.join(self._root, path))
        self.left_over.append(path)
        return True

    def _producers(self, index: int) -> tuple[int, ...]:
        kinds = self._plan.edge_kinds[index]
        return tuple(
            dependency
            for dependency, kind in zip(self._plan.dependencies[index], kinds, strict=True)
            if kind & EdgeKind.PATH
        )

    def _is_produced(self, path: RelPath, producers: frozenset[int]) -> bool:
        return bool(producers) and any(w in producers for w in self._writes.writers(path))


def _explain_stray(path: RelPath, writer: str) -> str:
    return (
        f"reads `{path}`, which `{writer}` made when the plan still said so and which was"
        " edited since: remove it, or exclude it from the reads"
    )


def _group_of(node: Node) -> Group | None:
    if any(entry.kind is not EntryKind.FILE for entry in node.reads):
        return (node.reads, node.ignore)
    return None


def _fixed_folder(pattern: str) -> str:
    """The folders of a glob before its first wildcard; `.` for the root."""
    fixed: list[str] = []
    for part in pattern.split("/")[:-1]:
        if any(c in part for c in "*?["):
            break
        fixed.append(part)
    return "/".join(fixed) or "."


def _folders_of(path: str) -> Iterable[str]:
    yield "."
    at = path.find("/")
    while at != -1:
        yield path[:at]
        at = path.find("/", at + 1)
    yield path


def pins_as_json(pins: Pins) -> tuple[dict[RelPath, State], dict[str, tuple[RelPath, ...]]]:
    """The stored form: states by path, memberships by the text of their patterns."""
    return pins.states, {_name_group(group): found for group, found in pins.members.items()}


def _name_group(group: Group) -> str:
    entries, ignore = group
    return " ".join(map(str, entries)) + (f" (ignoring {' '.join(ignore)})" if ignore else "")
