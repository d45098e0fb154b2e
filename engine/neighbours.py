"""Other runs on the same store: whose attempts this run must wait for.

Runs on the coordinator's thread. A conflict is looked for inside the transaction that
records the intent, so that of two runs one always sees the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.engine.attempts import AttemptRow, Claims
from assay.engine.claims import closes_cycle, find_conflict, find_undone
from assay.engine.compensation import UNDO_SUFFIX
from assay.engine.identity import this_host
from assay.engine.runs import describe_owner
from assay.engine.states import AttemptId, RunId
from assay.engine.store import Store
from assay.plans.model import NodeName


@dataclass(frozen=True, slots=True)
class Blocked:
    """An attempt of another run holds what a node wants."""

    attempt: AttemptId
    run: RunId
    node: NodeName
    pid: int
    since: float
    what: str
    host: str | None
    """That of the pid, where it is another one."""
    is_stopped: bool
    """Whether the assay of that run is stopped."""
    is_hopeless: str | None
    """Set when waiting would wait for oneself: the sentence that says how."""


def find_ancestors(store: Store, parent: AttemptId | None) -> tuple[AttemptRow, ...]:
    """The attempt `parent` and those around it, innermost first. An undo is part of the attempt
    that takes back, which may be one of a later run."""
    found: list[AttemptRow] = []
    seen: set[AttemptId] = set()
    while parent is not None and parent not in seen:
        seen.add(parent)
        if parent.endswith(UNDO_SUFFIX):
            row = find_holder(store, AttemptId(parent.removesuffix(UNDO_SUFFIX)))
        else:
            row = store.attempts.get(parent)
        if row is None:
            break  # nested in a node of another workspace
        found.append(row)
        parent = store.runs.get(row.run).parent_attempt
    return tuple(found)


def find_holder(store: Store, attempt: AttemptId) -> AttemptRow | None:
    """Who decides just now what becomes of the effect of `attempt`: that itself, until it has
    ended, or the attempt that takes back what it did."""
    return next(
        (
            row
            for row in store.attempts.running()
            if row.id == attempt or attempt in find_undone(row.claims)
        ),
        None,
    )


def describe_holder(store: Store, attempt: AttemptId) -> str | None:
    """`find_holder` as a clause about the node; None where nobody does."""
    row = find_holder(store, attempt)
    if row is None:
        return None
    is_itself = row.id == attempt
    who = f"run {row.run}"
    if store.runs.seems_alive(row.run):
        who += f" ({describe_owner(store.runs.get(row.run))})"
        return f"still runs: {who} executes it" if is_itself else f"is being taken back by {who}"
    doing = "still runs" if is_itself else "is still being taken back"
    pid = f" (pid {row.pid})" if row.pid is not None else ""
    return f"{doing}{pid}, though the assay of {who} is gone"


class Neighbours:
    """What one run knows of the others. `parent` is the attempt this run is nested in."""

    def __init__(self, store: Store, run: RunId, plan_file: str, parent: AttemptId | None) -> None:
        self._store = store
        self._run = run
        self._plan_file = plan_file
        self.ancestors = find_ancestors(store, parent)
        self.waits: frozenset[AttemptId] = frozenset()
        """Whom this run is recorded to wait for."""

    def find_self(self, node: NodeName) -> AttemptRow | None:
        """The ancestor that is an attempt of this very node: a loop without an end."""
        for row in self.ancestors:
            if find_undone(row.claims):
                continue  # it stands under the node that is done anew after it
            run = self._store.runs.get(row.run)
            if row.node == node and run.plan_file == self._plan_file:
                return row
        return None

    def find_blocking(self, mine: Claims, others: list[AttemptRow]) -> Blocked | None:
        """The first attempt among `others` whose claims meet `mine`."""
        for row in others:
            what = find_conflict(mine, row.claims)
            if what is None:
                continue
            run = self._store.runs.get(row.run)
            is_alive = self._store.runs.is_alive(row.run)
            return Blocked(
                attempt=row.id,
                run=row.run,
                node=NodeName(row.node),
                pid=run.owner.pid if is_alive or row.pid is None else row.pid,
                since=row.began_at,
                what=what,
                host=None if run.owner.host == this_host() else run.owner.host,
                is_stopped=is_alive and self._store.runs.is_stopped(run),
                is_hopeless=self.explain_cycle(row),
            )
        return None

    def others(self) -> list[AttemptRow]:
        """Running attempts of other runs; those of dead ones hold what they claim until what
        they did has been dealt with. Inside or outside a transaction."""
        rows = self._store.attempts.running(excluding_run=self._run)
        if self._store.recorded:
            return rows
        # What is unrecorded cannot deal with them, nor tell the dead from the living.
        return [row for row in rows if self._store.runs.seems_alive(row.run)]

    def has_dead(self) -> bool:
        """Whether attempts are marked running whose run has died since."""
        rows = self._store.attempts.running(excluding_run=self._run)
        return any(not self._store.runs.is_alive(row.run) for row in rows)

    def wait_for(self, attempts: frozenset[AttemptId]) -> None:
        """Records whom this run waits for; inside a transaction."""
        if attempts != self.waits:
            self._store.runs.set_waiting(self._run, tuple(sorted(attempts)))
            self.waits = attempts

    def explain_cycle(self, target: AttemptRow) -> str | None:
        """How waiting for `target` would wait for oneself, None when it would not."""
        if not self.ancestors:
            return None
        waits: dict[AttemptId, set[AttemptId]] = {}
        for run in self._store.runs.unsettled():
            waiting = self._store.runs.waiting(run.id)
            if waiting and run.id != self._run:
                for around in find_ancestors(self._store, run.parent_attempt):
                    waits.setdefault(around.id, set()).update(waiting)
        mine = [row.id for row in self.ancestors]
        if not closes_cycle(target.id, mine, waits):
            return None
        return (
            f"waits for {_name(target)}, which cannot end before it: this run was started by"
            f" {_name(self.ancestors[-1])}"
        )


def _name(row: AttemptRow) -> str:
    if find_undone(row.claims):
        return f"a roll-back in run {row.run}"
    return f"`{row.node}` of run {row.run}"
