"""What a caller asks of a run, and how it asks it to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from assay.engine.certificate import Basis


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the caller asked of a run. `jobs` is resolved; `environ` the caller's own."""

    environ: Mapping[str, str]
    jobs: int = 1
    agents: int | None = None
    fail_fast: bool = False
    fresh: bool = False
    strict: bool = False
    new: bool = False
    """What earlier runs of the plan left open is not asked for."""
    deadline_seconds: float | None = None
    """How long after its start the run cancels itself."""
    waited_seconds: float = 0.0
    """How much of that had passed before the run was this process's."""
    targets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    basis: Basis | None = None
    """Given: a run in which nothing is left to do certifies it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run is to stop: a signal by number, or else `text`, one clause."""

    signal: int | None = None
    text: str = "cancelled"


class Cancellation:
    """How a run is asked to stop: once to cancel, twice to kill at once.

    `request` may be called from a signal handler of the coordinator's thread and from
    other threads.
    """

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.wake: Callable[[], None] = _do_nothing

    def request(self, signal: int | None = None) -> None:
        self.causes.append(Cause(signal))
        self.wake()

    def request_once(self, text: str) -> None:
        """Unless it was asked to stop already: what is no person in a hurry kills nothing."""
        if not self.causes:
            self.causes.append(Cause(None, text))
            self.wake()


def _do_nothing() -> None:
    return None
