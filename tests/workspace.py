"""A folder with a plan in it, and the installed `assay` run there as a user would.

Does not know what is inside `.assay/` and imports nothing of assay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ASSAY = Path(sys.executable).parent / "assay"
"""The program installed beside the Python that runs the tests."""


@dataclass(frozen=True)
class Finished:
    """An ended `assay`: exit status and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`, decoded."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def outcomes(self) -> dict[str, str]:
        """Node name to outcome, from the events of `--json`."""
        return {
            event["node"]: event["outcome"]
            for event in self.events
            if event["event"] == "node-settled"
        }

    @property
    def counts(self) -> dict[str, int]:
        """Outcome to number of nodes, from the last event of `--json`."""
        last = self.events[-1]
        assert last["event"] == "run-settled", last
        return {name: number for name, number in last["counts"].items() if number}

    def named(self, outcome: str) -> set[str]:
        """The nodes that settled with `outcome`, from the events of `--json`."""
        return {node for node, found in self.outcomes.items() if found == outcome}


@dataclass(frozen=True)
class Workspace:
    """`root` is the folder; paths given are relative to it."""

    root: Path

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, text: str) -> Path:
        """Writes a file, making its folders."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def assay(self, *words: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Finished:
        """Runs `assay WORDS` to its end and returns how it ended, whatever the exit status."""
        done = subprocess.run(
            [str(ASSAY), *words],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            input=stdin,
            text=True,
            capture_output=True,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts `assay WORDS`; `finish` waits for its end."""
        return subprocess.Popen(
            [str(ASSAY), *words],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Finished:
        """`assay run --json WORDS`; fails the test unless it exits with 0."""
        done = self.assay("run", "--json", *words, env=env)
        assert done.code == 0, explain(done)
        return done


def explain(done: Finished) -> str:
    """Why a run that should have succeeded did not: its failed nodes with the end of their
    logs, and what it said."""
    parts = [f"exit {done.code}"]
    for event in done.events if done.out.startswith("{") else []:
        if event["event"] == "node-settled" and event["outcome"] == "failed":
            log = Path(event["log"]).read_text()[-2000:] if event["log"] else event["detail"]
            parts.append(f"{event['node']}: {log}")
    return "\n".join([*parts[:10], done.err[-2000:]])


def finish(started: subprocess.Popen[str]) -> Finished:
    """Waits for an `assay` that was started and returns how it ended."""
    out, err = started.communicate()
    return Finished(started.returncode, out, err)
