"""Values that nodes give each other: `result`, references to it, and the plan's outputs."""

from __future__ import annotations

import json
import shlex

import pytest
from counted import Counted


def give(value: str) -> str:
    """A script that gives this text as its result."""
    return f'printf %s {shlex.quote(value)} > "$ASSAY_RESULT"'


def show(name: str) -> str:
    """A script that keeps what a variable holds, or that it is not set."""
    return f'if test "${{{name}+set}}"; then printf %s "${name}"; else echo UNSET; fi > got'


VALUE = {"s": "a b", "n": 1.5, "l": [{"k": True}, None], "empty": "", "é": "ü"}


@pytest.mark.parametrize(
    ("path", "exported"),
    [
        ("s", "a b"),
        ("n", "1.5"),
        ("l", '[{"k":true},null]'),
        ("l.0.k", "true"),
        ("l.1", "UNSET\n"),
        ("empty", ""),
        ("é", "ü"),
    ],
)
def test_part_of_a_value_reaches_its_user(counted: Counted, path: str, exported: str) -> None:
    """Strings are exported raw, other JSON canonically, `null` unsets; also from a node that a
    recorded result serves."""
    counted.plan(
        {
            "giver": {"run": give(json.dumps(VALUE, ensure_ascii=False)), "result": "json",
                      "cache": True},
            "user": {
                "run": show("V"),
                "env": {"V": {"from": "giver", "path": path}},
                "writes": ["got"],
            },
        }
    )  # fmt: skip
    assert counted.ran() == ["giver", "user"]
    assert counted.read("got") == exported
    counted.rests()
    counted.remove("got")
    assert counted.ran() == []
    assert counted.read("got") == exported


def test_only_the_part_taken_is_in_the_key(counted: Counted) -> None:
    """A user executes again when the part of the value it takes changes, not before."""

    def plan(value: object) -> None:
        counted.plan(
            {
                "giver": {"run": give(json.dumps(value)), "result": "json", "cache": True},
                "user": {"run": "true", "env": {"V": {"from": "giver", "path": "a"}}},
            },
            tail='[outputs]\nall = { from = "giver" }\n',
        )

    plan({"a": 1, "b": 1})
    assert counted.ran() == ["giver", "user"]
    plan({"b": 2, "a": 1.0})
    assert counted.ran() == ["giver"]
    plan({"a": 2, "b": 2})
    assert counted.ran() == ["giver", "user"]
    assert counted.run().events[-1]["outputs"] == {"all": {"a": 2, "b": 2}}


def test_text_is_a_value_without_its_last_line_ends(counted: Counted) -> None:
    """`result = "text"` gives the text, without the line end that tools print."""
    counted.plan(
        {
            "giver": {"run": give(" 1.2\n2 \n"), "result": "text", "cache": True},
            "user": {"run": show("V"), "env": {"V": {"from": "giver"}}, "writes": ["got"]},
        }
    )
    counted.ran()
    assert counted.read("got") == " 1.2\n2 "


@pytest.mark.parametrize(
    ("script", "keys", "told"),
    [
        ("true", {}, "wrote nothing to $ASSAY_RESULT"),
        (give("{"), {}, "its result is not JSON"),
        (give("NaN"), {}, "its result is not JSON"),
        (give("[" * 100_000), {}, "its result is not JSON"),
        ("printf '\\377' > $ASSAY_RESULT", {}, "its result is not UTF-8"),
        ("printf '\\377' > $ASSAY_RESULT", {"result": "text"}, "its result is not UTF-8"),
        (give('"12345678"'), {"max_result_bytes": 9}, "its result has 10 bytes"),
        ("head -c 2000000 /dev/zero > $ASSAY_RESULT", {}, "its result has 2000000 bytes"),
        ("mkdir $ASSAY_RESULT", {}, "its result"),
        ("mkfifo $ASSAY_RESULT", {}, "its result"),
    ],
)  # fmt: skip
def test_results_that_are_none_fail_their_node(
    counted: Counted, script: str, keys: dict[str, object], told: str
) -> None:
    """A result that is missing, too large or not what was declared fails the node, and who
    would use it is skipped."""
    counted.plan(
        {
            "giver": {"run": script, "result": "json", **keys},
            "user": {"run": "true", "env": {"V": {"from": "giver"}}},
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["giver"], 1)
    [detail] = [
        e["detail"]
        for e in done.events
        if e.get("node") == "giver" and e["event"] == "node-settled"
    ]
    assert told in detail
    assert done.outcomes["user"] == "skipped"


@pytest.mark.parametrize("path", ["b", "a.0", "a.b", "l.2", "l.-1", "l.x"])
def test_missing_part_fails_its_user_before_it_starts(counted: Counted, path: str) -> None:
    """A part that the value does not have fails who takes it, without an attempt, naming it."""
    counted.plan(
        {
            "giver": {"run": give('{"a": 1, "l": [0, 1]}'), "result": "json"},
            "user": {"run": "true", "env": {"V": {"from": "giver", "path": path}}},
            "other": {"run": "true", "after": ["giver"]},
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["giver", "other"], 1)
    [event] = [e for e in done.events if e["event"] == "node-settled" and e["node"] == "user"]
    assert (event["outcome"], event["attempts"]) == ("failed", 0)
    assert f"`giver.{path}`" in event["detail"]


def test_value_orders_nodes(counted: Counted) -> None:
    """A reference makes its node wait for the giver, and one that gives nothing declared is an
    error of the plan."""
    counted.plan(
        {
            "user": {"run": "true", "env": {"V": {"from": "giver"}}},
            "giver": {"run": "true"},
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == ([], 2)
    assert "`giver`" in done.err
