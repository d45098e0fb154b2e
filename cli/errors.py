"""Exit codes, and the one mapping from expected errors to words and exit codes.

Does not know how a message is coloured or wrapped. Engine modules are looked up only
when one of their errors has been raised, so that naming them here loads nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from assay.cli.render.diagnostics import Sources
    from assay.engine.ownership import RunTaken
    from assay.plans.diagnostics import Diagnostic


class ExitCode(IntEnum):
    """What `assay` ends with. An interrupted run ends with 128 + the signal's number."""

    DONE = 0
    NODE_FAILED = 1
    USAGE = 2
    SUSPENDED = 3
    OPERATOR = 4
    """Ambiguous or quarantined: a person must decide."""
    HOST = 5
    """The store, the host or assay itself failed."""
    INTERRUPTED = 130
    TERMINATED = 143


class UsageError(Exception):
    """A command line that cannot be carried out: one sentence, and how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HostError(Exception):
    """The machine does not give what a command needs: one sentence, and how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Answered(Exception):
    """Not a failure: what was asked is answered by `text` alone, before any command."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Interrupted(Exception):
    """A signal ended a wait; `what` had come of it by then."""

    def __init__(self, signal: int, what: str = "before anything was started") -> None:
        super().__init__(f"Interrupted {what}")
        self.signal = signal


class DeadlinePassed(Exception):
    """The time a run was given has passed before anything had begun."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The deadline of {seconds:g}s has passed before anything was started")


class RefusedPlan(Exception):
    """A plan that cannot be run, with all that is needed to show why."""

    def __init__(self, diagnostics: Sequence[Diagnostic], sources: Sources) -> None:
        super().__init__("; ".join(each.message for each in diagnostics))
        self.diagnostics = tuple(diagnostics)
        self.sources = sources


class Complaint(NamedTuple):
    """An error in words. `label` says whose fault: `error`, `environment`, `internal error`."""

    label: str
    message: str
    hint: str | None
    code: int


def find_complaint(error: BaseException) -> Complaint | None:
    """Words and exit code for every error that is expected; None for a broken invariant."""
    match error:
        case UsageError():
            return Complaint("error", error.message, error.hint, ExitCode.USAGE)
        case HostError():
            return Complaint("environment", error.message, error.hint, ExitCode.HOST)
        case Interrupted():
            return Complaint("error", str(error), None, 128 + error.signal)
        case DeadlinePassed():
            return Complaint("error", str(error), None, ExitCode.TERMINATED)
        case KeyboardInterrupt():
            return Complaint("error", "Interrupted", None, ExitCode.INTERRUPTED)
        case ImportError() if not (error.name or "").startswith("assay"):
            # A file that cannot be read, of Python or of what assay is built on.
            hint = "Install assay again, into a fresh virtual environment, if this persists"
            return Complaint("environment", str(error), hint, ExitCode.HOST)
        case MemoryError():
            return Complaint("environment", "Out of memory", None, ExitCode.HOST)
        case _:
            pass
    if isinstance(error, OSError):
        where = f" (`{error.filename}`)" if error.filename else ""
        return Complaint("environment", f"{error.strerror or error}{where}", None, ExitCode.HOST)
    from assay.engine.store_errors import StoreError

    if isinstance(error, StoreError):
        return Complaint("environment", str(error), error.hint, ExitCode.HOST)
    from assay.engine.filesystem import FilesystemError
    from assay.engine.ownership import RunTaken
    from assay.engine.runs import AmbiguousPrefix, LostFence, NoSuchRun

    if isinstance(error, FilesystemError):
        return Complaint("environment", _sentence(error), None, ExitCode.HOST)
    if isinstance(error, LostFence):
        hint = f"`assay show {error.run}` tells who has it"
        return Complaint("environment", _sentence(error), hint, ExitCode.HOST)
    if isinstance(error, RunTaken):
        return _describe_loss(error)
    if isinstance(error, NoSuchRun):
        return Complaint("error", _sentence(error), "`assay runs` lists them", ExitCode.USAGE)
    if isinstance(error, AmbiguousPrefix):
        return Complaint("error", _sentence(error), "Give more of the id", ExitCode.USAGE)
    return _find_operator_complaint(error)


