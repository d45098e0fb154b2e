"""From nodes to a plan: references, edges, the rules by which edges give way, keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import (
    compiled,
    complaints,
    draft,
    follows,
    messages,
    node,
    template,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.plans.compile import append_nodes, compile_plan
from assay.plans.diagnostics import PlanError
from assay.plans.model import (
    EdgeKind,
    Kind,
    Node,
    NodeName,
    Origin,
    Plan,
    RelPath,
    Resource,
    ResultKind,
    Secret,
    Tier,
    ValueRef,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a few sources."""
    for name in ("src", "x", "y", "in"):
        (tmp_path / name).write_text(name) if name != "src" else (tmp_path / name).mkdir()
    (tmp_path / "src/a.c").write_text("")
    return tmp_path


# Edges


def test_a_reader_follows_the_writer(root: Path) -> None:
    """C48: reading what another node writes makes an edge, however either is spelled."""
    for read, write in itertools.product(
        ("gen/a.c", "gen/", "gen/*.c", "**/a.c"), ("gen/a.c", "gen/", "gen/*", "**/*.c")
    ):
        plan = compiled(root, [node("c", [read]), node("p", [], [write])])
        assert follows(plan, "c") == {"p": "path"}, (read, write)


def test_a_writer_of_a_path_comes_before_what_reads_below_it(root: Path) -> None:
    """What stands at `d` decides what `d/x` is."""
    assert follows(compiled(root, [node("p", [], ["d"]), node("c", ["d/x"])]), "c") == {"p": "path"}


def test_excluding_what_another_writes_makes_no_edge(root: Path) -> None:
    """`!gen/` keeps a read apart from the writer of `gen/`."""
    plan = compiled(root, [node("c", ["**", "!gen/"]), node("p", [], ["gen/"])])
    assert follows(plan, "c") == {}


def test_the_order_of_nodes_has_no_meaning(root: Path) -> None:
    """C53: all orders of four nodes give the same edges, plan keys and digest."""
    nodes = [
        node("a", ["in"], ["o/a"]),
        node("b", ["o/a"], ["o/b"]),
        node("c", ["o/*"], after=["d"]),
        node("d", ["o/b"], tags=("t",)),
    ]
    seen = set()
    for order in itertools.permutations(nodes):
        plan = compiled(root, order)
        edges = tuple(tuple(sorted(follows(plan, n.name).items())) for n in nodes)
        keys = dict(zip([n.name for n in plan.nodes], plan.plan_keys, strict=True))
        seen.add((edges, tuple(keys[n.name] for n in nodes), plan.digest))
    assert len(seen) == 1


def test_after_is_resolved_to_names(root: Path) -> None:
    """Names, names of many, and patterns; a pattern never means its own node."""
    nodes = [
        node("test[1]"),
        node("test[2]"),
        node("build"),
        node("all", after=["*"]),
        node("some", after=["test", "b?ild"]),
    ]
    plan = compiled(root, nodes)
    assert plan.nodes[3].after == ("build", "some", "test[1]", "test[2]")
    assert plan.nodes[4].after == ("build", "test[1]", "test[2]")
    assert follows(plan, "some") == dict.fromkeys(("test[1]", "test[2]", "build"), "after")


def test_a_pattern_in_after_may_match_nothing(root: Path) -> None:
    """Following whatever there is of a kind is fine when there is nothing."""
    assert follows(compiled(root, [node("a", after=["lint*"])]), "a") == {}


def test_one_edge_has_all_its_reasons(root: Path) -> None:
    """`after`, a value and a path between two nodes are one dependency."""
    plan = compiled(
        root,
        [
            node("p", [], ["o"], result=ResultKind.TEXT),
            node("c", ["o"], after=["p"], env=(("V", ValueRef(NodeName("p"))),)),
        ],
    )
    assert plan.dependencies[1] == (0,)
    assert plan.edge_kinds[1] == (EdgeKind.AFTER | EdgeKind.VALUE | EdgeKind.PATH,)


def test_a_node_is_not_its_own_producer(root: Path) -> None:
    """A formatter reads and writes the same files and follows nobody."""
    plan = compiled(root, [node("fmt", ["src/**"], ["src/**"])])
    assert follows(plan, "fmt") == {}


# Edges that give way


def test_explicit_order_beats_an_inferred_edge(root: Path) -> None:
    """A node that another comes after reads the version before that one's."""
    plan = compiled(root, [node("use", ["x"]), node("bump", ["y"], ["x"], after=["use"])])
    assert follows(plan, "use") == {}
    assert follows(plan, "bump") == {"use": "after"}


