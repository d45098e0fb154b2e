"""Which path a command was refused, found in what commands really say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import node
from held import needs_landlock

from assay.engine.confinement import find_devices, find_outside
from assay.engine.denials import Denial, find_denials
from assay.engine.landlock import Access, Domain, Rule, call_within
from assay.plans.model import RelPath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "w"
    for name in ("src/a", "src/b c", "top", "work/x", ".assay/db"):
        path = found / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("echo\n")
    return found


def said(root: Path, script: str) -> str:
    """What a command says that may reach nothing of the workspace."""
    rules = (*find_outside(str(root)), *find_devices(str(root)), Rule(str(root), Access.LIST))
    texts: list[str] = []

    def run() -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", script], cwd=root, stderr=subprocess.PIPE, text=True
        )
        texts.append(done.stderr)

    call_within(Domain(rules, network=True), run)
    return texts[0]


@needs_landlock
@pytest.mark.parametrize(
    ("script", "path", "wants_write"),
    [
        ("cat src/a", "src/a", False),
        ("cat './src/../src/a'", "src/a", False),
        ("cat < top", "top", False),
        ("grep x src/a", "src/a", False),
        (f"{sys.executable} -S -E -c 'open(\"src/a\")'", "src/a", False),
        ("echo > new", "new", True),
        ("echo > src/new", "src/new", True),
        ("cp /etc/passwd new", "new", True),
        (f'{sys.executable} -S -E -c \'open("new", "w")\'', "new", True),
    ],
)
def test_programs_name_what_they_were_refused(
    root: Path, script: str, path: str, wants_write: bool
) -> None:
    """Shells, core utilities and Python."""
    text = said(root, script)
    found = find_denials(text, node("n"), str(root), str(root))
    assert found == (Denial(RelPath(path), wants_write),), text


def test_paths_of_the_private_tree_are_translated(root: Path) -> None:
    """An absolute path is one of the workspace by either name, and relative ones count from
    the node's working directory."""
    place = f"{root}/.assay/tmp/1.tree"
    for text in (f"cat: {place}/src/a: Permission denied", f"cat: {root}/src/a: Permission denied"):
        assert find_denials(text, node("n"), str(root), place) == (Denial(RelPath("src/a"), False),)
    text = "cat: x: No such file or directory"
    assert find_denials(text, node("n", workdir=RelPath("work")), str(root), place) == (
        Denial(RelPath("work/x"), False),
    )


@pytest.mark.parametrize(
    "text",
    [
        "cat: src/a: Permission denied",  # declared
        "src/a is fine",
        "cat: src: Permission denied",
        "cat: /etc/shadow: Permission denied",
        "cat: ../../outside: Permission denied",
        "cat: .assay/db: Permission denied",
        "cat: nothing: No such file or directory",
        "permission denied",
        "",
        "\0: permission denied",
        "x" * 100_000 + ": permission denied",
    ],
)
def test_what_is_no_denial(root: Path, text: str) -> None:
    """What is declared, not of the workspace, assay's own or not there is not named."""
    declared = node("n", ["src/a"])
    found = find_denials(text, declared, str(root), str(root))
    assert [each for each in found if not each.wants_write] == []
    assert all(not each.path.startswith((".assay", "..", "/")) for each in found)


def test_only_the_first_few_once_each(root: Path) -> None:
    """However often a command complains."""
    for name in "abcdef":
        (root / name).touch()
    text = "\n".join(f"cat: {name}: Permission denied" for name in "abacdef" * 100)
    found = find_denials(text, node("n"), str(root), str(root))
    assert [each.path for each in found] == ["a", "b", "c"]
    assert os.path.exists(root / "a")
