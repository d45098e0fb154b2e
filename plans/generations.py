"""A new generation of a plan: a template node's instances, once its paths are written.

Does not know who matched the paths, nor when.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.plans.compile import append_nodes
from assay.plans.diagnostics import PlanError
from assay.plans.foreach import make_instances, read_declaration
from assay.plans.model import Plan, RelPath
from assay.plans.nodes import Complaints


def expand_template(plan: Plan, index: int, matches: Sequence[RelPath]) -> Plan:
    """`plan` with one node for each of `matches` appended and compiled against it, one
    generation further.

    `index` is that of the template node. No file is read: the declaration is part of the
    plan. Raises PlanError when an instance cannot be compiled.
    """
    node = plan.nodes[index]
    if node.template is None:
        raise ValueError(f"node {node.name} is no template")
    declaration, combination = read_declaration(node.template.declaration, node.origin)
    complaints = Complaints()
    nodes = list(make_instances(declaration, combination, matches, complaints))
    if complaints.errors:
        raise PlanError(list(complaints.errors.values()), {})
    return append_nodes(plan, index, nodes)
