"""The door to time. Everything that waits or stamps asks a `Clock` it was given.

Wall time stamps records; monotonic time measures durations and timeouts, so that a
stepped clock never ends or prolongs an attempt.
"""

from __future__ import annotations

import time
from typing import Protocol


def local_time(seconds: float) -> str:
    """Seconds since the epoch as local date and time; as they are where no calendar has them."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError, TypeError):
        return str(seconds)  # a damaged record


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch: the scale of file time stamps."""

    def monotonic(self) -> float:
        """Seconds on a clock that is never set."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()
