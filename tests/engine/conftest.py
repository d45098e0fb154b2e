"""What tests of the engine share."""

from __future__ import annotations

from probe import probes

__all__ = ["probes"]