def test_explicit_order_counts_at_any_distance(root: Path) -> None:
    """So does order through several `after`s and value references."""
    nodes = [
        node("use", ["x"], result=ResultKind.TEXT),
        node("middle", env=(("V", ValueRef(NodeName("use"))),)),
        node("bump", [], ["x"], after=["middle"]),
        node("late", ["x"]),
    ]
    plan = compiled(root, nodes)
    assert follows(plan, "use") == {}
    assert follows(plan, "late") == {"bump": "path"}


def test_formatters_in_a_row(root: Path) -> None:
    """Ordered nodes that read what they rewrite share paths; a reader gets the last version."""
    nodes = [
        node("test", ["src/**"]),
        node("third", ["src/**"], ["src/**"], after=["second"]),
        node("first", ["src/**"], ["src/**"]),
        node("second", ["src/**"], ["src/**"], after=["first"]),
    ]
    plan = compiled(root, nodes)
    assert follows(plan, "first") == {}
    assert follows(plan, "second") == {"first": "after|path"}
    assert follows(plan, "third") == {"second": "after|path"}
    assert follows(plan, "test") == {"third": "path"}


def test_a_reader_between_rewriters_gets_the_version_before_it(root: Path) -> None:
    """The last writer that the reader does not precede is the one it follows."""
    nodes = [node("w0", ["x"], ["x"])]
    nodes += [node(f"w{n}", ["x"], ["x"], after=[f"w{n - 1}"]) for n in range(1, 9)]
    for at in range(8):
        reader = node("reader", ["x"])
        shifted = [
            replace(n, after=(*n.after, NodeName("reader"))) if n.name == f"w{at + 1}" else n
            for n in nodes
        ]
        assert follows(compiled(root, [reader, *shifted]), "reader") == {f"w{at}": "path"}
    first = [replace(n, after=(*n.after, NodeName("reader"))) for n in nodes]
    assert follows(compiled(root, [node("reader", ["x"]), *first]), "reader") == {}


def test_rewriters_of_different_extents(root: Path) -> None:
    """One rewrites a folder's files and another one of them: explicit order decides."""
    nodes = [
        node("one", ["src/a.c"], ["src/a.c"], after=["all"]),
        node("all", ["src/**"], ["src/**"]),
        node("read", ["src/*.c"]),
    ]
    plan = compiled(root, nodes)
    assert follows(plan, "all") == {}
    assert follows(plan, "one") == {"all": "after|path"}
    assert follows(plan, "read") == {"one": "path", "all": "path"}


# Overlapping writes


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        ("o", "o", "o"),
        ("d", "d/x", "d/x"),
        ("d/", "d/x", "d/x"),
        ("d/*", "d/x", "d/x"),
        ("d/**", "d/e/*", "d/e/x"),
        ("./o", "o", "o"),
        ("a/../o", "o", "o"),
        ("d/*.o", "d/*.o", "d/*.o"),
    ],
)
@pytest.mark.parametrize("after", [(), ("a",)])
def test_overlapping_writes_are_an_error(
    root: Path, a: str, b: str, path: str, after: Sequence[str]
) -> None:
    """C43: named with both nodes and the path, ordered or not."""
    [found] = complaints(root, [node("a", [], [a]), node("b", [], [b], after=after)])
    assert found.message == f"Nodes `a` and `b` both write `{path}`"
    assert found.origin == Origin("plan.toml", ("nodes", "b", "writes", 0))
    assert found.notes[0].origin == Origin("plan.toml", ("nodes", "a", "writes", 0))


def test_case_makes_different_files(root: Path) -> None:
    """C43: `O` and `o` are two files here."""
    compiled(root, [node("a", [], ["O"]), node("b", [], ["o"])])


def test_rewriters_need_an_explicit_order(root: Path) -> None:
    """Two formatters without an order are an error that says how to give one, not a cycle."""
    nodes = [node("a", ["src/**"], ["src/**"]), node("b", ["src/**"], ["src/**"])]
    [found] = complaints(root, nodes)
    assert found.message == "Nodes `a` and `b` both write `src/**`"
    assert found.hint == 'Say which comes first: after = ["a"] in `b`.'


def test_an_order_by_paths_is_not_enough_for_rewriters(root: Path) -> None:
    """Only explicit order counts between two rewriters."""
    nodes = [
        node("a", ["x"], ["x", "stamp"]),
        node("b", ["x", "stamp"], ["x"]),
    ]
    assert messages(complaints(root, nodes)) == ["Nodes `a` and `b` both write `x`"]


