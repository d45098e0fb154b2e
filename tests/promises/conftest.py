"""Fixtures of the end-to-end tests."""

from counted import counted
from probe import probes
from running import begin

__all__ = ["begin", "counted", "probes"]
