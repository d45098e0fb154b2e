"""Where a node whose boundary is held works: decided by the plan and by what is on the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from handmade import compiled, node, template

from assay.engine.confinement import Outside
from assay.engine.landlock import Rule
from assay.engine.measuring import Measurer
from assay.engine.states import State
from assay.engine.workplace import Unremembered, Workplace, Writers, plan_workplace
from assay.plans.model import Boundary, Node, RelPath


def place_of(root: Path, nodes: list[Node], index: int = 0) -> Workplace | None:
    plan = compiled(root, nodes)
    measurer = Measurer(str(root), Unremembered(), time.time_ns)
    position = next(i for i, each in enumerate(plan.nodes) if each.name == nodes[index].name)
    return plan_workplace(
        plan.nodes[position],
        position,
        Writers(plan),
        str(root),
        f"{root}/.assay/tmp/1.tree",
        time.time_ns,
        measurer,
    )


def held(name: str = "a", *args: Any, **more: Any) -> Node:
    return node(name, *args, **{"boundary": Boundary.ENFORCED, **more})


def is_in_place(root: Path, *nodes: Node) -> bool:
    found = place_of(root, list(nodes))
    assert found is not None
    assert (found.tree is None) == (found.root == str(root))
    return found.tree is None


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_declared_has_none(tmp_path: Path) -> None:
    """With nothing in its way there is nothing to lay out."""
    assert place_of(tmp_path, [node("a", writes=["out/o"])]) is None


def test_isolated_is_always_private(tmp_path: Path) -> None:
    """Also where it writes nothing."""
    for writes in ([], ["out/o"]):
        found = place_of(tmp_path, [node("a", writes=writes, boundary=Boundary.ISOLATED)])
        assert found is not None
        assert found.tree is not None
        assert found.root == f"{tmp_path}/.assay/tmp/1.tree"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("writes", "in_place"),
    [
        ([], True),
        (["out/o"], True),
        (["out/deep/o", "out/p"], True),
        (["out/*.o"], True),
        (["out/d/"], True),
        (["o"], False),
        (["d/"], False),
        (["*.o"], False),
        ([".git/hooks/h"], False),
        (["src/o"], False),
        (["out/o", "src/o"], False),
    ],
)
def test_enforced_by_what_it_writes(tmp_path: Path, writes: list[str], in_place: bool) -> None:
    """In place where it writes nothing, or only in folders that hold nothing else."""
    write(tmp_path, "src/f", "src/g")
    assert is_in_place(tmp_path, held("a", ["src/f"], writes)) == in_place


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    """What it declares may lie there; undeclared files, git, the store and links may not."""
    declared = held("a", writes=["out/*.o"])
    write(tmp_path, "out/a.o", "out/b.o")
    assert is_in_place(tmp_path, declared)
    (tmp_path / "out/empty").mkdir()
    assert is_in_place(tmp_path, declared)
    for name in ("out/other", "out/.git/x.o", "out/.assay/x.o"):
        write(tmp_path, name)
        assert not is_in_place(tmp_path, declared)
        (tmp_path / name).unlink()
        if "/." in name:
            assert not is_in_place(tmp_path, declared)
            (tmp_path / name).parent.rmdir()
    assert is_in_place(tmp_path, declared)
    (tmp_path / "out").rename(tmp_path / "real")
    (tmp_path / "out").symlink_to("real")
    assert not is_in_place(tmp_path, declared)


@pytest.mark.parametrize("reads", [["out/in"], ["out/"], ["out/deep/*"], ["**/*.c"], ["*"], ["./"]])
def test_reading_where_it_writes(tmp_path: Path, reads: list[str]) -> None:
    """What it only reads must not lie, nor come to lie, where it may write."""
    write(tmp_path, "out/in", "out/deep/x", "x.c")
    assert not is_in_place(tmp_path, held("a", reads, ["out/o"]))


@pytest.mark.parametrize(
    ("other", "in_place"),
    [
        (node("b", writes=["out/p"]), False),
        (node("b", writes=["out/deep/p"]), False),
        (node("b", writes=["out/deep/"]), False),
        (node("b", writes=["out/*.p"]), False),
        (node("b", writes=["**/o.p"]), False),
        (node("b", removes=(RelPath("out/p"),)), False),
        (node("b", writes=["outer/p"]), True),
        (node("b", writes=["p"]), True),
        (node("b", ["out/o"], ["p"]), True),
        (template("b", ["in/*"], ["in/*"], ["out/*.p"]), False),
    ],
)
def test_other_writers(tmp_path: Path, other: Node, in_place: bool) -> None:
    """A folder is opened only for a node that is the only one to write there, in it, below it
    or all around it."""
    write(tmp_path, "in/x")
    assert is_in_place(tmp_path, held("a", writes=["out/o"]), other) == in_place


def test_domain_in_place(tmp_path: Path) -> None:
    """It may write in its folders and its own, and read what was found."""
    write(tmp_path, "src/f")
    found = place_of(tmp_path, [held("a", ["src/f"], ["out/o"])])
    assert found is not None
    reads = {RelPath("src/f"): State("file:" + "0" * 64)}
    declared = held("a", ["src/f"], ["out/o"])
    domain = found.find_domain(
        declared, str(tmp_path), Outside(str(tmp_path)), reads, "/tmp/t", None
    )
    inside = {rule.path for rule in domain.rules if rule.path.startswith(f"{tmp_path}/")}
    assert inside == {f"{tmp_path}/src", f"{tmp_path}/src/f", f"{tmp_path}/out"}
    assert not domain.network
    assert "/tmp/t" in {rule.path for rule in domain.rules}
    networked = held("a", ["src/f"], ["out/o"], requires=("network",))
    assert found.find_domain(
        networked, str(tmp_path), Outside(str(tmp_path)), reads, "/tmp/t", None
    ).network


def test_domain_of_a_private_tree(tmp_path: Path) -> None:
    """Of the workspace itself nothing is reached but what absolute links lead to."""
    write(tmp_path, "src/f", "src/g")
    (tmp_path / "link").symlink_to(tmp_path / "src/f")
    declared = node("a", ["link", "src/g"], ["o"], boundary=Boundary.ISOLATED)
    found = place_of(tmp_path, [declared])
    assert found is not None
    state = State("file:" + "0" * 64)
    reads = {RelPath("src/g"): state, RelPath("link"): State(f"link:{'0' * 64}>{state}")}
    rules: tuple[Rule, ...] = found.find_domain(
        declared, str(tmp_path), Outside(str(tmp_path)), reads, "/tmp/t", None
    ).rules
    inside = {rule.path for rule in rules if rule.path.startswith(f"{tmp_path}/")}
    assert inside == {found.root, f"{tmp_path}/src/f"}


def test_translation(tmp_path: Path) -> None:
    """Paths of the workspace are those of the tree for the command; others stay."""
    found = place_of(tmp_path, [node("a", boundary=Boundary.ISOLATED)])
    assert found is not None
    root = str(tmp_path)
    assert found.translate(root, None) is None
    assert found.translate(root, "/bin/sh") == "/bin/sh"
    assert found.translate(root, f"{root}2/x") == f"{root}2/x"
    assert found.translate(root, f"{root}/bin/x") == f"{found.root}/bin/x"
    assert found.translate_search(root, f"/bin:{root}/bin::rel") == f"/bin:{found.root}/bin::rel"


def test_strays_in_place(tmp_path: Path) -> None:
    """C47: files that nobody declared in the folders that were opened; empty folders are none."""
    declared = held("a", writes=["out/*.o", "more/x"], removes=(RelPath("out/gone"),))
    found = place_of(tmp_path, [declared])
    assert found is not None
    write(tmp_path, "out/a.o", "out/deep/a.o", "out/side", "more/x", "else/y")
    (tmp_path / "out/empty").mkdir()
    (tmp_path / "out/link").symlink_to("/")
    strays = found.find_strays(declared)
    assert strays.created == ("out/deep/a.o", "out/link", "out/side")
    assert (strays.changed, strays.removed) == ((), ())


def test_new_generation(tmp_path: Path) -> None:
    """Nodes that are appended count from then on."""
    plan = compiled(tmp_path, [held("a", writes=["out/o"])])
    writers = Writers(plan)
    assert writers.are_alone(0, "out")
    more = compiled(tmp_path, [held("a", writes=["out/o"]), node("b", writes=["out/deep/p"])])
    writers.extend(more)
    assert not writers.are_alone(0, "out")
    assert not writers.are_alone(0, "out/deep")
    assert writers.are_alone(0, "other")
