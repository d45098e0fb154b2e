"""Whether a node must execute: its inputs gathered, its key computed, the cache asked.

Asks and decides; changes nothing. The run loop and the dry run use the same two steps,
`gather` and `decide`, so that a prediction is what the run would have done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from stat import S_ISDIR
from typing import cast

from assay.engine.environment import CallerEnvironment, Refused, project
from assay.engine.keys import (
    Change,
    Inputs,
    Recipe,
    action_key,
    address_of,
    encode_recipe,
    find_changes,
    is_cacheable,
    summarize,
    write_recipe,
)
from assay.engine.materialize import find_differences, find_left_over
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.observations import Observations, Reads
from assay.engine.results import ResultRow, Results
from assay.engine.states import ABSENT, ActionKey, RunId, State
from assay.engine.toolchain import Toolchain, platform_name
from assay.plans.canonical import JsonValue
from assay.plans.model import (
    EntryKind,
    Node,
    NodeName,
    Plan,
    RelPath,
    Secret,
    ValueRef,
    When,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that decides one node's result, as found at dispatch."""

    reads: Reads
    values: Mapping[str, JsonValue]
    secrets: Mapping[str, str]
    program: str | None
    """Where the command's first word was found in PATH, absolute."""
    recipe_json: bytes
    key: ActionKey
    address: str
    content: ActionKey
    """The key of all that is consumed; `key` itself for a sealed node."""

    @property
    def recipe_text(self) -> str:
        """The recipe as it is stored and compared."""
        return self.recipe_json.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Serve:
    """A recorded result fits. `differences` are outputs that are not on disk as recorded,
    or left-overs of earlier ones, and must be restored first; empty: nothing to do."""

    row: ResultRow
    differences: tuple[RelPath, ...]
    how: str = ""
    """What else is to be said of where it comes from."""


@dataclass(frozen=True, slots=True)
class Execute:
    """The command must run, for `reason`; `expired` when a recorded result was too old."""

    reason: str
    changes: tuple[Change, ...] = ()
    last: ResultRow | None = None
    expired: ResultRow | None = None
    seen: int | None = None
    """Journal position of the recorded result that was looked at and does not serve, 0 for
    none: another one found there later may. None when no result would."""


Decision = Serve | Execute


