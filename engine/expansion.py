"""Templates whose paths have been written: their instances join the plan as a new generation.

Does not know what the instances do, nor when a template is ready.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from assay.engine.environment import Refused
from assay.engine.events import NodesAppended, Warned
from assay.engine.intentions import describe, find_vanished, performs, question_about
from assay.engine.journal import Fact
from assay.engine.neighbours import describe_holder
from assay.engine.opening import keep_plan
from assay.engine.performing import Performing
from assay.engine.run_state import RunState
from assay.engine.settlement import Settlement
from assay.engine.states import Outcome
from assay.plans.diagnostics import PlanError
from assay.plans.generations import expand_template
from assay.plans.model import Kind, Plan, Tier
from assay.plans.nodes import declared_name


class Expansion:
    """That of the templates of one run."""

    def __init__(self, run: RunState, settlement: Settlement, performing: Performing) -> None:
        self._run = run
        self._settlement = settlement
        self._performing = performing

    def expand(self, index: int) -> None:
        """The writers of a template's paths have settled: its instances join the plan."""
        template = self._run.plan.nodes[index]
        self._run.instances[index] = ()
        try:
            matches = self._run.observations.template_matches(index)
            plan = expand_template(self._run.plan, index, matches)
        except PlanError as error:
            sentences = "; ".join(d.message for d in error.diagnostics)
            self._settlement.settle(
                index, Outcome.FAILED, detail=f"cannot be expanded: {sentences}"
            )
            return
        except Refused as error:
            self._settlement.settle(index, Outcome.FAILED, detail=str(error))
            return
        new = tuple(range(len(self._run.plan.nodes), len(plan.nodes)))
        # What an instance reads may come from a node that nobody had selected so far.
        needed = self._run.graph.find_unselected(plan, new)
        effect = next((i for i in needed if plan.nodes[i].tier is not Tier.SEALED), None)
        if effect is not None:
            self._settlement.settle(
                index,
                Outcome.FAILED,
                detail=f"its instances need `{plan.nodes[effect].name}`, which has an effect and"
                " was not asked for: name it exactly to run both",
            )
            return
        if self._stops_over_vanished(index, plan):
            return
        self._run.plan = plan
        self._run.decider.plan = plan
        self._run.certifies = False
        self._run.observations.extend(plan)
        self._run.observations.clear_vanished(template.name, self._run.store.results)
        self.tell_left_over()
        self._run.ledger.note(
            Fact.GENERATION_APPENDED,
            template.name,
            {
                "generation": plan.generation,
                "digest": plan.digest,
                "nodes": [plan.nodes[i].name for i in new],
            },
        )
        keep_plan(self._run)
        self._run.ledger.write(
            partial(
                self._run.store.runs.set_plan_digest, self._run.id, self._run.row.fence, plan.digest
            )
        )
        names = tuple(plan.nodes[i].name for i in new)
        self._settlement.tell(NodesAppended(template.name, names, plan.generation))
        if not new:
            self._run.ledger.announce(
                Warned(
                    f"`{template.name}` expands to nothing: its `foreach` matches no file",
                    template.name,
                )
            )
            self._run.ready.append(index)
            return
        ready = self._run.graph.add(plan, needed) + self._run.graph.append(plan, new, index)
        self._run.instances[index] = new
        self._run.observations.pin((*needed, *new), fresh_listing=True)
        self.tell_left_over()
        self._run.pins_due = True
        self._run.ready.extend(ready)

    def _stops_over_vanished(self, index: int, plan: Plan) -> bool:
        """Whether an earlier run did, or may have done, something for an instance that the
        template does not have any more: that is settled first. `plan` has those of now."""
        base = declared_name(plan.nodes[index].name)
        siblings = [
            i
            for i, node in enumerate(plan.nodes)
            if node.kind is Kind.TEMPLATE and declared_name(node.name) == base
        ]
        if any(i not in self._run.instances for i in siblings):
            return False
        names = {node.name for node in plan.nodes if performs(node)}
        rows = [
            row
            for row in find_vanished(
                self._run.store.effects.open_of(self._run.plan_identity), names.__contains__
            )
            if declared_name(row.node) == base
        ]
        if rows and self._run.request.new:
            self._performing.leave_behind(rows)
            return False
        if not rows:
            return False
        row = rows[0]
        # As long as somebody decides what becomes of it, nobody else can be asked.
        moving = describe_holder(self._run.store, row.attempt)
        self._settlement.settle(
            index,
            Outcome.AMBIGUOUS,
            detail=f"`{row.node}`, which it does not expand to any more, {moving or describe(row)}",
            # Nobody would perform it again.
            asks=replace(question_about(row, None), stands=False) if moving is None else None,
        )
        return True

    def tell_left_over(self) -> None:
        left_over, self._run.observations.left_over = self._run.observations.left_over, []
        if left_over:
            self._run.ledger.note(Fact.LEFTOVERS_REMOVED, data={"paths": list(left_over)})
            names = ", ".join(f"`{path}`" for path in left_over)
            self._run.ledger.announce(
                Warned(f"removed what no node of the plan makes any more: {names}")
            )
