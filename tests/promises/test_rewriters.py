"""Nodes that rewrite what they or others read: formatters in a row, readers between them, and
the cache serving versions that stand nowhere any more."""

from __future__ import annotations

import shlex

import pytest
from counted import Counted, Declarations, warnings
from probe import Probes
from running import Begin

FILE = "f"


def rewriter(script: str, *after: str) -> dict[str, object]:
    return {"run": script, "reads": [FILE], "writes": [FILE], "after": list(after)}


def reader(name: str, *after: str) -> dict[str, object]:
    return {"run": f"cat f > {name}", "reads": [FILE], "writes": [name], "after": list(after)}


UPPER_SCRIPT = "tr a-z A-Z < f > $TMPDIR/f; cat $TMPDIR/f > f"
UPPER = rewriter(UPPER_SCRIPT)
MARK = "grep -q END f || echo END >> f"


def test_formatter_settles_after_one_more_execution(counted: Counted) -> None:
    """A formatter executes on new text and once more on its own output; then it rests."""
    counted.plan({"fmt": UPPER})
    counted.write(FILE, "a\n")
    assert counted.ran() == ["fmt"]
    assert counted.read(FILE) == "A\n"
    assert counted.ran() == ["fmt"]
    counted.rests()
    counted.write(FILE, "b\n")
    assert counted.ran() == ["fmt"]
    assert counted.read(FILE) == "B\n"


def test_formatted_text_is_served_from_the_cache(counted: Counted) -> None:
    """The unformatted text that was formatted once is formatted again without executing, and
    is not taken for an edit by hand."""
    counted.plan({"fmt": UPPER})
    counted.write(FILE, "a\n")
    counted.ran()
    counted.ran()
    counted.write(FILE, "a\n")
    assert counted.ran() == []
    assert counted.read(FILE) == "A\n"
    counted.rests()


def test_formatter_that_changes_nothing_rests_at_once(counted: Counted) -> None:
    """A formatter on formatted text executes once."""
    counted.plan({"fmt": UPPER})
    counted.write(FILE, "A\n")
    assert counted.ran() == ["fmt"]
    counted.rests()


@pytest.mark.parametrize("backwards", [False, True])
def test_formatters_in_a_row(counted: Counted, backwards: bool) -> None:
    """Formatters of one file work in their order, wherever they stand in the plan, and rest
    when each has seen what all of them left."""
    nodes: Declarations = {"one": UPPER, "two": rewriter(MARK, "one")}
    counted.plan(dict(reversed(nodes.items())) if backwards else nodes)
    counted.write(FILE, "a\n")
    assert counted.ran() == ["one", "two"]
    assert counted.read(FILE) == "A\nEND\n"
    assert counted.ran() == ["one", "two"]
    counted.rests()
    counted.write(FILE, "b\n")
    assert counted.ran() == ["one", "two"]
    assert counted.read(FILE) == "B\nEND\n"
    assert counted.ran() == ["one", "two"]
    counted.rests()
    counted.write(FILE, "a\n")
    assert counted.ran() == []
    assert counted.read(FILE) == "A\nEND\n"
    counted.rests()


@pytest.mark.parametrize("backwards", [False, True])
def test_readers_before_between_and_behind(counted: Counted, backwards: bool) -> None:
    """A reader sees the version of its place in the order: before, between or behind."""
    nodes: Declarations = {
        "first": reader("o1"),
        "one": rewriter("echo 1 >> f", "first"),
        "between": reader("o2", "one"),
        "two": rewriter("echo 2 >> f", "between"),
        "last": reader("o3"),
    }
    counted.plan(dict(reversed(nodes.items())) if backwards else nodes)
    counted.write(FILE, "a\n")
    assert counted.ran() == ["between", "first", "last", "one", "two"]
    outputs = [counted.read(name) for name in ("o1", "o2", "o3")]
    assert outputs == ["a\n", "a\n1\n", "a\n1\n2\n"]
    assert counted.read(FILE) == "a\n1\n2\n"

    # The same text again: every version comes from the cache.
    counted.write(FILE, "a\n")
    counted.remove("o1", "o2", "o3")
    assert counted.ran() == []
    assert [counted.read(name) for name in ("o1", "o2", "o3")] == outputs
    assert counted.read(FILE) == "a\n1\n2\n"
    assert counted.trash() == {}


def test_intermediate_version_is_put_there_for_who_must_execute(counted: Counted) -> None:
    """A version that stands nowhere is materialized when a node between two rewriters must
    execute; the last writer's version is back when the run ends."""
    nodes: dict[str, dict[str, object]] = {
        "one": rewriter("echo 1 >> f"),
        "between": {
            "run": "cat f other > o",
            "reads": [FILE, "other"],
            "writes": ["o"],
            "after": ["one"],
        },
        "two": rewriter("echo 2 >> f", "between"),
    }
    counted.plan(nodes)
    counted.write(FILE, "a\n")
    counted.write("other", "x\n")
    assert counted.ran() == ["between", "one", "two"]
    counted.write(FILE, "a\n")
    counted.write("other", "y\n")
    assert counted.ran() == ["between"]
    assert counted.read("o") == "a\n1\ny\n"
    assert counted.read(FILE) == "a\n1\n2\n"
    assert counted.trash() == {}


