"""Which queued nodes may start now, under caps, named resources and locks.

Pure and deterministic: no clock, no processes. Order is by effective priority =
declared priority + admission passes waited. All waiting nodes age alike, so the order
of two of them never changes and one number fixed at entry sorts them for good; ties
keep plan order.

Candidates with equal demands share one line, so that a pass looks at the heads of
lines only and costs nothing that grows with the number of nodes waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from assay.plans.model import Kind, Node

STEPS = ("cap", "steps")
AGENTS = ("cap", "agents")

Permit = tuple[str, str]
"""("cap" | "resource" | "lock", name)"""

Demand = tuple[tuple[Permit, int], ...]
"""What one node takes while it runs; always all or none of it."""

_USUAL: Final[Demand] = ((STEPS, 1),)


def demand_of(node: Node) -> Demand:
    if not (node.resources or node.locks) and node.kind is not Kind.AGENT:
        return _USUAL
    demand: list[tuple[Permit, int]] = [(STEPS, 1)]
    if node.kind is Kind.AGENT:
        demand.append((AGENTS, 1))
    demand.extend((("resource", name), amount) for name, amount in node.resources)
    demand.extend((("lock", name), 1) for name in node.locks)
    return tuple(demand)


@dataclass(slots=True)
class _Line:
    """Candidates with one demand, as a heap of (order, index)."""

    demand: Demand
    waiting: list[tuple[int, int]]


class Admission:
    """Permits and the nodes that wait for them."""

    def __init__(self, steps: int, agents: int, resources: Mapping[str, int]) -> None:
        self._free: dict[Permit, int] = {STEPS: steps, AGENTS: agents}
        for name, amount in resources.items():
            self._free["resource", name] = amount
        self._limits = dict(self._free)
        self._lines: dict[Demand, _Line] = {}
        self._passes = 0

    def enter(self, index: int, priority: int, demand: Demand) -> None:
        """Puts a node in line; it is as old as the present pass."""
        for permit, _ in demand:
            if permit not in self._free:  # locks are known by being asked for
                self._free[permit] = self._limits[permit] = 1
        line = self._lines.get(demand)
        if line is None:
            line = self._lines[demand] = _Line(demand, [])
        heapq.heappush(line.waiting, (self._passes - priority, index))

    def leave(self, indices: Collection[int]) -> None:
        """Takes nodes out of line again (they were cancelled); those not in line are passed
        over. One look at everything that waits, however many leave."""
        for demand, line in list(self._lines.items()):
            line.waiting = [entry for entry in line.waiting if entry[1] not in indices]
            heapq.heapify(line.waiting)
            if not line.waiting:
                del self._lines[demand]

    def admit(self) -> Iterator[int]:
        """One admission pass: yields the nodes that start now, their permits taken.

        A node that lacks a permit reserves what is free of it against later nodes;
        nodes that do not need it pass by.
        """
        self._passes += 1
        reserved: set[Permit] = set()
        heads = [(line.waiting[0], demand) for demand, line in self._lines.items() if line.waiting]
        heapq.heapify(heads)
        while heads and self._free[STEPS] > 0:
            (_, index), demand = heapq.heappop(heads)
            line = self._lines[demand]
            lacking = [
                permit
                for permit, amount in demand
                if permit in reserved or self._free[permit] < amount
            ]
            if lacking:
                reserved.update(lacking)
                continue
            heapq.heappop(line.waiting)
            for permit, amount in demand:
                self._free[permit] -= amount
            if line.waiting:
                heapq.heappush(heads, (line.waiting[0], demand))
            else:
                del self._lines[demand]
            yield index

    def give_back(self, demand: Demand) -> None:
        """Returns what one node took. Giving back more than was taken is a bug."""
        for permit, amount in demand:
            self._free[permit] += amount
            if self._free[permit] > self._limits[permit]:
                raise AssertionError(f"{permit} given back twice")
