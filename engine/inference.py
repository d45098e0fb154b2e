"""What a node should declare, from what its command was seen to do. Pure but for looking at what
lies in folders.

Folds files into the globs that a person would write: only where a glob names what was read and
nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from assay.engine.tracing import Trace
from assay.plans.entries import escape_entry, is_below
from assay.plans.model import RelPath

FEWEST = 3
"""Files alike in a folder before they are named together."""

_BUILT_IN = (".assay", ".git")
_BYTECODE = "__pycache__"

_EVERYWHERE = frozenset(
    [
        "awk",
        "basename",
        "bash",
        "cat",
        "chmod",
        "cmp",
        "comm",
        "cp",
        "cut",
        "date",
        "dash",
        "dd",
        "diff",
        "dirname",
        "echo",
        "env",
        "expr",
        "false",
        "find",
        "gawk",
        "grep",
        "gzip",
        "head",
        "hostname",
        "id",
        "install",
        "ln",
        "ls",
        "mawk",
        "mkdir",
        "mkfifo",
        "mktemp",
        "mv",
        "nice",
        "nl",
        "od",
        "paste",
        "printf",
        "pwd",
        "readlink",
        "realpath",
        "rm",
        "rmdir",
        "sed",
        "seq",
        "sh",
        "sleep",
        "sort",
        "split",
        "stat",
        "sync",
        "tail",
        "tar",
        "tee",
        "test",
        "timeout",
        "touch",
        "tr",
        "true",
        "uname",
        "uniq",
        "wc",
        "which",
        "xargs",
        "yes",
    ]
)
"""What scripts everywhere use of the system: to declare it tells a reader nothing."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Entries as they are written in a plan, relative to the workspace root; sorted."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    removes: tuple[str, ...]
    tools: tuple[str, ...]


def infer(
    trace: Trace,
    root: str,
    search: str,
    existed: frozenset[str],
    own_tools: frozenset[str],
    is_output: Callable[[str], bool],
) -> Inferred:
    """`existed` are the files, absolute, that were there before the command began; `search` is its
    PATH; `own_tools` are programs that count anyway: what argv[0] names, and the shell;
    `is_output` tells of what the node declares to make, and so may find from last time."""
    gone = [path for path in _within(trace.gone, root) if f"{root}/{path}" in existed]
    removes = [path for path in gone if not os.path.lexists(f"{root}/{path}")]
    reads = [
        path
        for path in dict.fromkeys(map(_source_of, _within(trace.read, root)))
        if f"{root}/{path}" in existed and not _is_folder(root, path) and not is_output(path)
    ]
    written = [
        path
        for path in _within(trace.written, root)
        if _is_file(root, path) and path == _source_of(path)
    ]
    trees = _outermost(
        path
        for path in _within(trace.made, root)
        if os.path.isdir(f"{root}/{path}")
        and os.path.basename(path) != _BYTECODE
        and _is_new(f"{root}/{path}", existed)
    )
    loose = [path for path in written if not any(is_below(path, tree) for tree in trees)]
    writes = [f"{escape_entry(RelPath(tree))}/" for tree in trees]
    writes += _fold(loose, root, frozenset(written))
    folders = {os.path.realpath(folder) for folder in search.split(os.pathsep) if folder}
    tools = {
        os.path.basename(path)
        for path in trace.executed
        if not path.startswith(f"{root}/") and os.path.realpath(os.path.dirname(path)) in folders
    }
    return Inferred(
        tuple(sorted(_fold(reads, root, frozenset(reads)))),
        tuple(sorted(writes)),
        tuple(sorted(removes)),
        tuple(sorted(tools - own_tools - _EVERYWHERE)),
    )


def _source_of(path: str) -> str:
    """The module that Python's bytecode was made of, which nobody declares; any other path."""
    folder, name = os.path.split(path)
    if os.path.basename(folder) != _BYTECODE:
        return path
    return os.path.join(os.path.dirname(folder), name.split(".", 1)[0] + ".py")


def _within(paths: Iterable[str], root: str) -> Iterator[str]:
    """Those below `root`, relative to it, what is assay's and git's aside."""
    for path in paths:
        if path.startswith(f"{root}/"):
            relative = path[len(root) + 1 :]
            if relative.split("/", 1)[0] not in _BUILT_IN:
                yield relative


def _fold(paths: Iterable[str], root: str, named: frozenset[str]) -> list[str]:
    """The paths, or globs in place of many: `named` is all that a glob may match."""
    by_kind: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        by_kind.setdefault((os.path.dirname(path), os.path.splitext(path)[1]), []).append(path)
    found: list[str] = []
    whole: dict[str, list[tuple[str, list[str]]]] = {}
    for (folder, ending), members in by_kind.items():
        there = {path for path in _files(root, folder) if path.endswith(ending)}
        if ending and there <= named and len(members) >= min(FEWEST, len(there)):
            whole.setdefault(ending, []).append((folder, members))
        else:
            found += [escape_entry(RelPath(path)) for path in members]
    for ending, folders in whole.items():
        found += _fold_folders(ending, folders, root, named)
    return found


def _fold_folders(
    ending: str, folders: list[tuple[str, list[str]]], root: str, named: frozenset[str]
) -> Iterator[str]:
    """Of folders all of whose files of one ending are named: together where they are many."""
    top = os.path.commonpath([folder for folder, _ in folders]) if folders[0][0] else ""
    if len(folders) > 1 and top:
        below = {path for path in _files_below(root, top) if path.endswith(ending)}
        if below <= named and len(below) >= FEWEST:
            yield f"{escape_entry(RelPath(top))}/**/*{ending}"
            return
    for folder, members in folders:
        if len(members) >= FEWEST and folder:
            yield f"{escape_entry(RelPath(folder))}/*{ending}"
        else:
            yield from (escape_entry(RelPath(path)) for path in members)


def _files(root: str, folder: str) -> Iterator[str]:
    try:
        with os.scandir(f"{root}/{folder}" if folder else root) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield f"{folder}/{entry.name}" if folder else entry.name
    except OSError:
        return


def _files_below(root: str, top: str) -> Iterator[str]:
    for place, _, names in os.walk(f"{root}/{top}"):
        for name in names:
            yield os.path.relpath(f"{place}/{name}", root)


def _outermost(folders: Iterable[str]) -> list[str]:
    outer: list[str] = []
    for folder in sorted(folders):
        if not any(is_below(folder, other) for other in outer):
            outer.append(folder)
    return outer


def _is_folder(root: str, path: str) -> bool:
    return os.path.isdir(f"{root}/{path}") and not os.path.islink(f"{root}/{path}")


def _is_file(root: str, path: str) -> bool:
    return os.path.lexists(f"{root}/{path}") and not _is_folder(root, path)


def _is_new(folder: str, existed: frozenset[str]) -> bool:
    """Whether nothing was in the folder before."""
    return not any(path.startswith(f"{folder}/") for path in existed)
