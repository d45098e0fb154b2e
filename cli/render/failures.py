"""A failed node as the reader needs it: what happened, its last lines, how to run it alone,
where its log is.

Does not know when it is shown. Logs are read from their end, in bounded pieces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from assay.cli.render.text import duration, one_line, paint, shell_word, signal_name
from assay.engine.events import AttemptFailed, NodeSettled, Question
from assay.engine.states import AttemptEnd

TAIL_LINES = 20
_TAIL_BYTES = 32 * 1024
_LINE_CHARACTERS = 500
_PIECE_BYTES = 64 * 1024

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_COLOUR_ESCAPE = re.compile(r"\x1b\[[0-9;:]*m")


@dataclass(frozen=True, slots=True)
class Failure:
    """What one node's failure is told from: its settlement and its last failed attempt."""

    settled: NodeSettled
    attempt: AttemptFailed | None = None

    @property
    def what(self) -> str:
        """`exited with code 2 after 1.20s (attempt 3/3)`."""
        return _describe(self.settled, self.attempt)


@dataclass(frozen=True, slots=True)
class RerunCommand:
    """The command line that runs one node the way this run did."""

    plan: str | None
    """PLAN as the user gave it, None for the default."""
    options: tuple[str, ...] = ()
    default_plan: str = "plan.toml"
    """What to write where a node's name would be read as a plan."""

    def for_node(self, node: str) -> str:
        words = ["assay", "run", *self.options]
        if self.plan is not None:
            words.append(self.plan)
        elif node.endswith((".toml", ".json")):
            words.append(self.default_plan)
        return " ".join(map(shell_word, [*words, node]))


def headline(failure: Failure, *, colour: bool) -> str:
    node = one_line(failure.settled.node)
    return f"{paint('failed:', 'error', colour)} Node `{node}` {failure.what}"


def pointers(failure: Failure, rerun: RerunCommand, *, colour: bool) -> list[str]:
    """How to run the node alone, and its log."""
    sign = paint("=", "blue", colour)
    lines = [f"   {sign} run it alone: {rerun.for_node(failure.settled.node)}"]
    if failure.settled.asks is not None:
        # To run it again is what the next run will not do without being told.
        lines = [f"   {sign} whether its effect happened is not known"]
        lines += ways_on(failure.settled.node, failure.settled.asks)
    if failure.settled.log is not None:
        lines.append(f"   {sign} log: {one_line(failure.settled.log)}")
    return lines


def ways_on(node: str, question: Question) -> list[str]:
    """What an operator says of an effect once it is known whether it happened."""
    words = f"assay settle {question.run} {shell_word(question.node or node)}"
    if not question.may_be_done:
        return [f"   = once the rest is taken back by hand: {words} --not-done"]
    if question.stands:
        return [
            f"   = to let that stand: {words} --done",
            f"   = to perform it again: {words} --not-done",
        ]
    value = " --value JSON" if question.needs_value else ""
    if not question.may_be_not_done:
        return [f"   = to let it stand: {words} --done{value}"]
    return [
        f"   = if it happened: {words} --done{value}",
        f"   = if it did not: {words} --not-done",
    ]


def read_tail(path: str | None, *, colour: bool) -> list[str]:
    """The last lines of a log, ready to be shown; the first tells when something was left
    out. A log that is gone or cannot be read has none."""
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    is_cut = start > 0 or len(lines) > TAIL_LINES
    if start > 0 and len(lines) > 1:
        lines = lines[1:]
    shown = [clean(line, colour=colour) for line in lines[-TAIL_LINES:]]
    return ["[...]", *shown] if is_cut else shown


def read_lines(path: str, *, colour: bool) -> Iterator[str]:
    """A whole log, line by line, ready to be shown; overlong lines in pieces."""
    with open(path, "rb") as file:
        while line := file.readline(_PIECE_BYTES):
            yield clean(line.removesuffix(b"\n"), colour=colour, limit=_PIECE_BYTES)


def clean(line: bytes, *, colour: bool, limit: int = _LINE_CHARACTERS) -> str:
    """One line of a node's output that can do nothing to a terminal but colour itself.

    Of a line that was overwritten (progress bars) the last text stays.
    """
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2].replace("\t", "    ")
    if len(text) > limit:
        text = text[:limit] + "..."
    if text.isprintable():
        return text
    if not colour:
        return one_line(_ESCAPE.sub("", text))
    shown, position, coloured = [], 0, False
    for escape in _ESCAPE.finditer(text):
        shown.append(one_line(text[position : escape.start()]))
        if _COLOUR_ESCAPE.fullmatch(escape[0]):
            shown.append(escape[0])
            coloured = True
        position = escape.end()
    shown.append(one_line(text[position:]) + ("\x1b[0m" if coloured else ""))
    return "".join(shown)


def _describe(settled: NodeSettled, attempt: AttemptFailed | None) -> str:
    detail = one_line(attempt.detail if attempt is not None and attempt.detail else settled.detail)
    end = attempt.end if attempt is not None else None
    exit_code = attempt.exit_code if attempt is not None else settled.exit_code
    signal = attempt.signal if attempt is not None else settled.signal
    took = attempt.duration_seconds if attempt is not None else settled.duration_seconds
    if end in (AttemptEnd.TIMED_OUT, AttemptEnd.NOT_STARTED, AttemptEnd.BROKE_BOUNDARY):
        what = f"failed after {duration(took)}"
    elif signal is not None:
        what, detail = f"was killed by {signal_name(signal)} after {duration(took)}", ""
    elif exit_code is not None and exit_code != 0:
        what = f"exited with code {exit_code} after {duration(took)}"
    else:
        what = f"failed after {duration(took)}" if attempt is not None else "failed"
    tries = (
        f" (attempt {attempt.number}/{attempt.attempts})"
        if attempt is not None and attempt.attempts > 1
        else ""
    )
    return what + tries + (f": {detail}" if detail else "")
