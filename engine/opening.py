"""The first steps of a run: what dead ones left is dealt with, it is recorded, and what it must
not look at yet is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from assay.engine import landlock, recovery
from assay.engine.attempts import Claims
from assay.engine.claims import claims_of, find_conflict
from assay.engine.effects import EffectRow
from assay.engine.events import RunStarted, Warned
from assay.engine.intentions import describe, find_vanished, performers_of
from assay.engine.journal import Fact
from assay.engine.neighbours import describe_holder, find_holder
from assay.engine.performing import Performing
from assay.engine.run_request import Cancellation
from assay.engine.run_state import RunState
from assay.engine.states import AttemptId, RunId
from assay.engine.store_errors import StoreUnwritable
from assay.engine.surroundings import Surroundings, describe_surroundings
from assay.plans.canonical import JsonValue
from assay.plans.model import Boundary, NodeName, Tier
from assay.plans.stored import plan_to_bytes

SURVIVORS_FIRST_SECONDS: Final = 0.05
SURVIVORS_LONGEST_SECONDS: Final = 1.0
"""How long a run pauses before it looks again for processes it waits for, ever longer."""


class UnsettledEffects(Exception):
    """Earlier runs did, or may have done, what the plan has no node for any more: nothing is
    begun until an operator has said what is to be thought of it."""

    def __init__(self, rows: Sequence[EffectRow]) -> None:
        super().__init__("; ".join(f"`{row.node}` {describe(row)}" for row in rows))
        self.rows = tuple(rows)


class VanishedRuns(Exception):
    """What the plan has no node for any more has not ended: nothing is begun, and nobody can be
    asked what is to be thought of it before it has. `run` executes it or takes it back."""

    def __init__(self, row: EffectRow, run: RunId, moving: str) -> None:
        super().__init__(f"the plan no longer has `{row.node}`, which {moving}")
        self.run = run


class BoundaryUnavailable(Exception):
    """This host cannot hold the boundaries of these nodes; `why` is a clause."""

    def __init__(self, nodes: Sequence[NodeName], why: str) -> None:
        super().__init__(why)
        self.nodes = tuple(nodes)
        self.why = why


class Opening:
    """That of one run."""

    def __init__(self, run: RunState, performing: Performing, cancellation: Cancellation) -> None:
        self._run = run
        self._performing = performing
        self._cancellation = cancellation
        self._noted: frozenset[AttemptId] = frozenset()
        """Attempts of which it is on record that they are waited for."""

    def open(self, pause: Callable[[float], None]) -> None:
        """Up to where the run may look at the world. `pause` waits for seconds, hearing of
        cancels. Raises UnsettledEffects, VanishedRuns and BoundaryUnavailable before anything has
        begun."""
        self._refuse_boundaries()
        for text in self._run.store.notices:
            self._run.ledger.announce(Warned(text))
        found = recovery.recover(
            self._run.store, self._run.measurer, self._run.blobs, self._run.clock
        )
        for text in found.told + recovery.describe_awaited(found):
            self._run.ledger.announce(Warned(text))
        if self._run.resumption is None:
            self._refuse_vanished()
        self._run.ledger.announce(
            RunStarted(
                run=self._run.id,
                plan_name=self._run.plan.name,
                plan_digest=self._run.plan.digest,
                selected=len(self._run.graph.selected),
                jobs=self._run.request.jobs,
                resumed=self._run.is_resumed,
            )
        )
        keep_plan(self._run)
        self._begin_record()
        if found.awaited:
            self._await_survivors(found, pause)

    def _begin_record(self) -> None:
        """The run's first records: that it was created, or is gone on with."""
        request, resumption = self._run.request, self._run.resumption
        effects = [
            self._run.plan.nodes[index].name
            for index in self._run.graph.selected
            if self._run.plan.nodes[index].tier is not Tier.SEALED
        ]
        if effects:
            try:
                self._run.store.expect_effects()
            except StoreUnwritable as error:
                self._run.store.degrade(str(error))
                self._run.ledger.announce(Warned(self._run.store.notices[-1]))
        flags = {
            "fail_fast": request.fail_fast,
            "fresh": request.fresh,
            "strict": request.strict,
            "new": request.new,
        }
        asked: dict[str, JsonValue] = {
            "jobs": request.jobs,
            "flags": [name for name, is_set in flags.items() if is_set],
        }
        if resumption is not None:
            asked["accepted"] = [list(change) for change in resumption.accepted]
            asked["retry_failed"] = resumption.retry_failed
            self._run.ledger.reopen(resumption.was, asked)
            return
        # In one transaction with the run itself: whoever goes on with it relies on them.
        if effects:
            names = [self._run.plan.nodes[index].name for index in self._run.graph.selected]
            self._run.ledger.write(
                lambda: self._run.store.effects.save_selection(self._run.id, names)
            )
        self._run.created_seq = self._run.ledger.open(
            {"tags": list(request.tags), **asked},
            self._performing.start_over if request.new else None,
        )

    def _refuse_boundaries(self) -> None:
        """Raises BoundaryUnavailable where this host cannot hold what the plan asks for: no node
        is ever run with less."""
        plan = self._run.plan
        held = [
            plan.nodes[index].name
            for index in self._run.graph.selected
            if plan.nodes[index].boundary is not Boundary.DECLARED
        ]
        if held:
            why = landlock.find_fault(self._run.store.tmp)
            if why is not None:
                raise BoundaryUnavailable(held, why)

    def _refuse_vanished(self) -> None:
        """Raises UnsettledEffects where an earlier run did, or may have done, what the plan no
        longer has a node for; VanishedRuns where it is doing so."""
        request, plan = self._run.request, self._run.plan
        if request.new or not self._run.store.effects.has_open():
            return
        is_plain = not request.targets and not request.tags
        if not is_plain and all(
            plan.nodes[index].tier is Tier.SEALED for index in self._run.graph.selected
        ):
            return
        rows = find_vanished(
            self._run.store.effects.open_of(self._run.plan_identity), performers_of(plan)
        )
        for row in rows:
            holder = find_holder(self._run.store, row.attempt)
            moving = describe_holder(self._run.store, row.attempt)
            if holder is not None and moving is not None:
                raise VanishedRuns(row, holder.run, moving)
        if rows:
            raise UnsettledEffects(rows)

    def describe_surroundings(self) -> Surroundings:
        """What of this machine the run is bound to from now on."""
        nodes = [self._run.plan.nodes[index] for index in self._run.graph.selected]
        now = describe_surroundings(nodes, self._run.toolchain, self._run.caller)
        resumption = self._run.resumption
        if resumption is None or resumption.pins is None:
            return now
        return {**resumption.pins.surroundings, **now}

    def _await_survivors(self, found: recovery.Recovered, pause: Callable[[float], None]) -> None:
        """What a dead run's processes still write is not looked at before they are gone and
        what they did has been dealt with, unless the run is cancelled meanwhile."""
        nodes = [self._run.plan.nodes[index] for index in self._run.graph.selected]
        mine = [claims_of(node, self._run.plan.file) for node in nodes]
        told = set(recovery.describe_awaited(found))
        seconds = SURVIVORS_FIRST_SECONDS
        while not self._cancellation.causes:
            if not self._note_waits(found, mine):
                return
            pause(seconds)
            seconds = min(2 * seconds, SURVIVORS_LONGEST_SECONDS)
            found = recovery.recover(
                self._run.store, self._run.measurer, self._run.blobs, self._run.clock
            )
            for text in found.told + recovery.describe_awaited(found):
                if text not in told:
                    told.add(text)
                    self._run.warn(text)
            self._run.ledger.heartbeat()
        self._run.gave_up_waiting = True

    def _note_waits(self, found: recovery.Recovered, mine: list[Claims]) -> frozenset[AttemptId]:
        """The attempts that hold what a node wants, recorded so that no other run comes to wait
        for this one in turn. One that cannot end before this run is none of them: the node that
        wants what it holds fails once it is taken up, as where the assay of that one lives."""
        store, neighbours = self._run.store, self._run.neighbours
        waits: frozenset[AttemptId] = frozenset()

        def note() -> None:
            nonlocal waits
            blocking: set[AttemptId] = set()
            for each in found.awaited:
                row = store.attempts.get(each.attempt)
                if row is None or neighbours.explain_cycle(row) is not None:
                    continue
                whats = (find_conflict(claims, row.claims) for claims in mine)
                what = next((what for what in whats if what is not None), None)
                if what is None:
                    continue
                blocking.add(row.id)
                if row.id not in self._noted:
                    data: JsonValue = {
                        "for": row.run,
                        "attempt": row.id,
                        "what": what,
                        "pids": list(each.pids),
                    }
                    self._run.ledger.append_now(Fact.WAITED, None, data)
            waits = frozenset(blocking)
            neighbours.wait_for(waits)

        self._run.ledger.commit(note)
        self._noted |= waits
        return waits


def keep_plan(run: RunState) -> None:
    """The plan as it is now goes into the store with the next commit, once."""
    digest = run.plan.digest
    if run.store.runs.load_plan(digest) is None:
        stored = plan_to_bytes(run.plan)
        run.ledger.write(partial(run.store.runs.save_plan, digest, stored))
