"""What is wrong with a plan, as values: collected in one pass, shown by the caller.

Does not know how a diagnostic is printed nor where in the file a key stands;
`assay.plans.positions` finds that when it is needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from assay.plans.model import Origin


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


class Mark(StrEnum):
    """Which side of a `key = value` pair the caret points at."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that matters: `wanted by release, plan.toml:31:1`."""

    text: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: what (one sentence, the two facts that disagree), where, how to mend it.

    `line` and `column` (1-based) are set only where the parser itself gave them
    (syntax errors); otherwise `origin` is looked up.
    """

    message: str
    origin: Origin | None = None
    mark: Mark = Mark.VALUE
    hint: str | None = None
    notes: tuple[Note, ...] = ()
    severity: Severity = Severity.ERROR
    line: int | None = None
    column: int | None = None


class PlanError(Exception):
    """A plan that cannot be run; carries every diagnostic of the pass that failed.

    `sources` maps each plan file named by an origin to its text, so that the reader
    can be shown the line even for standard input.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], sources: dict[str, str]) -> None:
        self.diagnostics = tuple(diagnostics)
        self.sources = sources
        super().__init__("; ".join(d.message for d in self.diagnostics))


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word a misspelt one was probably meant to be, or None."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def shown(text: str) -> str:
    """A name or path as a message shows it: on one line, what cannot be printed escaped,
    bytes that are no UTF-8 as `\\xNN`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
