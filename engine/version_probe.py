"""The door to a tool's own word: runs its version command and returns what it printed.

Knows nothing of keys; a command that cannot be run or fails says so in its answer, which
then differs from the answer of one that works.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Final

PATIENCE_SECONDS: Final = 60


def print_version(command: tuple[str, ...], cwd: str, environ: Mapping[str, str]) -> str:
    """What `command` prints on stdout and stderr together, stripped of outer whitespace.

    It stays in assay's own session: a child in another one would be taken for an orphan.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"(no answer within {PATIENCE_SECONDS}s)"
    except OSError as error:
        return f"(cannot be run: {error.strerror})"
    text = done.stdout.decode("utf-8", "replace").strip()
    return text if done.returncode == 0 else f"{text} (exit {done.returncode})".strip()
