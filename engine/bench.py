"""What one try of a node is made of, as it goes from the coordinator to a worker and back.

Knows values; not what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from assay.engine.attempts import AttemptRow
from assay.engine.blobs import Blobs
from assay.engine.compensation import Compensated
from assay.engine.confinement import Outside
from assay.engine.decision import Gathered
from assay.engine.effects import EffectRow
from assay.engine.environment import CallerEnvironment
from assay.engine.landing import Bundle
from assay.engine.materialize import Restored
from assay.engine.measuring import Measurer
from assay.engine.process import Processes, Spawn
from assay.engine.spares import Spares
from assay.engine.states import AttemptEnd, AttemptId, RunId, State
from assay.engine.store import Store
from assay.engine.workplace import Workplace
from assay.plans.model import (
    Node,
    RelPath,
)


@dataclass(slots=True)
class Assignment:
    """One try, as the coordinator hands it to a worker.

    `interrupted` is set by the coordinator before it signals the processes and read by
    the worker once they have ended: whatever the exit status, an interrupted try is no
    success.
    """

    row: AttemptRow
    index: int
    node: Node
    gathered: Gathered
    spawn: Spawn
    unfinished: AttemptRow | None
    """The node's try before this one, in whichever run, when that did not succeed: what it
    left counts for nothing."""
    others: frozenset[RelPath]
    """Paths among `row.before` that other nodes of the run have left as they are."""
    folder: str
    """The attempt's private folder; TMPDIR is `t` in it, the result file `result`."""
    kept: tuple[tuple[RelPath, State], ...] = ()
    """Files the node both reads and writes or removes, stored as they stood."""
    moved: tuple[RelPath, ...] = ()
    """Those of them that did not stand as the key says: edited since the run looked."""
    effect: EffectRow | None = None
    """Of a node that is not sealed: what is recorded of it before it starts."""
    workplace: Workplace | None = None
    """Where its boundary is held; None: it is only declared."""
    started_at: float | None = None
    """When its process started, on the monotonic clock."""
    interrupted: AttemptEnd | None = None
    interrupted_detail: str = ""


@dataclass(slots=True)
class Executed:
    """What a worker reports of one try."""

    assignment: Assignment
    end: AttemptEnd
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_seconds: float = 0.0
    outputs: tuple[tuple[RelPath, State], ...] = ()
    value: str | None = None
    """Canonical JSON of the node's result."""
    moved: tuple[RelPath, ...] = ()
    """Reads that changed while it ran: the result stands but is not cached."""
    not_stored: str | None = None
    """Why outputs are not in the store although the node is cacheable."""
    left_behind: tuple[int, ...] = ()
    put_back: tuple[RelPath, ...] = ()
    """Inputs that the failed try may have rewritten, as they stood before it again."""
    not_put_back: str | None = None
    has_started: bool = True
    """False: the command did not run at all."""
    trashed: Mapping[RelPath, str] = field(default_factory=dict)
    """What `prepare_attempt` returned, where the worker called it."""
    bundle: Bundle | None = None
    """What an isolated node wrote in its private tree and is yet to be put in place, once that is
    recorded: `land_attempt`."""
    is_landing: bool = False
    """It was begun to put that in place: all of it may be there, or a part."""
    landed: Restored | None = None
    """How that was put in place."""
    set_aside: Mapping[RelPath, str] = field(default_factory=dict)
    """Files it left in its folders and does not declare, with where they are now."""
    compensated: Compensated | None = None
    """What came of taking back a compensable attempt that failed."""
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """What every try of a run works with. `blobs` None: nothing is stored."""

    root: str
    plan_file: str
    store: Store
    measurer: Measurer
    blobs: Blobs | None
    processes: Processes
    spares: Spares
    caller: CallerEnvironment
    outside: Outside
    """What a held node may reach beside the workspace."""
    is_hurried: Callable[[], bool]
    """Whether the run was asked, more than once, to end."""


def attempt_id(run: RunId, ordinal: int) -> AttemptId:
    return AttemptId(f"{run}-{ordinal}")
