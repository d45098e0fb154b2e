"""Plan keys and plan digests: what a plan is, whatever file or machine it comes from.

The order of nodes, the place of a declaration in a file and the file's own name are no
part of either. Does not know the content of anything a node reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from assay.plans.canonical import JsonValue, digest_of
from assay.plans.declarations import encode_declaration, encode_env_value
from assay.plans.model import Digest, Node, NodeName, PlanKey, Resource, ValueRef

KEY_DOMAIN: Final = "assay plan key 1"
PLAN_DOMAIN: Final = "assay plan 1"


def make_plan_key(node: Node, upstream: Iterable[PlanKey]) -> PlanKey:
    """The digest of what `node` declares and the plan keys of what it follows."""
    value: dict[str, JsonValue] = {
        "declaration": encode_declaration(node),
        "upstream": sorted(set(upstream)),
    }
    return PlanKey(digest_of(KEY_DOMAIN, value))


def make_plan_keys(
    nodes: Sequence[Node],
    dependencies: Sequence[Sequence[int]],
    order: Iterable[int],
    known: Sequence[PlanKey] = (),
) -> tuple[PlanKey, ...]:
    """The plan keys of all nodes; the first ones may be `known`. `order` is topological."""
    keys: list[PlanKey] = list(known)
    keys += [PlanKey("")] * (len(nodes) - len(known))
    for index in order:
        if index >= len(known):
            keys[index] = make_plan_key(nodes[index], (keys[i] for i in dependencies[index]))
    return tuple(keys)


def make_plan_digest(
    *,
    name: str,
    nodes: Sequence[Node],
    plan_keys: Sequence[PlanKey],
    default: Sequence[NodeName] | None,
    steps: int | None,
    agents: int | None,
    resources: Sequence[Resource],
    outputs: Sequence[tuple[str, ValueRef]],
    params: Sequence[tuple[str, str]],
    generation: int,
) -> Digest:
    """Equal declarations give an equal digest, in whatever order they were made."""
    keyed = sorted((node.name, key) for node, key in zip(nodes, plan_keys, strict=True))
    value: dict[str, JsonValue] = {
        "name": name,
        "nodes": cast(JsonValue, keyed),
        "default": None if default is None else sorted(default),
        "steps": steps,
        "agents": agents,
        "resources": {r.name: [r.amount, r.scope.value] for r in resources},
        "outputs": {output: encode_env_value(value) for output, value in outputs},
        "params": dict(params),
        "generation": generation,
    }
    return digest_of(PLAN_DOMAIN, value)
