"""Any name a file system allows works: of the workspace's folder, of sources, of outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from counted import Counted

ROOTS = ["with space", "new\nline", "ünïcødé ☃", "quo'te\"d $x", "-dash", "[a-z]*?", "a\\b"]

NAMES = [
    "a b",
    "new\nline",
    "ünï",
    "qu'o\"te",
    "$HOME",
    "-rf",
    "#hash",
    "semi;colon",
    "a\\b",
    "tab\t",
]


@pytest.mark.parametrize("name", ROOTS, ids=ascii)
def test_workspace_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    """C121: runs, restores and rests in a folder whose name needs care, by `cd` or by path."""
    root = tmp_path / name
    root.mkdir()
    counted = Counted(root, tmp_path / "marks")
    counted.plan({"a": {"run": "cat src/* > o", "reads": ["src/*"], "writes": ["o"]}})
    counted.write("src/1", "1")
    assert counted.ran() == ["a"]
    counted.rests()
    counted.remove("o")
    assert counted.ran(os.path.join(root, "plan.toml")) == []
    assert counted.read("o") == "1"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_sources_and_outputs_of_any_name(counted: Counted, name: str) -> None:
    """C121: names with spaces, quotes, newlines, dollars and dashes are read, written, keyed
    and restored, by name, by glob and by `foreach`."""
    counted.plan(
        {
            "file": {
                "run": ["cp", "--", name, f"{name}.o"],
                "reads": [name],
                "writes": [f"{name}.o"],
            },
            "each": {
                "foreach": "src/*",
                "run": ["cp", "--", "{{each}}", "out/{{each.name}}"],
                "reads": ["{{each}}"],
                "writes": ["out/{{each.name}}"],
            },
            "all": {"run": "cat out/* > app", "reads": ["out/*"], "writes": ["app"]},
        }
    )
    counted.path("out").mkdir()
    counted.write(name, "1")
    counted.write(f"src/{name}", "2")
    assert counted.run().counts == {"built": 3}
    assert counted.run().counts == {"clean": 3}
    counted.remove(f"{name}.o", "out", "app")
    assert counted.run().counts == {"clean": 3}
    assert (counted.read(f"{name}.o"), counted.read("app")) == ("1", "2")
    counted.write(f"src/{name}", "3")
    assert counted.run().counts == {"built": 2, "clean": 1}


def test_name_that_looks_like_a_glob(counted: Counted) -> None:
    """C121: a name with glob characters is meant literally in the `path` form."""
    counted.plan(
        {
            "a": {
                "run": ["cp", "[id].ts", "out[1]*?.js"],
                "reads": [{"path": "[id].ts"}],
                "writes": [{"path": "out[1]*?.js"}],
            }
        }
    )
    counted.write("[id].ts", "1")
    counted.write("i.ts", "x")
    assert counted.run().counts == {"built": 1}
    counted.remove("out[1]*?.js")
    counted.write("i.ts", "y")
    assert counted.run().counts == {"clean": 1}
    assert counted.read("out[1]*?.js") == "1"


def test_names_that_are_no_utf_8(counted: Counted) -> None:
    """C121: bytes that are no UTF-8 in the names of members and outputs are kept as they are."""
    counted.plan(
        {
            "a": {
                "run": "mkdir -p out; cp src/* out/; ln -s *.x out/link 2>/dev/null || true",
                "reads": ["src/**"],
                "writes": ["out/"],
            }
        }
    )
    counted.path("src").mkdir()
    odd = os.fsdecode(b"caf\xe9-\xff.x")
    (counted.root / "src" / odd).write_text("1")
    assert counted.ran() == ["a"]
    counted.rests()
    counted.remove("out")
    assert counted.ran() == []
    assert odd in os.listdir(counted.path("out"))
    (counted.root / "src" / odd).write_text("2")
    assert counted.ran() == ["a"]
    assert (counted.root / "out" / odd).read_text() == "2"


def test_foreach_over_names_that_are_no_utf_8(counted: Counted) -> None:
    """C121: a `foreach` over such names makes nodes that work and rest."""
    counted.plan(
        {
            "cp": {
                "foreach": "src/*",
                "run": ["cp", "{{each}}", "{{each.name}}.o"],
                "reads": ["{{each}}"],
                "writes": ["{{each.name}}.o"],
            }
        }
    )
    counted.path("src").mkdir()
    odd = os.fsdecode(b"caf\xe9")
    (counted.root / "src" / odd).write_text("1")
    assert counted.run().counts == {"built": 1}
    (counted.root / f"{odd}.o").unlink()
    assert counted.run().counts == {"clean": 1}
    assert (counted.root / f"{odd}.o").read_text() == "1"


def test_unicode_normal_forms_are_different_names(counted: Counted) -> None:
    """C124: a composed and a decomposed name are two files."""
    composed, decomposed = "\u00e9", "e\u0301"
    counted.plan(
        {
            "a": {"run": ["cp", composed, "o"], "reads": [composed], "writes": ["o"]},
            "b": {"run": ["cp", decomposed, "p"], "reads": [decomposed], "writes": ["p"]},
        }
    )
    counted.write(composed, "1")
    counted.write(decomposed, "2")
    assert counted.run().counts == {"built": 2}
    counted.write(decomposed, "3")
    assert counted.run().counts == {"built": 1, "clean": 1}
    assert (counted.read("o"), counted.read("p")) == ("1", "3")


def test_long_names_and_deep_folders(counted: Counted) -> None:
    """Names up to the limit of the file system and deep trees are stored and restored."""
    name = "n" * 255
    deep = "/".join(["deep"] * 60)
    counted.plan(
        {
            "a": {
                "run": f"mkdir -p d/{deep}; echo 1 > d/{name}; echo 2 > d/{deep}/f",
                "writes": ["d/"],
            }
        }
    )
    assert counted.ran() == ["a"]
    tree = counted.tree("d")
    counted.remove("d")
    assert counted.ran() == []
    assert counted.tree("d") == tree
    counted.rests()