def test_both_must_read_all_they_rewrite(root: Path) -> None:
    """Reading some of the shared files is not reading what is rewritten."""
    ordered = [node("a", ["src/*.c"], ["src/**"]), node("b", ["src/**"], ["src/**"], after=["a"])]
    assert messages(complaints(root, ordered)) == ["Nodes `a` and `b` both write `src/**`"]
    fine = [
        node("a", ["src/**"], ["src/*.c"]),
        node("b", ["src/a.c", "src/*.c"], ["src/?.c"], after=["a"]),
    ]
    compiled(root, fine)


def test_an_effect_may_write_what_an_earlier_node_wrote(root: Path) -> None:
    """The later one is not sealed and comes later by an explicit order: that is enough."""
    for tier in (Tier.COMPENSABLE, Tier.IRREVERSIBLE):
        plan = compiled(
            root,
            [
                node("sign", [], ["d/x"], after=["build"], tier=tier),
                node("build", [], ["d/"]),
                node("use", ["d/x"]),
            ],
        )
        assert follows(plan, "use") == {"sign": "path", "build": "path"}


def test_an_effect_does_not_come_later_by_itself(root: Path) -> None:
    """Without an explicit order it is an error that says how to give one."""
    nodes = [node("sign", ["o"], ["o"], tier=Tier.COMPENSABLE), node("build", [], ["o"])]
    [found] = complaints(root, nodes)
    assert found.message == "Nodes `sign` and `build` both write `o`"
    assert found.hint == 'Say that it comes later: after = ["build"] in `sign`.'


def test_what_follows_an_effect_is_judged_by_all_before_it(root: Path) -> None:
    """A sealed node may not rewrite an effect's file unread, nor one that an effect stands
    in front of."""
    first = node("a", [], ["o"], tier=Tier.COMPENSABLE)
    [found] = complaints(root, [first, node("b", ["o"], ["o"], after=["a"])])
    assert found.message == "Nodes `a` and `b` both write `o`"
    assert found.hint == (
        "Let one of them write elsewhere; only nodes that read what they rewrite may share."
    )
    between = node("b", ["o"], ["o"], after=["a"], tier=Tier.COMPENSABLE)
    last = node("c", ["o"], ["o"], after=["b"])
    for tier in Tier:
        nodes = [replace(first, tier=tier), between, last]
        assert messages(complaints(root, nodes)) == ["Nodes `a` and `c` both write `o`"]
    reading = node("a", ["src/a.c"], ["src/a.c"])
    compiled(
        root,
        [
            reading,
            node("b", ["src/a.c"], ["src/*.c"], after=["a"], tier=Tier.IRREVERSIBLE),
            node("c", ["src/*.c"], ["src/*.c"], after=["b"], tier=Tier.IRREVERSIBLE),
        ],
    )


def test_what_is_excluded_from_writes_does_not_overlap(root: Path) -> None:
    """`!d/x` leaves that path to another node."""
    compiled(root, [node("a", [], ["d/*", "!d/x"]), node("b", [], ["d/x"])])


def test_many_nodes_of_one_line_are_one_error(root: Path) -> None:
    """A matrix that writes one path is told once, with the way to tell the paths apart."""
    origin = Origin("plan.toml", ("nodes", "m"))
    nodes = [node(f"m[{n}]", [], ["out"], origin=origin) for n in range(5)]
    [found] = complaints(root, nodes)
    assert found.message == "Nodes `m[0]` and `m[1]` both write `out`"
    assert (
        found.hint
        == "Make the path differ for each node, with `{{each.stem}}` or `{{matrix.NAME}}`."
    )


def test_templates_do_not_quarrel_before_they_expand(root: Path) -> None:
    """What a template will write is a guess, so only its instances are compared."""
    nodes = [
        node("gen", [], ["gen/"]),
        template("cc", ["gen/*.c"], ["gen/*.c"], ["out/*.o"]),
        node("main", [], ["out/main.o"]),
    ]
    plan = compiled(root, nodes)
    instance = node("cc[gen/main.c]", ["gen/main.c"], ["out/main.o"])
    with pytest.raises(PlanError) as caught:
        append_nodes(plan, 1, [instance])
    assert messages(caught.value.diagnostics) == [
        "Nodes `main` and `cc[gen/main.c]` both write `out/main.o`"
    ]


