"""What a run sees of the workspace: once, when it begins, and never again when it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from ground import Ground, open_ground
from handmade import ROOT, compiled, node

from assay.engine.environment import Refused
from assay.engine.observations import Observations, pins_as_json
from assay.engine.states import ABSENT, RunId, State
from assay.plans.entries import literal_entry
from assay.plans.model import Node, Plan, RelPath


class Recorded:
    """A store in which nobody has recorded anything."""

    def writers_of(self, path: RelPath) -> Sequence[tuple[str, str, State]]:
        return ()


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def observe(ground: Ground, plan: Plan) -> Observations:
    return Observations(str(ground.root), plan, ground.measurer, Recorded(), remove=None)


def plan_of(ground: Ground, nodes: Iterable[Node]) -> Plan:
    return compiled(ground.root, list(nodes))


def go_on(ground: Ground, plan: Plan, began: Observations) -> Observations:
    """As a process that goes on with the run whose pins `began` has kept."""
    run = RunId("aaaaaaaa")
    states, members = pins_as_json(began.pins)
    ground.store.pins.save(run, states, members, {})
    kept = ground.store.pins.load(run)
    assert kept is not None
    again = observe(ground, plan)
    again.adopt(kept.pins, kept.members)
    return again


def reads_of(seen: Observations, index: int) -> dict[RelPath, State]:
    return seen.reads_of(index).states


def test_what_was_seen_is_not_looked_at_again(ground: Ground) -> None:
    """Files that were edited, removed or made since are as they were when the run began."""
    for path in ("a", "b", "src/x", "src/y", "src/no"):
        ground.write(path, path)
    plan = plan_of(ground, [node("n", ["a", "b", "src/**", "!src/no"])])
    began = observe(ground, plan)
    began.pin([0])
    expected = reads_of(began, 0)
    assert sorted(expected) == ["a", "b", "src/x", "src/y"]
    ground.write("a", "edited")
    (ground.root / "b").unlink()
    (ground.root / "src/x").unlink()
    for path in ("src/new", "src/deep/new"):
        ground.write(path, "new")
    again = go_on(ground, plan, began)
    again.pin([0])
    assert reads_of(again, 0) == expected
    assert pins_as_json(again.pins) == pins_as_json(began.pins)
    assert again.folders.visited == {}


def test_what_was_not_there_stays_so(ground: Ground) -> None:
    """An optional read that is made since, and a pattern that matched nothing."""
    ground.write("src/x", "1")
    ground.write("f", "1")
    optional = literal_entry("maybe", ROOT, True)
    plan = plan_of(ground, [node("n", ["src/*", optional]), node("m", ["f"])])
    for path in ("src/x", "f"):
        (ground.root / path).unlink()
    began = observe(ground, plan)
    began.pin([0, 1])
    for path in ("src/x", "f", "maybe"):
        ground.write(path, "2")
    again = go_on(ground, plan, began)
    again.pin([0, 1])
    assert reads_of(again, 0) == {"maybe": ABSENT}
    with pytest.raises(Refused, match="reads `f`, which does not exist"):
        again.reads_of(1)


def test_what_was_not_seen_yet_is_looked_at_now(ground: Ground) -> None:
    """As for a generation that had not been appended."""
    for path in ("a", "b", "s/x", "t/x"):
        ground.write(path, path)
    plan = plan_of(ground, [node("n", ["a", "s/*"]), node("m", ["b", "t/*"])])
    began = observe(ground, plan)
    began.pin([0])
    for path in ("a", "b", "s/y", "t/y"):
        ground.write(path, "new")
    again = go_on(ground, plan, began)
    again.pin([0, 1])
    assert sorted(reads_of(again, 0)) == ["a", "s/x"]
    assert reads_of(again, 1) == {path: ground.state(path) for path in ("t/x", "t/y", "b")}


def test_patterns_that_differ_only_in_what_they_leave_out_are_told_apart(ground: Ground) -> None:
    """Each has the members it had."""
    for path in ("s/a", "s/b"):
        ground.write(path, path)
    plan = plan_of(
        ground,
        [
            node("n", ["s/*"]),
            node("m", ["s/*", "!s/b"]),
            node("i", ["s/*"], ignore=("a",)),
        ],
    )
    began = observe(ground, plan)
    began.pin([0, 1, 2])
    ground.write("s/c", "new")
    again = go_on(ground, plan, began)
    again.pin([0, 1, 2])
    assert [list(reads_of(again, index)) for index in range(3)] == [
        ["s/a", "s/b"],
        ["s/a"],
        ["s/b"],
    ]


def test_a_tool_of_the_workspace_is_as_it_was(ground: Ground) -> None:
    """One that was found when the run began is pinned like a read."""
    plan = plan_of(ground, [node("n")])
    ground.write("tool", "1", 0o755)
    began = observe(ground, plan)
    state = began.state_of_tool(RelPath("tool"))
    ground.write("tool", "2")
    again = go_on(ground, plan, began)
    assert again.state_of_tool(RelPath("tool")) == state


def test_what_nodes_left_counts_as_in_a_new_run(ground: Ground) -> None:
    """Paths that a node before writes are no sources: their states come with its record."""
    ground.write("a", "1")
    plan = plan_of(ground, [node("w", ["a"], ["g/"]), node("r", ["g/*"])])
    began = observe(ground, plan)
    began.pin([0, 1])
    ground.write("g/x", "made")
    again = go_on(ground, plan, began)
    again.pin([0, 1])
    again.record(0, ((RelPath("g/x"), ground.state("g/x")),))
    assert reads_of(again, 1) == {"g/x": ground.state("g/x")}
