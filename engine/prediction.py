"""What a run would do, and why: the answer of `--dry-run` and `why`.

Takes the same decisions as the run loop, on the same facts, and acts on none of them.
Where a node would execute, what it will write is not known before, so that what reads it
can only be called unknown, unless its own inputs say more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from assay.engine.clock import Clock, SystemClock
from assay.engine.database import open_in_memory
from assay.engine.decision import Decider, Execute, Serve
from assay.engine.environment import CallerEnvironment, Refused
from assay.engine.journal import Journal
from assay.engine.keys import Change
from assay.engine.measuring import Measurer
from assay.engine.observations import Observations
from assay.engine.results import Results
from assay.engine.run_request import RunRequest
from assay.engine.secret_seal import SecretSeal
from assay.engine.stat_cache import StatCache
from assay.engine.states import RunId
from assay.engine.store import Store
from assay.engine.toolchain import Toolchain
from assay.engine.version_probe import print_version
from assay.plans.canonical import JsonValue
from assay.plans.model import EdgeKind, Kind, NodeName, Plan, RelPath, When
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


_CERTAIN = frozenset({Forecast.CLEAN, Forecast.RESTORE})


def predict(
    store: Store | None,
    plan: Plan,
    selection: Selection,
    request: RunRequest,
    root: str,
    clock: Clock | None = None,
) -> tuple[Prediction, ...]:
    """One prediction a selected node, in plan order. Writes nothing; `store` None: no
    store yet."""
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
        self._selection = selection
        measurer = Measurer(root, stats, clock.now_ns)
        caller = CallerEnvironment(request.environ)
        self._observations = Observations(root, plan, measurer, results, remove=None)
        self._values: dict[str, JsonValue] = {}
        self._settled: set[int] = set()
        self._selected = frozenset(selection.indices)
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
        self._observations.pin(self._selection.indices)
        found: dict[int, Prediction] = {}
        for index in self._in_order():
            found[index] = self._predict(index, found)
            self._settled.add(index)
        return tuple(found[index] for index in self._selection.indices)

    def _predict(self, index: int, found: dict[int, Prediction]) -> Prediction:
        node = self._plan.nodes[index]
        uncertain = [
            found[d]
            for d in self._plan.dependencies[index]
            if d in found and found[d].verdict not in _CERTAIN
        ]
        refused = [p for p in uncertain if p.verdict is Forecast.REFUSED]
        if node.when is When.FAILURE and not refused:
            return Prediction(node.name, Forecast.ON_FAILURE, "runs if what it follows fails")
        if refused and node.when is When.SUCCESS:
            return Prediction(
                node.name, Forecast.REFUSED, f"skipped because of `{refused[0].node}`"
            )
        if node.command is None:
            if not uncertain and node.kind is not Kind.TEMPLATE:
                self._observations.record(index, ())
                return Prediction(node.name, Forecast.CLEAN, "a group: all it follows is clean")
            if node.kind is Kind.TEMPLATE:
                return Prediction(node.name, Forecast.UNKNOWN, "expands once its paths are written")
            names = ", ".join(f"`{p.node}`" for p in uncertain[:3])
            return Prediction(node.name, Forecast.UNKNOWN, f"a group that waits for {names}")
        if self._consumes_unknown(index, found):
            names = ", ".join(f"`{p.node}`" for p in uncertain[:3])
            return Prediction(node.name, Forecast.UNKNOWN, f"depends on what {names} will write")
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

    def _is_rewritten_later(self, index: int) -> Callable[[RelPath], bool]:
        return lambda path: any(
            writer != index and writer in self._selected and writer not in self._settled
            for writer in self._observations.writers(path)
        )

    def _in_order(self) -> Iterator[int]:
        """The selected nodes, each after everything it follows, plan order otherwise."""
        pending: dict[int, int] = {}
        dependents: dict[int, list[int]] = {}
        for index in self._selection.indices:
            needs = [d for d in self._plan.dependencies[index] if d in self._selected]
            pending[index] = len(needs)
            for dependency in needs:
                dependents.setdefault(dependency, []).append(index)
        ready = [index for index in reversed(self._selection.indices) if not pending[index]]
        while ready:
            index = ready.pop()
            yield index
            for dependent in reversed(dependents.get(index, ())):
                pending[dependent] -= 1
                if not pending[dependent]:
                    ready.append(dependent)
