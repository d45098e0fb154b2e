"""Sets of files that grow and shrink: `foreach` over sources and over written paths, instances
that are gone from the plan, and globs that others read them through."""

from __future__ import annotations

import pytest
from counted import Counted, warnings

CC = {
    "foreach": "src/*.c",
    "run": "cat {{each}} > out/{{each.stem}}.o",
    "reads": ["{{each}}"],
    "writes": ["out/{{each.stem}}.o"],
}
LINK = {"run": "cat out/*.o > app", "reads": ["out/*.o"], "writes": ["app"]}


def sources(counted: Counted, **contents: str) -> None:
    counted.path("out").mkdir(exist_ok=True)
    for name, text in contents.items():
        counted.write(f"src/{name}.c", text)


def test_source_that_goes_takes_its_output_with_it(counted: Counted) -> None:
    """The output of an instance that is gone does not stay in what others read, comes back
    with it from the cache, and the run names what it removed."""
    counted.plan({"cc": CC, "link": LINK})
    sources(counted, a="a", b="b")
    assert counted.ran() == ["cc[src/a.c]", "cc[src/b.c]", "link"]
    counted.rests()
    counted.remove("src/b.c")
    executed, done = counted.tried()
    assert (executed, done.code) == (["link"], 0)
    assert "`out/b.o`" in warnings(done)
    assert counted.read("app") == "a"
    assert not counted.path("out/b.o").exists()
    counted.rests()
    sources(counted, b="b")
    assert counted.ran() == []
    assert counted.files("out") == {"a.o": "a", "b.o": "b"}
    assert counted.read("app") == "ab"
    counted.rests()


def test_output_of_a_vanished_instance_that_was_edited(counted: Counted) -> None:
    """What a vanished instance left and somebody edited since is not removed: who would read
    it is refused, and it is named."""
    counted.plan({"cc": CC, "link": LINK})
    sources(counted, a="a", b="b")
    counted.ran()
    counted.remove("src/b.c")
    counted.write("out/b.o", "mine")
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == ([], 1)
        assert "out/b.o" in done.out
        assert counted.read("out/b.o") == "mine"
    counted.remove("out/b.o")
    assert counted.ran() == ["link"]
    assert counted.read("app") == "a"


def test_file_nobody_made_beside_outputs_is_an_input(counted: Counted) -> None:
    """A file somebody put among outputs that are read through a glob is read as a source."""
    counted.plan({"cc": CC, "link": LINK})
    sources(counted, a="a")
    counted.ran()
    counted.write("out/z.o", "z")
    assert counted.ran() == ["link"]
    assert counted.read("app") == "az"
    counted.rests()


def test_renamed_source(counted: Counted) -> None:
    """A renamed source leaves nothing of its old name."""
    counted.plan({"cc": CC, "link": LINK})
    sources(counted, a="a", b="b")
    counted.ran()
    counted.path("src/b.c").rename(counted.path("src/c.c"))
    assert counted.ran() == ["cc[src/c.c]", "link"]
    assert counted.files("out") == {"a.o": "a", "c.o": "b"}
    counted.rests()


def test_node_gone_from_the_plan(counted: Counted) -> None:
    """The same for a node that was taken out of the plan file, or writes elsewhere now."""
    nodes = {
        "a": {"run": "echo a > out/a.o", "writes": ["out/a.o"]},
        "b": {"run": "echo b > out/b.o", "writes": ["out/b.o"]},
    }
    counted.plan({**nodes, "link": LINK})
    counted.path("out").mkdir()
    counted.ran()
    counted.plan({"a": nodes["a"], "link": LINK})
    assert counted.ran() == ["link"]
    assert counted.read("app") == "a\n"
    counted.plan({**nodes, "link": LINK})
    assert counted.ran() == []
    assert counted.read("app") == "a\nb\n"
    counted.rests()


