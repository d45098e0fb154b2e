"""What a command did to files, from the output of strace. Pure.

Knows the lines that `strace -f -y` writes of the calls in `CALLS`; not how it is run, nor what a
node should declare.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

CALLS: Final = (
    *("open", "openat", "openat2", "creat", "truncate", "execve", "execveat"),
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
    *("unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "chdir", "fchdir"),
    *("clone", "clone3", "fork", "vfork"),
)

_LINE: Final = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_RESUMED: Final = re.compile(r"<\.\.\. \w+ resumed>(?P<rest>.*)")
_CALL: Final = re.compile(r"(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+)(?P<more>.*)")
_FOLDER: Final = re.compile(r"^(?:AT_FDCWD|\d+)<(?P<path>.*?)>(?:\(deleted\))?$")
_OPENED: Final = re.compile(r"^<(?P<path>.*)>$")
_ESCAPE: Final = re.compile(r"\\(x[0-9a-f]{2}|[0-7]{1,3}|.)")
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "0": "\0"}
_UNFINISHED: Final = " <unfinished ...>"


@dataclass(slots=True)
class Trace:
    """Absolute paths, in the order they were first touched."""

    read: dict[str, None] = field(default_factory=dict)
    """Opened for reading, or executed."""
    written: dict[str, None] = field(default_factory=dict)
    """Opened for writing, or put there under this name."""
    made: dict[str, None] = field(default_factory=dict)
    """Folders."""
    gone: dict[str, None] = field(default_factory=dict)
    """Removed or renamed."""
    executed: dict[str, None] = field(default_factory=dict)


def read_trace(lines: Iterable[str], cwd: str) -> Trace:
    """What the command did that was started in the absolute folder `cwd`."""
    trace = Trace()
    folders: dict[str, str] = {}
    """Process to its working directory."""
    for pid, name, args, result, more in _calls(lines):
        here = folders.get(pid, cwd)
        if result < 0:
            continue
        paths = _Paths(args, here)
        match name:
            case "clone" | "clone3" | "fork" | "vfork":
                folders[str(result)] = here
            case "chdir" | "fchdir":
                folders[pid] = next(iter(paths), here)
            case "open" | "openat" | "openat2" | "creat":
                opened = _OPENED.match(more.strip())
                path = next(iter(paths)) if opened is None else _unescape(opened["path"])
                flags = args.rpartition('"')[2]
                if "O_DIRECTORY" not in flags and "O_PATH" not in flags:
                    if name == "creat" or "O_WRONLY" in flags or "O_RDWR" in flags:
                        trace.written.setdefault(path)
                    if name != "creat" and "O_WRONLY" not in flags and "O_TRUNC" not in flags:
                        trace.read.setdefault(path)
            case "truncate":
                trace.written.setdefault(next(iter(paths)))
            case "execve" | "execveat":
                path = next(iter(paths))
                trace.read.setdefault(path)
                trace.executed.setdefault(path)
            case "rename" | "renameat" | "renameat2":
                source, target = paths
                trace.gone.setdefault(source)
                trace.written.setdefault(target)
            case "link" | "linkat":
                source, target = paths
                trace.read.setdefault(source)
                trace.written.setdefault(target)
            case "symlink" | "symlinkat":
                trace.written.setdefault([*paths][-1])
            case "mkdir" | "mkdirat":
                trace.made.setdefault(next(iter(paths)))
            case "unlink" | "unlinkat" | "rmdir":
                trace.gone.setdefault(next(iter(paths)))
            case _:
                pass
    return trace


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str, str, int, str]]:
    """(process, call, arguments, result, what follows that) of each that returned."""
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            continue
        pid, rest = found["pid"], found["rest"]
        if rest.endswith(_UNFINISHED):
            begun[pid] = rest.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            rest = begun.pop(pid, "") + resumed["rest"].lstrip()
        call = _CALL.match(rest)
        if call is not None:
            yield pid, call["name"], call["args"], int(call["result"]), call["more"]


class _Paths:
    """The paths among the arguments of a call, absolute: each text goes with the folder that a
    descriptor before it names, or with the working directory."""

    def __init__(self, args: str, cwd: str) -> None:
        self._args = args
        self._cwd = cwd

    def __iter__(self) -> Iterator[str]:
        folder = self._cwd
        for argument in _split(self._args):
            named = _FOLDER.match(argument)
            if named is not None:
                folder = _unescape(named["path"])
                if argument is self._args.strip() or _is_only(argument, self._args):
                    yield folder
            elif argument.startswith('"'):
                text = _unescape(argument[1 : argument.rindex('"')])
                yield os.path.normpath(os.path.join(folder, text))
                folder = self._cwd


def _is_only(argument: str, args: str) -> bool:
    """Whether no text follows: the descriptor itself is what the call is about."""
    return '"' not in args and argument in args


def _split(args: str) -> Iterator[str]:
    """Arguments, as far as texts and descriptors need telling apart."""
    start, index, in_text, depth = 0, 0, False, 0
    while index < len(args):
        letter = args[index]
        if in_text:
            if letter == "\\":
                index += 1
            elif letter == '"':
                in_text = False
        elif letter == '"':
            in_text = True
        elif letter in "<[{":
            depth += 1
        elif letter in ">]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield args[start:index].strip()
            start = index + 1
        index += 1
    yield args[start:].strip()


def _unescape(text: str) -> str:
    """A path as it is, from the C notation in which strace writes it."""
    if "\\" not in text:
        return text

    def replace(found: re.Match[str]) -> bytes | str:
        code = found[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return _LETTERS.get(code, code)

    single = _ESCAPE.sub(lambda found: str(replace(found)), text)
    try:
        return os.fsdecode(single.encode("latin-1"))
    except UnicodeEncodeError:
        return single
