"""Which path a command was refused, found in what it said itself.

The kernel tells a command, not assay, that something is out of its reach, and commands name what
they could not open. So the end of a failed command's log is searched for paths of the workspace
that its node does not declare. What it does not name is not found: `assay infer` traces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from assay.engine.confinement import folders_listed
from assay.engine.filesystem import look
from assay.plans.entries import matches
from assay.plans.model import Node, RelPath

_COMPLAINT: Final = re.compile(
    r"permission denied|operation not permitted|no such file|not found|cannot (?:open|find|create)"
    r"|can't open|EACCES|EPERM|ENOENT",
    re.IGNORECASE,
)
_REFUSED_WRITE: Final = re.compile(
    r"(?:cannot create|creating) (?:regular file |directory )?['\"‘`]?"
    r"(?P<a>[^'\"’`:\s]+)['\"’`]?:?.*(?:denied|not permitted)"
    r"|(?P<b>[^\s'\"`:]+): permission denied"
    r"|(?:denied|not permitted):? '(?P<c>[^']+)'",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"['\"`‘]([^'\"`’]+)['\"`’]")
_BARE: Final = re.compile(r"[^\s'\"`:,;()<>=]+")
_MOST: Final = 3
_LONGEST: Final = 255
"""Of a name, in characters."""


@dataclass(frozen=True, slots=True)
class Denial:
    """`path` is what the node does not declare; `wants_write` when it is not there."""

    path: RelPath
    wants_write: bool


def find_denials(text: str, node: Node, workspace: str, place: str) -> tuple[Denial, ...]:
    """The first few, in the order of `text`, the end of a log. `place` is the folder that the
    command saw as the workspace."""
    found: dict[RelPath, Denial] = {}
    for line in text.splitlines():
        if _COMPLAINT.search(line) is None:
            continue
        for word in (*_QUOTED.findall(line), *_BARE.findall(line)):
            for path in _candidates(word, node, workspace, place):
                absolute = f"{workspace}/{path}"
                if matches(node.reads, path) or matches(node.writes, path):
                    continue
                if look(absolute) is not None and not os.path.isdir(absolute):
                    found.setdefault(path, Denial(path, wants_write=False))
        for word in _find_written(line):
            wanted = _locate(word, node, workspace, place)
            if wanted is None or matches(node.writes, wanted) or wanted in node.removes:
                continue
            if look(f"{workspace}/{wanted}") is None:
                found.setdefault(wanted, Denial(wanted, wants_write=True))
    return tuple(found.values())[:_MOST]


def _candidates(word: str, node: Node, workspace: str, place: str) -> Iterator[RelPath]:
    """What a command may mean: also a file beside one that it declares, found by a search path."""
    path = _locate(word, node, workspace, place)
    if path is not None:
        yield path
    if not word.startswith(("/", ".")) and "\0" not in word and len(word) < _LONGEST:
        for folder in folders_listed(node.reads):
            beside = _within(os.path.join(folder, word))
            if beside is not None and beside != path:
                yield beside


def _find_written(line: str) -> Iterator[str]:
    for match in _REFUSED_WRITE.finditer(line):
        yield next(word for word in match.groups() if word is not None)


def _locate(word: str, node: Node, workspace: str, place: str) -> RelPath | None:
    """The path within the workspace that a command means by `word`."""
    for root in (place, workspace):
        if word.startswith(f"{root}/"):
            return _within(word[len(root) + 1 :])
    if word.startswith("/") or "\0" in word or len(word) > os.pathconf("/", "PC_PATH_MAX"):
        return None
    return _within(os.path.join(node.workdir, word))


def _within(path: str) -> RelPath | None:
    normal = os.path.normpath(path)
    if normal.split("/", 1)[0] in ("..", ".", ".assay"):
        return None
    return RelPath(normal)
