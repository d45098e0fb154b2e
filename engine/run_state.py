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
from assay.engine.attempts import AttemptRow, Claims, row_of_restore
from assay.engine.bench import Bench, attempt_id
from assay.engine.blobs import Blobs
from assay.engine.clock import Clock
from assay.engine.confinement import Outside
from assay.engine.decision import Decider, Gathered
from assay.engine.environment import CallerEnvironment, find_parent
from assay.engine.events import Event, Warned
from assay.engine.filesystem import remove
from assay.engine.graph import RuntimeGraph
from assay.engine.identity import this_owner
from assay.engine.intentions import Judgement, plan_identity
from assay.engine.ledger import Ledger
from assay.engine.measuring import Measurer
from assay.engine.neighbours import Neighbours
from assay.engine.observations import Observations
from assay.engine.process import Processes
from assay.engine.resumption import Resumption
from assay.engine.run_request import RunRequest
from assay.engine.runs import RunRow
from assay.engine.secret_seal import SecretSeal
from assay.engine.spares import Spares
from assay.engine.states import (
    ActionKey,
    RunStatus,
)
from assay.engine.store import Store
from assay.engine.toolchain import Toolchain
from assay.engine.version_probe import print_version
from assay.engine.workers import Workers
from assay.engine.workplace import Workplace, Writers, plan_workplace
from assay.plans.canonical import JsonValue
from assay.plans.model import Boundary, Node, NodeName, Plan
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
    judgement: Judgement | None = None
    """Of a node that is not sealed: what was judged, to be found so again when it begins."""


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
        resumption: Resumption | None = None,
    ) -> None:
        self.store = store
        self.resumption = resumption
        """Given: the run that is gone on with."""
        self.plan = plan
        """Grows by generations."""
        self.request = request
        self.emit = emit
        self.clock = clock
        self.id = store.runs.new_id() if resumption is None else resumption.row.id
        self.plan_identity = plan_identity(plan)
        self.parent = find_parent(request.environ)
        self.row = RunRow(  # of a new run
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
        if resumption is not None:
            self.row = resumption.row
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
        self._writers: Writers | None = None
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
            done={} if resumption is None else resumption.history.done,
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
            outside=Outside(store.root),
            is_hurried=lambda: self.killing,
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
        self.rerunning: set[int] = set()
        """Settled nodes that execute once more, since what others read of them is gone."""
        self.retrying: set[int] = set()
        """Nodes that this run has just tried, whose next try is due or about to begin."""
        self.made: set[str] = set()
        """Addresses this run has recorded results under."""
        self.instances: dict[int, tuple[int, ...]] = {}
        """Template to its instances, once it has expanded."""
        self.pins_due = True
        """Whether what was pinned has yet to be committed."""
        self.dispatched = False
        """Whether anything was executed or restored."""
        self.stopping = False
        """Asked to cancel: nothing new starts but `when = "always"` handlers."""
        self.killing = False
        """Asked again: not even those."""
        self.stopped_by: NodeName | None = None
        """The node whose failure ends a `--fail-fast` run."""
        self.created_seq = 0
        """Journal position at which the run was created."""
        self.is_resumed = resumption is not None
        """Whether it goes on with what it saw and did when it was begun."""
        self.retry_failed = resumption is not None and resumption.retry_failed
        """Whether failures of this run are tried again."""
        self.gave_up_waiting = False
        """Whether it was cancelled while it waited for what a dead run had left running."""
        self.store_failed = False
        """Whether a node could not run because the store cannot record it."""
        self.certifies = True
        """Whether the next run could find nothing to do by stats alone."""
        self.first_expiry: float | None = None

        self.earlier_tries: dict[int, int] = {}
        """How often a node was tried before the run was gone on with."""
        if resumption is not None:
            self._adopt(resumption)

    def _adopt(self, resumption: Resumption) -> None:
        """Takes over what the run saw and did so far."""
        history = resumption.history
        self.created_seq = resumption.created_seq
        self.attempt_ordinal = history.ordinal
        if resumption.pins is not None:
            self.observations.adopt(resumption.pins.pins, resumption.pins.members)
            rows = [self.store.attempts.get(attempt) for attempt in sorted(history.taken_back)]
            entries = tuple(e for row in rows if row is not None for e in row.claims.writes)
            if entries:
                self.observations.look_again_within(entries)
        index_of = {node.name: index for index, node in enumerate(self.plan.nodes)}
        for name, number in history.tries.items():
            if name in index_of:
                self.tries[index_of[name]] = self.earlier_tries[index_of[name]] = number
        for template, names in history.expanded.items():
            index = index_of[template]
            if self.graph.is_selected(index):
                instances = tuple(index_of[name] for name in names)
                self.graph.adopt(self.plan, instances, index)
                self.instances[index] = instances

    def row_of_restore(self, node: Node, claims: Claims, key: ActionKey) -> AttemptRow:
        """The next attempt, one that puts something back for `node`."""
        self.attempt_ordinal += 1
        attempt = attempt_id(self.id, self.attempt_ordinal)
        return row_of_restore(attempt, self.id, node.name, key, claims, self.clock.now())

    def plan_workplace(self, index: int) -> Workplace | None:
        """Where the attempt whose number is `attempt_ordinal` is to work."""
        node = self.plan.nodes[index]
        if node.boundary is Boundary.DECLARED:
            return None
        if self._writers is None:
            self._writers = Writers(self.plan)
        self._writers.extend(self.plan)
        place = f"{self.store.tmp}/{self.id}-{self.attempt_ordinal}.tree"
        return plan_workplace(
            node, index, self._writers, self.store.root, place, self.clock.now_ns, self.measurer
        )

    def find_failure(self, name: NodeName, key: ActionKey) -> str | None:
        """Why the node failed earlier in this run, if that is its result still."""
        if self.resumption is None or self.retry_failed:
            return None
        failed = self.resumption.history.failed.get(name)
        if failed is None or failed[0] != key:
            return None
        why = f" ({failed[1]})" if failed[1] else ""
        return f"failed earlier in this run{why}; `--retry-failed` tries it again"

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.timer_ordinal += 1
        due = self.clock.monotonic() + seconds
        heapq.heappush(self.timers, (due, self.timer_ordinal, action))

    def warn(self, text: str, node: NodeName | None = None) -> None:
        self.ledger.announce(Warned(text, node))
