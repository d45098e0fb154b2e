"""A run as lines: one a node when piped; on a terminal also what has started, and clean
nodes only in the count. The same with groups and annotations in GitHub Actions.

Does not know how a run is driven: everything is told from events. Keeps the running nodes
and the failures, nothing of the others. Progress goes to standard error, the plan's
`[outputs]` to standard output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Protocol, assert_never

from assay.cli.render import github
from assay.cli.render.failures import (
    Failure,
    RerunCommand,
    headline,
    pointers,
    read_lines,
    read_tail,
    ways_on,
)
from assay.cli.render.text import count, duration, moment, one_line, paint, signal_name
from assay.engine.events import (
    AttemptFailed,
    CancelRequested,
    Event,
    NodesAppended,
    NodeSettled,
    NodeStarted,
    RunLost,
    RunSettled,
    RunStarted,
    WaitingForRun,
    Warned,
)
from assay.engine.states import Outcome, RunStatus
from assay.plans.model import NodeName

REPEATED_FAILURES = 20
"""How many failures the end repeats with their last lines; the others with one line."""

_LINES_AT_ONCE = 500

_OUTCOME_COLOURS = {
    Outcome.BUILT: "green",
    Outcome.CLEAN: "cyan",
    Outcome.FAILED: "error",
    Outcome.SKIPPED: "yellow",
    Outcome.DEFERRED: "yellow",
    Outcome.CANCELLED: "yellow",
    Outcome.AMBIGUOUS: "error",
}


class Writer(Protocol):
    """Where text goes; `Stream` is one."""

    def write(self, text: str) -> None: ...


class Show(StrEnum):
    """Whose output is shown: `--log`."""

    FAILED = "failed"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Actions:
    """What a run inside GitHub Actions needs. `token` is unknown to the nodes; `locate`
    gives a node's plan file and line; `summary` is the file of the job summary."""

    token: str
    locate: Callable[[NodeName], tuple[str, int] | None]
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """How a run is shown. `starts`: a line also when a node starts; `all_clean`: a line for
    every clean node."""

    rerun: RerunCommand
    show: Show = Show.FAILED
    colour: bool = False
    starts: bool = False
    all_clean: bool = True
    quiet: bool = False
    actions: Actions | None = None


