"""An `assay run` under way: the test reads what it tells while it tells it, and signals it.

Used through the fixture `begin`. Every such `assay` heeds SIGINT, which the test's own
process may ignore, and is ended after the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from workspace import ASSAY, Finished, Workspace

HEEDING = ("env", "--default-signal=INT")
"""Goes before a command that is to heed SIGINT."""


class Running:
    """One `assay run --json`, by its events."""

    def __init__(self, root: Path, words: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this is
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [*HEEDING, str(ASSAY), "run", "--json", *words],
            cwd=root,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def told(self, name: str, node: str | None = None) -> dict[str, Any]:
        """The next event of this name (and node); waits for it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name and node in (None, event.get("node")):
                return event
        raise AssertionError(f"no {name} of {node} was told:\n{''.join(self._lines)}{self._said()}")

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to `assay` alone."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends `assay` alone as a crash does, and waits until it is gone."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> Finished:
        """Waits for its end; `out` is everything it told, also what `told` has returned."""
        assert self.process.stdout is not None
        self._lines += self.process.stdout
        return Finished(self.process.wait(), "".join(self._lines), self._said())

    def close(self) -> None:
        """Ends it, whatever it does."""
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._err.close()

    def _said(self) -> str:
        self._err.seek(0)
        return self._err.read().decode(errors="replace")


class Begin(Protocol):
    """`begin("NODE", "-j1")` starts `assay run` in the test's workspace, or in the folder
    `root`."""

    def __call__(
        self, *words: str, root: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Running: ...


@pytest.fixture
def begin(workspace: Workspace) -> Iterator[Begin]:
    """Starts runs; those that still run after the test are ended."""
    started: list[Running] = []

    def start(
        *words: str, root: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Running:
        started.append(Running(root or workspace.root, words, env or {}))
        return started[-1]

    yield start
    for each in started:
        each.close()