class Decider:
    """The facts of one run that every decision needs."""

    def __init__(
        self,
        plan: Plan,
        run: RunId,
        observations: Observations,
        toolchain: Toolchain,
        caller: CallerEnvironment,
        measurer: Measurer,
        results: Results,
        *,
        fresh: bool,
        now: Callable[[], float],
        value_of: Callable[[str], JsonValue],
        seal_secret: Callable[[str], str],
        done: Mapping[NodeName, ResultRow] | None = None,
    ) -> None:
        """`value_of` gives the result of a settled node by name, raising KeyError when it
        has none; `seal_secret` a keyed digest; `done` the results this very run has made
        before it was gone on with."""
        self.plan = plan
        self._run = run
        self._observations = observations
        self._toolchain = toolchain
        self._caller = caller
        self._measurer = measurer
        self._results = results
        self._fresh = fresh
        self._now = now
        self._value_of = value_of
        self._seal_secret = seal_secret
        self._done = done or {}
        self._platform = platform_name()

    def gather(self, index: int) -> Gathered:
        """Raises Refused when the node cannot be dispatched as things stand."""
        node = self.plan.nodes[index]
        reads = self._observations.reads_of(index)
        values = self._project(node)
        try:
            tools = self._toolchain.identify(node, values)
            for path in tools.reads:
                if path not in reads.states:
                    reads.states[path] = self._observations.state_of_tool(path)
        except Unmeasurable as error:
            raise Refused(f"uses the program `{error.path}`, which {error.reason}") from error
        secrets = self._caller.secrets(node)
        keyed = {
            name: self._seal_secret(secrets[name])
            for name, value in node.env
            if isinstance(value, Secret) and value.keyed
        }
        recipe = write_recipe(
            node,
            Inputs(
                reads=reads.states,
                platform=self._platform,
                tools=tools.keyed,
                passed=self._caller.passed(node),
                values=values,
                secrets=keyed,
            ),
        )
        encoded = encode_recipe(recipe)
        key = action_key(encoded)
        return Gathered(
            reads=reads,
            values=values,
            secrets=secrets,
            program=tools.program,
            recipe_json=encoded,
            key=key,
            address=address_of(key, node, self.plan.name, self._run),
            content=key,
        )

    def decide(
        self, index: int, gathered: Gathered, is_rewritten_later: Callable[[RelPath], bool]
    ) -> Decision:
        """Serve a recorded result or execute. `is_rewritten_later` tells of paths that a
        later selected node writes again or removes: there the last one's record counts."""
        node = self.plan.nodes[index]
        done = self._done.get(node.name)
        if done is not None and done.action_key == gathered.key and node.when is When.SUCCESS:
            return self._replay(done, is_rewritten_later)
        if not is_cacheable(node):
            return Execute("never cached" if node.cache.enabled is False else "runs every time")
        if node.when is When.ALWAYS:
            return Execute("runs always")
        if self._fresh:
            return Execute("asked for afresh")
        row = self._results.get(gathered.address)
        if row is None or not row.serves:
            return replace(self._explain(node, gathered), seen=0)
        if row.expires_at is not None and row.expires_at <= self._now():
            return Execute("recorded result expired", expired=row, seen=row.journal_seq)
        returned = self._find_returned(node, is_rewritten_later)
        if returned is not None:
            return Execute(f"`{returned}` is there", seen=row.journal_seq)
        outputs = [item for item in row.outputs if not is_rewritten_later(item[0])]
        differences = find_differences(outputs, self._measurer)
        if any(entry.kind is not EntryKind.FILE for entry in node.writes):
            left_over = find_left_over(
                row.outputs, node.writes, self._measurer, self._results.knows, gathered.reads.states
            )
            differences += tuple(path for path in left_over if not is_rewritten_later(path))
        return Serve(row, differences)

    def replay(
        self, index: int, key: ActionKey | None, is_rewritten_later: Callable[[RelPath], bool]
    ) -> Serve | None:
        """What this run has made of the node, or was served under `key`, before it was gone on
        with; whatever its key is by now, nothing it reads is another thing. None: that is not
        to be had any more."""
        node = self.plan.nodes[index]
        done = self._done.get(node.name)
        if done is None and key is not None:
            done = self._results.get(address_of(key, node, self.plan.name, self._run))
        return None if done is None else self._replay(done, is_rewritten_later)

    def _replay(self, done: ResultRow, is_rewritten_later: Callable[[RelPath], bool]) -> Serve:
        standing = [item for item in done.outputs if not is_rewritten_later(item[0])]
        differences = find_differences(standing, self._measurer)
        return Serve(done, differences, "done earlier in this run")

    def _explain(self, node: Node, gathered: Gathered) -> Execute:
        last = self._results.last_of(self.plan.file, node.name)
        if last is None:
            return Execute("no recorded result")
        now = gathered.recipe_json.decode("utf-8", "surrogateescape")
        changes = find_changes(cast(Recipe, json.loads(last.recipe)), cast(Recipe, json.loads(now)))
        if not changes:
            return Execute("last result was not cached", (), last)
        return Execute(summarize(changes), changes, last)

    def _find_returned(
        self, node: Node, is_rewritten_later: Callable[[RelPath], bool]
    ) -> RelPath | None:
        """A path the node removes that is there, as it never is after it succeeded."""
        for path in node.removes:
            if is_rewritten_later(path):
                continue
            try:
                if self._measurer.state_of(path) != ABSENT:
                    return path
            except Unmeasurable:
                return path
        return None

    def _project(self, node: Node) -> dict[str, JsonValue]:
        values: dict[str, JsonValue] = {}
        for name, value in node.env:
            if isinstance(value, ValueRef):
                try:
                    values[name] = project(self._value_of(value.node), value.path)
                except KeyError:
                    shown = ".".join((value.node, *value.path))
                    raise Refused(
                        f"takes `{name}` from `{shown}`, which `{value.node}` did not give"
                    ) from None
        return values


def changed_since(
    expected: Mapping[RelPath, State],
    node: Node,
    measurer: Measurer,
    is_own: Callable[[str], bool],
    began_ns: int,
) -> tuple[RelPath, ...]:
    """Reads that are no longer as expected, or were written to since `began_ns`, the node's
    own writes and removes aside. `began_ns` is by the clock of the file system, in
    nanoseconds since the epoch.

    A file that was changed and changed back has the expected content, but the command may
    have seen the other. Its mtime and ctime both tell; ctime alone also moves by a link.
    """
    moved: list[RelPath] = []
    removes = frozenset(node.removes)
    for path, state in expected.items():
        if path in removes or is_own(path):
            continue
        try:
            info = measurer.look(path)
            written = (
                info is not None
                and not S_ISDIR(info.st_mode)
                and min(info.st_mtime_ns, info.st_ctime_ns) > began_ns
            )
            if written or measurer.state_of(path) != state:
                moved.append(path)
        except Unmeasurable:
            moved.append(path)
    return tuple(moved)
