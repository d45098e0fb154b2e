"""What to do about runs whose assay died: end what their sealed attempts left running, settle
those as lost, put back the inputs they may have half rewritten; wait until the processes of
all others, and those of undos, are gone, take back what compensable ones did, and leave what
irreversible ones did unknown; then mark the runs interrupted.

Every step may be repeated: a recovery that is killed half-way is done again by the next
run. Runs with a living owner, a stopped one included, are never touched. A run is claimed before
anything is done about it: who loses that race, or finds it claimed afterwards, leaves it to the
other. Nothing here waits: an attempt whose processes live on is told of and left as it is, and so
is its run; so are those of an owner on another host of which it is not known yet whether it lives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast

from assay.engine import lock_files, orphans, preimages, temporary
from assay.engine.attempts import AttemptRow, NoSuchAttempt
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.claims import find_undone
from assay.engine.clock import Clock
from assay.engine.columns import from_json
from assay.engine.compensation import (
    Compensated,
    remove_undo,
    roll_back_files,
    trace_of_undo,
)
from assay.engine.effects import EffectRow
from assay.engine.filesystem import FilesystemError
from assay.engine.identity import this_host, this_owner
from assay.engine.journal import Fact, Record
from assay.engine.kept_plans import read_nodes
from assay.engine.landing import CannotLand, complete_landing
from assay.engine.materialize import CannotRestore, Restored, restore
from assay.engine.measuring import Measurer
from assay.engine.orphans import Trace, ask_survivors, end_survivors, find_all_survivors
from assay.engine.ownership import Purpose, note_claim
from assay.engine.results import ResultRow
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.runs import LEASE_SECONDS, Death, LostFence, RunRow, describe_owner
from assay.engine.states import (
    NOTHING_LEFT,
    AttemptEnd,
    AttemptId,
    EffectState,
    RunId,
    RunStatus,
    stored_digest,
)
from assay.engine.store import Store
from assay.plans.canonical import JsonValue
from assay.plans.entries import matches
from assay.plans.model import Background, Node, NodeName, RelPath, Tier

_GRACE_SECONDS: Final = 10.0
"""Where a node's own is not known: that of nodes that declare none."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """An attempt of a dead run whose processes are to end by themselves, or one of a run whose
    owner is watched. `what` names what of it still runs, or that run, as a clause."""

    run: RunId
    attempt: AttemptId
    what: str
    pids: tuple[int, ...]
    undone: tuple[AttemptId, ...] = ()
    """The attempts whose effects it takes back."""
    is_around: bool = False
    """This process is part of it."""
    is_asked: bool = False
    """It was asked to end, and is ended when its grace is over."""
    is_out_of_reach: bool = False
    """It runs on another host."""
    is_watched: bool = False
    """Whether its owner, on another host, lives is not known yet."""

    def concerns(self, run: RunId) -> bool:
        """Whether it is an attempt of the run, or takes back what the run did."""
        return run == self.run or any(run == each.rpartition("-")[0] for each in self.undone)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Sentences that tell the user, and what is left for later."""

    told: tuple[str, ...] = ()
    awaited: tuple[Awaited, ...] = ()


def recover(store: Store, measurer: Measurer, blobs: Blobs, clock: Clock) -> Recovered:
    """Deals with every run whose owner is gone, as far as that can be done now.

    One process at a time: another that begins meanwhile waits, so that it neither looks at
    a half rewritten input nor puts one back that has gone on since.
    """
    unsettled = store.runs.unsettled()
    awaited = _find_doubtful(store, unsettled)
    if not any(map(store.runs.find_death, unsettled)):
        return Recovered(awaited=tuple(awaited))
    told: list[str] = []
    with lock_files.wait_for(os.path.join(store.tmp, "recovery.lock")):
        for run in store.runs.unsettled():
            death = store.runs.find_death(run)
            if death is not None:
                recovery = _Recovery(store, measurer, blobs, clock, run, death)
                recovery.run()
                told += recovery.told
                awaited += recovery.awaited
    return Recovered(tuple(told), tuple(awaited))


