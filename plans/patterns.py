"""Glob patterns as sequences of components: matching names, and whether two patterns
can name one path.

A pattern is split at `/`. A component is a literal name, a mixture of `*`, `?`, `[...]`
and `[!...]`, or ANY_DEPTH (`**`: zero or more folders). Does not know entries, plans or
the disk.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

ANY_DEPTH: Final = "**"
ANY_NAME: Final = "*"

WILDCARDS: Final = frozenset("*?[")

Parts = tuple[str, ...]
"""The components of one pattern. A pattern ending in `**` is written (..., "**", "*"):
the last component of a path is never consumed by `**`, so `src/**` does not name `src`."""

MAX_STATES: Final = 20_000
"""Where `find_common_path_without` gives up deciding; patterns people write need dozens."""


class PatternError(ValueError):
    """A component that cannot be read as a pattern; the message is one clause."""


class _TooManyStates(Exception):
    """A search that would not end in reasonable time."""


# A token is a literal character, a class, or one of the two wildcards.
_STAR: Final = "star"
_ONE: Final = "one"


class _Class:
    """`[abc]`, `[a-z]`, `[!x]`: the ranges it lists, and whether it is negated."""

    __slots__ = ("negated", "ranges")

    def __init__(self, ranges: tuple[tuple[str, str], ...], negated: bool) -> None:
        self.ranges = ranges
        self.negated = negated

    def holds(self, character: str) -> bool:
        listed = any(low <= character <= high for low, high in self.ranges)
        return listed is not self.negated


class _Literal:
    __slots__ = ("character",)

    def __init__(self, character: str) -> None:
        self.character = character


_Token = _Literal | _Class | str


@cache
def _tokens(component: str) -> tuple[_Token, ...]:
    """Raises PatternError for a class that is not closed or holds a reversed range."""
    found: list[_Token] = []
    at = 0
    while at < len(component):
        character = component[at]
        at += 1
        if character == "*":
            if not found or found[-1] is not _STAR:
                found.append(_STAR)
        elif character == "?":
            found.append(_ONE)
        elif character == "[":
            token, at = _read_class(component, at)
            found.append(token)
        else:
            found.append(_Literal(character))
    return tuple(found)


def _read_class(component: str, at: int) -> tuple[_Token, int]:
    negated = component.startswith("!", at)
    at += negated
    # A `]` that comes first belongs to the class.
    end = component.find("]", at + 1)
    if end < 0:
        raise PatternError(f"the `[` in `{component}` is never closed")
    body = component[at:end]
    ranges: list[tuple[str, str]] = []
    index = 0
    while index < len(body):
        if index + 2 < len(body) and body[index + 1] == "-":
            low, high = body[index], body[index + 2]
            if low > high:
                raise PatternError(f"the range `{low}-{high}` in `{component}` is empty")
            index += 3
        else:
            low = high = body[index]
            index += 1
        ranges.append((low, high))
    if not negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _Literal(ranges[0][0]), end + 1
    return _Class(tuple(ranges), negated), end + 1


def literal_of(component: str) -> str | None:
    """The only name `component` can match, or None when it has wildcards. A class of one
    character (`[[]`) stands for that character. Raises PatternError."""
    if component == ANY_DEPTH:
        return None
    characters = []
    for token in _tokens(component):
        if not isinstance(token, _Literal):
            return None
        characters.append(token.character)
    return "".join(characters)


def escape(name: str) -> str:
    """A pattern that matches exactly `name`."""
    return "".join(f"[{c}]" if c in WILDCARDS else c for c in name)


@cache
def parts_of(pattern: str) -> Parts:
    """The components of a normalised pattern."""
    found: list[str] = []
    for component in pattern.split("/"):
        if component != ANY_DEPTH or not found or found[-1] != ANY_DEPTH:
            found.append(component)
    if found[-1] == ANY_DEPTH:
        found.append(ANY_NAME)
    return tuple(found)


Matcher = Callable[[str], object]


@cache
def component_matcher(component: str) -> Matcher:
    """A test of one name against one component; truthy means it matches. Made once for
    each different component text, whatever the number of nodes."""
    tokens = _tokens(component)
    literal = literal_of(component)
    if literal is not None:
        return literal.__eq__
    first, last = tokens[0], tokens[-1]
    if tokens == (_STAR,):
        return _is_name
    if first is _STAR and all(isinstance(t, _Literal) for t in tokens[1:]):
        suffix = _text(tokens[1:])
        return lambda name: name.endswith(suffix)
    if last is _STAR and all(isinstance(t, _Literal) for t in tokens[:-1]):
        prefix = _text(tokens[:-1])
        return lambda name: name.startswith(prefix)
    return re.compile("".join(map(_regex, tokens)), re.DOTALL).fullmatch


def _is_name(name: str) -> bool:
    return name != ""


def _text(tokens: Iterable[_Token]) -> str:
    return "".join(t.character for t in tokens if isinstance(t, _Literal))


def _regex(token: _Token) -> str:
    if isinstance(token, _Literal):
        return re.escape(token.character)
    if isinstance(token, _Class):
        ranges = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in token.ranges)
        return f"[{'^' if token.negated else ''}{ranges}]"
    return ".*" if token is _STAR else "."


def has_match(parts: Parts, names: Sequence[str]) -> bool:
    """Whether the pattern matches the path made of `names`."""
    positions = start(parts)
    for name in names:
        positions = advance(parts, positions, name)
        if not positions:
            return False
    return len(parts) in positions


Positions = tuple[int, ...]
"""Where in a pattern a walk down a path may stand: ascending indices into its parts,
`len(parts)` when the path so far is matched as a whole."""


def start(parts: Parts) -> Positions:
    return (0, 1) if parts and parts[0] == ANY_DEPTH else (0,)


def advance(parts: Parts, positions: Positions, name: str) -> Positions:
    """The positions after one more component; empty when nothing below can match."""
    reached: list[int] = []
    last = -1
    end = len(parts)
    for position in positions:
        if position == end:
            continue
        component = parts[position]
        if component != ANY_DEPTH:
            if not component_matcher(component)(name):
                continue
            position += 1
        if position > last:
            reached.append(position)
            last = position
        # `**` may match no folder, so what follows it is reached too.
        if position < end and parts[position] == ANY_DEPTH and position + 1 > last:
            last = position + 1
            reached.append(last)
    return tuple(reached)


def covers_everything_below(parts: Parts, positions: Positions) -> bool:
    """Whether every path below a folder reached with `positions` matches."""
    return len(parts) - 2 in positions and parts[-2:] == (ANY_DEPTH, ANY_NAME)


def find_common_path(a: Parts, b: Parts) -> str | None:
    """A shortest path that both patterns match, or None when there is none.

    Breadth-first search of the product of the two patterns, component by component;
    polynomial in their lengths and exact, but for a component that could only be `.` or
    `..`, which counts as a name.
    """
    goal = (len(a), len(b))
    came: dict[tuple[int, int], tuple[tuple[int, int], str] | None] = {(0, 0): None}
    queue = deque([(0, 0)])
    while queue:
        state = queue.popleft()
        if state == goal:
            return _trail(came, state)
        for step, name in _product_steps(a, b, *state):
            if step not in came:
                came[step] = (state, name)
                # A step without a name is free, so it must be looked at first.
                queue.append(step) if name else queue.appendleft(step)
    return None


def _product_steps(a: Parts, b: Parts, i: int, j: int) -> list[tuple[tuple[int, int], str]]:
    steps: list[tuple[tuple[int, int], str]] = []
    deep_a = i < len(a) and a[i] == ANY_DEPTH
    deep_b = j < len(b) and b[j] == ANY_DEPTH
    if deep_a:
        steps.append(((i + 1, j), ""))
    if deep_b:
        steps.append(((i, j + 1), ""))
    if i == len(a) or j == len(b) or (deep_a and deep_b):
        return steps
    name = common_name(ANY_NAME if deep_a else a[i], ANY_NAME if deep_b else b[j])
    if name is not None:
        steps.append(((i + (not deep_a), j + (not deep_b)), name))
    return steps


def _trail(
    came: dict[tuple[int, int], tuple[tuple[int, int], str] | None], state: tuple[int, int]
) -> str:
    names: list[str] = []
    before = came[state]
    while before is not None:
        state, name = before
        if name:
            names.append(name)
        before = came[state]
    return "/".join(reversed(names))


@lru_cache(maxsize=1 << 16)
def common_name(a: str, b: str) -> str | None:
    """A shortest name that both components match, or None."""
    literal_a, literal_b = literal_of(a), literal_of(b)
    if literal_a is not None:
        return literal_a if component_matcher(b)(literal_a) else None
    if literal_b is not None:
        return literal_b if component_matcher(a)(literal_b) else None
    found = _search_names((a, b), wanted=2)
    return found[0][0] if found else None


def find_common_path_without(
    a: Parts, b: Parts, excluded: Sequence[Parts], max_states: int = MAX_STATES
) -> str | None:
    """A path that `a` and `b` match and no pattern of `excluded` does, or None.

    The product is made deterministic as far as it is reached, which `excluded` requires.
    Beyond `max_states` the answer errs on the side of a common path and is one that `a`
    and `b` share.
    """
    patterns = (a, b, *excluded)
    first = tuple(start(p) for p in patterns)
    seen = {first}
    queue: deque[tuple[tuple[Positions, ...], tuple[str, ...]]] = deque([(first, ())])
    while queue:
        state, names = queue.popleft()
        accepted = [len(p) in positions for p, positions in zip(patterns, state, strict=True)]
        if accepted[0] and accepted[1] and not any(accepted[2:]):
            return "/".join(names)
        if len(seen) > max_states:
            return find_common_path(a, b)
        try:
            names_ahead = _distinct_names(patterns, state)
        except _TooManyStates:
            return find_common_path(a, b)
        for name in names_ahead:
            step = tuple(advance(p, s, name) for p, s in zip(patterns, state, strict=True))
            if step[0] and step[1] and step not in seen:
                seen.add(step)
                queue.append((step, (*names, name)))
    return None


def _distinct_names(patterns: Sequence[Parts], state: Sequence[Positions]) -> list[str]:
    """One name for every way the components at `state` can tell names apart."""
    components = {ANY_NAME}
    for parts, positions in zip(patterns, state, strict=True):
        components.update(parts[p] for p in positions if p < len(parts) and parts[p] != ANY_DEPTH)
    return [name for name, _ in _search_names(tuple(sorted(components)), wanted=0)]


@lru_cache(maxsize=1 << 14)
def _search_names(components: tuple[str, ...], wanted: int) -> tuple[tuple[str, int], ...]:
    """Shortest names by which of `components` they match, as (name, bit mask).

    With `wanted` components (then two), the search keeps pairs of single positions, which
    is polynomial, and ends at the first name that all of them match. With 0 it keeps sets of
    positions and finds every combination there is. Raises _TooManyStates.
    """
    tokens = tuple(_tokens(c) for c in components)
    alphabet = _alphabet(tokens)
    if wanted:
        return _search_pairs(tokens[0], tokens[1], alphabet)
    first = tuple(_name_closed(t, frozenset((0,))) for t in tokens)
    found: dict[int, str] = {}
    # The empty name is no name, so coming back to where it stands is news.
    seen: set[tuple[frozenset[int], ...]] = set()
    queue = deque([(first, "")])
    while queue:
        state, name = queue.popleft()
        if len(seen) > MAX_STATES:
            raise _TooManyStates
        mask = sum(
            1 << n for n, (t, s) in enumerate(zip(tokens, state, strict=True)) if len(t) in s
        )
        if name:
            found.setdefault(mask, name)
        for character in alphabet:
            step = tuple(_name_step(t, s, character) for t, s in zip(tokens, state, strict=True))
            if any(step) and step not in seen:
                seen.add(step)
                queue.append((step, name + character))
    return tuple((name, mask) for mask, name in found.items())


def _search_pairs(
    a: tuple[_Token, ...], b: tuple[_Token, ...], alphabet: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    seen: set[tuple[int, int]] = set()
    queue: deque[tuple[int, int, str]] = deque([(0, 0, "")])
    while queue:
        i, j, name = queue.popleft()
        for p in _name_closed(a, frozenset((i,))):
            for q in _name_closed(b, frozenset((j,))):
                if (p, q) == (len(a), len(b)) and name:
                    return ((name, 3),)
                for character in alphabet:
                    for x in _name_step(a, frozenset((p,)), character, close=False):
                        for y in _name_step(b, frozenset((q,)), character, close=False):
                            if (x, y) not in seen:
                                seen.add((x, y))
                                queue.append((x, y, name + character))
    return ()


def _name_closed(tokens: tuple[_Token, ...], positions: frozenset[int]) -> frozenset[int]:
    found = set(positions)
    found.update(p + 1 for p in positions if p < len(tokens) and tokens[p] is _STAR)
    return frozenset(found)


def _name_step(
    tokens: tuple[_Token, ...], positions: frozenset[int], character: str, close: bool = True
) -> frozenset[int]:
    reached: set[int] = set()
    for position in positions:
        if position == len(tokens):
            continue
        token = tokens[position]
        if token is _STAR:
            reached.add(position)
        elif _takes(token, character):
            reached.add(position + 1)
    return _name_closed(tokens, frozenset(reached)) if close else frozenset(reached)


def _takes(token: _Token, character: str) -> bool:
    if isinstance(token, _Literal):
        return token.character == character
    return not isinstance(token, _Class) or token.holds(character)


def _alphabet(patterns: Sequence[tuple[_Token, ...]]) -> tuple[str, ...]:
    """One character for every set of characters that the patterns cannot tell apart."""
    bounds = {0, 0x110000}
    for tokens in patterns:
        for token in tokens:
            if isinstance(token, _Literal):
                bounds.update((ord(token.character), ord(token.character) + 1))
            elif isinstance(token, _Class):
                for low, high in token.ranges:
                    bounds.update((ord(low), ord(high) + 1))
    # NUL and `/` are in no name.
    bounds.update((1, ord("/"), ord("/") + 1))
    edges = sorted(bounds)
    chosen = []
    for first, after in pairwise(edges):
        if first not in (0, ord("/")):
            chosen.append(_readable(first, after))
    return tuple(sorted(chosen, key=_ugliness))


def _readable(low: int, after: int) -> str:
    for character in "xyz":
        if low <= ord(character) < after:
            return character
    for first, last in (("a", "z"), ("A", "Z"), ("0", "9"), ("!", "~"), ("\xa1", "\ud7ff")):
        candidate = max(low, ord(first))
        if candidate < after and candidate <= ord(last):
            return chr(candidate)
    return chr(low)


def _ugliness(character: str) -> tuple[bool, bool, str]:
    return (not character.isalnum(), not character.isascii(), character)
