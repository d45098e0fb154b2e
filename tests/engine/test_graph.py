"""The runtime graph: what becomes ready, and what a node does when it is its turn."""

from __future__ import annotations

import dataclasses

import pytest

from assay.engine.graph import RuntimeGraph, Verdict
from assay.engine.states import NodeState, Outcome
from assay.plans.model import Digest, EdgeKind, Node, NodeName, Origin, Plan, PlanKey, When


def plan_of(*dependencies: tuple[int, ...], when: dict[int, When] | None = None) -> Plan:
    nodes = tuple(
        Node(NodeName(f"n{i}"), Origin("p"), when=(when or {}).get(i, When.SUCCESS))
        for i in range(len(dependencies))
    )
    return Plan(
        "p",
        nodes,
        dependencies,
        tuple((EdgeKind.AFTER,) * len(d) for d in dependencies),
        tuple(PlanKey(n.name) for n in nodes),
        Digest(""),
        Digest(""),
    )


def graph_of(*dependencies: tuple[int, ...], when: dict[int, When] | None = None) -> RuntimeGraph:
    return RuntimeGraph(plan_of(*dependencies, when=when), tuple(range(len(dependencies))))


def test_a_node_is_ready_once_all_it_follows_has_settled() -> None:
    """A join waits for its last dependency."""
    graph = graph_of((), (), (0, 1))
    assert graph.ready_at_start() == (0, 1)
    assert graph.settle(0, Outcome.BUILT) == []
    assert graph.settle(1, Outcome.CLEAN) == [2]
    assert graph.verdict(2) is Verdict.RUN


def test_nothing_runs_after_a_failed_shared_dependency() -> None:
    """A diamond below a failure is skipped on both sides and at its foot (C39)."""
    graph = graph_of((), (0,), (0,), (1, 2))
    assert graph.settle(0, Outcome.FAILED) == [1, 2]
    for index in (1, 2):
        assert graph.verdict(index) is Verdict.SKIP
    graph.settle(1, Outcome.SKIPPED)
    assert graph.settle(2, Outcome.SKIPPED) == [3]
    assert graph.verdict(3) is Verdict.SKIP
    assert graph.find_culprit(3) == 1


@pytest.mark.parametrize(
    ("when", "outcome", "expected"),
    [
        (When.SUCCESS, Outcome.BUILT, Verdict.RUN),
        (When.SUCCESS, Outcome.SKIPPED, Verdict.SKIP),
        (When.SUCCESS, Outcome.DEFERRED, Verdict.RUN),
        (When.FAILURE, Outcome.CLEAN, Verdict.NOT_NEEDED),
        (When.FAILURE, Outcome.FAILED, Verdict.RUN),
        (When.FAILURE, Outcome.SKIPPED, Verdict.RUN),
        (When.ALWAYS, Outcome.CANCELLED, Verdict.RUN),
        (When.ALWAYS, Outcome.BUILT, Verdict.RUN),
    ],
)
def test_a_handler_runs_on_the_outcomes_it_is_for(
    when: When, outcome: Outcome, expected: Verdict
) -> None:
    """`when` decides on how what it follows ended."""
    graph = graph_of((), (0,), when={1: when})
    graph.settle(0, outcome)
    assert graph.verdict(1) is expected


def test_a_handler_that_was_not_needed_counts_as_success() -> None:
    """What follows it is not skipped for it."""
    graph = graph_of((), (0,), (1,), when={1: When.FAILURE})
    graph.settle(0, Outcome.BUILT)
    graph.settle(1, Outcome.SKIPPED, not_needed=True)
    assert graph.verdict(2) is Verdict.RUN


def test_a_move_the_table_does_not_allow_is_an_internal_error() -> None:
    """Nothing runs twice at the same time, nothing settles twice."""
    graph = graph_of(())
    graph.settle(0, Outcome.BUILT)
    with pytest.raises(AssertionError):
        graph.settle(0, Outcome.BUILT)


def test_a_template_waits_for_its_instances() -> None:
    """Whoever follows the template becomes ready when the last instance has settled."""
    plan = plan_of((), (0,), (1,))
    graph = RuntimeGraph(plan, (0, 1, 2))
    assert graph.settle(0, Outcome.BUILT) == [1]
    grown = dataclasses.replace(
        plan_of((), (0,), (1,), (0,), (0,)), digest=Digest("g"), generation=1
    )
    assert graph.append(grown, (3, 4), 1) == (3, 4)
    assert graph.state(1) is NodeState.WAITING
    assert graph.settle(3, Outcome.BUILT) == []
    assert graph.settle(4, Outcome.BUILT) == [1]
    assert graph.verdict(1) is Verdict.RUN
    assert graph.settle(1, Outcome.CLEAN) == [2]