def describe_awaited(found: Recovered) -> tuple[str, ...]:
    """Sentences on what is left to end by itself."""
    return tuple(map(_describe, found.awaited))


def _describe(awaited: Awaited) -> str:
    if awaited.is_watched:
        return (
            f"{awaited.what} has given no sign of life of late: it counts as gone once its"
            f" heartbeat is seen standing still for {LEASE_SECONDS:g}s"
        )
    if awaited.is_out_of_reach:
        return f"{awaited.what} still runs although its assay is gone: waiting until it ends"
    ends = f" (`assay cancel {awaited.run}` ends it)"
    if awaited.is_around:
        what = f"this is part of it{ends}"
    elif awaited.is_asked:
        what = "it was asked to end, and is ended once its grace is over"
    else:
        what = f"waiting until it ends{ends}"
    pids = ", ".join(map(str, awaited.pids)) or "?"
    return f"{awaited.what} still runs (pid {pids}) although its assay is gone: {what}"


def _find_doubtful(store: Store, unsettled: list[RunRow]) -> list[Awaited]:
    """What runs of other hosts have begun, as long as it is not known whether their owners
    live."""
    return [
        Awaited(run.id, row.id, f"run {run.id} ({describe_owner(run)})", (), is_watched=True)
        for run in unsettled
        if store.runs.is_doubtful(run)
        for row in store.attempts.of_run(run.id)
        if row.end is None
    ]


@dataclass(slots=True)
class _Lost:
    """What became of one attempt."""

    row: AttemptRow
    ended: tuple[int, ...] = ()
    put_back: tuple[RelPath, ...] = ()
    effect: EffectRow | None = None
    """As it is to be recorded."""
    compensated: Compensated | None = None
    result: ResultRow | None = None
    """What it had made in its private tree, in place by now."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is found, awaited and ended by itself: the command of an attempt, or an undo."""

    row: AttemptRow
    """The attempt on whose account it runs."""
    what: str
    trace: Trace
    timeout_seconds: float | None
    grace_seconds: float = _GRACE_SECONDS
    is_cancellable: bool = True
    main: int | None = None
    """Its main process, where that is on record."""
    is_kept: bool = False
    """Only its main process counts: what that leaves behind may live for ever."""


