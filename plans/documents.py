"""One plan file: from bytes to what it validly declares, and everything wrong with it.

A file with faults still yields the rest of what it declares, so that all its faults can be
told in one go. Does not know other files, nor what nodes have to do with each other.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from assay.plans.diagnostics import Diagnostic, Mark, Note, shown
from assay.plans.model import Origin
from assay.plans.phrases import Keys, dotted, subject
from assay.plans.positions import find_duplicates, locate
from assay.plans.schema import PlanDecl, validate
from assay.plans.wording import explain_shape

STDIN: Final = "-"

MOST_PASSES: Final = 4
"""Without the keys at fault a file is valid at the second pass; the rest is for surprises."""

_BYTE_ORDER_MARKS: Final = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TOML_DUPLICATE = re.compile(r"twice|overwrite|Duplicate|mutate")
_ESCAPE = re.compile(r"\\[uUx]")
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{4000,}")
_BARE_WORD = re.compile(r"[A-Za-z_./~-][^\s,\]}#]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Unreadable(Exception):
    """A plan file that cannot be read; `reason` completes a sentence that starts with its
    name."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        self.reason = reason
        self.hint = hint
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Source:
    """A plan file as read. `data` is None where its text is not TOML or JSON at all."""

    text: str
    data: Mapping[str, Any] | None
    as_json: bool
    faults: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """What a plan file declares, as far as it is valid, and what is wrong with the rest.

    `broken_nodes` are the declared names of nodes that lack something they were meant to
    have.
    """

    file: str
    text: str
    declared: PlanDecl = field(default_factory=PlanDecl)
    broken_nodes: frozenset[str] = frozenset()
    faults: tuple[Diagnostic, ...] = ()


