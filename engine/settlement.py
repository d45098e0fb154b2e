"""How nodes settle: outcomes, what is journalled and told of them, and how the run as a whole
is judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from assay.engine.bench import Executed
from assay.engine.decision import Gathered, Serve
from assay.engine.environment import project
from assay.engine.events import (
    Event,
    NodeSettled,
    Question,
)
from assay.engine.journal import Fact
from assay.engine.results import ResultRow
from assay.engine.run_state import RunState
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    Outcome,
    RunStatus,
)
from assay.plans.canonical import JsonValue, canonical_json
from assay.plans.model import (
    Kind,
    NodeName,
    When,
)


class Settlement:
    """Ends the progress of nodes."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._held: list[Event] = []
        """Clean nodes not told of yet: in a run that dispatches nothing all of them make
        one record."""
        self._served: list[str] = []
        """Addresses of results that served, to be marked with the next commit."""
        self._facts: list[JsonValue] = []
        """Settlements to be journalled in one record with the next commit."""
        self._uncommitted: set[int] = set()
        """Nodes of which the last commit does not tell all."""
        self._culprits: dict[int, NodeName] = {}

    def settle(
        self,
        index: int,
        outcome: Outcome,
        *,
        detail: str = "",
        key: ActionKey | None = None,
        duration_seconds: float = 0.0,
        log: str | None = None,
        value: str | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        not_needed: bool = False,
        asks: Question | None = None,
    ) -> None:
        node = self._run.plan.nodes[index]
        if outcome is not Outcome.BUILT or not_needed:
            self._run.certifies = False
        fact: list[JsonValue] = [node.name, outcome.value, detail, key, None]
        if asks is not None:
            fact.append([asks.run, asks.node or node.name])
        self._facts.append(fact)
        self._held.append(
            NodeSettled(
                node=node.name,
                outcome=outcome,
                attempts=self._run.tries.get(index, 0),
                action_key=key,
                duration_seconds=duration_seconds,
                detail=detail,
                log=log,
                exit_code=exit_code,
                signal=signal,
                value=value,
                asks=asks,
            )
        )
        self._uncommitted.add(index)
        self._run.ready.extend(self._run.graph.settle(index, outcome, not_needed=not_needed))
        if (
            outcome in (Outcome.FAILED, Outcome.AMBIGUOUS)
            and self._run.request.fail_fast
            and self._run.stopped_by is None
        ):
            self._run.stopped_by = node.name

    def may_start(self, index: int) -> bool:
        """Whether a node that has not begun still may. A cancelled run begins teardown only,
        until it is killed; one that fails fast also what handles failures, and groups go on
        to tell of what they follow."""
        node = self._run.plan.nodes[index]
        if self._run.stopping:
            return node.when is When.ALWAYS and not self._run.killing
        is_group = node.command is None and (
            node.kind is not Kind.TEMPLATE or index in self._run.instances
        )
        return self._run.stopped_by is None or node.when is not When.SUCCESS or is_group

    def settle_unstarted(self, index: int) -> None:
        """Ends a node that may not start any more."""
        if self._run.stopping:
            self.settle(index, Outcome.CANCELLED, detail="the run was cancelled")
        else:
            detail = f"not started: `{self._run.stopped_by}` failed"
            self.settle(index, Outcome.SKIPPED, detail=detail)

    def fail_settled(
        self,
        index: int,
        detail: str,
        executed: Executed | None = None,
        asks: Question | None = None,
    ) -> None:
        """Ends a node without success: CANCELLED when that is how its attempt ended."""
        cancelled = executed is not None and executed.end is AttemptEnd.CANCELLED
        self.settle(
            index,
            Outcome.CANCELLED if cancelled else Outcome.FAILED,
            detail=detail,
            key=executed.assignment.gathered.key if executed else None,
            duration_seconds=executed.duration_seconds if executed else 0.0,
            log=executed.log if executed else None,
            exit_code=executed.exit_code if executed else None,
            signal=executed.signal if executed else None,
            asks=asks,
        )

    def settle_clean(
        self,
        index: int,
        gathered: Gathered | None,
        row: ResultRow | None,
        restored: int = 0,
        how: str = "",
    ) -> None:
        told = f"restored {restored}" if restored else ""
        node = self._run.plan.nodes[index]
        event = NodeSettled(
            node=node.name,
            outcome=Outcome.CLEAN,
            attempts=self._run.tries.get(index, 0),
            action_key=gathered.key if gathered else None,
            duration_seconds=0.0,
            restored=restored,
            detail=how,
            log=row.log if row else None,
            value=row.value if row else None,
        )
        fact: JsonValue = [
            node.name,
            Outcome.CLEAN.value,
            ", ".join(text for text in (how, told) if text),
            event.action_key,
            row.journal_seq if row else None,
        ]
        self._held.append(event)
        self._facts.append(fact)
        self._uncommitted.add(index)
        self._run.ready.extend(self._run.graph.settle(index, Outcome.CLEAN))

    def serve(self, index: int, serve: Serve, gathered: Gathered, restored: int) -> None:
        row = serve.row
        if row.value is not None:
            self._run.values[self._run.plan.nodes[index].name] = json.loads(row.value)
        if row.expires_at is not None:
            self._run.first_expiry = min(self._run.first_expiry or row.expires_at, row.expires_at)
        self._served.append(row.address)
        node, plan_file = self._run.plan.nodes[index].name, self._run.plan.file
        if (row.node, row.plan_file) != (node, plan_file):
            note = self._run.store.results.note_outputs
            self._run.ledger.write(partial(note, plan_file, node, row.outputs))
        self._run.observations.record(index, row.outputs)
        self.settle_clean(index, gathered, row, restored=restored, how=serve.how)

    def skip(self, index: int) -> None:
        culprit = self._run.graph.find_culprit(index)
        assert culprit is not None
        name = self._culprits.get(culprit, self._run.plan.nodes[culprit].name)
        self._culprits[index] = name
        if self._run.graph.outcomes[culprit] is Outcome.CANCELLED:
            self.settle(index, Outcome.CANCELLED, detail=f"`{name}` was cancelled")
        else:
            self.settle(index, Outcome.SKIPPED, detail=f"because of `{name}`")

    def tell(self, event: Event) -> None:
        """Told in its place among the settlements."""
        self._held.append(event)

    @property
    def has_held(self) -> bool:
        """Whether anything waits for `flush_held`."""
        return bool(self._held or self._facts)

    def mark_uncommitted(self, index: int) -> None:
        """Something about this node waits for the next commit."""
        self._uncommitted.add(index)

    def is_uncommitted(self, index: int) -> bool:
        """Whether something about this node, or about what it follows directly, waits for the
        next commit."""
        return index in self._uncommitted or not self._uncommitted.isdisjoint(
            self._run.graph.dependencies(index)
        )

    def flush_held(self) -> None:
        """Journals in one record what settled since the last commit, and tells of the nodes
        that recorded results served."""
        self._uncommitted.clear()
        held, self._held = self._held, []
        served, self._served = self._served, []
        if served:
            self._run.ledger.write(partial(self._run.store.results.mark_used, served))
        facts, self._facts = self._facts, []
        if facts:
            self._run.ledger.note(Fact.NODES_SETTLED, data={"outcomes": facts})
        for event in held:
            self._run.ledger.announce(event)

    def project_outputs(self) -> dict[str, str]:
        outputs: dict[str, str] = {}
        for name, ref in self._run.plan.outputs:
            try:
                value = project(self._run.values[ref.node], ref.path)
            except KeyError:
                continue  # its node was not selected, or gave no such value
            outputs[name] = canonical_json(value).decode()
        return outputs

    def judge(self, outcomes: Mapping[int, Outcome]) -> RunStatus:
        kinds = set(outcomes.values())
        if Outcome.CANCELLED in kinds:
            return RunStatus.CANCELLED
        needless = self._run.graph.not_needed
        if not kinds & {Outcome.FAILED, Outcome.AMBIGUOUS} and all(
            index in needless for index, o in outcomes.items() if o is Outcome.SKIPPED
        ):
            return RunStatus.COMPLETED
        # Handlers are no end of the plan: a teardown that worked makes nothing partly done.
        work = {i: o for i, o in outcomes.items() if self._run.plan.nodes[i].when is When.SUCCESS}
        followed = {d for index in work for d in self._run.graph.dependencies(index)}
        sinks = (o for index, o in work.items() if index not in followed)
        if any(outcome in (Outcome.BUILT, Outcome.CLEAN) for outcome in sinks):
            return RunStatus.PARTIAL
        return RunStatus.FAILED
