"""The plans of earlier runs, as the store keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from assay.engine.runs import RunRow
from assay.engine.store import Store
from assay.plans.model import Digest, Node, NodeName, Plan
from assay.plans.stored import DamagedPlan, plan_from_bytes


def read_plan(store: Store, digest: str) -> Plan | None:
    """The plan with this digest; None where it is not kept, or not as it was written."""
    stored = store.runs.load_plan(digest)
    if stored is None:
        return None
    try:
        return plan_from_bytes(stored, Digest(digest))
    except DamagedPlan:
        return None


def read_nodes(store: Store, run: RunRow) -> Mapping[NodeName, Node]:
    """The nodes of the run's plan by name; none where `read_plan` has none."""
    plan = read_plan(store, run.plan_digest)
    return {} if plan is None else {node.name: node for node in plan.nodes}