# Cycles


@pytest.mark.parametrize(
    ("nodes", "trail"),
    [
        ([node("a", after=["a"])], "a -> a"),
        ([node("a", after=["b"]), node("b", after=["a"])], "a -> b -> a"),
        ([node("a", ["p"], ["q"]), node("b", ["q"], ["p"])], "a -> b -> a"),
        (
            [
                node("z"),
                node("a", ["x"], ["p"]),
                node("d", ["o", "p"], ["i"]),
                node("e", ["i"], ["o"]),
            ],
            "d -> e -> d",
        ),
    ],
)
def test_cycles_are_printed_as_a_trail(root: Path, nodes: list[Node], trail: str) -> None:
    """C50: once, wherever it is and whatever its edges come from."""
    found = [d for d in complaints(root, nodes) if "cycle" in d.message]
    assert messages(found) == [f"Nodes wait for each other in a cycle: `{trail}`"]


def test_a_trail_says_who_reads_what(root: Path) -> None:
    """Each step of a cycle is explained at the line it comes from."""
    nodes = [
        node("a", ["x", "c.out"], ["a.out"], result=ResultKind.TEXT),
        node("b", env=(("V", ValueRef(NodeName("a"))),)),
        node("c", ["a.out"], ["c.out"]),
        node("d", after=["b", "c"]),
    ]
    [found] = complaints(root, nodes)
    assert found.message == "Nodes wait for each other in a cycle: `a -> c -> a`"
    assert found.origin == Origin("plan.toml", ("nodes", "a"))
    assert [(note.text, note.origin and note.origin.keys) for note in found.notes] == [
        ("`c` reads `a.out`, which `a` writes", ("nodes", "c", "reads", 0)),
        ("`a` reads `c.out`, which `c` writes", ("nodes", "a", "reads", 1)),
    ]


def test_explicit_steps_of_a_trail_are_told_too(root: Path) -> None:
    """`after` and value references are named as such."""
    nodes = [
        node("a", after=["b"], result=ResultKind.TEXT),
        node("b", env=(("V", ValueRef(NodeName("a"))),)),
    ]
    [found] = complaints(root, nodes)
    assert [note.text for note in found.notes] == [
        "`b` takes a value from `a`",
        "`a` comes after `b`",
    ]


def test_a_long_trail_is_cut_in_the_middle(root: Path) -> None:
    """A cycle of thousands is told by its ends."""
    nodes = [node(f"n{i}", after=[f"n{(i - 1) % 3000}"]) for i in range(3000)]
    [found] = complaints(root, nodes)
    assert "`n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> (2989 more) -> n2995 -> " in found.message
    assert found.message.endswith("n2999 -> n0`")
    assert len(found.notes) == 6


def test_separate_cycles_are_separate_errors(root: Path) -> None:
    """All cycles are reported in one pass."""
    pairs = [node(a, after=[b]) for a, b in ("ab", "ba", "cd", "dc")]
    assert len(complaints(root, pairs)) == 2


# References and resources


def test_unknown_names_are_answered_with_the_nearest(root: Path) -> None:
    """C49: in `after`, in values, in `default` and in `outputs`."""
    nodes = [
        node("compile", after=["fetsh"]),
        node("fetch", env=(("V", ValueRef(NodeName("compil"))),)),
    ]
    found = complaints(
        root, nodes, default=("fetc",), outputs=(("out", ValueRef(NodeName("nothing like it"))),)
    )
    assert [(d.message, d.hint) for d in found] == [
        ("`default` names `fetc`, but there is no such node", "Did you mean `fetch`?"),
        (
            "The output `out` takes its value from `nothing like it`, but there is no such node",
            None,
        ),
        (
            "Node `compile` comes after `fetsh`, but there is no such node",
            "Did you mean `fetch`?",
        ),
        (
            "Node `fetch` takes the value of `V` from `compil`, but there is no such node",
            "Did you mean `compile`?",
        ),
    ]


