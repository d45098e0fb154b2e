"""Nodes that remove: what they removed is gone whenever they are clean, and what a later node
removes is put back for nobody but who must read it."""

from __future__ import annotations

from counted import Counted, Declarations, restored

TIDY: Declarations = {
    "make": {"run": "echo hi > x; echo k > k", "writes": ["x", "k"]},
    "use": {"run": "cat x other > y", "reads": ["x", "other"], "writes": ["y"]},
    "tidy": {"run": "rm -f x", "reads": ["x"], "removes": ["x"], "after": ["use"]},
}


def test_a_plan_that_tidies_up_rests(counted: Counted) -> None:
    """What a later node removes need not be there for its maker to be clean; whoever reads it
    and must execute finds it."""
    counted.plan(TIDY)
    counted.write("other", "1\n")
    assert counted.ran() == ["make", "tidy", "use"]
    counted.rests()
    counted.write("other", "2\n")
    assert counted.ran() == ["tidy", "use"]
    assert counted.read("y") == "hi\n2\n"
    assert not counted.path("x").exists()
    counted.rests()


def test_a_part_of_the_plan_has_what_the_rest_removes(counted: Counted) -> None:
    """Without the node that removes it, an output is there; with it, it is gone again."""
    counted.plan(TIDY)
    counted.write("other", "1\n")
    counted.ran()
    executed, done = counted.tried("make")
    assert (executed, done.code, restored(done)) == ([], 0, 1)
    assert counted.read("x") == "hi\n"
    assert counted.ran() == ["tidy"]
    assert not counted.path("x").exists()
    counted.rests()


def test_a_removed_source_that_is_back_is_removed_again(counted: Counted) -> None:
    """A node that reads what it removes is not clean while that is there."""
    counted.plan(
        {"a": {"run": "test ! -e x || mv x y", "reads": ["x"], "writes": ["y"], "removes": ["x"],
               "clean": False}}
    )  # fmt: skip
    counted.write("x", "1\n")
    for _ in range(2):
        assert counted.ran() == ["a"]
        assert not counted.path("x").exists()
        assert counted.read("y") == "1\n"
        counted.write("x", "1\n")


def test_a_path_that_is_removed_and_made_anew_rests(counted: Counted) -> None:
    """A node that clears the place for another's output is clean with that output there."""
    counted.plan(
        {
            "clear": {"run": "rm -f x", "reads": ["s"], "removes": ["x"]},
            "make": {"run": "echo hi > x", "writes": ["x"], "after": ["clear"]},
        }
    )
    counted.write("s", "1\n")
    assert counted.ran() == ["clear", "make"]
    counted.rests()
    counted.write("s", "2\n")
    counted.ran()
    assert counted.read("x") == "hi\n"
    counted.rests()
