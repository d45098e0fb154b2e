"""What follows a node, and its content as an earlier effect sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from handmade import compiled, entries
from handmade import node as make_node
from store_rows import an_attempt, an_effect, open_store

from assay.engine.attempts import Claims
from assay.engine.comparing import find_followers, key_over
from assay.engine.decision import Gathered
from assay.engine.effects import EffectRow
from assay.engine.keys import Inputs, action_key, encode_recipe, write_recipe
from assay.engine.observations import Reads
from assay.engine.states import ABSENT, ActionKey, EffectState, RunId, State
from assay.engine.store import Store
from assay.plans.compile import append_nodes
from assay.plans.model import Digest, EdgeKind, Kind, NodeName, Plan, PlanKey, RelPath, Tier

A, B = RunId("aaaaaaaa"), RunId("bbbbbbbb")


# What follows a node.


def plan_of(*dependencies: tuple[int, ...]) -> Plan:
    nodes = tuple(make_node(f"n{i}") for i in range(len(dependencies)))
    return Plan(
        "p",
        nodes,
        dependencies,
        tuple((EdgeKind.AFTER,) * len(d) for d in dependencies),
        tuple(PlanKey(each.name) for each in nodes),
        Digest(""),
        Digest(""),
    )


@pytest.mark.parametrize(
    ("index", "expected"),
    [(0, {1, 2, 3, 4}), (1, {3, 4}), (2, {3, 4}), (3, {4}), (4, set()), (5, set())],
)
def test_what_follows_a_node_is_known_however_far(index: int, expected: set[int]) -> None:
    """Each once, the node itself apart; which of them a run has selected plays no part."""
    assert followers(plan_of((), (0,), (0,), (1, 2), (3,), ()), index) == expected


def test_what_follows_is_found_wherever_the_plan_file_has_it() -> None:
    """Before the node as well as behind it."""
    plan = plan_of((1,), (3,), (0,), ())
    assert [followers(plan, index) for index in range(4)] == [{2}, {0, 2}, set(), {0, 1, 2}]


def followers(plan: Plan, index: int) -> set[int]:
    """Their indices."""
    names = find_followers(plan, index).names
    return {number for number, node in enumerate(plan.nodes) if node.name in names}


def grown(root: Path) -> Plan:
    """0 is followed by the template 1, and that by 2; 3 and 4 are its instances."""
    plan = compiled(
        root,
        [
            make_node("gen"),
            make_node("send", after=["gen"], kind=Kind.TEMPLATE, tier=Tier.COMPENSABLE),
            make_node("last", after=["send"]),
        ],
    )
    instances = [make_node(f"send[{each}]", tier=Tier.COMPENSABLE) for each in "ab"]
    return append_nodes(plan, 1, instances)


def test_instances_follow_what_their_template_follows(tmp_path: Path) -> None:
    """Whether it expands now or had before; and what follows the template follows it."""
    plan = grown(tmp_path)
    assert followers(plan, 0) == {1, 2, 3, 4}
    assert followers(plan, 1) == {2}
    assert "send[of another run]" in find_followers(plan, 0)
    assert "send[a]" not in find_followers(plan, 1)


@pytest.mark.parametrize("instance", [3, 4])
def test_what_follows_an_instance_follows_its_template(tmp_path: Path, instance: int) -> None:
    """The template first, and all behind it; none of its siblings."""
    assert followers(grown(tmp_path), instance) == {1, 2}


# Its content as an effect sees it.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return compiled(
        tmp_path,
        [
            make_node("pub", tier=Tier.COMPENSABLE),
            make_node("next", after=["pub"]),
            make_node("last", after=["next"]),
            make_node("beside"),
        ],
    )


def recipe_of(reads: Mapping[str, str]) -> bytes:
    states = {RelPath(path): State(state) for path, state in reads.items()}
    facts = Inputs(
        reads=states, platform="linux-x86_64", tools={}, passed={}, values={}, secrets={}
    )
    return encode_recipe(write_recipe(make_node("pub"), facts))


BEFORE: Final = {"f": "file:1", "g\udcff": "file:2"}
"""What the effect read."""
EDITED: Final = {**BEFORE, "f": "file:9"}


def done(number: int = 1, **more: object) -> EffectRow:
    """What an earlier run did, having read `BEFORE`."""
    recipe = recipe_of(BEFORE)
    row = an_effect(A, number, state=EffectState.SUCCEEDED)
    known = {
        "recipe": recipe.decode("utf-8", "surrogateescape"),
        "content_key": action_key(recipe),
        "outputs": (),
    }
    return dataclasses.replace(row, **{**known, **more})


def left(path: str, state: str) -> tuple[tuple[RelPath, State], ...]:
    return ((RelPath(path), State(state)),)


def is_as_then(store: Store, plan: Plan, row: EffectRow, now: Mapping[str, str]) -> bool:
    """Whether the node, reading `now`, has the content of `row`; else it has that of `now`."""
    recipe = recipe_of(now)
    content = action_key(recipe)
    gathered = Gathered(Reads({}), {}, {}, None, recipe, ActionKey(""), "", content)
    found = key_over(store, plan, 0, gathered, row)
    assert found in (row.content_key, content)
    return found == row.content_key


def test_content_is_that_of_what_is_read(store: Store, plan: Plan) -> None:
    """Names of any bytes included; what somebody edited is other content."""
    row = done()
    assert is_as_then(store, plan, row, BEFORE)
    assert not is_as_then(store, plan, row, EDITED)
    assert not is_as_then(store, plan, row, {"f": "file:1"})
    assert not is_as_then(store, plan, row, {**BEFORE, "h": "file:3"})


def test_what_the_effect_itself_left_is_no_edit(store: Store, plan: Plan) -> None:
    """C104: as it left it, and as nobody has edited it since."""
    assert is_as_then(store, plan, done(outputs=left("f", "file:9")), EDITED)
    assert not is_as_then(store, plan, done(outputs=left("f", "file:8")), EDITED)
    assert not is_as_then(store, plan, done(outputs=left("g", "file:9")), EDITED)


def test_what_its_attempt_removed_is_no_edit(store: Store, plan: Plan) -> None:
    """What it may write and has not left is gone by it; what it left and is gone is not."""
    attempt = dataclasses.replace(an_attempt(A, 1), claims=Claims(writes=entries("f")))
    gone = ({**BEFORE, "f": str(ABSENT)}, {"g\udcff": "file:2"})
    assert not any(is_as_then(store, plan, done(), now) for now in gone)
    store.attempts.begin(attempt)
    assert all(is_as_then(store, plan, done(), now) for now in gone)
    assert not is_as_then(store, plan, done(), {"f": "file:1"})
    kept = done(outputs=left("f", "file:9"))
    assert not any(is_as_then(store, plan, kept, now) for now in gone)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"node": NodeName("last")}, True),
        ({"node": NodeName("beside")}, False),
        ({"node": NodeName("pub")}, False),
        ({"node": NodeName("vanished")}, False),
        ({"begun_seq": 5}, False),
        ({"begun_seq": 4}, False),
        ({"is_open": False}, False),
        ({"plan_file": "other.toml"}, False),
        *(({"state": state}, False) for state in EffectState if state is not EffectState.SUCCEEDED),
    ],
)
def test_what_effects_that_follow_left_is_no_edit(
    store: Store, plan: Plan, change: Mapping[str, object], expected: bool
) -> None:
    """C104: of nodes that follow, done later and asked for yet: they rewrite the same files."""
    row = done(5)
    known = {"node": NodeName("next"), "outputs": left("f", "file:9"), **change}
    store.effects.put(row)
    store.effects.put(done(6, **known))
    assert is_as_then(store, plan, row, EDITED) is expected
    assert is_as_then(store, plan, row, BEFORE)


@pytest.mark.parametrize(
    ("plan_file", "name", "state", "expected"),
    [
        ("plan.toml", "next", "file:9", True),
        ("plan.toml", "last", "file:9", True),
        ("plan.toml", "next", "file:8", False),
        ("plan.toml", "pub", "file:9", False),
        ("plan.toml", "beside", "file:9", False),
        ("other.toml", "next", "file:9", False),
    ],
)
def test_what_nodes_that_follow_recorded_is_no_edit(
    store: Store, plan: Plan, plan_file: str, name: str, state: str, expected: bool
) -> None:
    """C104: sealed ones leave no effect, but their results are known."""
    store.results.note_outputs(plan_file, NodeName(name), left("f", state))
    assert is_as_then(store, plan, done(), EDITED) is expected
    assert is_as_then(store, plan, done(), BEFORE)
