"""What a failed node shows of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.cli.render.failures import (
    TAIL_LINES,
    Failure,
    RerunCommand,
    clean,
    read_lines,
    read_tail,
)
from assay.engine.events import AttemptFailed, NodeSettled
from assay.engine.states import AttemptEnd, AttemptId, Outcome
from assay.plans.model import NodeName


def _failure(
    end: AttemptEnd,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    detail: str = "",
    attempts: int = 1,
) -> Failure:
    node = NodeName("a")
    attempt = AttemptFailed(
        node=node,
        attempt=AttemptId("1a2b3c4d-1"),
        number=attempts,
        attempts=attempts,
        end=end,
        exit_code=exit_code,
        signal=signal,
        detail=detail,
        log="/w/.assay/logs/1a2b3c4d-1.log",
        duration_seconds=1.5,
        retry_in_seconds=None,
    )
    return Failure(NodeSettled(node, Outcome.FAILED, attempts, None, 1.5), attempt)


@pytest.mark.parametrize(
    ("failure", "what"),
    [
        (_failure(AttemptEnd.EXITED, exit_code=2), "exited with code 2 after 1.50s"),
        (_failure(AttemptEnd.SIGNALLED, signal=11), "was killed by SIGSEGV after 1.50s"),
        (
            _failure(AttemptEnd.TIMED_OUT, signal=15, detail="timed out after 1s", attempts=3),
            "failed after 1.50s (attempt 3/3): timed out after 1s",
        ),
        (
            _failure(AttemptEnd.NOT_STARTED, exit_code=127, detail="there is no program `ccc`"),
            "failed after 1.50s: there is no program `ccc`",
        ),
        (
            _failure(AttemptEnd.BROKE_BOUNDARY, exit_code=0, detail="it did not write `y`"),
            "failed after 1.50s: it did not write `y`",
        ),
        (
            _failure(AttemptEnd.EXITED, exit_code=1, detail="HTTP_PROXY is not passed on"),
            "exited with code 1 after 1.50s: HTTP_PROXY is not passed on",
        ),
        (
            Failure(
                NodeSettled(NodeName("a"), Outcome.FAILED, 0, None, 0.0, detail="`src` is a pipe")
            ),
            "failed: `src` is a pipe",
        ),
    ],
)
def test_failure_is_told_in_one_sentence(failure: Failure, what: str) -> None:
    """C65, C71 Exit code, signal by name, time-out and boundary each have their sentence."""
    assert failure.what == what


@pytest.mark.parametrize(
    ("rerun", "node", "command"),
    [
        (RerunCommand(None), "link", "assay run link"),
        (RerunCommand(None), "test[py=3.11]", "assay run 'test[py=3.11]'"),
        (
            RerunCommand("web/plan.toml", ("-p", "a=b c")),
            "x",
            "assay run -p 'a=b c' web/plan.toml x",
        ),
        (
            RerunCommand(None, default_plan="../plan.toml"),
            "a.json",
            "assay run ../plan.toml a.json",
        ),
        (RerunCommand(None), "a\nb", "assay run $'a\\x0ab'"),
    ],
)
def test_command_runs_the_node_alone(rerun: RerunCommand, node: str, command: str) -> None:
    """C121, C123 The command can be pasted whatever the node is called."""
    assert rerun.for_node(node) == command


def test_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    """C78 Of a log of any size only the last lines are read."""
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))

    tail = read_tail(str(log), colour=False)

    assert tail == ["[...]", *(f"line {number}" for number in range(1000 - TAIL_LINES, 1000))]


def test_tail_of_one_endless_line_is_bounded(tmp_path: Path) -> None:
    """C78 A huge line without an end is cut."""
    log = tmp_path / "log"
    log.write_bytes(b"a" * 5_000_000)

    tail = read_tail(str(log), colour=False)

    assert tail[0] == "[...]"
    assert sum(map(len, tail)) < 1000


def test_tail_of_a_short_log_is_the_log(tmp_path: Path) -> None:
    """C65 A last line without a line end is shown too; an empty log shows nothing."""
    log = tmp_path / "log"
    log.write_bytes(b"one\n\nno-newline")
    assert read_tail(str(log), colour=False) == ["one", "", "no-newline"]

    log.write_bytes(b"")
    assert read_tail(str(log), colour=False) == []
    assert read_tail(str(tmp_path / "gone"), colour=False) == []
    assert read_tail(None, colour=False) == []


@pytest.mark.parametrize(
    ("line", "colour", "shown"),
    [
        (b"plain", False, "plain"),
        (b"\x1b[31mred\x1b[0m", False, "red"),
        (b"\x1b[31mred", True, "\x1b[31mred\x1b[0m"),
        (b"\x1b[2Jgone\x1b]0;title\x07 here", True, "gone here"),
        (b"10%\r50%\r100%", False, "100%"),
        (b"windows\r", False, "windows"),
        (b"a\x07b\x00", False, "a\\x07b\\x00"),
        (b"\xff\xfe", False, "\ufffd\ufffd"),
        (b"a\tb", False, "a    b"),
    ],
)
def test_output_can_do_nothing_to_the_terminal(line: bytes, colour: bool, shown: str) -> None:
    """C80 Of escape sequences only colours pass, and those only where colours are on."""
    assert clean(line, colour=colour) == shown


def test_whole_log_is_read_in_pieces(tmp_path: Path) -> None:
    """C78 A whole log comes line by line, an overlong line in pieces."""
    log = tmp_path / "log"
    log.write_bytes(b"one\n" + b"x" * 200_000 + b"\ntwo\n")

    lines = list(read_lines(str(log), colour=False))

    assert lines[0] == "one"
    assert lines[-1] == "two"
    assert "".join(lines[1:-1]) == "x" * 200_000
