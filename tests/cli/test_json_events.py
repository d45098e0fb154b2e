"""`--json`: every kind of event as a line."""

from __future__ import annotations

import io
import json
from typing import Any, get_args

from assay.cli.render.json_events import JsonRenderer, describe_event
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
from assay.engine.states import ActionKey, AttemptEnd, AttemptId, Outcome, RunId, RunStatus
from assay.plans.model import NodeName

RUN = RunId("1a2b3c4d")
NODE = NodeName("a\né\udcff")

EVENTS: list[Event] = [
    Warned("before the run"),
    RunStarted(RUN, "site", "d" * 64, 3, 2),
    NodesAppended(NODE, (NODE,), 1),
    NodeStarted(NODE, AttemptId("1a2b3c4d-1"), 1, "/log", "no recorded result"),
    AttemptFailed(
        NODE, AttemptId("1a2b3c4d-1"), 1, 3, AttemptEnd.EXITED, 2, None, "", "/log", 0.5, 1.0
    ),
    NodeSettled(NODE, Outcome.BUILT, 2, ActionKey("k"), 1.2345678, value='{"a":[1]}'),
    WaitingForRun(NODE, RunId("99999999"), 12, 1700000000.5, "out/"),
    CancelRequested(2, immediate=False, running=1),
    RunSettled(RUN, RunStatus.COMPLETED, {"built": 1}, 2.0, {"v": '"1.2"'}, None),
    RunLost(RUN, 12, "other", 1700000000.5),
]


def test_every_line_has_its_place_in_the_run() -> None:
    """Each line has event, run, seq and at; seq counts without gaps."""
    out = io.StringIO()
    times = iter(range(100))
    renderer = JsonRenderer(out, lambda: 1000.0 + next(times))
    for event in EVENTS:
        renderer.tell(event)

    lines: list[dict[str, Any]] = [json.loads(line) for line in out.getvalue().splitlines()]

    assert [line["seq"] for line in lines] == list(range(1, len(EVENTS) + 1))
    assert [line["at"] for line in lines] == [1000.0 + n for n in range(len(EVENTS))]
    assert [line["run"] for line in lines] == [None] + [RUN] * (len(EVENTS) - 1)
    assert [line["event"] for line in lines] == [
        "warned",
        "run-started",
        "nodes-appended",
        "node-started",
        "attempt-failed",
        "node-settled",
        "waiting-for-run",
        "cancel-requested",
        "run-settled",
        "run-lost",
    ]
    assert out.getvalue().isascii()


def test_a_settled_node_tells_all_of_itself() -> None:
    """A settled node has node, outcome, attempts, action_key, duration_ms and its value."""
    name, fields = describe_event(EVENTS[5])

    assert name == "node-settled"
    assert fields == {
        "node": NODE,
        "outcome": "built",
        "attempts": 2,
        "action_key": "k",
        "duration_ms": 1234.568,
        "restored": 0,
        "detail": "",
        "log": None,
        "exit_code": None,
        "signal": None,
        "value": {"a": [1]},
        "asks": None,
        "question": None,
    }


def test_the_end_tells_status_counts_and_outputs() -> None:
    """The last line has status, counts and the plan's outputs as JSON values."""
    assert describe_event(EVENTS[8]) == (
        "run-settled",
        {
            "status": "completed",
            "counts": {"built": 1},
            "duration_ms": 2000.0,
            "outputs": {"v": "1.2"},
            "agreed_with": None,
        },
    )


def test_names_of_any_kind_survive() -> None:
    """C76, C121 A name with line ends, letters and stray bytes is the same after decoding."""
    out = io.StringIO()
    JsonRenderer(out, lambda: 0.0).tell(EVENTS[3])

    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue())["node"] == NODE


def test_every_event_is_covered_here() -> None:
    """A new kind of event cannot be forgotten by this file."""
    assert {type(event) for event in EVENTS} == set(get_args(Event))
