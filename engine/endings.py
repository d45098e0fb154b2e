"""How attempts end: a result recorded, a difference from an earlier one resolved, a failure
retried or final.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from assay.engine import preimages
from assay.engine.admission import demand_of
from assay.engine.attempt import land_isolated
from assay.engine.bench import Executed
from assay.engine.blobs import BlobCorrupt, BlobMissing
from assay.engine.denials import find_denials
from assay.engine.dispatch import Dispatch
from assay.engine.effects import EffectRow
from assay.engine.events import (
    AttemptFailed,
    Question,
)
from assay.engine.filesystem import FilesystemError, read_end
from assay.engine.intentions import Perform
from assay.engine.journal import Fact
from assay.engine.keys import is_cacheable
from assay.engine.landlock import find_support
from assay.engine.materialize import CannotRestore, Restored, restore
from assay.engine.performing import Performing
from assay.engine.restoring import Restoring
from assay.engine.results import ResultRow, result_to_json
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.run_state import Queued, RunState
from assay.engine.settlement import Settlement
from assay.engine.states import (
    ABSENT,
    NOTHING_LEFT,
    AttemptEnd,
    EffectState,
    NodeState,
    Outcome,
    State,
)
from assay.engine.workplace import NETWORK
from assay.plans.canonical import JsonValue
from assay.plans.entries import escape_entry
from assay.plans.model import (
    Background,
    Boundary,
    RelPath,
    Tier,
    When,
)

HINT_BYTES: Final = 4096
"""How much of a failed command's output is searched for the name of a variable."""


@dataclass(slots=True)
class _Ending:
    """What the next commit says of an attempt: completed while it is judged."""

    fact: dict[str, JsonValue]
    result: ResultRow | None = None
    effect: EffectRow | None = None


