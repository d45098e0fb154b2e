"""Which exit code and which words an ending has."""

from __future__ import annotations

import pytest

from assay.cli.errors import (
    Complaint,
    ExitCode,
    HostError,
    Interrupted,
    UsageError,
    find_complaint,
)
from assay.cli.execution import exit_code
from assay.engine.events import RunSettled
from assay.engine.runs import AmbiguousPrefix, NoSuchRun
from assay.engine.states import RunId, RunStatus
from assay.engine.store_errors import StoreNewer


@pytest.mark.parametrize(
    ("status", "counts", "received", "code"),
    [
        (RunStatus.COMPLETED, {"built": 1, "clean": 2}, None, 0),
        (RunStatus.PARTIAL, {"failed": 1, "built": 1}, None, 1),
        (RunStatus.FAILED, {"failed": 1}, None, 1),
        (RunStatus.SUSPENDED, {}, None, 3),
        (RunStatus.FAILED, {"failed": 1, "ambiguous": 1}, None, 4),
        (RunStatus.CANCELLED, {"cancelled": 1, "failed": 1}, None, 143),
        (RunStatus.CANCELLED, {"cancelled": 1, "ambiguous": 1}, 2, 130),
        (RunStatus.COMPLETED, {"built": 1}, 15, 143),
        (RunStatus.CANCELLED, {"cancelled": 1}, 1, 129),
    ],
)
def test_exit_code_of_a_run(
    status: RunStatus, counts: dict[str, int], received: int | None, code: int
) -> None:
    """Where several apply an interrupt wins, then an operator's case, a failure, a wait."""
    assert exit_code(RunSettled(RunId("1a2b3c4d"), status, counts), received) == code


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (UsageError("No", "do"), Complaint("error", "No", "do", ExitCode.USAGE)),
        (HostError("No"), Complaint("environment", "No", None, ExitCode.HOST)),
        (KeyboardInterrupt(), Complaint("error", "Interrupted", None, 130)),
        (
            Interrupted(15),
            Complaint("error", "Interrupted before anything was started", None, 143),
        ),
        (
            NoSuchRun("ab"),
            Complaint("error", "There is no run `ab`", "`assay runs` lists them", 2),
        ),
        (
            AmbiguousPrefix("a", [RunId("ab"), RunId("ac")]),
            Complaint(
                "error", "`a` begins the ids of several runs: ab, ac", "Give more of the id", 2
            ),
        ),
        (
            OSError(28, "No space left on device", "/w/x"),
            Complaint("environment", "No space left on device (`/w/x`)", None, 5),
        ),
        (
            ImportError("_struct.so: cannot stat shared object", name="_struct"),
            Complaint(
                "environment",
                "_struct.so: cannot stat shared object",
                "Install assay again, into a fresh virtual environment, if this persists",
                5,
            ),
        ),
    ],
)
def test_expected_errors_have_words_and_a_code(error: BaseException, complaint: Complaint) -> None:
    """Every error that is expected is told by whose fault it is, and how to go on."""
    assert find_complaint(error) == complaint


def test_errors_of_the_store_keep_their_hint() -> None:
    """A store that is too new is a fault of the environment with a way on."""
    complaint = find_complaint(StoreNewer("/w/.assay/assay.db", 9, 1))

    assert complaint is not None
    assert (complaint.label, complaint.code) == ("environment", ExitCode.HOST)
    assert complaint.hint is not None


def test_broken_invariant_has_no_words() -> None:
    """What nobody expected is left to be told as an internal error."""
    assert find_complaint(AssertionError("no")) is None
    assert find_complaint(KeyError("no")) is None
    assert find_complaint(ImportError("cannot import name", name="assay.engine.x")) is None
