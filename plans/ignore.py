"""gitignore patterns as plan files declare them: which can be understood, and the patterns
of an included file seen from the workspace root.

Matching is done in `assay.plans.folders`.
"""

from __future__ import annotations

import re

from assay.plans.model import RelPath

# Nothing but a `!`, or a backslash with nothing to escape before a slash or the end.
_FAULTY = re.compile(r"!?\s*|.*(?<!\\)(?:\\\\)*\\(?:/.*|\s{2,}|)", re.DOTALL)
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")


def is_ignore_pattern(pattern: str) -> bool:
    """Whether `pattern` says something; a comment or a blank does not."""
    return not pattern.startswith("#") and _FAULTY.fullmatch(pattern) is None


def rebase_ignore_pattern(pattern: str, folder: RelPath) -> str:
    """The pattern for the workspace root that means what `pattern` means in `folder`.

    A slash before its end anchors a pattern to its folder; others apply at any depth, also
    to what a file's nodes read outside its folder, so they stay as they are.
    """
    body = pattern.removeprefix("!")
    if folder == "." or "/" not in body.rstrip().rstrip("/"):
        return pattern
    negation = pattern[: len(pattern) - len(body)]
    escaped = _SPECIAL.sub(r"\\\1", folder)
    return f"{negation}/{escaped}/{body.lstrip('/')}"
