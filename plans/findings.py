"""The diagnostics of one pass over a plan, collected to be reported in one go.

Does not know how they are found or shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.plans.diagnostics import Diagnostic, Mark, Note, PlanError, Severity
from assay.plans.model import Origin


class Findings:
    """Collects diagnostics; gives them in the order of the nodes they concern.

    What is wrong with one line of a plan is said once, even where a `matrix` or a
    `foreach` made many nodes of that line: `about` tells such findings apart.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Origin | None, str], tuple[int, Diagnostic]] = {}

    def add(
        self,
        place: int,
        message: str,
        origin: Origin | None,
        *,
        about: str | None = None,
        hint: str | None = None,
        notes: Sequence[Note] = (),
        mark: Mark = Mark.VALUE,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """`place` is the node's index, or -1 for what concerns the whole plan."""
        diagnostic = Diagnostic(message, origin, mark, hint, tuple(notes), severity)
        key = (origin, message if about is None else about)
        self._found.setdefault(key, (place, diagnostic))

    def has(self, origin: Origin | None, about: str) -> bool:
        return (origin, about) in self._found

    def diagnostics(self, severity: Severity) -> tuple[Diagnostic, ...]:
        found = [f for f in self._found.values() if f[1].severity is severity]
        return tuple(diagnostic for _, diagnostic in sorted(found, key=lambda f: f[0]))

    def raise_errors(self, sources: dict[str, str]) -> None:
        """Raises PlanError when there are errors; it carries the warnings too."""
        errors = self.diagnostics(Severity.ERROR)
        if errors:
            raise PlanError((*errors, *self.diagnostics(Severity.WARNING)), sources)
