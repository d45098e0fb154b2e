"""Journal records in words: one sentence for each kind of fact, for a reader who knows neither
the store nor the code.

Does not know where records come from. A record that lacks what its sentence tells, or holds
something else there (an older or a damaged one), is shown as compact data instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from assay.cli.render.standings import EFFECT_WORDS
from assay.cli.render.text import count, duration, moment, one_line, paint, signal_name
from assay.engine.journal import Fact, Record
from assay.engine.states import AttemptEnd, EffectState, Outcome
from assay.plans.canonical import JsonValue

_DIGEST: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_MOST_NAMES: Final = 3
_MOST_CHARACTERS: Final = 300
_NODE_WIDTH: Final = 10

Line = tuple[str | None, str]
"""The node it tells of, if any, and the sentence."""


class _Odd(Exception):
    """The record does not hold what its kind promises."""


def render_record(record: Record, *, with_run: bool, colour: bool) -> Iterator[str]:
    """The record's lines: time, run (`with_run`), node, sentence. One that tells of many nodes
    has a line for each."""
    run = f" {record.run or '-':<8}" if with_run else ""
    for node, text in explain_record(record):
        # Padded before it is painted: escapes take no room on a terminal.
        name = paint(f"{one_line(node or ''):<{_NODE_WIDTH}}", "bold", colour)
        yield f"{moment(record.at)}{run}  {name}  {one_line(text)}".rstrip() + "\n"


def explain_record(record: Record) -> list[Line]:
    """What the record tells, as (node, sentence)."""
    explain = _BY_KIND.get(record.kind)
    if explain is None:
        return [(record.node, _compact(record))]  # written by a later version
    try:
        found = explain(_Told(record.data))
    except _Odd:
        return [(record.node, _compact(record))]
    if isinstance(found, str):
        return [(record.node, _shorten(found))]
    return [(node, _shorten(text)) for node, text in found]


def _compact(record: Record) -> str:
    data = json.dumps(record.data, ensure_ascii=False, separators=(",", ":"))
    shown = _shorten(data if record.data is not None else "")
    if len(shown) > _MOST_CHARACTERS:
        shown = f"{shown[:_MOST_CHARACTERS]}..."
    return f"{record.kind} {shown}".rstrip()


def _shorten(text: str) -> str:
    return _DIGEST.sub(r"\1", text)


class _Told:
    """What a record holds, read with care: everything raises _Odd where it is not of the kind
    that is asked for, and, without a default, where it is not there."""

    def __init__(self, data: JsonValue) -> None:
        if not isinstance(data, dict):
            raise _Odd
        self._data: Mapping[str, JsonValue] = data

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._data.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise _Odd
        return value

    def part(self, key: str) -> _Told:
        return _Told(self._data.get(key))

    def number(self, key: str) -> int:
        value = self._data.get(key)
        if not isinstance(value, int):
            raise _Odd
        return value

    def seconds(self, key: str) -> str:
        """As ` in 1.20s`; nothing where it is not known."""
        value = self._data.get(key)
        if value is None:
            return ""
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise _Odd
        return f" in {duration(value)}"

    def flag(self, key: str, *, default: bool | None = False) -> bool:
        value = self._data.get(key, default)
        if not isinstance(value, bool):
            raise _Odd
        return value

    def items(self, key: str) -> list[JsonValue]:
        """Nothing where it is not there."""
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise _Odd
        return value

    def texts(self, key: str) -> list[str]:
        return _texts(self.items(key))

    def pairs(self, key: str) -> list[list[str]]:
        return [_texts(_list(each)) for each in self.items(key)]

    def pids(self, key: str) -> str:
        """As ` (pid 3, 5)`; nothing where there are none."""
        pids = self.items(key)
        return f" (pid {', '.join(map(str, pids))})" if pids else ""

    def json(self, key: str) -> str:
        return json.dumps(self._data.get(key), ensure_ascii=False)

    def object(self, key: str) -> _Told:
        return _Told(self._data.get(key))

    def all_texts(self) -> dict[str, str]:
        texts = {key: value for key, value in self._data.items() if isinstance(value, str)}
        if len(texts) != len(self._data):
            raise _Odd
        return texts

    def counts(self) -> str:
        """`3 built, 1 failed`; empty where none is told."""
        value = self._data.get("counts") or {}
        if not isinstance(value, dict):
            raise _Odd
        order = [outcome.value for outcome in Outcome if outcome in value]
        names = [*order, *(name for name in value if name not in order)]
        return ", ".join(f"{value[name]} {name.replace('-', ' ')}" for name in names)


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise _Odd
    return value


def _texts(values: list[JsonValue]) -> list[str]:
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values):
        raise _Odd
    return texts


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _place(path: str) -> str:
    """A path in the store from there on: what is before it is the same in every line."""
    _, found, rest = path.rpartition("/.assay/")
    return f".assay/{rest}" if found else path


def _moves(pairs: list[list[str]]) -> str:
    if any(len(pair) != 2 for pair in pairs):
        raise _Odd
    shown = ", ".join(f"`{path}` to {_place(to)}" for path, to in pairs[:_MOST_NAMES])
    more = len(pairs) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"


def _changes(told: _Told, put_back: str = "put_back") -> list[str]:
    """What a restore has changed in the workspace, as clauses."""
    found = []
    for key, verb in ((put_back, "put back"), ("removed", "removed")):
        names = told.texts(key)
        if names:
            found.append(f"{verb} {_names(names)}")
    trashed = told.pairs("trashed")
    if trashed:
        found.append(f"moved {_moves(trashed)}")
    return found


def _join(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def _owner(told: _Told) -> str:
    host = f" on {told.text('host')}" if told.has("host") else ""
    return f"pid {told.number('pid')}{host}"


def _flags(told: _Told) -> str:
    flags = [f"--{flag.replace('_', '-')}" for flag in told.texts("flags")]
    if told.flag("retry_failed"):
        flags.append("--retry-failed")
    return f"with {' '.join(flags)}" if flags else ""


def _run_created(told: _Told) -> str:
    asked = " ".join([*told.texts("targets"), *(f"--tag {tag}" for tag in told.texts("tags"))])
    params = " ".join("=".join(pair) for pair in told.pairs("params"))
    return _join(
        f"run began by {_owner(told)}: plan `{told.text('plan')}` ({told.text('file')},"
        f" {told.text('digest')})",
        f"{count(told.number('selected'), 'node')} selected" + (f" by {asked}" if asked else ""),
        f"params {params}" if params else "",
        _flags(told),
        f"inside attempt {told.text('parent_attempt')}" if told.has("parent_attempt") else "",
    )


def _run_resumed(told: _Told) -> str:
    changes = told.pairs("accepted")
    if any(len(change) != 3 for change in changes):
        raise _Odd
    accepted = ", ".join(f"{what} was `{was}` and is `{now}`" for what, was, now in changes)
    return _join(
        f"run resumed by {_owner(told)}; it was {told.text('was')}",
        _flags(told),
        f"accepted that {accepted}" if accepted else "",
    )


def _run_claimed(told: _Told) -> str:
    purpose, (former, owner) = told.text("purpose"), (told.part("from"), told.part("to"))
    what = _PURPOSES.get(purpose, purpose)
    return (
        f"{_process(owner)} took the run to {what} (fence {owner.number('fence')}); it was"
        f" {_process(former)}'s (fence {former.number('fence')}): {told.text('evidence')}"
    )


def _run_abandoned(told: _Told) -> str:
    return (
        f"{_process(told)}, whose run it was under fence {told.number('fence')}, found that out,"
        " ended what it ran and stopped"
    )


_PURPOSES: Final = {
    "recovery": "deal with what was left",
    "resume": "go on with it",
    "rewind": "take back what it did",
}


def _process(told: _Told) -> str:
    return f"pid {told.number('pid')} on {told.text('host')}"


def _survivors_asked(told: _Told) -> str:
    return (
        f"what still ran of attempt {told.text('attempt')}{told.pids('pids')} was asked to end:"
        f" {told.text('why')}"
    )


def _claim_refused(told: _Told) -> str:
    owner = f" ({_owner(told)})" if told.has("pid") else ""
    return f"somebody wanted to go on with the run and was refused: {told.text('why')}{owner}"


def _run_settled(told: _Told) -> str:
    if told.has("by"):
        return f"run ended: {told.text('status')}; its assay was gone, as pid {told.json('by')} saw"
    counts = told.counts()
    outputs = told.object("outputs").all_texts() if told.has("outputs") else {}
    ended = f"run ended: {told.text('status')}" + (f", {counts}" if counts else "")
    return _join(
        ended + told.seconds("duration_seconds"),
        ", ".join(f"{name} = {value}" for name, value in outputs.items()),
    )


def _agreed(told: _Told) -> str:
    nodes = count(told.number("selected"), "node")
    return f"nothing to do: {nodes} as in run {told.text('with')}"


def _cancel_requested(told: _Told) -> str:
    if told.has("by"):
        around = f", with run {told.text('around')} around it" if told.has("around") else ""
        return f"asked to stop by {told.text('by')}{around}"
    signal = told.number("signal") if told.has("signal") else None
    cause = told.text("cause", "cancelled")
    why = cause if signal is None else f"{signal_name(signal)} received"
    return f"{why}: the run stops{' at once' if told.flag('immediate') else ''}"


def _sources_pinned(told: _Told) -> str:
    patterns = count(told.number("patterns"), "pattern")
    return f"sources looked at: {count(told.number('paths'), 'path')}, {patterns}"


def _result_served(told: _Told) -> str:
    return _join("recorded result restored", *_changes(told, "restored"))


def _result_expired(told: _Told) -> str:
    return f"the result of run {told.text('recorded_by')} is too old to serve"


def _attempt_begun(told: _Told) -> str:
    number = told.number("number")
    again = f", try {number}" if number > 1 else ""
    tier = f", {told.text('tier')}" if told.has("tier") else ""
    key = f"; its key: `{told.text('idempotency_key')}`" if told.has("idempotency_key") else ""
    reason = told.text("reason", "")
    why = f": {reason}" if reason else ""
    return f"attempt {told.text('attempt')} began{again}{tier}{why}{key}"


_ENDS: Final[dict[AttemptEnd, str]] = {
    AttemptEnd.SUCCEEDED: "ended well",
    AttemptEnd.EXITED: "exited with code {exit_code}",
    AttemptEnd.SIGNALLED: "was ended by {signal}",
    AttemptEnd.TIMED_OUT: "timed out",
    AttemptEnd.CANCELLED: "was cancelled",
    AttemptEnd.NOT_STARTED: "could not be started",
    AttemptEnd.BROKE_BOUNDARY: "did not keep its boundary",
    AttemptEnd.LOST: "is lost: its assay was gone",
}


def describe_effect_state(state: str) -> str:
    """As EFFECT_WORDS has it; what that does not know, as it is."""
    return EFFECT_WORDS[EffectState(state)] if state in set(EffectState) else state


def _attempt_settled(told: _Told) -> str:
    end = told.text("end")
    if end not in set(AttemptEnd):
        raise _Odd
    how = _ENDS[AttemptEnd(end)].format(
        exit_code=told.json("exit_code"),
        signal=signal_name(told.number("signal")) if told.has("signal") else "a signal",
    )
    detail = told.text("detail", "")
    recorded = told.object("recorded").items("outputs") if told.has("recorded") else []
    kept = told.pids("kept_running")
    left = told.pids("left_behind") or told.pids("ended")
    return _join(
        f"attempt {told.text('attempt')} {how}{told.seconds('duration_seconds')}"
        + (f": {detail}" if detail and detail != how else ""),
        f"its effect: {describe_effect_state(told.text('effect'))}" if told.has("effect") else "",
        f"{count(len(recorded), 'output')} recorded" if recorded else "",
        f"put back {_names(told.texts('put_back'))}" if told.items("put_back") else "",
        f"what it left running was ended{left}" if left else "",
        f"left running{kept}" if kept else "",
    )


def _bundle_made(told: _Told) -> str:
    changes = count(len(told.items("changes")), "change")
    return f"attempt {told.text('attempt')} made {changes} in its private tree"


def _bundle_landed(told: _Told) -> str:
    return _join(f"what attempt {told.text('attempt')} made is in place", *_changes(told))


def _rolled_back(told: _Told) -> str:
    problem = told.text("problem", "")
    undo = told.text("undo", "")
    left = told.texts("left")
    state = told.text("state")
    if state == EffectState.ROLLED_BACK:
        how = "was rolled back"
    elif state == EffectState.NOTHING:
        how = "had done nothing that was to be rolled back"
    else:
        how = "is not rolled back wholly"
    return _join(
        f"attempt {told.text('attempt')} {how}, since {told.text('why')}",
        *_changes(told),
        f"left what came since: {_names(left)}" if left else "",
        f"its `undo` {undo}" if undo and not problem else "",
        problem,
    )


def _effect_settled(told: _Told) -> str:
    how = "done" if told.flag("done", default=None) else "not done"
    value = f", with the result {told.text('value')}" if told.has("value") else ""
    return f"attempt {told.text('attempt')} settled as {how} by {told.text('by')}{value}"


def _effects_closed(told: _Told) -> str:
    attempts = ", ".join(told.texts("attempts"))
    return f"no later run asks for the effects of {attempts}: {told.text('why')}"


def _rewound(told: _Told) -> str:
    back, left = told.texts("rolled_back"), told.texts("left")
    return _join(
        f"rewound to `{told.text('to')}` by {told.text('by')}",
        f"takes back {', '.join(back)}" if back else "takes nothing back",
        f"leaves {', '.join(left)}" if left else "",
    )


def _reads_moved(told: _Told) -> str:
    return f"{_names(told.texts('paths'))} changed while attempt {told.text('attempt')} ran"


def _result_replaced(told: _Told) -> str:
    return (
        f"gave another result than run {told.text('recorded_by')} under the same key:"
        f" {told.text('path')} was {told.text('was')} and is {told.text('now')}"
    )


def _result_evicted(told: _Told) -> str:
    by = f" of run {told.text('recorded_by')}" if told.has("recorded_by") else ""
    return f"the recorded result{by} serves no more: {told.text('why')}"


def _nodes_settled(told: _Told) -> list[Line]:
    lines: list[Line] = []
    for each in told.items("outcomes"):
        told_of = _list(each)
        if len(told_of) < 2:
            raise _Odd
        node, outcome, detail = [*told_of, ""][:3]
        if not (isinstance(node, str) and isinstance(outcome, str) and isinstance(detail, str)):
            raise _Odd
        lines.append((node, f"{outcome}: {detail}" if detail else outcome))
    return lines


def _generation_appended(told: _Told) -> str:
    nodes = told.texts("nodes")
    shown = f": {_names(nodes)}" if nodes else ""
    return f"expanded to {count(len(nodes), 'node')}{shown}"


def _waited(told: _Told) -> str:
    text = (
        f"waited for attempt {told.text('attempt')} of run {told.text('for')}, which held"
        f" {told.text('what')}"
    )
    if not told.has("pids"):
        return text
    pids = " ".join(map(str, told.items("pids")))
    return f"{text}: its assay is gone, and what that had started still ran (pid {pids})"


def _outputs_cleared(told: _Told) -> str:
    moved = _moves(told.pairs("trashed"))
    return f"before attempt {told.text('attempt')} what an earlier try had left was moved: {moved}"


def _leftovers_removed(told: _Told) -> str:
    paths = _names(told.texts("paths"))
    return f"removed what node instances the plan no longer has had left: {paths}"


def _blob_set_aside(told: _Told) -> str:
    return (
        f"blob {told.text('digest')} is damaged ({told.text('why')}) and kept as"
        f" {_place(told.text('to'))}"
    )


def _damaged(told: _Told) -> str:
    if told.has("attempts"):
        return (
            f"{_place(told.text('file'))} was older than what had been done: {told.text('why')}"
            f" ({', '.join(told.texts('attempts'))})"
        )
    lost = told.texts("lost")
    return _join(
        f"{_place(told.text('file'))} was damaged ({told.text('why')}) and is kept as"
        f" {_place(told.text('kept_as'))}",
        f"not read to the end: {', '.join(lost)}" if lost else "all of it could be read",
    )


def _cache_collected(told: _Told) -> str:
    return f"the cache was collected: {count(len(told.items('results')), 'result')} removed"


def _cache_cleared(told: _Told) -> str:
    return f"the cache was cleared: {count(told.number('results'), 'result')} removed"


SENTENCES: Final[Mapping[Fact, Callable[[_Told], str | list[Line]]]] = {
    Fact.RUN_CREATED: _run_created,
    Fact.RUN_RESUMED: _run_resumed,
    Fact.RUN_CLAIMED: _run_claimed,
    Fact.RUN_ABANDONED: _run_abandoned,
    Fact.SURVIVORS_ASKED: _survivors_asked,
    Fact.CLAIM_REFUSED: _claim_refused,
    Fact.RUN_SETTLED: _run_settled,
    Fact.AGREED: _agreed,
    Fact.CANCEL_REQUESTED: _cancel_requested,
    Fact.SOURCES_PINNED: _sources_pinned,
    Fact.RESULT_SERVED: _result_served,
    Fact.RESULT_EXPIRED: _result_expired,
    Fact.ATTEMPT_BEGUN: _attempt_begun,
    Fact.ATTEMPT_SETTLED: _attempt_settled,
    Fact.BUNDLE_MADE: _bundle_made,
    Fact.BUNDLE_LANDED: _bundle_landed,
    Fact.ROLLED_BACK: _rolled_back,
    Fact.EFFECT_SETTLED: _effect_settled,
    Fact.EFFECTS_CLOSED: _effects_closed,
    Fact.REWOUND: _rewound,
    Fact.READS_MOVED: _reads_moved,
    Fact.RESULT_REPLACED: _result_replaced,
    Fact.RESULT_EVICTED: _result_evicted,
    Fact.NODES_SETTLED: _nodes_settled,
    Fact.GENERATION_APPENDED: _generation_appended,
    Fact.WAITED: _waited,
    Fact.OUTPUTS_CLEARED: _outputs_cleared,
    Fact.LEFTOVERS_REMOVED: _leftovers_removed,
    Fact.BLOB_SET_ASIDE: _blob_set_aside,
    Fact.DAMAGED: _damaged,
    Fact.CACHE_COLLECTED: _cache_collected,
    Fact.CACHE_CLEARED: _cache_cleared,
}
"""The sentence of each kind of fact; there is one for every kind."""

_BY_KIND: Final = {fact.value: explain for fact, explain in SENTENCES.items()}