def test_a_value_comes_from_one_node_with_a_result(root: Path) -> None:
    """Several instances, and nodes without a result, have no value to take."""
    nodes = [
        node("many[1]", result=ResultKind.TEXT),
        node("many[2]", result=ResultKind.TEXT),
        node("one[1]", result=ResultKind.TEXT),
        node("mute"),
        node("a", env=(("V", ValueRef(NodeName("many"))),)),
        node("b", env=(("V", ValueRef(NodeName("mute"))),)),
        node("c", env=(("V", ValueRef(NodeName("one"))), ("W", Secret("W")))),
    ]
    assert messages(complaints(root, nodes)) == [
        "Node `a` takes the value of `V` from `many`, but that stands for 2 nodes",
        "Node `b` takes the value of `V` from `mute`, but that node declares no `result`",
    ]
    plan = compiled(root, [nodes[2], nodes[6]], outputs=(("o", ValueRef(NodeName("one"))),))
    assert plan.nodes[1].env == (("V", ValueRef(NodeName("one[1]"))), ("W", Secret("W")))
    assert plan.outputs == (("o", ValueRef(NodeName("one[1]"))),)
    assert follows(plan, "c") == {"one[1]": "value"}


def test_names_of_an_include_are_resolved_inside_it(root: Path) -> None:
    """`after = ["gen"]` in an included file means that file's `gen`."""
    plan = compiled(root, [node("gen"), node("web:gen"), node("web:use", after=["gen"])])
    assert plan.nodes[2].after == ("web:gen",)


def test_demands_that_can_never_be_met_are_refused(root: Path) -> None:
    """C111: with the node, the resource, what is asked for and what there is."""
    nodes = [
        node("a", resources=(("gpu", 2),)),
        node("b", resources=(("gpuu", 1),)),
        node("c", resources=(("gpu", 1), ("disk", 1))),
    ]
    found = complaints(root, nodes, resources=(Resource("gpu", 1),))
    assert [(d.message, d.hint) for d in found] == [
        ("Node `a` needs 2 of the resource `gpu`, but there is only 1", None),
        (
            "Node `b` needs 1 of the resource `gpuu`, but no such resource is declared",
            "Did you mean `gpu`?",
        ),
        (
            "Node `c` needs 1 of the resource `disk`, but no such resource is declared",
            "Declare it: [resources] disk = 1",
        ),
    ]


def test_all_errors_are_reported_in_one_pass_in_plan_order(root: Path) -> None:
    """One fault hides no other."""
    nodes = [
        node("a", ["absent"]),
        node("b", [], ["o"], after=["nosuch"]),
        node("c", [], ["o"], resources=(("gpu", 1),)),
        node("d", after=["d"]),
    ]
    found = messages(complaints(root, nodes))
    assert [m.split("`")[1] for m in found[:3]] == ["a", "b", "c"]
    assert len(found) == 4  # A cycle leaves the order open, so overlaps are not judged.


# Protected paths


@pytest.mark.parametrize("entry", ["plan.toml", "*.toml", "**", "./", "web/", "web/plan.*"])
def test_writing_a_plan_file_is_an_error(root: Path, entry: str) -> None:
    """No node may write the plan it belongs to, nor an included one."""
    files = (RelPath("plan.toml"), RelPath("web/plan.toml"))
    found = complaints(root, [node("a", [], [entry])], plan_files=files)
    shown = {"**": "./"}.get(entry, entry)
    assert all(
        d.message.startswith(f"Node `a` writes `{entry}`, which matches the plan file")
        for d in found
    ), shown
    assert len(found) in (1, 2)


def test_leaving_the_plan_file_out_is_enough(root: Path) -> None:
    """The hint of that error works."""
    [found] = complaints(root, [node("a", [], ["*"])])
    assert found.hint == 'Add "!plan.toml" behind it to leave the plan file out.'
    compiled(root, [node("a", [], ["*", "!plan.toml"])])


def test_assays_own_folder_is_not_written(root: Path) -> None:
    """Neither written nor removed."""
    nodes = [node("a", [], [".assay/x"]), node("b", removes=(RelPath(".assay/assay.db"),))]
    assert messages(complaints(root, nodes)) == [
        "Node `a` writes `.assay/x` in assay's own folder",
        "Node `b` removes `.assay/assay.db`, assay's own folder",
    ]


def test_removing_what_is_written_is_an_error(root: Path) -> None:
    """A path cannot be there and be gone; a removed plan file is refused likewise."""
    nodes = [
        node("a", [], ["o"], removes=(RelPath("o"),)),
        node("b", removes=(RelPath("plan.toml"),)),
    ]
    assert messages(complaints(root, nodes)) == [
        "Node `a` both writes and removes `o`",
        "Node `b` removes `plan.toml`, the plan's own file",
    ]


def test_reading_the_plan_file_is_fine(root: Path) -> None:
    """Reads of others under a write entry make edges, never errors."""
    (root / "plan.toml").touch()
    compiled(root, [node("a", ["plan.toml"])])


