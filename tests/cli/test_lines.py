"""Runs as lines: whole outputs for sequences of events."""

from __future__ import annotations

import io
from pathlib import Path

from assay.cli.render.failures import RerunCommand
from assay.cli.render.lines import Actions, LinesRenderer, Look, Show
from assay.engine.events import (
    AttemptFailed,
    CancelRequested,
    Event,
    NodesAppended,
    NodeSettled,
    NodeStarted,
    RunSettled,
    RunStarted,
    WaitingForRun,
    Warned,
)
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, Outcome, RunId, RunStatus
from assay.plans.model import NodeName

RUN = RunId("1a2b3c4d")
RERUN = RerunCommand(None)


def started(node: str, reason: str = "no recorded result", number: int = 1) -> NodeStarted:
    return NodeStarted(NodeName(node), AttemptId(f"{RUN}-1"), number, "/logs/1", reason)


def settled(node: str, outcome: Outcome, **more: object) -> NodeSettled:
    given: dict[str, object] = {
        "attempts": 1,
        "action_key": ActionKey("k"),
        "duration_seconds": 0.25,
        **more,
    }
    return NodeSettled(NodeName(node), outcome, **given)  # type: ignore[arg-type]


def attempt(node: str, *, retry: float | None = None, log: str = "/logs/1") -> AttemptFailed:
    return AttemptFailed(
        node=NodeName(node),
        attempt=AttemptId(f"{RUN}-1"),
        number=1,
        attempts=3 if retry is not None else 1,
        end=AttemptEnd.EXITED,
        exit_code=2,
        signal=None,
        detail="",
        log=log,
        duration_seconds=1.5,
        retry_in_seconds=retry,
    )


def ended(status: RunStatus, counts: dict[str, int], **more: object) -> RunSettled:
    return RunSettled(RUN, status, counts, 2.5, **more)  # type: ignore[arg-type]


def show(events: list[Event], look: Look) -> tuple[str, str]:
    """(standard error, standard output)"""
    progress, data = io.StringIO(), io.StringIO()
    renderer = LinesRenderer(progress, data, look)
    for event in events:
        renderer.tell(event)
    return progress.getvalue(), data.getvalue()


GOOD: list[Event] = [
    RunStarted(RUN, "site", "d" * 64, 4, 2),
    settled("gen", Outcome.CLEAN),
    settled("img", Outcome.CLEAN, restored=3),
    NodesAppended(NodeName("cc"), (NodeName("cc[a]"), NodeName("cc[b]")), 1),
    started("link", "reads changed: a.o"),
    settled("link", Outcome.BUILT),
    ended(RunStatus.COMPLETED, {"built": 1, "clean": 2}, outputs={"version": '"1.2"'}),
]


def test_one_line_a_node_when_piped() -> None:
    """A pipe gets a line for every node, the outputs go to standard output."""
    progress, data = show(GOOD, Look(RERUN))

    assert progress == (
        "clean     gen\n"
        "clean     img  3 paths restored\n"
        "cc expanded to 2 nodes\n"
        "built     link  0.25s  reads changed: a.o\n"
        "1 built, 2 clean in 2.50s (run 1a2b3c4d)\n"
    )
    assert data == 'version = "1.2"\n'


def test_terminal_sees_what_starts_and_no_clean_nodes() -> None:
    """On a terminal a node is told when it starts; clean nodes are only counted."""
    progress, _ = show(GOOD, Look(RERUN, starts=True, all_clean=False))

    assert progress == (
        "clean     img  3 paths restored\n"
        "cc expanded to 2 nodes\n"
        "start     link  reads changed: a.o\n"
        "built     link  0.25s  reads changed: a.o\n"
        "1 built, 2 clean in 2.50s (run 1a2b3c4d)\n"
    )


def test_quiet_run_that_succeeds_says_nothing() -> None:
    """`--quiet` leaves failures and warnings."""
    assert show(GOOD, Look(RERUN, quiet=True)) == ("", "")


def test_nothing_to_do_names_the_run_it_agrees_with() -> None:
    """A run without work is one line."""
    event = ended(RunStatus.COMPLETED, {"clean": 10_000}, agreed_with=RunId("99999999"))

    assert show([event], Look(RERUN)) == (
        "nothing to do: 10,000 clean in 2.50s (as in run 99999999)\n",
        "",
    )


