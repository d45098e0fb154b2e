"""Where a key stands in the text of a plan file, found only when a message is shown.

`tomllib` and `json` give values without positions, so this module walks the text again,
noting spans and judging nothing: of a text that cannot be parsed it knows the part before
the fault. Does not know which keys mean something.
"""

from __future__ import annotations

import bisect
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from assay.plans.diagnostics import Mark

Keys = tuple[str | int, ...]

DEEPEST: Final = 200
"""No plan file nests further; paths would get long and the walk slow."""


@dataclass(frozen=True, slots=True)
class Span:
    """1-based, in characters. What goes over several lines ends with its first one."""

    line: int
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that was given a second time at `start`; `start` to `end` is all it says there:
    the pair, or the header with everything below it."""

    keys: Keys
    start: int
    end: int


@dataclass(slots=True)
class _Index:
    newlines: list[int]
    places: dict[Keys, tuple[int, int, int, int]] = field(default_factory=dict)
    """Key start and end, value start and end, as offsets."""
    duplicates: list[Duplicate] = field(default_factory=list)


def find_span(text: str, keys: Keys, mark: Mark) -> Span | None:
    """Where the key or value stands; where there is none, the nearest key around it that
    exists. None when nothing of the path is written anywhere."""
    places = _index(text).places
    while keys:
        place = places.get(keys)
        if place is not None:
            is_item = isinstance(keys[-1], int)
            start, end = place[:2] if mark is Mark.KEY and not is_item else place[2:]
            return _span(text, start, end)
        keys = keys[:-1]
    return None


def find_offsets(text: str, keys: Keys) -> tuple[int, int] | None:
    """Where the value of exactly this key starts and ends, as offsets."""
    place = _index(text).places.get(keys)
    return None if place is None else place[2:]


def find_duplicates(text: str) -> tuple[Duplicate, ...]:
    """Every key given more than once, in the order of their second mention."""
    return tuple(_index(text).duplicates)


def locate(text: str, offset: int) -> tuple[int, int]:
    """Line and column (1-based) of an offset."""
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _span(text: str, start: int, end: int) -> Span:
    newlines = _index(text).newlines
    before = bisect.bisect_left(newlines, start)
    line, column = before + 1, start - (newlines[before - 1] if before else -1)
    newline = text.find("\n", start, end)
    if newline >= 0:
        end = newline
    return Span(line, column, max(1, end - start))


# A file with many faults is asked about many times; its included files come between.
@lru_cache(maxsize=16)
def _index(text: str) -> _Index:
    walk = _Walk(text)
    try:
        if is_json(text):
            walk.json_document()
        else:
            walk.toml_document()
    except _Lost:
        pass
    return walk.index


class _Lost(Exception):
    """The text stops making sense here; what was noted so far stands."""


_BLANKS = re.compile(r"[ \t]*")
_GAPS = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^\n,\]}#]+")
_CLOSING: Final = {"[": "]", "{": "}"}


@dataclass(slots=True)
class _Open:
    """An array or inline table being walked. `key` is the place of its current pair's key."""

    closing: str
    path: Keys
    start: int
    outer_key: tuple[int, int]
    count: int = 0


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.index = _Index([match.start() for match in re.finditer("\n", text)])
        self.array_lengths: dict[Keys, int] = {}

    def json_document(self) -> None:
        self._skip(_GAPS)
        self._value((), (self.at, self.at), ":")

    def toml_document(self) -> None:
        table: Keys = ()
        unwanted: tuple[Keys, int] | None = None  # a table given twice, and where
        while True:
            self._skip(_GAPS)
            start = self.at
            ended = start >= len(self.text)
            if unwanted is not None and (ended or self.text[start] == "["):
                self.index.duplicates.append(Duplicate(unwanted[0], unwanted[1], start))
                unwanted = None
            if ended:
                return
            if self.text[start] == "[":
                table, is_new = self._header()
                if not is_new:
                    unwanted = (table, start)
            elif unwanted is not None:
                self._pair(table, note=False)
            else:
                self._pair(table)

    def _header(self) -> tuple[Keys, bool]:
        start = self.at
        is_array = self.text.startswith("[[", start)
        self.at += 2 if is_array else 1
        parts = list(self._dotted_key())
        closing = "]]" if is_array else "]"
        if not self.text.startswith(closing, self.at):
            raise _Lost
        self.at += len(closing)
        path: Keys = ()
        for name, key_start, key_end in parts[:-1]:
            path = (*path, name)
            self.index.places.setdefault(path, (key_start, key_end, start, self.at))
            if path in self.array_lengths:
                path = (*path, self.array_lengths[path] - 1)
        name, key_start, key_end = parts[-1]
        path = (*path, name)
        place = (key_start, key_end, start, self.at)
        if is_array:
            self.index.places.setdefault(path, place)
            count = self.array_lengths.get(path, 0)
            self.array_lengths[path] = count + 1
            path = (*path, count)
        known = self.index.places.get(path)
        # A table that was only mentioned on the way to another one may still be opened.
        if known is None or self._is_mention(known, path):
            self.index.places[path] = place
            return path, True
        return path, False

    def _is_mention(self, place: tuple[int, int, int, int], path: Keys) -> bool:
        """Whether `path` was noted from a longer header: that header does not end with it."""
        _, key_end, value_start, value_end = place
        if self.text[value_start] != "[" or path in self.array_lengths:
            return False
        return self.text[key_end:value_end].lstrip(" \t").startswith(".")

    def _pair(self, table: Keys, *, note: bool = True) -> None:
        start = self.at
        path = table
        fresh: list[tuple[Keys, int, int]] = []
        taken = False
        for name, key_start, key_end in self._dotted_key():
            path = (*path, name)
            taken = path in self.index.places
            if not taken:
                fresh.append((path, key_start, key_end))
            key = (key_start, key_end)
        if not self.text.startswith("=", self.at):
            raise _Lost
        self.at += 1
        self._skip(_BLANKS)
        value_start = self.at
        if taken or not note:
            # What a second mention holds is not what the path means: noted aside and dropped.
            places, self.index.places = self.index.places, {}
            self._value(path, key, "=")
            self.index.places = places
            if note:
                self.index.duplicates.append(Duplicate(path, start, self.at))
            return
        self._value(path, key, "=")
        for parent, key_start, key_end in fresh[:-1]:
            self.index.places.setdefault(parent, (key_start, key_end, value_start, self.at))

    def _dotted_key(self) -> Iterator[tuple[str, int, int]]:
        for _ in range(DEEPEST):
            self._skip(_BLANKS)
            yield self._key()
            self._skip(_BLANKS)
            if not self.text.startswith(".", self.at):
                return
            self.at += 1
        raise _Lost

    def _key(self) -> tuple[str, int, int]:
        start = self.at
        bare = _BARE.match(self.text, start)
        if bare is not None:
            self.at = bare.end()
            return bare[0], start, self.at
        quoted = _STRING.match(self.text, start)
        if quoted is None:
            raise _Lost
        self.at = quoted.end()
        return _unquote(quoted[0]), start, self.at

    def _value(self, path: Keys, key: tuple[int, int], separator: str) -> None:
        """Walks one value of any depth and notes it and everything in it."""
        text, places = self.text, self.index.places
        stack: list[_Open] = []
        while True:
            start = self.at
            opening = text[start : start + 1]
            if opening in _CLOSING:
                if len(stack) == DEEPEST:
                    raise _Lost
                stack.append(_Open(_CLOSING[opening], path, start, key))
                self.at += 1
                places.setdefault(path, (*key, start, self.at))
            else:
                match = _STRING.match(text, start) or _SCALAR.match(text, start)
                if match is None:
                    raise _Lost
                # A date and a time may have a blank between them, so blanks are cut last.
                self.at = start + len(match[0].rstrip())
                places.setdefault(path, (*key, start, self.at))
            # Close what ends here, then step to the next item or pair.
            while stack:
                top = stack[-1]
                self._skip(_GAPS)
                if text.startswith(",", self.at):
                    self.at += 1
                    self._skip(_GAPS)
                if not text.startswith(top.closing, self.at):
                    break
                self.at += 1
                place = places[top.path]
                if place[2] == top.start:
                    places[top.path] = (*place[:3], self.at)
                stack.pop()
            if not stack:
                return
            top = stack[-1]
            if top.closing == "]":
                path, key = (*top.path, top.count), (self.at, self.at)
                top.count += 1
            else:
                path, key = self._inline_key(top.path, separator)

    def _inline_key(self, table: Keys, separator: str) -> tuple[Keys, tuple[int, int]]:
        start = self.at
        path = table
        parts = list(self._dotted_key()) if separator == "=" else [self._key()]
        self._skip(_GAPS)
        if not self.text.startswith(separator, self.at):
            raise _Lost
        self.at += 1
        self._skip(_GAPS)
        for name, key_start, key_end in parts[:-1]:
            path = (*path, name)
            self.index.places.setdefault(path, (key_start, key_end, key_start, key_end))
        name, key_start, key_end = parts[-1]
        path = (*path, name)
        if path in self.index.places:
            self.index.duplicates.append(Duplicate(path, start, start))
        return path, (key_start, key_end)

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self.text, self.at)
        if match is not None:
            self.at = match.end()


def _unquote(raw: str) -> str:
    if raw.isprintable() and "\\" not in raw:
        return raw[1:-1]
    try:
        value = tomllib.loads(f"key = {raw}")["key"]
    except tomllib.TOMLDecodeError:
        try:
            value = json.loads(raw)
        except ValueError:
            return raw[1:-1]
    return value if isinstance(value, str) else raw[1:-1]
