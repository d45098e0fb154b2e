"""The commands, one file each: `perform(call)` gives the exit code."""
