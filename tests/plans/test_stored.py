"""Plans as bytes and back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from handmade import ROOT, compiled, entries, node, template

from assay.plans.compile import append_nodes
from assay.plans.declarations import (
    FORMS,
    decode_declaration,
    encode_declaration,
)
from assay.plans.entries import literal_entry
from assay.plans.model import (
    Argv,
    Background,
    Boundary,
    CachePolicy,
    CacheScope,
    Digest,
    Kind,
    Node,
    NodeName,
    Origin,
    Plain,
    Plan,
    RelPath,
    Resource,
    ResourceScope,
    ResultKind,
    Retry,
    Script,
    Secret,
    Template,
    Tier,
    Tool,
    ValueRef,
    When,
)
from assay.plans.stored import DamagedPlan, plan_from_bytes, plan_to_bytes

FULL = Node(
    NodeName("full[a]"),
    Origin("web/plan.toml", ("nodes", "full", 3)),
    kind=Kind.AGENT,
    description="every field at another value than its default",
    tags=("t",),
    command=Script("echo", ("/bin/sh", "-ec")),
    workdir=RelPath("web"),
    reads=(*entries("a", "b/", "*.c", "!x", "!y/**"), literal_entry("*?", ROOT, optional=True)),
    writes=entries("out/"),
    removes=(RelPath("old"),),
    ignore=("*.swp",),
    tools=(Tool("cc"), Tool("node", ("node", "--version"))),
    after=(NodeName("gen"),),
    when=When.ALWAYS,
    env=(("A", Plain("1")), ("B", ValueRef(NodeName("gen"), ("x", "0"))), ("C", Secret("S", True))),
    pass_env=("LANG",),
    clean=False,
    background=Background.KEEP,
    priority=-3,
    timeout_seconds=1.5,
    grace_seconds=0.0,
    cancellable=False,
    retry=Retry(3, 0.5, 2.0, 60.0, (75,)),
    resources=(("gpu", 1),),
    locks=("db",),
    cache=CachePolicy(True, 3600.0, CacheScope.PLAN),
    nondeterministic=True,
    result=ResultKind.JSON,
    max_result_bytes=10,
    tier=Tier.COMPENSABLE,
    idempotency_key="2024-05",
    undo=Argv(("undo", "it")),
    boundary=Boundary.ISOLATED,
    requires=("network",),
    template=Template(entries("gen/*"), "{}"),
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "bytes-\udcff").touch()
    nodes = [
        node("gen", ["bytes-\udcff"], ["gen/"], result=ResultKind.JSON),
        node("use", ["gen/"], env=(("V", ValueRef(NodeName("gen"), ("a",))),), timeout_seconds=1.5),
        template("cc", ["gen/*.c"], ["gen/*.c"], ["out/*.o"], after=["use"]),
    ]
    plan = compiled(
        tmp_path,
        nodes,
        default=("use",),
        steps=3,
        resources=(Resource("gpu", 2, ResourceScope.HOST),),
        outputs=(("v", ValueRef(NodeName("gen"))),),
        params=(("mode", "dev"),),
    )
    return append_nodes(plan, 2, [node("cc[gen/a.c]", ["gen/a.c"], ["out/a.o"])])


def test_every_field_of_a_node_comes_back() -> None:
    """Each field has a form, and none is lost or changed on the way."""
    assert set(FORMS) == {f.name for f in fields(Node)} - {"origin"}
    plain = Node(NodeName("n"), Origin("p"), command=Argv(("a", "b")))
    assert all(getattr(FULL, f.name) != getattr(plain, f.name) for f in fields(Node))
    for sample in (FULL, plain, replace(plain, undo=Script("x", ("sh", "-c")))):
        assert decode_declaration(encode_declaration(sample), sample.origin) == sample


def test_a_field_at_its_default_is_not_written() -> None:
    """A field that a later version brings changes no plan key of those who do not use it."""
    plain = Node(NodeName("n"), Origin("p"), command=Argv(("a", "b")))
    assert encode_declaration(plain) == {"name": "n", "command": {"argv": ("a", "b")}}


def test_a_plan_comes_back_equal(plan: Plan) -> None:
    """Later generations, names that are not UTF-8 and all: what is loaded equals what was
    stored."""
    assert plan_from_bytes(plan_to_bytes(plan), plan.digest) == plan


def test_equal_plans_are_equal_bytes(plan: Plan) -> None:
    """The bytes depend on the plan alone."""
    again = plan_from_bytes(plan_to_bytes(plan), plan.digest)
    assert plan_to_bytes(again) == plan_to_bytes(plan)


def test_any_damaged_byte_is_noticed(plan: Plan) -> None:
    """A plan with one bit flipped anywhere, or cut anywhere, is never loaded."""
    data = plan_to_bytes(plan)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(DamagedPlan):
            plan_from_bytes(flipped, plan.digest)
        with pytest.raises(DamagedPlan):
            plan_from_bytes(data[:at], plan.digest)


def test_another_plan_under_the_name_is_noticed(plan: Plan) -> None:
    """Bytes that are whole but belong to another digest are refused."""
    with pytest.raises(DamagedPlan, match="has the digest"):
        plan_from_bytes(plan_to_bytes(plan), Digest("0" * 64))
