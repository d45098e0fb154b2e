"""Durations as people write them: `90s`, `1h30m`, `500ms`.

Does not know which key a duration belongs to.
"""

from __future__ import annotations

import re
from typing import Final

UNITS_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
LONGEST_SECONDS: Final = 100 * 365 * UNITS_SECONDS["d"]
"""Beyond it operating systems cannot keep the appointment."""

FORM: Final = 'a duration such as "90s", "5m" or "1h30m"'
POSITIVE_FORM: Final = "a duration longer than zero"

_DURATION = re.compile(
    "".join(rf"(?:(?P<{unit}>[0-9]{{1,15}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in UNITS_SECONDS)
)


class DurationError(ValueError):
    """A text that is no duration; the message completes "must be …"."""


def parse_duration(text: str) -> float:
    """Seconds. Units from large to small, each at most once. Raises DurationError."""
    match = _DURATION.fullmatch(text) if text.isascii() else None
    if match is None or not text:
        raise DurationError(FORM)
    seconds = sum(
        float(number) * UNITS_SECONDS[unit]
        for unit, number in match.groupdict().items()
        if number is not None
    )
    if seconds > LONGEST_SECONDS:
        raise DurationError("a duration of at most 100 years")
    return seconds
