"""Secrets that end up in what a node writes: in links, in names, in files it goes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted import Counted, warnings

SECRET = "s3cret-value"
ENV = {"TOKEN": SECRET}
TOKEN = {"T": {"secret": "TOKEN"}}


def leaks(counted: Counted) -> list[Path]:
    """The files of `.assay/` that hold the secret."""
    found = [path for path in counted.path(".assay").rglob("*") if path.is_file()]
    return [path for path in found if SECRET.encode() in path.read_bytes()]


def test_text_of_a_link_that_holds_a_secret_is_not_stored(counted: Counted) -> None:
    """The link stands in the workspace, is neither stored nor cached, and the run says which."""
    counted.plan({"a": {"run": "ln -sf $T l", "env": TOKEN, "writes": ["l"], "clean": False}})
    for _ in range(2):
        executed, done = counted.tried(env=ENV)
        assert (executed, done.code) == (["a"], 0)
        assert "`l` holds a secret" in warnings(done)
        assert leaks(counted) == []


@pytest.mark.parametrize("script", ["echo x > out/$T", "mkdir out/$T"])
def test_name_that_holds_a_secret_fails(counted: Counted, script: str) -> None:
    """Names go into the records: such a node fails, and they stay free of it."""
    counted.plan({"a": {"run": f"mkdir out; {script}", "env": TOKEN, "writes": ["out/"]}})
    executed, done = counted.tried(env=ENV)
    assert (executed, done.code) == (["a"], 1)
    assert SECRET not in done.out + done.err
    assert leaks(counted) == []


def test_a_file_with_a_secret_is_rewritten_without_a_copy_in_the_store(counted: Counted) -> None:
    """A node that goes over a file holding its secret has no copy of it stored first."""
    counted.plan({"a": {"run": "echo $T >> f", "env": TOKEN, "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "plain\n")
    assert counted.ran(env=ENV) == ["a"]
    assert counted.ran(env=ENV) == ["a"]
    assert counted.read("f") == f"plain\n{SECRET}\n{SECRET}\n"
    assert leaks(counted) == []