def test_selected_part_leaves_the_version_of_its_last_writer(counted: Counted) -> None:
    """After `assay run NODE` a path holds what the last selected writer left."""
    counted.plan({"one": rewriter("echo 1 >> f"), "two": rewriter("echo 2 >> f", "one")})
    counted.write(FILE, "a\n")
    assert counted.ran() == ["one", "two"]
    for _ in range(2):
        counted.write(FILE, "a\n")
        assert counted.ran("one") == []
        assert counted.read(FILE) == "a\n1\n"
        counted.write(FILE, "a\n")
        assert counted.ran() == []
        assert counted.read(FILE) == "a\n1\n2\n"
    assert counted.trash() == {}


def test_rewriting_glob(counted: Counted) -> None:
    """A formatter over a glob works on new and changed files and rests on its own output."""
    script = "for f in src/*.c; do grep -q END $f || echo END >> $f; done"
    counted.plan(
        {
            "fmt": {"run": script, "reads": ["src/*.c"], "writes": ["src/*.c"]},
            "cc": {"run": "cat src/*.c > o", "reads": ["src/*.c"], "writes": ["o"]},
        }
    )
    counted.write("src/a.c", "a\n")
    counted.write("src/b.c", "b\n")
    assert counted.ran() == ["cc", "fmt"]
    assert counted.read("o") == "a\nEND\nb\nEND\n"
    assert counted.ran() == ["fmt"]
    counted.rests()
    counted.write("src/c.c", "c\n")
    assert counted.ran() == ["cc", "fmt"]
    assert counted.ran() == ["fmt"]
    counted.remove("src/a.c")
    assert counted.ran() == ["cc", "fmt"]
    assert counted.files("src") == {"b.c": "b\nEND\n", "c.c": "c\nEND\n"}
    counted.rests()
    # A file of an earlier result under the glob is a source now as it was then.
    counted.write("src/a.c", "a\nEND\n")
    assert counted.ran() == []
    assert set(counted.files("src")) == {"a.c", "b.c", "c.c"}
    counted.rests()


def test_failed_rewriter_leaves_its_input_as_it_was(counted: Counted) -> None:
    """A rewriter that fails half-way has its input put back, so that a second try starts from
    the same text."""
    counted.plan({"fmt": rewriter("echo half > f; test -e go && echo whole > f")})
    counted.write(FILE, "a\n")
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == (["fmt"], 1)
        assert counted.read(FILE) == "a\n"
    counted.write("go", "")
    assert counted.ran() == ["fmt"]
    assert counted.read(FILE) == "whole\n"


def test_edit_in_the_middle_of_formatters(counted: Counted) -> None:
    """The source edited after everything rested goes through every formatter again."""
    counted.plan(
        {
            "one": rewriter("sed -i s/a/b/ f"),
            "two": rewriter("sed -i s/b/c/ f", "one"),
            "three": rewriter("sed -i s/c/d/ f", "two"),
        }
    )
    counted.write(FILE, "a")
    assert counted.ran() == ["one", "three", "two"]
    assert counted.read(FILE) == "d"
    counted.ran()
    counted.rests()
    # "b" is what `one` once left: now it is what the user wrote.
    counted.write(FILE, "b")
    counted.ran()
    assert counted.read(FILE) == "d"
    counted.ran()
    counted.rests()
    assert counted.trash() == {}


def test_text_edited_before_its_turn_is_not_taken_for_what_the_run_saw(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """A rewriter works on what stands there when its turn comes, but records nothing under
    the text the run had seen: that text is later formatted itself."""
    counted.plan({"gate": {"run": probes.argv("gate")}, "fmt": rewriter(UPPER_SCRIPT, "gate")})
    counted.write(FILE, "old\n")
    run = begin()
    gate = probes.arrive("gate")
    counted.write(FILE, "new\n")
    gate.exit()
    done = run.finish()
    assert done.code == 0, done.err
    assert "`f` changed" in warnings(done)
    assert counted.read(FILE) == "NEW\n"
    counted.write(FILE, "old\n")
    run = begin()
    probes.arrive("gate").exit()
    assert run.finish().outcomes["fmt"] == "built"
    assert counted.read(FILE) == "OLD\n"


def test_failed_rewriter_puts_back_an_edit_made_before_its_turn(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What a failed rewriter goes over is put back as it stood when its turn came, also when
    the store knows the older text."""
    counted.plan(
        {"gate": {"run": probes.argv("gate")}, "fmt": rewriter("echo half > f; exit 1", "gate")}
    )
    counted.write(FILE, "old\n")
    for edit in ("old\n", "new\n"):
        run = begin()
        gate = probes.arrive("gate")
        counted.write(FILE, edit)
        gate.exit()
        assert run.finish().code == 1
        assert counted.read(FILE) == edit


def test_killed_rewriter_of_a_pattern_with_an_exclusion(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """What a killed rewriter had read is put back, each file for itself; what it only writes is
    not, and what stood there instead is kept and named."""
    counted.plan(
        {
            "fmt": {
                "run": f"for f in src/*; do echo half > $f; done; {shlex.join(probes.argv('fmt'))}",
                "reads": ["src/*", "!src/own"],
                "writes": ["src/*"],
            },
            "other": {"run": "true"},
        }
    )
    for name in ("a", "b", "own"):
        counted.write(f"src/{name}", f"{name}\n")
    run = begin("fmt")
    node = probes.arrive("fmt")
    run.kill()
    done = counted.run("other")
    node.gone()
    assert counted.files("src") == {"a": "a\n", "b": "b\n", "own": "half\n"}
    assert counted.trash() == {"src/a": "half\n", "src/b": "half\n"}
    assert "what stood at `src/a` is in " in warnings(done)
