"""Reads that nothing provides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from handmade import ROOT, compiled, complaints, draft, entry, messages, node, template

from assay.plans.compile import compile_plan
from assay.plans.diagnostics import Diagnostic, Severity
from assay.plans.entries import literal_entry
from assay.plans.model import Argv, Node, Origin, RelPath


def warnings_of(root: Path, *nodes: Node) -> tuple[Diagnostic, ...]:
    return compile_plan(draft(root), nodes, {})[1]


def test_a_read_that_nobody_provides_is_an_error(tmp_path: Path) -> None:
    """C49: before anything runs, naming the node, the path, who wants it, and a near miss."""
    nodes = [
        node("compile", [], ["build/app.js"]),
        node("bundle", ["dist/app.js"], ["bundle.js"]),
        node("release", ["bundle.js"]),
    ]
    [found] = complaints(tmp_path, nodes)
    assert found.message == (
        "Node `bundle` reads `dist/app.js`, but no node writes it and it does not exist"
    )
    assert found.origin == Origin("plan.toml", ("nodes", "bundle", "reads", 0))
    assert found.hint == "Did you mean `build/app.js`, written by `compile`?"
    assert [(n.text, n.origin) for n in found.notes] == [
        (
            "`compile` writes `build/app.js`",
            Origin("plan.toml", ("nodes", "compile", "writes", 0)),
        ),
        ("wanted by `release`", Origin("plan.toml", ("nodes", "release"))),
    ]


@pytest.mark.parametrize(
    ("read", "hint"),
    [
        ("src/sorce.txt", "Did you mean `src/source.txt`?"),
        ("surce.txt", None),
        ("sub", "Did you mean `sub/`?"),
        ("out/appp", "Did you mean `out/app`, written by `p`?"),
        ("caf\u00e9", "Did you mean `cafe\u0301`, which differs only in Unicode form?"),
        ("nothing/like/it", None),
    ],
)
def test_near_misses_are_named(tmp_path: Path, read: str, hint: str | None) -> None:
    """C49, C124: what is written or stands beside the absent path is suggested."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/source.txt").touch()
    (tmp_path / "cafe\u0301").touch()
    nodes = [node("c", [read]), node("p", [], ["gen/", "out/app", "sub/x/"])]
    [found] = complaints(tmp_path, nodes)
    assert found.hint == hint


def test_a_folder_read_as_a_file(tmp_path: Path) -> None:
    """C49: a read that exists only as a folder is told with the way to write it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "file").touch()
    found = complaints(tmp_path, [node("a", ["src"]), node("b", ["file/"])])
    assert [(d.message, d.hint) for d in found] == [
        (
            "Node `a` reads `src` as a file, but it is a folder",
            "Write `src/` for everything in it.",
        ),
        ("Node `b` reads `file/` as a folder, but it is a file", "Write `file`."),
    ]


def test_what_need_not_be_there(tmp_path: Path) -> None:
    """Optional reads and paths a node also removes may be absent; links stand for themselves."""
    os.symlink("nowhere", tmp_path / "dangling")
    (tmp_path / "empty").mkdir()
    optional = literal_entry("absent", ROOT, optional=True)
    nodes = [
        node("a", [optional, "dangling", "empty/", "./"]),
        node("b", ["old", "older/"], removes=(RelPath("old"), RelPath("older"))),
    ]
    compiled(tmp_path, nodes)


def test_a_nodes_own_write_is_no_source(tmp_path: Path) -> None:
    """A formatter needs something to format."""
    [found] = complaints(tmp_path, [node("fmt", ["x"], ["x"])])
    assert found.message == (
        "Node `fmt` reads `x`, but no other node writes it and it does not exist"
    )


def test_a_writer_that_comes_later_is_no_source(tmp_path: Path) -> None:
    """What is read before it is written has to exist already."""
    nodes = [node("use", ["x"]), node("bump", [], ["x"], after=["use"])]
    [found] = complaints(tmp_path, nodes)
    assert found.message == (
        "Node `use` reads `x`, which does not exist before `bump` writes it, but `bump` comes "
        "after `use`"
    )
    (tmp_path / "x").touch()
    compiled(tmp_path, nodes)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """The file that argv[0] names is told as what it is: the program."""
    missing = node("a", ["tools/gen"], command=Argv(("./gen", "x")), workdir=RelPath("tools"))
    [found] = complaints(tmp_path, [missing])
    assert found.message == (
        "Node `a` runs `tools/gen`, but no node writes it and it does not exist"
    )
    assert found.origin == Origin("plan.toml", ("nodes", "a", "run", 0))


def test_a_glob_that_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    """C49: empty globs are told and go on; those that another node may fill are not told."""
    [found] = warnings_of(
        tmp_path,
        node("a", ["src/*.c"], ["src/b.c"]),
        node("b", ["gen/*.c"]),
        node("gen", [], ["gen/"]),
    )
    assert found.severity is Severity.WARNING
    assert found.message == "Node `a` reads `src/*.c`, which matches nothing"
    assert found.origin == Origin("plan.toml", ("nodes", "a", "reads", 0))


def test_a_glob_that_is_the_name_of_a_file(tmp_path: Path) -> None:
    """C121: brackets taken for a pattern are told with the literal form."""
    (tmp_path / "[id].ts").touch()
    [found] = warnings_of(tmp_path, node("a", ["[id].ts"]))
    assert found.hint == 'For the file of exactly that name write { path = "[id].ts" }.'


def test_ignored_and_excluded_files_are_no_matches(tmp_path: Path) -> None:
    """What `ignore` or an exclusion takes away does not count as a match."""
    (tmp_path / "a.swp").touch()
    assert warnings_of(tmp_path, node("a", ["*.swp"])) == ()
    assert len(warnings_of(tmp_path, node("a", ["*.swp"], ignore=("*.swp",)))) == 1
    assert len(warnings_of(tmp_path, node("a", ["*.swp", "!a.*"]))) == 1


def test_nodes_of_one_line_are_told_once(tmp_path: Path) -> None:
    """A header that is missing for a thousand instances is one error."""
    origin = Origin("plan.toml", ("nodes", "cc"))
    nodes = [node(f"cc[{n}]", ["a.h", "x/*.h"], origin=origin) for n in range(1000)]
    found = complaints(tmp_path, nodes)
    assert messages(found) == [
        "Node `cc[0]` reads `a.h`, but no node writes it and it does not exist",
        "Node `cc[0]` reads `x/*.h`, which matches nothing",
    ]


def test_what_a_template_reads_is_not_looked_for(tmp_path: Path) -> None:
    """Its reads are a guess; its instances' are looked for when they run."""
    nodes = [
        node("gen", [], ["gen/"]),
        template("cc", ["gen/*.c"], ["gen/*.c", "extra/*.h"], ["out/*"]),
        node("link", ["out/a"]),
    ]
    compiled(tmp_path, nodes)


def test_names_are_shown_on_one_line(tmp_path: Path) -> None:
    """C121: control characters and bytes that are not UTF-8 are escaped in messages."""
    [found] = complaints(tmp_path, [node("a", [entry("a\nb\udcff")])])
    assert found.message == (
        "Node `a` reads `a\\nb\\xff`, but no node writes it and it does not exist"
    )


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    """An unreadable folder is an error naming it, not an empty glob."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 250, dir_fd=descriptor)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    [found] = complaints(tmp_path, [node("a", ["**/x"])])
    assert found.message.startswith("Node `a` reads `**/x`, but the folder `dddd")
    assert found.message.endswith("` cannot be listed: file name too long")
