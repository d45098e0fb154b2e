"""What the tests of the command line share."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from workspace import ASSAY, Workspace


@dataclass
class Terminal:
    """An `assay` with a terminal of its own as standard output and error."""

    process: subprocess.Popen[bytes]
    master: int
    seen: bytes = b""

    def read_until(self, text: str) -> str:
        """What was printed so far, once `text` is part of it (or nothing more comes)."""
        while text.encode() not in self.seen:
            readable, _, _ = select.select([self.master], [], [], 60)
            assert readable, f"`{text}` was not printed:\n{self.seen.decode(errors='replace')}"
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                break
            if not piece:
                break
            self.seen += piece
        return self.seen.decode(errors="replace").replace("\r\n", "\n")

    def finish(self) -> tuple[int, str]:
        """Exit code and all that was printed."""
        shown = self.read_until("\0never printed\0")
        return self.process.wait(60), shown


@pytest.fixture
def terminal(workspace: Workspace) -> Iterator[object]:
    """`terminal(words, env)` starts `assay` on a new terminal in the workspace."""
    started: list[Terminal] = []

    def start(*words: str, env: Mapping[str, str] | None = None) -> Terminal:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [str(ASSAY), *words],
            cwd=workspace.root,
            env={**os.environ, "TERM": "xterm", **(env or {})},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        started.append(Terminal(process, master))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGKILL)
            each.process.wait()
        os.close(each.master)
