"""The run with nothing to do, from question to record, without compiling the plan.

Asks whether an earlier run's certificate still holds and, if so, records a run that agreed
with it: one row and one journal record. Anything else is None: the plain way decides.
Imports as little as it can; it is all that a run with nothing to do pays for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from assay.engine.certificate import Certificate, Question, still_holds
from assay.engine.environment import find_parent, match_variables
from assay.engine.events import RunSettled
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.program_lookup import find_program
from assay.engine.runs import RunRow
from assay.engine.states import RunId, RunStatus, State
from assay.engine.store import FOLDER, Store
from assay.engine.store_errors import StoreError
from assay.plans.model import RelPath


@dataclass(frozen=True, slots=True)
class Agreed:
    """A run in which nothing was to be done, and the nodes it found clean."""

    settled: RunSettled
    nodes: list[str]


def agree(
    root: str,
    question: Question,
    environ: Mapping[str, str],
    now: Callable[[], float],
    monotonic: Callable[[], float],
) -> Agreed | None:
    """The run, recorded, if nothing is to be done, else None."""
    began, created_at = monotonic(), now()
    if not os.path.exists(os.path.join(root, FOLDER, "assay.db")):
        return None
    try:
        store = Store.open_for_run(root, now=now, mend=False)
    except StoreError:
        return None  # the plain way meets it again and tells
    try:
        if not store.recorded or store.notices:
            return None
        return _agree(store, question, environ, now, monotonic, began, created_at)
    except StoreError:
        return None
    finally:
        store.close()


def _agree(
    store: Store,
    question: Question,
    environ: Mapping[str, str],
    now: Callable[[], float],
    monotonic: Callable[[], float],
    began: float,
    created_at: float,
) -> Agreed | None:
    blob = store.agreements.get(question.address)
    if blob is None or store.runs.unsettled():
        return None
    if store.has_effects and store.effects.has_open():
        return None  # where there never were any, nothing is loaded to ask
    certificate = Certificate.unpack(blob)
    state_of = _measure_nothing
    if certificate.racy:
        from assay.engine.certify import state_or_none
        from assay.engine.measuring import Measurer

        state_of = partial(state_or_none, Measurer(store.root, store.stats, time.time_ns))

    if not still_holds(
        certificate,
        store.root,
        environ,
        now(),
        find_tool=partial(find_program, store.root),
        match=match_variables,
        state_of=state_of,
    ):
        return None

    def vouch(path: str, found: os.stat_result) -> State | None:
        return store.stats.lookup(RelPath(path), found)

    settled_at = now()
    with store.transaction():
        run = store.runs.new_id()
        store.runs.create(
            RunRow(
                id=run,
                plan_name=certificate.plan_name,
                plan_file=certificate.plan_file,
                plan_digest=certificate.plan_digest,
                status=RunStatus.COMPLETED,
                created_at=created_at,
                settled_at=settled_at,
                owner=this_owner(),
                fence=1,
                heartbeat_at=settled_at,
                parent_attempt=find_parent(environ),
                selected=len(certificate.nodes),
                counts=certificate.counts,
                agreed_with=RunId(certificate.run),
                targets=question.targets,
                params=question.params,
            )
        )
        store.journal.append(
            f"run:{run}",
            1,
            Fact.AGREED,
            run=run,
            data={"with": certificate.run, "selected": len(certificate.nodes)},
        )
        if certificate.has_racy:
            # What was too young for its stat to count has been looked at again just now.
            store.stats.flush()
            store.agreements.put(
                question.address,
                RunId(certificate.run),
                certificate.aged(store.root, time.time_ns(), vouch).pack(),
            )
    settled = RunSettled(
        run=run,
        status=RunStatus.COMPLETED,
        counts=certificate.counts,
        duration_seconds=monotonic() - began,
        outputs=certificate.outputs,
        agreed_with=RunId(certificate.run),
    )
    return Agreed(settled, certificate.nodes)


def _measure_nothing(path: str) -> State | None:
    raise AssertionError(f"{path} is vouched for by its stat")
