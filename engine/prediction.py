"""What a run would do, and why: the answer of `--dry-run` and `why`.

Takes the same decisions as the run loop, on the same facts, and acts on none of them.
Where a node would execute, what it will write is not known before, so that what reads it
can only be called unknown, unless its own inputs say more.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from assay.engine.clock import Clock, SystemClock
from assay.engine.comparing import find_evidence, judge_with
from assay.engine.database import open_in_memory
from assay.engine.decision import Decider, Execute, Gathered, Serve
from assay.engine.environment import CallerEnvironment, Refused
from assay.engine.graph import RuntimeGraph
from assay.engine.intentions import Done, Perform, Rethrow, RollBack, Stop, plan_identity
from assay.engine.journal import Journal
from assay.engine.keys import Change
from assay.engine.measuring import Measurer
from assay.engine.observations import Observations
from assay.engine.results import Results
from assay.engine.run_request import RunRequest
from assay.engine.secret_seal import SecretSeal
from assay.engine.standing import Standing, find_standing
from assay.engine.stat_cache import StatCache
from assay.engine.states import Outcome, RunId
from assay.engine.store import Store
from assay.engine.toolchain import Toolchain
from assay.engine.version_probe import print_version
from assay.plans.canonical import JsonValue
from assay.plans.diagnostics import PlanError
from assay.plans.generations import expand_template
from assay.plans.model import EdgeKind, Kind, Node, NodeName, Plan, RelPath, Tier, When
from assay.plans.selection import Selection


class Forecast(StrEnum):
    """What a run would do with a node."""

    CLEAN = "clean"
    RESTORE = "restore"
    RUN = "run"
    UNKNOWN = "unknown"
    """It depends on what a node that would run writes."""
    REFUSED = "refused"
    """It would fail before it is dispatched."""
    AMBIGUOUS = "ambiguous"
    """An operator would be asked first."""
    ON_FAILURE = "on-failure"
    """A handler: runs only if what it follows fails."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """`since` and `recorded_at` (seconds since the epoch) name the run that recorded the
    result the changes are measured against."""

    node: NodeName
    verdict: Forecast
    reason: str
    changes: tuple[Change, ...] = ()
    since: RunId | None = None
    recorded_at: float | None = None
    standing: Standing | None = None
    """How the effect stands that a run would stop over."""


_AFTER_EVERYTHING = 1 << 62
"""A journal position that no record has."""

_CERTAIN = frozenset({Forecast.CLEAN, Forecast.RESTORE})


def predict(
    store: Store | None,
    plan: Plan,
    selection: Selection,
    request: RunRequest,
    root: str,
    clock: Clock | None = None,
) -> tuple[Prediction, ...]:
    """One prediction a selected node, in plan order, then those of instances that templates
    would expand into. Writes nothing; `store` None: no store yet."""
    return _Predictor(store, plan, selection, request, root, clock or SystemClock()).predict()


class _Predictor:
    def __init__(
        self,
        store: Store | None,
        plan: Plan,
        selection: Selection,
        request: RunRequest,
        root: str,
        clock: Clock,
    ) -> None:
        database = store.database if store is not None else open_in_memory()
        if store is not None:
            results, stats = store.results, store.stats
        else:
            results = Results(database, Journal(database, time.time), time.time)
            stats = StatCache(database, time.time)
        self._plan = plan
        self._store = store
        self._is_new = request.new
        measurer = Measurer(root, stats, clock.now_ns)
        caller = CallerEnvironment(request.environ)
        self._observations = Observations(root, plan, measurer, results, remove=None)
        self._values: dict[str, JsonValue] = {}
        self._results = results
        self._graph = RuntimeGraph(plan, selection.indices)
        self._instances: dict[int, tuple[int, ...]] = {}
        """Template to its instances, once it has expanded."""
        self._decider = Decider(
            plan,
            RunId(""),
            self._observations,
            Toolchain(root, measurer, caller, lambda c, e: print_version(c, root, e)),
            caller,
            measurer,
            results,
            fresh=request.fresh,
            now=clock.now,
            value_of=lambda name: self._values[name],
            seal_secret=SecretSeal(database).seal,
        )

    def predict(self) -> tuple[Prediction, ...]:
        self._observations.pin(self._graph.selected)
        found: dict[int, Prediction] = {}
        ready = deque(self._graph.ready_at_start())
        while ready:
            index = ready.popleft()
            if self._expands(index, found):
                ready.extend(self._expand(index))
                if self._instances[index]:
                    continue
            found[index] = self._predict(index, found)
            # Only the order matters here: what a node would come to is in its prediction.
            ready.extend(self._graph.settle(index, Outcome.CLEAN))
        return tuple(found[index] for index in sorted(found))

    def _expands(self, index: int, found: dict[int, Prediction]) -> bool:
        """Whether this is a template whose paths are there as a run would find them."""
        return (
            self._plan.nodes[index].kind is Kind.TEMPLATE
            and index not in self._instances
            and all(found[d].verdict in _CERTAIN for d in self._plan.dependencies[index])
        )

    def _expand(self, index: int) -> tuple[int, ...]:
        """Takes in the instances of a template; those that are ready at once."""
        self._instances[index] = ()
        try:
            matches = self._observations.template_matches(index)
            plan = expand_template(self._plan, index, matches)
        except (PlanError, Refused):
            return ()  # told when the template itself is predicted
        new = tuple(range(len(self._plan.nodes), len(plan.nodes)))
        needed = self._graph.find_unselected(plan, new)
        self._plan = self._decider.plan = plan
        self._observations.extend(plan)
        ready = self._graph.add(plan, needed)
        if new:
            ready += self._graph.append(plan, new, index)
        self._instances[index] = new
        self._observations.pin((*needed, *new), fresh_listing=True)
        return ready

    def _predict(self, index: int, found: dict[int, Prediction]) -> Prediction:
        node = self._plan.nodes[index]
        uncertain = [
            found[d]
            for d in self._graph.dependencies(index)
            if d in found and found[d].verdict not in _CERTAIN
        ]
        blocking = (Forecast.REFUSED, Forecast.AMBIGUOUS)
        refused = [p for p in uncertain if p.verdict in blocking]
        if node.when is When.FAILURE and not refused:
            return Prediction(node.name, Forecast.ON_FAILURE, "runs if what it follows fails")
        if refused and node.when is When.SUCCESS:
            return Prediction(
                node.name, Forecast.REFUSED, f"skipped because of `{refused[0].node}`"
            )
        if node.command is None:
            instances = self._instances.get(index)
            if node.kind is Kind.TEMPLATE and instances is None:
                return Prediction(node.name, Forecast.UNKNOWN, "expands once its paths are written")
            if not uncertain:
                self._observations.gather_outputs(index, instances or ())
                return Prediction(node.name, Forecast.CLEAN, "a group: all it follows is clean")
            names = ", ".join(f"`{p.node}`" for p in uncertain[:3])
            return Prediction(node.name, Forecast.UNKNOWN, f"a group that waits for {names}")
        if self._consumes_unknown(index, found):
            names = ", ".join(f"`{p.node}`" for p in uncertain[:3])
            return self._unknown(node, f"depends on what {names} will write")
        return self._decide(index)

    def _consumes_unknown(self, index: int, found: dict[int, Prediction]) -> bool:
        """Whether content this node consumes comes from a node that would run."""
        kinds = self._plan.edge_kinds[index]
        return any(
            kind != EdgeKind.AFTER
            and dependency in found
            and found[dependency].verdict not in _CERTAIN
            for dependency, kind in zip(self._plan.dependencies[index], kinds, strict=True)
        )

    def _decide(self, index: int) -> Prediction:
        node = self._plan.nodes[index]
        try:
            gathered = self._decider.gather(index)
        except Refused as error:
            return Prediction(node.name, Forecast.REFUSED, str(error))
        if node.tier is not Tier.SEALED:
            return self._judge(index, gathered)
        decision = self._decider.decide(index, gathered, self._is_rewritten_later(index))
        match decision:
            case Serve():
                row = decision.row
                if row.value is not None:
                    self._values[node.name] = json.loads(row.value)
                self._observations.record(index, row.outputs)
                verdict, reason = Forecast.CLEAN, "nothing it reads changed"
                if decision.differences:
                    names = ", ".join(f"`{path}`" for path in decision.differences[:3])
                    verdict, reason = Forecast.RESTORE, f"not as recorded: {names}"
                return Prediction(
                    node.name, verdict, reason, since=row.run, recorded_at=row.recorded_at
                )
            case Execute():
                last = decision.last or decision.expired
                return Prediction(
                    node.name,
                    Forecast.RUN,
                    decision.reason,
                    decision.changes,
                    last.run if last else None,
                    last.recorded_at if last else None,
                )

    def _judge(self, index: int, gathered: Gathered) -> Prediction:
        """A node that is not sealed: what earlier runs did decides."""
        node = self._plan.nodes[index]
        if self._store is None or self._is_new:
            return Prediction(node.name, Forecast.RUN, "has an effect")
        evidence = find_evidence(
            self._store,
            plan_identity(self._plan),
            node,
            RunId(""),
            _AFTER_EVERYTHING,
            is_new=False,
            retry_failed=False,
        )
        other = evidence.other
        if other is not None and evidence.is_under_way:
            if self._store.runs.seems_alive(other.run):
                text = f"waits for run {other.run}, which performs it now"
                return Prediction(node.name, Forecast.UNKNOWN, text, since=other.run)
            standing = find_standing(self._store, other)
            if standing.is_living:
                text = f"waits for what run {other.run} left running{_describe_pids(standing)}"
                return Prediction(node.name, Forecast.UNKNOWN, text, since=other.run)
            # A run would deal with its attempt first.
            evidence = replace(evidence, is_under_way=False)
            if other.tier is Tier.COMPENSABLE:
                text = f"rolls back what run {other.run} did, then has an effect"
                return Prediction(node.name, Forecast.RUN, text, since=other.run)
        found = judge_with(self._store, self._plan, index, gathered, evidence)
        match found:
            case Done():
                row = found.row
                if row.value is not None:
                    self._values[node.name] = json.loads(row.value)
                self._observations.record(index, row.outputs)
                return Prediction(node.name, Forecast.CLEAN, found.how, since=row.run)
            case Stop():
                since = None if found.row is None else found.row.run
                asked = None if found.row is None else find_standing(self._store, found.row)
                return Prediction(
                    node.name, Forecast.AMBIGUOUS, found.detail, since=since, standing=asked
                )
            case RollBack():
                text = f"rolls back what run {found.row.run} did, then has an effect"
                return Prediction(node.name, Forecast.RUN, text, since=found.row.run)
            case Perform():
                return Prediction(node.name, Forecast.RUN, found.reason)
            case Rethrow():
                raise AssertionError("only a run that is gone on with has failures of its own")
            case _:
                assert_never(found)

    def _is_rewritten_later(self, index: int) -> Callable[[RelPath], bool]:
        return lambda path: any(
            writer != index
            and self._graph.is_selected(writer)
            and not self._graph.is_settled(writer)
            for writer in self._observations.writers(path)
        )

    def _unknown(self, node: Node, reason: str) -> Prediction:
        last = self._results.last_of(self._plan.file, node.name)
        return Prediction(
            node.name,
            Forecast.UNKNOWN,
            reason,
            since=last.run if last else None,
            recorded_at=last.recorded_at if last else None,
        )


def _describe_pids(standing: Standing) -> str:
    return f" (pid {', '.join(map(str, standing.living))})" if standing.living else ""