def test_node_that_writes_elsewhere_now(counted: Counted) -> None:
    """What a node wrote under another name before is not read in place of its output."""
    counted.path("out").mkdir()
    for name, executed in (("a", ["gen", "link"]), ("b", ["gen", "link"]), ("a", [])):
        counted.plan(
            {
                "gen": {"run": f"echo {name} > out/{name}.o", "writes": [f"out/{name}.o"]},
                "link": LINK,
            }
        )
        assert counted.ran() == executed, name
        assert counted.read("app") == f"{name}\n"
        counted.rests()


def test_path_that_depends_on_a_param(counted: Counted) -> None:
    """What was written under another value of a param is not read beside what is written now,
    and comes back with that value."""
    node = {"run": "echo {{params.m}} > out/{{params.m}}.o", "writes": ["out/{{params.m}}.o"]}
    counted.plan({"gen": node, "link": LINK}, "[params]\nm = 'dev'")
    for mode, executed in (("dev", True), ("prod", True), ("dev", False), ("prod", False)):
        assert counted.ran("-p", f"m={mode}") == ["gen", "link"] * executed
        assert counted.read("app") == f"{mode}\n"
        counted.rests("-p", f"m={mode}")


GEN = {
    "run": "mkdir -p gen out; for n in $(cat names); do echo $n > gen/$n.c; done",
    "reads": ["names"],
    "writes": ["gen/"],
}
EACH = {
    "foreach": "gen/*.c",
    "run": "cat {{each}} > out/{{each.stem}}.o",
    "reads": ["{{each}}"],
    "writes": ["out/{{each.stem}}.o"],
}


def test_foreach_over_written_paths_grows_and_shrinks(counted: Counted) -> None:
    """The instances are those of the files the producer wrote this time; what instances of
    other times made is not read, and comes back from the cache with them."""
    counted.plan({"gen": GEN, "each": EACH, "link": LINK})
    first, second = "each[gen/a.c]", "each[gen/b.c]"
    steps = [
        ("a", [first, "gen", "link"]),
        ("a b", [second, "gen", "link"]),
        ("a", []),
        ("b", ["gen", "link"]),
        ("a b", []),
        ("b", []),
    ]
    for names, executed in steps:
        counted.write("names", names)
        assert counted.ran() == executed, names
        assert counted.read("app").split() == names.split()
        assert set(counted.files("out")) == {f"{name}.o" for name in names.split()}
        assert set(counted.files("gen")) == {f"{name}.c" for name in names.split()}
        counted.rests()


def test_outputs_of_instances_are_put_right(counted: Counted) -> None:
    """C16: what instances of a `foreach` over written paths made is put back when it is gone
    or edited, although nobody that executes reads it."""
    counted.plan({"gen": GEN, "each": EACH, "link": LINK})
    counted.write("names", "a b")
    counted.ran()
    counted.remove("out/a.o")
    counted.write("out/b.o", "mine")
    assert counted.ran() == []
    assert counted.files("out") == {"a.o": "a\n", "b.o": "b\n"}
    assert counted.trash() == {"out/b.o": "mine"}
    counted.rests()


def test_foreach_over_written_paths_that_are_none(counted: Counted) -> None:
    """No file written expands to nothing, with a warning, and recovers."""
    counted.plan({"gen": GEN, "each": EACH, "link": LINK})
    counted.path("out").mkdir()
    counted.write("names", "")
    counted.write("out/x.o", "x\n")
    executed, done = counted.tried()
    assert (executed, done.code) == (["gen", "link"], 0)
    assert "expands to nothing" in warnings(done)
    counted.write("names", "a")
    assert counted.ran() == ["each[gen/a.c]", "gen", "link"]
    assert counted.read("app") == "a\nx\n"
    counted.write("names", "")
    assert counted.ran() == []
    assert counted.read("app") == "x\n"


def test_instances_are_skipped_when_the_producer_fails(counted: Counted) -> None:
    """A template whose producer failed expands to nothing, and what follows it is skipped."""
    counted.plan(
        {"gen": {**GEN, "run": GEN["run"] + "\ntest ! -e ../bad"}, "each": EACH, "link": LINK}
    )
    counted.write("names", "a")
    counted.ran()
    counted.path("../bad").write_text("")
    counted.write("names", "a b")
    executed, done = counted.tried()
    assert (executed, done.code) == (["gen"], 1)
    assert done.counts == {"failed": 1, "skipped": 2}
    counted.path("../bad").unlink()
    assert counted.ran() == ["each[gen/b.c]", "gen", "link"]


