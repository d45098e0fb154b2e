"""`assay settle`: an operator says whether an effect happened."""

from __future__ import annotations

import json
import os

from assay.cli.call import Call
from assay.cli.caller import describe_me
from assay.cli.errors import ExitCode, UsageError
from assay.cli.history import reading_store, writing_store
from assay.cli.options import Values
from assay.cli.render.text import moment, one_line
from assay.engine.cancelling import recover_all
from assay.engine.clock import SystemClock
from assay.engine.effects import EffectRow
from assay.engine.intentions import may_be_done, may_be_not_done, stands
from assay.engine.kept_plans import read_nodes
from assay.engine.resumption import may_be_gone_on_with
from assay.engine.settling import (
    Said,
    find_effect,
    is_half_taken_back,
    settle_effect,
)
from assay.plans.canonical import canonical_json
from assay.plans.model import EntryKind, Node, RelPath, ResultKind


def perform(call: Call) -> int:
    values = call.values
    if len(values.words) != 2:
        raise UsageError(
            "`assay settle` needs a run and a node",
            hint="`assay settle RUN NODE --done` or `--not-done`",
        )
    done = values.flag("done")
    if done == values.flag("not_done"):
        raise UsageError("Say either `--done` or `--not-done`")
    name = values.words[1]
    with reading_store() as asked:
        given, root = asked.runs.find(values.words[0]), asked.root
    clock = SystemClock()
    with writing_store(root, call.err) as store:
        # Whichever run died: what it was taking back may be the work of this one.
        for text in recover_all(store, clock).told:
            call.err.write(f"{one_line(text)}\n")
        effect = find_effect(store, store.runs.get(given.id), name)
        run = store.runs.get(effect.run)
        node = read_nodes(store, run).get(effect.node)
        _check_sense(effect, name, done=done)
        if is_half_taken_back(store, effect, clock):
            call.err.write(
                f"warning: `{one_line(name)}` was being rolled back: its files are not all as they"
                " were before it, and stay so\n"
            )
        value = _read_value(values, effect, node, done=done)
        earlier, is_new = settle_effect(
            store, effect, node, done=done, value=value, by=describe_me(), clock=clock
        )
        runs = (store.runs.get(given.id), store.runs.get(run.id))
        to_resume = next((each.id for each in runs if may_be_gone_on_with(store, each)), None)
    for path in _find_missing(root, node) if done and node is not None else ():
        text = f"`{path}`, which it declares to write, is not there: who reads that will fail"
        call.err.write(f"warning: Node `{one_line(name)}`: {one_line(text)}\n")
    what = _describe(earlier, done=done, value=value, is_new=is_new)
    resume = "" if to_resume is None else f"`assay resume {to_resume}` goes on with that run, "
    call.err.write(
        f"`{one_line(name)}` of run {run.id} {what}\n{resume}`assay run` begins a new one\n"
    )
    return ExitCode.DONE


def _describe(earlier: Said | None, *, done: bool, value: str | None, is_new: bool) -> str:
    """What counts from now on, and what was said before that."""
    counts = "counts as done" if done else "counts as not done: it will be performed"
    if earlier is None:
        return counts
    as_what = "done" if earlier.done else "not done"
    before = f"was settled as {as_what} at {moment(earlier.at)} by {one_line(earlier.by)}"
    if not is_new:
        return f"{before}: that stands, and nothing is recorded anew"
    if earlier.done and done and value is not None and value != earlier.value:
        return f"{before}; its result is {one_line(value)} from now on"
    if earlier.done and done:
        return f"{before}; now it counts as done for the content that is asked about, too"
    return f"{before}; now it {counts}"


def _find_missing(root: str, node: Node) -> list[RelPath]:
    return [
        entry.path
        for entry in node.writes
        if entry.kind is EntryKind.FILE
        and not (entry.exclude or entry.optional)
        and not os.path.lexists(f"{root}/{entry.path}")
    ]


def _check_sense(effect: EffectRow, name: str, *, done: bool) -> None:
    """Refuses what cannot be the case."""
    if done and not may_be_done(effect):
        raise UsageError(
            f"What `{name}` wrote has been put back, so it is not done",
            hint="`--not-done`, once what lies elsewhere has been taken back by hand",
        )
    if not done and not may_be_not_done(effect):
        raise UsageError(
            f"`{name}` is done, and what it wrote stands",
            hint=f"`assay rewind {effect.run} --to NODE` takes it back",
        )


def _read_value(values: Values, effect: EffectRow, node: Node | None, *, done: bool) -> str | None:
    """The node's result as canonical JSON: what is on record where it is done, unless told
    otherwise."""
    text, name = values.text("value"), effect.node
    declares = node is not None and node.result is not None
    if not text and done and stands(effect):
        return effect.value
    if not text:
        if done and declares:
            raise UsageError(
                f"`{name}` has a result, which others may read: say what it is",
                hint=f"`--value JSON`, for a text `--value '\"1.2.3\"'`; the log of the attempt,"
                f" `assay log {name}`, may tell",
            )
        return None
    if not done:
        raise UsageError("`--value` says what was done, so it goes with `--done`")
    if node is not None and not declares:
        raise UsageError(f"`{name}` has no result: its plan declares none")
    try:
        value = json.loads(text)
        written = canonical_json(value).decode()
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"`--value` must be JSON: {error}", hint="A text stands in quotes: `'\"1.2.3\"'`"
        ) from None
    if node is not None and node.result is ResultKind.TEXT and not isinstance(value, str):
        raise UsageError(
            f"`{name}` has a text as its result, so `--value` must be one",
            hint=f"In JSON a text stands in quotes: `--value '{json.dumps(text)}'`",
        )
    return written