def test_failure_shows_its_last_lines_and_the_way_on(tmp_path: Path) -> None:
    """A failed node shows what it printed, its exit code, its time, the command and its log."""
    log = tmp_path / "log"
    log.write_text("compiling\nerror: no\n")
    events: list[Event] = [
        started("link"),
        attempt("link", log=str(log)),
        settled("link", Outcome.FAILED, log=str(log), exit_code=2),
        ended(RunStatus.FAILED, {"failed": 1}),
    ]

    assert show(events, Look(RERUN))[0] == (
        "failed: Node `link` exited with code 2 after 1.50s\n"
        "   | compiling\n"
        "   | error: no\n"
        "   = run it alone: assay run link\n"
        f"   = log: {log}\n"
        "1 failed in 2.50s (run 1a2b3c4d, failed)\n"
    )


def test_failures_are_repeated_once_at_the_very_end(tmp_path: Path) -> None:
    """C41, C81 After other lines every failure is shown again, last and once."""
    log = tmp_path / "log"
    log.write_text("error: no\n")
    events: list[Event] = [
        attempt("a", log=str(log)),
        settled("a", Outcome.FAILED, log=str(log)),
        settled("c", Outcome.SKIPPED, detail="`a` failed"),
        attempt("b", log=str(log)),
        settled("b", Outcome.FAILED, log=str(log)),
        ended(RunStatus.PARTIAL, {"failed": 2, "skipped": 1}),
    ]

    def block(node: str) -> str:
        return (
            f"failed: Node `{node}` exited with code 2 after 1.50s\n"
            "   | error: no\n"
            f"   = run it alone: assay run {node}\n"
            f"   = log: {log}\n"
        )

    assert show(events, Look(RERUN))[0] == (
        block("a")
        + "skipped   c  `a` failed\n"
        + block("b")
        + "\n"
        + block("a")
        + block("b")
        + "2 failed, 1 skipped in 2.50s (run 1a2b3c4d, partial)\n"
    )


def test_log_none_shows_no_output_and_log_all_shows_every_one(tmp_path: Path) -> None:
    """`--log` decides whose output is shown."""
    log = tmp_path / "log"
    log.write_text("output\n")
    events: list[Event] = [
        settled("ok", Outcome.BUILT, log=str(log)),
        settled("same", Outcome.CLEAN, log=str(log)),
        settled("bad", Outcome.FAILED, log=str(log), exit_code=1),
    ]
    pointers = f"   = run it alone: assay run bad\n   = log: {log}\n"

    assert show(events, Look(RERUN, show=Show.NONE))[0] == (
        "built     ok  0.25s\n"
        "clean     same\n"
        "failed: Node `bad` exited with code 1 after 0.25s\n" + pointers
    )
    assert show(events, Look(RERUN, show=Show.ALL, all_clean=False))[0] == (
        "built     ok  0.25s\n"
        "   | output\n"
        "clean     same\n"
        "   | output\n"
        "failed: Node `bad` exited with code 1 after 0.25s\n"
        "   | output\n" + pointers
    )


def test_log_that_is_gone_is_said(tmp_path: Path) -> None:
    """A log that was removed meanwhile spoils nothing."""
    gone = str(tmp_path / "gone")

    assert show([settled("ok", Outcome.BUILT, log=gone)], Look(RERUN, show=Show.ALL))[0] == (
        "built     ok  0.25s\n   | [the log cannot be read: No such file or directory]\n"
    )


def test_retries_waits_warnings_and_cancelling_have_their_lines() -> None:
    """C65, C74 Whatever happens between start and end is one line."""
    events: list[Event] = [
        attempt("flaky", retry=1.0),
        Warned("`src` changed while `gen` ran, so its result is not cached", NodeName("gen")),
        Warned("the disk is nearly full"),
        Warned("`old.txt` was put aside", NodeName("x\ny")),
        CancelRequested(2, immediate=False, running=3),
        CancelRequested(2, immediate=True, running=1),
        CancelRequested(15, immediate=False, running=0),
        CancelRequested(None, immediate=False, running=2),
        CancelRequested(2, immediate=False, running=1, awaited=(NodeName("c"),)),
        CancelRequested(None, immediate=False, running=3, awaited=(NodeName("c"), NodeName("d"))),
    ]

    assert show(events, Look(RERUN))[0] == (
        "retry     flaky  exited with code 2 after 1.50s (attempt 1/3); again in 1.00s\n"
        "warning: `src` changed while `gen` ran, so its result is not cached\n"
        "warning: the disk is nearly full\n"
        "warning: Node `x\\ny`: `old.txt` was put aside\n"
        "SIGINT received: ending 3 running nodes (once more kills them at once)\n"
        "SIGINT received: killing 1 running node\n"
        "SIGTERM received: starting nothing more\n"
        "cancelled: ending 2 running nodes\n"
        "SIGINT received: waiting for `c`, which may not be cancelled (once more kills it at"
        " once)\n"
        "cancelled: ending 1 running node; waiting for `c`, `d`, which may not be cancelled\n"
    )


