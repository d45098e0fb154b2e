"""Order in a graph of indices: topological order, cycles, and who comes before whom.

`predecessors[i]` holds the nodes that node i follows. Pure, linear unless a function says
otherwise, and nothing recurses: chains may be 100,000 deep. Does not know what a node is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

Predecessors = Sequence[Collection[int]]

SOURCES_PER_SWEEP: Final = 2048
"""How many nodes `find_ordered_pairs` follows at once, as bits of one integer."""


def sort_topologically(predecessors: Predecessors) -> list[int]:
    """Every node after its predecessors. Nodes on a cycle, and what follows them, are
    missing; nothing else is."""
    successors = successors_of(predecessors)
    missing = [len(p) for p in predecessors]
    order = [index for index, count in enumerate(missing) if not count]
    for index in order:
        for successor in successors[index]:
            missing[successor] -= 1
            if not missing[successor]:
                order.append(successor)
    return order


def successors_of(predecessors: Predecessors) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in predecessors]
    for index, before in enumerate(predecessors):
        for predecessor in before:
            successors[predecessor].append(index)
    return successors


def find_knots(predecessors: Predecessors, within: Iterable[int]) -> list[list[int]]:
    """The strongly connected components that contain a cycle, each ascending, among the
    nodes of `within` (which must hold all predecessors that matter). Tarjan's algorithm
    with its own stack."""
    allowed = set(within)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    knots: list[list[int]] = []
    for root in sorted(allowed):
        if root in number:
            continue
        work = [(root, iter(predecessors[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, remaining = work[-1]
            for other in remaining:
                if other not in allowed:
                    continue
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(predecessors[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == number[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    if len(component) > 1 or node in predecessors[node]:
                        knots.append(sorted(component))
    return knots


def find_cycle(predecessors: Predecessors, knot: Sequence[int]) -> list[int]:
    """A shortest cycle through the first node of a knot, in the order things would have to
    happen; that node stands at both ends."""
    first = knot[0]
    allowed = set(knot)
    came: dict[int, int] = {}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        for before in sorted(predecessors[node]):
            if before == first:
                trail = [first, node]
                while trail[-1] != first:
                    trail.append(came[trail[-1]])
                return trail
            if before in allowed and before not in came:
                came[before] = node
                queue.append(before)
    raise AssertionError("a knot has a cycle through each of its nodes")


def find_ordered_pairs(
    predecessors: Predecessors, order: Sequence[int], pairs: Iterable[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Those of `pairs` (before, after) whose first precedes the second, at any distance.

    `order` is the topological order of the whole graph. Costs one sweep over the part of the
    order between the pairs for every SOURCES_PER_SWEEP different firsts that no direct
    edge settles.
    """
    position = {node: place for place, node in enumerate(order)}
    found: set[tuple[int, int]] = set()
    open_pairs: dict[int, list[int]] = {}
    for before, after in pairs:
        if before in predecessors[after]:
            found.add((before, after))
        elif position[before] < position[after]:
            open_pairs.setdefault(before, []).append(after)
    sources = sorted(open_pairs, key=position.__getitem__)
    for at in range(0, len(sources), SOURCES_PER_SWEEP):
        chunk = sources[at : at + SOURCES_PER_SWEEP]
        last = max(position[after] for source in chunk for after in open_pairs[source])
        reached = {source: 1 << bit for bit, source in enumerate(chunk)}
        for node in order[position[chunk[0]] : last + 1]:
            mask = reached.get(node, 0)
            for before in predecessors[node]:
                mask |= reached.get(before, 0)
            if mask:
                reached[node] = mask
        for bit, source in enumerate(chunk):
            found.update(
                (source, after) for after in open_pairs[source] if reached.get(after, 0) >> bit & 1
            )
    return found
