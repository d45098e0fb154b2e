"""Fixtures of the end-to-end tests."""

from counted import counted
from probe import probes

__all__ = ["counted", "probes"]