class LinesRenderer:
    """`tell` takes every event of one run, in order."""

    def __init__(self, progress: Writer, data: Writer, look: Look) -> None:
        self._progress = progress
        self._data = data
        self._look = look
        self._reasons: dict[NodeName, str] = {}
        self._attempts: dict[NodeName, AttemptFailed] = {}
        self._failures: list[Failure] = []
        self._ambiguous: list[NodeSettled] = []
        self._blocks_at_end = 0
        """How many failure blocks are the last thing written: those need no repetition."""

    def tell(self, event: Event) -> None:
        match event:
            case RunStarted():
                if event.resumed:
                    self._note(f"going on with run {event.run}")
            case NodesAppended():
                self._note(
                    f"{one_line(event.template)} expanded to {count(len(event.nodes), 'node')}"
                )
            case NodeStarted():
                self._tell_start(event)
            case AttemptFailed():
                self._tell_attempt(event)
            case NodeSettled():
                self._tell_settled(event)
            case Warned():
                self._tell_warning(event)
            case WaitingForRun():
                self._write(
                    self._line(
                        "waiting",
                        "yellow",
                        event.node,
                        _describe_wait(event),
                    )
                )
            case CancelRequested():
                self._write(self._paint(_describe_cancel(event), "yellow") + "\n")
            case RunSettled():
                self._tell_end(event)
            case RunLost():
                pass  # what the run ends with says it
            case _:
                assert_never(event)

    def tell_clean(self, nodes: Iterable[str]) -> None:
        """Nodes that are clean and nothing more to say of, many at once."""
        if self._look.all_clean and not self._look.quiet:
            word = self._paint(f"{Outcome.CLEAN:<9}", _OUTCOME_COLOURS[Outcome.CLEAN])
            self._write("".join([f"{word} {one_line(node)}\n" for node in nodes]))

    def _tell_start(self, event: NodeStarted) -> None:
        self._reasons[event.node] = event.reason
        if self._look.starts and not self._look.quiet:
            again = f" (attempt {event.number})" if event.number > 1 else ""
            self._write(self._line("start", "dim", event.node, event.reason + again))

    def _tell_attempt(self, event: AttemptFailed) -> None:
        self._attempts[event.node] = event
        if event.retry_in_seconds is None or self._look.quiet:
            return
        failure = Failure(NodeSettled(event.node, Outcome.FAILED, event.number, None, 0.0), event)
        then = f"{failure.what}; again in {duration(event.retry_in_seconds)}"
        self._write(self._line("retry", "yellow", event.node, then))

    def _tell_settled(self, event: NodeSettled) -> None:
        reason = self._reasons.pop(event.node, "")
        attempt = self._attempts.pop(event.node, None)
        if event.outcome is Outcome.FAILED:
            self._tell_failure(Failure(event, attempt))
            return
        if event.outcome is Outcome.AMBIGUOUS:
            self._tell_ambiguous(event)
            return
        if self._look.quiet:
            return
        is_plain = event.outcome is Outcome.CLEAN and not event.restored and not event.detail
        has_log = self._look.show is Show.ALL and event.log is not None
        if is_plain and not self._look.all_clean and not has_log:
            return
        if event.outcome is Outcome.CANCELLED and not event.attempts and not self._look.all_clean:
            return  # on a terminal, what never started is only counted
        colour = _OUTCOME_COLOURS[event.outcome]
        line = self._line(event.outcome, colour, event.node, *_details(event, reason))
        if event.asks is not None:
            line += "   = whether its effect happened is not known\n"
            line += "".join(f"{way}\n" for way in ways_on(event.node, event.asks))
        if has_log and event.log is not None:
            self._write_log(line, event.log)
        else:
            self._write(line)

    def _tell_ambiguous(self, event: NodeSettled) -> None:
        """Only a person can say how to go on: what is not known, and the ways."""
        self._ambiguous.append(event)
        node, detail = one_line(event.node), one_line(event.detail)
        self._write(f"{self._paint('ambiguous:', 'error')} Node `{node}`: {detail}\n")
        if event.asks is not None:
            self._write("".join(f"{line}\n" for line in ways_on(event.node, event.asks)))
        actions = self._look.actions
        if actions is not None:
            file, line = actions.locate(event.node) or (None, None)
            title = f"Node {node} is ambiguous"
            self._write(github.annotation(detail, title=title, file=file, line=line))

    def _tell_failure(self, failure: Failure) -> None:
        blocks = self._blocks_at_end
        self._failures.append(failure)
        title = headline(failure, colour=self._look.colour) + "\n"
        if self._look.show is Show.ALL and failure.settled.log is not None:
            self._write_log(title, failure.settled.log)
        else:
            self._write_group(title, self._tail(failure))
        self._write_pointers(failure)
        self._blocks_at_end = blocks + 1
        actions = self._look.actions
        if actions is not None and len(self._failures) <= github.MOST_ANNOTATIONS:
            node = failure.settled.node
            file, line = actions.locate(node) or (None, None)
            about = f"Node {one_line(node)} failed"
            self._write(github.annotation(failure.what, title=about, file=file, line=line))

    def _tell_warning(self, event: Warned) -> None:
        text = one_line(event.text)
        if event.node is not None and f"`{event.node}`" not in event.text:
            text = f"Node `{one_line(event.node)}`: {text}"
        self._write(f"{self._paint('warning:', 'warning')} {text}\n")

    def _tell_end(self, event: RunSettled) -> None:
        self._repeat_failures()
        if not self._look.quiet or event.status is not RunStatus.COMPLETED:
            colour = "green" if event.status is RunStatus.COMPLETED else "error"
            self._write(self._paint(_summarise(event), colour) + "\n")
        if not self._look.quiet:
            for name, value in event.outputs.items():
                self._data.write(f"{one_line(name)} = {value}\n")
        actions = self._look.actions
        if actions is not None and actions.summary is not None:
            self._write_summary(actions.summary, event)

    def _repeat_failures(self) -> None:
        """Each failure stands once at the very end, where it is looked for."""
        if self._blocks_at_end == len(self._failures):
            return
        self._write("\n")
        for failure in self._failures[:REPEATED_FAILURES]:
            self._write(headline(failure, colour=self._look.colour) + "\n")
            self._write_guarded(self._tail(failure))
            self._write_pointers(failure)
        for failure in self._failures[REPEATED_FAILURES:]:
            self._write(headline(failure, colour=self._look.colour) + "\n")

    def _write_log(self, title: str, log: str) -> None:
        """A whole log below its title, in pieces, so that its size costs no memory."""
        try:
            self._write_group(title, read_lines(log, colour=self._look.colour))
        except OSError as error:
            self._write(f"   | [the log cannot be read: {error.strerror}]\n")

    def _write_group(self, title: str, lines: Iterable[str]) -> None:
        """A title and a node's output, in a group where there are groups."""
        if self._look.actions is None:
            self._write(title)
            self._write_guarded(lines)
            return
        self._write(github.open_group(title.removesuffix("\n")))
        try:
            self._write_guarded(lines)
        finally:
            self._write(github.close_group())

    def _write_guarded(self, lines: Iterable[str]) -> None:
        """A node's output, which must not be taken for workflow commands."""
        before, after = "", ""
        if self._look.actions is not None:
            before, after = github.guard(self._look.actions.token)
        each = iter(lines)
        piece = list(islice(each, _LINES_AT_ONCE))
        if not piece:
            return
        self._write(before)
        try:
            while piece:
                self._write("".join(f"   | {line}\n" for line in piece))
                piece = list(islice(each, _LINES_AT_ONCE))
        finally:
            self._write(after)

    def _write_pointers(self, failure: Failure) -> None:
        lines = pointers(failure, self._look.rerun, colour=self._look.colour)
        self._write("".join(f"{line}\n" for line in lines))

    def _write_summary(self, path: str, event: RunSettled) -> None:
        lines = _markdown(event, self._failures, self._ambiguous, self._look)
        text = "\n".join(lines) + "\n"
        try:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            self._tell_warning(Warned(f"The job summary was not written: {error.strerror}"))

    def _tail(self, failure: Failure) -> list[str]:
        if self._look.show is Show.NONE:
            return []
        return read_tail(failure.settled.log, colour=self._look.colour)

    def _line(self, word: str, colour: str, node: str, *details: str) -> str:
        rest = "".join(f"  {one_line(detail)}" for detail in details if detail)
        return f"{self._paint(f'{word:<9}', colour)} {one_line(node)}{rest}\n"

    def _note(self, text: str) -> None:
        if not self._look.quiet:
            self._write(self._paint(text, "dim") + "\n")

    def _paint(self, text: str, colour: str) -> str:
        return paint(text, colour, self._look.colour)

    def _write(self, text: str) -> None:
        self._blocks_at_end = 0
        self._progress.write(text)