def test_waiting_names_whom_for() -> None:
    """C74 A node that waits for another run says for which, since when and why."""
    event = WaitingForRun(NodeName("gen"), RunId("99999999"), 4711, 0.0, "dist/app.js")

    shown, _ = show([event], Look(RERUN))

    assert shown.startswith("waiting   gen  for run 99999999 (pid 4711, since ")
    assert shown.endswith("), which holds dist/app.js\n")


def test_waiting_for_a_stopped_run_names_ways_on() -> None:
    """C74 And where its process is, when that is not here."""
    event = WaitingForRun(
        NodeName("gen"), RunId("99999999"), 4711, 0.0, "o", host="build-1", is_stopped=True
    )

    shown, _ = show([event], Look(RERUN))

    assert shown.startswith("waiting   gen  for run 99999999 (pid 4711 on build-1, since ")
    assert shown.endswith(
        ", stopped: `kill -CONT 4711` lets it go on, `assay cancel 99999999` before that ends it),"
        " which holds o\n"
    )


def test_names_cannot_leave_their_line() -> None:
    """C121 A node's name with a line end or an escape sequence is shown escaped."""
    shown, _ = show([settled("a\n\x1b[31m", Outcome.BUILT)], Look(RERUN))

    assert shown == "built     a\\n\\x1b[31m  0.25s\n"


def test_github_groups_are_balanced_and_output_is_no_command(tmp_path: Path) -> None:
    """C81 Groups close, a node's `::error::` is neutralised, the failure is annotated."""
    log = tmp_path / "log"
    log.write_text("::error::fake\n::endgroup::\n")
    summary = tmp_path / "summary.md"
    actions = Actions("t0ken", lambda node: ("plan.toml", 7), str(summary))
    events: list[Event] = [
        started("a"),
        attempt("a", log=str(log)),
        settled("a", Outcome.FAILED, log=str(log)),
        ended(RunStatus.FAILED, {"failed": 1}),
    ]

    shown, _ = show(events, Look(RERUN, starts=True, actions=actions))

    output = "::stop-commands::t0ken\n   | ::error::fake\n   | ::endgroup::\n::t0ken::\n"
    pointers = f"   = run it alone: assay run a\n   = log: {log}\n"
    title = "failed: Node `a` exited with code 2 after 1.50s"
    assert shown == (
        "start     a  no recorded result\n"
        f"::group::{title}\n{output}::endgroup::\n{pointers}"
        "::error file=plan.toml,line=7,title=Node a failed::exited with code 2 after 1.50s\n"
        f"\n{title}\n{output}{pointers}"
        "1 failed in 2.50s (run 1a2b3c4d, failed)\n"
    )
    assert summary.read_text() == (
        "### assay: failed\n\n"
        "1 failed in 2.50s (run 1a2b3c4d, failed)\n\n"
        "**failed** `a` exited with code 2 after 1.50s\n\n"
        "```\n::error::fake\n::endgroup::\n```\n\n"
        "```\nassay run a\n```\n\n"
    )


def test_github_summary_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    """A summary file that is not there spoils no run."""
    actions = Actions("t", lambda node: None, str(tmp_path / "no" / "summary"))

    shown, _ = show([ended(RunStatus.COMPLETED, {"clean": 1})], Look(RERUN, actions=actions))

    assert shown.endswith("warning: The job summary was not written: No such file or directory\n")


def test_a_flood_of_failures_stays_bounded(tmp_path: Path) -> None:
    """C41 Every failed node is named at the end, with its output only the first of many."""
    log = tmp_path / "log"
    log.write_text("why\n")
    events: list[Event] = [
        settled(f"n{number}", Outcome.FAILED, log=str(log), exit_code=1) for number in range(100)
    ]
    events += [settled("ok", Outcome.BUILT), ended(RunStatus.PARTIAL, {"failed": 100, "built": 1})]

    end = show(events, Look(RERUN))[0].partition("built     ok")[2]

    assert end.count("   | why\n") == 20
    assert all(f"Node `n{number}` exited" in end for number in range(100))
