"""How the store can fail, as typed errors with one sentence and one way on each.

Pure words, so that a caller can name them without loading the database.
"""

from __future__ import annotations

from typing import Final

_ASIDE: Final = (
    "`assay cache verify` moves it to `.assay/damaged/` and keeps the run history that can "
    "still be read."
)


class StoreError(Exception):
    """The store cannot do what was asked; `str()` is one sentence, `hint` how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class StoreDamaged(StoreError):
    """A file of the store does not hold what assay wrote there."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"`{path}` is damaged: {why}", _ASIDE)
        self.path = path
        self.why = why


class StoreUnwritable(StoreError):
    """The store cannot be written; a run of sealed nodes can go on unrecorded."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"`{path}` cannot be written: {why}")
        self.path = path
        self.why = why


class StoreUnreadable(StoreUnwritable):
    """The store cannot even be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.args = (f"`{path}` cannot be read: {why}",)


class StoreFull(StoreUnwritable):
    """The disk (or quota, or file size limit) that holds the store is full."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the disk is full")
        self.hint = "Free space on that disk, or make some with `assay cache gc --max-size SIZE`."


class StoreBusy(StoreError):
    """Another process kept the write lock for longer than anyone should."""

    def __init__(self, path: str, seconds: float, holder: int | None) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(f"`{path}` has been held by {who} for {seconds:.0f}s")
        self.hint = f"See what it does: `ps -fp {holder}`." if holder else None
        self.holder = holder


class StoreNewer(StoreError):
    """The store was written by a newer assay."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"`{path}` has schema version {found}, and this assay knows versions up to {known}",
            "Use the newer assay that wrote it: `pip install --upgrade assay`.",
        )
        self.found = found
        self.known = known
