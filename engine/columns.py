"""How values stand in columns: texts of any bytes, and JSON.

Pure. File names need not be UTF-8 and arrive as surrogate escapes, which SQLite refuses as
text: those few stand as a BLOB of their bytes, which compares as the name does.
"""

from __future__ import annotations

import json
from typing import Any, Final

_encoder: Final = json.JSONEncoder(
    ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
)


def to_column(text: str) -> str | bytes:
    """What to bind for a text that may hold surrogate escapes."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def from_column(value: str | bytes) -> str:
    """The text that `to_column` bound."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def to_json(value: Any) -> str:
    """Compact ASCII JSON with sorted keys; tuples become arrays."""
    return _encoder.encode(value)


def from_json(text: str) -> Any:
    """What `to_json` wrote. Raises ValueError for anything that is not JSON."""
    return json.loads(text)
