"""A workspace whose nodes count their own executions, outside of it and of assay's view.

Every node whose `run` is a script says its name into a file of the test's before it does
anything else, so that a test need not believe what assay says it did.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from workspace import Finished, Workspace

LAST: Mapping[str, object] = {"run": "test -e ok", "cache": False}
"""A node that keeps a run from completing until the file is there."""

Declarations = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Counted(Workspace):
    """`marks` is the file that executions are counted in."""

    marks: Path

    def plan(
        self, nodes: Declarations, head: str = "", *, file: str = "plan.toml", tail: str = ""
    ) -> None:
        """Writes a plan of these nodes, in this order; `head` is TOML above them, `tail` below."""
        texts = [head]
        for name, keys in nodes.items():
            texts.append(f"[nodes.{_toml(name)}]")
            for key, value in keys.items():
                is_script = key == "run" and isinstance(value, str)
                texts.append(f"{key} = {_toml(self.count(str(value)) if is_script else value)}")
        self.write(file, "\n".join([*texts, tail]) + "\n")

    def count(self, script: str) -> str:
        """The script, saying that it runs before it does."""
        marks = shlex.quote(str(self.marks))
        return f"printf '%s\\n' \"$ASSAY_NODE\" >> {marks}\n{script}"

    def ran(self, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
        """`assay run WORDS`, which must succeed; the names of the nodes that executed, sorted,
        each as often as it did."""
        # Without `--json`, which is never answered from a certificate.
        before = len(self.executions)
        done = self.assay("run", *words, env=env)
        assert done.code == 0, f"exit {done.code}\n{done.out}\n{done.err}"
        return sorted(self.executions[before:])

    def tried(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> tuple[list[str], Finished]:
        """As `ran` with `--json`, whatever the exit status, with how `assay` ended. What it
        says that it started must agree."""
        before = len(self.executions)
        done = self.assay("run", "--json", *words, env=env)
        executed = sorted(self.executions[before:])
        assert "internal error" not in done.err, done.err
        started = {event["node"] for event in done.events if event["event"] == "node-started"}
        assert set(executed) <= started, f"{executed} ran; told: {done.out}"
        return executed, done

    def first_run(self) -> str:
        return str(json.loads(self.assay("runs", "--json").out)[-1]["run"])

    @property
    def executions(self) -> list[str]:
        return self.marks.read_text().splitlines() if self.marks.exists() else []

    def rests(self, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Fails the test unless further runs succeed, execute nothing and touch nothing: one
        decided the long way, one that may be answered from what the run before certified."""
        before = self.stats()
        executed, done = self.tried(*words, env=env)
        assert (executed, done.code) == ([], 0), done.out
        assert self.stats() == before, "something was written"
        assert self.ran(*words, env=env) == []
        assert self.stats() == before, "something was written"

    def stats(self) -> dict[str, tuple[int, ...]]:
        """Everything outside `.assay/` by its path: what changes when anybody writes to it."""
        found = {}
        for path in self.everything():
            info = path.lstat()
            # A folder's own stamps tell of its names; those of the root, of `.assay/` too.
            found[str(path.relative_to(self.root))] = (
                info.st_ino,
                info.st_mode,
                info.st_mtime_ns,
                info.st_ctime_ns,
            )
        return found

    def tree(self, below: str = ".") -> dict[str, str]:
        """Everything outside `.assay/` by its path from `below`: content, `-> TARGET` or
        `folder`; an executable's content has ` (executable)` behind it."""
        found = {}
        for path in self.everything(below):
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                text = f"-> {os.readlink(path)}"
            elif stat.S_ISDIR(info.st_mode):
                text = "folder"
            else:
                text = path.read_text("utf-8", "surrogateescape")
                text += " (executable)" if info.st_mode & 0o111 else ""
            found[str(path.relative_to(self.path(below)))] = text
        return found

    def files(self, below: str = ".") -> dict[str, str]:
        """As `tree`, without the folders."""
        return {path: text for path, text in self.tree(below).items() if text != "folder"}

    def everything(self, below: str = ".") -> list[Path]:
        found = []
        for folder, folders, names in os.walk(self.path(below)):
            if Path(folder) == self.root and ".assay" in folders:
                folders.remove(".assay")
            found += [Path(folder, name) for name in (*folders, *names)]
        return sorted(found)

    def trash(self) -> dict[str, str]:
        """Contents of the files in the trash by their path in an attempt's folder."""
        top = self.path(".assay/trash")
        paths = [path for path in top.rglob("*") if path.is_file()] if top.exists() else []
        return {str(Path(*path.relative_to(top).parts[1:])): path.read_text() for path in paths}

    def blobs(self) -> list[Path]:
        """The files in the content store."""
        return sorted(path for path in self.path(".assay/cas").rglob("*") if path.is_file())

    def remove(self, *names: str) -> None:
        """Removes files and whole folders."""
        for name in names:
            path = self.path(name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def warnings(done: Finished) -> str:
    """What `--json` warned of, one a line."""
    return "\n".join(event["text"] for event in done.events if event["event"] == "warned")


def restored(done: Finished) -> int:
    """How many paths a run says it put back."""
    return sum(event.get("restored", 0) for event in done.events)


def _toml(value: Any) -> str:
    """A TOML value on one line. JSON's strings are TOML's, but for lone surrogates."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return "{ " + items + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@pytest.fixture
def counted(workspace: Workspace, tmp_path: Path) -> Counted:
    """An empty workspace whose nodes are counted."""
    return Counted(workspace.root, tmp_path / "marks")
