"""Admission: who starts next under caps, resources and locks."""

from __future__ import annotations

import random

import pytest

from assay.engine.admission import AGENTS, STEPS, Admission, Demand, demand_of
from assay.plans.model import Kind, Node, NodeName, Origin

STEP: Demand = ((STEPS, 1),)


def needs(**resources: int) -> Demand:
    return ((STEPS, 1), *((("resource", name), amount) for name, amount in resources.items()))


def locks(name: str) -> Demand:
    return ((STEPS, 1), (("lock", name), 1))


def test_a_node_demands_a_step_its_resources_and_its_locks() -> None:
    """An agent takes an agent permit on top."""
    node = Node(
        NodeName("n"),
        Origin("plan.toml"),
        kind=Kind.AGENT,
        resources=(("gpu", 2),),
        locks=("db",),
    )
    assert demand_of(node) == (
        (STEPS, 1),
        (AGENTS, 1),
        (("resource", "gpu"), 2),
        (("lock", "db"), 1),
    )


def test_ties_keep_plan_order_and_priority_goes_first() -> None:
    """Equal priorities start in the order of the plan, whatever order they became ready in."""
    admission = Admission(2, 2, {})
    for index in (5, 3, 4):
        admission.enter(index, 0, STEP)
    admission.enter(9, 1, STEP)
    assert list(admission.admit()) == [9, 3]
    admission.give_back(STEP)
    assert list(admission.admit()) == [4]


def test_waiting_nodes_age_and_never_change_their_order() -> None:
    """A node that waited long enough goes before a later one of higher priority."""
    admission = Admission(1, 1, {})
    admission.enter(0, 0, STEP)
    assert list(admission.admit()) == [0]
    admission.enter(1, 0, STEP)
    for _ in range(10):
        assert list(admission.admit()) == []
    admission.enter(2, 5, STEP)
    admission.give_back(STEP)
    assert list(admission.admit()) == [1]


def test_a_large_demand_is_not_starved_by_small_ones() -> None:
    """What it lacks is kept free for it: it starts once those running then have ended (C114)."""
    admission = Admission(10, 10, {"r": 2})
    for index in range(50):
        admission.enter(index, 1, needs(r=1))
    assert list(admission.admit()) == [0, 1]
    admission.enter(99, 10, needs(r=2))
    admission.give_back(needs(r=1))
    assert list(admission.admit()) == []
    admission.give_back(needs(r=1))
    assert list(admission.admit()) == [99]


def test_a_blocked_front_does_not_hold_up_other_resources() -> None:
    """Nodes of an idle resource start at once behind a thousand that wait for another (C115)."""
    admission = Admission(100, 100, {"p": 1, "q": 20})
    for index in range(1000):
        admission.enter(index, 2, needs(p=1))
    for index in range(1000, 1020):
        admission.enter(index, 1, needs(q=1))
    assert list(admission.admit()) == [0, *range(1000, 1020)]


def test_locks_exclude_each_other() -> None:
    """One holder a lock; another lock is another matter."""
    admission = Admission(10, 10, {})
    admission.enter(0, 0, locks("a"))
    admission.enter(1, 0, locks("a"))
    admission.enter(2, 0, locks("b"))
    assert list(admission.admit()) == [0, 2]
    admission.give_back(locks("a"))
    assert list(admission.admit()) == [1]


def test_agents_are_a_subset_of_steps() -> None:
    """An agent takes a step as well; steps go on when agents are full."""
    admission = Admission(3, 1, {})
    agent: Demand = ((STEPS, 1), (AGENTS, 1))
    admission.enter(0, 0, agent)
    admission.enter(1, 0, agent)
    admission.enter(2, 0, STEP)
    assert list(admission.admit()) == [0, 2]


def test_a_node_that_left_the_line_does_not_start() -> None:
    """Cancelled while it waited; who is in no line is passed over."""
    admission = Admission(1, 1, {})
    admission.enter(0, 0, STEP)
    admission.enter(1, 0, STEP)
    admission.leave({0, 7})
    assert list(admission.admit()) == [1]
    admission.enter(2, 0, locks("a"))
    admission.leave({2})
    admission.give_back(STEP)
    assert list(admission.admit()) == []


def test_giving_back_twice_is_an_internal_error() -> None:
    """Permits never grow (C112)."""
    admission = Admission(1, 1, {})
    with pytest.raises(AssertionError):
        admission.give_back(STEP)


@pytest.mark.parametrize("seed", range(20))
def test_accounts_return_to_their_start_and_no_limit_is_ever_passed(seed: int) -> None:
    """Random demands, random ends: sums stay within limits and end at zero (C112)."""
    chance = random.Random(seed)
    limits = {"a": 3, "b": 1}
    steps = chance.randint(1, 6)
    admission = Admission(steps, 2, limits)
    waiting = 200
    held: list[Demand] = []
    demands: dict[int, Demand] = {}
    for index in range(waiting):
        kind = chance.randrange(5)
        demands[index] = [
            STEP,
            needs(a=chance.randint(1, 3)),
            needs(b=1),
            needs(a=1, b=1),
            locks("l"),
        ][kind]
        admission.enter(index, chance.randint(-2, 2), demands[index])
    started: list[int] = []
    while len(started) < waiting:
        for index in admission.admit():
            started.append(index)
            held.append(demands[index])
        assert len(held) <= steps
        for name, limit in limits.items():
            taken = sum(amount for demand in held for permit, amount in demand if permit[1] == name)
            assert taken <= limit
        assert held, "nothing runs although something waits"
        admission.give_back(held.pop(chance.randrange(len(held))))
    while held:
        admission.give_back(held.pop())
    assert sorted(started) == list(range(waiting))
