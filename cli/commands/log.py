"""`assay log`: the output of a node's latest attempt, byte for byte, streamed."""

from __future__ import annotations

import re

from assay.cli.call import Call
from assay.cli.errors import ExitCode, UsageError
from assay.cli.history import reading_store
from assay.cli.render.stream import Stream
from assay.engine.attempts import AttemptRow
from assay.engine.runs import RunRow
from assay.engine.states import AttemptId
from assay.engine.store import Store
from assay.plans.diagnostics import suggest
from assay.plans.model import NodeName

_ATTEMPT = re.compile(r"[0-9a-f]{8}-[0-9]+")
_PIECE_BYTES = 256 * 1024
_RUNS_SEARCHED = 100


def perform(call: Call) -> int:
    with reading_store() as store:
        attempt = find_attempt(store, call.values.words[0], call.values.text("run"))
    if not copy_log(attempt.log, call.out):
        call.err.write(f"attempt {attempt.id} printed nothing, or its log has been removed\n")
    return ExitCode.DONE


def find_attempt(store: Store, word: str, run: str) -> AttemptRow:
    """What an attempt's id or a node's name means. Raises UsageError."""
    if _ATTEMPT.fullmatch(word):
        attempt = store.attempts.get(AttemptId(word))
        if attempt is not None:
            return attempt
    node = NodeName(word)
    if run:
        row = store.runs.find(run)
        attempts = store.attempts.of_run(row.id)
        found = _last(attempts, node)
        if found is None:
            executed = {each.node for each in attempts if each.number}
            known = suggest(word, executed)
            raise UsageError(
                f"`{word}` did not execute in run {row.id}",
                hint=f"Did you mean `{known}`?"
                if known
                else f"`assay log {word}` finds its latest",
            )
        return found
    rows = store.runs.list(_RUNS_SEARCHED)
    found = _latest(store, rows, node)
    if found is None:
        raise UsageError(
            f"No attempt of `{word}` is recorded", hint="`assay show` lists the latest attempts"
        )
    return found


def copy_log(path: str, out: Stream) -> bool:
    """Whether there was a log: one that stayed empty is not kept."""
    try:
        with open(path, "rb") as file:
            while out.failure is None and (piece := file.read(_PIECE_BYTES)):
                out.write_bytes(piece)
    except FileNotFoundError:
        return False
    return True


def _latest(store: Store, rows: list[RunRow], node: NodeName) -> AttemptRow | None:
    """The node's newest attempt under any plan file that ran lately."""
    files = dict.fromkeys(row.plan_file for row in rows)
    found = [store.attempts.last_of(node, file) for file in files]
    there = [attempt for attempt in found if attempt is not None]
    return max(there, key=lambda attempt: attempt.began_at, default=None)


def _last(attempts: list[AttemptRow], node: NodeName) -> AttemptRow | None:
    """The last one that executed; number 0 is a restore, which prints nothing."""
    return next((each for each in reversed(attempts) if each.node == node and each.number), None)
