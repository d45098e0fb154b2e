"""A compiled plan as bytes, and back: what a run keeps so that editing the file never
changes it.

The bytes are a magic line, the BLAKE3 digest of the rest (32 bytes), and zlib over canonical
JSON:

    {"plan": {"name", "file", "default", "steps", "agents", "resources", "outputs", "params",
              "generation", "base_digest", "base_size"},
     "nodes": [[ORIGIN, DECLARATION], ...], "dependencies": [[INDEX, ...], ...],
     "edge_kinds": [[BITS, ...], ...]}

with the forms of `assay.plans.declarations`. Does not know where the bytes are kept.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from blake3 import blake3

from assay.plans.canonical import JsonValue, canonical_json
from assay.plans.declarations import (
    decode_declaration,
    decode_env_value,
    decode_origin,
    encode_declaration,
    encode_env_value,
    encode_origin,
)
from assay.plans.identity import make_plan_digest, make_plan_keys
from assay.plans.model import (
    Digest,
    EdgeKind,
    NodeName,
    Plan,
    Resource,
    ResourceScope,
    ValueRef,
)
from assay.plans.ordering import sort_topologically

MAGIC: Final = b"assay plan 1\n"
CHECKSUM_BYTES: Final = 32


class DamagedPlan(Exception):
    """Stored bytes that are not the plan they are kept as. The message is one sentence."""


def plan_to_bytes(plan: Plan) -> bytes:
    value: JsonValue = {
        "plan": {
            "name": plan.name,
            "file": plan.file,
            "default": plan.default,
            "steps": plan.steps,
            "agents": plan.agents,
            "resources": [[r.name, r.amount, r.scope.value] for r in plan.resources],
            "outputs": [[name, encode_env_value(value)] for name, value in plan.outputs],
            "params": plan.params,
            "generation": plan.generation,
            "base_digest": plan.base_digest,
            "base_size": plan.base_size,
        },
        "nodes": [[encode_origin(n.origin), encode_declaration(n)] for n in plan.nodes],
        "dependencies": plan.dependencies,
        "edge_kinds": [[kind.value for kind in kinds] for kinds in plan.edge_kinds],
    }
    packed = zlib.compress(canonical_json(value))
    return MAGIC + blake3(packed).digest() + packed


def plan_from_bytes(data: bytes, digest: Digest) -> Plan:
    """The plan that `plan_to_bytes` wrote. Raises DamagedPlan unless its digest, computed
    anew from its declarations, is `digest`."""
    checksum, packed = data[len(MAGIC) :][:CHECKSUM_BYTES], data[len(MAGIC) + CHECKSUM_BYTES :]
    if not data.startswith(MAGIC):
        raise DamagedPlan(f"The stored plan {digest} does not start as a plan does.")
    if blake3(packed).digest() != checksum:
        raise DamagedPlan(f"The stored plan {digest} is not as it was written.")
    try:
        text = zlib.decompress(packed).decode("utf-8", "surrogateescape")
        plan = _decode_plan(json.loads(text))
    except (zlib.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedPlan(f"The stored plan {digest} cannot be read: {error}.") from error
    if plan.digest != digest:
        raise DamagedPlan(f"The plan stored as {digest} has the digest {plan.digest}.")
    return plan


def _decode_plan(value: Any) -> Plan:
    head = value["plan"]
    nodes = tuple(decode_declaration(item, decode_origin(at)) for at, item in value["nodes"])
    dependencies = tuple(map(tuple, value["dependencies"]))
    plan_keys = make_plan_keys(nodes, dependencies, sort_topologically(dependencies))
    default = None if head["default"] is None else tuple(map(NodeName, head["default"]))
    resources = tuple(Resource(n, a, ResourceScope(s)) for n, a, s in head["resources"])
    outputs = tuple((name, _value_ref(item)) for name, item in head["outputs"])
    params = tuple((name, text) for name, text in head["params"])
    found = make_plan_digest(
        name=head["name"],
        nodes=nodes,
        plan_keys=plan_keys,
        default=default,
        steps=head["steps"],
        agents=head["agents"],
        resources=resources,
        outputs=outputs,
        params=params,
        generation=head["generation"],
    )
    kinds = {kind: EdgeKind(kind) for kinds in value["edge_kinds"] for kind in kinds}
    return Plan(
        name=head["name"],
        nodes=nodes,
        dependencies=dependencies,
        edge_kinds=tuple(tuple(kinds[k] for k in row) for row in value["edge_kinds"]),
        plan_keys=plan_keys,
        digest=found,
        base_digest=Digest(head["base_digest"]),
        generation=head["generation"],
        file=head["file"],
        default=default,
        steps=head["steps"],
        agents=head["agents"],
        resources=resources,
        outputs=outputs,
        params=params,
        base_size=head["base_size"],
    )


def _value_ref(value: Any) -> ValueRef:
    found = decode_env_value(value)
    if not isinstance(found, ValueRef):
        raise TypeError("an output is not a value reference")
    return found
