"""What every test starts from: a plain environment and, on request, a workspace of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workspace import Workspace

PREFIXES = ("ASSAY_", "GIT_", "GITHUB_", "COV_CORE_", "LC_")
"""Prefixes of variables that change what programs do and print."""

NAMES = ("CI", "COLORTERM", "COLUMNS", "FORCE_COLOR", "LANG", "LINES", "NO_COLOR", "TERM", "TZ")
"""Whole names of such variables."""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same few variables whoever starts the tests: a person, CI, a git hook or assay itself."""
    for name in list(os.environ):
        if name in NAMES or name.startswith(PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "C.UTF-8")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace in a temporary folder; the installed `assay` runs in it."""
    root = tmp_path / "workspace"
    root.mkdir()
    return Workspace(root)