def test_chain_of_foreach(counted: Counted) -> None:
    """A `foreach` over what the instances of another write follows it up and down."""
    second = {
        "foreach": "out/*.o",
        "run": "mkdir -p fin; tr a-z A-Z < {{each}} > fin/{{each.stem}}",
        "reads": ["{{each}}"],
        "writes": ["fin/{{each.stem}}"],
    }
    counted.plan(
        {
            "gen": GEN,
            "each": EACH,
            "second": second,
            "all": {"run": "cat fin/* > app", "reads": ["fin/*"], "writes": ["app"]},
        }
    )
    for names in ("a", "a b", "b", "a b"):
        counted.write("names", names)
        counted.ran()
        assert counted.read("app").split() == names.upper().split()
        counted.rests()


@pytest.mark.parametrize("entry", ["tree/", "tree/**", "tree/*"])
def test_reader_of_a_tree_that_shrinks(counted: Counted, entry: str) -> None:
    """Who reads a generated tree, whole or by globs, sees exactly what was written last."""
    counted.plan(
        {
            "gen": {
                "run": "rm -rf tree; mkdir tree; for n in $(cat names); do echo $n > tree/$n; done",
                "reads": ["names"],
                "writes": ["tree/"],
            },
            "use": {"run": "ls tree > o", "reads": [entry], "writes": ["o"]},
        }
    )
    for names, executed in (
        ("a b", ["gen", "use"]),
        ("a", ["gen", "use"]),
        ("a b", []),
        ("a", []),
    ):
        counted.write("names", names)
        assert counted.ran() == executed
        assert counted.read("o").split() == names.split()
        counted.rests()


def test_stray_file_in_a_generated_tree_is_no_input_of_its_readers(counted: Counted) -> None:
    """A file nobody declares inside a generated tree does not enter the key of readers and
    is not removed."""
    counted.plan(
        {
            "gen": {"run": "mkdir -p tree; echo 1 > tree/a", "writes": ["tree/"]},
            "use": {"run": "cat tree/a > o", "reads": ["tree/"], "writes": ["o"]},
        }
    )
    counted.ran()
    counted.write("tree/stray", "mine")
    assert counted.ran() == []
    assert counted.read("tree/stray") == "mine"


def test_empty_folder_and_link_in_a_generated_tree_are_read(counted: Counted) -> None:
    """Links in a generated tree are inputs of its reader, and their change is one."""
    counted.plan(
        {
            "gen": {
                "run": "rm -rf t; mkdir -p t/$(cat dir); echo 1 > t/one; echo 2 > t/two; "
                "ln -s $(cat to) t/l",
                "reads": ["dir", "to"],
                "writes": ["t/"],
            },
            "use": {
                "run": "cat t/l > o; ls -d t/*/ > p || true",
                "reads": ["t/"],
                "writes": ["o", "p"],
            },
        }
    )
    counted.write("dir", "empty")
    for target, executed in (("one", True), ("two", True), ("one", False)):
        counted.write("to", target)
        assert counted.ran() == ["gen", "use"] * executed
        assert counted.read("o") == {"one": "1\n", "two": "2\n"}[target]
        counted.rests()


def test_output_of_a_vanished_instance_that_another_plan_had_recorded(counted: Counted) -> None:
    """A plan that was served what another plan recorded cleans up after itself all the same."""
    for name in ("one.toml", "two.toml"):
        counted.plan({"cc": CC, "link": LINK}, 'name = "twin"', file=name)
    sources(counted, a="a", b="b")
    assert counted.ran("one.toml") == ["cc[src/a.c]", "cc[src/b.c]", "link"]
    assert counted.ran("two.toml") == []
    counted.remove("src/b.c")
    assert counted.ran("two.toml") == ["link"]
    assert counted.read("app") == "a"
    sources(counted, b="b")
    assert counted.ran("one.toml") == []
    assert counted.read("app") == "ab"