def read_bytes(path: str) -> bytes:
    """Raises Unreadable."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            inside = os.path.join(path, "plan.toml")
            is_there = os.path.isfile(inside)
            raise Unreadable("is a folder", f"Name `{inside}`." if is_there else None)
        if not stat.S_ISREG(mode):
            raise Unreadable("is not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise Unreadable("does not exist") from None
        why = (error.strerror or str(error)).lower()
        raise Unreadable(f"cannot be read: {why}") from None


def parse_source(content: bytes, file: str, *, as_json: bool) -> Source:
    """Never raises: what is wrong with the text is among the faults, placed by `file`."""
    name = "Standard input" if file == STDIN else f"`{shown(file)}`"
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            message = f"{name} is {encoding}, but plan files are UTF-8"
            return Source("", None, as_json, (Diagnostic(message, Origin(file), line=1, column=1),))
    try:
        text = _normalise(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = _normalise(content[: error.start].decode("utf-8-sig", "replace"))
        line, column = locate(before, len(before))
        byte = f"0x{content[error.start]:02x}"
        message = f"{name} is not UTF-8: byte {byte} is part of no character"
        text = _normalise(content.decode("utf-8-sig", "replace"))
        fault = Diagnostic(message, Origin(file), line=line, column=column)
        return Source(text, None, as_json, (fault,))
    parse = _parse_json if as_json else _parse_toml
    data, faults = parse(text, file, name)
    if data is not None and _ESCAPE.search(text):
        unusable = tuple(_find_unusable(data, file))
        if unusable:
            return Source(text, None, as_json, (*faults, *unusable))
    return Source(text, data, as_json, tuple(faults))


def validate_source(source: Source, file: str) -> Document:
    """What `source` validly declares."""
    if source.data is None:
        return Document(file, source.text, faults=source.faults)
    data: Any = source.data
    faults = list(source.faults)
    broken: set[str] = set()
    for _ in range(MOST_PASSES):
        declared, errors = validate(data)
        if declared is not None:
            return Document(file, source.text, declared, frozenset(broken), tuple(faults))
        found = explain_shape(errors, data, file, as_json=source.as_json)
        faults += found
        places = [fault.origin.keys for fault in found if fault.origin is not None]
        broken.update(str(keys[1]) for keys in places if keys[:1] == ("nodes",) and len(keys) > 1)
        data = _without(data, places)
    return Document(file, source.text, faults=tuple(faults))


def _normalise(text: str) -> str:
    return text.replace("\r\n", "\n")


def _parse_toml(
    text: str, file: str, name: str
) -> tuple[Mapping[str, Any] | None, list[Diagnostic]]:
    faults: list[Diagnostic] = []
    for attempt in range(2):
        try:
            return tomllib.loads(text), faults
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            duplicates = find_duplicates(text) if _TOML_DUPLICATE.search(message) else ()
            if attempt == 0 and duplicates:
                # Everything said twice is told at once, then taken out, so that the rest of
                # the file can be judged too. Blanks keep every other position as it is.
                faults += _explain_duplicates(text, file)
                for duplicate in duplicates:
                    said = text[duplicate.start : duplicate.end]
                    blank = re.sub(r"[^\n]", " ", said)
                    text = text[: duplicate.start] + blank + text[duplicate.end :]
                continue
            if not faults or not _TOML_DUPLICATE.search(message):
                faults.append(_explain_toml(text, file, name, message))
        except RecursionError:
            faults.append(_explain_depth(file, name))
        except ValueError:
            faults.append(_explain_long_number(text, file))
        return None, faults
    return None, faults


def _explain_toml(text: str, file: str, name: str, message: str) -> Diagnostic:
    place = _TOML_PLACE.search(message)
    line, column = locate(text, len(text.rstrip()))
    if place is not None:
        message = message[: place.start()]
        if place[1]:
            line, column = int(place[1]), int(place[2])
    if text.lstrip().startswith("{"):
        hint: str | None = "It looks like JSON: a plan in JSON has a name that ends in `.json`."
    else:
        hint = _hint_quotes(text, line, column) if message == "Invalid value" else None
    message = message[:1].lower() + message[1:]
    return Diagnostic(
        f"{name} is not valid TOML: {message}", Origin(file), hint=hint, line=line, column=column
    )


def _hint_quotes(text: str, line: int, column: int) -> str | None:
    lines = text.split("\n")
    word = _BARE_WORD.match(lines[line - 1], column - 1) if line <= len(lines) else None
    return f'A text needs quotes: `"{shown(word[0])}"`.' if word else None


def _parse_json(
    text: str, file: str, name: str
) -> tuple[Mapping[str, Any] | None, list[Diagnostic]]:
    repeated = False

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        table = dict(pairs)
        repeated = repeated or len(table) < len(pairs)
        return table

    try:
        data = json.loads(text, object_pairs_hook=keep)
    except json.JSONDecodeError as error:
        hint = None
        if not text.strip():
            message = f"{name} is empty"
        else:
            message = f"{name} is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
            if file == STDIN and not text.lstrip().startswith(("{", "[")):
                hint = "A plan on standard input is JSON."
        return None, [
            Diagnostic(message, Origin(file), hint=hint, line=error.lineno, column=error.colno)
        ]
    except RecursionError:
        return None, [_explain_depth(file, name)]
    except ValueError:
        return None, [_explain_long_number(text, file)]
    if not isinstance(data, dict):
        message = f"{name} is not a plan: a plan is a JSON object"
        return None, [Diagnostic(message, Origin(file), line=1, column=1)]
    return data, _explain_duplicates(text, file) if repeated else []


def _explain_duplicates(text: str, file: str) -> list[Diagnostic]:
    faults: list[Diagnostic] = []
    for duplicate in find_duplicates(text):
        line, column = locate(text, duplicate.start)
        keys = duplicate.keys
        faults.append(
            Diagnostic(
                f"{_subject_of_table(keys)} is declared twice",
                Origin(file, keys),
                Mark.KEY,
                notes=(Note("first declared here", Origin(file, keys)),),
                line=line,
                column=column,
            )
        )
    return faults


def _subject_of_table(keys: Keys) -> str:
    return subject(keys) if keys[0] in {"nodes", "defaults"} else f"`{dotted(keys)}`"


def _explain_depth(file: str, name: str) -> Diagnostic:
    return Diagnostic(f"{name} is nested too deeply", Origin(file), line=1, column=1)


def _explain_long_number(text: str, file: str) -> Diagnostic:
    match = _LONG_NUMBER.search(text)
    line, column = locate(text, match.start() if match else 0)
    return Diagnostic("A number has too many digits", Origin(file), line=line, column=column)


def _find_unusable(data: Mapping[str, Any], file: str) -> Iterator[Diagnostic]:
    """Texts that could only come from escapes and that no path or process can carry."""
    unvisited: list[tuple[Keys, object]] = [((), data)]
    while unvisited:
        keys, value = unvisited.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                why = _find_flaw(key)
                if why is not None:
                    message = f"The key `{shown(key)}` {why}"
                    yield Diagnostic(message, Origin(file, (*keys, key)), Mark.KEY)
                unvisited.append(((*keys, key), item))
        elif isinstance(value, list):
            unvisited.extend(((*keys, number), item) for number, item in enumerate(value))
        elif isinstance(value, str):
            why = _find_flaw(value)
            if why is not None:
                yield Diagnostic(f"{subject(keys)} {why}", Origin(file, keys))


def _find_flaw(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character"
    if _SURROGATE.search(text):
        return "contains half a surrogate pair, which is no character"
    return None


def _without(data: dict[str, Any], places: Iterable[Keys]) -> dict[str, Any]:
    """`data` without the keys at fault. What may be referred to by name stays: a node, and
    a param as an empty text."""
    data = dict(data)
    copied: set[Keys] = set()

    def own(table: dict[str, Any], path: Keys) -> dict[str, Any]:
        """The table at the last key of `path`, copied before its first change."""
        if path not in copied:
            copied.add(path)
            table[cast(str, path[-1])] = dict(table[cast(str, path[-1])])
        return cast(dict[str, Any], table[cast(str, path[-1])])

    for keys in places:
        match keys:
            case (str(top),):
                data.pop(top, None)
            case ("nodes", str(name), str(key), *_):
                nodes = own(data, ("nodes",))
                own(nodes, ("nodes", name)).pop(key, None)
            case ("nodes", str(name)):
                own(data, ("nodes",))[name] = {}
                copied.add(("nodes", name))
            case ("params", str(name), *_):
                own(data, ("params",))[name] = ""
            case (str(top), str(key), *_):
                own(data, (top,)).pop(key, None)
            case (str(top), *_):
                data.pop(top, None)
            case _:
                data.clear()
    return data