def test_a_failed_instance_skips_what_follows_the_template() -> None:
    """The template does not count as success then."""
    plan = plan_of((), (0,), (1,))
    graph = RuntimeGraph(plan, (0, 1, 2))
    graph.settle(0, Outcome.BUILT)
    graph.append(plan_of((), (0,), (1,), (0,)), (3,), 1)
    assert graph.settle(3, Outcome.FAILED) == [1]
    assert graph.verdict(1) is Verdict.SKIP
    assert graph.find_culprit(1) == 3


def test_nodes_outside_the_selection_have_no_state() -> None:
    """A selection is closed under dependencies and the rest does not exist for the run."""
    graph = RuntimeGraph(plan_of((), (0,), (1,)), (0, 1))
    assert not graph.is_selected(2)
    assert graph.settle(0, Outcome.BUILT) == [1]
    assert graph.settle(1, Outcome.BUILT) == []
    assert graph.unsettled() == ()


def test_a_template_that_expanded_before_is_taken_up_as_it_was() -> None:
    """It waits for what it follows and for its instances, and runs once all have settled."""
    plan = plan_of((), (0,), (1,), (0,), (0,))
    graph = RuntimeGraph(plan, (0, 1, 2))
    graph.adopt(plan, (3, 4), 1)
    assert graph.ready_at_start() == (0,)
    assert graph.dependencies(1) == (0, 3, 4)
    assert graph.unsettled() == (0, 1, 2, 3, 4)
    assert graph.settle(0, Outcome.CLEAN) == [3, 4]
    assert graph.state(1) is NodeState.WAITING
    assert graph.settle(3, Outcome.CLEAN) == []
    assert graph.settle(4, Outcome.FAILED) == [1]
    assert graph.verdict(1) is Verdict.SKIP
    assert graph.find_culprit(1) == 4


def test_a_template_without_dependencies_waits_for_what_it_had_expanded_to() -> None:
    """It was ready a moment before, and its instances are from now on."""
    plan = plan_of((), (0,), (), ())
    graph = RuntimeGraph(plan, (0, 1))
    graph.adopt(plan, (2, 3), 0)
    assert graph.state(0) is NodeState.WAITING
    assert graph.ready_at_start() == (2, 3)
    assert graph.settle(2, Outcome.BUILT) == []
    assert graph.settle(3, Outcome.BUILT) == [0]
    assert graph.settle(0, Outcome.CLEAN) == [1]


def test_a_template_that_had_expanded_to_nothing_is_ready() -> None:
    """Nothing holds it back."""
    plan = plan_of((), (0,))
    graph = RuntimeGraph(plan, (0, 1))
    graph.adopt(plan, (), 0)
    assert graph.ready_at_start() == (0,)
    assert graph.settle(0, Outcome.CLEAN) == [1]


def test_what_instances_need_joins_when_it_is_taken_up() -> None:
    """However far it lies above them, and once."""
    #      0 template, 1 follower, 2 above 3, 3 and the template above the instances 4 and 5
    plan = plan_of((), (0,), (), (2,), (3,), (2, 3))
    graph = RuntimeGraph(plan, (0, 1))
    assert graph.find_unselected(plan, (4, 5)) == (2, 3)
    graph.adopt(plan, (4, 5), 0)
    assert sorted(graph.selected) == [0, 1, 2, 3, 4, 5]
    assert graph.ready_at_start() == (2,)
    assert graph.settle(2, Outcome.BUILT) == [3]
    assert graph.settle(3, Outcome.BUILT) == [4, 5]
    assert graph.settle(4, Outcome.BUILT) == []
    assert graph.settle(5, Outcome.BUILT) == [0]


def test_templates_whose_instances_need_each_other_are_taken_up() -> None:
    """In the order they expanded: a later one's instances may follow those of an earlier."""
    #      0 and 1 templates, 2 an instance of 0, 3 one of 1 that follows the template 0
    plan = plan_of((), (0,), (), (0, 2))
    graph = RuntimeGraph(plan, (0, 1))
    graph.adopt(plan, (2,), 0)
    graph.adopt(plan, (3,), 1)
    assert graph.ready_at_start() == (2,)
    assert graph.settle(2, Outcome.BUILT) == [0]
    assert graph.settle(0, Outcome.CLEAN) == [3]
    assert graph.settle(3, Outcome.BUILT) == [1]
    assert graph.verdict(1) is Verdict.RUN
