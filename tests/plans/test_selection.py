"""Targets, tags, what they need, and the handlers that join."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from handmade import compiled, node, template

from assay.plans.compile import append_nodes
from assay.plans.diagnostics import PlanError
from assay.plans.model import Node, When
from assay.plans.selection import select


def names(
    root: Path,
    nodes: Sequence[Node],
    targets: Sequence[str] = (),
    tags: Sequence[str] = (),
    default: tuple[str, ...] | None = None,
) -> tuple[list[str], list[str]]:
    plan = compiled(root, nodes, default=default)
    selection = select(plan, targets, tags)
    return (
        [plan.nodes[i].name for i in selection.indices],
        [plan.nodes[i].name for i in selection.targets],
    )


SAMPLE = [
    node("link", ["out/a.o"], ["app"], tags=("ship",)),
    node("cc", ["gen/a.c"], ["out/a.o"]),
    node("gen", [], ["gen/"]),
    node("test[1]", ["app"]),
    node("test[2]", ["app"], tags=("slow",)),
    node("lint", tags=("ship", "slow")),
]


def test_a_target_brings_what_it_needs(tmp_path: Path) -> None:
    """Selections are closed under dependencies of every kind, in plan order."""
    assert names(tmp_path, SAMPLE, ["link"]) == (["link", "cc", "gen"], ["link"])


def test_a_name_selects_all_instances_and_a_pattern_all_matches(tmp_path: Path) -> None:
    """NODE may be exact, the name of many, or a pattern."""
    assert names(tmp_path, SAMPLE, ["test[1]"])[1] == ["test[1]"]
    assert names(tmp_path, SAMPLE, ["test"])[1] == ["test[1]", "test[2]"]
    assert names(tmp_path, SAMPLE, ["l*"])[1] == ["link", "lint"]


def test_tags_select_too(tmp_path: Path) -> None:
    """`--tag` adds to the targets, and alone leaves the default out."""
    assert names(tmp_path, SAMPLE, tags=["ship"], default=("gen",))[1] == ["link", "lint"]
    assert names(tmp_path, SAMPLE, ["gen"], ["ship"])[1] == ["link", "gen", "lint"]


def test_without_targets_the_default_counts_then_all(tmp_path: Path) -> None:
    """`assay run` selects the plan's default, or every node."""
    assert names(tmp_path, SAMPLE, default=("test",))[1] == ["test[1]", "test[2]"]
    assert len(names(tmp_path, SAMPLE)[0]) == len(SAMPLE)


def test_a_handler_joins_when_all_it_follows_is_selected(tmp_path: Path) -> None:
    """`failure` and `always` nodes come along, handlers of handlers too, others do not."""
    nodes = [
        node("late", after=["notify"], when=When.ALWAYS),
        node("notify", after=["a", "b"], when=When.FAILURE),
        node("a"),
        node("b"),
        node("plain", after=["a"]),
        node("free", when=When.ALWAYS),
    ]
    assert names(tmp_path, nodes, ["a"])[0] == ["a"]
    assert names(tmp_path, nodes, ["a", "b"]) == (["late", "notify", "a", "b"], ["a", "b"])


@pytest.mark.parametrize(
    ("targets", "tags", "message", "hint"),
    [
        (["lnik"], [], "There is no node `lnik`", "Did you mean `link`?"),
        (["x*"], [], "There is no node `x*`", "`assay plan` shows all nodes"),
        ([], ["shop"], "No node has the tag `shop`", "Did you mean `ship`?"),
    ],
)
def test_what_selects_nothing_is_an_error(
    tmp_path: Path, targets: list[str], tags: list[str], message: str, hint: str | None
) -> None:
    """C49: an unknown target is answered with the nearest name."""
    with pytest.raises(PlanError) as caught:
        names(tmp_path, SAMPLE, targets, tags)
    [diagnostic] = caught.value.diagnostics
    assert (diagnostic.message, diagnostic.hint) == (message, hint)


def test_every_unknown_target_is_reported(tmp_path: Path) -> None:
    """One message for each."""
    with pytest.raises(PlanError) as caught:
        names(tmp_path, SAMPLE, ["nope", "neither"], ["never"])
    assert len(caught.value.diagnostics) == 3


def test_selecting_from_nothing_is_an_error(tmp_path: Path) -> None:
    """C125: no node to run is no silent success."""
    with pytest.raises(PlanError, match="has no nodes"):
        names(tmp_path, [])


def test_a_template_brings_its_instances(tmp_path: Path) -> None:
    """Selecting a template that has expanded selects what it expanded into."""
    nodes = [node("gen", [], ["gen/"]), template("cc", ["gen/*.c"], ["gen/*.c"], ["out/*.o"])]
    plan = append_nodes(
        compiled(tmp_path, nodes), 1, [node("cc[gen/a.c]", ["gen/a.c"], ["out/a.o"])]
    )
    assert select(plan, ["cc"], ()).indices == (0, 1, 2)