class _Recovery:
    """That of one dead run."""

    def __init__(
        self,
        store: Store,
        measurer: Measurer,
        blobs: Blobs,
        clock: Clock,
        run: RunRow,
        death: Death,
    ) -> None:
        self._store = store
        self._measurer = measurer
        self._blobs = blobs
        self._clock = clock
        self._dead = run
        self._death = death
        self._fence = run.fence
        self._is_here = store.runs.shares_kernel(run)
        self._mine = orphans.ancestors(os.getpid())
        self._asked: set[AttemptId] = set()
        self.told: list[str] = []
        self.awaited: list[Awaited] = []

    def run(self) -> None:
        store = self._store
        every = store.attempts.of_run(self._dead.id)
        attempts = [row for row in every if row.end is None]
        effects = {row.attempt: row for row in store.effects.of_run(self._dead.id)}
        # Their processes are not ended, unless the run was cancelled: what they do to the world
        # would be cut in half.
        parts = {
            row.id: self._parts_of(row)
            for row in attempts
            if row.id in effects or find_undone(row.claims)
        }
        sealed = [row for row in attempts if row.id not in parts]
        survivors = self._find_survivors(sealed)
        kept = self._find_kept(sealed, survivors)
        overdue = self._find_overdue([part for own in parts.values() for part in own])
        waits = kept | self._find_awaited(attempts, parts)
        if len(waits) == len(attempts) > 0 and not overdue:
            self.awaited.extend(waits.values())
            return
        if not self._claim(attempts):
            return
        lost = self._end_sealed([row for row in sealed if row.id not in kept], survivors)
        self._end_overdue(overdue)
        waits = kept | self._find_awaited(attempts, parts)
        for row in attempts:
            if row.id in parts and row.id not in waits:
                effect = effects.get(row.id)
                lost.append(_Lost(row) if effect is None else self._decide_effect(row, effect))
                for undone in (row.id, *find_undone(row.claims)):
                    remove_undo(store, undone)
        is_over = not waits
        if not self._record(lost, is_over=is_over):
            return
        self.awaited.extend(waits.values())
        for each in lost:
            if each.effect is not None and each.effect.state in NOTHING_LEFT:
                preimages.drop(preimages.path_of(store.preimages, each.row.id))
        self._tell(lost, is_over=is_over)
        if not is_over:
            return
        for row in every:
            _remove_empty(store, row)
        # Somebody may go on with the run already, and hold that file.
        with suppress(lock_files.HeldElsewhere):
            store.runs.take_lease(self._dead.id).release(remove=True)

    def _claim(self, attempts: list[AttemptRow]) -> bool:
        """From now on what is left of the run is this process's to deal with, unless somebody
        was faster."""
        store, run = self._store, self._dead
        if store.runs.has_claimed(run):
            return True
        with suppress(LostFence), store.transaction():
            running = [row.id for row in store.attempts.of_run(run.id) if row.end is None]
            if running != [row.id for row in attempts]:
                return False  # whoever goes on with it was seen dead too early
            self._fence = store.runs.claim(run.id, run.fence)
            note_claim(store, run, self._fence, this_owner(), self._death, Purpose.RECOVERY)
            return True
        return False

    def _find_survivors(self, rows: list[AttemptRow]) -> dict[AttemptId, tuple[int, ...]]:
        return find_all_survivors([self._trace_of(row) for row in rows]) if self._is_here else {}

    def _find_kept(
        self, sealed: list[AttemptRow], survivors: dict[AttemptId, tuple[int, ...]]
    ) -> dict[AttemptId, Awaited]:
        """Those that are not to be ended: this process is part of them, or they run out of its
        reach, which their lease tells."""
        found: dict[AttemptId, Awaited] = {}
        for row in sealed:
            pids = survivors.get(row.id, ())
            if not self._mine.isdisjoint(pids):
                found[row.id] = Awaited(row.run, row.id, _name(row), pids, is_around=True)
            elif not self._is_here and lock_files.is_held(_lease_of(self._store, row)):
                found[row.id] = Awaited(row.run, row.id, _name(row), (), is_out_of_reach=True)
        return found

    def _end_sealed(
        self, rows: list[AttemptRow], survivors: dict[AttemptId, tuple[int, ...]]
    ) -> list[_Lost]:
        if survivors:
            for row in rows:
                trace = self._trace_of(row)
                end_survivors(trace.attempt, trace.lease, trace.session)
        found: list[_Lost] = []
        for row in rows:
            lost = _Lost(row, tuple(survivors.get(row.id, ())))
            found.append(lost)
            lost.result = self._complete_landing(row)
            if lost.result is not None:
                continue
            try:
                restored = _put_back(self._store, self._measurer, self._blobs, row)
            except (BlobMissing, BlobCorrupt, CannotRestore, FilesystemError) as error:
                self.told.append(
                    f"what `{row.node}` may have half rewritten cannot be put back: {error}"
                )
            else:
                lost.put_back = restored.put_back
                self.told.extend(
                    f"what stood at `{path}` is in {to}" for path, to in restored.trashed
                )
        return found

    @cached_property
    def _bundles(self) -> dict[AttemptId, dict[str, Any]]:
        """What attempts of the run had made in private trees, as it was recorded."""
        return {
            AttemptId(told["attempt"]): told
            for record in self._store.journal.read(run=self._dead.id)
            if record.kind == Fact.BUNDLE_MADE
            for told in [cast("dict[str, Any]", record.data)]
        }

    def _complete_landing(self, row: AttemptRow) -> ResultRow | None:
        """The result of an attempt that had ended well and whose bundle was recorded: it is put in
        place. None for any other, and where it cannot be."""
        told = self._bundles.get(row.id)
        if told is None:
            return None
        try:
            result, landed = complete_landing(
                told, store=self._store, measurer=self._measurer, blobs=self._blobs
            )
        except CannotLand as error:
            self.told.append(f"`{row.node}`: {error}")
            return None
        self.told.append(f"put in place what `{row.node}` had made")
        self.told.extend(f"what stood at `{path}` is in {to}" for path, to in landed.trashed)
        return result

    def _find_overdue(self, parts: list[_Part]) -> list[tuple[_Part, str, bool]]:
        """What its own assay would have ended by now: commands past their timeout, and, once the
        run is cancelled, those that a cancel does not wait for; their undos alike. With each goes
        why, and whether it was asked to end, and its grace is over since."""
        is_cancelled = self._store.runs.cancel_of(self._dead.id) is not None
        living = self._find_living(parts)
        found: list[tuple[_Part, str, bool]] = []
        for part in parts:
            pids = living[part.trace.attempt]
            if not pids or not self._mine.isdisjoint(pids):
                continue
            limit = part.timeout_seconds
            is_late = limit is not None and self._age(part, pids) > limit
            if not is_late and not (is_cancelled and part.is_cancellable):
                continue
            self._asked.add(part.trace.attempt)
            asked = self._store.journal.find(_survivors_of(part), 1)
            if asked is None or self._since(asked) >= part.grace_seconds:
                found.append((part, "timed out" if is_late else "cancelled", asked is not None))
        return found

    def _since(self, asked: Record) -> float:
        """Seconds since it was asked to end, whatever clocks were set to: it lives, so the machine
        has not started anew."""
        told = cast("dict[str, Any]", asked.data)
        return self._clock.monotonic() - float(told.get("monotonic", 0.0))

    def _end_overdue(self, overdue: list[tuple[_Part, str, bool]]) -> None:
        """It is asked to end, once, whoever comes across it, and ended when its grace is over
        since."""
        for part, why, is_asked in overdue:
            trace = part.trace
            if is_asked:
                end_survivors(trace.attempt, trace.lease, trace.session, ask_seconds=0.0)
                continue
            # Recorded after it was done: to be asked twice does less harm than never.
            took = ask_survivors(trace)
            self._store.journal.append(
                _survivors_of(part),
                1,
                Fact.SURVIVORS_ASKED,
                run=part.row.run,
                node=part.row.node,
                data={
                    "attempt": trace.attempt,
                    "pids": list(took),
                    "why": why,
                    "monotonic": self._clock.monotonic(),
                },
            )

    def _age(self, part: _Part, pids: set[int]) -> float:
        """Seconds since it began: its main process, where that lives and is known, else the oldest
        of those that live. What clocks say counts for nothing here."""
        if part.main in pids:
            return orphans.age_seconds(part.main)
        return max(map(orphans.age_seconds, pids), default=0.0)

    def _parts_of(self, row: AttemptRow) -> tuple[_Part, ...]:
        """What of an attempt with an effect may live on: its command and its undo; of one that
        takes back the effects of others, their undos."""
        undone = find_undone(row.claims)
        if undone:
            return tuple(self._undo_of(attempt, row) for attempt in undone)
        node = self._nodes.get(row.node)
        command = _Part(
            row,
            _name(row),
            self._trace_of(row),
            timeout_seconds=None if node is None else node.timeout_seconds,
            grace_seconds=_GRACE_SECONDS if node is None else node.grace_seconds,
            is_cancellable=node is None or node.cancellable,
            main=self._visible(row.pid),
            is_kept=node is not None and node.background is Background.KEEP,
        )
        return command, self._undo_of(row.id, row)

    def _undo_of(self, attempt: AttemptId, row: AttemptRow) -> _Part:
        trace = trace_of_undo(self._store, attempt)
        trace = replace(trace, session=self._visible(trace.session))
        effect = self._store.effects.get(attempt)
        what = f"the `undo` of attempt {attempt}"
        if effect is not None:
            what = f"the `undo` of `{effect.node}` of run {effect.run}"
        if effect is None or effect.undo is None:
            return _Part(row, what, trace, timeout_seconds=None)
        spec = from_json(effect.undo)
        return _Part(row, what, trace, spec["timeout"], spec["grace"], main=trace.session)

    def _trace_of(self, row: AttemptRow) -> Trace:
        return Trace(row.id, _lease_of(self._store, row), self._visible(row.pid))

    def _visible(self, pid: int | None) -> int | None:
        """A recorded pid, if it means here what it meant to who recorded it."""
        return pid if self._dead.owner.host == this_host() else None

    @cached_property
    def _nodes(self) -> Mapping[NodeName, Node]:
        return read_nodes(self._store, self._dead)

    def _find_awaited(
        self, rows: list[AttemptRow], parts: dict[AttemptId, tuple[_Part, ...]]
    ) -> dict[AttemptId, Awaited]:
        """The attempts, of these, any of whose parts lives on."""
        living = self._find_living([part for own in parts.values() for part in own])
        found: dict[AttemptId, Awaited] = {}
        for row in rows:
            whats: list[str] = []
            pids: set[int] = set()
            for part in parts.get(row.id, ()):
                there = living[part.trace.attempt]
                # A lease that is held by what cannot be seen from here lives as well.
                if there or lock_files.is_held(part.trace.lease):
                    whats.append(part.what)
                    pids |= there
            if whats:
                found[row.id] = Awaited(
                    row.run,
                    row.id,
                    " and ".join(whats),
                    tuple(sorted(pids)),
                    find_undone(row.claims),
                    is_around=not self._mine.isdisjoint(pids),
                    is_asked=any(part.trace.attempt in self._asked for part in parts[row.id]),
                    is_out_of_reach=not self._is_here,
                )
        return found

    def _find_living(self, parts: list[_Part]) -> dict[AttemptId, set[int]]:
        """The living processes of each that count."""
        found = {}
        if parts and self._is_here:
            found = find_all_survivors([part.trace for part in parts])
        living: dict[AttemptId, set[int]] = {}
        for part in parts:
            pids = set(found.get(part.trace.attempt, ()))
            if part.is_kept and part.main is not None:
                pids &= {part.main}
            living[part.trace.attempt] = pids
        return living

    def _decide_effect(self, row: AttemptRow, effect: EffectRow) -> _Lost:
        lost = _Lost(row)
        how = "began, and how it ended is not on record"
        if effect.tier is Tier.IRREVERSIBLE and effect.is_sound:
            # Its bundle says that it had ended well.
            lost.result = self._complete_landing(row)
            if lost.result is not None:
                lost.effect = replace(
                    effect,
                    state=EffectState.SUCCEEDED,
                    end=AttemptEnd.SUCCEEDED,
                    outputs=lost.result.outputs,
                    value=lost.result.value,
                )
                return lost
        if effect.tier is Tier.COMPENSABLE and effect.is_sound:
            done = roll_back_files(
                effect,
                store=self._store,
                measurer=self._measurer,
                blobs=self._blobs,
                has_started=row.pid is not None,
            )
            lost.compensated = done
            self.told.extend(f"`{row.node}`: {text}" for text in describe_changes(effect, done))
            detail = how if done.problem is None else f"{how}; {done.problem}"
            lost.effect = replace(effect, state=done.state, end=AttemptEnd.LOST, detail=detail)
        elif effect.is_sound:
            state = EffectState.UNKNOWN
            lost.effect = replace(effect, state=state, end=AttemptEnd.LOST, detail=how)
        return lost

    def _record(self, lost: list[_Lost], *, is_over: bool) -> bool:
        """Whether this was the one to record it: somebody may have claimed the run since."""
        store, run, fence = self._store, self._dead, self._fence
        # A claim may last for several rounds, in each of which other attempts are dealt with.
        source = f"recovery:{run.id}:{fence}"
        with suppress(LostFence, NoSuchAttempt), store.transaction():
            store.runs.check_fence(run.id, fence)
            for each in lost:
                self._settle_attempt(f"{source}:{each.row.id}", 1, each)
                if each.compensated is not None and each.effect is not None:
                    store.journal.append(
                        f"{source}:{each.row.id}",
                        2,
                        Fact.ROLLED_BACK,
                        run=run.id,
                        node=each.row.node,
                        data=describe_fact(each.effect, each.compensated, "its assay ended first"),
                    )
            if not is_over:
                return True
            status = RunStatus.INTERRUPTED
            if store.runs.cancel_of(run.id) is not None:
                status = RunStatus.CANCELLED
            store.runs.settle(run.id, fence, status, {})
            store.journal.append(
                source,
                0,
                Fact.RUN_SETTLED,
                run=run.id,
                data={"status": status.value, "by": os.getpid(), "host": this_host()},
            )
            return True
        return False

    def _settle_attempt(self, source: str, number: int, lost: _Lost) -> None:
        row, result = lost.row, lost.result
        end = AttemptEnd.LOST if result is None else AttemptEnd.SUCCEEDED
        self._store.attempts.settle(
            row.id, end, None, None, "its assay ended first", self._clock.now()
        )
        fact: dict[str, JsonValue] = {
            "attempt": row.id,
            "number": row.number,
            "end": end.value,
            "ended": list(lost.ended),
            "put_back": list(lost.put_back),
        }
        if lost.effect is not None:
            fact["effect"] = lost.effect.state.value
        if result is not None:
            fact["recorded"] = {
                "address": result.address,
                "outputs": [list(item) for item in result.outputs],
                "value": result.value,
                "serves": result.serves,
            }
        position = self._store.journal.append(
            source, number, Fact.ATTEMPT_SETTLED, run=row.run, node=row.node, data=fact
        )
        if result is not None and lost.effect is None:
            self._store.results.put(replace(result, journal_seq=position))
        elif result is not None:
            self._store.results.note_outputs(result.plan_file, result.node, result.outputs)
        if lost.effect is not None:
            self._store.effects.end(replace(lost.effect, settled_seq=position))

    def _tell(self, lost: list[_Lost], *, is_over: bool) -> None:
        run = self._dead
        ended = sorted(pid for each in lost for pid in each.ended)
        names = ", ".join(f"`{path}`" for each in lost for path in each.put_back)
        first = [f"put back what it may have half rewritten: {names}"] if names else []
        if not (is_over or ended or first):
            return
        text = f"run {run.id} was interrupted: its assay ({describe_owner(run)}) "
        if self._death is Death.HEART_STILL:
            text += f"has given no sign of life for {LEASE_SECONDS:g}s"
        else:
            text += "is gone"
        if ended:
            text += f"; ended what it left running (pid {', '.join(map(str, ended))})"
        self.told[:0] = [text, *first]


