"""Who uses this command, in words."""

from __future__ import annotations

import os
import pwd


def describe_me() -> str:
    """`ann on build-1 (pid 4242)`: for records that outlive this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        user = str(os.getuid())
    return f"{user} on {os.uname().nodename} (pid {os.getpid()})"