def _details(event: NodeSettled, reason: str) -> tuple[str, ...]:
    """What stands behind a settled node's name."""
    if event.outcome is Outcome.CLEAN:
        restored = f"{count(event.restored, 'path')} restored" if event.restored else ""
        return restored, event.detail
    if event.outcome is Outcome.BUILT:
        return duration(event.duration_seconds), event.detail or reason
    return (event.detail,)


def _describe_wait(event: WaitingForRun) -> str:
    where = "" if event.host is None else f" on {event.host}"
    way = ""
    if event.is_stopped:
        way = (
            f", stopped: `kill -CONT {event.pid}` lets it go on, `assay cancel {event.run}` before"
            " that ends it"
        )
    return (
        f"for run {event.run} (pid {event.pid}{where}, since {moment(event.since)}{way}), "
        f"which holds {event.what}"
    )


def _describe_cancel(event: CancelRequested) -> str:
    cause = (
        one_line(event.cause) if event.signal is None else f"{signal_name(event.signal)} received"
    )
    if event.immediate:
        return f"{cause}: killing {count(event.running, 'running node')}"
    if not event.running:
        return f"{cause}: starting nothing more"
    parts = []
    ended = event.running - len(event.awaited)
    if ended:
        parts.append(f"ending {count(ended, 'running node')}")
    if event.awaited:
        names = ", ".join(f"`{one_line(node)}`" for node in event.awaited)
        parts.append(f"waiting for {names}, which may not be cancelled")
    what = "it" if not ended and len(event.awaited) == 1 else "them"
    again = "" if event.signal is None else f" (once more kills {what} at once)"
    return f"{cause}: {'; '.join(parts)}{again}"


def _summarise(event: RunSettled) -> str:
    """`3 built, 1 failed in 4.10s (run 1a2b3c4d, partial)`."""
    counts = ", ".join(
        f"{event.counts[outcome]:,} {outcome.value}"
        for outcome in Outcome
        if event.counts.get(outcome)
    )
    if event.agreed_with is not None:
        return (
            f"nothing to do: {counts} in {duration(event.duration_seconds)} "
            f"(as in run {event.agreed_with})"
        )
    state = "" if event.status is RunStatus.COMPLETED else f", {event.status.value}"
    took = duration(event.duration_seconds)
    return f"{counts or 'nothing settled'} in {took} (run {event.run}{state})"


def _markdown(
    event: RunSettled, failures: list[Failure], ambiguous: list[NodeSettled], look: Look
) -> list[str]:
    lines = [f"### assay: {event.status.value}", "", _summarise(event), ""]
    for each in ambiguous[:REPEATED_FAILURES]:
        node, detail = github.inline(one_line(each.node)), github.inline(one_line(each.detail))
        lines += [f"**ambiguous** {node} {detail}", ""]
        if each.asks is not None:
            lines += [
                *github.fenced([way.strip(" =") for way in ways_on(each.node, each.asks)]),
                "",
            ]
    for failure in failures[:REPEATED_FAILURES]:
        lines += [f"**failed** {github.inline(one_line(failure.settled.node))} {failure.what}", ""]
        if look.show is not Show.NONE:
            lines += [*github.fenced(read_tail(failure.settled.log, colour=False)), ""]
        lines += [*github.fenced([look.rerun.for_node(failure.settled.node)]), ""]
    rest = len(failures) - REPEATED_FAILURES
    if rest > 0:
        lines += [f"and {count(rest, 'more failure')}", ""]
    return lines


def is_github(environ: Mapping[str, str]) -> bool:
    """Whether this process is a step of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"
