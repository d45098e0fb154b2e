"""The door to who this process is: host, boot, pid and when it started."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a run. `pid_start` is the process's start time in clock ticks since boot
    (0 when the kernel does not tell), so that a reused pid is not taken for it."""

    host: str
    boot: str
    pid: int
    pid_start: int
    nonce: str


def boot_id() -> str:
    """The kernel's id of this boot; equal in all containers of one machine. Where there
    is no /proc, a constant."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode("ascii").strip()
    except OSError:
        return "unknown"


def this_host() -> str:
    """The name of this machine, or of this container."""
    return os.uname().nodename


def start_of(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold spaces and parentheses itself.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def this_owner() -> Owner:
    """This process, with a fresh nonce."""
    pid = os.getpid()
    return Owner(this_host(), boot_id(), pid, start_of(pid) or 0, os.urandom(8).hex())
