"""Parts of sentences about a plan file: how keys and values are named in messages.

Does not know what is wrong with them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Final

from assay.plans.diagnostics import shown

Keys = tuple[str | int, ...]

LONGEST_SHOWN: Final = 60

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def describe(value: object) -> str:
    """A value as a message names it: itself when it is short, else what it is."""
    if isinstance(value, str):
        text = value if len(value) <= LONGEST_SHOWN else value[: LONGEST_SHOWN - 1] + "…"
        return f'"{shown(text)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else "a huge integer"
    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else str(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def dotted(keys: Sequence[str | int]) -> str:
    """`env.A`, `reads[2].path`, `env."A B"`."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            name = key if _BARE_KEY.fullmatch(key) else f'"{shown(key)}"'
            text += f".{name}" if text else name
    return text


def subject(keys: Keys, node: str | None = None) -> str:
    """The declaration at a key path as the start of a sentence. `node` is the node's full
    name where that differs from the one in the file."""
    if keys[:1] == ("nodes",) and len(keys) > 1:
        name = shown(node if node is not None else str(keys[1]))
        return f"`{dotted(keys[2:])}` of node `{name}`" if len(keys) > 2 else f"Node `{name}`"
    if keys[:1] == ("defaults",) and len(keys) > 1:
        return f"`{dotted(keys[1:])}` in `[defaults]`"
    return f"`{dotted(keys)}`" if keys else "The plan"
