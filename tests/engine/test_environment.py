"""The environment a node gets, and what of it is in the key."""

from __future__ import annotations

import dataclasses

import pytest

from assay.engine.environment import CallerEnvironment, Refused, export_value, project
from assay.plans.model import Argv, EnvValue, Node, NodeName, Origin, Plain, Secret, ValueRef

NODE = Node(NodeName("n"), Origin("p"), command=Argv(("true",)))
CALLER = CallerEnvironment(
    {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_DIR": "/r/.git",
        "MODE": "a",
        "EMPTY": "",
        "TOKEN": "long enough",
        "PIN": "12345",
    }
)


def node(*env: tuple[str, EnvValue], pass_env: tuple[str, ...] = ()) -> Node:
    return dataclasses.replace(NODE, env=env, pass_env=pass_env)


def test_the_callers_environment_does_not_leak() -> None:
    """Only the ambient list, the locale and what is asked for get through (C06, C70)."""
    assert CALLER.for_child(NODE, {}, {}) == {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "TZ": "UTC",
    }


def test_what_is_passed_is_keyed_and_what_is_ambient_is_not() -> None:
    """The locale and `pass_env` names and globs are in the key; PATH and HOME are not (C04)."""
    assert CALLER.passed(NODE) == {"LC_ALL": "C", "TZ": "UTC"}
    passed = CALLER.passed(node(pass_env=("MODE", "GIT_*", "EMPTY", "ABSENT")))
    assert passed == {"LC_ALL": "C", "TZ": "UTC", "MODE": "a", "GIT_DIR": "/r/.git", "EMPTY": ""}


def test_a_nodes_own_value_wins_and_keeps_the_callers_out_of_the_key() -> None:
    """What the node sets itself does not vary with the caller."""
    own = node(("LC_ALL", Plain("de")), ("MODE", Plain("b")), pass_env=("MODE",))
    assert CALLER.passed(own) == {"TZ": "UTC"}
    assert CALLER.for_child(own, {}, {})["LC_ALL"] == "de"
    assert CALLER.for_child(own, {}, {})["MODE"] == "b"


def test_values_are_exported_raw_or_as_canonical_json_and_null_unsets() -> None:
    """A string as it is, other JSON in one form, null as if it were not there."""
    refs = node(
        ("TZ", ValueRef(NodeName("a"))),
        ("S", ValueRef(NodeName("a"))),
        ("J", ValueRef(NodeName("a"))),
    )
    child = CALLER.for_child(refs, {"TZ": None, "S": "a b", "J": {"b": 1, "a": [True]}}, {})
    assert "TZ" not in child
    assert (child["S"], child["J"]) == ("a b", '{"a":[true],"b":1}')
    assert export_value(1.0) == "1"


@pytest.mark.parametrize(
    ("path", "expected"),
    [((), {"a": [{"b": 1}]}), (("a",), [{"b": 1}]), (("a", "0", "b"), 1)],
)
def test_a_projection_follows_names_and_positions(path: tuple[str, ...], expected: object) -> None:
    """`a.0.b` into objects and lists."""
    assert project({"a": [{"b": 1}]}, path) == expected


MISSING = [("x",), ("a", "1"), ("a", "-1"), ("a", "b"), ("a", "0", "b", "c")]


@pytest.mark.parametrize("path", MISSING)
def test_a_missing_projection_is_told_from_null(path: tuple[str, ...]) -> None:
    """What is not there is an error of the consumer, not an empty value."""
    with pytest.raises(KeyError):
        project({"a": [{"b": 1}]}, path)


def test_a_secret_must_be_set_and_long_enough_to_mask() -> None:
    """Otherwise the node is refused before it starts."""
    assert CALLER.secrets(node(("T", Secret("TOKEN")))) == {"T": "long enough"}
    with pytest.raises(Refused, match="`ABSENT`, which is not set"):
        CALLER.secrets(node(("T", Secret("ABSENT"))))
    with pytest.raises(Refused, match="`PIN` is shorter than 6 bytes"):
        CALLER.secrets(node(("T", Secret("PIN"))))


def test_a_variable_that_output_speaks_of_and_was_not_passed_is_found() -> None:
    """The hint for a command that misses what the caller has (C06)."""
    assert CALLER.find_unpassed(NODE, "sh: MODE: parameter not set") == "MODE"
    assert CALLER.find_unpassed(node(pass_env=("MODE",)), "sh: MODE: not set") is None
    assert CALLER.find_unpassed(NODE, "PATH and MODES and xMODE and ABSENT") is None
