"""Whatever is in a plan file: it loads, or everything wrong with it is told with its place."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.plans.diagnostics import PlanError
from assay.plans.load import LoadRequest, load_plan
from assay.plans.positions import find_span
from assay.plans.schema import (
    NODE_KEYS,
    PLAN_KEYS,
    CacheTable,
    PathDecl,
    ResourceTable,
    RetryDecl,
    ToolTable,
    ValueRefDecl,
)

FOREIGN_WORDS = (
    "pydantic",
    "Input should",
    "validation",
    "Traceback",
    "<list>",
    "<string>",
    "dict",
)

inner_keys = (
    *(CacheTable.__annotations__, PathDecl.__annotations__, ResourceTable.__annotations__),
    *(RetryDecl.__annotations__, ToolTable.__annotations__, ValueRefDecl.__annotations__),
)
texts = st.sampled_from(
    (
        *("", "x", "a", "a/b", "src/*.c", "!x", "/abs", "../x", "{a,b}", "[", "**", ".", "./", "/"),
        *("{{each}}", "{{params.p}}", "{{matrix.m}}", "{{each.x}}", "{{params}}", "5m", "0s", "-1"),
        *("sealed", "agent", "always", "json", "true", "3", "a\nb", "\\", "#", "é", "a[b]", "b:c"),
    )
) | st.text(max_size=6)
scalars = (
    texts
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from((2**53, 2**64, 10**30, 1.5, float("nan"), float("inf"), -0.0))
    | st.none()
)
keys = st.sampled_from(
    sorted({key for table in inner_keys for key in table} | {"secret", "p", "m"})
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | texts, inner, max_size=3),
    max_leaves=6,
)
nodes = st.dictionaries(st.sampled_from(sorted(NODE_KEYS)) | texts, values, max_size=5) | values
likely = st.fixed_dictionaries(
    {"run": st.lists(texts, min_size=1, max_size=3) | texts},
    optional={
        "reads": st.lists(texts, max_size=3),
        "writes": st.lists(texts, max_size=3),
        "removes": st.lists(texts, max_size=2),
        "after": st.lists(texts, max_size=2),
        "foreach": texts | st.lists(texts, max_size=2),
        "matrix": st.dictionaries(texts, st.lists(scalars, max_size=3), max_size=2),
        "env": st.dictionaries(texts, values, max_size=2),
        "workdir": texts,
        "timeout": texts,
        "tools": st.lists(texts, max_size=2),
    },
)
plans = st.fixed_dictionaries(
    {"nodes": st.dictionaries(texts, likely | nodes, max_size=4)},
    optional={
        **dict.fromkeys(sorted(PLAN_KEYS - {"nodes", "root"}), values),
        "root": st.sampled_from((".", "..", "nope", 3)),
        "params": st.dictionaries(texts, scalars, max_size=2),
        "env": st.dictionaries(texts, values, max_size=2),
        "ignore": st.lists(texts, max_size=2),
        "defaults": likely | nodes,
    },
)


def check(content: bytes, name: str) -> None:
    """Loads a plan; when it is refused, every complaint is a sentence of ours in its place."""
    with tempfile.TemporaryDirectory() as around:
        # Its root may be the folder above, which is not to be everybody's.
        folder = f"{around}/plan"
        Path(folder).mkdir()
        (Path(folder) / "x").touch()
        (Path(folder) / name).write_bytes(content)
        refusal: PlanError | None = None
        try:
            load_plan(LoadRequest(name, cwd=folder))
        except PlanError as error:
            refusal = error
    if refusal is None:
        return
    assert refusal.diagnostics
    # What the plan says itself may be quoted.
    foreign = [word for word in FOREIGN_WORDS if word.encode() not in content]
    for diagnostic in refusal.diagnostics:
        assert diagnostic.message
        assert not any(word in diagnostic.message for word in foreign)
        if diagnostic.origin is not None and diagnostic.line is None:
            text = refusal.sources[diagnostic.origin.file]
            assert find_span(text, diagnostic.origin.keys, diagnostic.mark) is not None


QUICK = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@QUICK
@given(plans)
def test_any_tree_of_json_is_loaded_or_explained(plan: Any) -> None:
    """Trees that look almost like plans."""
    check(json.dumps(plan).encode(), "plan.json")


@QUICK
@given(values)
def test_any_json_is_loaded_or_explained(value: Any) -> None:
    """Trees that look like nothing."""
    check(json.dumps(value).encode(), "plan.json")


@QUICK
@given(plans)
def test_any_tree_of_toml_is_loaded_or_explained(plan: Any) -> None:
    """The same in TOML, one table for each node."""
    lines = [f"{json.dumps(k)} = {toml(v)}" for k, v in plan.items() if k != "nodes"]
    for name, node in plan["nodes"].items():
        if isinstance(node, dict):
            lines.append(f"[nodes.{toml(name)}]")
            lines += [f"{toml(key)} = {toml(value)}" for key, value in node.items()]
    check("\n".join(lines).encode("utf-8", "replace"), "plan.toml")


@QUICK
@given(
    st.lists(
        st.sampled_from(
            (
                *(
                    "[nodes.a]",
                    "[nodes.a.env]",
                    "[[nodes]]",
                    "[nodes]",
                    "[params]",
                    "run = 'x'",
                    "a.b = 1",
                ),
                *(
                    "reads = [",
                    "]",
                    "'x',",
                    '"""',
                    "'''",
                    "{ a = 1 }",
                    "after = ['a']",
                    "# c",
                    "\r\n",
                ),
                *(
                    "\ufeff",
                    "nodes.a.run = 'y'",
                    "nodes = { a = { run = 'x', run = 'y' } }",
                    "1979-05-27",
                ),
            )
        ),
        max_size=8,
    )
)
def test_any_lines_are_loaded_or_explained(lines: list[str]) -> None:
    """Pieces of TOML in any order."""
    check("\n".join(lines).encode(), "plan.toml")


@QUICK
@given(st.binary(max_size=40))
def test_any_bytes_are_explained(content: bytes) -> None:
    """Whatever a file holds."""
    check(content, "plan.toml")
    check(content, "plan.json")


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return json.dumps(value).replace("\x7f", "\\u007f").replace("null", "2024-01-01")
