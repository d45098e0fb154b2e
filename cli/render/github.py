"""What GitHub Actions understands: groups, annotations, the job summary, and the guard that
keeps a node's output from being taken for commands.

Does not know what is reported. See "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_ANNOTATIONS = 10
"""GitHub shows no more of one step."""


def open_group(title: str) -> str:
    return f"::group::{_data(title)}\n"


def close_group() -> str:
    return "::endgroup::\n"


def guard(token: str) -> tuple[str, str]:
    """What goes before and after text that may look like commands. `token` must be one that
    the text cannot know."""
    return f"::stop-commands::{token}\n", f"::{token}::\n"


def annotation(
    message: str,
    *,
    level: str = "error",
    title: str = "",
    file: str | None = None,
    line: int | None = None,
    column: int | None = None,
) -> str:
    """`level` is `error`, `warning` or `notice`."""
    given = {"file": file, "line": line, "col": column, "title": title or None}
    properties = ",".join(f"{k}={_property(str(v))}" for k, v in given.items() if v is not None)
    return f"::{level}{' ' if properties else ''}{properties}::{_data(message)}\n"


def fenced(lines: Iterable[str]) -> list[str]:
    """Markdown lines that show `lines` as they are, whatever backticks they hold."""
    lines = list(lines)
    longest = max((len(run) for line in lines for run in _backticks(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]


def inline(text: str) -> str:
    """Markdown for a name in a table cell or a sentence."""
    longest = max((len(run) for run in _backticks(text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def _backticks(text: str) -> list[str]:
    return "".join(c if c == "`" else " " for c in text).split()


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
