"""A run as JSON: one event a line on standard output, nothing else there.

Every line has `event`, `run`, `seq` (from 1, without gaps) and `at` (seconds since the
epoch). Does not know what events mean. All letters beyond ASCII are escaped, so that any
encoding can carry them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, assert_never

from assay.engine.events import (
    AttemptFailed,
    CancelRequested,
    Event,
    NodesAppended,
    NodeSettled,
    NodeStarted,
    Question,
    RunLost,
    RunSettled,
    RunStarted,
    WaitingForRun,
    Warned,
)
from assay.engine.states import RunId
from assay.plans.canonical import JsonValue
from assay.plans.model import NodeName


class Writer(Protocol):
    """Where lines go; a line is complete after `flush`. `Stream` is one."""

    def write(self, text: str) -> None: ...

    def flush(self) -> None: ...


class JsonRenderer:
    """`tell` takes every event of one run, in order."""

    def __init__(self, data: Writer, now: Callable[[], float]) -> None:
        self._data = data
        self._now = now
        self._sequence = 0
        self._run: RunId | None = None

    def tell(self, event: Event) -> None:
        if isinstance(event, (RunStarted, RunSettled, RunLost)):
            self._run = event.run
        name, fields = describe_event(event)
        self.write(name, fields)

    def write(self, name: str, fields: dict[str, JsonValue]) -> None:
        """One line; also for what is told without an event, such as predictions."""
        self._sequence += 1
        head: dict[str, JsonValue] = {
            "event": name,
            "run": self._run,
            "seq": self._sequence,
            "at": round(self._now(), 6),
        }
        self._data.write(json.dumps({**head, **fields}) + "\n")
        self._data.flush()


def question_as_json(node: NodeName, question: Question) -> dict[str, JsonValue]:
    """Whom and what the node's question is about, and with which options of `assay settle` it is
    answered."""
    answers: list[JsonValue] = []
    if question.may_be_done:
        answers.append("done")
    if question.may_be_not_done:
        answers.append("not-done")
    return {
        "run": question.run,
        "node": question.node or node,
        "answers": answers,
        "needs_value": question.needs_value and not question.stands,
        "stands": question.stands,
    }


def describe_event(event: Event) -> tuple[str, dict[str, JsonValue]]:
    """The event's name and its own fields."""
    match event:
        case RunStarted():
            return "run-started", {
                "plan": event.plan_name,
                "plan_digest": event.plan_digest,
                "selected": event.selected,
                "jobs": event.jobs,
                "resumed": event.resumed,
            }
        case NodesAppended():
            return "nodes-appended", {
                "template": event.template,
                "nodes": list(event.nodes),
                "generation": event.generation,
            }
        case NodeStarted():
            return "node-started", {
                "node": event.node,
                "attempt": event.attempt,
                "number": event.number,
                "log": event.log,
                "reason": event.reason,
            }
        case AttemptFailed():
            return "attempt-failed", {
                "node": event.node,
                "attempt": event.attempt,
                "number": event.number,
                "attempts": event.attempts,
                "end": event.end.value,
                "exit_code": event.exit_code,
                "signal": event.signal,
                "detail": event.detail,
                "log": event.log,
                "duration_ms": _milliseconds(event.duration_seconds),
                "retry_in_ms": _milliseconds(event.retry_in_seconds),
            }
        case NodeSettled():
            return "node-settled", {
                "node": event.node,
                "outcome": event.outcome.value,
                "attempts": event.attempts,
                "action_key": event.action_key,
                "duration_ms": _milliseconds(event.duration_seconds),
                "restored": event.restored,
                "detail": event.detail,
                "log": event.log,
                "exit_code": event.exit_code,
                "signal": event.signal,
                "value": None if event.value is None else json.loads(event.value),
                "asks": None if event.asks is None else event.asks.run,
                "question": None
                if event.asks is None
                else question_as_json(event.node, event.asks),
            }
        case Warned():
            return "warned", {"text": event.text, "node": event.node}
        case WaitingForRun():
            return "waiting-for-run", {
                "node": event.node,
                "for_run": event.run,
                "pid": event.pid,
                "since": event.since,
                "what": event.what,
                "host": event.host,
                "stopped": event.is_stopped,
            }
        case CancelRequested():
            return "cancel-requested", {
                "signal": event.signal,
                "immediate": event.immediate,
                "running": event.running,
                "cause": event.cause,
                "awaited": list(event.awaited),
            }
        case RunSettled():
            return "run-settled", {
                "status": event.status.value,
                "counts": dict(event.counts),
                "duration_ms": _milliseconds(event.duration_seconds),
                "outputs": {name: json.loads(text) for name, text in event.outputs.items()},
                "agreed_with": event.agreed_with,
            }
        case RunLost():
            return "run-lost", {"pid": event.pid, "host": event.host, "since": event.since}
        case _:
            assert_never(event)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
