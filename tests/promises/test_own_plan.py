"""The repository's own plan: assay checks, tests and packages itself without doing work twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]

FIRST, SECOND = "tests/plans/test_first.py", "tests/plans/test_second.py"
"""Two small test files that the copy gets beside its own."""

CHEAP = ("lint", f"test[{FIRST}]", f"test[{SECOND}]")
"""Nodes that take a second each; between them they need the wheel and what is made of it."""

TRIVIAL = '''"""A test of the installed package."""

import assay.engine.states


def test_it_is_unpacked() -> None:
    """The modules come out of the wheel that was built."""
    assert "/build/site/" in assay.engine.states.__file__
'''

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of the working tree, without what git ignores; the tools are those of this Python."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not in a git repository")
    copy = tmp_path / "repository"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    for name in (FIRST, SECOND):
        (copy / name).write_text(TRIVIAL)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Workspace(copy)


def append(workspace: Workspace, name: str, text: str) -> None:
    with open(workspace.path(name), "a") as file:
        file.write(text)


def test_own_plan_is_sound(repository: Workspace) -> None:
    """The plan compiles without a warning."""
    done = repository.assay("check")
    assert done.code == 0, done.err
    assert "warning" not in done.err


def test_own_plan_does_nothing_twice(repository: Workspace) -> None:
    """A second run does nothing; an edited test file reruns itself and the linter; a comment
    in a source file reruns what is made of the sources."""
    everything = {*CHEAP, "wheel", "site"}
    assert repository.run(*CHEAP).named("built") == everything
    assert repository.run(*CHEAP).named("clean") == everything

    append(repository, SECOND, "\n\n# edited\n")
    assert repository.run(*CHEAP).named("built") == {"lint", CHEAP[2]}

    append(repository, "engine/states.py", "\n\n# edited\n")
    assert repository.run(*CHEAP).named("built") == everything

    shutil.rmtree(repository.path("build"))
    assert repository.run(*CHEAP).named("clean") == everything
    assert len(list(repository.path("build/wheel").iterdir())) == 1
