"""Journal records in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from workspace import Workspace

from assay.cli.render.journal import SENTENCES, explain_record, render_record
from assay.cli.render.text import moment
from assay.engine.journal import Fact, Record
from assay.engine.states import RunId
from assay.plans.canonical import JsonValue

DIGEST = "ab" * 32
ANN = "ann on h (pid 7)"

EXAMPLES: list[tuple[Fact, dict[str, Any], str]] = [
    (
        Fact.RUN_CREATED,
        {
            "plan": "site",
            "file": "plan.toml",
            "digest": DIGEST,
            "targets": ["test"],
            "tags": ["fast"],
            "params": [["mode", "dev"]],
            "selected": 2,
            "jobs": 4,
            "flags": ["fail_fast"],
            "pid": 7,
            "host": "h",
            "parent_attempt": None,
        },
        "run began by pid 7 on h: plan `site` (plan.toml, abababababab); 2 nodes selected by test"
        " --tag fast; params mode=dev; with --fail-fast",
    ),
    (
        Fact.RUN_RESUMED,
        {
            "was": "failed",
            "fence": 2,
            "accepted": [["env MODE", "a", "b"]],
            "retry_failed": True,
            "flags": [],
            "pid": 8,
            "host": "h",
        },
        "run resumed by pid 8 on h; it was failed; with --retry-failed; accepted that env MODE"
        " was `a` and is `b`",
    ),
    (
        Fact.SURVIVORS_ASKED,
        {"attempt": "r-1", "pids": [3, 4], "why": "timed out"},
        "what still ran of attempt r-1 (pid 3, 4) was asked to end: timed out",
    ),
    (
        Fact.RUN_CLAIMED,
        {
            "from": {"host": "h", "boot": "b", "pid": 7, "nonce": "n", "fence": 1},
            "to": {"host": "h", "boot": "b", "pid": 8, "nonce": "m", "fence": 2},
            "evidence": "lease free",
            "purpose": "recovery",
        },
        "pid 8 on h took the run to deal with what was left (fence 2); it was pid 7 on h's (fence"
        " 1): lease free",
    ),
    (
        Fact.RUN_ABANDONED,
        {"host": "h", "boot": "b", "pid": 7, "nonce": "n", "fence": 1},
        "pid 7 on h, whose run it was under fence 1, found that out, ended what it ran and stopped",
    ),
    (
        Fact.CLAIM_REFUSED,
        {"why": "its owner lives", "pid": 7, "host": "h"},
        "somebody wanted to go on with the run and was refused: its owner lives (pid 7 on h)",
    ),
    (
        Fact.RUN_SETTLED,
        {
            "status": "partial",
            "counts": {"built": 2, "failed": 1},
            "duration_seconds": 1.5,
            "outputs": {"version": '"1.2"'},
        },
        'run ended: partial, 2 built, 1 failed in 1.50s; version = "1.2"',
    ),
    (
        Fact.RUN_SETTLED,
        {"status": "interrupted", "by": 9},
        "run ended: interrupted; its assay was gone, as pid 9 saw",
    ),
    (Fact.AGREED, {"with": "r", "selected": 1}, "nothing to do: 1 node as in run r"),
    (
        Fact.CANCEL_REQUESTED,
        {"by": ANN, "around": "q"},
        f"asked to stop by {ANN}, with run q around it",
    ),
    (
        Fact.CANCEL_REQUESTED,
        {"signal": 2, "immediate": True, "cause": "cancelled"},
        "SIGINT received: the run stops at once",
    ),
    (
        Fact.CANCEL_REQUESTED,
        {"signal": None, "immediate": False, "cause": "the deadline of 1s has passed"},
        "the deadline of 1s has passed: the run stops",
    ),
    (
        Fact.SOURCES_PINNED,
        {"paths": 3, "patterns": 1},
        "sources looked at: 3 paths, 1 pattern",
    ),
    (
        Fact.RESULT_SERVED,
        {
            "restored": ["a", "b", "c", "d"],
            "removed": ["e"],
            "trashed": [["f", "/w/.assay/trash/f"]],
        },
        "recorded result restored; put back `a`, `b`, `c` and 1 more; removed `e`; moved `f` to"
        " .assay/trash/f",
    ),
    (
        Fact.RESULT_EXPIRED,
        {"key": DIGEST, "recorded_by": "q"},
        "the result of run q is too old to serve",
    ),
    (
        Fact.ATTEMPT_BEGUN,
        {
            "attempt": "r-1",
            "number": 2,
            "action_key": DIGEST,
            "reason": "repeats it under its key",
            "tier": "irreversible",
            "idempotency_key": "k",
        },
        "attempt r-1 began, try 2, irreversible: repeats it under its key; its key: `k`",
    ),
    (
        Fact.ATTEMPT_SETTLED,
        {
            "attempt": "r-1",
            "end": "exited",
            "exit_code": 3,
            "signal": None,
            "detail": "",
            "duration_seconds": 0.25,
            "left_behind": [5],
            "kept_running": [],
            "put_back": ["a"],
            "effect": "unknown",
        },
        "attempt r-1 exited with code 3 in 0.25s; its effect: may or may not have happened; put"
        " back `a`; what it left running was ended (pid 5)",
    ),
    (
        Fact.ATTEMPT_SETTLED,
        {
            "attempt": "r-1",
            "end": "succeeded",
            "exit_code": 0,
            "recorded": {"address": DIGEST, "outputs": [["a", f"file:{DIGEST}"]]},
            "kept_running": [6],
        },
        "attempt r-1 ended well; 1 output recorded; left running (pid 6)",
    ),
    (
        Fact.ATTEMPT_SETTLED,
        {"attempt": "r-1", "end": "signalled", "signal": 9, "detail": "out of memory"},
        "attempt r-1 was ended by SIGKILL: out of memory",
    ),
    (
        Fact.ATTEMPT_SETTLED,
        {"attempt": "r-1", "end": "lost", "ended": [5]},
        "attempt r-1 is lost: its assay was gone; what it left running was ended (pid 5)",
    ),
    (
        Fact.BUNDLE_MADE,
        {"attempt": "r-1", "changes": [["a", "absent", f"file:{DIGEST}"]]},
        "attempt r-1 made 1 change in its private tree",
    ),
    (
        Fact.BUNDLE_LANDED,
        {"attempt": "r-1", "put_back": ["a"], "removed": [], "trashed": []},
        "what attempt r-1 made is in place; put back `a`",
    ),
    (
        Fact.ROLLED_BACK,
        {
            "attempt": "r-1",
            "why": "the run was rewound",
            "put_back": ["a"],
            "removed": [],
            "trashed": [],
            "left": ["b"],
            "undo": "ended well",
            "state": "rolled-back",
            "problem": None,
        },
        "attempt r-1 was rolled back, since the run was rewound; put back `a`; left what came"
        " since: `b`; its `undo` ended well",
    ),
    (
        Fact.ROLLED_BACK,
        {
            "attempt": "r-1",
            "why": "it did not end well",
            "undo": "ended with exit code 1",
            "state": "compensating",
            "problem": "its `undo` ended with exit code 1",
        },
        "attempt r-1 is not rolled back wholly, since it did not end well; its `undo` ended with"
        " exit code 1",
    ),
    (
        Fact.ROLLED_BACK,
        {"attempt": "r-1", "why": "its assay ended first", "state": "nothing"},
        "attempt r-1 had done nothing that was to be rolled back, since its assay ended first",
    ),
    (
        Fact.EFFECT_SETTLED,
        {"attempt": "r-1", "by": ANN, "done": True, "value": "1"},
        f"attempt r-1 settled as done by {ANN}, with the result 1",
    ),
    (
        Fact.EFFECTS_CLOSED,
        {"why": "the run completed", "attempts": ["q-1", "r-1"]},
        "no later run asks for the effects of q-1, r-1: the run completed",
    ),
    (
        Fact.REWOUND,
        {"to": "one", "by": ANN, "rolled_back": ["r-3", "r-2"], "left": ["r-4"]},
        f"rewound to `one` by {ANN}; takes back r-3, r-2; leaves r-4",
    ),
    (
        Fact.READS_MOVED,
        {"attempt": "r-1", "paths": ["a"]},
        "`a` changed while attempt r-1 ran",
    ),
    (
        Fact.RESULT_REPLACED,
        {
            "address": DIGEST,
            "path": "`a`",
            "was": f"file:{DIGEST}",
            "now": "absent",
            "recorded_by": "q",
            "recorded_seq": 4,
        },
        "gave another result than run q under the same key: `a` was file:abababababab and is"
        " absent",
    ),
    (
        Fact.RESULT_EVICTED,
        {"address": DIGEST, "recorded_by": "q", "why": "a blob is missing"},
        "the recorded result of run q serves no more: a blob is missing",
    ),
    (
        Fact.GENERATION_APPENDED,
        {"generation": 1, "nodes": ["cc[a]", "cc[b]"], "digest": DIGEST},
        "expanded to 2 nodes: `cc[a]`, `cc[b]`",
    ),
    (
        Fact.WAITED,
        {"for": "q", "attempt": "q-1", "what": "out/a"},
        "waited for attempt q-1 of run q, which held out/a",
    ),
    (
        Fact.WAITED,
        {"for": "q", "attempt": "q-1", "what": "out/a", "pids": [3, 4]},
        "waited for attempt q-1 of run q, which held out/a: its assay is gone, and what that had"
        " started still ran (pid 3 4)",
    ),
    (
        Fact.OUTPUTS_CLEARED,
        {"attempt": "r-2", "trashed": [["a", "/w/.assay/trash/r-2/a"]]},
        "before attempt r-2 what an earlier try had left was moved: `a` to .assay/trash/r-2/a",
    ),
    (
        Fact.LEFTOVERS_REMOVED,
        {"paths": ["a"]},
        "removed what node instances the plan no longer has had left: `a`",
    ),
    (
        Fact.BLOB_SET_ASIDE,
        {"digest": DIGEST, "to": "/w/.assay/damaged/x", "why": "its bytes are others"},
        "blob abababababab is damaged (its bytes are others) and kept as .assay/damaged/x",
    ),
    (
        Fact.DAMAGED,
        {
            "file": "/w/.assay/assay.db",
            "why": "no database",
            "kept_as": "/w/.assay/damaged/assay.db",
            "kept": {"runs": 3},
            "lost": ["journal"],
        },
        ".assay/assay.db was damaged (no database) and is kept as .assay/damaged/assay.db; not"
        " read to the end: journal",
    ),
    (
        Fact.DAMAGED,
        {"file": "/w/.assay/assay.db", "why": "2 are missing", "attempts": ["r-1", "r-2"]},
        ".assay/assay.db was older than what had been done: 2 are missing (r-1, r-2)",
    ),
    (
        Fact.CACHE_COLLECTED,
        {"results": [["a", DIGEST]], "max_size_bytes": None, "max_age_seconds": 60.0},
        "the cache was collected: 1 result removed",
    ),
    (Fact.CACHE_CLEARED, {"results": 2}, "the cache was cleared: 2 results removed"),
]


def a_record(kind: str, data: JsonValue, at: float = 1000.0, node: str | None = "n") -> Record:
    return Record(1, at, RunId("r"), node, kind, "run:r", 1, data)


def test_every_kind_of_fact_has_its_sentence() -> None:
    """A fact that can be journalled can be read; and each is tried below."""
    assert set(SENTENCES) == set(Fact)
    assert {fact for fact, _, _ in EXAMPLES} | {Fact.NODES_SETTLED} == set(Fact)


@pytest.mark.parametrize(("fact", "data", "sentence"), EXAMPLES)
def test_a_fact_reads_as_a_sentence(fact: Fact, data: dict[str, Any], sentence: str) -> None:
    """Who did what, to which attempt, and why; digests by their first twelve digits."""
    assert explain_record(a_record(fact, data)) == [("n", sentence)]


def test_settlements_are_told_node_by_node() -> None:
    """One record may settle many nodes: each has a line of its own."""
    outcomes: JsonValue = [
        ["a", "built", "", DIGEST, None],
        ["b", "ambiguous", "was done", None, None, ["q", "b"]],
        ["c", "clean"],
    ]
    record = a_record(Fact.NODES_SETTLED, {"outcomes": outcomes}, node=None)
    assert explain_record(record) == [("a", "built"), ("b", "ambiguous: was done"), ("c", "clean")]


def _spoil(data: dict[str, Any]) -> Iterator[JsonValue]:
    """The data as an older or a damaged record may hold it."""
    yield from (None, [], {}, "text", 5)
    for key in data:
        yield {each: value for each, value in data.items() if each != key}
        for odd in (
            None,
            -1,
            1e400,
            "\udcff\n",
            [],
            [[]],
            [None],
            [["a"]],
            [["a", 1, 2]],
            {"": {}},
        ):
            yield {**data, key: odd}


@pytest.mark.parametrize("fact", Fact)
def test_a_record_that_holds_something_else_is_shown_all_the_same(fact: Fact) -> None:
    """An older or a damaged record is told as far as it goes, at worst as its data."""
    given: list[dict[str, Any]] = [data for each, data, _ in EXAMPLES if each is fact]
    given = given or [{"outcomes": [["a", "built", "", None, None]]}]
    for data in (spoilt for each in given for spoilt in _spoil(each)):
        for at in (1000.0, float("inf"), 1e300):
            lines = render_record(a_record(fact, data, at), with_run=True, colour=True)
            assert all(line.endswith("\n") for line in lines)


def test_what_no_sentence_fits_is_shown_as_compact_data() -> None:
    """The kind and what is there, digests shortened and nothing without an end."""
    assert explain_record(a_record(Fact.REWOUND, {"to": "a"})) == [("n", 'rewound {"to":"a"}')]
    assert explain_record(a_record("of-later", {"key": DIGEST})) == [
        ("n", 'of-later {"key":"abababababab"}')
    ]
    [(_, text)] = explain_record(a_record("of-later", ["x" * 1000]))
    assert len(text) < 400
    assert text.endswith("...")


def test_a_line_names_time_run_and_node() -> None:
    """In columns; the run only where records of several are told."""
    record = a_record(Fact.AGREED, {"with": "q", "selected": 1})
    told = "nothing to do: 1 node as in run q\n"
    assert list(render_record(record, with_run=True, colour=False)) == [
        f"{moment(1000.0)} r         n           {told}"
    ]
    assert list(render_record(record, with_run=False, colour=False)) == [
        f"{moment(1000.0)}  n           {told}"
    ]


def test_the_journal_is_read_by_people_and_programs(workspace: Workspace) -> None:
    """In words; with `--json` every record as it is kept."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "echo 1 > o"\nwrites = ["o"]\ncache = true\n')
    assert workspace.assay("run").code == 0
    told = workspace.assay("journal", "last")
    assert "run began by pid " in told.out
    assert " began: no recorded result" in told.out
    assert "1 output recorded" in told.out
    assert "run ended: completed, 1 built in " in told.out
    assert "{" not in told.out
    assert not any(len(word) >= 64 for word in told.out.split())
    raw = [
        json.loads(line) for line in workspace.assay("journal", "last", "--json").out.splitlines()
    ]
    assert {each["kind"] for each in raw} >= {"run-created", "attempt-begun", "attempt-settled"}
    assert len(raw[0]["data"]["digest"]) == 64
