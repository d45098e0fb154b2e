"""How the effects of a run stand, for whoever asks: what is known of each, what still lives of
it, what operators have said, and what one is asked.

Only reads. What a dead run left is seen as it is, before anybody has dealt with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from assay.engine import lock_files
from assay.engine.attempts import AttemptRow
from assay.engine.claims import find_undone
from assay.engine.compensation import trace_of_undo
from assay.engine.effects import EffectRow, find_speaker
from assay.engine.events import Question
from assay.engine.intentions import identity_of, question_about
from assay.engine.journal import Fact
from assay.engine.kept_plans import read_nodes
from assay.engine.neighbours import describe_holder
from assay.engine.orphans import Trace, find_all_survivors
from assay.engine.runs import NoSuchRun, RunRow
from assay.engine.settling import (
    IsClosed,
    NoEffect,
    NoSuchNode,
    Said,
    StillRuns,
    find_effect,
    read_said,
)
from assay.engine.states import AttemptId, EffectState, Outcome, RunId
from assay.engine.store import Store
from assay.plans.canonical import JsonValue
from assay.plans.model import Node, NodeName, Tier

_NOTHING: Final = (None,) * 6


@dataclass(frozen=True, slots=True)
class Settled:
    """How one node settled, as a record tells it."""

    node: NodeName
    outcome: str
    detail: str
    asks: tuple[RunId, NodeName] | None
    """Run and node of the effect an operator is asked about."""


def read_settled(data: JsonValue) -> Iterator[Settled]:
    """From the data of a `nodes-settled` record. What an older or a damaged one does not tell is
    left out."""
    outcomes = data.get("outcomes") if isinstance(data, dict) else None
    for each in outcomes if isinstance(outcomes, list) else ():
        if not isinstance(each, list):
            continue
        node, outcome, detail, _, _, asks = (*each, *_NOTHING)[:6]
        if not isinstance(node, str) or not isinstance(outcome, str):
            continue
        asked = None
        if isinstance(asks, list) and len(asks) == 2:
            asked = (RunId(str(asks[0])), NodeName(str(asks[1])))
        yield Settled(NodeName(node), outcome, detail if isinstance(detail, str) else "", asked)


@dataclass(frozen=True, slots=True)
class Standing:
    """How the effect of one node stands. `row` is that of the run itself, of another one that
    speaks for the node, or None: nothing is recorded of it."""

    node: NodeName
    row: EffectRow | None
    settled: str = ""
    """Without a row: how the node settled all the same, as `clean: done earlier in run ...`."""
    began_at: float | None = None
    """Seconds since the epoch."""
    is_lost: bool = False
    """Its assay is gone, and nobody has dealt with it yet."""
    is_living: bool = False
    """Of one that is lost: whether anything of it lives on."""
    living: tuple[int, ...] = ()
    """Which processes, as far as they can be seen from here."""
    moving: str | None = None
    """Who executes it, or takes it back, just now: a clause."""
    taken_back: tuple[RunId | None, str] | None = None
    """Of one that is rolled back: by which run, and why, as a clause."""
    said: tuple[Said, ...] = ()
    question: Question | None = None
    """What an operator is asked: `assay settle` takes the answer."""


def find_living(store: Store, attempts: Iterable[AttemptRow]) -> dict[AttemptId, tuple[int, ...]]:
    """What lives on of attempts whose assay is gone, their undos, and those of what they take back,
    included. One whose lease is held by what cannot be seen from here is among them, without a
    pid."""
    traces: dict[AttemptId, list[Trace]] = {}
    for row in attempts:
        lease = f"{store.tmp}/{row.id}.lease"
        undos = (row.id, *find_undone(row.claims))
        traces[row.id] = [
            Trace(row.id, lease, row.pid),
            *(trace_of_undo(store, each) for each in undos),
        ]
    if not traces:
        return {}
    found = find_all_survivors([trace for own in traces.values() for trace in own])
    living: dict[AttemptId, tuple[int, ...]] = {}
    for attempt, own in traces.items():
        pids = sorted({pid for trace in own for pid in found.get(trace.attempt, ())})
        if pids or any(lock_files.is_held(trace.lease) for trace in own):
            living[attempt] = tuple(pids)
    return living


def find_standings(store: Store, run: RunRow) -> tuple[Standing, ...]:
    """Those of all nodes that are not sealed, in the order of the plan, and of what an operator is
    asked about besides."""
    return _Reader(store).read(run)


def find_standing(store: Store, row: EffectRow) -> Standing:
    """That of one effect about which an operator is asked."""
    return _Reader(store).read_one(row, is_asked=True)


class _Reader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: dict[RunId, Mapping[NodeName, Node]] = {}
        self._outcomes: dict[NodeName, Settled] = {}
        """The last of each node."""
        self._created_seq = 0

    def read(self, run: RunRow) -> tuple[Standing, ...]:
        store = self._store
        for record in store.journal.read(run=run.id):
            if record.kind == Fact.RUN_CREATED:
                self._created_seq = record.seq
            elif record.kind == Fact.NODES_SETTLED:
                self._outcomes |= {each.node: each for each in read_settled(record.data)}
        by_node: dict[NodeName, list[EffectRow]] = {}
        for row in reversed(store.effects.of_run(run.id)):
            by_node.setdefault(row.node, []).append(row)
        asked = self._find_asked(run)
        found: dict[NodeName, Standing] = {}
        for name in self._find_names(run, by_node):
            mine = find_speaker(by_node.get(name, []))
            other = asked.pop(name, None)
            if mine is None:
                mine = other or self._find_other(run, name)
            if mine is None:
                settled = self._outcomes.get(name)
                how = "" if settled is None else settled.outcome
                detail = f": {settled.detail}" if settled is not None and settled.detail else ""
                found[name] = Standing(name, None, how + detail)
                continue
            is_asked = other is not None and other.attempt == mine.attempt
            found[name] = self.read_one(mine, is_asked=is_asked)
            if other is not None and not is_asked:
                asked[name] = other
        rest = [self.read_one(row, is_asked=True) for row in asked.values()]
        shown = {each.row.attempt for each in found.values() if each.row is not None}
        rest = [each for each in rest if each.row is not None and each.row.attempt not in shown]
        return (*found.values(), *rest)

    def read_one(self, row: EffectRow, *, is_asked: bool) -> Standing:
        store = self._store
        attempt = store.attempts.get(row.attempt)
        is_open = attempt is not None and attempt.end is None
        is_lost = is_open and not store.runs.seems_alive(row.run)
        living: tuple[int, ...] = ()
        moving = None
        has_living = False
        if is_lost:
            assert attempt is not None
            there = find_living(store, [attempt])
            has_living, living = row.attempt in there, there.get(row.attempt, ())
        else:
            moving = describe_holder(store, row.attempt)
        question = None
        if is_lost and not has_living:
            question = self._foresee_question(row)
        elif not is_lost and moving is None and self._is_open_question(row, is_asked=is_asked):
            question = self._find_question(row)
        return Standing(
            row.node,
            row,
            "",
            None if attempt is None else attempt.began_at,
            is_lost,
            has_living,
            living,
            moving,
            self._find_taken_back(row),
            read_said(store, row),
            question,
        )

    def _find_taken_back(self, row: EffectRow) -> tuple[RunId | None, str] | None:
        if row.state is not EffectState.ROLLED_BACK or row.settled_seq is None:
            return None
        for record in self._store.journal.read(node=row.node, after=row.settled_seq - 1):
            why = record.data.get("why") if isinstance(record.data, dict) else None
            if record.seq == row.settled_seq and isinstance(why, str):
                return record.run, why
            return None
        return None

    def _find_names(
        self, run: RunRow, by_node: Mapping[NodeName, list[EffectRow]]
    ) -> tuple[NodeName, ...]:
        """The nodes that are not sealed and were selected, and those that have effects."""
        selected = self._store.effects.selection_of(run.id)
        if selected is None and not by_node:
            return ()  # all are sealed: the plan need not be read
        known = self._nodes_of(run)
        planned = [
            name
            for name, node in known.items()
            if name in by_node
            or (
                node.tier is not Tier.SEALED
                and node.command is not None
                and selected is not None
                and name in selected
            )
        ]
        return (*planned, *(name for name in reversed([*by_node]) if name not in known))

    def _find_other(self, run: RunRow, name: NodeName) -> EffectRow | None:
        """What speaks for a node that the run has not performed itself."""
        settled = self._outcomes.get(name)
        if settled is None or settled.outcome not in (Outcome.CLEAN, Outcome.AMBIGUOUS):
            return None
        identity = identity_of(run.plan_file, run.plan_name)
        return self._store.effects.of_node(identity, name, run.id, self._created_seq)[1]

    def _find_asked(self, run: RunRow) -> dict[NodeName, EffectRow]:
        """The effects that the run stopped over, by the nodes that they are of."""
        found: dict[NodeName, EffectRow] = {}
        for settled in self._outcomes.values():
            if settled.asks is None and settled.outcome != Outcome.AMBIGUOUS:
                continue
            of_run, node = settled.asks or (run.id, settled.node)
            rows = [row for row in self._store.effects.of_run(of_run) if row.node == node]
            row = find_speaker(rows[::-1])
            if row is None and settled.asks is None:
                # Recorded before it was said whom it asks, or of a node that has done nothing.
                row = self._find_other(run, settled.node)
            if row is not None:
                found[row.node] = row
        return found

    def _is_open_question(self, row: EffectRow, *, is_asked: bool) -> bool:
        """Whether only a person can say how things are."""
        if not row.is_sound:
            return True
        match row.state:
            case EffectState.UNKNOWN | EffectState.INTENDED:
                # What has a key is repeated under it, unless a run has stopped over it.
                return is_asked or row.idempotency_key is None
            case EffectState.COMPENSATING:
                # Whoever goes on runs the undo, once more if need be.
                return is_asked or self._has_failed_undo(row)
            case EffectState.SUCCEEDED:
                return is_asked and row.is_open and row.asked not in (None, row.accepted)
            case EffectState.NOTHING | EffectState.ROLLED_BACK | EffectState.ROLLING_BACK:
                return False
            case _:
                assert_never(row.state)

    def _has_failed_undo(self, row: EffectRow) -> bool:
        return any(
            record.kind == Fact.ROLLED_BACK
            and isinstance(record.data, dict)
            and record.data.get("attempt") == row.attempt
            and record.data.get("undo") is not None
            for record in self._store.journal.read(node=row.node, after=row.begun_seq)
        )

    def _find_question(self, row: EffectRow) -> Question | None:
        """As `settle` would take the answer; None where it would not."""
        try:
            run = self._store.runs.get(row.run)
            found = find_effect(self._store, run, row.node)
        except (NoSuchRun, NoSuchNode, NoEffect, StillRuns, IsClosed):
            return None
        return self._ask(row, run) if found.attempt == row.attempt else None

    def _foresee_question(self, row: EffectRow) -> Question | None:
        """What will be asked once somebody has dealt with the dead run: `settle` does that
        itself."""
        if row.tier is not Tier.IRREVERSIBLE or row.idempotency_key is not None:
            return None
        if row.is_sound and self._has_ended_well(row):
            return None
        try:
            return self._ask(row, self._store.runs.get(row.run))
        except NoSuchRun:
            return None  # lost with a damaged database: `settle` does not find it either

    def _nodes_of(self, run: RunRow) -> Mapping[NodeName, Node]:
        if run.id not in self._nodes:
            self._nodes[run.id] = read_nodes(self._store, run)
        return self._nodes[run.id]

    def _has_ended_well(self, row: EffectRow) -> bool:
        """Whether what it made in its private tree is on record, which says so."""
        return any(
            record.kind == Fact.BUNDLE_MADE
            and isinstance(record.data, dict)
            and record.data.get("attempt") == row.attempt
            for record in self._store.journal.read(run=row.run, node=row.node)
        )

    def _ask(self, row: EffectRow, run: RunRow) -> Question:
        return question_about(row, self._nodes_of(run).get(row.node))
