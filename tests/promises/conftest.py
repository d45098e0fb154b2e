"""Fixtures of the end-to-end tests."""

from counted import counted
from effect_sweep import undisturbed_effects, undisturbed_run, undisturbed_trouble
from held import held, hostile
from probe import probes
from running import begin
from sweep import system_tmp, undisturbed
from terminal import on_terminal

__all__ = [
    "begin",
    "counted",
    "held",
    "hostile",
    "on_terminal",
    "probes",
    "system_tmp",
    "undisturbed",
    "undisturbed_effects",
    "undisturbed_run",
    "undisturbed_trouble",
]
