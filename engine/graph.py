"""Where every selected node of a run stands, and the one door for changing that.

Pure bookkeeping over indices: knows dependencies, states and outcomes; knows nothing
of processes, files or time.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from assay.engine.states import MOVES, NodeState, Outcome
from assay.plans.model import Plan, When


class Verdict(Enum):
    """What becomes of a node once everything it follows has settled."""

    RUN = "run"
    SKIP = "skip"
    """Something it needs did not succeed."""
    NOT_NEEDED = "not needed"
    """A handler without an occasion: skipped, and counts as success."""


_GOOD = frozenset({Outcome.BUILT, Outcome.CLEAN, Outcome.DEFERRED})


class RuntimeGraph:
    """The selected part of a plan while it runs. Grows by `append`, never shrinks.

    Indices are those of `Plan.nodes`; nodes that are not selected have no state. Cost
    of every move is that of the node's own edges.
    """

    def __init__(self, plan: Plan, selected: tuple[int, ...]) -> None:
        self.selected: list[int] = []
        self.outcomes: dict[int, Outcome] = {}
        self.not_needed: set[int] = set()
        self._states: dict[int, NodeState] = {}
        self._pending: dict[int, int] = {}
        self._dependents: dict[int, list[int]] = {}
        self._dependencies: dict[int, tuple[int, ...]] = {}
        self._when: dict[int, When] = {}
        self.add(plan, selected)

    def append(self, plan: Plan, indices: tuple[int, ...], template: int) -> tuple[int, ...]:
        """Takes in the instances of `template`, which waits for them from now on.

        Returns the instances that are ready at once.
        """
        ready = self.add(plan, indices)
        for index in indices:
            self._dependents.setdefault(index, []).append(template)
        self._dependencies[template] = self._dependencies[template] + indices
        if indices:
            self.move(template, NodeState.WAITING)
            self._pending[template] = len(indices)
        return ready

    def adopt(self, plan: Plan, indices: tuple[int, ...], template: int) -> None:
        """As `append`, for a template that had expanded before this graph was made."""
        self.add(plan, self.find_unselected(plan, indices))
        self.add(plan, tuple(index for index in indices if index not in self._states))
        self._dependencies[template] = self._dependencies[template] + indices
        for index in indices:
            self._dependents.setdefault(index, []).append(template)
        self._pending[template] += len(indices)
        if indices and self._states[template] is NodeState.READY:
            self._states[template] = NodeState.WAITING

    def add(self, plan: Plan, indices: tuple[int, ...]) -> tuple[int, ...]:
        """Takes in nodes, dependencies first or together with them; those ready at once."""
        for index in indices:
            dependencies = plan.dependencies[index]
            self._dependencies[index] = dependencies
            self._when[index] = plan.nodes[index].when
            self._states[index] = NodeState.WAITING
            pending = 0
            for dependency in dependencies:
                if dependency not in self.outcomes:
                    pending += 1
                    self._dependents.setdefault(dependency, []).append(index)
            self._pending[index] = pending
        self.selected.extend(indices)
        ready = tuple(i for i in indices if not self._pending[i])
        for index in ready:
            self._states[index] = NodeState.READY
        return ready

    def find_unselected(self, plan: Plan, indices: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes outside the graph that these need, ascending."""
        found: set[int] = set()
        open_ends = list(indices)
        while open_ends:
            for dependency in plan.dependencies[open_ends.pop()]:
                known = dependency in self._states or dependency in indices
                if not known and dependency not in found:
                    found.add(dependency)
                    open_ends.append(dependency)
        return tuple(sorted(found))

    def ready_at_start(self) -> tuple[int, ...]:
        return tuple(i for i in self.selected if self._states[i] is NodeState.READY)

    def state(self, index: int) -> NodeState:
        return self._states[index]

    def is_selected(self, index: int) -> bool:
        return index in self._states

    def is_settled(self, index: int) -> bool:
        return index in self.outcomes

    def unsettled(self) -> tuple[int, ...]:
        return tuple(i for i in self.selected if i not in self.outcomes)

    def dependencies(self, index: int) -> tuple[int, ...]:
        return self._dependencies[index]

    def move(self, index: int, state: NodeState) -> None:
        """Every change of state but settling. A move the table does not allow is a bug."""
        before = self._states[index]
        if state not in MOVES[before]:
            raise AssertionError(f"node {index}: {before} -> {state} is no move")
        self._states[index] = state

    def wait_again(self, index: int, count: int) -> None:
        """`index` was ready, but `count` repairs of what it reads must end first."""
        self.move(index, NodeState.WAITING)
        self._pending[index] = count

    def release(self, index: int) -> bool:
        """One thing `index` waited for is there; True when that was the last."""
        self._pending[index] -= 1
        if self._pending[index]:
            return False
        self.move(index, NodeState.READY)
        return True

    def settle(self, index: int, outcome: Outcome, *, not_needed: bool = False) -> list[int]:
        """Ends a node's progress; returns the nodes that became ready by it."""
        self.move(index, NodeState.SETTLED)
        self.outcomes[index] = outcome
        if not_needed:
            self.not_needed.add(index)
        return [
            dependent
            for dependent in self._dependents.pop(index, ())
            if dependent not in self.outcomes and self.release(dependent)
        ]

    def verdict(self, index: int) -> Verdict:
        """What a ready node does, given how everything it follows has settled."""
        failed = any(not self._counts_as_success(d) for d in self._dependencies[index])
        match self._when[index]:
            case When.SUCCESS:
                return Verdict.SKIP if failed else Verdict.RUN
            case When.FAILURE:
                return Verdict.RUN if failed else Verdict.NOT_NEEDED
            case When.ALWAYS:
                return Verdict.RUN
            case _:
                assert_never(self._when[index])

    def find_culprit(self, index: int) -> int | None:
        """The first thing `index` follows that did not succeed."""
        return next((d for d in self._dependencies[index] if not self._counts_as_success(d)), None)

    def _counts_as_success(self, index: int) -> bool:
        return self.outcomes[index] in _GOOD or index in self.not_needed
