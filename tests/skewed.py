"""A time of day that assay goes by and that a test sets, also while assay runs.

The monotonic clock stays the machine's, as it does when somebody sets the time of day. faketime
cannot do that: it either moves both or lets no program sleep any more. So what Python calls to
ask for the time of day is replaced, in assay alone: its nodes see the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DAY_SECONDS = 86_400

PROGRAM = """\
import time

_now_ns = time.time_ns


def _skewed_ns():
    with open({file!r}) as file:
        return _now_ns() + int(file.read()) * 10**9


time.time_ns = _skewed_ns
time.time = lambda: _skewed_ns() / 1e9
"""


class SkewedClock:
    """Whoever has `env` in its environment goes by it. It begins at the machine's time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "seconds"
        self.set(0)
        # Python imports a module of this name before anything else.
        (folder / "sitecustomize.py").write_text(PROGRAM.format(file=str(self._file)))
        self.env: Mapping[str, str] = {"PYTHONPATH": str(folder)}

    def set(self, ahead_seconds: int) -> None:
        """From now on it is so far ahead of the machine's."""
        new = self._file.with_suffix(".new")
        new.write_text(str(ahead_seconds))
        os.replace(new, self._file)