def _find_operator_complaint(error: BaseException) -> Complaint | None:
    """Errors of beginning a run, and of going on with, settling and taking back what earlier ones
    did."""
    from assay.engine.intentions import may_be_done, may_be_not_done
    from assay.engine.opening import BoundaryUnavailable, UnsettledEffects, VanishedRuns
    from assay.engine.resumption import IsAround, OwnerLives
    from assay.engine.rewinding import CannotRewind
    from assay.engine.settling import IsClosed, NoEffect, NoSuchNode, StillRuns

    match error:
        case OwnerLives():
            run = error.row.id
            hint = f"`assay cancel {run}` ends it; `assay show {run}` tells what it does"
            return Complaint("error", _sentence(error), hint, ExitCode.USAGE)
        case IsAround():
            return Complaint("error", _sentence(error), None, ExitCode.USAGE)
        case NoSuchNode():
            hint = f"`assay show {error.run}` lists its nodes"
            return Complaint("error", _sentence(error), hint, ExitCode.USAGE)
        case NoEffect():
            there = ", ".join(f"`{name}`" for name in error.there)
            hint = f"It has effects of {there}" if there else "None of its nodes has begun any"
            return Complaint("error", _sentence(error), hint, ExitCode.USAGE)
        case StillRuns() | IsClosed():
            return Complaint("error", _sentence(error), None, ExitCode.USAGE)
        case CannotRewind():
            if error.broken is not None:
                words = f"assay settle {error.broken.run} {shlex.quote(error.broken.node)}"
                hint = (
                    f"Put right by hand what it did, then `{words} --not-done`; `--done` lets it"
                    " stand"
                )
                return Complaint("error", _sentence(error), hint, ExitCode.OPERATOR)
            if not error.has_irreversible:
                return Complaint("error", _sentence(error), None, ExitCode.USAGE)
            hint = "`--leave-effects` leaves irreversible effects as they are"
            return Complaint("error", _sentence(error), hint, ExitCode.OPERATOR)
        case VanishedRuns():
            hint = (
                f"Once that has ended `assay run` asks about it; `assay cancel {error.run}` ends it"
            )
            return Complaint("error", _sentence(error), hint, ExitCode.OPERATOR)
        case BoundaryUnavailable():
            more = f" and {len(error.nodes) - 1} more" if len(error.nodes) > 1 else ""
            message = f"The boundary of `{error.nodes[0]}`{more} cannot be held here: {error.why}"
            hint = "`--boundary declared` runs everything with what it declares unchecked"
            return Complaint("environment", message, hint, ExitCode.HOST)
        case UnsettledEffects():
            commands = []
            for row in error.rows:
                words = f"assay settle {row.run} {shlex.quote(row.node)}"
                if not may_be_not_done(row):
                    commands.append(f"`{words} --done`")
                elif may_be_done(row):
                    commands.append(f"`{words} --done`, or `--not-done`,")
                else:
                    commands.append(f"`{words} --not-done`")
            message = f"The plan no longer has a node that an earlier run left open: {error}"
            hint = f"{' and '.join(commands)} settles it; `assay run --new` starts over"
            return Complaint("error", message, hint, ExitCode.OPERATOR)
        case _:
            return None


def _describe_loss(error: RunTaken) -> Complaint:
    from assay.cli.render.text import moment, one_line

    taker = error.taker
    who = "another process"
    if taker is not None:
        who = f"pid {taker.pid} on {one_line(taker.host)}, {moment(taker.since)}"
    message = (
        f"Run {error.run} was taken over ({who}): what this process ran of it was ended, and"
        " nothing more of it was written"
    )
    hint = f"`assay show {error.run}` tells how it went on"
    return Complaint("environment", message, hint, ExitCode.HOST)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