def test_two_nodes_of_one_name_are_an_error(root: Path) -> None:
    """However they came about."""
    found = complaints(root, [node("a"), node("a")])
    assert messages(found) == ["Two nodes are both named `a`"]


# Keys


def test_an_upstream_plan_key_enters_a_nodes_plan_key(root: Path) -> None:
    """A change of what a node follows changes its plan key, and nobody else's."""

    def keys(**more: Any) -> dict[str, str]:
        nodes = [node("a", [], ["o"], **more), node("b", ["o"]), node("c", ["x"])]
        plan = compiled(root, nodes)
        return dict(zip("abc", plan.plan_keys, strict=True))

    before, after = keys(), keys(priority=1)
    assert before["a"] != after["a"]
    assert before["b"] != after["b"]
    assert before["c"] == after["c"]


def test_equal_declarations_give_an_equal_digest(root: Path, tmp_path_factory: Any) -> None:
    """Neither the folder, the file's name, the place in it nor the order matter."""
    nodes = [node("a", ["x"]), node("b", ["y"], after=["a"])]
    moved = [replace(n, origin=Origin("-", ("nodes", 0))) for n in reversed(nodes)]
    other = tmp_path_factory.mktemp("other")
    for name in "xy":
        (other / name).touch()
    first = compiled(root, nodes)
    second = compiled(other, moved, file="-")
    assert first.digest == second.digest == first.base_digest
    assert compiled(root, nodes, params=(("p", "1"),)).digest != first.digest
    assert compiled(root, nodes, default=("a",)).digest != first.digest


def test_default_is_resolved(root: Path) -> None:
    """`default` may name many nodes by one word; the plan holds the nodes' names."""
    plan = compiled(root, [node("t[2]"), node("t[1]"), node("u")], default=("u", "t"))
    assert plan.default == ("t[2]", "t[1]", "u")


# Generations


@pytest.fixture
def growing(root: Path) -> Plan:
    """Gen -> cc (a template) -> link, with a teardown after cc and an unrelated source."""
    return compiled(
        root,
        [
            node("gen", [], ["gen/"]),
            template("cc", ["gen/*.c"], ["gen/*.c", "x"], ["out/*.o"], after=["setup"]),
            node("link", ["out/*.o"], ["app"]),
            node("setup"),
            node("log", after=["cc"]),
        ],
    )


def test_a_template_takes_its_place_in_the_graph(growing: Plan) -> None:
    """It follows the writers of its pattern; readers of what it will write follow it."""
    assert follows(growing, "cc") == {"gen": "path", "setup": "after"}
    assert follows(growing, "link") == {"cc": "path"}
    assert follows(growing, "log") == {"cc": "after"}


def instances(*stems: str) -> list[Node]:
    return [node(f"cc[gen/{s}.c]", [f"gen/{s}.c", "x"], [f"out/{s}.o"], ["setup"]) for s in stems]


def test_instances_follow_what_the_template_follows(growing: Plan) -> None:
    """They are appended, and nothing that was there changes."""
    plan = append_nodes(growing, 1, instances("a", "b"))
    assert plan.nodes[: len(growing.nodes)] == growing.nodes
    assert plan.dependencies[: len(growing.nodes)] == growing.dependencies
    assert plan.plan_keys[: len(growing.nodes)] == growing.plan_keys
    assert follows(plan, "cc[gen/a.c]") == {"gen": "path", "setup": "after"}
    assert (plan.generation, plan.base_digest) == (1, growing.digest)
    assert plan.digest != growing.digest


def test_instances_may_follow_each_other(growing: Plan) -> None:
    """What one instance writes another may read."""
    a, b = instances("a", "b")
    plan = append_nodes(growing, 1, [replace(a, reads=a.reads + b.writes), b])
    assert follows(plan, "cc[gen/a.c]")["cc[gen/b.c]"] == "path"


def test_a_second_template_expands_over_the_first_ones_outputs(root: Path) -> None:
    """Instances of the one follow instances of the other."""
    nodes = [
        node("gen", [], ["a/"]),
        template("one", ["a/*"], ["a/*"], ["b/*"]),
        template("two", ["b/*"], ["b/*"], ["c/*"]),
        node("end", ["c/*"]),
    ]
    plan = compiled(root, nodes)
    assert follows(plan, "two") == {"one": "path"}
    plan = append_nodes(plan, 1, [node("one[a/x]", ["a/x"], ["b/x"])])
    plan = append_nodes(plan, 2, [node("two[b/x]", ["b/x"], ["c/x"])])
    assert follows(plan, "two[b/x]") == {"one": "path", "one[a/x]": "path"}
    assert follows(plan, "end") == {"two": "path"}
    assert plan.generation == 2