class Endings:
    """Takes what workers report of attempts."""

    def __init__(
        self,
        run: RunState,
        settlement: Settlement,
        restoring: Restoring,
        dispatch: Dispatch,
        performing: Performing,
    ) -> None:
        self._run = run
        self._settlement = settlement
        self._restoring = restoring
        self._dispatch = dispatch
        self._performing = performing
        self._backing_off: dict[int, Executed] = {}
        """The failed try of each node that is to be tried again."""

    def end_attempt(self, executed: Executed) -> None:
        if executed.bundle is not None:
            self._record_bundle(executed)
            return
        assignment = executed.assignment
        node, row = assignment.node, assignment.row
        keeps = node.background is Background.KEEP
        del self._dispatch.running[row.id]
        self._run.rerunning.discard(assignment.index)
        self._run.admission.give_back(demand_of(node))
        self._dispatch.release_host(row.id)
        if assignment.gathered.address in self._run.made:
            # What another node made of the same is to be found. Before anything is noted of this
            # attempt: its end and its result are one record.
            self._run.ledger.commit()
        now = self._run.clock.now()
        self._settlement.mark_uncommitted(assignment.index)
        ending = _Ending(
            {
                "attempt": row.id,
                "number": row.number,
                "end": executed.end.value,
                "exit_code": executed.exit_code,
                "signal": executed.signal,
                "detail": executed.detail,
                "duration_seconds": round(executed.duration_seconds, 6),
                "left_behind": [] if keeps else list(executed.left_behind),
                "kept_running": list(executed.left_behind) if keeps else [],
                "put_back": list(executed.put_back),
            }
        )

        def settle(position: int) -> None:
            self._run.store.attempts.settle(
                row.id,
                executed.end,
                executed.exit_code,
                executed.signal,
                executed.detail,
                now,
            )
            if ending.result is not None:
                result = replace(ending.result, journal_seq=position)
                self._run.store.results.put(result, self._find_made(executed))
            if ending.effect is not None:
                self._run.store.effects.end(replace(ending.effect, settled_seq=position))

        if assignment.effect is not None:
            ending.effect = self._performing.end(executed)
            ending.fact["effect"] = ending.effect.state.value
        self._run.ledger.note(Fact.ATTEMPT_SETTLED, node.name, ending.fact, then=settle)
        self._dispatch.tell_cleared(assignment, executed.trashed)
        if executed.compensated is not None and ending.effect is not None:
            done = executed.compensated
            fact = describe_fact(ending.effect, done, "it did not end well")
            self._run.ledger.note(Fact.ROLLED_BACK, node.name, fact)
            for text in describe_changes(ending.effect, done):
                self._run.warn(text, node.name)
        if executed.left_behind and not keeps and assignment.interrupted is None:
            count = len(executed.left_behind)
            self._run.warn(
                f"ended {count} process{'es' if count > 1 else ''} it left behind", node.name
            )
        for path, place in executed.set_aside.items():
            self._run.warn(f"moved `{path}`, which it does not declare, to {place}", node.name)
        if executed.put_back:
            names = ", ".join(f"`{path}`" for path in executed.put_back)
            self._run.warn(f"put back what it had rewritten before it failed: {names}", node.name)
        if executed.not_put_back is not None:
            self._run.warn(
                f"what it had rewritten could not be put back: {executed.not_put_back}", node.name
            )
        if executed.landed is not None:
            self._tell_landed(executed, executed.landed)
        if executed.end is AttemptEnd.SUCCEEDED:
            self._succeed(executed, now, ending)
        else:
            self._fail(executed)
        if ending.effect is not None:
            # What it did to the world is on disk before anything else happens.
            was_recorded = self._run.store.recorded
            self._run.ledger.commit()
            if was_recorded and not self._run.store.recorded:
                self._tell_unrecorded(ending.effect)
            if ending.effect.state in NOTHING_LEFT:
                preimages.drop(preimages.path_of(self._run.store.preimages, row.id))

    def _record_bundle(self, executed: Executed) -> None:
        """What the command made of the workspace is on record before any of it is touched, so
        that whoever comes after a crash can complete it."""
        row = executed.assignment.row
        assert executed.bundle is not None
        self._run.ledger.note(
            Fact.BUNDLE_MADE,
            executed.assignment.node.name,
            {
                "attempt": row.id,
                "changes": [[each.path, each.base, each.made] for each in executed.bundle],
                "result": result_to_json(self._describe_result(executed, self._run.clock.now())),
            },
        )
        self._run.ledger.commit()
        self._run.workers.submit(partial(land_isolated, self._run.bench, executed))

    def _tell_landed(self, executed: Executed, landed: Restored) -> None:
        name = executed.assignment.node.name
        self._run.ledger.note(
            Fact.BUNDLE_LANDED,
            name,
            {
                "attempt": executed.assignment.row.id,
                "put_back": list(landed.put_back),
                "removed": list(landed.removed),
                "trashed": [list(pair) for pair in landed.trashed],
            },
        )
        for path, place in landed.trashed:
            self._run.warn(f"`{path}` held what nobody recorded: moved to {place}", name)

    def _may_serve(self, executed: Executed) -> bool:
        return (
            is_cacheable(executed.assignment.node)
            and self._run.store.recorded
            and not executed.moved
            and executed.not_stored is None
        )

    def _describe_result(self, executed: Executed, now: float) -> ResultRow:
        """What is recorded of an attempt that succeeded."""
        node, gathered = executed.assignment.node, executed.assignment.gathered
        return ResultRow(
            address=gathered.address,
            action_key=gathered.key,
            node=node.name,
            plan_file=self._run.plan.file,
            run=self._run.id,
            journal_seq=0,
            recorded_at=now,
            outputs=executed.outputs,
            value=executed.value,
            recipe=gathered.recipe_json.decode("utf-8", "surrogateescape"),
            evidence=_evidence(executed),
            serves=self._may_serve(executed),
            expires_at=None if node.cache.ttl_seconds is None else now + node.cache.ttl_seconds,
            duration_seconds=executed.duration_seconds,
            log=executed.log,
        )

    def _succeed(self, executed: Executed, now: float, ending: _Ending) -> None:
        assignment = executed.assignment
        index, node, gathered = assignment.index, assignment.node, assignment.gathered
        # A command may well go on without what it was refused.
        self._hint_at_denials(executed)
        may_serve = self._may_serve(executed)
        if executed.moved:
            names = ", ".join(f"`{path}`" for path in executed.moved)
            self._run.ledger.note(
                Fact.READS_MOVED,
                node.name,
                {"attempt": assignment.row.id, "paths": list(executed.moved)},
            )
            what = "that is recorded" if ending.effect else "its result is not cached"
            self._run.warn(f"{names} changed while it ran: {what}", node.name)
        if executed.not_stored is not None:
            what = (
                "what it wrote cannot be put back" if ending.effect else "its result is not cached"
            )
            self._run.warn(f"{what}: {executed.not_stored}", node.name)
        if not may_serve or node.when is When.ALWAYS:
            self._run.certifies = False
        row = self._describe_result(executed, now)
        earlier = self._run.store.results.get(gathered.address) if may_serve else None
        if earlier is not None and earlier.serves and _differs(earlier, row):
            kept = self._resolve_difference(executed, earlier, row)
            if kept is None:
                return
            row = kept
        if row.run == self._run.id:
            if ending.effect is None:
                ending.result = row
                self._run.made.add(row.address)
            else:
                note, made = self._run.store.results.note_outputs, self._find_made(executed)
                self._run.ledger.write(partial(note, row.plan_file, row.node, made))
            ending.fact["recorded"] = {
                "address": row.address,
                "outputs": [list(item) for item in row.outputs],
                "value": row.value,
                "serves": row.serves,
            }
        if row.expires_at is not None:
            self._run.first_expiry = min(self._run.first_expiry or row.expires_at, row.expires_at)
        if row.value is not None:
            self._run.values[node.name] = json.loads(row.value)
        self._run.observations.record(index, row.outputs)
        if self._run.graph.is_settled(index):
            self._restoring.release_readers(index)
            return
        self._settlement.settle(
            index,
            Outcome.BUILT,
            key=gathered.key,
            duration_seconds=executed.duration_seconds,
            log=executed.log,
            value=row.value,
            exit_code=executed.exit_code,
        )

    def _resolve_difference(
        self, executed: Executed, earlier: ResultRow, row: ResultRow
    ) -> ResultRow | None:
        """Two results under one key: the one that stands from now on, None when the run is
        strict and the node has failed for it."""
        assignment = executed.assignment
        node = assignment.node
        path, was, now = _first_difference(earlier, row)
        if node.nondeterministic:
            try:
                restored = restore(
                    self._run.store.root,
                    earlier.outputs,
                    node.writes,
                    measurer=self._run.measurer,
                    source=self._run.blobs,
                    staging=f"{self._run.store.tmp}/{assignment.row.id}.stage",
                    trash=f"{self._run.store.trash}/{assignment.row.id}",
                    knows=self._knows_or_made(executed),
                )
            except (BlobMissing, BlobCorrupt, CannotRestore, FilesystemError):
                return row  # the first result cannot be had any more: this one takes its place
            for place, to in restored.trashed:
                self._run.warn(f"`{place}` was edited by hand: moved to {to}", node.name)
            return earlier
        self._run.ledger.note(
            Fact.RESULT_REPLACED,
            node.name,
            {
                "address": row.address,
                "path": path,
                "was": was,
                "now": now,
                "recorded_by": earlier.run,
                "recorded_seq": earlier.journal_seq,
            },
        )
        text = (
            f"gave another result than in run {earlier.run} although nothing it reads changed:"
            f" {path} differs (declare `nondeterministic = true` if that is right)"
        )
        if self._run.request.strict:
            if self._run.graph.is_settled(assignment.index):
                self._restoring.fail_readers(assignment.index, text)
            else:
                self._settlement.fail_settled(assignment.index, text, executed)
            return None
        self._run.warn(text, node.name)
        return row

    def _find_made(self, executed: Executed) -> list[tuple[RelPath, State]]:
        """The outputs that are the attempt's work, or were recorded as somebody's before: a
        user's own file inside a written tree is neither."""
        before = executed.assignment.row.before
        knows = self._run.store.results.knows
        return [item for item in executed.outputs if before.get(item[0]) != item[1] or knows(*item)]

    def _knows_or_made(self, executed: Executed) -> Callable[[RelPath, State], bool]:
        """Content that some result recorded, or that this attempt has just made; a user's
        own file inside a written tree is neither."""
        before = executed.assignment.row.before
        made = {item for item in executed.outputs if before.get(item[0]) != item[1]}
        knows = self._run.store.results.knows
        return lambda path, state: (path, state) in made or knows(path, state)

    def _fail(self, executed: Executed) -> None:
        assignment = executed.assignment
        index, node, row = assignment.index, assignment.node, assignment.row
        if self._run.graph.is_settled(index):
            self._restoring.fail_readers(index, executed.detail or executed.end.value)
            return
        retry_in = self._retry_delay(executed)
        if executed.end is not AttemptEnd.CANCELLED:
            self._run.ledger.announce(
                AttemptFailed(
                    node=node.name,
                    attempt=row.id,
                    number=row.number,
                    attempts=node.retry.attempts,
                    end=executed.end,
                    exit_code=executed.exit_code,
                    signal=executed.signal,
                    detail=executed.detail,
                    log=row.log,
                    duration_seconds=executed.duration_seconds,
                    retry_in_seconds=retry_in,
                )
            )
        if retry_in is None:
            self._hint_at_variable(executed)
            self._hint_at_denials(executed)
            self._settlement.fail_settled(
                index, executed.detail, executed, self._find_question(executed)
            )
            return
        self._run.graph.move(index, NodeState.BACKING_OFF)
        self._run.retrying.add(index)
        self._backing_off[index] = executed
        reason = f"retry after {executed.end.value}"
        judgement = None if assignment.effect is None else Perform(reason, is_retry=True)
        queued = Queued(assignment.gathered, reason, None, self._run.ledger.version, judgement)
        self._run.after(retry_in, lambda: self._try_again(index, queued))

    def _hint_at_variable(self, executed: Executed) -> None:
        """The caller's environment does not leak, which is often news to whoever fails."""
        if executed.end is not AttemptEnd.EXITED or executed.log is None:
            return
        node = executed.assignment.node
        name = self._run.caller.find_unpassed(node, read_end(executed.log, HINT_BYTES))
        if name is not None:
            self._run.warn(
                f"`{name}` is set in your environment but not passed to it: if it needs that,"
                f' add `pass_env = ["{name}"]`',
                node.name,
            )

    def _hint_at_denials(self, executed: Executed) -> None:
        """What it says it could not reach is held back by its boundary, as far as it is there."""
        workplace, node = executed.assignment.workplace, executed.assignment.node
        if workplace is None or executed.log is None:
            return
        text = read_end(executed.log, HINT_BYTES)
        root = self._run.store.root
        for denial in find_denials(text, node, root, workplace.root):
            key = "writes" if denial.wants_write else "reads"
            self._run.warn(
                f"`{denial.path}` is not among its `{key}`, so it was held back: if it needs that,"
                f' add "{escape_entry(denial.path)}"',
                node.name,
            )

    def _retry_delay(self, executed: Executed) -> float | None:
        """Seconds until the next try, None when this failure is final."""
        assignment = executed.assignment
        retry = assignment.node.retry
        number = assignment.row.number
        number -= self._run.earlier_tries.get(assignment.index, 0)
        if number >= retry.attempts or self._run.stopping or self._run.stopped_by is not None:
            return None
        if executed.end in (AttemptEnd.CANCELLED, AttemptEnd.NOT_STARTED):
            return None
        if retry.exit_codes and executed.exit_code not in retry.exit_codes:
            return None
        if assignment.effect is not None and not self._may_repeat(executed):
            return None
        return min(retry.max_backoff_seconds, retry.backoff_seconds * retry.factor ** (number - 1))

    def _tell_unrecorded(self, effect: EffectRow) -> None:
        """The store fails at the very moment an effect has ended: on disk it is under way for
        ever, and only who reads this knows better."""
        self._run.store_failed = True
        if effect.tier is Tier.COMPENSABLE:
            if effect.state is EffectState.SUCCEEDED:
                text = "it ended well, but that is not on record: the next command takes it back"
                self._run.warn(text, effect.node)
            return
        if effect.state is EffectState.SUCCEEDED:
            value = "" if effect.value is None else f" --value {shlex.quote(effect.value)}"
            what, way = "ended well", f"--done{value}"
        elif effect.state in NOTHING_LEFT:
            what, way = "has left no effect", "--not-done"
        else:
            return
        words = f"assay settle {effect.run} {shlex.quote(effect.node)} {way}"
        self._run.warn(
            f"it {what}, but that is not on record: once the store can be written again, `{words}`"
            " says so",
            effect.node,
        )

    def _find_question(self, executed: Executed) -> Question | None:
        """What the next run will ask an operator about this attempt."""
        node = executed.assignment.node
        if executed.assignment.effect is None or node.idempotency_key is not None:
            return None
        if self._performing.end(executed).state is not EffectState.UNKNOWN:
            return None
        return Question(self._run.id, needs_value=node.result is not None)

    def _may_repeat(self, executed: Executed) -> bool:
        """Whether another try of a node that is not sealed starts from where this one did."""
        if self._performing.end(executed).state in NOTHING_LEFT:
            return True
        return executed.assignment.node.idempotency_key is not None

    def give_up(self, index: int) -> None:
        """Ends a node that was to be tried again and is not: its last try counts."""
        executed = self._backing_off.pop(index)
        self._settlement.fail_settled(index, executed.detail, executed)

    def _try_again(self, index: int, queued: Queued) -> None:
        if self._run.graph.is_settled(index):
            return  # ended meanwhile
        del self._backing_off[index]
        self._run.graph.move(index, NodeState.QUEUED)
        self._run.queued[index] = queued
        node = self._run.plan.nodes[index]
        self._run.admission.enter(index, node.priority, demand_of(node))


def _evidence(executed: Executed) -> dict[str, JsonValue]:
    """What was proved about the attempt. A declared boundary proves that reads stood still
    and writes are there, not that nothing else was touched; a held one that nothing else of the
    workspace was read or written, and without a network that nothing came from elsewhere."""
    node = executed.assignment.node
    support = None if node.boundary is Boundary.DECLARED else find_support()
    is_held = support is not None and support.holds_files
    return {
        "boundary": node.boundary.value,
        "reads_stood_still": not executed.moved,
        "reads_verified": is_held,
        "writes_verified": is_held,
        "hermetic": support is not None and support.holds_network and NETWORK not in node.requires,
    }


def _differs(earlier: ResultRow, later: ResultRow) -> bool:
    return earlier.outputs != later.outputs or earlier.value != later.value


def _first_difference(earlier: ResultRow, later: ResultRow) -> tuple[str, str, str]:
    was, now = dict(earlier.outputs), dict(later.outputs)
    for path in sorted(was.keys() | now.keys()):
        if was.get(path, ABSENT) != now.get(path, ABSENT):
            return f"`{path}`", was.get(path, ABSENT), now.get(path, ABSENT)
    return "its result", earlier.value or "none", later.value or "none"
