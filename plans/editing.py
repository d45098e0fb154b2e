"""Changing what a node declares in the text of its plan file, with all else left as it is.

Every edit is checked by reading the new text: what was to change has, and nothing else. Does not
know what is worth declaring.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from assay.plans.positions import find_offsets, is_json

_BEFORE: Final = ("run", "reads", "writes", "removes", "tools")
"""Keys that a new one is put behind."""


class CannotEdit(Exception):
    """The text is not of a shape that can be edited safely; a clause says why."""


def set_lists(text: str, node: str, lists: Mapping[str, Sequence[str]]) -> str:
    """The text with these keys of the node, as it is named in that very file, being these lists.
    Raises CannotEdit."""
    before = _parse(text)
    try:
        own = dict(before["nodes"][node])
    except (KeyError, TypeError):
        raise CannotEdit(f"`{node}` is not declared in it") from None
    edited = text
    for key, values in lists.items():
        if own.get(key) != list(values):
            edited = _set(edited, ("nodes", node), key, list(values))
    wanted = {**before, "nodes": {**before["nodes"], node: {**own, **_plain(lists)}}}
    try:
        is_right = _parse(edited) == wanted
    except ValueError:
        is_right = False
    if not is_right:
        raise CannotEdit(f"the way `{node}` is written there cannot be changed by a program")
    return edited


def _set(text: str, table: tuple[str, ...], key: str, values: list[str]) -> str:
    written = "[" + ", ".join(json.dumps(value, ensure_ascii=False) for value in values) + "]"
    found = find_offsets(text, (*table, key))
    if found is not None:
        start, end = found
        return text[:start] + written + text[end:]
    ends = [at for name in _BEFORE if (at := _end(text, table, name)) is not None]
    if not ends:
        raise CannotEdit(f"`{table[-1]}` has no command there")
    anchor = max(ends)
    if is_json(text):
        return f"{text[:anchor]}, {json.dumps(key)}: {written}{text[anchor:]}"
    own = find_offsets(text, table)
    if own is not None and text[own[0]] == "{":
        return f"{text[:anchor]}, {key} = {written}{text[anchor:]}"
    line_end = text.find("\n", anchor)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{key} = {written}{text[line_end:]}"


def _end(text: str, table: tuple[str, ...], key: str) -> int | None:
    found = find_offsets(text, (*table, key))
    return None if found is None else found[1]


def _parse(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text) if is_json(text) else tomllib.loads(text)
    return parsed


def _plain(lists: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {key: list(values) for key, values in lists.items()}