def test_no_instances_are_a_generation_too(growing: Plan) -> None:
    """A template that matched nothing has expanded all the same."""
    plan = append_nodes(growing, 1, [])
    assert plan.nodes == growing.nodes
    assert plan.generation == 1
    assert plan.digest != growing.digest


def test_an_instance_cannot_follow_who_follows_its_template(growing: Plan) -> None:
    """That would wait for itself."""
    [instance] = instances("a")
    with pytest.raises(PlanError) as caught:
        append_nodes(growing, 1, [replace(instance, after=(NodeName("log"),))])
    [found] = caught.value.diagnostics
    assert found.message == (
        "Nodes wait for each other in a cycle: `cc -> log -> cc[gen/a.c] -> cc`"
    )
    assert found.notes[-1].text == "`cc[gen/a.c]` belongs to `cc`"


def test_an_instance_reads_the_version_before_who_follows_its_template(root: Path) -> None:
    """Explicit order after the template is explicit order after its instances."""
    nodes = [
        node("gen", [], ["gen/"]),
        template("cc", ["gen/*.c"], ["gen/*.c", "x"], ["out/*.o"]),
        node("bump", [], ["x"], after=["cc"]),
    ]
    plan = append_nodes(
        compiled(root, nodes), 1, [node("cc[gen/a.c]", ["gen/a.c", "x"], ["out/a.o"])]
    )
    assert follows(plan, "cc[gen/a.c]") == {"gen": "path"}


def test_an_instance_of_a_taken_name_is_refused(growing: Plan) -> None:
    """A template expands once."""
    plan = append_nodes(growing, 1, instances("a"))
    with pytest.raises(PlanError, match="both named"):
        append_nodes(plan, 1, instances("a"))


# Size


def wide(count: int) -> list[Node]:
    return [
        *(node(f"cc[{n}]", ["src/*.c", "gen/"], [f"out/{n}.o"]) for n in range(count)),
        node("gen", [], ["gen/"]),
        node("link", ["out/*.o"]),
    ]


def chain(count: int) -> list[Node]:
    return [node(f"n{n}", [f"c/{n - 1}"] if n else [], [f"c/{n}"]) for n in range(count)]


def readers(count: int) -> list[Node]:
    return [node("gen", [], ["gen/"]), *(node(f"r{n}", [f"gen/{n}"]) for n in range(count))]


def rewriters(count: int) -> list[Node]:
    rows = [node(f"w{n}", ["x"], ["x"], [f"w{n - 1}"] if n else []) for n in range(count)]
    return [*rows, node("end", ["x"])]


def earlier_readers(count: int) -> list[Node]:
    """Readers in a row, then as many writers in a row of what they read: every inferred
    edge is contradicted."""
    last = f"r{count - 1}"
    read = [node(f"r{n}", [f"o/{n}"], [], [f"r{n - 1}"] if n else []) for n in range(count)]
    return [
        *read,
        *(node(f"w{n}", [], [f"o/{n}"], [f"w{n - 1}" if n else last]) for n in range(count)),
    ]


@pytest.mark.parametrize(
    ("make", "edges"),
    [
        (wide, 20_000),
        (chain, 9_999),
        (readers, 10_000),
        (rewriters, 10_000),
    ],
)
def test_ten_thousand_nodes_compile(
    root: Path, make: Callable[[int], list[Node]], edges: int
) -> None:
    """C52: wide and deep plans have one edge for each thing that waits for another."""
    plan = compiled(root, make(10_000))
    assert sum(map(len, plan.dependencies)) == edges


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_compiles(root: Path) -> None:
    """C52: nothing recurses."""
    plan = compiled(root, chain(100_000))
    assert plan.dependencies[-1] == (99_998,)


def test_many_contradicted_edges_are_dropped_together(root: Path) -> None:
    """Giving way costs sweeps over the graph, not one search for each edge."""
    (root / "o").mkdir()
    for n in range(3000):
        (root / f"o/{n}").touch()
    plan = compiled(root, earlier_readers(3000))
    assert all(kind is EdgeKind.AFTER for kinds in plan.edge_kinds for kind in kinds)


