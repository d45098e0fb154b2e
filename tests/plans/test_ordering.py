"""Topological order, knots, cycles, and who comes before whom."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plans import ordering
from assay.plans.ordering import find_cycle, find_knots, find_ordered_pairs, sort_topologically

DEEP = 100_000


def reaches(predecessors: list[set[int]], before: int, after: int) -> bool:
    pending, seen = [after], set()
    while pending:
        for node in predecessors[pending.pop()]:
            if node == before:
                return True
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return False


graphs = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.sets(st.integers(0, n - 1), max_size=3), min_size=n, max_size=n)
)


@given(graphs)
def test_what_can_be_sorted_is_sorted(graph: list[set[int]]) -> None:
    """The order holds exactly the nodes that no cycle precedes, each after what it follows."""
    order = sort_topologically(graph)
    cyclic = {n for n in range(len(graph)) if reaches(graph, n, n)}
    free = {
        n
        for n in range(len(graph))
        if n not in cyclic and not any(reaches(graph, c, n) for c in cyclic)
    }
    assert set(order) == free
    assert len(order) == len(free)
    assert all(order.index(p) < order.index(n) for n in order for p in graph[n])


@given(graphs)
def test_knots_are_the_nodes_that_wait_for_each_other(graph: list[set[int]]) -> None:
    """Two nodes are in one knot exactly when each precedes the other; a cycle found in a
    knot is one, and passes through its first node."""
    knots = find_knots(graph, range(len(graph)))
    expected = {
        tuple(m for m in range(len(graph)) if reaches(graph, n, m) and reaches(graph, m, n))
        for n in range(len(graph))
        if reaches(graph, n, n)
    }
    assert {tuple(knot) for knot in knots} == expected
    for knot in knots:
        trail = find_cycle(graph, knot)
        assert trail[0] == trail[-1] == knot[0]
        assert all(a in graph[b] for a, b in pairwise(trail))


@pytest.mark.parametrize("sources", [1, 2, 2048])
def test_ordered_pairs_agree_with_a_search(sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who precedes whom is the same however many nodes one sweep follows."""
    monkeypatch.setattr(ordering, "SOURCES_PER_SWEEP", sources)
    graph: list[set[int]] = [set(), {0}, {1}, set(), {3, 2}, {0}, {4}, {5, 3}]
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    found = find_ordered_pairs(graph, sort_topologically(graph), pairs)
    assert found == {(a, b) for a, b in pairs if reaches(graph, a, b)}


def test_a_chain_of_a_hundred_thousand_is_no_deeper_than_one_of_two() -> None:
    """Nothing recurses: sorting, knots, cycles and order over a very deep chain."""
    chain: list[set[int]] = [set(), *({n} for n in range(DEEP - 1))]
    order = sort_topologically(chain)
    assert order == list(range(DEEP))
    assert find_knots(chain, order) == []
    assert find_ordered_pairs(chain, order, [(0, DEEP - 1), (DEEP - 1, 0)]) == {(0, DEEP - 1)}
    chain[0] = {DEEP - 1}
    assert sort_topologically(chain) == []
    assert find_knots(chain, range(DEEP)) == [list(range(DEEP))]
    assert len(find_cycle(chain, range(DEEP))) == DEEP + 1