def _put_back(store: Store, measurer: Measurer, blobs: Blobs, row: AttemptRow) -> Restored:
    """The files this attempt both read and wrote, as they stood before it. What stands
    there instead may be an edit of the user's since: it goes to the trash."""
    # What is not in the store was not kept: the command was not started, or it held a secret.
    kept = [
        (path, state)
        for path, state in row.before.items()
        if matches(row.claims.reads, path)
        and (digest := stored_digest(state)) is not None
        and blobs.has(digest)
    ]
    return restore(
        store.root,
        kept,
        (),
        measurer=measurer,
        source=blobs,
        staging=os.path.join(store.tmp, f"{row.id}.stage"),
        trash=os.path.join(store.trash, row.id),
        knows=lambda path, state: False,
    )


def _remove_empty(store: Store, row: AttemptRow) -> None:
    """Lease, private folder and a log that stayed empty: settled attempts leave theirs for
    the next ones of their run."""
    temporary.remove_tree(f"{store.tmp}/{row.id}.tree")
    if row.temp:
        temporary.remove(row.temp)
    with suppress(FileNotFoundError):
        os.unlink(_lease_of(store, row))
    with suppress(FileNotFoundError):
        if row.log and not os.path.getsize(row.log):
            os.unlink(row.log)


def _name(row: AttemptRow) -> str:
    return f"`{row.node}` of run {row.run}"


def _survivors_of(part: _Part) -> str:
    return f"survivors:{part.row.id}:{part.trace.attempt}"


def _lease_of(store: Store, row: AttemptRow) -> str:
    return os.path.join(store.tmp, f"{row.id}.lease")