def test_a_join_of_twenty_thousand_shares_its_names(root: Path) -> None:
    """C52: nodes that follow the same crowd hold one list of names and one of edges."""
    nodes = [node(f"w{n}") for n in range(20_000)]
    plan = compiled(root, [*nodes, node("a", after=["w*"]), node("b", after=["w*"])])
    assert plan.nodes[-1].after is plan.nodes[-2].after
    assert plan.dependencies[-1] is plan.dependencies[-2]
    assert len(plan.dependencies[-1]) == 20_000


def test_groups_are_nodes_like_others(root: Path) -> None:
    """A node without a command orders what it follows and what follows it."""
    plan, warnings = compile_plan(
        draft(root), [node("g", after=["a"], kind=Kind.GROUP, command=None), node("a")], {}
    )
    assert warnings == ()
    assert follows(plan, "g") == {"a": "after"}


# Against a model of a page

PLACES = ("p0", "p1", "p2", "p3")

random_plans = st.lists(
    st.tuples(
        st.sets(st.sampled_from(PLACES), max_size=2),
        st.sets(st.sampled_from(PLACES), max_size=1),
        st.sets(st.integers(0, 5), max_size=2),
        st.sampled_from((Tier.SEALED, Tier.SEALED, Tier.IRREVERSIBLE)),
    ),
    min_size=1,
    max_size=6,
)


def reachable(edges: set[tuple[int, int]], first: int, last: int) -> bool:
    found = {b for a, b in edges if a == first}
    while True:
        more = found | {b for a, b in edges if a in found}
        if more == found:
            return last in found
        found = more


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(random_plans)
def test_edges_agree_with_the_rules_as_they_are_written(
    tmp_path: Path, drawn: list[tuple[set[str], set[str], set[int], Tier]]
) -> None:
    """Explicit edges, inferred ones, dropped ones, overlaps and cycles, by brute force."""
    for place in PLACES:
        (tmp_path / place).touch()
    count = len(drawn)
    nodes = [
        node(
            f"n{i}",
            sorted(reads),
            sorted(writes),
            [f"n{j}" for j in sorted(after) if j < count],
            tier=tier,
        )
        for i, (reads, writes, after, tier) in enumerate(drawn)
    ]
    explicit = {(j, i) for i, (_, _, after, _) in enumerate(drawn) for j in after if j < count}
    found: list[str] = []
    plan: Plan | None = None
    try:
        plan = compiled(tmp_path, nodes)
    except PlanError as error:
        found = messages(error.diagnostics)
    if any(reachable(explicit, i, i) for i in range(count)):
        assert any("cycle" in message for message in found)
        return
    quarrel = inferred = False
    edges = set(explicit)
    for a, b in itertools.permutations(range(count), 2):
        (reads_a, writes_a, _, tier_a), (reads_b, writes_b, _, tier_b) = drawn[a], drawn[b]
        shared = writes_a & writes_b
        is_ordered = reachable(explicit, a, b) or reachable(explicit, b, a)
        later = tier_b if reachable(explicit, a, b) else tier_a
        may_share = (shared <= reads_a and shared <= reads_b) or later is not Tier.SEALED
        if shared and not (is_ordered and may_share):
            quarrel = True
        overlapping = writes_a & reads_b
        both_rewrite = overlapping and shared
        if overlapping and not reachable(explicit, b, a):
            inferred = True
            if not both_rewrite or is_ordered:
                edges.add((a, b))
    if quarrel:
        assert any("both write" in message for message in found)
    elif any(reachable(edges, i, i) for i in range(count)):
        assert any("cycle" in message for message in found)
    else:
        assert plan is not None, found
        kept = {(d, i) for i, row in enumerate(plan.dependencies) for d in row}
        # The compiled plan leaves out only what follows from other edges.
        assert kept <= edges
        pairs = itertools.product(range(count), repeat=2)
        assert all(reachable(kept, a, b) is reachable(edges, a, b) for a, b in pairs)
        assert inferred or kept == explicit


def test_effects_have_keys_of_their_own(root: Path) -> None:
    """Two nodes with one idempotency key are an error that names both."""

    def pay(name: str, key: str) -> Node:
        return replace(node(name), tier=Tier.IRREVERSIBLE, idempotency_key=key)

    compiled(root, [pay("a", "k1"), pay("b", "k2")])
    assert messages(complaints(root, [pay("a", "k"), pay("b", "k")])) == [
        "Nodes `a` and `b` have the same `idempotency_key`, `k`: the second would be taken for a"
        " repeat of the first"
    ]
