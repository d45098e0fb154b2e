"""What the parts of a running run share: its plan, where its nodes stand, and the tools all
of them work with.

Belongs to the coordinator's thread, but for `measurer`, `blobs` and `bench`, which workers
use too. Decides nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from assay.engine.admission import Admission
from assay.engine.attempt import (
    Bench,
)
from assay.engine.blobs import Blobs
from assay.engine.clock import Clock
from assay.engine.decision import Decider, Gathered
from assay.engine.environment import CallerEnvironment
from assay.engine.events import (
    Event,
    Warned,
)
from assay.engine.filesystem import remove
from assay.engine.graph import RuntimeGraph
from assay.engine.identity import this_owner
from assay.engine.ledger import Ledger
from assay.engine.measuring import Measurer
from assay.engine.neighbours import Neighbours
from assay.engine.observations import Observations
from assay.engine.process import Processes
from assay.engine.run_request import RunRequest
from assay.engine.runs import RunRow
from assay.engine.secret_seal import SecretSeal
from assay.engine.spares import Spares
from assay.engine.states import (
    AttemptId,
    RunStatus,
)
from assay.engine.store import Store
from assay.engine.toolchain import Toolchain
from assay.engine.version_probe import print_version
from assay.engine.workers import Workers
from assay.plans.canonical import JsonValue
from assay.plans.model import (
    NodeName,
    Plan,
)
from assay.plans.selection import Selection


@dataclass(slots=True)
class Queued:
    """A node that must execute and waits for permits."""

    gathered: Gathered
    reason: str
    seen: int | None = None
    """As `Execute.seen`."""
    version: int = -1
    """`Ledger.version` when that was decided."""


def _find_parent(request: RunRequest) -> AttemptId | None:
    parent = request.environ.get("ASSAY_ATTEMPT")
    return AttemptId(parent) if parent else None


class RunState:
    """One run in progress."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        selection: Selection,
        request: RunRequest,
        emit: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self.store = store
        self.plan = plan
        """Grows by generations."""
        self.request = request
        self.emit = emit
        self.clock = clock
        self.id = store.runs.new_id()
        self.parent = _find_parent(request)
        self.row = RunRow(
            id=self.id,
            plan_name=plan.name,
            plan_file=plan.file,
            plan_digest=plan.digest,
            status=RunStatus.RUNNING,
            created_at=clock.now(),
            settled_at=None,
            owner=this_owner(),
            fence=1,
            heartbeat_at=clock.now(),
            parent_attempt=self.parent,
            selected=len(selection.indices),
            counts={},
            agreed_with=None,
            targets=request.targets,
            params=request.params,
        )
        self.ledger = Ledger(store, self.row, emit)
        self.measurer = Measurer(store.root, store.stats, clock.now_ns)
        self.blobs = Blobs(store.cas, store.tmp)
        self.caller = CallerEnvironment(request.environ)
        self.toolchain = Toolchain(
            store.root,
            self.measurer,
            self.caller,
            lambda command, environ: print_version(command, store.root, environ),
        )
        self.observations = Observations(
            store.root, plan, self.measurer, store.results, remove=remove
        )
        self.values: dict[NodeName, JsonValue] = {}
        """Results of settled nodes."""
        self.decider = Decider(
            plan,
            self.id,
            self.observations,
            self.toolchain,
            self.caller,
            self.measurer,
            store.results,
            fresh=request.fresh,
            now=clock.now,
            value_of=lambda name: self.values[NodeName(name)],
            seal_secret=SecretSeal(store.database).seal,
        )
        self.bench = Bench(
            root=store.root,
            plan_file=plan.file,
            store=store,
            measurer=self.measurer,
            blobs=self.blobs if store.recorded else None,
            processes=Processes(),
            spares=Spares(),
            caller=self.caller,
        )
        self.neighbours = Neighbours(store, self.id, plan.file, self.parent)
        self.graph = RuntimeGraph(plan, selection.indices)
        self.admission = Admission(
            request.jobs,
            request.agents or plan.agents or request.jobs,
            {resource.name: resource.amount for resource in plan.resources},
        )
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self.workers = Workers(request.jobs + 1, self.inbox)
        self.timers: list[tuple[float, int, Callable[[], object]]] = []
        self.timer_ordinal = 0
        self.attempt_ordinal = 0
        self.ready: deque[int] = deque()
        self.queued: dict[int, Queued] = {}
        """Nodes that must execute and wait for permits."""
        self.tries: dict[int, int] = {}
        self.made: set[str] = set()
        """Addresses this run has recorded results under."""
        self.instances: dict[int, tuple[int, ...]] = {}
        """Template to its instances, once it has expanded."""
        self.dispatched = False
        """Whether anything was executed or restored."""
        self.stopping = False
        """Asked to cancel: nothing new starts but `when = "always"` handlers."""
        self.killing = False
        """Asked again: not even those."""
        self.stopped_by: NodeName | None = None
        """The node whose failure ends a `--fail-fast` run."""
        self.certifies = True
        """Whether the next run could find nothing to do by stats alone."""
        self.first_expiry: float | None = None

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.timer_ordinal += 1
        due = self.clock.monotonic() + seconds
        heapq.heappush(self.timers, (due, self.timer_ordinal, action))

    def warn(self, text: str, node: NodeName | None = None) -> None:
        self.ledger.announce(Warned(text, node))
