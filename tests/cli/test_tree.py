"""Plans as trees and graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from assay.cli.render.graphs import render_dot, render_json, render_mermaid
from assay.cli.render.tree import ASCII, UNICODE, render_tree
from assay.plans.model import (
    Argv,
    Digest,
    EdgeKind,
    Entry,
    EntryKind,
    Kind,
    Node,
    NodeName,
    Origin,
    Plain,
    Plan,
    PlanKey,
    RelPath,
    Secret,
    ValueRef,
)


def node(name: str, **more: object) -> Node:
    base = name.partition("[")[0]
    origin = Origin("plan.toml", ("nodes", base))
    given = {"command": Argv(("true",)), **more}
    return Node(NodeName(name), origin, **given)  # type: ignore[arg-type]


def make_plan(nodes: Sequence[Node], needs: dict[int, tuple[int, ...]]) -> Plan:
    dependencies = tuple(needs.get(index, ()) for index in range(len(nodes)))
    return Plan(
        name="site",
        nodes=tuple(nodes),
        dependencies=dependencies,
        edge_kinds=tuple(tuple(EdgeKind.PATH for _ in each) for each in dependencies),
        plan_keys=tuple(PlanKey("k") for _ in nodes),
        digest=Digest("d" * 64),
        base_digest=Digest("d" * 64),
    )


def tree(plan: Plan) -> str:
    every = range(len(plan.nodes))
    return "".join(render_tree(plan, every, strokes=UNICODE, colour=False))


SMALL = make_plan(
    [
        node("gen", description="makes headers"),
        node("cc[a.c]"),
        node("cc[b.c]"),
        node("link"),
        node("all", kind=Kind.GROUP, command=None),
    ],
    {1: (0,), 2: (0,), 3: (0, 1, 2), 4: (3,)},
)


def test_tree_shows_what_needs_what() -> None:
    """Roots are what nothing follows; a node that stands above is not drawn again."""
    assert tree(SMALL) == (
        "site  plan.toml  5 nodes\n"
        "all  group\n"
        "└── link\n"
        "    ├── gen  makes headers\n"
        "    └── cc  2 nodes: [a.c] [b.c]\n"
        "        └── gen  makes headers\n"
    )


def test_tree_has_plain_strokes_too() -> None:
    """C76 Where an encoding lacks the strokes, ASCII ones are drawn."""
    lines = "".join(render_tree(SMALL, [0, 1, 2, 3], strokes=ASCII, colour=False))

    assert lines.isascii()
    assert "|-- gen" in lines


def test_shared_needs_are_drawn_once() -> None:
    """What stands above already is named with a pointer upwards."""
    plan = make_plan(
        [node("base"), node("mid"), node("left"), node("right"), node("top")],
        {1: (0,), 2: (1,), 3: (1,), 4: (2, 3)},
    )

    assert tree(plan) == (
        "site  plan.toml  5 nodes\n"
        "top\n"
        "├── left\n"
        "│   └── mid\n"
        "│       └── base\n"
        "└── right\n"
        "    └── mid  (see above)\n"
    )


def test_ten_thousand_instances_are_one_line() -> None:
    """The tree grows with the declarations, not with what a `foreach` matches."""
    nodes = [node(f"cc[{number}.c]") for number in range(10_000)] + [node("link")]
    plan = make_plan(nodes, {10_000: tuple(range(10_000))})

    assert tree(plan) == (
        "site  plan.toml  10,001 nodes\n"
        "link\n"
        "└── cc  10,000 nodes: [0.c] [1.c] [2.c] and 9,997 more\n"
    )


def test_a_chain_of_any_depth_is_drawn_in_linear_time() -> None:
    """A chain 100,000 deep is drawn without recursion and without endless indentation."""
    depth = 100_000
    nodes = [node(f"n{number}") for number in range(depth)]
    plan = make_plan(nodes, {number: (number - 1,) for number in range(1, depth)})

    text = tree(plan)

    assert max(map(len, text.splitlines())) < 100
    assert text.count("(goes on below)") > 1000
    assert text.splitlines()[-1].endswith("n0")


def test_families_that_need_each_other_are_all_drawn() -> None:
    """Instances of two declarations may cross; every node is still shown."""
    plan = make_plan([node("a[1]"), node("b[1]"), node("b[2]"), node("a[2]")], {1: (0,), 3: (2,)})

    text = tree(plan)

    assert "a  2 nodes: [1] [2]" in text
    assert "b  2 nodes: [1] [2]" in text


def test_names_cannot_leave_their_line() -> None:
    """C121 Names are shown escaped in every format."""
    plan = make_plan([node('a\n"b"'), node("<c>#")], {1: (0,)})

    assert tree(plan).count("\n") == 3
    assert "".join(render_dot(plan, [0, 1])) == (
        'digraph "site" {\n'
        "  rankdir=LR;\n"
        "  node [shape=box];\n"
        '  n0 [label="a\\\\n\\"b\\""];\n'
        '  n1 [label="<c>#"];\n'
        "  n0 -> n1;\n"
        "}\n"
    )
    assert "".join(render_mermaid(plan, [0, 1])) == (
        'flowchart LR\n  n0["a\\n#quot;b#quot;"]\n  n1["#lt;c#gt;#35;"]\n  n0 --> n1\n'
    )


def test_json_says_all_of_the_plan() -> None:
    """`--format json` is one object with every node and why it follows others."""
    first = node(
        "a",
        reads=(Entry(EntryKind.TREE, RelPath("src")), Entry(EntryKind.GLOB, RelPath("*.h"), True)),
        env=(
            ("A", Plain("1")),
            ("B", ValueRef(NodeName("b"), ("x", "0"))),
            ("C", Secret("TOKEN")),
        ),
    )
    plan = make_plan([first, node("b")], {1: (0,)})

    value = json.loads("".join(render_json(plan, [0, 1])))

    assert value["name"] == "site"
    assert [each["name"] for each in value["nodes"]] == ["a", "b"]
    assert value["nodes"][0]["run"] == ["true"]
    assert value["nodes"][0]["reads"] == ["src/", "!*.h"]
    assert value["nodes"][0]["env"] == {
        "A": "1",
        "B": {"from": "b", "path": "x.0"},
        "C": {"secret": "TOKEN", "keyed": False},
    }
    assert value["nodes"][1]["follows"] == [{"node": "a", "because": ["path"]}]


def test_only_what_is_selected_is_drawn() -> None:
    """Edges to nodes that are not selected are left out."""
    assert "n0" not in "".join(render_mermaid(SMALL, [1, 2, 3]))
