"""Targets, tags, what they need, and the handlers that join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import compiled, node, template

from assay.plans.compile import append_nodes
from assay.plans.diagnostics import PlanError
from assay.plans.model import Kind, Node, Plan, Tier, When
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


# What is not sealed


def chosen(
    plan: Plan, targets: Sequence[str] = (), tags: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The names selected, and those left out with what each needs."""
    selection = select(plan, targets, tags)
    assert set(selection.targets) <= set(selection.indices)
    known = [str(node.name) for node in plan.nodes]
    order = [known.index(name) for name, _ in selection.left_out]
    assert order == sorted(set(order))
    return [known[i] for i in selection.indices], {
        str(name): str(needs) for name, needs in selection.left_out
    }


EFFECTS = [
    node("build", tags=("ci",)),
    node("publish", after=["build"], tier=Tier.IRREVERSIBLE, tags=("ci", "out")),
    node("post[a]", after=["build"], tier=Tier.COMPENSABLE),
    node("post[b]", after=["build"], tier=Tier.COMPENSABLE, tags=("out",)),
    node("tell", after=["announce"], tags=("ci", "late")),
    node("announce", after=["publish"], kind=Kind.GROUP, command=None),
    node("lint", tags=("ci",)),
]


@pytest.fixture
def effects(tmp_path: Path) -> Plan:
    return compiled(tmp_path, EFFECTS)


@pytest.mark.parametrize(
    ("target", "selected"),
    [
        ("publish", ["build", "publish"]),
        ("post", ["build", "post[a]", "post[b]"]),
        ("post[b]", ["build", "post[b]"]),
        ("announce", ["build", "publish", "announce"]),
        ("tell", ["build", "publish", "tell", "announce"]),
    ],
)
def test_an_effect_is_selected_by_name(effects: Plan, target: str, selected: list[str]) -> None:
    """Its own, that of all its instances, or of what needs it."""
    assert chosen(effects, [target]) == (selected, {})


@pytest.mark.parametrize("default", [None, ("p*", "l*")])
def test_a_plain_run_selects_effects(tmp_path: Path, default: tuple[str, ...] | None) -> None:
    """The whole plan, or its default, patterns in it and all."""
    plan = compiled(tmp_path, EFFECTS, default=default)
    selected, left_out = chosen(plan)
    assert {"publish", "post[a]", "post[b]"} <= set(selected)
    assert left_out == {}


def test_neither_a_pattern_nor_a_tag_selects_an_effect(effects: Plan) -> None:
    """It is left out, with what needs it, and the rest is selected."""
    publish = {"publish": "publish", "tell": "publish"}
    assert chosen(effects, (), ["ci"]) == (["build", "lint"], publish)
    posts = {"post[a]": "post[a]", "post[b]": "post[b]"}
    assert chosen(effects, ["*"]) == (
        ["build", "lint"],
        {**publish, **posts, "announce": "publish"},
    )
    assert chosen(effects, ["post[*]"]) == ([], posts)


def test_only_effects_selected_is_no_error(effects: Plan) -> None:
    """The selection is empty and says why; an unknown name beside it is one."""
    assert chosen(effects, ["pub*"], ["late"]) == ([], {"publish": "publish", "tell": "publish"})
    with pytest.raises(PlanError, match="There is no node `x`"):
        select(effects, ["pub*", "x"], ())


def test_an_effect_that_was_named_may_be_needed(effects: Plan) -> None:
    """Beside its exact name patterns and tags select what needs it, and what a named node
    needs."""
    everything = ["build", "publish", "tell", "announce", "lint"]
    assert chosen(effects, ["publish"], ["ci"]) == (everything, {})
    assert chosen(effects, ["tell", "pub*", "lint"]) == (everything, {})
    assert chosen(effects, ["post[a]", "*nnounce"]) == (
        ["build", "post[a]"],
        {"announce": "publish"},
    )


def test_the_nearest_effect_is_named(tmp_path: Path) -> None:
    """What is left out is told with the effect that it comes right behind."""
    nodes = [
        node("a", tier=Tier.COMPENSABLE),
        node("b", after=["a"]),
        node("c", after=["b"], tier=Tier.IRREVERSIBLE),
        node("d", after=["c"]),
    ]
    assert chosen(compiled(tmp_path, nodes), ["*"]) == (
        [],
        {"a": "a", "b": "a", "c": "c", "d": "c"},
    )
    plan = compiled(tmp_path, nodes)
    assert chosen(plan, ["b", "d*"]) == (["a", "b"], {"d": "c"})


def test_a_name_with_the_letters_of_a_pattern_is_a_name(tmp_path: Path) -> None:
    """An instance for a file called `*` can be named."""
    nodes = [node("send[*]", tier=Tier.IRREVERSIBLE), node("send[a]", tier=Tier.IRREVERSIBLE)]
    assert chosen(compiled(tmp_path, nodes), ["send[*]"]) == (["send[*]"], {})


def test_a_template_of_effects_is_named_too(tmp_path: Path) -> None:
    """By its name, and once it has expanded by that of an instance, which before that could bring
    others with it; not by a pattern."""
    nodes = [
        node("gen", [], ["gen/"]),
        replace(template("send", ["gen/*"]), tags=("t",), tier=Tier.IRREVERSIBLE),
        node("log", after=["send"], tags=("t",)),
    ]
    plan = compiled(tmp_path, nodes)
    assert chosen(plan, ["send"]) == (["gen", "send"], {})
    with pytest.raises(PlanError, match="with others that have effects as well"):
        select(plan, ["send[gen/a]"], ())
    assert chosen(plan, ["send[gen/*]"]) == ([], {"send": "send"})
    assert chosen(plan, (), ["t"]) == ([], {"send": "send", "log": "send"})
    grown = append_nodes(plan, 1, [node("send[gen/a]", ["gen/a"], tier=Tier.IRREVERSIBLE)])
    assert chosen(grown, ["send"]) == (["gen", "send", "send[gen/a]"], {})
    assert chosen(grown, ["send[gen/a]"]) == (["gen", "send[gen/a]"], {})
    assert chosen(grown, ["s*"]) == ([], {"send": "send", "send[gen/a]": "send[gen/a]"})


def test_a_handler_with_an_effect_joins_what_was_named(tmp_path: Path) -> None:
    """And a plain run, but nothing that a pattern or a tag chose; nor do handlers behind it."""
    nodes = [
        node("up", tags=("t",)),
        node("down", after=["up"], when=When.ALWAYS, tier=Tier.COMPENSABLE),
        node("told", after=["down"], when=When.ALWAYS),
        node("sweep", after=["up"], when=When.ALWAYS),
    ]
    plan = compiled(tmp_path, nodes)
    everything = ["up", "down", "told", "sweep"]
    assert chosen(plan) == (everything, {})
    assert chosen(plan, ["up"]) == (everything, {})
    assert chosen(plan, ["up"], ["t"]) == (everything, {})
    left_out = {"down": "down", "told": "down"}
    assert chosen(plan, ["u*"]) == (["up", "sweep"], left_out)
    assert chosen(plan, (), ["t"]) == (["up", "sweep"], left_out)
