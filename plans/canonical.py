"""Canonical JSON (RFC 8785) and domain-separated BLAKE3 digests of it.

Does not know what is being digested; callers name a domain, so that equal bytes of
two kinds never share a digest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from blake3 import blake3

from assay.plans.model import Digest

JsonValue = Mapping[str, "JsonValue"] | Sequence["JsonValue"] | str | int | float | bool | None

MAX_EXACT_INTEGER = 2**53 - 1
"""Beyond it RFC 8785 numbers are not exact; larger integers are digested as written."""

_PLAIN_TYPES: Final = frozenset({str, int, bool, type(None)})

_encoder = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
)


def canonical_json(value: JsonValue, *, has_floats: bool = True) -> bytes:
    """The RFC 8785 form of `value` as UTF-8. A caller that knows `value` to hold no floats
    says so, which spares looking for them.

    File names that are not UTF-8 arrive as surrogate escapes and leave as their own
    bytes, so that different names never share a form. Raises ValueError for NaN and
    infinities.
    """
    try:
        text = "" if has_floats else _encoder.encode(value)
        # Keys sort differently only beyond the Basic Multilingual Plane.
        if not text or not text.isascii():
            text = _encoder.encode(value) if is_plain(value) else _write(value)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    return text.encode("utf-8", "surrogateescape")


def digest_of(domain: str, value: JsonValue) -> Digest:
    """BLAKE3 over the domain's name, a NUL byte and the canonical JSON of `value`."""
    return Digest(blake3(domain.encode() + b"\0" + canonical_json(value)).hexdigest())


def is_plain(value: JsonValue) -> bool:
    """Whether the standard encoder's output for `value` is already canonical: no
    floats, and no key outside the Basic Multilingual Plane (its sort differs there)."""
    # A loop with exact types: this is asked of every node's declaration.
    open_ends: list[Any] = [value]
    while open_ends:
        item = open_ends.pop()
        kind = type(item)
        if kind is dict:
            if not all(map(str.isascii, item)):
                return False
            open_ends.extend(item.values())
        elif kind is list or kind is tuple:
            open_ends.extend(item)
        elif kind not in _PLAIN_TYPES:
            return False
    return True


def _write(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        keys = sorted(value, key=_utf16)
        return "{" + ",".join(f"{_encoder.encode(k)}:{_write(value[k])}" for k in keys) + "}"
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_write, value)) + "]"
    return _encoder.encode(value)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _write_float(number: float) -> str:
    """ECMAScript's Number::toString, which RFC 8785 prescribes. Python's repr yields the
    same shortest digits; only the notation differs."""
    if not math.isfinite(number):
        raise ValueError(f"{number} has no JSON form")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    point = len(whole) + int(exponent or "0")
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = "." + digits[1:] if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"
