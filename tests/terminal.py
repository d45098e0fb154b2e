"""A terminal of a test's own, with a command in its foreground as a user would start it.

Keys typed reach the command the way they do on a real terminal: Ctrl-C by the kernel, to the
foreground group; closing it hangs the session up.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from running import HEEDING
from workspace import Workspace

CTRL_C = b"\x03"


class Terminal:
    """A command whose controlling terminal, input and output this is."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._seen = b""
        self.process = subprocess.Popen(
            [*HEEDING, "setsid", "--ctty", *argv],
            cwd=cwd,
            env={**os.environ, "TERM": "xterm", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, text: str) -> str:
        """What was printed so far, once `text` is part of it; waits for it."""
        while text.encode() not in self._seen:
            assert self._read(), f"`{text}` was not printed:\n{self._text}"
        return self._text

    def finish(self) -> tuple[int, str]:
        """Exit status and everything printed."""
        while self._read():
            pass
        return self.process.wait(), self._text

    def hang_up(self) -> int:
        """Closes the terminal, as closing its window does; the exit status."""
        os.close(self._master)
        self._master = -1
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    @property
    def _text(self) -> str:
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def _read(self) -> bool:
        """False once nothing has the terminal open any more."""
        assert select.select([self._master], [], [], 60)[0], f"silence after:\n{self._text}"
        try:
            piece = os.read(self._master, 65536)
        except OSError:
            return False
        self._seen += piece
        return bool(piece)


class OnTerminal(Protocol):
    """`on_terminal("assay", "run")` starts a command on a new terminal in the workspace."""

    def __call__(self, *argv: str, env: Mapping[str, str] | None = None) -> Terminal: ...


@pytest.fixture
def on_terminal(workspace: Workspace) -> Iterator[OnTerminal]:
    """Starts commands on terminals; they are ended after the test."""
    started: list[Terminal] = []

    def start(*argv: str, env: Mapping[str, str] | None = None) -> Terminal:
        started.append(Terminal(argv, workspace.root, env or {}))
        return started[-1]

    yield start
    for each in started:
        each.close()
