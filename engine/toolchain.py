"""Which executables a node uses, and what of them is in its key.

What the first word of a command resolves to is always a tool. One that lies in the
workspace is a read like any other; one elsewhere is keyed by its content, or by what
its version command prints. Nothing here runs a node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from assay.engine.environment import CallerEnvironment
from assay.engine.measuring import Measurer
from assay.engine.program_lookup import find_program
from assay.plans.canonical import JsonValue
from assay.plans.model import Digest, Node, RelPath, argv_of

MISSING: Final = "missing"
LONGEST_VERSION_TEXT: Final = 4096


@dataclass(frozen=True, slots=True)
class Toolset:
    """`keyed`: tool name to digest or version text; `reads`: tools in the workspace;
    `program`: where the command's first word was found in PATH, absolute."""

    keyed: dict[str, str]
    reads: tuple[RelPath, ...]
    program: str | None = None


def platform_name() -> str:
    """`linux-x86_64`: results made on one platform never serve another."""
    return f"{sys.platform}-{os.uname().machine}"


class Toolchain:
    """Resolves tools, each (name, PATH) once in a run."""

    def __init__(
        self,
        root: str,
        measurer: Measurer,
        caller: CallerEnvironment,
        run: Callable[[tuple[str, ...], Mapping[str, str]], str],
    ) -> None:
        """`run` executes a version command in the workspace and returns what it printed."""
        self._root = root
        self._run = run
        self._measurer = measurer
        self._caller = caller
        self._found: dict[tuple[str, str, str], str | None] = {}
        self.digests: dict[str, Digest] = {}
        """Absolute path to content, for every tool outside the workspace."""
        self._printed: dict[tuple[str | None, tuple[str, ...], str], str] = {}
        """By the program that was found, the command and its PATH."""

    @property
    def lookups(self) -> dict[tuple[str, str, str], str | None]:
        """Every (name, PATH, working folder) asked for and the file it led to."""
        return self._found

    @property
    def ran_version_commands(self) -> bool:
        return bool(self._printed)

    def identify(self, node: Node, values: Mapping[str, JsonValue]) -> Toolset:
        """What of the node's tools is in its key; `values` are what its environment takes
        from other nodes."""
        keyed: dict[str, str] = {}
        reads: list[RelPath] = []
        path = self._caller.search_path(node, values)
        if node.command is None:
            return Toolset({}, ())
        first = argv_of(node.command)[0]
        for name, version in [(first, None), *((t.name, t.version) for t in node.tools)]:
            if version is not None:
                keyed[name] = self._version(version, path, node)
                continue
            found = self.find(name, path, node.workdir)
            if found is None:
                keyed[name] = MISSING
                continue
            inside = self._inside(found)
            if inside is not None:
                reads.append(inside)
            else:
                keyed[name] = self.digests[found] = self._measurer.tool_digest(found)
        program = None if "/" in first else self.find(first, path, node.workdir)
        return Toolset(keyed, tuple(reads), program)

    def find(self, name: str, path: str, workdir: str) -> str | None:
        """The absolute path `name` resolves to the way exec does it, or None."""
        key = (name, path, workdir)
        found = self._found.get(key)
        if found is None:
            # What is not there may yet be made by a node.
            found = self._found[key] = find_program(self._root, name, path, workdir)
        return found

    def _inside(self, found: str) -> RelPath | None:
        if found.startswith(self._root.rstrip("/") + "/"):
            return RelPath(os.path.relpath(found, self._root))
        return None

    def _version(self, command: tuple[str, ...], path: str, node: Node) -> str:
        program = self.find(command[0], path, node.workdir)
        key = (program, command, path)
        if key not in self._printed:
            if program is None:
                self._printed[key] = MISSING
            else:
                printed = self._run((program, *command[1:]), self._caller.bare(path))
                self._printed[key] = "version: " + printed[:LONGEST_VERSION_TEXT]
        return self._printed[key]
